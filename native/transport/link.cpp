#include "transport/link.hpp"

#include <bit>
#include <cstdio>
#include <type_traits>

namespace ringleader {

// OpInfo and MessageHeader are sent as they lie in memory: no padding may hide in them.
// (136 = four words, five small fields in 8 bytes, six extents, wire format, protocol and history in 8 bytes, 40 of a
// name)
static_assert(sizeof(OpInfo) == 136 && std::is_trivially_copyable_v<OpInfo>);
static_assert(sizeof(MessageHeader) == 160 && std::is_trivially_copyable_v<MessageHeader>);
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

// They may be what a peer has sent, so no field is trusted to be in range. An empty value is not worth a word.
std::vector<std::pair<std::string, std::string>> OpInfo::fields() const {
  std::vector<std::pair<std::string, std::string>> all;
  all.emplace_back("", dtype < kDTypeCount ? std::string(name(static_cast<DType>(dtype))) : code("dtype", dtype));
  all.emplace_back("shape ", ndim != 255 ? shape_text(*this) : "");
  all.emplace_back("", std::to_string(count) + (count == 1 ? " element" : " elements"));
  std::string operation;
  if (op <= static_cast<std::uint8_t>(ReduceOp::bxor)) {
    operation = name(static_cast<ReduceOp>(op));
    if (op == static_cast<std::uint8_t>(ReduceOp::premul_sum)) operation += " by " + number("%.17g", factor);
  } else if (op != static_cast<std::uint8_t>(ReduceOp::none)) {
    operation = code("op", op);
  }
  all.emplace_back("op ", operation);
  all.emplace_back("root ", root >= 0 ? std::to_string(root) : "");
  std::string format;
  if (wire != 0) format = wire < kWireFormatCount ? name(static_cast<WireFormat>(wire)) : code("wire", wire);
  all.emplace_back("wire ", format);
  all.emplace_back("", inlined != 0 ? "inline" : "");
  std::string known;
  for (std::size_t i = 0; i < sizeof algorithm_name && algorithm_name[i] != '\0'; ++i)
    known += algorithm_name[i] >= ' ' && algorithm_name[i] <= '~' ? algorithm_name[i] : '?';
  char hash[24];
  std::snprintf(hash, sizeof hash, "%016llx", static_cast<unsigned long long>(algorithm));
  all.emplace_back("algorithm ", known.empty() ? hash : known);
  return all;
}

std::string OpInfo::title() const {
  const bool known = collective <= static_cast<std::uint8_t>(Collective::barrier);
  return (known ? std::string(name(static_cast<Collective>(collective))) : code("collective", collective)) + " #" +
         std::to_string(sequence);
}

std::string OpInfo::text() const {
  std::string text = title() + ":";
  for (const auto& [what, value] : fields())
    if (!value.empty()) text += (text.back() == ':' ? " " : ", ") + what + value;
  return text;
}

std::string OpInfo::beside(const OpInfo& other, const std::string& me, const std::string& them) const {
  std::string one, two;
  const auto add = [](std::string& text, const std::string& what, const std::string& value, const std::string& absent) {
    text += text.empty() ? " with " : ", ";
    text += value.empty() ? "no " + (what.empty() ? absent : what.substr(0, what.size() - 1)) : what + value;
  };
  const auto mine = fields(), theirs = other.fields();
  for (std::size_t i = 0; i < mine.size(); ++i) {
    const auto& [what, value] = mine[i];
    if (value == theirs[i].second) continue;
    add(one, what, value, theirs[i].second);
    add(two, what, theirs[i].second, value);
  }
  if (one.empty() && algorithm != other.algorithm) one = two = " with its own schedule of that name";
  return me + " called " + title() + one + "; " + them + " called " + other.title() + two;
}

}  // namespace ringleader
