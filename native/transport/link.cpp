#include "transport/link.hpp"

#include <bit>
#include <cstdio>
#include <type_traits>

namespace ringleader {

// OpInfo and MessageHeader are sent as they lie in memory: no padding may hide in them.
// (96 = four words, five small fields in 8 bytes, six extents, wire format, protocol and history in 8 bytes)
static_assert(sizeof(OpInfo) == 96 && std::is_trivially_copyable_v<OpInfo>);
static_assert(sizeof(MessageHeader) == 120 && std::is_trivially_copyable_v<MessageHeader>);
static_assert(std::endian::native == std::endian::little, "the wire format is little-endian");

namespace {

constexpr int kShapeShown = 6;

// The finaliser of SplitMix64: a bijection of 64 bits in which every input bit reaches every output bit.
std::uint64_t mix(std::uint64_t value) {
  value ^= value >> 30;
  value *= 0xbf58476d1ce4e5b9ULL;
  value ^= value >> 27;
  value *= 0x94d049bb133111ebULL;
  return value ^ (value >> 31);
}

std::uint64_t absorb(std::uint64_t state, std::uint64_t field) {
  return mix(state + 0x9e3779b97f4a7c15ULL) ^ mix(field ^ (state << 1 | state >> 63));
}

std::string code(const char* what, unsigned value) { return std::string(what) + " code " + std::to_string(value); }

std::string shape_text(const OpInfo& info) {
  std::string text = "(";
  for (int d = 0; d < info.ndim && d < kShapeShown; ++d) {
    if (d > 0) text += ", ";
    text += std::to_string(info.shape[d]);
  }
  if (info.ndim > kShapeShown) text += ", ...";
  return text + (info.ndim == 1 ? ",)" : ")");
}

std::string number(const char* format, double value) {
  char buffer[40];
  std::snprintf(buffer, sizeof buffer, format, value);
  return buffer;
}

}  // namespace

std::uint64_t OpInfo::fingerprint() const {
  std::uint64_t state = 0x52696e676c656164ULL;
  for (std::uint64_t field : {sequence, count, algorithm, std::bit_cast<std::uint64_t>(factor)}) {
    state = absorb(state, field);
  }
  state = absorb(state, static_cast<std::uint32_t>(root));
  state = absorb(state, static_cast<std::uint64_t>(collective) | static_cast<std::uint64_t>(dtype) << 8 |
                            static_cast<std::uint64_t>(op) << 16 | static_cast<std::uint64_t>(ndim) << 24 |
                            static_cast<std::uint64_t>(wire) << 32 | static_cast<std::uint64_t>(inlined) << 40);
  for (std::int64_t extent : shape) state = absorb(state, static_cast<std::uint64_t>(extent));
  // The engine keeps flags in the low three bits, and 0 means "nothing entered".
  state &= ~std::uint64_t{7};
  return state != 0 ? state : 8;
}

// Also shows what a peer sent, so no field is trusted to be in range.
std::string OpInfo::text() const {
  std::string text = collective <= static_cast<std::uint8_t>(Collective::barrier)
                         ? name(static_cast<Collective>(collective))
                         : code("collective", collective);
  text += " #" + std::to_string(sequence) + ": ";
  text += dtype < kDTypeCount ? std::string(name(static_cast<DType>(dtype))) : code("dtype", dtype);
  if (ndim != 255) text += ", shape " + shape_text(*this);
  text += ", " + std::to_string(count) + (count == 1 ? " element" : " elements");
  if (op <= static_cast<std::uint8_t>(ReduceOp::bxor)) {
    text += ", op " + std::string(name(static_cast<ReduceOp>(op)));
    if (op == static_cast<std::uint8_t>(ReduceOp::premul_sum)) text += " by " + number("%.17g", factor);
  } else if (op != static_cast<std::uint8_t>(ReduceOp::none)) {
    text += ", " + code("op", op);
  }
  if (root >= 0) text += ", root " + std::to_string(root);
  if (wire != 0 && wire < kWireFormatCount) text += ", wire " + std::string(name(static_cast<WireFormat>(wire)));
  if (wire >= kWireFormatCount) text += ", " + code("wire", wire);
  if (inlined != 0) text += ", inline";
  char hash[24];
  std::snprintf(hash, sizeof hash, "%016llx", static_cast<unsigned long long>(algorithm));
  return text + ", algorithm " + hash;
}

}  // namespace ringleader
