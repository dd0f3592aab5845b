// Each room's bindings; module.cpp calls them.
#pragma once

#include <nanobind/nanobind.h>

#include "base/types.hpp"

namespace ringleader {

void bind_schedule(nanobind::module_& m);
void bind_reduce(nanobind::module_& m);
void bind_memory(nanobind::module_& m);
void bind_comm(nanobind::module_& m);
void bind_compress(nanobind::module_& m);
void bind_plan(nanobind::module_& m);
void bind_calls(nanobind::module_& m);
void bind_operation(nanobind::module_& m);

// Registers the translation of ringleader::Error into the classes given to set_error_types (bind/errors.cpp).
void bind_errors(nanobind::module_& m);
// The Python exception instance for an error (needs the GIL).
nanobind::object to_python(const Error& error);

}  // namespace ringleader
