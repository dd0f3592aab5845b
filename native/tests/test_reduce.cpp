// Every kernel of every instruction set this machine has, against scalar references that share no code with them.
#include <algorithm>
#include <cmath>
#include <complex>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "doctest/doctest.h"
#include "reduce/reduce.hpp"
#include "reduce/table.hpp"

using namespace ringleader;

namespace {

constexpr std::size_t kItems = 2100;  // more than two blocks of the kernels
constexpr std::size_t kGuard = 64;
constexpr double kFactor = 0.3;
constexpr std::uint32_t kFinalN = 3;

using Bytes = std::vector<unsigned char>;

// IEEE formats of 16 bits, from their definition.
struct Format {
  int exponent_bits, mantissa_bits;
  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
};
constexpr Format kF16{5, 10}, kBF16{8, 7};

float decode(Format f, std::uint16_t bits) {
  const int exponent = (bits >> f.mantissa_bits) & ((1 << f.exponent_bits) - 1);
  const int mantissa = bits & ((1 << f.mantissa_bits) - 1);
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == (1 << f.exponent_bits) - 1) {
    if (mantissa != 0) return std::numeric_limits<float>::quiet_NaN();
    return static_cast<float>(sign) * std::numeric_limits<float>::infinity();
  }
  const double unit = exponent == 0 ? mantissa : mantissa + (1 << f.mantissa_bits);
  return static_cast<float>(sign * std::ldexp(unit, std::max(exponent, 1) - f.bias() - f.mantissa_bits));
}

std::uint16_t encode(Format f, float value) {
  const auto sign = static_cast<std::uint16_t>(std::signbit(value) ? 0x8000 : 0);
  const int infinity = ((1 << f.exponent_bits) - 1) << f.mantissa_bits;
  if (value == 0) return sign;
  if (std::isnan(value)) return static_cast<std::uint16_t>(infinity | 1);
  if (std::isinf(value)) return static_cast<std::uint16_t>(sign | infinity);
  const double magnitude = std::fabs(static_cast<double>(value));
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  exponent = std::max(exponent - 1 + f.bias(), 1);
  // In units of the last place: an integer whose carry runs into the exponent by itself.
  const double units = std::nearbyint(std::ldexp(magnitude, f.bias() + f.mantissa_bits - exponent));
  const long bits = static_cast<long>(units) + (static_cast<long>(exponent - 1) << f.mantissa_bits);
  return static_cast<std::uint16_t>(sign | std::min<long>(bits, infinity));
}

template <class T>
T load(const Bytes& from, std::size_t i) {
  T value;
  std::memcpy(&value, from.data() + i * sizeof(T), sizeof(T));
  return value;
}
template <class T>
void store(Bytes& to, std::size_t i, T value) {
  std::memcpy(to.data() + i * sizeof(T), &value, sizeof(T));
}

template <class F>
F float_op(ReduceOp op, F a, F b) {
  const F nan = std::numeric_limits<F>::quiet_NaN();
  if (op == ReduceOp::prod) return a * b;
  if (op == ReduceOp::min || op == ReduceOp::max) {
    if (std::isnan(a) || std::isnan(b)) return nan;
    const bool a_less = a < b || (a == b && std::signbit(a) && !std::signbit(b));
    return (op == ReduceOp::min) == a_less ? a : b;
  }
  return a + b;
}

template <class T>
T int_op(ReduceOp op, T a, T b) {
  const auto wide_a = static_cast<std::uint64_t>(a), wide_b = static_cast<std::uint64_t>(b);
  switch (op) {
    case ReduceOp::prod: return static_cast<T>(wide_a * wide_b);
    case ReduceOp::min: return std::min(a, b);
    case ReduceOp::max: return std::max(a, b);
    case ReduceOp::band: return static_cast<T>(a & b);
    case ReduceOp::bor: return static_cast<T>(a | b);
    case ReduceOp::bxor: return static_cast<T>(a ^ b);
    default: return static_cast<T>(wide_a + wide_b);
  }
}

template <class C>
C complex_op(ReduceOp op, C a, C b) {
  if (op != ReduceOp::prod) return {a.real() + b.real(), a.imag() + b.imag()};
  return {a.real() * b.real() - a.imag() * b.imag(), a.real() * b.imag() + a.imag() * b.real()};
}

struct Case {
  DType dtype;
  ReduceOp op;
  std::vector<Bytes> srcs;
  std::vector<std::uint8_t> raw;
};

// `read` and `write` convert between stored and accumulated values, `apply` combines, `scale` and `divide` are AVG and
// PREMUL_SUM.
template <class Read, class Apply, class Scale, class Divide, class Write>
void reference(const Case& c, Bytes& out, Read read, Apply apply, Scale scale, Divide divide, Write write) {
  for (std::size_t i = 0; i < kItems; ++i) {
    auto item = [&](std::size_t k) {
      auto value = read(c.srcs[k], i);
      return c.op == ReduceOp::premul_sum && c.raw[k] != 0 ? scale(value) : value;
    };
    auto value = item(0);
    for (std::size_t k = 1; k < c.srcs.size(); ++k) value = apply(c.op, value, item(k));
    write(out, i, c.op == ReduceOp::avg ? divide(value) : value);
  }
}

template <class F>
void float_reference(const Case& c, Bytes& out) {
  reference(
      c, out, load<F>, float_op<F>, [](F x) { return x * static_cast<F>(kFactor); },
      [](F x) { return x / static_cast<F>(kFinalN); }, store<F>);
}
void half_reference(const Case& c, Bytes& out, Format format) {
  reference(
      c, out, [=](const Bytes& from, std::size_t i) { return decode(format, load<std::uint16_t>(from, i)); },
      float_op<float>, [](float x) { return x * static_cast<float>(kFactor); },
      [](float x) { return x / static_cast<float>(kFinalN); },
      [=](Bytes& to, std::size_t i, float x) { store(to, i, encode(format, x)); });
}
template <class T>
void int_reference(const Case& c, Bytes& out) {
  reference(
      c, out, load<T>, int_op<T>, [](T x) { return x; },
      [](T x) { return static_cast<T>(x / static_cast<T>(kFinalN)); }, store<T>);
}
template <class F>
void complex_reference(const Case& c, Bytes& out) {
  using C = std::complex<F>;
  const F factor = static_cast<F>(kFactor), n = static_cast<F>(kFinalN);
  reference(
      c, out, load<C>, complex_op<C>, [=](C x) { return C{x.real() * factor, x.imag() * factor}; },
      [=](C x) { return C{x.real() / n, x.imag() / n}; }, store<C>);
}
void bool_reference(const Case& c, Bytes& out) {
  auto apply = [](ReduceOp op, bool a, bool b) {
    if (op == ReduceOp::bxor) return a != b;
    const bool is_or = op == ReduceOp::sum || op == ReduceOp::max || op == ReduceOp::bor;
    return is_or ? a || b : a && b;
  };
  auto same = [](bool x) { return x; };
  reference(
      c, out, [](const Bytes& from, std::size_t i) { return from[i] != 0; }, apply, same, same,
      [](Bytes& to, std::size_t i, bool x) { to[i] = x ? 1 : 0; });
}

Bytes expected(const Case& c) {
  Bytes out(kItems * item_size(c.dtype));
  switch (c.dtype) {
    case DType::f32: float_reference<float>(c, out); break;
    case DType::f64: float_reference<double>(c, out); break;
    case DType::f16: half_reference(c, out, kF16); break;
    case DType::bf16: half_reference(c, out, kBF16); break;
    case DType::i8: int_reference<std::int8_t>(c, out); break;
    case DType::i16: int_reference<std::int16_t>(c, out); break;
    case DType::i32: int_reference<std::int32_t>(c, out); break;
    case DType::i64: int_reference<std::int64_t>(c, out); break;
    case DType::u8: int_reference<std::uint8_t>(c, out); break;
    case DType::u16: int_reference<std::uint16_t>(c, out); break;
    case DType::u32: int_reference<std::uint32_t>(c, out); break;
    case DType::u64: int_reference<std::uint64_t>(c, out); break;
    case DType::boolean: bool_reference(c, out); break;
    case DType::c64: complex_reference<float>(c, out); break;
    case DType::c128: complex_reference<double>(c, out); break;
    case DType::bytes: break;
  }
  return out;
}

// The type of the components that may be NaN.
DType component(DType dtype) {
  if (dtype == DType::c64) return DType::f32;
  return dtype == DType::c128 ? DType::f64 : dtype;
}

bool is_nan(DType dtype, const unsigned char* at) {
  std::uint16_t half;
  float single;
  double twice;
  switch (dtype) {
    case DType::f16: std::memcpy(&half, at, 2); return std::isnan(decode(kF16, half));
    case DType::bf16: std::memcpy(&half, at, 2); return std::isnan(decode(kBF16, half));
    case DType::f32: std::memcpy(&single, at, 4); return std::isnan(single);
    case DType::f64: std::memcpy(&twice, at, 8); return std::isnan(twice);
    default: return false;
  }
}

// Same bits, or both NaN.
bool same(DType dtype, const unsigned char* a, const unsigned char* b, std::size_t bytes) {
  if (std::memcmp(a, b, bytes) == 0) return true;
  const DType part = component(dtype);
  const std::size_t step = item_size(part);
  for (std::size_t i = 0; i < bytes; i += step) {
    if (std::memcmp(a + i, b + i, step) != 0 && !(is_nan(part, a + i) && is_nan(part, b + i))) return false;
  }
  return true;
}

// Half ordinary numbers, half any bits (infinities, NaN, subnormals, extremes of integers).
Bytes random_items(DType dtype, std::mt19937_64& random) {
  const std::size_t size = item_size(dtype);
  Bytes out(kItems * size);
  for (auto& byte : out) byte = static_cast<unsigned char>(random());
  const DType part = component(dtype);
  const std::size_t step = item_size(part);
  std::normal_distribution<double> normal(0, 4);
  for (std::size_t i = 0; i < out.size() / step; ++i) {
    if (random() % 2 == 0) continue;
    const double value = random() % 8 == 0 ? (random() % 2 == 0 ? -0.0 : 0.0) : normal(random);
    switch (part) {
      case DType::f32: store(out, i, static_cast<float>(value)); break;
      case DType::f64: store(out, i, value); break;
      case DType::f16: store(out, i, encode(kF16, static_cast<float>(value))); break;
      case DType::bf16: store(out, i, encode(kBF16, static_cast<float>(value))); break;
      case DType::boolean: out[i] = static_cast<unsigned char>(random() % 2); break;
      default: break;
    }
  }
  return out;
}

std::vector<std::size_t> counts() {
  std::vector<std::size_t> out;
  for (std::size_t i = 0; i <= 67; ++i) out.push_back(i);
  for (std::size_t i : {127, 128, 129, 1000, 1023, 1024, 1025, 2047, 2049, 2100}) out.push_back(i);
  return out;
}

struct Layout {
  std::size_t ndst, shift;  // shift: bytes off alignment, different for every buffer
  int in_place;             // dsts[0] is this source; -1 = none
};

// One call with guard bytes round everything; true if outputs are right and nothing else changed.
bool runs_right(const kernels::Table& table, const Case& c, const Bytes& want, const Layout& layout,
                std::size_t count) {
  const std::size_t bytes = count * item_size(c.dtype);
  const std::size_t nsrc = c.srcs.size();
  std::vector<Bytes> memory;
  auto region = [&](std::size_t k) { return memory[k].data() + kGuard + (layout.shift * (k + 1)) % 32; };
  for (std::size_t k = 0; k < nsrc + layout.ndst; ++k) memory.emplace_back(bytes + 2 * kGuard + 32, 0xa5);
  std::vector<const void*> srcs;
  std::vector<void*> dsts;
  for (std::size_t k = 0; k < nsrc; ++k) {
    if (bytes > 0) std::memcpy(region(k), c.srcs[k].data(), bytes);
    srcs.push_back(region(k));
  }
  for (std::size_t j = 0; j < layout.ndst; ++j) dsts.push_back(region(nsrc + j));
  if (layout.in_place >= 0) dsts[0] = region(static_cast<std::size_t>(layout.in_place));
  const std::vector<Bytes> before = memory;
  const FoldSpec spec{c.dtype, c.op, kFactor, c.op == ReduceOp::avg ? kFinalN : 0};
  table.fold[static_cast<int>(c.dtype)][static_cast<int>(c.op)](spec, dsts.data(), dsts.size(), srcs.data(),
                                                                c.raw.data(), nsrc, count);
  for (void* dst : dsts) {
    if (!same(c.dtype, static_cast<unsigned char*>(dst), want.data(), bytes)) return false;
    const auto owner = std::find_if(memory.begin(), memory.end(),
                                    [&](const Bytes& m) { return dst >= m.data() && dst < m.data() + m.size(); });
    // Put back what was there: then nothing may differ.
    std::memcpy(dst,
                before[static_cast<std::size_t>(owner - memory.begin())].data() +
                    (static_cast<unsigned char*>(dst) - owner->data()),
                bytes);
  }
  return memory == before;
}

bool scales(const Case& c) { return c.op == ReduceOp::avg || c.op == ReduceOp::premul_sum; }

void check_case(const kernels::Isa& isa, const Case& c) {
  const Bytes want = expected(c);
  const int nsrc = static_cast<int>(c.srcs.size());
  std::vector<Layout> layouts = {{1, 0, -1}, {2, 0, -1}, {3, 0, -1}, {1, 1, -1}, {2, 7, -1}};
  for (int k = 0; k < nsrc; ++k) {
    layouts.push_back({1, 0, k});
    layouts.push_back({2, 3, k});
  }
  for (const Layout& layout : layouts) {
    for (std::size_t count : counts()) {
      if (runs_right(*isa.table, c, want, layout, count)) continue;
      FAIL_CHECK(std::string(isa.name) << ": " << std::string(name(c.dtype)) << " " << std::string(name(c.op)) << ", "
                                       << nsrc << " sources, " << layout.ndst << " destinations, shift " << layout.shift
                                       << ", in place " << layout.in_place << ", count " << count);
      return;
    }
  }
}

void check_type(DType dtype) {
  std::mt19937_64 random(17 + static_cast<unsigned>(dtype));
  for (int o = 0; o < kernels::kOpCount; ++o) {
    const auto op = static_cast<ReduceOp>(o);
    if (!supported(dtype, op)) continue;
    for (std::size_t nsrc : {1, 2, 3, 5}) {
      Case c{dtype, op, {}, {}};
      for (std::size_t k = 0; k < nsrc; ++k) {
        c.srcs.push_back(random_items(dtype, random));
        c.raw.push_back(k % 3 != 1 ? 1 : 0);
      }
      if (nsrc == 1 && !scales(c)) continue;  // a plain copy: fold itself, below
      for (const kernels::Isa& isa : kernels::available()) check_case(isa, c);
    }
  }
  CHECK(kernels::available().size() >= 1);
}

}  // namespace

TEST_CASE("reduce: floats against the reference") {
  check_type(DType::f32);
  check_type(DType::f64);
}
TEST_CASE("reduce: 16-bit floats against the reference") {
  check_type(DType::f16);
  check_type(DType::bf16);
}
TEST_CASE("reduce: signed integers against the reference") {
  for (DType dtype : {DType::i8, DType::i16, DType::i32, DType::i64}) check_type(dtype);
}
TEST_CASE("reduce: unsigned integers and bool against the reference") {
  for (DType dtype : {DType::u8, DType::u16, DType::u32, DType::u64, DType::boolean}) check_type(dtype);
}
TEST_CASE("reduce: complex numbers against the reference") {
  check_type(DType::c64);
  check_type(DType::c128);
}

TEST_CASE("reduce: conversions of every 16-bit float") {
  for (Format format : {kF16, kBF16}) {
    const DType dtype = format.mantissa_bits == kF16.mantissa_bits ? DType::f16 : DType::bf16;
    // x * 1 in f32 goes through both conversions; all bit patterns, and sums that need rounding.
    std::vector<std::uint16_t> all(65536), other(65536), out(65536);
    for (std::size_t i = 0; i < all.size(); ++i) {
      all[i] = static_cast<std::uint16_t>(i);
      other[i] = static_cast<std::uint16_t>(i * 40503U >> 3);
    }
    for (const kernels::Isa& isa : kernels::available()) {
      const void* srcs[] = {all.data(), other.data()};
      void* dst = out.data();
      const FoldSpec spec{dtype, ReduceOp::sum, 1, 0};
      isa.table->fold[static_cast<int>(dtype)][static_cast<int>(ReduceOp::sum)](spec, &dst, 1, srcs, nullptr, 2, 65536);
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < all.size(); ++i) {
        const float sum = decode(format, all[i]) + decode(format, other[i]);
        const bool right = std::isnan(sum) ? std::isnan(decode(format, out[i])) : out[i] == encode(format, sum);
        wrong += right ? 0 : 1;
      }
      CHECK_MESSAGE(wrong == 0, std::string(isa.name));
    }
  }
}

TEST_CASE("reduce: small parts are not lost in 16 bits") {
  // One holds 256 (2048), seven hold 1: rounding at every step would give 256 (2048).
  const struct {
    DType dtype;
    Format format;
    float big;
  } cases[] = {{DType::bf16, kBF16, 256}, {DType::f16, kF16, 2048}};
  for (const auto& c : cases) {
    std::uint16_t values[8], result = 0;
    const void* srcs[8];
    for (int k = 0; k < 8; ++k) {
      values[k] = encode(c.format, k == 0 ? c.big : 1);
      srcs[k] = &values[k];
    }
    void* dst = &result;
    fold({c.dtype, ReduceOp::sum, 1, 0}, &dst, 1, srcs, nullptr, 8, 1);
    CHECK(decode(c.format, result) == c.big + 8);  // big + 7, rounded to even
  }
}

TEST_CASE("reduce: a bf16 NaN whose payload is in the low bits stays a NaN") {
  std::uint16_t values[] = {0x7f81, 0x3f80}, result = 0;
  const void* srcs[] = {&values[0], &values[1]};
  void* dst = &result;
  fold({DType::bf16, ReduceOp::sum, 1, 0}, &dst, 1, srcs, nullptr, 2, 1);
  CHECK(std::isnan(decode(kBF16, result)));
}

TEST_CASE("reduce: a factor that is any NaN gives NaN in every 16-bit float") {
  // All ones below the quiet bit: rounding must not carry them over into the sign.
  const double factor = static_cast<double>(__builtin_bit_cast(float, 0x7fffffffU));
  for (const kernels::Isa& isa : kernels::available()) {
    for (Format format : {kF16, kBF16}) {
      const DType dtype = format.mantissa_bits == kF16.mantissa_bits ? DType::f16 : DType::bf16;
      std::vector<std::uint16_t> values(77, encode(format, 1)), out(77);
      const void* srcs[] = {values.data(), values.data()};
      const std::uint8_t raw[] = {1, 0};
      void* dst = out.data();
      const FoldSpec spec{dtype, ReduceOp::premul_sum, factor, 0};
      const auto kernel = isa.table->fold[static_cast<int>(dtype)][static_cast<int>(ReduceOp::premul_sum)];
      kernel(spec, &dst, 1, srcs, raw, 2, out.size());
      for (std::uint16_t bits : out) CHECK_MESSAGE(std::isnan(decode(format, bits)), std::string(isa.name));
    }
  }
}

TEST_CASE("reduce: copies, AVG without a final count, AVG over one") {
  std::vector<unsigned char> from(1000), to(1000, 0);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<unsigned char>(i * 7);
  for (int d = 0; d < kDTypeCount; ++d) {
    const auto dtype = static_cast<DType>(d);
    std::fill(to.begin(), to.end(), static_cast<unsigned char>(0));
    const void* src = from.data();
    void* dst = to.data();
    const std::size_t count = from.size() / item_size(dtype) - 1;
    fold({dtype, ReduceOp::none, 1, 0}, &dst, 1, &src, nullptr, 1, count);
    CHECK(std::memcmp(from.data(), to.data(), count * item_size(dtype)) == 0);
    CHECK(to.back() == 0);
  }
  const float a = 5, b = 6;
  float result = 0;
  const void* srcs[] = {&a, &b};
  void* dst = &result;
  fold({DType::f32, ReduceOp::avg, 1, 0}, &dst, 1, srcs, nullptr, 2, 1);
  CHECK(result == 11.0F);
  fold({DType::f32, ReduceOp::avg, 1, 2}, &dst, 1, srcs, nullptr, 2, 1);
  CHECK(result == 5.5F);
  fold({DType::f32, ReduceOp::avg, 1, 4}, &dst, 1, srcs, nullptr, 1, 1);
  CHECK(result == 1.25F);
  const std::uint8_t not_raw = 0;
  fold({DType::f32, ReduceOp::premul_sum, 3, 0}, &dst, 1, srcs, &not_raw, 1, 1);
  CHECK(result == 5.0F);
}

TEST_CASE("reduce: what is not offered is refused") {
  for (DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16, DType::c64, DType::c128}) {
    for (ReduceOp op : {ReduceOp::band, ReduceOp::bor, ReduceOp::bxor}) CHECK_FALSE(supported(dtype, op));
  }
  CHECK_FALSE(supported(DType::c64, ReduceOp::max));
  CHECK_FALSE(supported(DType::c128, ReduceOp::min));
  CHECK_FALSE(supported(DType::boolean, ReduceOp::avg));
  CHECK_FALSE(supported(DType::boolean, ReduceOp::premul_sum));
  CHECK_FALSE(supported(DType::i32, ReduceOp::premul_sum));
  CHECK_FALSE(supported(DType::bytes, ReduceOp::sum));
  CHECK_FALSE(supported(static_cast<DType>(77), ReduceOp::sum));
  CHECK_FALSE(supported(DType::f32, static_cast<ReduceOp>(77)));
  CHECK(supported(DType::bytes, ReduceOp::none));
  float value = 1;
  const void* srcs[] = {&value, &value};
  void* dst = &value;
  CHECK_THROWS_AS(fold({DType::f32, ReduceOp::band, 1, 0}, &dst, 1, srcs, nullptr, 2, 1), Error);
  CHECK_THROWS_AS(fold({DType::f32, ReduceOp::none, 1, 0}, &dst, 1, srcs, nullptr, 2, 1), Error);
}

TEST_CASE("reduce: stream_copy of any size and alignment") {
  for (std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{4097}, (std::size_t{16} << 20) + 77}) {
    for (std::size_t shift : {0, 1, 63}) {
      Bytes from(bytes + 64), to(bytes + 128, 0xa5);
      for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<unsigned char>(i * 31 >> 3);
      stream_copy(to.data() + shift, from.data() + 5, bytes);
      CHECK(std::memcmp(to.data() + shift, from.data() + 5, bytes) == 0);
      CHECK(to[shift + bytes] == 0xa5);
    }
  }
}
