// Low-rank factors (PowerSGD). Everything in a fixed order: all ranks must get equal bits from equal factors.
#include <algorithm>
#include <cmath>
#include <vector>

#include "compress/compress.hpp"
#include "compress/dispatch.hpp"

namespace ringleader::compress {
namespace {

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

void project(const float* m, const float* q, float* p, const float* error, float* sum, std::size_t rows, std::size_t columns,
             std::size_t rank) {
  constexpr std::size_t kRows = 8;  // rows, so that sums are still in the cache when they are multiplied
  const std::vector<float> factors = transposed(q, columns, rank);
  for (std::size_t i = 0; i < rows; i += kRows) {
    const std::size_t n = std::min(kRows, rows - i);
    const float* from = m + i * columns;
    if (error != nullptr) {
      kernels().add(sum + i * columns, from, error + i * columns, n * columns);
      from = sum + i * columns;
    }
    kernels().project(p + i * rank, from, factors.data(), n, columns, rank);
  }
}

void project_back(const float* m, const float* p, float* q, std::size_t rows, std::size_t columns, std::size_t rank) {
  std::vector<float> sums(rank * columns);
  kernels().project_back(sums.data(), m, p, rows, columns, rank);
  for (std::size_t j = 0; j < columns; ++j)
    for (std::size_t r = 0; r < rank; ++r) q[j * rank + r] = sums[r * columns + j];
}

void expand(const float* p, const float* q, float* out, float* error, std::size_t rows, std::size_t columns, std::size_t rank) {
  const Table& table = kernels();
  const std::vector<float> factors = transposed(q, columns, rank);
  for (std::size_t i = 0; i < rows; ++i)
    table.expand_row(out + i * columns, error == nullptr ? nullptr : error + i * columns, p + i * rank, factors.data(), columns, rank);
}

}  // namespace ringleader::compress
