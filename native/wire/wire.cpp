#include "wire/wire.hpp"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/types.hpp"
#include "reduce/reduce.hpp"
#include "wire/table.hpp"

namespace ringleader {

namespace {

// The instruction set is the reduction kernels' choice (RINGLEADER_ISA lowers it).
const codecs::Table& choose() {
#if defined(__x86_64__)
  if (std::strcmp(isa(), "avx512") == 0) return codecs::avx512_table;
  if (std::strcmp(isa(), "avx2") == 0) return codecs::avx2_table;
#endif
  return codecs::baseline_table;
}

const codecs::Codec& codec(WireFormat format) {
  static const codecs::Table& table = choose();
  const auto row = static_cast<unsigned>(format);
  if (row >= static_cast<unsigned>(kWireFormatCount))
    throw Error(ErrorKind::invalid, "unknown wire format code " + std::to_string(row));
  return table.codec[row];
}

// Bytes of a block of `elements` elements.
std::size_t block_bytes(WireFormat format, std::size_t elements) {
  switch (format) {
    case WireFormat::f32: return 4 * elements;
    case WireFormat::bf16:
    case WireFormat::f16: return 2 * elements;
    case WireFormat::int8: return elements ? 1 + elements : 0;
    case WireFormat::onebit: return elements ? 1 + (elements + 7) / 8 : 0;
  }
  throw Error(ErrorKind::invalid, "unknown wire format code " + std::to_string(static_cast<int>(format)));
}

}  // namespace

const char* name(WireFormat format) {
  switch (format) {
    case WireFormat::f32: return "f32";
    case WireFormat::bf16: return "bf16";
    case WireFormat::f16: return "f16";
    case WireFormat::int8: return "int8";
    case WireFormat::onebit: return "onebit";
  }
  return "unknown";
}

std::size_t wire_block_bytes(WireFormat format) { return block_bytes(format, kWireBlock); }

std::size_t encoded_bytes(WireFormat format, std::size_t elements) {
  return elements / kWireBlock * wire_block_bytes(format) + block_bytes(format, elements % kWireBlock);
}

void encode(WireFormat format, void* dst, const float* src, std::size_t elements) {
  codec(format).encode(dst, src, elements);
}

void decode(WireFormat format, float* dst, const void* src, std::size_t elements) {
  codec(format).decode(dst, src, elements);
}

void round_to_wire(WireFormat format, float* dst, const float* src, std::size_t elements) {
  constexpr std::size_t kAtOnce = 16 * kWireBlock;  // stays in the first-level cache
  unsigned char encoded[4 * kAtOnce];
  const codecs::Codec& chosen = codec(format);
  for (std::size_t at = 0; at < elements; at += kAtOnce) {
    const std::size_t n = std::min(kAtOnce, elements - at);
    chosen.encode(encoded, src + at, n);
    chosen.decode(dst + at, encoded, n);
  }
}

}  // namespace ringleader
