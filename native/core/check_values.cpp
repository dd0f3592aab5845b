#include <algorithm>

#include "core/check.hpp"

namespace ringleader::checking {

namespace {
constexpr std::uint64_t kPrime = (1ull << 61) - 1;

std::uint64_t plus(std::uint64_t a, std::uint64_t b) {
  const std::uint64_t sum = a + b;
  return sum >= kPrime ? sum - kPrime : sum;
}
}  // namespace

Values::Values(const Facts& facts, const Memory& memory, std::uint64_t seed)
    : facts_(facts), seed_(mix(seed)), values_(memory.size()) {
  const CollectiveState& state = facts.state;
  if (state.collective == Collective::barrier) {
    words_ = (static_cast<std::size_t>(state.n) + 63) / 64;
    sets_.assign(memory.size() * words_, 0);
    set_.resize(words_);
  }
  for (int b = 0; b < 3; ++b) {
    const auto buffer = static_cast<Buffer>(b);
    for (Rank rank = 0; memory.has(buffer) && rank < state.n; ++rank)
      for (std::int32_t chunk = 0; chunk < state.chunks; ++chunk) {
        // Content that the program's layout does not load is not there.
        if (!facts.lowered.layouts[rank].loaded[b][chunk] || !state.valid_at_start(rank, buffer, chunk)) continue;
        const LocId id = memory.id(rank, buffer, chunk);
        values_[id] = initial(rank, buffer, chunk);
        if (words_ > 0) sets_[id * words_ + static_cast<std::size_t>(rank) / 64] = 1ull << (rank % 64);
      }
  }
  if (!is_reducing(state.collective)) return;
  totals_.assign(static_cast<std::size_t>(state.chunks), 0);
  for (Rank rank = 0; rank < state.n; ++rank)
    for (std::int32_t chunk = 0; chunk < state.chunks; ++chunk)
      totals_[chunk] = plus(totals_[chunk], initial(rank, Buffer::data, chunk).sum);
}

Values::Value Values::initial(Rank rank, Buffer buffer, std::int32_t chunk) const {
  const std::uint64_t place = static_cast<std::uint64_t>(rank) << 32 | static_cast<std::uint32_t>(chunk);
  const std::uint64_t random = mix(seed_ ^ mix(place * 4 + static_cast<std::uint64_t>(buffer)));
  Value value{random % kPrime, mix(random), 1, false};
  const std::vector<std::uint8_t>& rounded = facts_.lowered.layouts[rank].rounded[static_cast<std::size_t>(buffer)];
  if (!rounded.empty() && rounded[static_cast<std::size_t>(chunk)]) round(value);
  return value;
}

void Values::round(Value& value) {
  if (!value.rounded) value.tree = mix(value.tree ^ 0x726f756e64u);
  value.rounded = true;
}

void Values::fold(const Value& value, LocId id, bool from_initial, Rank owner) {
  if (empty_) {
    accumulator_ = value;
    std::fill(set_.begin(), set_.end(), 0);
  } else {
    accumulator_.sum = plus(accumulator_.sum, value.sum);
    // neither associative nor commutative: equal hashes mean the same expression
    accumulator_.tree = mix(accumulator_.tree * 3 + mix(value.tree));
    accumulator_.contributions += value.contributions;
    accumulator_.rounded = false;
  }
  empty_ = false;
  if (words_ == 0) return;
  if (from_initial)
    set_[static_cast<std::size_t>(owner) / 64] |= 1ull << (owner % 64);
  else
    for (std::size_t w = 0; w < words_; ++w) set_[w] |= sets_[id * words_ + w];
}

void Values::store(LocId id) {
  values_[id] = accumulator_;
  std::copy(set_.begin(), set_.end(), sets_.begin() + static_cast<std::ptrdiff_t>(id * words_));
}

Values::Value Values::expected(Rank rank, Buffer buffer, std::int32_t chunk) const {
  const CollectiveState& state = facts_.state;
  if (is_reducing(state.collective)) return {totals_[chunk], 0, state.n, false};
  Rank from = rank;
  std::int32_t from_chunk = chunk;
  state.source_of(rank, chunk, &from, &from_chunk);
  const bool moved = buffer == Buffer::output;
  return initial(from, moved ? Buffer::input : Buffer::data, from_chunk);
}

void Values::check_final(const Memory& memory, Report& report) const {
  if (words_ > 0) return check_sets(memory, report);
  const CollectiveState& state = facts_.state;
  const bool everywhere = state.collective == Collective::all_reduce || state.collective == Collective::broadcast ||
                          state.collective == Collective::all_gather;
  const Buffer buffer = state.collective == Collective::all_to_all ? Buffer::output : Buffer::data;
  for (Rank rank = 0; rank < state.n; ++rank)
    for (std::int32_t chunk = 0; chunk < state.chunks; ++chunk) {
      if (!state.required_at_end(rank, buffer, chunk)) continue;
      const Value& value = values_[memory.id(rank, buffer, chunk)];
      const auto where = [&] { return chunk_text(rank, buffer, chunk, 1); };
      if (value.contributions == 0)
        report.add("content: " + where() + " holds nothing at the end");
      else if (value.sum != expected(rank, buffer, chunk).sum)
        report.add("content: " + where() + " ends with " + std::to_string(value.contributions) +
                   " contributions that are not the collective's result");
      else if (everywhere && value.tree != values_[memory.id(0, buffer, chunk)].tree)
        report.add("association: " + where() + " is combined or rounded in another order than on rank 0");
      if (report.full()) return;
    }
}

void Values::check_sets(const Memory& memory, Report& report) const {
  const CollectiveState& state = facts_.state;
  for (Rank rank = 0; rank < state.n; ++rank)
    for (std::int32_t chunk = 0; chunk < state.chunks; ++chunk) {
      const LocId id = memory.id(rank, Buffer::data, chunk);
      for (Rank from = 0; from < state.n; ++from)
        if (!(sets_[id * words_ + static_cast<std::size_t>(from) / 64] >> (from % 64) & 1)) {
          report.add("content: rank " + std::to_string(rank) + " leaves the barrier without rank " +
                     std::to_string(from));
          break;
        }
    }
}

}  // namespace ringleader::checking
