// Reduction kernels: what the engine calls to combine contributions. The instruction set is chosen once, at run time
// (RINGLEADER_ISA lowers it); results do not depend on it, nor on alignment, count or how the data was cut: every
// element is folded left to right in its own lane, without reassociation and without fused multiply-add. (Of a NaN that
// arithmetic makes or passes on, sign and payload are the processor's choice.)
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/types.hpp"

namespace ringleader {

struct FoldSpec {
  DType dtype;
  ReduceOp op;
  double factor;          // PREMUL_SUM: what a raw source is multiplied by
  std::uint32_t final_n;  // 0 = not final; with AVG divide by it
};

// dsts[j][i] = finish(fold(srcs[0][i], srcs[1][i], ...)), left to right, for `count` items.
//
// - raw[k] != 0: source k is an untouched contribution (PREMUL_SUM multiplies it by factor when read).
// - nsrc >= 1. One source is a copy of its bytes, scaled first where AVG or PREMUL_SUM asks for it.
// - Any dst may be exactly one of the srcs (same address); partial overlap is not allowed. Any alignment will do.
// - Integer sum and prod wrap; AVG truncates toward zero. bool: sum = max = bor is OR, prod = min = band is AND; any
//   non-zero byte is true, results are 0 or 1. min and max give NaN where either operand is NaN, and -0 < +0.
// - f16 and bf16 are folded in f32 and rounded once (to nearest even). AVG divides, it does not multiply by 1/n.
//
// Throws Error(invalid) for a pair that is not `supported`.
void fold(const FoldSpec& spec, void* const* dsts, std::size_t ndst, const void* const* srcs, const std::uint8_t* raw,
          std::size_t nsrc, std::size_t count);

// Whether `fold` combines items of this type with this operation. ReduceOp::none (copies) takes every type.
bool supported(DType dtype, ReduceOp op);

// memcpy, with stores that bypass the caches for large sizes.
void stream_copy(void* dst, const void* src, std::size_t bytes);

// "avx512", "avx2", "neon" or "baseline". Throws Error(invalid) if RINGLEADER_ISA names one that is not available.
const char* isa();

}  // namespace ringleader
