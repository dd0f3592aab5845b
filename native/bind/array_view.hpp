// A NumPy array's fields, read where they lie.
#pragma once

#include <Python.h>

#include <cstdint>

namespace ringleader {

// The public head of a PyArrayObject. Its layout has not changed since NumPy 1.7 and is part of NumPy's ABI; it is
// tried on an array of known content nevertheless before it is relied on (`load_array_type`).
struct ArrayFields {
  PyObject_HEAD char* data;
  int nd;
  Py_ssize_t* dimensions;
  Py_ssize_t* strides;
  PyObject* base;
  PyObject* descr;
  int flags;
};

// numpy.ndarray, or null if its layout is not the expected one: then no array is `plain`. Imports NumPy on first use.
PyTypeObject* load_array_type();

// C-contiguous, aligned and writable.
inline bool plain(const ArrayFields& array) {
  constexpr int kPlain = 0x0001 | 0x0100 | 0x0400;
  return (array.flags & kPlain) == kPlain;
}

inline const ArrayFields& fields(PyObject* array) { return *reinterpret_cast<const ArrayFields*>(array); }

}  // namespace ringleader
