// ringleader::Error <-> the Python classes of ringleader.errors.
#include <nanobind/stl/string.h>

#include <array>

#include "bind/bind.hpp"

namespace nb = nanobind;

namespace ringleader {

namespace {

constexpr const char* kKinds[] = {"invalid", "timeout", "peer_lost", "mismatch", "aborted",
                                  "closed",  "forked",  "memory",    "internal"};
constexpr std::size_t kKindCount = sizeof kKinds / sizeof *kKinds;

// Owned references, never dropped: errors may be raised until the interpreter is gone.
std::array<PyObject*, kKindCount> types{};

void set_error_types(const nb::dict& given) {
  for (std::size_t i = 0; i < kKindCount; ++i) {
    if (!given.contains(kKinds[i]))
      throw nb::key_error((std::string("set_error_types: no class for '") + kKinds[i] + "'").c_str());
    types[i] = nb::object(given[kKinds[i]]).release().ptr();
  }
}

// Called after a failure of a communicator became an exception. Owned as well.
PyObject* failure_hook = nullptr;

void set_failure_hook(nb::object hook) { Py_XSETREF(failure_hook, hook.is_none() ? nullptr : hook.release().ptr()); }

void tell_of_failure(ErrorKind kind) {
  if (failure_hook == nullptr || (kind != ErrorKind::timeout && kind != ErrorKind::peer_lost &&
                                  kind != ErrorKind::mismatch && kind != ErrorKind::aborted))
    return;
  PyObject* const result = PyObject_CallNoArgs(failure_hook);
  if (result == nullptr) PyErr_WriteUnraisable(failure_hook);
  Py_XDECREF(result);
}

}  // namespace

nb::object to_python(const Error& error) {
  PyObject* type = types[static_cast<std::size_t>(error.kind)];
  if (!type) type = PyExc_RuntimeError;
  nb::list ranks;
  for (const Rank rank : error.ranks) ranks.append(rank);
  nb::object instance = nb::borrow(type)(nb::str(error.what()), nb::tuple(ranks));
  tell_of_failure(error.kind);
  return instance;
}

void bind_errors(nb::module_& m) {
  m.def("set_error_types", &set_error_types, nb::arg("types"));
  m.def("set_failure_hook", &set_failure_hook, nb::arg("hook").none());
  nb::register_exception_translator([](const std::exception_ptr& pointer, void*) {
    try {
      std::rethrow_exception(pointer);
    } catch (const Error& error) {
      const nb::object instance = to_python(error);
      PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(instance.ptr())), instance.ptr());
    }
  });
}

}  // namespace ringleader
