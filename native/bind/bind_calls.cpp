// The short way from a Python call to a plan, for calls that repeat an earlier one on plain NumPy arrays: `Lane`
// remembers such calls, `Verb` is the method that asks it first and falls back on the documented Python method. Raw
// CPython, because a call here is to cost some tens of nanoseconds.
//
// Invariant: whatever the long way (runtime/calls.py) checks follows from the key (types, shapes, operator, root,
// algorithm, wire format) or is checked again here (contiguous, writable, not overlapping); the state of the
// communicator is checked by the core.
#include <Python.h>
#include <structmember.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>

#include "bind/array_view.hpp"
#include "bind/bind.hpp"
#include "bind/plan.hpp"
#include "bind/types.hpp"

namespace nb = nanobind;

namespace ringleader {

namespace {

// ---- what a call is known by

enum Slot : std::size_t { kX, kOut, kOp, kRoot, kAlgorithm, kWire, kAsync, kTimeout, kSlots };
constexpr const char* kSlotNames[kSlots] = {"x", "out", "op", "root", "algorithm", "wire", "async_op", "timeout"};
constexpr std::size_t kWords = 4;  // of the slots, those that are compared by identity: kOp ... kWire
constexpr int kMaxDims = 6;
constexpr std::size_t kSets = 64, kWays = 2;  // where more collide, some calls take the Python way

PyObject* slot_names[kSlots];  // interned, never dropped
PyObject* default_op;          // what a call that does not say is known by
PyObject* default_root;

struct ArrayKey {
  PyObject* descr = nullptr;  // null: no array. Types that are equal but not identical are found by the Python way.
  int nd = 0;
  Py_ssize_t nbytes = 0;
  Py_ssize_t dims[kMaxDims] = {};

  bool fits(PyObject* array) const {
    if (array == nullptr || descr == nullptr) return array == nullptr && descr == nullptr;
    const ArrayFields& given = fields(array);
    if (given.descr != descr || given.nd != nd) return false;
    for (int d = 0; d < nd; ++d)
      if (given.dimensions[d] != dims[d]) return false;
    return true;
  }
};

struct Entry {
  long verb = -1;  // -1: empty
  std::array<nb::object, kWords> words;
  ArrayKey x, out;
  nb::object descr_x, descr_out;  // keep the types alive, so that no other gets their address
  nb::object plan, choice;
  PyPlan* native = nullptr;
  bool writes = false;      // this rank gets a result
  bool in_place = false;    // the arrays may overlap, in exactly one way:
  Py_ssize_t distance = 0;  // out begins so many bytes after x
  std::uintptr_t in = 0;    // where the call takes no array
  nb::object keep;

  bool is_for(long code, PyObject* const* given, PyObject* given_x, PyObject* given_out) const {
    if (verb != code || !x.fits(given_x) || !out.fits(given_out)) return false;
    for (std::size_t i = 0; i < kWords; ++i)
      if (words[i].ptr() != given[i]) return false;
    return true;
  }
};

using Set = std::array<Entry, kWays>;  // the latest first
using Entries = std::array<Set, kSets>;

// ---- Lane: the base class of communicators

struct Lane {
  PyObject_HEAD PyObject* last_choice;
  std::unique_ptr<Entries> entries;
};

PyTypeObject* lane_type;

std::size_t set_of(long verb, PyObject* const* words, PyObject* x, PyObject* out) {
  std::uint64_t hash = static_cast<std::uint64_t>(verb) * 4 + (out != nullptr ? 2 : 0);
  for (std::size_t i = 0; i < kWords; ++i)
    hash = (hash ^ reinterpret_cast<std::uintptr_t>(words[i])) * 0x9e3779b97f4a7c15u;
  if (x != nullptr) {
    const ArrayFields& given = fields(x);
    hash ^= reinterpret_cast<std::uintptr_t>(given.descr);
    for (int d = 0; d < given.nd; ++d)
      hash = (hash ^ static_cast<std::uint64_t>(given.dimensions[d])) * 0xbf58476d1ce4e5b9u;
  }
  return static_cast<std::size_t>((hash * 0x94d049bb133111ebu) >> 58);
}
static_assert(kSets == std::size_t{1} << (64 - 58));

bool usable(PyObject* array) {
  return array == nullptr ||
         (Py_TYPE(array) == load_array_type() && plain(fields(array)) && fields(array).nd <= kMaxDims);
}

std::uintptr_t address(PyObject* array) {
  return array == nullptr ? 0 : reinterpret_cast<std::uintptr_t>(fields(array).data);
}

PyObject* lane_new(PyTypeObject* type, PyObject*, PyObject*) {
  auto* self = reinterpret_cast<Lane*>(type->tp_alloc(type, 0));
  if (self != nullptr) new (&self->entries) decltype(self->entries)();
  return reinterpret_cast<PyObject*>(self);
}

int lane_traverse(PyObject* object, visitproc visit, void* arg) {
  auto* self = reinterpret_cast<Lane*>(object);
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(self->last_choice);
  if (self->entries)
    for (const Set& set : *self->entries)
      for (const Entry& entry : set) {
        for (const nb::object& word : entry.words) Py_VISIT(word.ptr());
        for (const nb::object* held : {&entry.descr_x, &entry.descr_out, &entry.plan, &entry.choice, &entry.keep})
          Py_VISIT(held->ptr());
      }
  return 0;
}

int lane_clear(PyObject* object) {
  auto* self = reinterpret_cast<Lane*>(object);
  Py_CLEAR(self->last_choice);
  const auto gone = std::move(self->entries);  // first out of reach: dropping references may run any code
  return 0;
}

void lane_dealloc(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  lane_clear(object);
  std::destroy_at(&reinterpret_cast<Lane*>(object)->entries);
  type->tp_free(object);
  Py_DECREF(type);
}

PyObject* lane_forget(PyObject* self, PyObject*) {
  const auto gone = std::move(reinterpret_cast<Lane*>(self)->entries);
  Py_RETURN_NONE;
}

nb::object held(PyObject* object) { return nb::borrow<nb::object>(object); }

void note(PyObject* array, ArrayKey& key, nb::object& descr) {
  if (array == nullptr) return;
  const ArrayFields& given = fields(array);
  descr = held(given.descr);
  key.descr = given.descr;
  key.nd = given.nd;
  key.nbytes = nb::cast<Py_ssize_t>(nb::handle(array).attr("nbytes"));
  std::copy_n(given.dimensions, given.nd, key.dims);
}

// learn(verb, (op, root, algorithm, wire), x, out, plan, choice, writes, distance, in_ptr, keep). Arrays that the short
// way cannot take are ignored.
PyObject* lane_learn(PyObject* object, PyObject* args) {
  auto* self = reinterpret_cast<Lane*>(object);
  long verb = 0;
  PyObject *words[kWords], *x, *out, *plan, *choice, *distance, *keep;
  int writes = 0;
  unsigned long long in = 0;
  if (!PyArg_ParseTuple(args, "l(OOOO)OOOOpOKO", &verb, &words[0], &words[1], &words[2], &words[3], &x, &out, &plan,
                        &choice, &writes, &distance, &in, &keep))
    return nullptr;
  if (x == Py_None) x = nullptr;
  if (out == Py_None) out = nullptr;
  if (load_array_type() == nullptr || !usable(x) || !usable(out)) Py_RETURN_NONE;
  try {
    Entry entry;
    entry.native = &nb::cast<PyPlan&>(nb::handle(plan));
    entry.verb = verb;
    for (std::size_t i = 0; i < kWords; ++i) entry.words[i] = held(words[i]);
    note(x, entry.x, entry.descr_x);
    note(out, entry.out, entry.descr_out);
    entry.plan = held(plan);
    entry.choice = held(choice);
    entry.keep = held(keep);
    entry.writes = writes != 0;
    entry.in_place = distance != Py_None;
    if (entry.in_place) entry.distance = nb::cast<Py_ssize_t>(nb::handle(distance));
    entry.in = static_cast<std::uintptr_t>(in);
    if (!self->entries) self->entries = std::make_unique<Entries>();
    // The latest first; what falls out of the set is forgotten.
    for (Entry& place : (*self->entries)[set_of(verb, words, x, out)]) {
      std::swap(place, entry);
      if (entry.verb == -1) break;
    }
  } catch (const nb::python_error&) {
    return nb::chain_error(PyExc_RuntimeError, "a call could not be remembered"), nullptr;
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
    return nullptr;
  }
  Py_RETURN_NONE;
}

// ---- Verb: a method of communicators

struct Verb {
  PyObject_HEAD vectorcallfunc call;
  PyObject* function;  // the documented method
  PyObject* dict;
  long code;
  std::size_t positional_n;
  Slot positional[kSlots];
};

bool sort_arguments(const Verb& verb, PyObject* const* args, std::size_t n, PyObject* names, PyObject** values) {
  if (n > verb.positional_n) return false;
  for (std::size_t i = 0; i < n; ++i) values[verb.positional[i]] = args[i];
  const Py_ssize_t named = names == nullptr ? 0 : PyTuple_GET_SIZE(names);
  for (Py_ssize_t i = 0; i < named; ++i) {
    std::size_t slot = 0;
    while (slot < kSlots && slot_names[slot] != PyTuple_GET_ITEM(names, i)) ++slot;
    if (slot == kSlots || values[slot] != nullptr) return false;
    values[slot] = args[n + static_cast<std::size_t>(i)];
  }
  for (const Slot slot : {kX, kOut})
    if (values[slot] == Py_None) values[slot] = nullptr;
  if (values[kOp] == nullptr) values[kOp] = default_op;
  if (values[kRoot] == nullptr) values[kRoot] = default_root;
  for (const Slot slot : {kAlgorithm, kWire})
    if (values[slot] == nullptr) values[slot] = Py_None;
  return true;
}

bool overlapping(const Entry& entry, std::uintptr_t in, std::uintptr_t out) {
  if (in >= out + static_cast<std::uintptr_t>(entry.out.nbytes) ||
      out >= in + static_cast<std::uintptr_t>(entry.x.nbytes))
    return false;
  return !entry.in_place || static_cast<Py_ssize_t>(out - in) != entry.distance;
}

// The entry for such a call; null if there is none or the call needs more thought.
const Entry* find(const Lane& lane, long verb, PyObject* const* values) {
  if (!lane.entries || !usable(values[kX]) || !usable(values[kOut])) return nullptr;
  for (const Entry& entry : (*lane.entries)[set_of(verb, values + kOp, values[kX], values[kOut])]) {
    if (!entry.is_for(verb, values + kOp, values[kX], values[kOut])) continue;
    const bool both = values[kX] != nullptr && values[kOut] != nullptr;
    return both && overlapping(entry, address(values[kX]), address(values[kOut])) ? nullptr : &entry;
  }
  return nullptr;
}

PyObject* run_known(Lane& lane, const Entry& entry, PyObject* const* values, double timeout) {
  PyObject* const x = values[kX];
  PyObject* const out = values[kOut];
  const std::uintptr_t in = x != nullptr || out != nullptr ? address(x) : entry.in;
  const std::uintptr_t to = !entry.writes && x != nullptr ? 0 : out != nullptr ? address(out) : in;
  PyObject* const result = !entry.writes ? Py_None : out != nullptr ? out : x;
  if (lane.last_choice != entry.choice.ptr()) {
    PyObject* const before = lane.last_choice;
    lane.last_choice = Py_NewRef(entry.choice.ptr());
    Py_XDECREF(before);
  }
  const nb::object alive = entry.plan;  // another thread may make the lane forget it while this one waits
  if (!run_raising(*entry.native, in, to, timeout)) return nullptr;
  return Py_NewRef(result);
}

PyObject* verb_call(PyObject* object, PyObject* const* args, std::size_t nargsf, PyObject* names) {
  const Verb& verb = *reinterpret_cast<const Verb*>(object);
  const auto n = static_cast<std::size_t>(PyVectorcall_NARGS(nargsf));
  PyObject* values[kSlots] = {};
  if (n >= 1 && PyObject_TypeCheck(args[0], lane_type) && sort_arguments(verb, args + 1, n - 1, names, values) &&
      (values[kAsync] == nullptr || values[kAsync] == Py_False)) {
    PyObject* const limit = values[kTimeout];
    double timeout = 0;
    const bool simple_limit = limit == nullptr || limit == Py_None ||
                              ((PyFloat_CheckExact(limit) || PyLong_CheckExact(limit)) &&
                               (timeout = PyFloat_AsDouble(limit)) > 0);
    if (timeout < 0) PyErr_Clear();  // an integer beyond the range of a double, or a limit that the method refuses
    Lane& lane = *reinterpret_cast<Lane*>(args[0]);
    const Entry* const entry = simple_limit ? find(lane, verb.code, values) : nullptr;
    if (entry != nullptr) return run_known(lane, *entry, values, timeout);
  }
  return PyObject_Vectorcall(verb.function, args, nargsf, names);
}

PyObject* verb_new(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject *function, *names;
  long code = 0;
  if (!PyArg_ParseTuple(args, "OlO!", &function, &code, &PyTuple_Type, &names)) return nullptr;
  auto* self = reinterpret_cast<Verb*>(type->tp_alloc(type, 0));
  if (self == nullptr) return nullptr;
  self->call = verb_call;
  self->function = Py_NewRef(function);
  self->code = code;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); ++i) {
    std::size_t slot = 0;
    while (slot < kSlots && PyUnicode_Compare(PyTuple_GET_ITEM(names, i), slot_names[slot]) != 0) ++slot;
    if (slot == kSlots || self->positional_n == kSlots) {
      PyErr_Format(PyExc_ValueError, "unknown parameter %R", PyTuple_GET_ITEM(names, i));
      Py_DECREF(self);
      return nullptr;
    }
    self->positional[self->positional_n++] = static_cast<Slot>(slot);
  }
  return reinterpret_cast<PyObject*>(self);
}

int verb_traverse(PyObject* object, visitproc visit, void* arg) {
  auto* self = reinterpret_cast<Verb*>(object);
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(self->function);
  Py_VISIT(self->dict);
  return 0;
}

int verb_clear(PyObject* object) {
  auto* self = reinterpret_cast<Verb*>(object);
  Py_CLEAR(self->dict);
  return 0;
}

void verb_dealloc(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  verb_clear(object);
  Py_CLEAR(reinterpret_cast<Verb*>(object)->function);
  type->tp_free(object);
  Py_DECREF(type);
}

PyObject* verb_get(PyObject* self, PyObject* instance, PyObject*) {
  if (instance == nullptr || instance == Py_None) return Py_NewRef(self);
  return PyMethod_New(self, instance);
}

// ---- the types

PyMemberDef lane_members[] = {{"_last_choice", T_OBJECT, offsetof(Lane, last_choice), 0, nullptr}, {}};
PyMethodDef lane_methods[] = {
    {"_learn", lane_learn, METH_VARARGS, nullptr}, {"_forget", lane_forget, METH_NOARGS, nullptr}, {}};
PyMemberDef verb_members[] = {{"__vectorcalloffset__", T_PYSSIZET, offsetof(Verb, call), READONLY, nullptr},
                              {"__dictoffset__", T_PYSSIZET, offsetof(Verb, dict), READONLY, nullptr},
                              {}};
PyGetSetDef verb_properties[] = {{"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, nullptr, nullptr}, {}};

}  // namespace

void bind_calls(nb::module_& m) {
  for (std::size_t slot = 0; slot < kSlots; ++slot) slot_names[slot] = PyUnicode_InternFromString(kSlotNames[slot]);
  default_op = PyUnicode_InternFromString("sum");
  default_root = PyLong_FromLong(0);
  PyType_Slot lane_slots[] = {{Py_tp_new, slot_of(lane_new)},
                              {Py_tp_dealloc, slot_of(lane_dealloc)},
                              {Py_tp_traverse, slot_of(lane_traverse)},
                              {Py_tp_clear, slot_of(lane_clear)},
                              {Py_tp_members, lane_members},
                              {Py_tp_methods, lane_methods},
                              {0, nullptr}};
  lane_type = make_type(m, "Lane", "ringleader._core.Lane", sizeof(Lane), Py_TPFLAGS_BASETYPE, lane_slots);
  PyType_Slot verb_slots[] = {{Py_tp_new, slot_of(verb_new)},
                              {Py_tp_dealloc, slot_of(verb_dealloc)},
                              {Py_tp_traverse, slot_of(verb_traverse)},
                              {Py_tp_clear, slot_of(verb_clear)},
                              {Py_tp_call, slot_of(PyVectorcall_Call)},
                              {Py_tp_descr_get, slot_of(verb_get)},
                              {Py_tp_members, verb_members},
                              {Py_tp_getset, verb_properties},
                              {0, nullptr}};
  make_type(m, "Verb", "ringleader._core.Verb", sizeof(Verb), Py_TPFLAGS_METHOD_DESCRIPTOR | Py_TPFLAGS_HAVE_VECTORCALL,
            verb_slots);
}

}  // namespace ringleader
