// Where values are rounded to a wire format, so that all ranks end with the same bits. Inside lower only.
//
// A *version* is what a location holds between two writes; an *expression* is how a value came about (whose
// contributions were combined in which order). What arrives over the network is rounded; so wherever an expression is
// sent at all, every version of it must be rounded before anything but a network send uses it, on every rank: then what
// a value is depends on its expression alone, and equal expressions, which the schedule guarantees, give equal bits. A
// version is rounded where it originates (the fold that makes it, or the start of the window if it is initial content),
// never later: no reader can come too early. Versions that are only sent need no rounding of their own: sending encodes
// them.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "core/lower_memory.hpp"

namespace ringleader::lowering {

class WireMarks {
 public:
  WireMarks(const CollectiveState& state, const Memory& memory);

  // What an instruction does, one chunk at a time, told in the order of emission (LocId of a source; initial: its
  // snapshot).
  struct Source {
    LocId id;
    bool initial;
  };
  void copy(Source from, LocId to);
  void fold(const std::vector<Source>& sources, LocId to, Event by);
  void message(LocId from, LocId to);
  void message_fold(LocId from, LocId to, bool incoming_first, Event by);

  // Sets kRound on the folds, and `rounded` in the layouts, whose results are to be rounded. Throws Error(invalid) for
  // a schedule in which some rank combines in one go what another one sends in between.
  void apply(const Memory& memory, std::vector<RankProgram>& programs, std::vector<RankLayout>& layouts);

 private:
  struct Version {
    std::uint32_t expression;
    Event origin;  // the fold; rank kNobody: initial content, or received
    bool initial;
    bool used;  // by anything but a send, or a result
  };
  std::uint32_t expression(std::uint64_t hash);
  std::uint32_t combine(std::uint32_t left, std::uint32_t right);
  std::uint32_t version_of(Source source);
  std::uint32_t& at(LocId id);
  void use_results(const Memory& memory);
  bool spread();

  CollectiveState state_;
  std::unordered_map<std::uint64_t, std::uint32_t> by_hash_;
  std::vector<std::uint64_t> hash_;     // per expression
  std::vector<std::uint8_t> rounded_;   // per expression: sent, or rounded with another one
  std::vector<Version> versions_;       // the initial ones first, by location
  std::vector<std::uint32_t> current_;  // per location
  std::vector<std::uint32_t> inner_;    // expressions that exist only within a fold of several sources
  std::unordered_map<std::uint64_t, std::uint8_t> marked_;  // folds (rank, code) that round
};

}  // namespace ringleader::lowering
