// The codecs, compiled once per instruction set: isa_*.cpp sets RINGLEADER_CODEC_TABLE and includes this file.
//
// As in reduce/kernels.hpp everything has internal linkage. Floating-point sums are taken in a fixed order, lane by
// lane, and products are by powers of two, so every instruction set gives the same bits.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "reduce/convert.hpp"
#include "wire/small.hpp"
#include "wire/table.hpp"

namespace ringleader::codecs {
namespace {

using std::size_t;
using std::uint32_t;
using std::uint8_t;

constexpr size_t kBlock = kWireBlock;
constexpr uint32_t kInfinityBits = 0x7f800000U;
constexpr uint32_t kMagnitude = 0x7fffffffU;
constexpr uint8_t kSpecial = 255;

inline uint32_t bits_of(float value) { return __builtin_bit_cast(uint32_t, value); }
inline float from_bits(uint32_t bits) { return __builtin_bit_cast(float, bits); }
inline float nan() { return from_bits(0x7fc00000U); }
inline float infinity() { return from_bits(kInfinityBits); }
// For -126 <= exponent <= 127, so a normal number: rounding does not depend on whether the thread flushes subnormals.
inline float power_of_two(int exponent) { return from_bits(static_cast<uint32_t>(exponent + 127) << 23); }

// ---- f32: no format of its own

void encode_f32(void* dst, const float* src, size_t n) { std::memcpy(dst, src, n * sizeof(float)); }
void decode_f32(float* dst, const void* src, size_t n) { std::memcpy(dst, src, n * sizeof(float)); }

// ---- bf16, f16

template <class Half>
void encode_half(void* dst, const float* src, size_t n) {
  Half::store(dst, src, n);
}
template <class Half>
void decode_half(float* dst, const void* src, size_t n) {
  Half::load(dst, src, n);
}

// ---- int8

// Invariant: the scale is 2^(E - 6) for a block whose largest magnitude lies in [2^E, 2^(E+1)), so that element becomes
// 64 <= |q| <= 127 (127.5 and more saturates). Decoded, it lies in the same binade, so encoding again finds the same
// scale and the same q.
constexpr int kInt8Bias = 126;  // the smallest scale, 2^-126, is still a normal number
constexpr int kInt8Largest = 127 - 6 + kInt8Bias;
static_assert(kInt8Largest < kSpecial);

inline uint32_t largest_magnitude(const float* src, size_t n) {
  std::int32_t largest = 0;
  for (size_t i = 0; i < n; ++i) {
    const auto magnitude = static_cast<std::int32_t>(bits_of(src[i]) & kMagnitude);
    largest = magnitude > largest ? magnitude : largest;
  }
  return static_cast<uint32_t>(largest);
}

inline void encode_special(uint8_t* out, const float* src, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const bool infinite = (bits_of(src[i]) & kMagnitude) == kInfinityBits;
    const std::int8_t q = !infinite ? std::int8_t{-128} : src[i] > 0 ? std::int8_t{127} : std::int8_t{-127};
    out[i] = static_cast<uint8_t>(q);
  }
}

// n is a constant for whole blocks: inlined there.
[[gnu::always_inline]] inline void encode_int8_block(uint8_t* out, const float* src, size_t n) {
  const uint32_t largest = largest_magnitude(src, n);
  if (largest >= kInfinityBits) {
    out[0] = kSpecial;
    return encode_special(out + 1, src, n);
  }
  const int exponent = static_cast<int>(largest >> 23) - 127;
  const int scale = exponent - 6 < -kInt8Bias ? -kInt8Bias : exponent - 6;
  out[0] = static_cast<uint8_t>(scale + kInt8Bias);
  float lifted[kBlock];
  const bool small_block = small::is_small(largest);
  if (small_block) small::lift(lifted, src, n);
  const float* values = small_block ? lifted : src;
  const float inverse = power_of_two(small_block ? -scale - small::kLift : -scale);
  // What is below a quarter of the unit becomes 0 anyway, and may be or give a subnormal number.
  const uint32_t least = small_block ? 0U : small::power_bits(scale - 2);
  // Adding 1.5 * 2^23 rounds to an integer, to nearest even, and leaves it in the low bits.
  constexpr float kRound = 12582912.0F;
  std::int8_t* q = reinterpret_cast<std::int8_t*>(out + 1);
  for (size_t i = 0; i < n; ++i) {
    const std::int32_t value =
        static_cast<std::int32_t>(bits_of(small::at_least(values[i], least) * inverse + kRound)) - 0x4b400000;
    const std::int32_t low = value < -127 ? -127 : value;
    q[i] = static_cast<std::int8_t>(low > 127 ? 127 : low);
  }
}

[[gnu::always_inline]] inline void decode_int8_block(float* out, const uint8_t* src, size_t n) {
  const auto* q = reinterpret_cast<const std::int8_t*>(src + 1);
  if (src[0] > kInt8Largest) {
    for (size_t i = 0; i < n; ++i) out[i] = q[i] == 127 ? infinity() : q[i] == -127 ? -infinity() : nan();
    return;
  }
  const float scale = power_of_two(static_cast<int>(src[0]) - kInt8Bias);
  for (size_t i = 0; i < n; ++i) out[i] = static_cast<float>(q[i]) * scale;
}

// ---- onebit

// Invariant: the mean of n equal powers of two is computed exactly (their sum has at most 8 significant bits), so
// encoding a decoded block finds the same scale. Sums are taken of 1/256 of the magnitudes, so that they cannot
// overflow; scales stay so large that those are no subnormal numbers.
constexpr int kOneBitSmallest = -118;
constexpr int kOneBitBias = 127;
constexpr int kShrink = 8;
constexpr size_t kLanes = 16;

// 2^-8 of the mean magnitude; NaN or infinite if, and only if, an element is. Elements below the smallest scale count
// as zeros, so that no sum is of subnormal numbers.
inline float mean_magnitude(const float* src, size_t n) {
  const float shrink = power_of_two(-kShrink);
  const auto part = [shrink](float x) {
    return small::at_least(from_bits(bits_of(x) & kMagnitude), small::power_bits(kOneBitSmallest)) * shrink;
  };
  float lanes[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (size_t j = 0; j < kLanes; ++j) lanes[j] += part(src[i + j]);
  for (size_t j = 0; i + j < n; ++j) lanes[j] += part(src[i + j]);
  for (size_t half = kLanes / 2; half > 0; half /= 2)
    for (size_t j = 0; j < half; ++j) lanes[j] += lanes[j + half];
  return lanes[0] / static_cast<float>(n);
}

inline uint8_t onebit_scale(float mean) {
  const uint32_t bits = bits_of(mean);
  if (bits >= kInfinityBits) return kSpecial;
  // The biased exponent of the nearest power of two, and back from 2^-8.
  const int rounded = static_cast<int>((bits + 0x400000U) >> 23) + kShrink;
  if (rounded < kOneBitSmallest + kOneBitBias) return 0;
  return static_cast<uint8_t>(rounded > 254 ? 254 : rounded);
}

inline void encode_signs(uint8_t* out, const float* src, size_t n) {
  size_t i = 0;
#if defined(__AVX512F__)
  for (; i + 16 <= n; i += 16) {
    const __mmask16 mask = _mm512_movepi32_mask(_mm512_castps_si512(_mm512_loadu_ps(src + i)));
    std::memcpy(out + i / 8, &mask, 2);
  }
#elif defined(__AVX2__)
  for (; i + 8 <= n; i += 8) out[i / 8] = static_cast<uint8_t>(_mm256_movemask_ps(_mm256_loadu_ps(src + i)));
#endif
  for (; i < n; i += 8) {
    uint32_t byte = 0;
    for (size_t j = 0; j < 8 && i + j < n; ++j) byte |= bits_of(src[i + j]) >> 31 << j;
    out[i / 8] = static_cast<uint8_t>(byte);
  }
}

inline void encode_onebit_block(uint8_t* out, const float* src, size_t n) {
  out[0] = onebit_scale(mean_magnitude(src, n));
  if (out[0] == 0 || out[0] == kSpecial)  // signs of zeros and NaNs say nothing
    std::memset(out + 1, 0, (n + 7) / 8);
  else
    encode_signs(out + 1, src, n);
}

inline void decode_onebit_block(float* out, const uint8_t* src, size_t n) {
  const uint8_t code = src[0];
  if (code == 0 || code == kSpecial) {
    const float value = code == 0 ? 0.0F : nan();
    for (size_t i = 0; i < n; ++i) out[i] = value;
    return;
  }
  const uint32_t magnitude = static_cast<uint32_t>(code) << 23;
  const uint8_t* signs = src + 1;
  size_t i = 0;
#if defined(__AVX512F__)
  const __m512 plus = _mm512_set1_ps(from_bits(magnitude)), minus = _mm512_set1_ps(-from_bits(magnitude));
  for (; i + 16 <= n; i += 16) {
    __mmask16 mask;
    std::memcpy(&mask, signs + i / 8, 2);
    _mm512_storeu_ps(out + i, _mm512_mask_blend_ps(mask, plus, minus));
  }
#endif
  for (; i + 8 <= n; i += 8) {
    const uint32_t byte = signs[i / 8];
    for (uint32_t j = 0; j < 8; ++j) out[i + j] = from_bits(magnitude | (byte >> j & 1U) << 31);
  }
  for (size_t j = 0; i + j < n; ++j)
    out[i + j] = from_bits(magnitude | (static_cast<uint32_t>(signs[i / 8]) >> j & 1U) << 31);
}

// ---- runs of blocks

constexpr size_t kInt8Bytes = 1 + kBlock, kOneBitBytes = 1 + kBlock / 8;

void encode_int8(void* dst, const float* src, size_t n) {
  auto* out = static_cast<uint8_t*>(dst);
  for (; n >= kBlock; n -= kBlock, src += kBlock, out += kInt8Bytes) encode_int8_block(out, src, kBlock);
  if (n > 0) encode_int8_block(out, src, n);
}

void decode_int8(float* dst, const void* src, size_t n) {
  const auto* in = static_cast<const uint8_t*>(src);
  for (; n >= kBlock; n -= kBlock, dst += kBlock, in += kInt8Bytes) decode_int8_block(dst, in, kBlock);
  if (n > 0) decode_int8_block(dst, in, n);
}

void encode_onebit(void* dst, const float* src, size_t n) {
  auto* out = static_cast<uint8_t*>(dst);
  for (; n >= kBlock; n -= kBlock, src += kBlock, out += kOneBitBytes) encode_onebit_block(out, src, kBlock);
  if (n > 0) encode_onebit_block(out, src, n);
}

void decode_onebit(float* dst, const void* src, size_t n) {
  const auto* in = static_cast<const uint8_t*>(src);
  for (; n >= kBlock; n -= kBlock, dst += kBlock, in += kOneBitBytes) decode_onebit_block(dst, in, kBlock);
  if (n > 0) decode_onebit_block(dst, in, n);
}

}  // namespace

extern const Table RINGLEADER_CODEC_TABLE;
const Table RINGLEADER_CODEC_TABLE{{
    {encode_f32, decode_f32},
    {encode_half<kernels::BFloat16>, decode_half<kernels::BFloat16>},
    {encode_half<kernels::Float16>, decode_half<kernels::Float16>},
    {encode_int8, decode_int8},
    {encode_onebit, decode_onebit},
}};

}  // namespace ringleader::codecs
