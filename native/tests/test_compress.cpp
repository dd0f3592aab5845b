// Compression kernels: every instruction set against the first one, bounds of memory, payloads from hostile peers.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/types.hpp"
#include "compress/compress.hpp"
#include "compress/table.hpp"
#include "doctest/doctest.h"
#include "reduce/table.hpp"

using namespace ringleader;
using namespace ringleader::compress;

namespace {

std::vector<float> values(std::size_t n, unsigned seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  std::vector<float> x(n);
  for (float& value : x) value = static_cast<float>(normal(random) * std::exp2(4 * normal(random)));
  return x;
}

std::vector<const Table*> tables() {
  std::vector<const Table*> all;
  for (const kernels::Isa& isa : kernels::available()) {
    const Table* table = &baseline_table;
#if defined(__x86_64__)
    if (std::string(isa.name) == "avx2") table = &avx2_table;
    if (std::string(isa.name) == "avx512") table = &avx512_table;
#endif
    all.push_back(table);
  }
  return all;
}

constexpr std::size_t kSizes[] = {1, 7, 8, 9, 15, 16, 17, 63, 65, 127, 129, 511, 513, 2047, 2048};

bool same(const void* a, const void* b, std::size_t bytes) { return bytes == 0 || std::memcmp(a, b, bytes) == 0; }

}  // namespace

TEST_CASE("compress: codecs of every instruction set give the same bits, within bounds") {
  for (int own = 0; own < kOwnSchemes; ++own) {
    const auto scheme = static_cast<Scheme>(kWireSchemes + own);
    for (const std::size_t n : kSizes) {
      const std::vector<float> x = values(n, static_cast<unsigned>(n));
      const std::size_t bytes = encoded_bytes(scheme, n);
      std::vector<std::uint8_t> first;
      std::vector<float> decoded;
      for (const Table* table : tables()) {
        std::vector<std::uint8_t> out(bytes + 1, 0xa5);
        table->codec[own].encode(out.data(), x.data(), n, 12345, 77);
        CHECK(out.back() == 0xa5);
        std::vector<float> back(n + 1, -77.0F);
        table->codec[own].decode(back.data(), out.data(), n);
        CHECK(back.back() == -77.0F);
        if (first.empty()) {
          first = out;
          decoded = back;
        }
        CHECK_MESSAGE(same(first.data(), out.data(), bytes), name(scheme) << " of " << n);
        CHECK_MESSAGE(same(decoded.data(), back.data(), n * 4), name(scheme) << " of " << n);
      }
    }
  }
}

TEST_CASE("compress: decoding any bytes stays within bounds") {
  std::mt19937 random(3);
  for (int code = 0; code < kSchemeCount; ++code) {
    const auto scheme = static_cast<Scheme>(code);
    for (const std::size_t n : kSizes) {
      std::vector<std::uint8_t> bytes(encoded_bytes(scheme, n));
      for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random());
      std::vector<float> out(n);
      decode(scheme, {out.data(), n}, bytes.data(), false);
      decode(scheme, {out.data(), n}, bytes.data(), true);
    }
  }
}

TEST_CASE("compress: what is encoded and what is left over add up") {
  for (int code = 0; code < kSchemeCount; ++code) {
    const auto scheme = static_cast<Scheme>(code);
    for (const std::size_t n : {std::size_t{1}, std::size_t{65}, std::size_t{2049}, std::size_t{5000}}) {
      const std::vector<float> x = values(n, 1), before = values(n, 2);
      std::vector<float> error = before, decoded(n), again(n);
      std::vector<std::uint8_t> bytes(encoded_bytes(scheme, n));
      std::vector<float> lost(n);
      encode(scheme, bytes.data(), {x.data(), n}, error.data(), lost.data(), nullptr, 1.0F, 5);
      CHECK(same(error.data(), before.data(), n * 4));
      encode(scheme, bytes.data(), {x.data(), n}, error.data(), error.data(), nullptr, 1.0F, 5);
      CHECK(same(error.data(), lost.data(), n * 4));
      decode(scheme, {decoded.data(), n}, bytes.data(), false);
      for (std::size_t i = 0; i < n; ++i) {
        if (!std::isfinite(decoded[i])) continue;  // half precision overflows; nothing is kept of that
        const float y = x[i] + before[i];
        CHECK(error[i] == y - decoded[i]);
      }
      error = before;
      encode(scheme, nullptr, {x.data(), n}, error.data(), error.data(), again.data(), 1.0F, 5);
      CHECK(same(again.data(), decoded.data(), n * 4));
    }
  }
}

TEST_CASE("compress: an array in pieces gives the bits of one in one piece") {
  const std::size_t n = 5000;
  const std::size_t cuts[] = {0, 1, 700, 700, 2048, 2049, 4999, n};  // also within blocks, and an empty piece
  const std::vector<float> x = values(n, 1), before = values(n, 2);
  Pieces<const float> pieces;
  for (std::size_t i = 0; i + 1 < std::size(cuts); ++i) pieces.add(x.data() + cuts[i], cuts[i + 1] - cuts[i]);
  CHECK(pieces.size() == n);
  std::vector<float> sum(n), want(n);
  add(want.data(), before.data(), {x.data(), n}, 0.9F);
  add(sum.data(), before.data(), pieces, 0.9F);
  CHECK(sum == want);
  for (int code = 0; code < kSchemeCount; ++code) {
    const auto scheme = static_cast<Scheme>(code);
    std::vector<std::uint8_t> bytes(encoded_bytes(scheme, n)), again(bytes.size());
    std::vector<float> lost(n), lost_again(n), out(n), out_again = before;
    encode(scheme, bytes.data(), {x.data(), n}, before.data(), lost.data(), nullptr, 1.0F, 5);
    encode(scheme, again.data(), pieces, before.data(), lost_again.data(), nullptr, 1.0F, 5);
    CHECK(bytes == again);
    CHECK(same(lost.data(), lost_again.data(), n * 4));
    Pieces<float> targets;
    for (std::size_t i = 0; i + 1 < std::size(cuts); ++i)
      targets.add(out_again.data() + cuts[i], cuts[i + 1] - cuts[i]);
    for (const bool accumulate : {false, true}) {
      decode(scheme, {out.data(), n}, bytes.data(), accumulate);
      decode(scheme, targets, bytes.data(), accumulate);
      CHECK(same(out.data(), out_again.data(), n * 4));
    }
    const std::uint32_t index[] = {0, 699, 700, 4999, 2048, 0};  // not in order, as peers may send them
    const float value[] = {1.0F, 2.0F, 3.0F, 4.0F, 5.0F, 6.0F};
    scatter_add({out.data(), n}, index, value, 6, 0.5F);
    scatter_add(targets, index, value, 6, 0.5F);
    CHECK(same(out.data(), out_again.data(), n * 4));
  }
}

TEST_CASE("compress: a sum of encodings, encoded again, is that of the steps one by one") {
  const std::size_t n = 5000, rows = 3;
  for (int code = 0; code < kSchemeCount; ++code) {
    const auto scheme = static_cast<Scheme>(code);
    const std::size_t bytes = encoded_bytes(scheme, n), stride = bytes + 3;
    std::vector<std::uint8_t> table(rows * stride, 0xa5), want(bytes), got(bytes);
    std::vector<float> sum(n), again(n), error = values(n, 9), lost(n), lost_again(n);
    for (std::size_t row = 0; row < rows; ++row) {
      const std::vector<float> x = values(n, static_cast<unsigned>(row));
      encode(scheme, table.data() + row * stride, {x.data(), n}, nullptr, nullptr, nullptr, 1.0F,
             static_cast<std::uint32_t>(row));
      decode(scheme, {sum.data(), n}, table.data() + row * stride, row > 0);
    }
    for (float& value : sum) value *= 1.0F / 3.0F;
    const Rows from{table.data(), rows, stride, 1.0F / 3.0F};
    decode_sum(scheme, again.data(), from, n);
    CHECK(same(sum.data(), again.data(), n * 4));
    encode(scheme, want.data(), {sum.data(), n}, error.data(), lost.data(), nullptr, 1.0F, 7);
    encode_sum(scheme, got.data(), from, error.data(), lost_again.data(), n, 7);
    CHECK(got == want);
    CHECK(same(lost.data(), lost_again.data(), n * 4));
  }
}

TEST_CASE("compress: selection is that of a sort, for every instruction set") {
  for (const std::size_t n : {std::size_t{1}, std::size_t{16}, std::size_t{33}, std::size_t{70000}}) {
    std::vector<float> x = values(n, 9);
    for (std::size_t i = 0; i < n; i += 5) x[i] = std::round(x[i]);  // ties
    for (const std::size_t k : {std::size_t{0}, std::size_t{1}, n / 3, n}) {
      std::vector<std::uint32_t> want(n), got(k + 1, 0xa5a5a5a5U);
      for (std::size_t i = 0; i < n; ++i) want[i] = static_cast<std::uint32_t>(i);
      std::stable_sort(want.begin(), want.end(),
                       [&](std::uint32_t a, std::uint32_t b) { return std::fabs(x[a]) > std::fabs(x[b]); });
      want.resize(k);
      std::sort(want.begin(), want.end());
      select_top(x.data(), n, k, got.data());
      CHECK(got.back() == 0xa5a5a5a5U);
      got.pop_back();
      CHECK(got == want);
    }
    std::vector<std::uint32_t> first;
    for (const Table* table : tables()) {
      std::vector<std::uint32_t> found(n + 16);
      found.resize(table->collect(x.data(), n, 0x3f800000U, found.data(), n));
      if (table == tables().front()) first = found;
      CHECK(found == first);
    }
  }
}

TEST_CASE("compress: indices from peers are checked before anything is written") {
  std::vector<float> dst(10, 0.0F);
  const std::uint32_t index[] = {1, 4000000000U};
  const float value[] = {1.0F, 1.0F};
  CHECK_THROWS_AS(scatter_add({dst.data(), dst.size()}, index, value, 2, 1.0F), Error);
  CHECK(dst[1] == 0.0F);
}

TEST_CASE("compress: NaN in a matrix does not hang or hide") {
  std::vector<float> p = values(40, 4);
  p[7] = std::numeric_limits<float>::quiet_NaN();
  orthonormalise(p.data(), 10, 4);
  CHECK(std::any_of(p.begin(), p.end(), [](float v) { return std::isnan(v); }));
}

TEST_CASE("compress: low-rank products are the sums they should be, with the same bits on every instruction set") {
  for (const std::size_t rows : {1, 2, 3, 9, 16})
    for (const std::size_t columns : {1, 15, 16, 33, 131})
      for (const std::size_t rank : {1, 2, 3, 4, 7}) {
        const std::vector<float> m = values(rows * columns, 5), q = values(rank * columns, 6),
                                 p = values(rows * rank, 7);
        std::vector<float> first[3];
        for (const Table* table : tables()) {
          std::vector<float> out[3] = {std::vector<float>(rows * rank + 1, -7.0F),
                                       std::vector<float>(rank * columns + 1, -7.0F),
                                       std::vector<float>(rows * columns + 1, -7.0F)};
          std::vector<float> error = m;
          table->project(out[0].data(), m.data(), q.data(), rows, columns, rank);
          std::fill_n(out[1].begin(), rank * columns, 0.0F);  // it adds
          table->project_back(out[1].data(), m.data(), p.data(), rows, columns, rank);
          for (std::size_t i = 0; i < rows; ++i)
            table->expand_row(out[2].data() + i * columns, error.data() + i * columns, p.data() + i * rank, q.data(),
                              columns, rank);
          for (int k = 0; k < 3; ++k) {
            CHECK(out[k].back() == -7.0F);
            if (table == tables().front()) first[k] = out[k];
            CHECK(same(first[k].data(), out[k].data(), out[k].size() * 4));
          }
          for (std::size_t i = 0; i < m.size(); ++i) CHECK(error[i] == m[i] - out[2][i]);
        }
        for (std::size_t r = 0; r < rank; ++r) {
          for (std::size_t i = 0; i < rows; ++i) {
            double sum = 0, size = 0;
            for (std::size_t j = 0; j < columns; ++j) sum += double{m[i * columns + j]} * double{q[r * columns + j]};
            for (std::size_t j = 0; j < columns; ++j)
              size += std::fabs(double{m[i * columns + j]} * double{q[r * columns + j]});
            CHECK(std::fabs(first[0][i * rank + r] - sum) <= 1e-5 * size);
          }
          for (std::size_t j = 0; j < columns; ++j) {
            double sum = 0, size = 0;
            for (std::size_t i = 0; i < rows; ++i) sum += double{m[i * columns + j]} * double{p[i * rank + r]};
            for (std::size_t i = 0; i < rows; ++i)
              size += std::fabs(double{m[i * columns + j]} * double{p[i * rank + r]});
            CHECK(std::fabs(first[1][r * columns + j] - sum) <= 1e-5 * size);
          }
        }
        for (std::size_t i = 0; i < rows; ++i)
          for (std::size_t j = 0; j < columns; ++j) {
            double sum = 0, size = 0;
            for (std::size_t r = 0; r < rank; ++r) {
              sum += double{p[i * rank + r]} * double{q[r * columns + j]};
              size += std::fabs(double{p[i * rank + r]} * double{q[r * columns + j]});
            }
            CHECK(std::fabs(first[2][i * columns + j] - sum) <= 1e-5 * size);
          }
      }
}

TEST_CASE("compress: a projection with an error is that of the sum") {
  const std::size_t rows = 19, columns = 37, rank = 3;
  const std::vector<float> m = values(rows * columns, 1), e = values(rows * columns, 2), q = values(columns * rank, 3);
  std::vector<float> want(rows * columns), sum(rows * columns), p(rows * rank), again(rows * rank);
  add(want.data(), m.data(), {e.data(), e.size()}, 1.0F);
  project(want.data(), q.data(), p.data(), nullptr, nullptr, rows, columns, rank);
  project(m.data(), q.data(), again.data(), e.data(), sum.data(), rows, columns, rank);
  CHECK(sum == want);
  CHECK(again == p);
}
