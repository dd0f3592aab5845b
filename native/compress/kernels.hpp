// The kernels, compiled once per instruction set: isa_*.cpp sets RINGLEADER_COMPRESS_TABLE and includes this file.
//
// As in reduce/kernels.hpp everything has internal linkage, sums are taken in a fixed order, lane by lane, and nothing
// is contracted, so every instruction set gives the same bits.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "compress/table.hpp"
#include "wire/small.hpp"
#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace ringleader::compress {
namespace {

using std::int32_t;
using std::size_t;
using std::uint32_t;
using std::uint8_t;

constexpr uint32_t kInfinityBits = 0x7f800000U;
constexpr uint32_t kMagnitude = 0x7fffffffU;
constexpr uint32_t kNanBits = 0x7fc00000U;
constexpr size_t kLanes = 16;

inline uint32_t bits_of(float value) { return __builtin_bit_cast(uint32_t, value); }
inline float from_bits(uint32_t bits) { return __builtin_bit_cast(float, bits); }
inline float finite_or_zero(float value) { return (bits_of(value) & kInfinityBits) == kInfinityBits ? 0.0F : value; }

// A well mixed 32-bit number for an element.
inline uint32_t hash(uint32_t x) {
  x ^= x >> 16;
  x *= 0x7feb352dU;
  x ^= x >> 15;
  x *= 0x846ca68bU;
  x ^= x >> 16;
  return x;
}

inline uint32_t largest_magnitude(const float* src, size_t n) {
  int32_t largest = 0;
  for (size_t i = 0; i < n; ++i) {
    const auto magnitude = static_cast<int32_t>(bits_of(src[i]) & kMagnitude);
    largest = magnitude > largest ? magnitude : largest;
  }
  return static_cast<uint32_t>(largest);
}

// Sum of f(element), lane by lane.
template <class F>
inline float lane_sum(const float* src, size_t n, F f) {
  float lanes[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (size_t j = 0; j < kLanes; ++j) lanes[j] += f(src[i + j]);
  for (size_t j = 0; i + j < n; ++j) lanes[j] += f(src[i + j]);
  for (size_t half = kLanes / 2; half > 0; half /= 2)
    for (size_t j = 0; j < half; ++j) lanes[j] += lanes[j + half];
  return lanes[0];
}

// Runs `block` over whole blocks and the rest; kHead bytes and `bytes(n)` more belong to a block of n.
template <size_t kBlock, class F, class B>
inline void over_blocks(size_t n, B bytes, F block) {
  size_t at = 0, in = 0;
  for (; at + kBlock <= n; at += kBlock, in += bytes(kBlock)) block(at, in, kBlock);
  if (at < n) block(at, in, n - at);
}

inline void put_float(uint8_t* dst, float value) { std::memcpy(dst, &value, 4); }
inline float get_float(const uint8_t* src) {
  float value;
  std::memcpy(&value, src, 4);
  return value;
}

// ---- onebit

constexpr size_t kOneBitBlock = 2048;
constexpr float kShrink = 0x1p-12F;     // sums of a block's magnitudes cannot overflow
constexpr int kSmallestCounted = -114;  // shrunk it is still a normal number; less counts as zero

inline size_t onebit_bytes(size_t n) { return 4 + (n + 7) / 8; }

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

void encode_onebit(uint8_t* dst, const float* src, size_t n, uint32_t, uint32_t) {
  over_blocks<kOneBitBlock>(n, onebit_bytes, [&](size_t at, size_t in, size_t m) {
    const float sum = lane_sum(src + at, m, [](float x) {
      return small::at_least(from_bits(bits_of(x) & kMagnitude), small::power_bits(kSmallestCounted)) * kShrink;
    });
    float mean = sum / static_cast<float>(m) / kShrink;
    if ((bits_of(mean) & kMagnitude) >= kInfinityBits) mean = from_bits(kNanBits);
    put_float(dst + in, mean);
    encode_signs(dst + in + 4, src + at, m);
  });
}

inline void decode_signs(float* out, const uint8_t* signs, float magnitude, size_t n) {
  const uint32_t bits = bits_of(magnitude);
  size_t i = 0;
#if defined(__AVX512F__)
  const __m512 plus = _mm512_set1_ps(magnitude), minus = _mm512_set1_ps(from_bits(bits | 0x80000000U));
  for (; i + 16 <= n; i += 16) {
    __mmask16 mask;
    std::memcpy(&mask, signs + i / 8, 2);
    _mm512_storeu_ps(out + i, _mm512_mask_blend_ps(mask, plus, minus));
  }
#endif
  for (; i + 8 <= n; i += 8) {
    const uint32_t byte = signs[i / 8];
    for (uint32_t j = 0; j < 8; ++j) out[i + j] = from_bits(bits | (byte >> j & 1U) << 31);
  }
  for (size_t j = 0; i + j < n; ++j)
    out[i + j] = from_bits(bits | (static_cast<uint32_t>(signs[i / 8]) >> j & 1U) << 31);
}

void decode_onebit(float* dst, const uint8_t* src, size_t n) {
  over_blocks<kOneBitBlock>(n, onebit_bytes, [&](size_t at, size_t in, size_t m) {
    const float mean = get_float(src + in);
    if (mean == 0.0F)
      std::memset(dst + at, 0, m * 4);  // no negative zeros
    else
      decode_signs(dst + at, src + in + 4, mean, m);
  });
}

// ---- uniform steps: int4 and QSGD

constexpr float kTiny = 0x1p-118F;  // below it a unit could be a subnormal number, and its inverse overflow

template <int kBits>
inline size_t packed_bytes(size_t n) {
  return (n * kBits + 7) / 8;
}

// Within a block, byte j holds elements j, j + h, j + 2h ... where h = the number of bytes: packing is elementwise on
// vectors.
template <int kBits>
inline void pack(uint8_t* out, const uint8_t* q, size_t n) {
  constexpr size_t kPer = 8 / kBits;
  const size_t h = packed_bytes<kBits>(n);
  if constexpr (kPer == 1) {
    std::memcpy(out, q, n);
  } else {  // q has room for h * kPer, zeros at its end
    for (size_t j = 0; j < h; ++j) {
      uint32_t byte = q[j];
      for (size_t t = 1; t < kPer; ++t) byte |= static_cast<uint32_t>(q[t * h + j]) << (t * kBits);
      out[j] = static_cast<uint8_t>(byte);
    }
  }
}

template <int kBits>
inline void unpack(float* out, const uint8_t* in, float unit, size_t n) {
  constexpr size_t kPer = 8 / kBits;
  constexpr int32_t kBias = 1 << (kBits - 1);
  constexpr uint32_t kMask = (1U << kBits) - 1;
  const size_t h = packed_bytes<kBits>(n);
  for (size_t t = 0; t < kPer; ++t) {
    const size_t begin = t * h, end = begin + h < n ? begin + h : n;
    for (size_t j = begin; j < end; ++j) {
      const uint32_t q = static_cast<uint32_t>(in[j - begin]) >> (t * kBits) & kMask;
      out[j] = static_cast<float>(static_cast<int32_t>(q) - kBias) * unit;
    }
  }
}

// The unit of a block whose largest magnitude is given.
template <int kBits, bool kNorm>
inline float unit_of(const float* src, size_t n, float magnitude) {
  constexpr float kLevels = static_cast<float>((1 << (kBits - 1)) - 1);
  if constexpr (!kNorm) return magnitude / kLevels;
  const float inverse = 1.0F / magnitude;
  // Squares of what is 2^-60 of the largest are below half a unit in the last place of the sum, which is at least 1.
  const uint32_t least = bits_of(magnitude) - (60U << 23);
  const float sum = lane_sum(src, n, [inverse, least](float x) {
    const float part = small::at_least(x, least) * inverse;
    return part * part;
  });
  const float norm = magnitude * __builtin_sqrtf(sum);
  return (bits_of(norm) < kInfinityBits ? norm : magnitude) / kLevels;
}

// Rounded at random, x / unit + u truncates as 0 + u does where |x| < 2^-26 unit (the sum has 24 bits, and kBias in
// front); rounded to nearest where |x| < unit / 4. There x counts as 0, because it may be or give a subnormal number.
template <int kBits, bool kRandom>
inline void quantise(uint8_t* __restrict q, const float* __restrict src, size_t n, float unit, uint32_t seed,
                     uint32_t first) {
  constexpr int32_t kBias = 1 << (kBits - 1);
  constexpr int32_t kLevels = kBias - 1;
  const float inverse = 1.0F / unit;
  const uint32_t least = bits_of(unit) - ((kRandom ? 26U : 2U) << 23);
  for (size_t i = 0; i < n; ++i) {
    const float part = small::at_least(src[i], least) * inverse;
    int32_t value;
    if constexpr (kRandom) {
      // floor(x / unit + u), u uniform in [0, 1); positive before the conversion, which truncates.
      const uint32_t random = hash(seed ^ (first + static_cast<uint32_t>(i)));
      const float u = static_cast<float>(static_cast<int32_t>(random >> 8)) * 0x1p-24F;
      value = static_cast<int32_t>(part + static_cast<float>(kBias) + u) - kBias;
    } else {
      constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: rounds to an integer, which is left in the low bits
      value = static_cast<int32_t>(bits_of(part + kRound)) - 0x4b400000;
    }
    value = value < -kLevels ? -kLevels : value;
    value = value > kLevels ? kLevels : value;
    q[i] = static_cast<uint8_t>(value + kBias);
  }
}

// A unit of 0 stands for a block of zeros (or nearly), NaN for one with an element that is not finite.
template <int kBits, size_t kBlock, bool kRandom, bool kNorm>
void encode_uniform(uint8_t* dst, const float* src, size_t n, uint32_t seed, uint32_t first) {
  over_blocks<kBlock>(
      n, [](size_t m) { return 4 + packed_bytes<kBits>(m); },
      [&](size_t at, size_t in, size_t m) {
        const uint32_t largest = largest_magnitude(src + at, m);
        uint8_t q[kBlock + 8];
        if (largest >= kInfinityBits || from_bits(largest) < kTiny) {
          put_float(dst + in, largest >= kInfinityBits ? from_bits(kNanBits) : 0.0F);
          std::memset(q, 1 << (kBits - 1), m);  // zeros
        } else {
          const bool small_block = small::is_small(largest);
          float lifted[kBlock];
          if (small_block) small::lift(lifted, src + at, m);
          const float* values = small_block ? lifted : src + at;
          const float magnitude = small_block ? from_bits(largest) * 0x1p64F : from_bits(largest);
          const float unit = unit_of<kBits, kNorm>(values, m, magnitude);
          put_float(dst + in, small_block ? unit * 0x1p-64F : unit);
          quantise<kBits, kRandom>(q, values, m, unit, seed, first + static_cast<uint32_t>(at));
        }
        std::memset(q + m, 0, 8);
        pack<kBits>(dst + in + 4, q, m);
      });
}

template <int kBits, size_t kBlock>
void decode_uniform(float* dst, const uint8_t* src, size_t n) {
  over_blocks<kBlock>(
      n, [](size_t m) { return 4 + packed_bytes<kBits>(m); },
      [&](size_t at, size_t in, size_t m) { unpack<kBits>(dst + at, src + in + 4, get_float(src + in), m); });
}

// ---- natural

constexpr size_t kNaturalBlock = 512;
constexpr uint8_t kSpecial = 255;

// Invariant: a code c > 0 stands for the biased exponent c + E - 126, E being the largest element's. Rounding reaches E
// + 1 at most.
void encode_natural(uint8_t* dst, const float* src, size_t n, uint32_t seed, uint32_t first) {
  over_blocks<kNaturalBlock>(
      n, [](size_t m) { return 1 + m; },
      [&](size_t at, size_t in, size_t m) {
        const auto largest = static_cast<int32_t>(largest_magnitude(src + at, m) >> 23);
        dst[in] = static_cast<uint8_t>(largest);
        uint8_t* out = dst + in + 1;
        if (largest == kSpecial) {
          std::memset(out, 0, m);
          return;
        }
        const uint32_t base = first + static_cast<uint32_t>(at);
        for (size_t i = 0; i < m; ++i) {
          const uint32_t bits = bits_of(src[at + i]);
          const uint32_t noise = hash(seed ^ (base + static_cast<uint32_t>(i))) & 0x7fffffU;
          const auto rounded = static_cast<int32_t>(((bits & kMagnitude) + noise) >> 23);
          const int32_t exponent = rounded > 254 ? 254 : rounded;
          const int32_t code = exponent - largest + 126;
          out[i] = static_cast<uint8_t>(exponent < 1 || code < 1 ? 0U : bits >> 31 << 7 | static_cast<uint32_t>(code));
        }
      });
}

void decode_natural(float* dst, const uint8_t* src, size_t n) {
  over_blocks<kNaturalBlock>(
      n, [](size_t m) { return 1 + m; },
      [&](size_t at, size_t in, size_t m) {
        const int32_t largest = src[in];
        const uint8_t* codes = src + in + 1;
        if (largest == kSpecial) {
          for (size_t i = 0; i < m; ++i) dst[at + i] = from_bits(kNanBits);
          return;
        }
        for (size_t i = 0; i < m; ++i) {
          const uint32_t byte = codes[i];
          const int32_t code = static_cast<int32_t>(byte & 127U);
          int32_t exponent = code + largest - 126;
          exponent = exponent < 0 ? 0 : exponent > 254 ? 254 : exponent;  // bytes from elsewhere may say anything
          const uint32_t bits = byte >> 7 << 31 | static_cast<uint32_t>(exponent) << 23;
          dst[at + i] = from_bits(code == 0 ? 0U : bits);
        }
      });
}

// ---- elementwise

void multiply(float* out, const float* x, float factor, size_t n) {
  constexpr size_t kRun = 512;
  for (size_t at = 0; at < n; at += kRun) {
    const size_t m = n - at < kRun ? n - at : kRun;
    if (small::has_subnormal_products(x + at, factor, m))
      small::multiply_subnormal(out + at, x + at, factor, m);
    else
      for (size_t i = at; i < at + m; ++i) out[i] = x[i] * factor;
  }
}

// f(place, elements, x * factor) for runs of x.
template <class F>
inline void over_products(const float* x, float factor, size_t n, F f) {
  constexpr size_t kRun = 512;
  float products[kRun];
  for (size_t at = 0; at < n; at += kRun) {
    const size_t m = n - at < kRun ? n - at : kRun;
    multiply(products, x + at, factor, m);
    f(at, m, products);
  }
}

void residual(float* e, const float* y, const float* sent, float factor, size_t n) {
  if (factor == 1.0F) {
    for (size_t i = 0; i < n; ++i) e[i] = finite_or_zero(y[i] - sent[i]);
    return;
  }
  over_products(sent, factor, n, [&](size_t at, size_t m, const float* products) {
    for (size_t i = 0; i < m; ++i) e[at + i] = finite_or_zero(y[at + i] - products[i]);
  });
}

void add(float* out, const float* a, const float* b, size_t n) {
  for (size_t i = 0; i < n; ++i) out[i] = a[i] + b[i];
}

void scaled_add(float* out, const float* a, float scale, const float* b, size_t n) {
  over_products(a, scale, n, [&](size_t at, size_t m, const float* products) {
    for (size_t i = 0; i < m; ++i) out[at + i] = products[i] + b[at + i];
  });
}

void clean(float* x, size_t n) {
  for (size_t i = 0; i < n; ++i) x[i] = finite_or_zero(x[i]);
}

// ---- selection

size_t collect(const float* x, size_t n, uint32_t least, uint32_t* index, size_t room) {
  size_t found = 0, i = 0;
  const auto bound = static_cast<int32_t>(least);
#if defined(__AVX512F__)
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff), threshold = _mm512_set1_epi32(bound);
  __m512i at = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  for (; i + 16 <= n && found < room; i += 16) {
    const __m512i value = _mm512_and_si512(_mm512_loadu_si512(x + i), magnitude);
    const __mmask16 mask = _mm512_cmpge_epi32_mask(value, threshold);
    if (mask != 0) {
      _mm512_storeu_si512(index + found, _mm512_maskz_compress_epi32(mask, at));
      found += static_cast<size_t>(__builtin_popcount(mask));
    }
    at = _mm512_add_epi32(at, _mm512_set1_epi32(16));
  }
#else
  for (; i + 16 <= n && found < room; i += 16) {
    int32_t largest = 0;
    for (size_t j = 0; j < 16; ++j) {
      const auto value = static_cast<int32_t>(bits_of(x[i + j]) & kMagnitude);
      largest = value > largest ? value : largest;
    }
    if (largest < bound) continue;
    for (size_t j = 0; j < 16; ++j) {
      index[found] = static_cast<uint32_t>(i + j);
      found += static_cast<int32_t>(bits_of(x[i + j]) & kMagnitude) >= bound ? 1 : 0;
    }
  }
#endif
  for (; i < n && found < room; ++i) {
    index[found] = static_cast<uint32_t>(i);
    found += static_cast<int32_t>(bits_of(x[i]) & kMagnitude) >= bound ? 1 : 0;
  }
  return found < room ? found : room;
}

Tally tally(const float* x, size_t n, uint32_t bits) {
  constexpr size_t kRun = 1U << 20;  // counts of a run fit in 32 bits, which are as wide as what is compared
  const auto bound = static_cast<int32_t>(bits);
  Tally all{0, 0};
  for (size_t at = 0; at < n; at += kRun) {
    const size_t end = n - at < kRun ? n : at + kRun;
    int32_t greater = 0, equal = 0;
    for (size_t i = at; i < end; ++i) {
      const auto value = static_cast<int32_t>(bits_of(x[i]) & kMagnitude);
      greater += value > bound ? 1 : 0;
      equal += value == bound ? 1 : 0;
    }
    all.greater += static_cast<size_t>(greater);
    all.equal += static_cast<size_t>(equal);
  }
  return all;
}

size_t collect_ties(const float* x, size_t n, uint32_t bits, size_t ties, uint32_t* index, size_t room) {
  const auto bound = static_cast<int32_t>(bits);
  size_t found = 0, i = 0;
  while (i < n && ties > 0 && found < room) {
    const size_t end = n - i < 16 ? n : i + 16;
    int32_t largest = 0;
    for (size_t j = i; j < end; ++j) {
      const auto value = static_cast<int32_t>(bits_of(x[j]) & kMagnitude);
      largest = value > largest ? value : largest;
    }
    if (largest < bound) {
      i = end;
      continue;
    }
    for (; i < end && ties > 0 && found < room; ++i) {
      const auto value = static_cast<int32_t>(bits_of(x[i]) & kMagnitude);
      if (value < bound) continue;
      index[found++] = static_cast<uint32_t>(i);
      ties -= value == bound ? 1 : 0;
    }
  }
  if (found == room || bits == kMagnitude) return found;
  const size_t more = collect(x + i, n - i, bits + 1, index + found, room - found);
  for (size_t j = 0; j < more; ++j) index[found + j] += static_cast<uint32_t>(i);
  return found + more;
}

}  // namespace
}  // namespace ringleader::compress

#include "compress/kernels_lowrank.hpp"

namespace ringleader::compress {

extern const Table RINGLEADER_COMPRESS_TABLE;
const Table RINGLEADER_COMPRESS_TABLE{
    {
        {encode_onebit, decode_onebit},
        {encode_uniform<4, 128, false, false>, decode_uniform<4, 128>},
        {encode_uniform<8, 512, true, false>, decode_uniform<8, 512>},
        {encode_uniform<4, 512, true, false>, decode_uniform<4, 512>},
        {encode_uniform<2, 512, true, false>, decode_uniform<2, 512>},
        {encode_uniform<8, 512, true, true>, decode_uniform<8, 512>},
        {encode_uniform<4, 512, true, true>, decode_uniform<4, 512>},
        {encode_uniform<2, 512, true, true>, decode_uniform<2, 512>},
        {encode_natural, decode_natural},
    },
    multiply,
    residual,
    add,
    scaled_add,
    clean,
    collect,
    tally,
    collect_ties,
    project,
    project_back,
    has_less,
    drop_less,
    expand_row,
    dot,
    subtract,
};

}  // namespace ringleader::compress
