// lower: a schedule's table to one program per rank. The rules are in docs/architecture.md, "The lowered program".
//   lower_reach    the transfers of each step become moves; exchanges are staged, snapshots found
//   lower_emit     moves are grouped, ordered and merged
//   lower_fuse     instructions, fused
//   lower_builder  waits, dependencies, programs
//   lower_wire     what is rounded where messages have a wire format
#include <algorithm>
#include <numeric>
#include <optional>

#include "core/lower_reach.hpp"

namespace ringleader {

using namespace lowering;

namespace {

void check_arguments(Rank n, Rank root, std::int32_t chunks, std::int32_t blocks, std::size_t nodes) {
  const auto refuse = [](const std::string& why) { throw Error(ErrorKind::invalid, why); };
  if (n < 1) refuse("n is " + std::to_string(n) + "; a schedule needs at least one rank");
  if (root < -1 || root >= n)
    refuse("root is " + std::to_string(root) + "; expected a rank in 0.." + std::to_string(n - 1));
  if (chunks < 1 || chunks % blocks != 0)
    refuse("chunks is " + std::to_string(chunks) + "; expected a positive multiple of the " + std::to_string(blocks) +
           " blocks");
  if (nodes != static_cast<std::size_t>(n))
    refuse("nodes has " + std::to_string(nodes) + " entries; expected one per rank, " + std::to_string(n));
}

std::string fault(const Transfer& t, Rank n, std::int32_t chunks, std::int64_t scratch_limit) {
  const auto outside = [&](Rank rank) { return rank < 0 || rank >= n; };
  if (outside(t.src_rank) || outside(t.dst_rank)) return "ranks must be in 0.." + std::to_string(n - 1);
  if (t.src_buffer >= kBufferCount || t.dst_buffer >= kBufferCount)
    return "buffers must be 0 (data), 1 (input), 2 (output) or 3 (scratch)";
  if (t.step < 0) return "step must not be negative";
  if (t.channel < 0) return "channel must not be negative";
  if (t.count < 1) return "count must be at least 1";
  if (t.reduce > 1) return "reduce must be 0 or 1";
  const auto beyond = [&](std::uint8_t buffer, std::int32_t chunk) {
    const bool scratch = Buffer{buffer} == Buffer::scratch;
    return chunk < 0 || static_cast<std::int64_t>(chunk) + t.count > (scratch ? scratch_limit : chunks);
  };
  if (beyond(t.src_buffer, t.src_chunk) || beyond(t.dst_buffer, t.dst_chunk))
    return "chunks must be in 0.." + std::to_string(chunks - 1) + " (scratch: below " + std::to_string(scratch_limit) +
           ": number them from 0 without large gaps)";
  if (t.src_rank == t.dst_rank && t.src_buffer == t.dst_buffer && t.src_chunk == t.dst_chunk)
    return "source and destination are the same chunk";
  return {};
}

// Checks every row; finds the buffers in use and the scratch chunks of each rank.
void survey(const Transfer* table, std::size_t rows, Rank n, std::int32_t chunks, bool (&used)[kBufferCount],
            std::vector<std::int32_t>& scratch) {
  // Scratch is as large as the greatest number used: bounded by what the whole table moves, gaps allowed for.
  std::int64_t scratch_limit = 4096;
  for (std::size_t i = 0; i < rows; ++i) scratch_limit += std::max<std::int64_t>(table[i].count, 0);
  for (std::size_t i = 0; i < rows; ++i) {
    const Transfer& t = table[i];
    const std::string why = fault(t, n, chunks, scratch_limit);
    if (!why.empty()) throw Error(ErrorKind::invalid, transfer_text(i, t) + ": " + why);
    used[t.src_buffer] = used[t.dst_buffer] = true;
    if (Buffer{t.src_buffer} == Buffer::scratch)
      scratch[t.src_rank] = std::max<std::int32_t>(scratch[t.src_rank], t.src_chunk + t.count);
    if (Buffer{t.dst_buffer} == Buffer::scratch)
      scratch[t.dst_rank] = std::max<std::int32_t>(scratch[t.dst_rank], t.dst_chunk + t.count);
  }
}

std::vector<std::uint32_t> by_step(const Transfer* table, std::size_t rows) {
  std::vector<std::uint32_t> order(rows);
  std::iota(order.begin(), order.end(), 0u);
  const auto earlier = [&](std::uint32_t a, std::uint32_t b) { return table[a].step < table[b].step; };
  if (!std::is_sorted(order.begin(), order.end(), earlier)) std::stable_sort(order.begin(), order.end(), earlier);
  return order;
}

RankLayout layout(const Memory& memory, const CollectiveState& state, Rank rank) {
  RankLayout out;
  for (int b = 0; b < 3; ++b) {
    const auto buffer = static_cast<Buffer>(b);
    if (!memory.has(buffer)) continue;
    for (std::int32_t chunk = 0; chunk < state.chunks; ++chunk) {
      const Location& location = memory[memory.id(rank, buffer, chunk)];
      out.reach[b].push_back(location.snapshot ? Reach::snapshot : location.remote ? Reach::shared : Reach::private_);
      out.written[b].push_back(location.written);
      const bool kept = !location.written && state.valid_at_start(rank, buffer, chunk) &&
                        state.required_at_end(rank, buffer, chunk);
      out.loaded[b].push_back(location.loaded || kept);
    }
  }
  out.scratch_chunks = static_cast<std::int32_t>(memory.scratch(rank).size());
  for (std::int32_t chunk = 0; chunk < out.scratch_chunks; ++chunk)
    out.scratch_class.push_back(std::max(0, memory.chunk_class({rank, Buffer::scratch, chunk})));
  return out;
}

// Waits on the latest of the collected events per rank, less those the rank's own program has passed by its end.
class FinalWaits {
 public:
  FinalWaits(const Builder& builder, Rank n) : builder_(builder), count_(static_cast<std::size_t>(n), 0) {}
  void add(Rank owner, Event event) {
    if (event.rank == owner || event.rank == kNobody) return;  // the rank finishes its own program anyway
    if (count_[event.rank] == 0) touched_.push_back(event.rank);
    count_[event.rank] = std::max(count_[event.rank], event.code);
  }
  std::vector<Wait> take(Rank owner) {
    std::vector<Wait> waits;
    std::sort(touched_.begin(), touched_.end());
    for (const Rank rank : touched_) {
      if (!builder_.passed_at_end(owner, {rank, count_[rank]})) waits.push_back({rank, count_[rank]});
      count_[rank] = 0;
    }
    touched_.clear();
    return waits;
  }

 private:
  const Builder& builder_;
  std::vector<std::uint32_t> count_;
  std::vector<Rank> touched_;
};

// Peers touch a rank's memory by in-order instructions only: network instructions touch their own rank's.
void final_waits(const Memory& memory, const Builder& builder, const Emitter& emitter, const CollectiveState& state,
                 std::vector<std::vector<Wait>>& out_waits, std::vector<std::vector<Wait>>& free_waits) {
  FinalWaits out(builder, state.n), free(builder, state.n);
  const auto visit = [&](Rank rank, LocId id, bool result) {
    const Location& location = memory[id];
    if (result) out.add(rank, location.writer);
    free.add(rank, location.writer);
    memory.each_reader(location, [&](Event event) { free.add(rank, event); });
  };
  for (Rank rank = 0; rank < state.n; ++rank) {
    for (const Buffer buffer : {Buffer::data, Buffer::input, Buffer::output})
      for (std::int32_t chunk = 0; memory.has(buffer) && chunk < state.chunks; ++chunk)
        visit(rank, memory.id(rank, buffer, chunk), buffer != Buffer::input);
    for (const LocId id : memory.scratch(rank)) visit(rank, id, false);
    for (const Event event : emitter.snapshot_reads()[rank]) free.add(rank, event);
    out_waits.push_back(out.take(rank));
    free_waits.push_back(free.take(rank));
  }
}

}  // namespace

LoweredPtr lower(const Transfer* table, std::size_t transfers, Collective collective, Rank n, Rank root,
                 std::int32_t chunks, std::vector<std::int32_t> node, const LowerOptions& options) {
  const std::int32_t blocks = block_count(collective, n);
  check_arguments(n, root, chunks, blocks, node.size());
  const CollectiveState state{collective, n, root, chunks, chunks / blocks};
  bool used[kBufferCount] = {false, false, false, false};
  std::vector<std::int32_t> scratch(static_cast<std::size_t>(n), 0);
  survey(table, transfers, n, chunks, used, scratch);

  Memory memory(state, used, scratch);
  Builder builder(memory, n, node);
  const std::vector<std::uint32_t> order = by_step(table, transfers);
  Steps steps(state, memory, builder, table, order, options.push);
  std::optional<WireMarks> wire;
  if (options.wire) wire.emplace(state, memory);
  Emitter emitter(state, memory, builder, table, wire ? &*wire : nullptr);
  Large<Move> first, then;
  for (std::size_t at = 0; at < order.size();) {
    at = steps.moves(at, first, then);
    emitter.emit(first);
    emitter.emit(then);
  }

  auto lowered = std::make_shared<Lowered>();
  lowered->collective = collective;
  lowered->n = n;
  lowered->root = root;
  lowered->chunks = chunks;
  lowered->blocks = blocks;
  std::vector<std::vector<Wait>> out_waits, free_waits;
  final_waits(memory, builder, emitter, state, out_waits, free_waits);
  lowered->programs = builder.take();
  for (Rank rank = 0; rank < n; ++rank) {
    lowered->programs[rank].out_waits = std::move(out_waits[rank]);
    lowered->programs[rank].free_waits = std::move(free_waits[rank]);
    lowered->layouts.push_back(layout(memory, state, rank));
  }
  lowered->node = std::move(node);
  lowered->wire = options.wire;
  if (wire) wire->apply(memory, lowered->programs, lowered->layouts);
  return lowered;
}

}  // namespace ringleader
