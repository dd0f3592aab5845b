// Gradient compression: block codecs that lose much, and the selection of few elements. Values are f32.
//
// A codec encodes a run of elements in blocks counted from its start; the last block may be shorter. Results do not
// depend on the instruction set. Codecs shared with the wire formats (bf16, f16, int8: wire/wire.hpp) have the same
// bytes as there. The others:
//
// onebit   block of 2048: the mean magnitude as f32, then one bit per element, its sign.
// int4     block of 128: the unit as f32, then q in 4 bits (q + 8); value = q * unit with |q| <= 7, rounded to nearest.
// qsgd8/4/2[_l2]  block of 512: the unit as f32, then q in 8, 4 or 2 bits; value = q * unit, |q| <= s = 127, 7 or 1.
// The unit is the block's
//          largest magnitude / s, or its Euclidean norm / s; q is rounded at random so that its expectation is the
//          element (Alistarh et al. 2017).
// natural  block of 512: one byte, the biased exponent of the largest magnitude (255: not finite), then sign and
// exponent in one byte, relative
//          to it; rounded at random between the neighbouring powers of two (Horvath et al. 2019).
//
// A block with an infinity or NaN arrives as NaN; a block of zeros as zeros; one whose largest magnitude is below
// 2^-118 as zeros (int4, qsgd). In the mean of onebit magnitudes below 2^-114 count as zeros. Subnormal numbers, equal
// and zero elements take no longer than others. Randomness is a hash of (seed, index of the element), so it is the same
// wherever it is drawn.
#pragma once

#include <cstddef>
#include <cstdint>

#include "compress/pieces.hpp"

namespace ringleader::compress {

enum class Scheme : std::uint8_t {
  bf16,
  f16,
  int8,
  onebit,
  int4,
  qsgd8,
  qsgd4,
  qsgd2,
  qsgd8_l2,
  qsgd4_l2,
  qsgd2_l2,
  natural
};
inline constexpr int kSchemeCount = 12;
inline constexpr std::size_t kAtOnce = 2048;  // elements; whole blocks of every scheme

const char* name(Scheme scheme);
std::size_t block_elements(Scheme scheme);
std::size_t encoded_bytes(Scheme scheme, std::size_t elements);

// dst = encoding of src, or, with `error`, of y = src + error; `lost` (may be `error`) becomes y - decoded, and 0 where
// that is not finite. `scale` (a power of two) multiplies what is encoded; what is lost is that of the unscaled values.
// `dst` may be null with `lost` or `decoded`. `decoded`, where not null, receives what the encoding stands for, scaled.
// All in one pass over memory.
void encode(Scheme scheme, std::uint8_t* dst, const Pieces<const float>& src, const float* error, float* lost,
            float* decoded, float scale, std::uint32_t seed);
// dst = decoded, or dst += decoded.
void decode(Scheme scheme, const Pieces<float>& dst, const std::uint8_t* src, bool accumulate);

// `rows` encodings of arrays of one size, `stride` bytes from the start of one to that of the next: their sum, row by
// row, times a factor.
struct Rows {
  const std::uint8_t* data;
  std::size_t rows, stride;
  float factor;
};
void decode_sum(Scheme scheme, float* dst, const Rows& rows, std::size_t elements);
// dst = encoding of that sum plus `error`, where not null, then together with `lost`: as above.
void encode_sum(Scheme scheme, std::uint8_t* dst, const Rows& rows, const float* error, float* lost,
                std::size_t elements, std::uint32_t seed);

// ---- sparse. Indices are 32 bits wide: callers keep elements below 2^32.

// Indices, ascending, of the k elements of largest magnitude (NaN above infinity); of equal magnitudes the lower index
// comes first. k <= elements. Exact and deterministic.
void select_top(const float* x, std::size_t elements, std::size_t k, std::uint32_t* index);
// About k elements: those above a threshold estimated from a sample, at most k. Returns how many.
std::size_t select_sampled(const float* x, std::size_t elements, std::size_t k, std::uint32_t seed,
                           std::uint32_t* index);
// One random index from each of k nearly equal parts of [0, elements); ascending.
void select_random(std::size_t elements, std::size_t k, std::uint32_t seed, std::uint32_t* index);
// value[j] = x[index[j]], which becomes 0. Whether all values were finite.
bool take(float* x, std::size_t elements, const std::uint32_t* index, std::size_t k, float* value);
// dst[index[j]] += scale * value[j]. Throws when an index is out of range (indices come from peers); nothing is written
// then.
void scatter_add(const Pieces<float>& dst, const std::uint32_t* index, const float* value, std::size_t k, float scale);
// out = a * scale + b elementwise; out may be one of them.
void add(float* out, const float* a, const Pieces<const float>& b, float scale);
// What is not finite becomes 0.
void clean(float* x, std::size_t elements);

// ---- low rank. Row-major matrices; fixed order of additions, no fused multiply-add: the same bits on every machine.

// Modified Gram-Schmidt over the columns of p (rows x rank). A column that vanishes against its former self becomes
// zero.
void orthonormalise(float* p, std::size_t rows, std::size_t rank);
// p = m q, for m (rows x columns) and q (columns x rank); with `error` and `sum`: sum = m + error, p = sum q.
void project(const float* m, const float* q, float* p, const float* error, float* sum, std::size_t rows,
             std::size_t columns, std::size_t rank);
// q = m^T p, for p (rows x rank).
void project_back(const float* m, const float* p, float* q, std::size_t rows, std::size_t columns, std::size_t rank);
// out = p q^T, p (rows x rank), q (columns x rank); with `error` (which holds the matrix): error -= out, cleaned.
void expand(const float* p, const float* q, float* out, float* error, std::size_t rows, std::size_t columns,
            std::size_t rank);

}  // namespace ringleader::compress
