// Wire formats: the codecs against plain references, for every instruction set this machine has.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "doctest/doctest.h"
#include "reduce/table.hpp"
#include "transport/wire_stream.hpp"
#include "wire/table.hpp"
#include "wire/wire.hpp"

using namespace ringleader;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
const WireFormat kFormats[] = {WireFormat::bf16, WireFormat::f16, WireFormat::int8, WireFormat::onebit};

std::uint32_t bits_of(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}

bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * 4) == 0);
}

struct Coder {
  std::string name;
  const codecs::Table* table;
};

std::vector<Coder> coders() {
  std::vector<Coder> all;
  for (const kernels::Isa& isa : kernels::available()) {
    const codecs::Table* table = &codecs::baseline_table;
#if defined(__x86_64__)
    if (std::string(isa.name) == "avx2") table = &codecs::avx2_table;
    if (std::string(isa.name) == "avx512") table = &codecs::avx512_table;
#endif
    all.push_back({isa.name, table});
  }
  return all;
}

const codecs::Codec& codec(const Coder& coder, WireFormat format) {
  return coder.table->codec[static_cast<int>(format)];
}

// ---- plain references, by arithmetic in double

float half_reference(float x, int fraction_bits, int smallest_exponent, float largest) {
  if (!std::isfinite(x) || x == 0) return x;
  int exponent;
  std::frexp(x, &exponent);  // x = m * 2^exponent, 0.5 <= |m| < 1
  const int unit = std::max(exponent - 1, smallest_exponent) - fraction_bits;
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(static_cast<double>(x), -unit)), unit);
  if (std::fabs(rounded) > static_cast<double>(largest)) return std::copysign(kInf, x);
  return static_cast<float>(std::copysign(rounded, static_cast<double>(x)));
}

void int8_reference(const float* x, float* out, std::size_t n) {
  float largest = 0;
  bool special = false;
  for (std::size_t i = 0; i < n; ++i) {
    special = special || !std::isfinite(x[i]);
    largest = std::max(largest, std::fabs(x[i]));
  }
  if (special) {
    for (std::size_t i = 0; i < n; ++i) out[i] = std::isinf(x[i]) ? x[i] : kNan;
    return;
  }
  const int scale = largest == 0 ? -126 : std::max(std::ilogb(largest) - 6, -126);
  for (std::size_t i = 0; i < n; ++i) {
    const double q = std::nearbyint(std::ldexp(static_cast<double>(x[i]), -scale));
    out[i] = static_cast<float>(std::ldexp(std::min(127.0, std::max(-127.0, q)), scale)) + 0.0F;  // no negative zero
  }
}

void onebit_reference(const float* x, float* out, std::size_t n) {
  bool special = false;
  double sum = 0;
  for (std::size_t i = 0; i < n; ++i) {
    special = special || !std::isfinite(x[i]);
    sum += std::fabs(static_cast<double>(x[i]));
  }
  const double mean = sum / static_cast<double>(n);
  int exponent = mean > 0 ? static_cast<int>(std::floor(std::log2(mean))) : -1000;
  if (mean > 0 && mean / std::ldexp(1.0, exponent) >= 1.5) ++exponent;
  exponent = std::min(exponent, 127);
  for (std::size_t i = 0; i < n; ++i) {
    if (special)
      out[i] = kNan;
    else if (exponent < -118)
      out[i] = 0;
    else
      out[i] = std::copysign(static_cast<float>(std::ldexp(1.0, exponent)), x[i]);
  }
}

std::vector<float> reference(WireFormat format, const std::vector<float>& x) {
  std::vector<float> out(x.size());
  for (std::size_t i = 0; i < x.size(); i += kWireBlock) {
    const std::size_t n = std::min(kWireBlock, x.size() - i);
    if (format == WireFormat::int8) int8_reference(&x[i], &out[i], n);
    if (format == WireFormat::onebit) onebit_reference(&x[i], &out[i], n);
    for (std::size_t j = i; j < i + n; ++j) {
      if (format == WireFormat::bf16) out[j] = half_reference(x[j], 7, -126, 3.3895314e38F);
      if (format == WireFormat::f16) out[j] = half_reference(x[j], 10, -14, 65504.0F);
    }
  }
  return out;
}

std::vector<float> through(const codecs::Codec& codec, WireFormat format, const std::vector<float>& x,
                           std::vector<unsigned char>* encoded = nullptr) {
  const std::size_t bytes = encoded_bytes(format, x.size());
  std::vector<unsigned char> wire(bytes + 2, 0xa5);  // guards
  std::vector<float> out(x.size() + 1, -77.0F);
  codec.encode(wire.data() + 1, x.data(), x.size());
  codec.decode(out.data(), wire.data() + 1, x.size());
  CHECK(wire.front() == 0xa5);
  CHECK(wire.back() == 0xa5);
  CHECK(out.back() == -77.0F);
  out.pop_back();
  if (encoded) encoded->assign(wire.begin() + 1, wire.end() - 1);
  return out;
}

std::vector<float> random_values(std::size_t n, unsigned seed, double spread) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  std::vector<float> x(n);
  for (float& value : x) value = static_cast<float>(normal(random) * std::exp2(spread * normal(random)));
  return x;
}

std::vector<float> any_bits(std::size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> x(n);
  for (float& value : x) {
    const std::uint32_t bits = static_cast<std::uint32_t>(random());
    std::memcpy(&value, &bits, 4);
  }
  return x;
}

void compare(const std::vector<float>& got, const std::vector<float>& want, const std::string& what) {
  for (std::size_t i = 0; i < want.size(); ++i) {
    const bool equal = std::isnan(want[i]) ? std::isnan(got[i]) : bits_of(got[i]) == bits_of(want[i]);
    if (!equal) {
      FAIL_CHECK(what << ", element " << i << " of " << want.size() << ": " << got[i] << " instead of " << want[i]);
      return;
    }
  }
}

}  // namespace

TEST_CASE("wire: sizes") {
  CHECK(encoded_bytes(WireFormat::bf16, 1000) == 2000);
  CHECK(encoded_bytes(WireFormat::int8, 128) == 129);
  CHECK(encoded_bytes(WireFormat::int8, 129) == 131);
  CHECK(encoded_bytes(WireFormat::onebit, 128) == 17);
  CHECK(encoded_bytes(WireFormat::onebit, 137) == 17 + 3);
  for (const WireFormat format : kFormats) CHECK(encoded_bytes(format, 0) == 0);
}

TEST_CASE("wire: all counts, every instruction set, equal to the reference and idempotent") {
  for (const WireFormat format : kFormats)
    for (std::size_t n = 0; n <= 300; ++n) {
      const std::vector<float> x = random_values(n, static_cast<unsigned>(n), 3);
      const std::vector<float> want = reference(format, x);
      for (const Coder& coder : coders()) {
        std::vector<unsigned char> first, second;
        const std::string what = std::string(name(format)) + " on " + coder.name;
        const std::vector<float> once = through(codec(coder, format), format, x, &first);
        compare(once, want, what);
        const std::vector<float> twice = through(codec(coder, format), format, once, &second);
        CHECK(same(once, twice));
        CHECK(first == second);
      }
    }
}

TEST_CASE("wire: any bits (NaN, infinities, subnormals, huge) give the reference's values, and stay as they are") {
  for (const WireFormat format : kFormats)
    for (unsigned seed = 0; seed < 40; ++seed) {
      std::vector<float> x = any_bits(700, seed);
      if (seed % 2)  // few special values, so that most blocks are finite
        for (float& value : x)
          if (!std::isfinite(value)) value = 1.5F;
      if (seed % 4 == 3) x[seed] = seed % 8 == 3 ? kInf : kNan;
      const std::vector<float> want = reference(format, x);
      for (const Coder& coder : coders()) {
        std::vector<unsigned char> first, second;
        const std::vector<float> once = through(codec(coder, format), format, x, &first);
        compare(once, want, std::string(name(format)) + " on " + coder.name);
        CHECK(same(once, through(codec(coder, format), format, once, &second)));
        CHECK(first == second);
      }
    }
}

TEST_CASE("wire: blocks at the edges of the range") {
  const float tiny = std::numeric_limits<float>::denorm_min(), least = std::numeric_limits<float>::min();
  const float huge = std::numeric_limits<float>::max();
  for (const float value :
       {0.0F,     -0.0F,    tiny, 3 * tiny, least,    -least, 100 * least, 0x1p-120F, 0x1p-118F, 0x1p-117F, 65504.0F,
        65519.0F, 65520.0F, huge, -huge,    huge / 2, kInf,   -kInf,       kNan,      127.49F,   127.5F,    127.99F})
    for (const WireFormat format : kFormats)
      for (const std::size_t n : {1u, 16u, 128u, 200u}) {
        const std::vector<float> x(n, value), want = reference(format, x);
        for (const Coder& coder : coders()) {
          const std::vector<float> once = through(codec(coder, format), format, x);
          compare(once, want, std::string(name(format)) + " of " + std::to_string(value) + " on " + coder.name);
          CHECK(same(once, through(codec(coder, format), format, once)));
        }
      }
}

TEST_CASE("wire: error bounds of docs/wire.md") {
  for (const double spread : {0.0, 1.0, 10.0})
    for (unsigned seed = 0; seed < 20; ++seed) {
      const std::vector<float> x = random_values(1000, seed, spread);
      std::vector<float> y(x.size());
      for (std::size_t i = 0; i < x.size(); i += kWireBlock) {
        const std::size_t n = std::min(kWireBlock, x.size() - i);
        double largest = 0, mean = 0;
        for (std::size_t j = i; j < i + n; ++j) {
          largest = std::max(largest, std::fabs(static_cast<double>(x[j])));
          mean += std::fabs(static_cast<double>(x[j])) / static_cast<double>(n);
        }
        for (const WireFormat format : kFormats) {
          round_to_wire(format, &y[i], &x[i], n);
          for (std::size_t j = i; j < i + n; ++j) {
            const double v = x[j], error = std::fabs(static_cast<double>(y[j]) - v);
            if (format == WireFormat::bf16) CHECK(error <= std::fabs(v) * 0x1p-8);
            if (format == WireFormat::f16 && std::fabs(v) < 65504)
              CHECK(error <= std::max(std::fabs(v) * 0x1p-11, 0x1p-25));
            if (format == WireFormat::int8) CHECK(error <= std::max(largest / 127, 0x1p-127));
            if (format == WireFormat::onebit) CHECK(error <= std::max(largest, 4.0 / 3 * mean + 0x1p-118));
          }
        }
      }
    }
}

TEST_CASE("wire: messages cut anywhere give what whole runs give, stored, folded and rounded") {
  const std::vector<std::size_t> sizes{1, 127, 128, 0, 129, 5000, 3};
  for (const WireFormat format : kFormats)
    for (const std::size_t room : {600u, 1000u, 100000u}) {
      SendRequest send;
      RecvRequest recv;
      send.wire = recv.wire = format;
      std::vector<std::vector<float>> from, to, want;
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        from.push_back(random_values(sizes[i], static_cast<unsigned>(i), 2));
        to.push_back(random_values(sizes[i], static_cast<unsigned>(i + 50), 2));
        std::vector<float>& sum = want.emplace_back(sizes[i]);
        round_to_wire(format, sum.data(), from[i].data(), sizes[i]);
        for (std::size_t j = 0; j < sizes[i]; ++j) sum[j] += to[i][j];
        round_to_wire(format, sum.data(), sum.data(), sizes[i]);
      }
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        send.pieces.push_back({from[i].data(), sizes[i] * 4});
        recv.pieces.push_back({to[i].data(), sizes[i] * 4});
      }
      recv.round = true;
      recv.fold = [](const void*, void* dst, const void* incoming, std::size_t bytes) {
        for (std::size_t j = 0; j < bytes / 4; ++j)
          static_cast<float*>(dst)[j] += static_cast<const float*>(incoming)[j];
      };
      std::vector<unsigned char> stream, part(room);
      WireCursor at;
      while (const std::size_t n = encode_next(send, at, part.data(), room))
        stream.insert(stream.end(), part.begin(), part.begin() + static_cast<std::ptrdiff_t>(n));
      REQUIRE(stream.size() == payload_bytes(send.pieces, format));
      at = {};
      std::size_t done = 0, available = 0;
      for (std::size_t step = 1; done < stream.size(); ++step) {  // arrives in odd portions
        available = std::min(stream.size(), available + step * 7 % 400);
        done += decode_next(recv, at, stream.data() + done, available - done);
      }
      for (std::size_t i = 0; i < sizes.size(); ++i) CHECK(same(to[i], want[i]));
    }
}
