// The parts of check(): form (check_form.cpp), order (check_order.cpp), values (check_values.cpp) and the replay that
// drives the last two (check_replay.cpp). Inside check only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/lower_memory.hpp"

namespace ringleader::checking {

using lowering::Event;
using lowering::kNetwork;
using lowering::kNobody;
using lowering::LocId;
using lowering::Memory;

// Collects violations; after `limit` only their number grows.
class Report {
 public:
  explicit Report(std::vector<std::string>& out) : out_(out) {}
  void add(std::string text);
  bool full() const { return count_ > kLimit; }
  std::uint64_t count() const { return count_; }

 private:
  static constexpr std::uint64_t kLimit = 20;
  std::vector<std::string>& out_;
  std::uint64_t count_ = 0;
};

// A message: the k-th send and the k-th receive on one (source, destination, channel).
struct Message {
  Rank src, dst;
  std::uint32_t send, recv;  // indices in the two programs
  std::int32_t next;         // the message after it on the same link, -1 = last
};

// What follows from the programs alone.
struct Facts {
  explicit Facts(const Lowered& lowered);
  const Lowered& lowered;
  CollectiveState state;
  std::vector<std::size_t> base;                     // rank's instruction i has global number base[rank] + i
  std::vector<std::vector<std::uint32_t>> in_order;  // per rank: the in-order instructions
  std::vector<std::uint32_t> count;  // per global number: the count an in-order instruction completes with, else 0
  std::vector<Message> messages;
  std::vector<std::int32_t> first;  // messages that are first on their links
  std::size_t total = 0;            // instructions

  std::size_t number(Rank rank, std::uint32_t index) const { return base[rank] + index; }
  const Instr& instr(Rank rank, std::uint32_t index) const { return lowered.programs[rank].instrs[index]; }
  std::string text(Rank rank, std::uint32_t index) const;
};

// Every reference in range, every operand reachable, both ends of every message alike. False if the rest of the check
// could not even run.
bool check_form(const Lowered& lowered, Report& report);
// Do two operands mean the same number of chunks with the same sizes?
bool same_sizes(const Lowered& lowered, const Operand& a, const Operand& b);
// Matches sends and receives; reports links on which they differ.
void match_messages(Facts& facts, Report& report);

// Is one access ordered before another by program order, dependencies and waits, whatever the interleaving?
class Order {
 public:
  explicit Order(const Facts& facts);

  // The replay tells which in-order instruction of the rank runs now, so that what it has waited for is at hand.
  void advance(Rank rank, const Instr& instr);

  bool before(Event event, Rank rank, std::uint32_t index);  // ... an instruction (the in-order one running now)
  bool before_end(Event event, Rank rank, const std::vector<Wait>& first, const std::vector<Wait>* second);

 private:
  struct Passed {  // the rank had waited for `peer` to reach `count` when it completed with `at`
    Rank peer;
    std::uint32_t at, count;
  };
  // Where an instruction's past begins: own in-order instructions, own network instructions, waits.
  struct Past {
    Rank rank;
    std::uint32_t own = 0;
    std::vector<std::uint32_t> network;
    std::vector<Wait> waits;
  };

  void find_joined();
  Past past_of(Rank rank, std::uint32_t index) const;
  bool search(Event event, const Past& past);
  const std::vector<Passed>& index(Rank rank);
  std::uint32_t known(Rank rank, Rank peer) const { return known_[rank][local_[peer]]; }

  const Facts& facts_;
  std::vector<std::int32_t> local_;
  std::vector<std::vector<std::uint32_t>> known_;  // per rank and peer of its node: greatest count waited for so far
  std::vector<std::uint32_t> joined_;  // per network instruction: the first in-order count that depends on it, 0 = none
  std::vector<std::unique_ptr<std::vector<Passed>>> index_;  // per rank, by (peer, at); made when needed
  std::vector<std::uint32_t> best_;                          // search: per rank, in-order instructions in the past
};

// What every location holds: a sum of random contributions in the field of 2^61 - 1 elements (right content, each
// contribution once), a hash of the expression tree that made it (identical association and rounding), and the number
// of contributions. For barrier, the set of ranks.
class Values {
 public:
  Values(const Facts& facts, const Memory& memory, std::uint64_t seed);

  struct Value {
    std::uint64_t sum = 0, tree = 0;
    std::int32_t contributions = 0;  // 0 = holds nothing
    bool rounded = false;            // to the wire format; part of the tree
  };
  Value initial(Rank rank, Buffer buffer, std::int32_t chunk) const;
  const Value& at(LocId id) const { return values_[id]; }
  // Folds src into the accumulator; the first operand is copied.
  void begin() { empty_ = true; }
  void fold(const Value& value, LocId id, bool from_initial, Rank owner);
  void store(LocId id);
  // Rounding twice is rounding once.
  static void round(Value& value);
  void round() { round(accumulator_); }
  const Value& accumulator() const { return accumulator_; }
  // Whether the accumulator holds every rank's contribution once. Looks through all chunks.
  bool complete() const { return std::find(totals_.begin(), totals_.end(), accumulator_.sum) != totals_.end(); }
  void check_final(const Memory& memory, Report& report) const;

 private:
  Value expected(Rank rank, Buffer buffer, std::int32_t chunk) const;
  void check_sets(const Memory& memory, Report& report) const;

  const Facts& facts_;
  std::uint64_t seed_;
  lowering::Large<Value> values_;
  std::vector<std::uint64_t> totals_;  // per chunk: the sum of all contributions
  std::size_t words_ = 0;              // barrier: words per set
  std::vector<std::uint64_t> sets_, set_;
  Value accumulator_;
  bool empty_ = true;
};

// Runs all programs together in a random order that the waits, dependencies and links allow.
void replay(const Facts& facts, std::uint64_t seed, Report& report);

std::uint64_t mix(std::uint64_t value);

}  // namespace ringleader::checking
