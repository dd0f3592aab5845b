#include "core/lower_wire.hpp"

#include <string>

namespace ringleader::lowering {

namespace {

constexpr std::uint32_t kNone = 0xffffffffu;

std::uint64_t mix(std::uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

std::uint64_t key(Event event) { return static_cast<std::uint64_t>(event.rank) << 32 | event.code; }

}  // namespace

WireMarks::WireMarks(const CollectiveState& state, const Memory& memory) : state_(state) {
  for (LocId id = 0; id < memory.size(); ++id) {
    const Place place = memory.place(id);
    const std::uint64_t leaf =
        (static_cast<std::uint64_t>(place.rank) << 32 | static_cast<std::uint32_t>(place.chunk)) * 4 +
        static_cast<std::uint64_t>(place.buffer);
    versions_.push_back({expression(mix(leaf + 1)), {kNobody, 0}, true, false});
    current_.push_back(id);
  }
}

std::uint32_t WireMarks::expression(std::uint64_t hash) {
  const auto [entry, added] = by_hash_.try_emplace(hash, static_cast<std::uint32_t>(hash_.size()));
  if (added) {
    hash_.push_back(hash);
    rounded_.push_back(0);
  }
  return entry->second;
}

// Neither associative nor commutative: equal hashes mean the same expression.
std::uint32_t WireMarks::combine(std::uint32_t left, std::uint32_t right) {
  return expression(mix(hash_[left] * 3 + mix(hash_[right])));
}

// Scratch grows while the lowering goes on.
std::uint32_t& WireMarks::at(LocId id) {
  if (id >= current_.size()) current_.resize(id + 1, kNone);
  return current_[id];
}

std::uint32_t WireMarks::version_of(Source source) { return source.initial ? source.id : at(source.id); }

void WireMarks::copy(Source from, LocId to) {
  const std::uint32_t version = version_of(from);
  at(to) = version;
}

void WireMarks::fold(const std::vector<Source>& sources, LocId to, Event by) {
  std::uint32_t result = kNone;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    Version& version = versions_[version_of(sources[i])];
    version.used = true;
    result = i == 0 ? version.expression : combine(result, version.expression);
    if (i > 0 && i + 1 < sources.size()) inner_.push_back(result);
  }
  at(to) = static_cast<std::uint32_t>(versions_.size());
  versions_.push_back({result, by, false, false});
}

void WireMarks::message(LocId from, LocId to) {
  const std::uint32_t sent = versions_[at(from)].expression;
  rounded_[sent] = 1;
  at(to) = static_cast<std::uint32_t>(versions_.size());
  versions_.push_back({sent, {kNobody, 0}, false, false});
}

void WireMarks::message_fold(LocId from, LocId to, bool incoming_first, Event by) {
  const std::uint32_t sent = versions_[at(from)].expression;
  rounded_[sent] = 1;
  Version& own = versions_[at(to)];
  own.used = true;
  const std::uint32_t result = incoming_first ? combine(sent, own.expression) : combine(own.expression, sent);
  at(to) = static_cast<std::uint32_t>(versions_.size());
  versions_.push_back({result, by, false, false});
}

void WireMarks::use_results(const Memory& memory) {
  for (Rank rank = 0; rank < state_.n; ++rank)
    for (const Buffer buffer : {Buffer::data, Buffer::output})
      for (std::int32_t chunk = 0; memory.has(buffer) && chunk < state_.chunks; ++chunk)
        if (state_.required_at_end(rank, buffer, chunk)) versions_[at(memory.id(rank, buffer, chunk))].used = true;
}

// An instruction rounds all its chunks or none, so an expression may have to be rounded because of another one.
bool WireMarks::spread() {
  bool changed = false;
  for (const Version& version : versions_) {
    if (version.origin.rank == kNobody) continue;
    std::uint8_t& mark = marked_[key(version.origin)];
    if (version.used && rounded_[version.expression] && !mark) mark = changed = true;
    if (mark && !rounded_[version.expression]) rounded_[version.expression] = changed = true;
  }
  return changed;
}

void WireMarks::apply(const Memory& memory, std::vector<RankProgram>& programs, std::vector<RankLayout>& layouts) {
  use_results(memory);
  while (spread()) continue;
  for (const std::uint32_t inner : inner_)
    if (rounded_[inner])
      throw Error(ErrorKind::invalid,
                  "this schedule cannot use a wire format over " + std::to_string(state_.n) +
                      " ranks on these nodes: some rank combines in one step what another one sends in "
                      "between, so they would round differently; ask for another algorithm");
  for (std::size_t rank = 0; rank < programs.size(); ++rank) {
    std::uint32_t count = 1;
    for (std::size_t i = 0; i < programs[rank].instrs.size(); ++i) {
      Instr& instr = programs[rank].instrs[i];
      const std::uint32_t code = instr.op == Op::reduce ? ++count : kNetwork | static_cast<std::uint32_t>(i);
      const auto mark = marked_.find(key({static_cast<Rank>(rank), code}));
      if (mark != marked_.end() && mark->second) instr.flags |= kRound;
    }
    for (std::size_t b = 0; b < 3; ++b) {
      layouts[rank].rounded[b].assign(layouts[rank].reach[b].size(), 0);
      for (std::size_t chunk = 0; chunk < layouts[rank].reach[b].size(); ++chunk) {
        const LocId id = memory.id(static_cast<Rank>(rank), static_cast<Buffer>(b), static_cast<std::int32_t>(chunk));
        const bool marked = versions_[id].used && rounded_[versions_[id].expression] &&
                            state_.valid_at_start(static_cast<Rank>(rank), static_cast<Buffer>(b),
                                                  static_cast<std::int32_t>(chunk));
        layouts[rank].rounded[b][chunk] = marked;
        if (marked) layouts[rank].written[b][chunk] = 1;
      }
    }
  }
}

}  // namespace ringleader::lowering
