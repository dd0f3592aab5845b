// Grouping, ordering and merging of the moves of one sub-step; the instructions themselves are in lower_fuse.cpp.
#include "core/lower_emit.hpp"

#include <algorithm>

#include "core/lower_emit_detail.hpp"

namespace ringleader::lowering {

void Emitter::refuse(std::uint32_t transfer, const std::string& why) const {
  throw Error(ErrorKind::invalid, transfer_text(transfer, table_[transfer]) + ": " + why);
}

std::pair<std::int32_t, Rank> Emitter::contributions(LocId id, bool initial, Rank owner) const {
  if (initial) return {1, owner};
  return {memory_[id].contributions, memory_[id].lowest};
}

void Emitter::emit(const Large<Move>& moves) {
  if (moves.empty()) return;
  make_groups(moves);
  for (const Group& group : groups_) {
    draft(moves, group, next_);
    offer(next_);
  }
  close();
}

// One group per destination chunk. Order of the groups: network first (their order is common to all ranks, so both ends
// of a link agree), then by executor, each executor starting with the peers after itself.
void Emitter::make_groups(const Large<Move>& moves) {
  keys_.clear();
  keys_.reserve(moves.size());
  for (std::size_t i = 0; i < moves.size(); ++i)
    keys_.push_back(static_cast<std::uint64_t>(moves[i].dst_id) << 32 | static_cast<std::uint64_t>(i));
  if (!std::is_sorted(keys_.begin(), keys_.end())) std::sort(keys_.begin(), keys_.end());
  sorted_.clear();
  sorted_.reserve(moves.size());
  for (const std::uint64_t key : keys_) sorted_.push_back(static_cast<std::uint32_t>(key));
  groups_.clear();
  groups_.reserve(moves.size());
  for (std::uint32_t first = 0; first < sorted_.size();) {
    std::uint32_t end = first + 1;
    while (end < sorted_.size() && moves[sorted_[end]].dst_id == moves[sorted_[first]].dst_id) ++end;
    if (end - first > 1) sort_sources(moves, first, end - first);
    const Move& move = moves[sorted_[first]];
    bool network = false;
    for (std::uint32_t i = first; i < end; ++i) network = network || moves[sorted_[i]].executor == kNobody;
    Group group{0, move.dst_id, first, end - first, network};
    if (network) {
      group.order = static_cast<std::uint64_t>(move.dst.rank);
    } else {
      const Rank peer = move.executor == move.dst.rank ? move.src.rank : move.dst.rank;
      const Rank rotated = (peer - move.executor + state_.n) % state_.n;
      group.order = 1ull << 63 | static_cast<std::uint64_t>(move.executor) << 32 | static_cast<std::uint64_t>(rotated);
    }
    groups_.push_back(group);
    first = end;
  }
  const auto earlier = [](const Group& a, const Group& b) {
    return a.order != b.order ? a.order < b.order : a.then < b.then;
  };
  if (!std::is_sorted(groups_.begin(), groups_.end(), earlier)) std::sort(groups_.begin(), groups_.end(), earlier);
}

// Several transfers into one chunk in one step must all reduce; they are folded by lowest contributing rank.
void Emitter::sort_sources(const Large<Move>& moves, std::uint32_t first, std::uint32_t n) {
  for (std::uint32_t i = first; i < first + n; ++i) {
    if (moves[sorted_[i]].reduce) continue;
    const std::uint32_t other = moves[sorted_[i == first ? first + 1 : first]].transfer;
    refuse(moves[sorted_[i]].transfer, "copies into a chunk that " + transfer_text(other, table_[other]) +
                                           " writes in the same step; only reduces may share a destination");
  }
  std::sort(sorted_.begin() + first, sorted_.begin() + first + n, [&](std::uint32_t a, std::uint32_t b) {
    const Rank left = contributions(moves[a].src_id, moves[a].initial, moves[a].src.rank).second;
    const Rank right = contributions(moves[b].src_id, moves[b].initial, moves[b].src.rank).second;
    return left != right ? left < right : a < b;
  });
}

// Chunks at both ends have the same index within their blocks; scratch takes the class of what is written to it.
void Emitter::settle_class(const Move& move) {
  const std::int32_t from = memory_.chunk_class(move.src);
  const std::int32_t to = memory_.chunk_class(move.dst);
  if (to == -1)
    memory_.set_scratch_class(move.dst, from);
  else if (from != to)
    refuse(move.transfer, "the ends have different sizes: chunk " + std::to_string(from) +
                              " of a block at the source, chunk " + std::to_string(to) +
                              " at the destination; both must have the same index within their block");
}

void Emitter::draft(const Large<Move>& moves, const Group& group, Draft& out) {
  const Move& head = moves[sorted_[group.first]];
  out.network = group.network;
  out.executor = group.network ? head.dst.rank : head.executor;
  out.count = 1;
  out.dst = head.dst;
  out.sources.clear();
  std::int32_t total = 0;
  for (std::uint32_t i = group.first; i < group.first + group.n; ++i) {
    const Move& move = moves[sorted_[i]];
    const std::int32_t held = contributions(move.src_id, move.initial, move.src.rank).first;
    if (held == 0) refuse(move.transfer, "reads a chunk that holds nothing yet");
    settle_class(move);
    total += held;
    out.sources.push_back(
        {move.src, move.transfer, move.channel, false, move.executor == kNobody, move.initial, held == 1});
  }
  const Location& destination = memory_[head.dst_id];
  if (head.reduce && destination.contributions > 0) {
    total += destination.contributions;
    place_own(out, destination.lowest, moves, group);
    const auto own = std::find_if(out.sources.begin(), out.sources.end(), [](const Source& s) { return s.own; });
    own->raw = destination.contributions == 1;
  }
  // A copy is no fold: nothing is scaled in it, so neither flag applies.
  const bool folds = out.sources.size() > 1 && is_reducing(state_.collective);
  out.final = folds && total == state_.n;
  if (!folds)
    for (Source& source : out.sources) source.raw = false;
}

// The destination's own content stands before the first source with a greater lowest contribution.
void Emitter::place_own(Draft& out, Rank own_lowest, const Large<Move>& moves, const Group& group) {
  std::size_t at = 0;
  while (at < group.n) {
    const Move& move = moves[sorted_[group.first + at]];
    if (contributions(move.src_id, move.initial, move.src.rank).second >= own_lowest) break;
    ++at;
  }
  out.sources.insert(out.sources.begin() + static_cast<std::ptrdiff_t>(at),
                     {out.dst, out.sources[0].transfer, 0, true, false, false, false});
}

namespace {
bool follows(Place first, std::int32_t count, Place next) {
  return first.rank == next.rank && first.buffer == next.buffer && first.chunk + count == next.chunk;
}
}  // namespace

// Is `next` the same instruction, one chunk further on?
bool Emitter::extends(const Draft& open, const Draft& next) {
  if (open.count == 0 || open.executor != next.executor || open.network != next.network || open.final != next.final ||
      open.sources.size() != next.sources.size() || !follows(open.dst, open.count, next.dst))
    return false;
  for (std::size_t i = 0; i < open.sources.size(); ++i) {
    const Source& a = open.sources[i];
    const Source& b = next.sources[i];
    if (a.own != b.own || a.network != b.network || a.initial != b.initial || a.raw != b.raw ||
        (a.network && a.channel != b.channel) || !follows(a.place, open.count, b.place))
      return false;
  }
  return true;
}

bool Emitter::same_transfers(const Draft& open, const Draft& next) {
  for (std::size_t i = 0; i < open.sources.size(); ++i)
    if (!open.sources[i].own && open.sources[i].transfer != next.sources[i].transfer) return false;
  return true;
}

// Different transfers of several chunks' messages are joined only where both ends wait for the same events.
bool Emitter::same_conflicts(const Draft& open, const Draft& next) const {
  std::vector<Event> sets[2];
  const Draft* const drafts[2] = {&open, &next};
  for (int k = 0; k < 2; ++k) {
    const Draft& draft = *drafts[k];
    const auto collect = [&](Event event) { sets[k].push_back(event); };
    for (const Source& source : draft.sources) {
      const Rank reader = source.network ? source.place.rank : draft.executor;
      if (!source.own) builder_.each_read_conflict(reader, source.place.rank, id(source.place, 0), false, collect);
    }
    builder_.each_write_conflict(draft.executor, draft.dst.rank, id(draft.dst, 0), collect);
  }
  return sets[0] == sets[1];
}

// Takes the next draft into the open one where that adds no wait; otherwise closes the open one.
void Emitter::offer(Draft& next) {
  if (extends(open_, next)) {
    bool join = same_transfers(open_, next);
    if (!join && next.network) join = same_conflicts(open_, next);
    if (!join && !next.network) {
      join = true;
      each_conflict(next, 0, [&](Event event) { join = join && builder_.implied(needs_, event); });
    }
    if (join) {
      if (!next.network) each_conflict(next, 0, [&](Event event) { builder_.add(needs_, event); });
      ++open_.count;
      return;
    }
  }
  close();
  std::swap(open_, next);
  if (open_.network) return;
  builder_.begin(needs_, open_.executor, true);
  each_conflict(open_, 0, [&](Event event) { builder_.add(needs_, event); });
}

void Emitter::close() {
  if (open_.count > 0) {
    if (open_.network)
      emit_network(open_);
    else if (!fuse(open_))
      emit_in_order(open_, needs_);
  }
  open_.count = 0;
}

}  // namespace ringleader::lowering
