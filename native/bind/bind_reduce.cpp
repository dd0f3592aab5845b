#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "bind/bind.hpp"
#include "reduce/reduce.hpp"
#include "reduce/table.hpp"
#include "wire/wire.hpp"

namespace nb = nanobind;

namespace ringleader {
namespace {

bool reduce_supported(std::uint8_t dtype, std::uint8_t op) {
  return supported(static_cast<DType>(dtype), static_cast<ReduceOp>(op));
}

void reduce_into(std::uintptr_t dst_ptr, const std::vector<std::uintptr_t>& src_ptrs, std::size_t count,
                 std::uint8_t dtype, std::uint8_t op, std::uint32_t final_n, double factor,
                 const std::optional<std::vector<bool>>& raw) {
  if (raw && raw->size() != src_ptrs.size()) {
    throw Error(ErrorKind::invalid, "raw has " + std::to_string(raw->size()) +
                                        " entries, expected one for each of the " + std::to_string(src_ptrs.size()) +
                                        " sources");
  }
  std::vector<const void*> srcs;
  std::vector<std::uint8_t> is_raw;
  for (std::size_t k = 0; k < src_ptrs.size(); ++k) {
    srcs.push_back(reinterpret_cast<const void*>(src_ptrs[k]));
    is_raw.push_back(!raw || (*raw)[k] ? 1 : 0);
  }
  void* dst = reinterpret_cast<void*>(dst_ptr);
  const FoldSpec spec{static_cast<DType>(dtype), static_cast<ReduceOp>(op), factor, final_n};
  nb::gil_scoped_release release;
  fold(spec, &dst, 1, srcs.data(), is_raw.data(), srcs.size(), count);
}

void round_in_wire_format(std::uintptr_t dst_ptr, std::uintptr_t src_ptr, std::size_t count, int wire) {
  if (wire < 0 || wire >= kWireFormatCount)
    throw Error(ErrorKind::invalid, "unknown wire format code " + std::to_string(wire));
  nb::gil_scoped_release release;
  round_to_wire(static_cast<WireFormat>(wire), reinterpret_cast<float*>(dst_ptr),
                reinterpret_cast<const float*>(src_ptr), count);
}

std::map<std::string, std::string> build_info() {
  std::string available;
  for (const kernels::Isa& candidate : kernels::available()) {
    available += (available.empty() ? "" : ", ") + std::string(candidate.name);
  }
#if defined(__clang__)
  const char* compiler = "Clang " __clang_version__;
#else
  const char* compiler = "GCC " __VERSION__;
#endif
  return {{"version", RINGLEADER_VERSION},
          {"compiler", compiler},
          {"build_type", RINGLEADER_BUILD_TYPE},
          {"isa", isa()},
          {"isa_available", available}};
}

}  // namespace

void bind_reduce(nb::module_& m) {
  m.def("reduce_supported", &reduce_supported, nb::arg("dtype"), nb::arg("op"));
  m.def("reduce_into", &reduce_into, nb::arg("dst_ptr"), nb::arg("src_ptrs"), nb::arg("count"), nb::arg("dtype"),
        nb::arg("op"), nb::arg("final_n") = 0, nb::arg("factor") = 1.0, nb::arg("raw").none() = nb::none());
  m.def("round_to_wire", &round_in_wire_format, nb::arg("dst_ptr"), nb::arg("src_ptr"), nb::arg("count"),
        nb::arg("wire"));
  m.def("kernel_isa", &isa);
  m.def("build_info", &build_info);
}

}  // namespace ringleader
