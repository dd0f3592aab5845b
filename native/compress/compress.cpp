#include "compress/compress.hpp"

#include <algorithm>
#include <cstring>
#include <string>

#include "compress/dispatch.hpp"
#include "core/types.hpp"
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
    {"bf16", kWireBlock, 0, 16}, {"f16", kWireBlock, 0, 16}, {"int8", kWireBlock, 1, 8},  {"onebit", 2048, 4, 1},
    {"int4", 128, 4, 4},         {"qsgd8", 512, 4, 8},       {"qsgd4", 512, 4, 4},        {"qsgd2", 512, 4, 2},
    {"qsgd8_l2", 512, 4, 8},     {"qsgd4_l2", 512, 4, 4},    {"qsgd2_l2", 512, 4, 2},     {"natural", 512, 1, 8},
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

void encode_chunk(Scheme scheme, std::uint8_t* dst, const float* src, std::size_t n, std::uint32_t seed, std::uint32_t first) {
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

void encode(Scheme scheme, std::uint8_t* dst, const float* src, const float* error, float* lost, float* decoded, std::size_t elements,
            float scale, std::uint32_t seed) {
  const Table& table = kernels();
  alignas(64) float sums[kAtOnce], scaled[kAtOnce], back[kAtOnce];
  std::uint8_t bytes[kAtOnce * 2];  // the widest encoding
  const std::uint32_t mixed = spread(seed);
  const std::size_t step = encoded_bytes(scheme, kAtOnce);
  for (std::size_t at = 0; at < elements; at += kAtOnce, dst += dst == nullptr ? 0 : step) {
    const std::size_t n = std::min(kAtOnce, elements - at);
    std::uint8_t* out = dst == nullptr ? bytes : dst;
    const float* y = src + at;
    if (error != nullptr) {
      table.add(sums, y, error + at, n);
      y = sums;
    }
    const float* in = y;
    if (scale != 1.0F) {
      table.multiply(scaled, y, scale, n);
      in = scaled;
    }
    encode_chunk(scheme, out, in, n, mixed, static_cast<std::uint32_t>(at));
    if (lost == nullptr && decoded == nullptr) continue;
    float* sent = decoded == nullptr ? back : decoded + at;
    decode_chunk(scheme, sent, out, n);
    if (lost != nullptr) table.residual(lost + at, y, sent, 1.0F / scale, n);
  }
}

void decode(Scheme scheme, float* dst, const std::uint8_t* src, std::size_t elements, bool accumulate) {
  const Table& table = kernels();
  const std::size_t step = encoded_bytes(scheme, kAtOnce);
  float values[kAtOnce];
  for (std::size_t at = 0; at < elements; at += kAtOnce, src += step) {
    const std::size_t n = std::min(kAtOnce, elements - at);
    if (!accumulate) {
      decode_chunk(scheme, dst + at, src, n);
      continue;
    }
    decode_chunk(scheme, values, src, n);
    table.add(dst + at, dst + at, values, n);
  }
}

void add(float* out, const float* a, const float* b, std::size_t elements) { kernels().add(out, a, b, elements); }
void clean(float* x, std::size_t elements) { kernels().clean(x, elements); }

}  // namespace ringleader::compress
