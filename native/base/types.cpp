#include "base/types.hpp"

namespace ringleader {

std::size_t item_size(DType dtype) {
  static constexpr std::size_t sizes[kDTypeCount] = {4, 8, 2, 2, 1, 2, 4, 8, 1, 2, 4, 8, 1, 8, 16, 1};
  return sizes[static_cast<std::size_t>(dtype)];
}

const char* name(DType dtype) {
  static constexpr const char* names[kDTypeCount] = {
      "float32", "float64", "float16", "bfloat16", "int8", "int16",     "int32",      "int64",
      "uint8",   "uint16",  "uint32",  "uint64",   "bool", "complex64", "complex128", "bytes"};
  const auto code = static_cast<std::size_t>(dtype);
  return code < kDTypeCount ? names[code] : "unknown type";
}

const char* name(ReduceOp op) {
  static constexpr const char* names[] = {"sum", "prod", "min", "max", "avg", "premul_sum", "band", "bor", "bxor"};
  const auto code = static_cast<std::size_t>(op);
  if (op == ReduceOp::none) return "none";
  return code < sizeof names / sizeof *names ? names[code] : "unknown operation";
}

const char* name(Collective collective) {
  static constexpr const char* names[] = {"all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce",
                                          "gather",     "scatter",        "all_to_all", "barrier"};
  const auto code = static_cast<std::size_t>(collective);
  return code < sizeof names / sizeof *names ? names[code] : "unknown collective";
}

}  // namespace ringleader
