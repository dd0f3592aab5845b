// Schedules: lowering and its proofs (core/program.hpp) for ringleader.schedule.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>

#include "bind/bind.hpp"
#include "core/lowered_text.hpp"
#include "core/program.hpp"

namespace nb = nanobind;

namespace ringleader {

namespace {

// The rows of any C-contiguous buffer of 29-byte items (a NumPy structured array), or of bytes; copied, so that
// lowering can release the GIL while another thread does what it likes with the array.
std::vector<Transfer> read_table(nb::handle table) {
  Py_buffer view;
  if (PyObject_GetBuffer(table.ptr(), &view, PyBUF_ND) != 0) {
    PyErr_Clear();
    throw Error(ErrorKind::invalid,
                "table must be a C-contiguous array of TRANSFER_DTYPE; use numpy.ascontiguousarray to make it one");
  }
  const Py_ssize_t bytes = view.len;
  const Py_ssize_t item = view.itemsize;
  constexpr auto row = static_cast<Py_ssize_t>(sizeof(Transfer));
  if ((item != row && item != 1) || bytes % row != 0) {
    PyBuffer_Release(&view);
    throw Error(ErrorKind::invalid, "table has items of " + std::to_string(item) + " bytes, " + std::to_string(bytes) +
                                        " bytes in all; expected rows of TRANSFER_DTYPE, " + std::to_string(row) +
                                        " bytes each");
  }
  std::vector<Transfer> rows(static_cast<std::size_t>(bytes / row));
  if (bytes > 0) std::memcpy(rows.data(), view.buf, static_cast<std::size_t>(bytes));
  PyBuffer_Release(&view);
  return rows;
}

const RankProgram& program_of(const Lowered& lowered, Rank rank) {
  if (rank < 0 || rank >= lowered.n)
    throw Error(ErrorKind::invalid,
                "rank is " + std::to_string(rank) + "; expected 0.." + std::to_string(lowered.n - 1));
  return lowered.programs[static_cast<std::size_t>(rank)];
}

std::shared_ptr<Lowered> lower_table(nb::handle table, int collective, Rank n, Rank root, std::int32_t chunks,
                                     const std::vector<std::int32_t>& nodes, bool push, bool wire) {
  const std::vector<Transfer> rows = read_table(table);
  if (collective < 0 || collective > static_cast<int>(Collective::barrier))
    throw Error(ErrorKind::invalid,
                "collective code " + std::to_string(collective) + " is unknown; expected 0 (all_reduce) to 8");
  LowerOptions options;
  options.push = push;
  options.wire = wire;
  nb::gil_scoped_release release;
  const LoweredPtr lowered = lower(rows.data(), rows.size(), static_cast<Collective>(collective), n, root, chunks,
                                   nodes, options);
  // nanobind holds shared pointers to non-const; nothing in Python changes a Lowered.
  return std::const_pointer_cast<Lowered>(lowered);
}

}  // namespace

void bind_schedule(nb::module_& m) {
  nb::class_<Lowered>(m, "Lowered", "A schedule lowered to one program per rank.")
      .def_prop_ro("collective", [](const Lowered& l) { return static_cast<int>(l.collective); })
      .def_prop_ro("n", [](const Lowered& l) { return l.n; })
      .def_prop_ro("root", [](const Lowered& l) { return l.root; })
      .def_prop_ro("chunks", [](const Lowered& l) { return l.chunks; })
      .def_prop_ro("blocks", [](const Lowered& l) { return l.blocks; })
      .def_prop_ro("nodes", [](const Lowered& l) { return l.node; })
      .def(
          "instruction_count", [](const Lowered& l, Rank rank) { return program_of(l, rank).instrs.size(); },
          nb::arg("rank"))
      .def(
          "text",
          [](const Lowered& l, Rank rank) {
            program_of(l, rank);
            return program_text(l, rank);
          },
          nb::arg("rank"), "One instruction per line, with waits and dependencies.")
      .def(
          "check",
          [](const Lowered& l, std::uint64_t seed) {
            nb::gil_scoped_release release;
            return check(l, seed).violations;
          },
          nb::arg("seed") = 0, "Violations as text; empty = proved.");
  m.def("lower", &lower_table, nb::arg("table"), nb::arg("collective"), nb::arg("n"), nb::arg("root"),
        nb::arg("chunks"), nb::arg("nodes"), nb::arg("push"), nb::arg("wire") = false);
}

}  // namespace ringleader
