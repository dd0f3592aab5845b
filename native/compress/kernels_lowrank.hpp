// Kernels of low-rank factors; a part of kernels.hpp, compiled once per instruction set.
//
// Sums over columns go lane by lane over kLanes lanes, sums over rows and ranks one after another, whatever is done at
// once for speed.
#include <cstddef>
#include <cstring>

namespace ringleader::compress {
namespace {

typedef float Lanes __attribute__((vector_size(kLanes * 4)));

inline void load(Lanes& to, const float* from) { std::memcpy(&to, from, sizeof to); }
inline void store(float* to, const Lanes& from) { std::memcpy(to, &from, sizeof from); }

#if defined(__AVX512F__)
constexpr size_t kRowsAtOnce = 4;  // with 4 ranks: as many sums as half the registers
#else
constexpr size_t kRowsAtOnce = 2;
#endif

// p[i][r] for kRows rows and kRanks ranks, whose sums stay in registers.
template <size_t kRows, size_t kRanks>
inline void project_tile(float* p, const float* m, const float* q, size_t columns, size_t rank) {
  Lanes sums[kRows][kRanks] = {};
  size_t j = 0;
  for (; j + kLanes <= columns; j += kLanes) {
    Lanes x[kRows];
    for (size_t i = 0; i < kRows; ++i) load(x[i], m + i * columns + j);
    for (size_t r = 0; r < kRanks; ++r) {
      Lanes factor;
      load(factor, q + r * columns + j);
      for (size_t i = 0; i < kRows; ++i) sums[i][r] += x[i] * factor;
    }
  }
  for (size_t i = 0; i < kRows; ++i)
    for (size_t r = 0; r < kRanks; ++r) {
      float lanes[kLanes];
      store(lanes, sums[i][r]);
      for (size_t l = 0; j + l < columns; ++l) lanes[l] += m[i * columns + j + l] * q[r * columns + j + l];
      for (size_t half = kLanes / 2; half > 0; half /= 2)
        for (size_t l = 0; l < half; ++l) lanes[l] += lanes[l + half];
      p[i * rank + r] = lanes[0];
    }
}

template <size_t kRows>
inline void project_rows(float* p, const float* m, const float* q, size_t columns, size_t rank) {
  size_t r = 0;
  for (; r + 4 <= rank; r += 4) project_tile<kRows, 4>(p + r, m, q + r * columns, columns, rank);
  for (; r + 2 <= rank; r += 2) project_tile<kRows, 2>(p + r, m, q + r * columns, columns, rank);
  if (r < rank) project_tile<kRows, 1>(p + r, m, q + r * columns, columns, rank);
}

void project(float* p, const float* m, const float* q, size_t rows, size_t columns, size_t rank) {
  size_t i = 0;
  for (; i + kRowsAtOnce <= rows; i += kRowsAtOnce)
    project_rows<kRowsAtOnce>(p + i * rank, m + i * columns, q, columns, rank);
  for (; i < rows; ++i) project_rows<1>(p + i * rank, m + i * columns, q, columns, rank);
}

// Adds kRows rows to kRanks rows of q.
template <size_t kRows, size_t kRanks>
inline void back_tile(float* q, const float* m, const float* p, size_t columns, size_t rank) {
  size_t j = 0;
  for (; j + kLanes <= columns; j += kLanes) {
    Lanes sums[kRanks];
    for (size_t r = 0; r < kRanks; ++r) load(sums[r], q + r * columns + j);
    for (size_t i = 0; i < kRows; ++i) {
      Lanes x;
      load(x, m + i * columns + j);
      for (size_t r = 0; r < kRanks; ++r) sums[r] += x * p[i * rank + r];
    }
    for (size_t r = 0; r < kRanks; ++r) store(q + r * columns + j, sums[r]);
  }
  for (; j < columns; ++j)
    for (size_t r = 0; r < kRanks; ++r)
      for (size_t i = 0; i < kRows; ++i) q[r * columns + j] += m[i * columns + j] * p[i * rank + r];
}

template <size_t kRows>
inline void back_rows(float* q, const float* m, const float* p, size_t columns, size_t rank) {
  size_t r = 0;
  for (; r + 4 <= rank; r += 4) back_tile<kRows, 4>(q + r * columns, m, p + r, columns, rank);
  for (; r + 2 <= rank; r += 2) back_tile<kRows, 2>(q + r * columns, m, p + r, columns, rank);
  if (r < rank) back_tile<kRows, 1>(q + r * columns, m, p + r, columns, rank);
}

// Adds to q.
void project_back(float* q, const float* m, const float* p, size_t rows, size_t columns, size_t rank) {
  constexpr size_t kAtOnce = 8;
  size_t i = 0;
  for (; i + kAtOnce <= rows; i += kAtOnce) back_rows<kAtOnce>(q, m + i * columns, p + i * rank, columns, rank);
  for (; i < rows; ++i) back_rows<1>(q, m + i * columns, p + i * rank, columns, rank);
}

bool has_less(const float* x, size_t n, uint32_t least) {
  int32_t any = 0;
  for (size_t i = 0; i < n; ++i) {
    const auto magnitude = static_cast<int32_t>(bits_of(x[i]) & kMagnitude);
    any |= (magnitude < static_cast<int32_t>(least) ? -1 : 0) & magnitude;
  }
  return any != 0;
}

void drop_less(float* out, const float* x, size_t n, uint32_t least) {
  for (size_t i = 0; i < n; ++i) out[i] = small::at_least(x[i], least);
}

inline void expand_tile(float* out, float* error, const float* p, const float* q, size_t columns, size_t rank) {
  Lanes sums[4];
  for (size_t v = 0; v < 4; ++v) {
    load(sums[v], q + v * kLanes);
    sums[v] *= p[0];
  }
  for (size_t r = 1; r < rank; ++r)
    for (size_t v = 0; v < 4; ++v) {
      Lanes factor;
      load(factor, q + r * columns + v * kLanes);
      sums[v] += factor * p[r];
    }
  for (size_t v = 0; v < 4; ++v) store(out + v * kLanes, sums[v]);
  if (error == nullptr) return;
  for (size_t v = 0; v < 4; ++v) {
    typedef int32_t Bits __attribute__((vector_size(kLanes * 4)));
    Lanes rest;
    load(rest, error + v * kLanes);
    rest -= sums[v];
    const Bits bits = __builtin_bit_cast(Bits, rest), infinity = Bits{} + static_cast<int32_t>(kInfinityBits);
    const Bits kept = bits & ((bits & infinity) != infinity);
    store(error + v * kLanes, __builtin_bit_cast(Lanes, kept));
  }
}

void expand_row(float* out, float* error, const float* p, const float* q, size_t columns, size_t rank) {
  size_t j = 0;
  for (; j + 4 * kLanes <= columns; j += 4 * kLanes)
    expand_tile(out + j, error == nullptr ? nullptr : error + j, p, q + j, columns, rank);
  for (; j < columns; ++j) {
    float sum = p[0] * q[j];
    for (size_t r = 1; r < rank; ++r) sum += p[r] * q[r * columns + j];
    out[j] = sum;
    if (error != nullptr) error[j] = finite_or_zero(error[j] - sum);
  }
}

double dot(const float* a, const float* b, size_t n) {
  double lanes[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (size_t j = 0; j < kLanes; ++j) lanes[j] += static_cast<double>(a[i + j]) * static_cast<double>(b[i + j]);
  for (size_t j = 0; i + j < n; ++j) lanes[j] += static_cast<double>(a[i + j]) * static_cast<double>(b[i + j]);
  for (size_t half = kLanes / 2; half > 0; half /= 2)
    for (size_t j = 0; j < half; ++j) lanes[j] += lanes[j + half];
  return lanes[0];
}

void subtract(float* a, const float* b, float factor, size_t n) {
  for (size_t i = 0; i < n; ++i) a[i] -= factor * b[i];
}

}  // namespace
}  // namespace ringleader::compress
