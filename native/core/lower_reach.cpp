#include "core/lower_reach.hpp"

#include <limits>

namespace ringleader::lowering {

namespace {
constexpr std::uint8_t kReadInitially = 1;  // a peer reads the initial content
constexpr std::uint8_t kTouchedLater = 2;   // a peer writes it, or reads a later version
constexpr std::int32_t kNever = std::numeric_limits<std::int32_t>::max();
}  // namespace

Steps::Steps(const CollectiveState& state, Memory& memory, const Builder& builder, const Transfer* table,
             const std::vector<std::uint32_t>& order, bool push)
    : state_(state),
      memory_(memory),
      builder_(builder),
      table_(table),
      order_(order),
      push_(push),
      first_write_(memory.size(), kNever),
      last_write_(memory.size(), -1),
      reads_(memory.size(), 0) {
  find_snapshots();
  last_write_.assign(memory.size(), -1);
}

LocId Steps::src_id(const Transfer& t, std::int32_t i) const {
  return memory_.id(t.src_rank, Buffer{t.src_buffer}, t.src_chunk + i);
}

LocId Steps::dst_id(const Transfer& t, std::int32_t i) const {
  return memory_.id(t.dst_rank, Buffer{t.dst_buffer}, t.dst_chunk + i);
}

// Who does a transfer that needs no staging; kNobody = the network.
Rank Steps::executor(const Transfer& t) const {
  if (!builder_.same_node(t.src_rank, t.dst_rank)) return kNobody;
  return push_ && !t.reduce ? t.src_rank : t.dst_rank;
}

std::size_t Steps::step_end(std::size_t at) const {
  std::size_t end = at;
  while (end < order_.size() && table_[order_[end]].step == table_[order_[at]].step) ++end;
  return end;
}

void Steps::mark_writes(std::size_t at, std::size_t end) {
  for (std::size_t k = at; k < end; ++k) {
    const Transfer& t = table_[order_[k]];
    for (std::int32_t i = 0; i < t.count; ++i) last_write_[dst_id(t, i)] = t.step;
  }
}

// A chunk is a snapshot if peers read its initial content, nobody but its owner writes it (and somebody does), and no
// peer reads a later version. Reads in the step of the first write still see the initial content.
void Steps::find_snapshots() {
  for (std::size_t at = 0; at < order_.size();) {
    const std::size_t end = step_end(at);
    mark_writes(at, end);
    for (std::size_t k = at; k < end; ++k) {
      const Transfer& t = table_[order_[k]];
      for (std::int32_t i = 0; i < t.count; ++i) {
        std::int32_t& first = first_write_[dst_id(t, i)];
        if (first == kNever) first = t.step;
      }
    }
    judge_reads(at, end);
    at = end;
  }
  for (LocId id = 0; id < memory_.size(); ++id) {
    Location& location = memory_[id];
    location.snapshot = reads_[id] == kReadInitially && first_write_[id] != kNever && location.contributions > 0;
  }
}

void Steps::judge_reads(std::size_t at, std::size_t end) {
  for (std::size_t k = at; k < end; ++k) {
    const Transfer& t = table_[order_[k]];
    const Rank by = executor(t);
    if (by == kNobody) continue;  // each end touches its own memory
    for (std::int32_t i = 0; i < t.count; ++i) {
      const LocId from = src_id(t, i), to = dst_id(t, i);
      const bool exchange = last_write_[from] == t.step;
      // An exchange that is pushed goes through the destination's scratch: neither end's memory is touched by the
      // other.
      if (by != t.src_rank) {
        if (t.step <= first_write_[from])
          reads_[from] |= kReadInitially;
        else if (!(push_ && exchange))
          reads_[from] |= kTouchedLater;
      }
      if (by != t.dst_rank && !exchange) reads_[to] |= kTouchedLater;
    }
  }
}

std::size_t Steps::moves(std::size_t at, Large<Move>& first, Large<Move>& then) {
  first.clear();
  then.clear();
  const std::size_t end = step_end(at);
  mark_writes(at, end);
  std::size_t chunks = 0;
  for (std::size_t k = at; k < end; ++k) chunks += static_cast<std::size_t>(table_[order_[k]].count);
  then.reserve(chunks);
  for (std::size_t k = at; k < end; ++k) {
    const Transfer& t = table_[order_[k]];
    for (std::int32_t i = 0; i < t.count; ++i) add_move(t, order_[k], i, first, then);
  }
  return end;
}

void Steps::add_move(const Transfer& t, std::uint32_t row, std::int32_t i, Large<Move>& first, Large<Move>& then) {
  Move move{row,
            {t.src_rank, Buffer{t.src_buffer}, t.src_chunk + i},
            {t.dst_rank, Buffer{t.dst_buffer}, t.dst_chunk + i},
            src_id(t, i),
            dst_id(t, i),
            executor(t),
            t.channel,
            t.reduce != 0,
            false};
  const bool network = move.executor == kNobody;
  move.initial = !network && move.executor != t.src_rank && memory_[move.src_id].snapshot &&
                 t.step <= first_write_[move.src_id];
  if (move.initial || last_write_[move.src_id] != t.step) {
    then.push_back(move);
    return;
  }
  // An exchange: what is read here is overwritten in the same step. It first goes into fresh scratch of the
  // destination.
  Move stage = move;
  stage.dst = {t.dst_rank, Buffer::scratch, memory_.grow_scratch(t.dst_rank)};
  stage.dst_id = memory_.id(stage.dst.rank, stage.dst.buffer, stage.dst.chunk);
  stage.reduce = false;
  if (!network) stage.executor = push_ ? t.src_rank : t.dst_rank;
  first.push_back(stage);
  move.src = stage.dst;
  move.src_id = stage.dst_id;
  move.executor = t.dst_rank;
  then.push_back(move);
}

}  // namespace ringleader::lowering
