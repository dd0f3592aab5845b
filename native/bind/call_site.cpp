// Where in the user's program a call is: the innermost frame that is not of this library or of PyTorch.
#include <Python.h>
#include <frameobject.h>
#include <nanobind/stl/string.h>

#include <string>
#include <string_view>

#include "bind/plan.hpp"

namespace nb = nanobind;

namespace ringleader {

namespace {

// The folder of this package, with a slash at the end.
std::string_view own_folder() {
  static const std::string* const folder = [] {
    auto* path = new std::string(nb::cast<std::string>(nb::module_::import_("ringleader").attr("__file__")));
    path->resize(path->rfind('/') + 1);
    return path;
  }();
  return *folder;
}

bool of_a_library(std::string_view file) {
  return file.starts_with(own_folder()) || file.starts_with("<frozen ") ||
         file.find("-packages/torch/") != std::string_view::npos;
}

std::string describe(PyFrameObject* frame, std::string_view file, PyCodeObject* code) {
  const char* function = PyUnicode_AsUTF8(code->co_name);
  std::string text(file);
  text.append(":").append(std::to_string(PyFrame_GetLineNumber(frame)));
  if (function != nullptr) text.append(" in ").append(function);
  return text;
}

}  // namespace

// Leaves the error indicator as it was: it is asked for while errors are on their way.
std::uint32_t call_site(Communicator& communicator) {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  std::uint32_t site = 0;
  try {
    std::string text;
    PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get());
    while (frame != nullptr) {
      PyCodeObject* const code = PyFrame_GetCode(frame);
      const char* const name = PyUnicode_AsUTF8(code->co_filename);
      const std::string_view file = name != nullptr ? name : "";
      const bool users = !of_a_library(file);
      PyFrameObject* const back = users ? nullptr : PyFrame_GetBack(frame);
      // Without a frame of the user's - in a thread of autograd, say - the outermost one says most.
      if (users || back == nullptr) text = describe(frame, file, code);
      Py_DECREF(code);
      Py_DECREF(frame);
      frame = back;
    }
    if (!text.empty()) site = communicator.recorder().string(text);
  } catch (const std::exception&) {
    PyErr_Clear();  // then it is not known
  }
  PyErr_Restore(type, value, traceback);
  return site;
}

}  // namespace ringleader
