// Selection of few elements among many.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/types.hpp"
#include "compress/compress.hpp"
#include "compress/dispatch.hpp"

namespace ringleader::compress {
namespace {

constexpr std::uint32_t kMagnitude = 0x7fffffffU;
constexpr std::size_t kSpare = 16;  // what collect may write beyond its room
constexpr std::size_t kSample = 1U << 14;

std::uint32_t magnitude(float value) { return __builtin_bit_cast(std::uint32_t, value) & kMagnitude; }

// Orders by magnitude, falling, then by index.
std::uint64_t key(std::uint32_t bits, std::uint32_t index) {
  return static_cast<std::uint64_t>(kMagnitude - bits) << 32 | index;
}

// A magnitude that about `wanted` of the elements reach, from a sample of random places.
std::uint32_t sampled_threshold(const float* x, std::size_t n, double wanted, double slack, std::uint32_t seed) {
  std::vector<std::uint32_t> sample(kSample);
  std::uint64_t state = spread(seed) | std::uint64_t{1} << 32;
  for (std::uint32_t& value : sample) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    value = magnitude(x[static_cast<std::size_t>((state >> 32) * n >> 32)]);
  }
  const double place = wanted / static_cast<double>(n) * static_cast<double>(kSample);
  const double rank = place + slack * (3.0 * std::sqrt(place) + 4.0);
  const auto at = static_cast<std::size_t>(rank < 1.0 ? 1.0 : rank);
  if (at >= kSample) return 0;
  const auto nth = sample.begin() + static_cast<std::ptrdiff_t>(at - 1);
  std::nth_element(sample.begin(), nth, sample.end(), std::greater<>());
  return *nth;
}

// A magnitude that at least k elements reach, and not more than `enough`, unless it is that of the k-th largest.
struct Edge {
  std::uint32_t bits;
  std::size_t reached;
};

// By the upper bits of magnitudes, then by those below them, so in few passes whatever the values are.
Edge kth_largest(const float* x, std::size_t n, std::size_t k, std::size_t enough) {
  constexpr unsigned kShifts[] = {20, 10, 0};
  constexpr std::size_t kBins = 1U << 11, kTables = 4;
  std::vector<std::uint32_t> bins(kBins * kTables);
  std::uint32_t prefix = 0;
  unsigned known = 31;  // the bits from here on are those of `prefix`
  std::size_t above = 0;
  for (const unsigned shift : kShifts) {
    if (known < 31) std::fill(bins.begin(), bins.end(), 0U);
    const std::size_t width = std::size_t{1} << (known - shift);
    for (std::size_t i = 0; i < n; ++i) {
      const std::uint32_t bits = magnitude(x[i]);
      // Neighbours count in different tables: equal magnitudes would else wait for each other.
      bins[i % kTables * kBins + (bits >> shift & (width - 1))] += bits >> known == prefix ? 1U : 0U;
    }
    std::size_t bin = width, here = 0;
    do {
      above += here;
      --bin;
      here = 0;
      for (std::size_t table = 0; table < kTables; ++table) here += bins[table * kBins + bin];
    } while (above + here < k);
    prefix = prefix << (known - shift) | static_cast<std::uint32_t>(bin);
    known = shift;
    if (above + here <= enough) return {prefix << shift, above + here};
  }
  return {prefix, n};
}

// The k largest, where `bits` is the magnitude of the k-th: all above it, and of those equal to it the first.
void take_ties(const float* x, std::size_t n, std::size_t k, std::uint32_t bits, std::size_t greater,
               std::uint32_t* index) {
  std::vector<std::uint32_t> found(k + kSpare);
  kernels().collect_ties(x, n, bits, k - greater, found.data(), k);
  std::copy_n(found.begin(), k, index);
}

// Keeps of `candidates`, ascending indices, those of the k largest; k <= their number.
void keep_largest(const float* x, std::vector<std::uint32_t>& candidates, std::size_t count, std::size_t k,
                  std::uint32_t* index) {
  if (count == k) {
    std::copy_n(candidates.begin(), k, index);
    return;
  }
  std::vector<std::uint64_t> keys(count);
  for (std::size_t j = 0; j < count; ++j) keys[j] = key(magnitude(x[candidates[j]]), candidates[j]);
  std::vector<std::uint64_t> ordered = keys;
  const auto last = ordered.begin() + static_cast<std::ptrdiff_t>(k - 1);
  std::nth_element(ordered.begin(), last, ordered.end());
  std::size_t kept = 0;
  for (const std::uint64_t each : keys)
    if (each <= *last) index[kept++] = static_cast<std::uint32_t>(each);
}

// Selects the k largest where far more reach `bits` because many are equal to it: those above it are candidates, or all
// taken and the first of the equal ones besides. False where more than `room` are above, or fewer than k reach it.
bool select_among_ties(const float* x, std::size_t n, std::size_t k, std::uint32_t bits, std::size_t room,
                       std::uint32_t* index) {
  const Tally tally = kernels().tally(x, n, bits);
  if (tally.greater + tally.equal < k || tally.greater > room) return false;
  if (tally.greater < k) {
    take_ties(x, n, k, bits, tally.greater, index);
  } else {
    std::vector<std::uint32_t> candidates(tally.greater + kSpare);
    kernels().collect(x, n, bits + 1, candidates.data(), tally.greater);
    keep_largest(x, candidates, tally.greater, k, index);
  }
  return true;
}

void check_counts(std::size_t elements, std::size_t k) {
  if (k > elements || elements >= std::size_t{1} << 32)
    throw Error(ErrorKind::invalid,
                "cannot select " + std::to_string(k) + " of " + std::to_string(elements) +
                    " elements; expected at most as many as there are, and fewer than 2^32 of those");
}

}  // namespace

void select_top(const float* x, std::size_t elements, std::size_t k, std::uint32_t* index) {
  check_counts(elements, k);
  if (k == elements) {
    for (std::size_t i = 0; i < k; ++i) index[i] = static_cast<std::uint32_t>(i);
    return;
  }
  if (k == 0) return;
  // A threshold that a little more than k elements reach. Where far more do, most are equal to it; where the sample
  // misleads, all are looked at.
  if (elements > 4 * kSample) {
    const std::uint32_t least = sampled_threshold(x, elements, static_cast<double>(k), 1.0, 0);
    const std::size_t room = std::min(elements, 2 * k + elements / 64);
    if (least > 0) {
      std::vector<std::uint32_t> candidates(room + kSpare);
      const std::size_t count = kernels().collect(x, elements, least, candidates.data(), room);
      if (count >= k && count < room) return keep_largest(x, candidates, count, k, index);
    }
    if (select_among_ties(x, elements, k, least, room, index)) return;
  }
  const std::size_t enough = 2 * k + elements / 64 + kSpare;
  const Edge edge = kth_largest(x, elements, k, enough);
  if (edge.reached <= enough) {
    std::vector<std::uint32_t> candidates(edge.reached + kSpare);
    kernels().collect(x, elements, edge.bits, candidates.data(), edge.reached);
    keep_largest(x, candidates, edge.reached, k, index);
  } else {
    take_ties(x, elements, k, edge.bits, kernels().tally(x, elements, edge.bits).greater, index);
  }
}

std::size_t select_sampled(const float* x, std::size_t elements, std::size_t k, std::uint32_t seed,
                           std::uint32_t* index) {
  check_counts(elements, k);
  if (k == 0) return 0;
  if (k == elements || elements <= 4 * kSample) {
    select_top(x, elements, k, index);
    return k;
  }
  const std::uint32_t least = sampled_threshold(x, elements, static_cast<double>(k), 0.0, seed);
  const std::size_t room = std::min(elements, 2 * k + kSpare);
  std::vector<std::uint32_t> candidates(room + kSpare);
  const std::size_t count = least == 0 ? room : kernels().collect(x, elements, least, candidates.data(), room);
  if (count == room && select_among_ties(x, elements, k, least, room, index)) return k;  // many equal magnitudes
  if (count == room || count < k / 2) {                                                  // the sample does not tell
    select_top(x, elements, k, index);
    return k;
  }
  if (count > k) {
    keep_largest(x, candidates, count, k, index);
    return k;
  }
  std::copy_n(candidates.begin(), count, index);
  return count;
}

void select_random(std::size_t elements, std::size_t k, std::uint32_t seed, std::uint32_t* index) {
  check_counts(elements, k);
  const std::uint32_t mixed = spread(seed);
  for (std::uint64_t j = 0; j < k; ++j) {
    const std::uint64_t begin = j * elements / k, end = (j + 1) * elements / k;
    const std::uint64_t random = spread(mixed ^ static_cast<std::uint32_t>(j));
    index[j] = static_cast<std::uint32_t>(begin + (random * (end - begin) >> 32));
  }
}

bool take(float* x, std::size_t elements, const std::uint32_t* index, std::size_t k, float* value) {
  std::uint32_t largest = 0;
  for (std::size_t j = 0; j < k; ++j) {
    if (index[j] >= elements)
      throw Error(ErrorKind::invalid,
                  "index " + std::to_string(index[j]) + " is not below " + std::to_string(elements));
    value[j] = x[index[j]];
    largest = std::max(largest, magnitude(value[j]));
    x[index[j]] = 0.0F;
  }
  return largest < 0x7f800000U;
}

void scatter_add(const Pieces<float>& dst, const std::uint32_t* index, const float* value, std::size_t k, float scale) {
  std::uint32_t largest = 0;
  for (std::size_t j = 0; j < k; ++j) largest = std::max(largest, index[j]);
  if (k > 0 && largest >= dst.size())
    throw Error(ErrorKind::invalid, "a sparse payload names element " + std::to_string(largest) + " of an array of " +
                                        std::to_string(dst.size()) + "; ranks must compress arrays of one size");
  constexpr std::size_t kRun = 512;
  float products[kRun];
  Pieces<float>::Lookup element(dst);
  for (std::size_t at = 0; at < k; at += kRun) {
    const std::size_t n = std::min(kRun, k - at);
    const float* run = value + at;
    if (scale != 1.0F) {
      kernels().multiply(products, run, scale, n);
      run = products;
    }
    for (std::size_t j = 0; j < n; ++j) element[index[at + j]] += run[j];
  }
}

}  // namespace ringleader::compress
