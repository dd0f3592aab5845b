// Plans and works as Python objects, and how a plan is run from Python.
#pragma once

#include <nanobind/nanobind.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>

#include "core/communicator.hpp"

namespace ringleader {

constexpr auto kSlice = std::chrono::milliseconds(100);  // longest wait without looking at signals

struct PyPlan {
  std::shared_ptr<Communicator> communicator;
  std::shared_ptr<const Plan> plan;
};

struct PyWork {
  std::shared_ptr<Communicator> communicator;
  std::shared_ptr<WorkState> state;
  bool message = false;  // point-to-point

  // Whether it is over. In a forked child what was in flight is over: the process that runs it is another one.
  bool over() const { return state->done() || communicator->forked(); }
  std::optional<Error> error() const {
    if (!state->done() && communicator->forked())
      return Error(ErrorKind::forked, "the operation is the parent process's: a forked child does not get its result");
    return state->error();
  }
};

// Where in the user's program the running Python call is, as a string of the communicator's recorder; 0 if unknown.
std::uint32_t call_site(Communicator& communicator);

// Throws nanobind::python_error if a signal's handler raised.
void handle_signals();

// To the end; lets go of the GIL if it takes more than a few microseconds. Throws Error or nanobind::python_error.
void run_plan(PyPlan& self, std::uintptr_t in, std::uintptr_t out, double timeout);
// The same for callers that are no nanobind functions: false with a Python error set.
bool run_raising(PyPlan& plan, std::uintptr_t in, std::uintptr_t out, double timeout);
// `kept`: an object that owns the memory in use. `copies`: StridedCopy objects, made when the operation completes.
PyWork start_plan(PyPlan& self, std::uintptr_t in, std::uintptr_t out, double timeout, nanobind::handle kept,
                  const nanobind::sequence& copies);
// A work that does the same, for what is to be started.
std::shared_ptr<WorkState> make_work(nanobind::handle kept, nanobind::handle copies = {});

}  // namespace ringleader
