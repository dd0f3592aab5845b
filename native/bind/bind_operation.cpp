// Operation: the base class of persistent operations, a plan bound to its arrays.
#include <Python.h>

#include <cstdint>

#include "bind/bind.hpp"
#include "bind/plan.hpp"
#include "bind/types.hpp"

namespace nb = nanobind;

namespace ringleader {

namespace {

struct Operation {
  PyObject_HEAD PyObject* plan;
  PyObject* result;
  PyPlan* native;  // null: `_call` does it
  std::uintptr_t in, out;
  double timeout;
};

PyObject* operation_new(PyTypeObject* type, PyObject*, PyObject*) { return type->tp_alloc(type, 0); }

// _bind(plan, in_ptr, out_ptr, result, timeout)
PyObject* operation_bind(PyObject* object, PyObject* args) {
  auto* self = reinterpret_cast<Operation*>(object);
  PyObject *plan, *result;
  unsigned long long in = 0, out = 0;
  double timeout = 0;
  if (!PyArg_ParseTuple(args, "OKKOd", &plan, &in, &out, &result, &timeout)) return nullptr;
  PyPlan* native = nullptr;
  if (!nb::try_cast<PyPlan*>(nb::handle(plan), native) || native == nullptr) {
    PyErr_SetString(PyExc_TypeError, "expected a Plan");
    return nullptr;
  }
  Py_XSETREF(self->plan, Py_NewRef(plan));
  Py_XSETREF(self->result, Py_NewRef(result));
  self->native = native;
  self->in = static_cast<std::uintptr_t>(in);
  self->out = static_cast<std::uintptr_t>(out);
  self->timeout = timeout;
  Py_RETURN_NONE;
}

PyObject* operation_call(PyObject* object, PyObject* args, PyObject* named) {
  auto* self = reinterpret_cast<Operation*>(object);
  if (PyTuple_GET_SIZE(args) != 0 || (named != nullptr && PyDict_GET_SIZE(named) != 0)) {
    PyErr_SetString(PyExc_TypeError, "a persistent operation takes no arguments: it is bound to its arrays");
    return nullptr;
  }
  if (self->native == nullptr) return PyObject_CallMethod(object, "_run", nullptr);
  if (!run_raising(*self->native, self->in, self->out, self->timeout)) return nullptr;
  return Py_NewRef(self->result);
}

int operation_traverse(PyObject* object, visitproc visit, void* arg) {
  auto* self = reinterpret_cast<Operation*>(object);
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(self->plan);
  Py_VISIT(self->result);
  return 0;
}

int operation_clear(PyObject* object) {
  auto* self = reinterpret_cast<Operation*>(object);
  self->native = nullptr;
  Py_CLEAR(self->plan);
  Py_CLEAR(self->result);
  return 0;
}

void operation_dealloc(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  operation_clear(object);
  type->tp_free(object);
  Py_DECREF(type);
}

PyMethodDef operation_methods[] = {{"_bind", operation_bind, METH_VARARGS, nullptr}, {}};

}  // namespace

void bind_operation(nb::module_& m) {
  PyType_Slot slots[] = {{Py_tp_new, slot_of(operation_new)},
                         {Py_tp_dealloc, slot_of(operation_dealloc)},
                         {Py_tp_traverse, slot_of(operation_traverse)},
                         {Py_tp_clear, slot_of(operation_clear)},
                         {Py_tp_call, slot_of(operation_call)},
                         {Py_tp_methods, operation_methods},
                         {0, nullptr}};
  make_type(m, "Operation", "ringleader._core.Operation", sizeof(Operation), Py_TPFLAGS_BASETYPE, slots);
}

}  // namespace ringleader
