// Turns the moves of one sub-step into instructions: groups them by destination, orders and merges them, fuses
// several sources and several destinations, and records what they did to memory. Inside lower only.
#pragma once

#include <cstdint>
#include <vector>

#include "core/lower_builder.hpp"
#include "core/lower_wire.hpp"

namespace ringleader::lowering {

// One chunk of one transfer.
struct Move {
  std::uint32_t transfer;  // row of the table, for messages
  Place src, dst;
  LocId src_id, dst_id;
  Rank executor;  // kNobody: over the network, a send at src.rank and a receive at dst.rank
  std::int16_t channel;
  bool reduce;
  bool initial;  // reads the initial copy of a snapshot chunk
};

class Emitter {
 public:
  // `wire`: told of every instruction; null if messages are sent as they are.
  Emitter(const CollectiveState& state, Memory& memory, Builder& builder, const Transfer* table, WireMarks* wire)
      : state_(state), memory_(memory), builder_(builder), table_(table), wire_(wire), snapshot_reads_(state.n) {}

  // All moves read the state before the sub-step; none of them reads what another one writes.
  void emit(const Large<Move>& moves);

  // Per owner: in-order instructions of peers that read the initial copies of its snapshot chunks.
  const std::vector<std::vector<Event>>& snapshot_reads() const { return snapshot_reads_; }

 private:
  struct Source {
    Place place;
    std::uint32_t transfer;
    std::int16_t channel;
    bool own;      // the destination's own content
    bool network;  // arrives as a message
    bool initial;
    bool raw;  // one untouched contribution
  };
  // An instruction (or, with network sources, a few) in the making; covers `count` consecutive chunks.
  struct Draft {
    Rank executor = kNobody;  // for drafts with network sources: the destination's rank
    bool network = false;
    bool final = false;
    std::int32_t count = 0;  // 0 = none
    Place dst{};
    std::vector<Source> sources;  // in contribution order
  };
  struct Group {
    std::uint64_t order, then;
    std::uint32_t first, n;
    bool network;
  };

  void make_groups(const Large<Move>& moves);
  void sort_sources(const Large<Move>& moves, std::uint32_t first, std::uint32_t n);
  std::pair<std::int32_t, Rank> contributions(LocId id, bool initial, Rank owner) const;
  void draft(const Large<Move>& moves, const Group& group, Draft& out);
  void settle_class(const Move& move);
  void place_own(Draft& out, Rank own_lowest, const Large<Move>& moves, const Group& group);

  static bool extends(const Draft& open, const Draft& next);
  static bool same_transfers(const Draft& open, const Draft& next);
  void offer(Draft& next);
  void close();

  template <class Visit>
  void each_conflict(const Draft& draft, std::int32_t i, Visit&& visit) const;
  bool same_conflicts(const Draft& open, const Draft& next) const;

  void emit_in_order(const Draft& draft, const Needs& needs);
  void emit_in_order(const Draft& draft);
  bool fuse(const Draft& draft);
  bool fits(const Draft& draft, Event producer) const;
  void emit_network(const Draft& draft);
  std::size_t emit_prefix(Draft& draft);
  void emit_message(const Source& source, Place dst, std::int32_t count, std::uint8_t flags, bool reduce);
  void record(const Draft& draft, Event event);
  void tell_wire(const Draft& draft, std::int32_t i, Event event);
  void record_write(LocId id, Rank owner, Event event, std::int32_t contributions, Rank lowest);
  LocId id(Place place, std::int32_t i) const { return memory_.id(place.rank, place.buffer, place.chunk + i); }
  [[noreturn]] void refuse(std::uint32_t transfer, const std::string& why) const;

  const CollectiveState& state_;
  Memory& memory_;
  Builder& builder_;
  const Transfer* table_;
  WireMarks* wire_;
  std::vector<WireMarks::Source> wire_sources_;
  std::vector<std::vector<Event>> snapshot_reads_;

  // reused between sub-steps
  Large<std::uint64_t> keys_;    // destination << 32 | move
  Large<std::uint32_t> sorted_;  // moves by destination, sources of a group in contribution order
  Large<Group> groups_;
  Draft open_, next_;
  Needs needs_, send_needs_, recv_needs_;
};

}  // namespace ringleader::lowering
