#include "compress/compress.hpp"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/types.hpp"
#include "compress/dispatch.hpp"
#include "reduce/reduce.hpp"
#include "wire/wire.hpp"

namespace ringleader::compress {

// The instruction set is the reduction kernels' choice (RINGLEADER_ISA lowers it).
const Table& kernels() {
  static const Table& table = []() -> const Table& {
#if defined(__x86_64__)
    if (std::strcmp(isa(), "avx512") == 0) return avx512_table;
    if (std::strcmp(isa(), "avx2") == 0) return avx2_table;
#endif
    return baseline_table;
  }();
  return table;
}

namespace {

struct Form {
  const char* name;
  std::size_t block, head, bits;  // elements, bytes before them, bits of one
};

constexpr Form kForms[kSchemeCount] = {
    {"bf16", kWireBlock, 0, 16}, {"f16", kWireBlock, 0, 16}, {"int8", kWireBlock, 1, 8}, {"onebit", 2048, 4, 1},
    {"int4", 128, 4, 4},         {"qsgd8", 512, 4, 8},       {"qsgd4", 512, 4, 4},       {"qsgd2", 512, 4, 2},
    {"qsgd8_l2", 512, 4, 8},     {"qsgd4_l2", 512, 4, 4},    {"qsgd2_l2", 512, 4, 2},    {"natural", 512, 1, 8},
};
constexpr WireFormat kWire[kWireSchemes] = {WireFormat::bf16, WireFormat::f16, WireFormat::int8};

const Form& form(Scheme scheme) {
  const auto row = static_cast<std::size_t>(scheme);
  if (row >= kSchemeCount) throw Error(ErrorKind::invalid, "unknown compression scheme code " + std::to_string(row));
  return kForms[row];
}

std::size_t block_bytes(const Form& f, std::size_t elements) {
  return elements == 0 ? 0 : f.head + (elements * f.bits + 7) / 8;
}

void encode_chunk(Scheme scheme, std::uint8_t* dst, const float* src, std::size_t n, std::uint32_t seed,
                  std::uint32_t first) {
  const auto row = static_cast<int>(scheme);
  if (row < kWireSchemes) return ringleader::encode(kWire[row], dst, src, n);
  kernels().codec[row - kWireSchemes].encode(dst, src, n, seed, first);
}

void decode_chunk(Scheme scheme, float* dst, const std::uint8_t* src, std::size_t n) {
  const auto row = static_cast<int>(scheme);
  if (row < kWireSchemes) return ringleader::decode(kWire[row], dst, src, n);
  kernels().codec[row - kWireSchemes].decode(dst, src, n);
}

}  // namespace

const char* name(Scheme scheme) { return form(scheme).name; }
std::size_t block_elements(Scheme scheme) { return form(scheme).block; }

std::size_t encoded_bytes(Scheme scheme, std::size_t elements) {
  const Form& f = form(scheme);
  return elements / f.block * block_bytes(f, f.block) + block_bytes(f, elements % f.block);
}

namespace {

// Encodes kAtOnce elements at a time, which stay in the first-level cache between the steps.
class Encoder {
 public:
  Encoder(Scheme scheme, float scale, std::uint32_t seed) : scheme_(scheme), scale_(scale), mixed_(spread(seed)) {}

  // For the n elements x, of which the array's are those from `at` on. x may be `sums()`.
  void operator()(std::uint8_t* out, const float* x, std::size_t at, std::size_t n, const float* error, float* lost,
                  float* decoded) {
    if (out == nullptr) out = bytes_;
    const float* y = x;
    if (error != nullptr) {
      table_.add(sums_, x, error, n);
      y = sums_;
    }
    const float* in = y;
    if (scale_ != 1.0F) {
      table_.multiply(scaled_, y, scale_, n);
      in = scaled_;
    }
    encode_chunk(scheme_, out, in, n, mixed_, static_cast<std::uint32_t>(at));
    if (lost == nullptr && decoded == nullptr) return;
    float* sent = decoded == nullptr ? back_ : decoded;
    decode_chunk(scheme_, sent, out, n);
    if (lost != nullptr) table_.residual(lost, y, sent, 1.0F / scale_, n);
  }
  float* sums() { return sums_; }

 private:
  const Table& table_ = kernels();
  const Scheme scheme_;
  const float scale_;
  const std::uint32_t mixed_;
  alignas(64) float sums_[kAtOnce], scaled_[kAtOnce], back_[kAtOnce];
  std::uint8_t bytes_[kAtOnce * 2];  // the widest encoding
};

// The sum of the n elements that start `offset` bytes after the start of each row.
void sum_chunk(Scheme scheme, float* sum, const Rows& rows, std::size_t offset, std::size_t n) {
  const Table& table = kernels();
  alignas(64) float values[kAtOnce];
  decode_chunk(scheme, sum, rows.data + offset, n);
  for (std::size_t row = 1; row < rows.rows; ++row) {
    decode_chunk(scheme, values, rows.data + row * rows.stride + offset, n);
    table.add(sum, sum, values, n);
  }
  if (rows.factor != 1.0F) table.multiply(sum, sum, rows.factor, n);
}

template <class T>
T* at_or_null(T* array, std::size_t at) {
  return array == nullptr ? nullptr : array + at;
}

}  // namespace

void encode(Scheme scheme, std::uint8_t* dst, const Pieces<const float>& src, const float* error, float* lost,
            float* decoded, float scale, std::uint32_t seed) {
  Encoder encoder(scheme, scale, seed);
  Pieces<const float>::Cursor cursor(src);
  const std::size_t step = encoded_bytes(scheme, kAtOnce);
  for (std::size_t at = 0; at < src.size(); at += kAtOnce) {
    const std::size_t n = std::min(kAtOnce, src.size() - at);
    const float* x = cursor.whole(at, n);
    if (x == nullptr) {
      float* sums = encoder.sums();
      cursor.each(at, n, [sums](const float* from, std::size_t place, std::size_t count) {
        std::copy_n(from, count, sums + place);
      });
      x = sums;
    }
    encoder(at_or_null(dst, at / kAtOnce * step), x, at, n, at_or_null(error, at), at_or_null(lost, at),
            at_or_null(decoded, at));
  }
}

void decode(Scheme scheme, const Pieces<float>& dst, const std::uint8_t* src, bool accumulate) {
  const Table& table = kernels();
  Pieces<float>::Cursor cursor(dst);
  const std::size_t step = encoded_bytes(scheme, kAtOnce);
  alignas(64) float values[kAtOnce];
  for (std::size_t at = 0; at < dst.size(); at += kAtOnce, src += step) {
    const std::size_t n = std::min(kAtOnce, dst.size() - at);
    float* to = cursor.whole(at, n);
    if (to != nullptr && !accumulate) {
      decode_chunk(scheme, to, src, n);
      continue;
    }
    decode_chunk(scheme, values, src, n);
    cursor.each(at, n, [&](float* out, std::size_t place, std::size_t count) {
      if (accumulate)
        table.add(out, out, values + place, count);
      else
        std::copy_n(values + place, count, out);
    });
  }
}

void decode_sum(Scheme scheme, float* dst, const Rows& rows, std::size_t elements) {
  const std::size_t step = encoded_bytes(scheme, kAtOnce);
  for (std::size_t at = 0; at < elements; at += kAtOnce)
    sum_chunk(scheme, dst + at, rows, at / kAtOnce * step, std::min(kAtOnce, elements - at));
}

void encode_sum(Scheme scheme, std::uint8_t* dst, const Rows& rows, const float* error, float* lost,
                std::size_t elements, std::uint32_t seed) {
  Encoder encoder(scheme, 1.0F, seed);
  const std::size_t step = encoded_bytes(scheme, kAtOnce);
  for (std::size_t at = 0; at < elements; at += kAtOnce) {
    const std::size_t n = std::min(kAtOnce, elements - at), offset = at / kAtOnce * step;
    sum_chunk(scheme, encoder.sums(), rows, offset, n);
    encoder(dst + offset, encoder.sums(), at, n, at_or_null(error, at), at_or_null(lost, at), nullptr);
  }
}

void add(float* out, const float* a, const Pieces<const float>& b, float scale) {
  const Table& table = kernels();
  if (b.size() == 0) return;
  Pieces<const float>::Cursor cursor(b);
  cursor.whole(0, 1);
  cursor.each(0, b.size(), [&](const float* from, std::size_t at, std::size_t n) {
    if (scale == 1.0F)
      table.add(out + at, a + at, from, n);
    else
      table.scaled_add(out + at, a + at, scale, from, n);
  });
}

void clean(float* x, std::size_t elements) { kernels().clean(x, elements); }

}  // namespace ringleader::compress
