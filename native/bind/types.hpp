// Types made with the C API where a call must cost as little as can be.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>

namespace ringleader {

// What a type's slot holds of a function.
template <class F>
void* slot_of(F* function) {
  return reinterpret_cast<void*>(function);
}

// Adds a garbage-collected type to the module as `attribute`.
inline PyTypeObject* make_type(nanobind::module_& m, const char* attribute, const char* full_name, std::size_t size,
                               unsigned long flags, PyType_Slot* slots) {
  PyType_Spec spec{full_name, static_cast<int>(size), 0,
                   static_cast<unsigned int>(Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | flags), slots};
  PyObject* type = PyType_FromSpec(&spec);
  if (type == nullptr) throw nanobind::python_error();
  m.attr(attribute) = nanobind::borrow(type);
  return reinterpret_cast<PyTypeObject*>(type);
}

}  // namespace ringleader
