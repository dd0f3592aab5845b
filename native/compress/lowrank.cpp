// Low-rank factors (PowerSGD). Everything in a fixed order: all ranks must get equal bits from equal factors.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "compress/compress.hpp"
#include "compress/dispatch.hpp"

namespace ringleader::compress {
namespace {

// Magnitudes below these count as zero, so that no product is a subnormal number: 2^-90 in matrices and in what they
// were projected on, 2^-36 in the factor that has a scale of its own (unit columns, or a largest element from 1/2 on).
constexpr std::uint32_t kLeastValue = (127U - 90U) << 23;
constexpr std::uint32_t kLeastUnit = (127U - 36U) << 23;
constexpr std::size_t kRows = 8;  // rows at once, which stay in the cache

// n elements of a matrix without the small ones; in `room` if there are any.
const float* without_small(const float* x, std::size_t n, std::vector<float>& room) {
  if (!kernels().has_less(x, n, kLeastValue)) return x;
  room.resize(n);
  kernels().drop_less(room.data(), x, n, kLeastValue);
  return room.data();
}

std::vector<float> dropped(std::vector<float> x, std::uint32_t least) {
  kernels().drop_less(x.data(), x.data(), x.size(), least);
  return x;
}

std::vector<float> transposed(const float* a, std::size_t rows, std::size_t columns) {
  std::vector<float> t(rows * columns);
  for (std::size_t i = 0; i < rows; ++i)
    for (std::size_t j = 0; j < columns; ++j) t[j * rows + i] = a[i * columns + j];
  return t;
}

}  // namespace

void orthonormalise(float* p, std::size_t rows, std::size_t rank) {
  constexpr double kVanished = 1e-5;  // what is left of a column, against itself, is rounding error
  constexpr double kSmallest = 1e-37;
  const Table& table = kernels();
  std::vector<float> columns = transposed(p, rows, rank);
  for (std::size_t c = 0; c < rank; ++c) {
    float* column = columns.data() + c * rows;
    const double before = std::sqrt(table.dot(column, column, rows));
    // Twice is enough: the second pass removes what rounding left of the others.
    for (int pass = 0; pass < 2; ++pass)
      for (std::size_t other = 0; other < c; ++other) {
        const float* unit = columns.data() + other * rows;
        table.subtract(column, unit, static_cast<float>(table.dot(column, unit, rows)), rows);
      }
    const double norm = std::sqrt(table.dot(column, column, rows));
    const bool vanished = norm <= kVanished * before || norm <= kSmallest;  // a NaN has not
    const double factor = vanished ? 0.0 : 1.0 / norm;
    for (std::size_t i = 0; i < rows; ++i) column[i] = static_cast<float>(column[i] * factor);
  }
  for (std::size_t i = 0; i < rows; ++i)
    for (std::size_t c = 0; c < rank; ++c) p[i * rank + c] = columns[c * rows + i];
}

void project(const float* m, const float* q, float* p, const float* error, float* sum, std::size_t rows,
             std::size_t columns, std::size_t rank) {
  const std::vector<float> factors = dropped(transposed(q, columns, rank), kLeastUnit);
  std::vector<float> room;
  for (std::size_t i = 0; i < rows; i += kRows) {
    const std::size_t n = std::min(kRows, rows - i);
    const float* from = m + i * columns;
    if (error != nullptr) {
      kernels().add(sum + i * columns, from, error + i * columns, n * columns);
      from = sum + i * columns;
    }
    kernels().project(p + i * rank, without_small(from, n * columns, room), factors.data(), n, columns, rank);
  }
}

void project_back(const float* m, const float* p, float* q, std::size_t rows, std::size_t columns, std::size_t rank) {
  const std::vector<float> units = dropped({p, p + rows * rank}, kLeastUnit);
  std::vector<float> sums(rank * columns), room;
  for (std::size_t i = 0; i < rows; i += kRows) {
    const std::size_t n = std::min(kRows, rows - i);
    kernels().project_back(sums.data(), without_small(m + i * columns, n * columns, room), units.data() + i * rank, n,
                           columns, rank);
  }
  for (std::size_t j = 0; j < columns; ++j)
    for (std::size_t r = 0; r < rank; ++r) q[j * rank + r] = sums[r * columns + j];
}

void expand(const float* p, const float* q, float* out, float* error, std::size_t rows, std::size_t columns,
            std::size_t rank) {
  const Table& table = kernels();
  const std::vector<float> factors = dropped(transposed(q, columns, rank), kLeastValue);
  const std::vector<float> units = dropped({p, p + rows * rank}, kLeastUnit);
  for (std::size_t i = 0; i < rows; ++i)
    table.expand_row(out + i * columns, error == nullptr ? nullptr : error + i * columns, units.data() + i * rank,
                     factors.data(), columns, rank);
}

}  // namespace ringleader::compress
