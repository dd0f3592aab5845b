// Arithmetic on small numbers at the speed of others. Multiplying a subnormal number, or to one, takes a hundred times
// longer on many processors; these functions give the same bits by integers. A part of kernels: internal linkage only.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ringleader::small {
namespace {

constexpr std::uint32_t kMagnitudeBits = 0x7fffffffU;
constexpr std::uint32_t kSmallestNormal = 0x00800000U;

// The bits of 2^exponent, a normal number.
constexpr std::uint32_t power_bits(int exponent) { return static_cast<std::uint32_t>(exponent + 127) << 23; }

// x, or 0 where its magnitude, as bits, is below `least`.
inline float at_least(float x, std::uint32_t least) {
  const auto bits = __builtin_bit_cast(std::uint32_t, x);
  const bool kept = static_cast<std::int32_t>(bits & kMagnitudeBits) >= static_cast<std::int32_t>(least);
  return __builtin_bit_cast(float, kept ? bits : 0U);
}

// Blocks with no magnitude of 2^kLifted or more are lifted: what is small in them, against the largest, is then no
// subnormal number.
constexpr int kLifted = -60;
constexpr int kLift = 64;
inline bool is_small(std::uint32_t largest) { return largest < power_bits(kLifted); }

// out = x * 2^kLift, exactly, for elements of such a block.
inline void lift(float* __restrict out, const float* __restrict x, std::size_t n) {
  constexpr float kUp = __builtin_bit_cast(float, power_bits(kLift));
  constexpr float kUnit = __builtin_bit_cast(float,
                                             power_bits(kLift - 149));  // what the lowest bit of a subnormal stands for
  for (std::size_t i = 0; i < n; ++i) {
    const auto bits = __builtin_bit_cast(std::uint32_t, x[i]);
    const auto magnitude = static_cast<std::int32_t>(bits & kMagnitudeBits);
    const float subnormal = static_cast<float>(magnitude) * kUnit;
    const float normal =
        __builtin_bit_cast(float, magnitude < static_cast<std::int32_t>(kSmallestNormal) ? 0 : magnitude) * kUp;
    const auto chosen = __builtin_bit_cast(std::uint32_t,
                                           magnitude < static_cast<std::int32_t>(kSmallestNormal) ? subnormal : normal);
    out[i] = __builtin_bit_cast(float, chosen | (bits & ~kMagnitudeBits));
  }
}

// Whether x * factor has a subnormal operand or result for some x. May say so where it is only near.
inline bool has_subnormal_products(const float* x, float factor, std::size_t n) {
  const auto own = static_cast<int>(__builtin_bit_cast(std::uint32_t, factor) >> 23 & 255U) - 127;
  if (own < -126 || own > 127)
    return own < -126;                            // of a subnormal factor all, of 0, infinity and NaN none that is slow
  const int least = own < 0 ? -125 - own : -126;  // exponents below it
  const std::int32_t bound = least > 127 ? 0x7f800000 : static_cast<std::int32_t>(power_bits(least));
  std::int32_t any = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const auto magnitude = static_cast<std::int32_t>(__builtin_bit_cast(std::uint32_t, x[i]) & kMagnitudeBits);
    any |= (magnitude < bound ? -1 : 0) & magnitude;  // zeros are fast
  }
  return any != 0;
}

// out = x * factor where it has. Products of two floats are exact in double; a subnormal result is rounded as an
// integer, to even.
inline void multiply_subnormal(float* out, const float* x, float factor, std::size_t n) {
  constexpr double kUnit = 0x1p-149, kLeast = 0x1p-126, kRound = 0x1.8p52;
  const auto factor_bits = __builtin_bit_cast(std::uint32_t, factor);
  const auto factor_magnitude = factor_bits & kMagnitudeBits;
  const double f = factor_magnitude < kSmallestNormal
                       ? static_cast<double>(static_cast<std::int32_t>(factor_magnitude)) * kUnit
                       : static_cast<double>(__builtin_bit_cast(float, factor_magnitude));
  const std::uint32_t factor_sign = factor_bits & ~kMagnitudeBits;
  for (std::size_t i = 0; i < n; ++i) {
    const auto bits = __builtin_bit_cast(std::uint32_t, x[i]);
    const auto magnitude = static_cast<std::int32_t>(bits & kMagnitudeBits);
    const bool subnormal = magnitude < static_cast<std::int32_t>(kSmallestNormal);
    const double low = static_cast<double>(magnitude) * kUnit;
    const double high = static_cast<double>(__builtin_bit_cast(float, subnormal ? 0 : magnitude));
    const double product = (subnormal ? low : high) * f;
    const bool tiny = product < kLeast;                              // a NaN is not
    const double steps = (tiny ? product : 0.0) * 0x1p149 + kRound;  // its low bits are the integer
    const auto as_integer = static_cast<std::uint32_t>(__builtin_bit_cast(std::uint64_t, steps));
    const float as_float = static_cast<float>(tiny ? 0.0 : product);
    const std::uint32_t result = tiny ? as_integer : __builtin_bit_cast(std::uint32_t, as_float);
    out[i] = __builtin_bit_cast(float, result ^ ((bits & ~kMagnitudeBits) ^ factor_sign));
  }
}

}  // namespace
}  // namespace ringleader::small
