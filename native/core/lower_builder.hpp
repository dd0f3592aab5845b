// Builds the programs of all ranks instruction by instruction, and finds out what each must wait for. Inside lower
// only.
//
// Invariant: instructions are appended in one global order in which everything an instruction needs comes before it,
// so the earliest unfinished instruction can always run: no deadlock, whatever the interleaving.
#pragma once

#include <cstdint>
#include <vector>

#include "core/lower_memory.hpp"

namespace ringleader::lowering {

// What an instruction about to be appended needs; collected chunk by chunk.
struct Needs {
  Rank executor = kNobody;
  bool in_order = true;
  std::vector<std::uint32_t> count;  // per rank: its counter must have reached this; 0 = nothing
  std::vector<Rank> touched;         // ranks with count > 0
  std::vector<Event> published;      // other ranks' network instructions, to be waited for through a publication
  std::vector<std::uint32_t> deps;   // own network instructions
  std::uint32_t own = 0;             // network instructions: own in-order instructions up to this count
};

class Builder {
 public:
  Builder(Memory& memory, Rank n, const std::vector<std::int32_t>& node);

  bool same_node(Rank a, Rank b) const { return node_[a] == node_[b]; }

  // Starts collecting for an instruction of this executor.
  void begin(Needs& needs, Rank executor, bool in_order) const;
  // Is the event before any instruction with these needs (or before what the executor has already waited for)?
  bool implied(const Needs& needs, Event event) const;
  void add(Needs& needs, Event event) const;

  // Visits the events that an access by `executor` conflicts with. The event {owner, 1} is "the owner has entered".
  template <class Visit>
  void each_read_conflict(Rank executor, Rank owner, LocId id, bool initial, Visit&& visit) const {
    if (owner != executor) visit(Event{owner, 1});
    const Location& location = memory_[id];
    if (!initial && location.writer.rank != kNobody) visit(location.writer);
  }
  template <class Visit>
  void each_write_conflict(Rank executor, Rank owner, LocId id, Visit&& visit) const {
    each_read_conflict(executor, owner, id, false, visit);
    memory_.each_reader(memory_[id], visit);
  }

  // Appends an instruction without operands yet; resolves the needs. Returns its event; operands follow by `operand`.
  Event append(Op op, std::uint8_t flags, std::int16_t channel, Rank peer, const Needs& needs);
  // Operands of the instruction appended last on that rank: all destinations first, then all sources.
  void add_dst(Rank executor, const Operand& operand);
  void add_src(Rank executor, const Operand& operand);

  // Multi-destination fusion: makes `dst` one more destination of the in-order instruction `event`.
  void add_fused(Event event, const Operand& dst) { ranks_[event.rank].fused.push_back({index(event), dst}); }
  // The instruction behind an in-order event, and its pools.
  const Instr& instr(Event event) const { return ranks_[event.rank].program.instrs[index(event)]; }
  const RankProgram& program(Rank rank) const { return ranks_[rank].program; }
  // Had the executor of the in-order instruction `at` passed `event` when that instruction ran?
  bool passed(Event at, Event event) const;
  // Would waiting for this event be redundant at the end of the rank's program?
  bool passed_at_end(Rank rank, Event event) const;

  // Moves the finished programs out.
  std::vector<RankProgram> take();

 private:
  struct Known {              // waits of an executor on one peer: the last two, with the count of the instruction
    std::uint32_t count = 0;  // that carries them (a wait holds from that instruction on)
    std::uint32_t at = 0;
    std::uint32_t earlier_count = 0;
    std::uint32_t earlier_at = 0;
  };
  struct Fused {
    std::uint32_t instr;
    Operand dst;
  };
  struct RankState {
    RankProgram program;
    std::vector<std::uint32_t> in_order;  // index of the in-order instruction that completes with count k + 2
    std::vector<std::uint32_t> joined;    // per instruction: count of the first in-order instruction that depends on it
    std::vector<Known> known;             // per rank of the node
    std::vector<Fused> fused;
  };

  std::uint32_t index(Event event) const {
    return event.code & kNetwork ? event.code & ~kNetwork : ranks_[event.rank].in_order[event.code - 2];
  }
  const Known& known(Rank executor, Rank peer) const { return ranks_[executor].known[local_[peer]]; }
  std::uint32_t known_at(Rank executor, Rank peer, std::uint32_t count) const;
  // The count with which network instruction `event` is visible to other ranks; appends a publication where needed.
  std::uint32_t publish(Event event);
  void append_waits(RankState& state, const Needs& needs, std::uint32_t count);
  void append_deps(RankState& state, const Needs& needs, std::uint32_t count);
  static void merge_fused(RankState& state);

  Memory& memory_;
  std::vector<std::int32_t> node_;
  std::vector<std::int32_t> local_;  // index of each rank within its node
  std::vector<RankState> ranks_;
};

}  // namespace ringleader::lowering
