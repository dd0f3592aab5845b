// Python objects that a work keeps alive until it is done.
#pragma once

#include <nanobind/nanobind.h>

#include "core/work.hpp"

namespace ringleader {

// Holds a reference to `object`. It may be destroyed by any thread, without the GIL: the reference then goes as soon as
// the main thread runs Python code, or when the next work is made. (Threads of ours never take the GIL: a program that
// computes would hold up its peers.)
WorkState::Kept keep(nanobind::handle object);

// Lets go of what works that are done have kept. Needs the GIL.
void let_go_of_kept();

}  // namespace ringleader
