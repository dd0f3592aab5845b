// Plan: running it on the calling thread, or starting it. Waiting happens without the GIL, in slices after which
// signals are handled.
#include "bind/plan.hpp"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <string>

#include "bind/bind.hpp"
#include "bind/kept.hpp"

namespace nb = nanobind;

namespace ringleader {

namespace {

constexpr std::uint64_t kHoldBytes =
    256 << 10;  // with more to do than this the GIL is released before the work, not only before waiting

void require_pointers(const Plan& plan, std::uintptr_t in, std::uintptr_t out) {
  if ((plan.in_bytes && !in) || (plan.out_bytes && !out))
    throw Error(ErrorKind::invalid,
                std::string(name(plan.lowered()->collective)) + ": the " + (plan.in_bytes && !in ? "input" : "output") +
                    " pointer is null, but this rank has one of " +
                    std::to_string(plan.in_bytes && !in ? plan.in_bytes : plan.out_bytes) + " bytes");
}

}  // namespace

void handle_signals() {
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

void run_plan(PyPlan& self, std::uintptr_t in, std::uintptr_t out, double timeout) {
  require_pointers(*self.plan, in, out);
  Call call(*self.communicator, self.plan, reinterpret_cast<void*>(in), reinterpret_cast<void*>(out), timeout,
            &call_site);
  // Where a call stands in the program is found out only if it takes long: else it would cost more than the call.
  try {
    if (self.plan->nbytes <= kHoldBytes && call.spin()) return;
  } catch (const Error&) {
    call.locate(call_site(*self.communicator));
    throw;
  }
  call.locate(call_site(*self.communicator));
  for (;;) {
    bool done;
    {
      nb::gil_scoped_release released;
      done = call.advance(Clock::now() + kSlice);
    }
    if (done) return;
    handle_signals();  // leaving by an exception abandons the call, which aborts the communicator
  }
}

bool run_raising(PyPlan& plan, std::uintptr_t in, std::uintptr_t out, double timeout) {
  try {
    run_plan(plan, in, out, timeout);
    return true;
  } catch (const Error& error) {
    const nb::object instance = to_python(error);
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(instance.ptr())), instance.ptr());
  } catch (nb::python_error& error) {
    error.restore();
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return false;
}

std::shared_ptr<WorkState> make_work(nb::handle kept, nb::handle copies) {
  let_go_of_kept();
  std::vector<StridedCopy> own;
  if (copies.is_valid() && PySequence_Size(copies.ptr()) > 0)
    for (const nb::handle copy : copies) own.push_back(nb::cast<const StridedCopy&>(copy));
  return std::make_shared<WorkState>(std::move(own), keep(kept));
}

PyWork start_plan(PyPlan& self, std::uintptr_t in, std::uintptr_t out, double timeout, nb::handle kept,
                  const nb::sequence& copies) {
  require_pointers(*self.plan, in, out);
  self.communicator->require_usable();
  auto work = make_work(kept, copies);
  while (!self.communicator->has_room(Clock::time_point::min())) {
    nb::gil_scoped_release released;
    static_cast<void>(self.communicator->has_room(Clock::now() + kSlice));
    nb::gil_scoped_acquire again;
    handle_signals();
  }
  return {self.communicator,
          self.communicator->start(self.plan, reinterpret_cast<void*>(in), reinterpret_cast<void*>(out), timeout,
                                   std::move(work), call_site(*self.communicator))};
}

PyPlan with_slices(PyPlan& self, const std::vector<std::pair<PyPlan*, std::uint64_t>>& slices) {
  auto joined = std::make_shared<Plan>(*self.plan);
  for (const auto& [slice, offset] : slices) joined->beside.push_back({slice->communicator, slice->plan, offset});
  return {self.communicator, std::move(joined)};
}

void bind_plan(nb::module_& m) {
  nb::class_<PyPlan>(m, "Plan")
      .def("run", &run_plan, nb::arg("in_ptr"), nb::arg("out_ptr"), nb::arg("timeout") = 0)
      .def("start", &start_plan, nb::arg("in_ptr"), nb::arg("out_ptr"), nb::arg("timeout") = 0,
           nb::arg("keep").none() = nb::none(), nb::arg("copies") = nb::make_tuple())
      .def_prop_ro("nbytes", [](PyPlan& self) { return self.plan->nbytes; })
      .def_prop_ro("windows", [](PyPlan& self) { return self.plan->windows; })
      .def("beside", &with_slices, nb::arg("slices"))
      .def_prop_ro("inlined", [](PyPlan& self) { return self.plan->inlined; });
}

}  // namespace ringleader
