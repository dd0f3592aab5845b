// 16-bit floats to f32 and back, by blocks. Part of kernels.hpp: internal linkage only, see there.
//
// Rounding is to nearest even; a NaN stays a NaN, quiet, with the upper bits of its payload; too large becomes
// infinity. The integer forms and the instructions give the same bits for every input (native/tests/test_reduce.cpp).
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__AVX2__)  // with it comes F16C, see isa.cmake
#include <immintrin.h>
#endif

namespace ringleader::kernels {
namespace {

struct [[gnu::packed, gnu::may_alias]] HalfItem {
  std::uint16_t bits;
};

inline float from_f16(std::uint32_t half) {
  const std::uint32_t magnitude = half & 0x7fffU;
  const float subnormal = static_cast<float>(static_cast<std::int32_t>(magnitude)) * 0x1p-24F;
  const std::uint32_t normal = (magnitude << 13) + (112U << 23);
  const std::uint32_t quiet = magnitude > 0x7c00U ? 0x400000U : 0U;
  const std::uint32_t special = (magnitude << 13) | 0x7f800000U | quiet;
  std::uint32_t bits = magnitude < 0x400U ? __builtin_bit_cast(std::uint32_t, subnormal) : normal;
  bits = magnitude >= 0x7c00U ? special : bits;
  return __builtin_bit_cast(float, bits | ((half & 0x8000U) << 16));
}

inline std::uint16_t to_f16(float value) {
  const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, value);
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  // One unit in the last place of 0.5f is the smallest subnormal: the addition does the rounding.
  const float shifted = __builtin_bit_cast(float, magnitude) + 0.5F;
  const std::uint32_t subnormal = __builtin_bit_cast(std::uint32_t, shifted) - 0x3f000000U;
  const std::uint32_t normal = (magnitude + 0xfffU + ((magnitude >> 13) & 1U) - (112U << 23)) >> 13;
  std::uint32_t half = magnitude < 0x38800000U ? subnormal : normal;
  half = magnitude >= 0x477ff000U ? 0x7c00U : half;
  half = magnitude > 0x7f800000U ? (0x7e00U | ((magnitude >> 13) & 0x3ffU)) : half;
  return static_cast<std::uint16_t>(half | ((bits >> 16) & 0x8000U));
}

inline float from_bf16(std::uint32_t half) { return __builtin_bit_cast(float, half << 16); }

inline std::uint16_t to_bf16(float value) {
  const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, value);
  const std::uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  const std::uint32_t quiet = (bits >> 16) | 0x40U;
  return static_cast<std::uint16_t>((bits & 0x7fffffffU) > 0x7f800000U ? quiet : rounded);
}

struct Float16 {
  static void load(float* out, const void* in_, std::size_t count) {
    const auto* in = static_cast<const HalfItem*>(in_);
    std::size_t i = 0;
#if defined(__AVX512F__)
    for (; i + 16 <= count; i += 16) {
      _mm512_storeu_ps(out + i, _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i_u*>(in + i))));
    }
#elif defined(__AVX2__)
    for (; i + 8 <= count; i += 8) {
      _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i_u*>(in + i))));
    }
#endif
    for (; i < count; ++i) out[i] = from_f16(in[i].bits);
  }

  static void store(void* out_, const float* in, std::size_t count) {
    auto* out = static_cast<HalfItem*>(out_);
    std::size_t i = 0;
#if defined(__AVX512F__)
    for (; i + 16 <= count; i += 16) {
      _mm256_storeu_si256(reinterpret_cast<__m256i_u*>(out + i),
                          _mm512_cvtps_ph(_mm512_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    }
#elif defined(__AVX2__)
    for (; i + 8 <= count; i += 8) {
      _mm_storeu_si128(reinterpret_cast<__m128i_u*>(out + i),
                       _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    }
#endif
    for (; i < count; ++i) out[i].bits = to_f16(in[i]);
  }
};

struct BFloat16 {
#if defined(__AVX2__) && !defined(__AVX512F__)
  // to_bf16 of eight values, as 32-bit numbers.
  static __m256i round8(const float* in) {
    const __m256 value = _mm256_loadu_ps(in);
    const __m256i bits = _mm256_castps_si256(value);
    const __m256i upper = _mm256_srli_epi32(bits, 16);
    const __m256i odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
    const __m256i sum = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(_mm256_srli_epi32(sum, 16), quiet, is_nan);
  }
#endif

  static void load(float* out, const void* in_, std::size_t count) {
    const auto* in = static_cast<const HalfItem*>(in_);
    for (std::size_t i = 0; i < count; ++i) out[i] = from_bf16(in[i].bits);
  }
  static void store(void* out_, const float* in, std::size_t count) {
    auto* out = static_cast<HalfItem*>(out_);
    std::size_t i = 0;
#if defined(__AVX2__) && !defined(__AVX512F__)  // the vectoriser finds no good way to narrow without AVX-512
    for (; i + 16 <= count; i += 16) {
      const __m256i packed = _mm256_packus_epi32(round8(in + i), round8(in + i + 8));  // quarters 0 2 1 3
      _mm256_storeu_si256(reinterpret_cast<__m256i_u*>(out + i), _mm256_permute4x64_epi64(packed, 0xd8));
    }
#endif
    for (; i < count; ++i) out[i].bits = to_bf16(in[i]);
  }
};

}  // namespace
}  // namespace ringleader::kernels
