// A Plan is a lowered schedule bound to a collective's count, type and operation on one rank: operands become places
// (which memory, at which offset), so that running needs only the call's two pointers and the window number.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/types.hpp"
#include "core/program.hpp"
#include "reduce/reduce.hpp"
#include "transport/link.hpp"
#include "wire/wire.hpp"

namespace ringleader {

struct PlanRequest {
  LoweredPtr lowered;
  Rank rank = 0;
  std::uint64_t count = 0;  // elements of the vector, or per block
  DType dtype = DType::bytes;
  ReduceOp op = ReduceOp::none;
  double factor = 1;
  WireFormat wire = WireFormat::f32;   // of network messages; the schedule must be lowered for it (LowerOptions::wire)
  std::uint64_t slot_bytes = 0;        // capacity of a large staging slot
  std::uint64_t small_slot_bytes = 0;  // capacity of a small one
  std::uint64_t inline_bytes = 0;      // most that a rank may show through its mailbox; 0 = never
  std::size_t connections = 1;         // data connections to each network peer; channels share them in turn
  OpInfo info;                         // everything but the sequence number
};

// The network instructions of one connection, in posting order.
struct BoundLink {
  Rank peer;
  std::size_t connection;
  std::vector<std::uint32_t> sends, receives;
};

// Where one chunk of one rank lies, before the call's pointers are known. Offsets are in bytes.
struct Place {
  enum class Kind : std::uint8_t {
    user_in,   // own user memory, read only: in_ptr + user
    user_out,  // own user memory: out_ptr + user
    slot,      // `rank`'s staging slot, position `position`
    shared,    // `rank`'s user memory if it is registered for this call, else as slot
  };
  Kind kind;
  std::uint8_t buffer;  // for shared: which of data, input, output
  Rank rank;
  std::uint32_t position;  // index of the staged chunk in the slot
  std::int64_t user;       // offset from the pointer (user_in, user_out) or from the registered base (shared)
  std::uint64_t bytes;     // of the whole chunk
};

// One chunk's share of an instruction.
struct PieceRefs {
  std::uint32_t dst_first, src_first;  // into Plan::places; dst_n and src_n are the instruction's
};

struct FoldContext {
  FoldSpec spec;
  std::size_t item;
  bool incoming_first;
  std::uint8_t dst_raw, incoming_raw;
};

struct BoundInstr {
  Op op;
  bool plain_copy;  // one source whose bytes are moved unchanged
  bool round;       // the result is rounded to the wire format
  std::int16_t channel;
  Rank peer;
  std::uint32_t dst_n, src_n, piece_first, piece_n;
  std::uint32_t raw_first;                             // into Plan::raw, src_n entries
  std::uint32_t wait_first, wait_n, dep_first, dep_n;  // into the RankProgram's pools
  FoldContext fold;
};

// Copies between user memory and the own slot, or from input to output, one chunk each.
struct StageCopy {
  Place from, to;
  bool round;  // to the wire format
};

class Communicator;
class Plan;

// A slice of an operation that another communicator runs at the same time, on its own thread. Bytes count from the
// operation's pointers.
struct Slice {
  std::shared_ptr<Communicator> communicator;
  std::shared_ptr<const Plan> plan;
  std::uint64_t offset;
};

class Plan {
 public:
  // Throws Error(invalid).
  explicit Plan(const PlanRequest& request);

  const RankProgram& program() const { return lowered_->programs[static_cast<std::size_t>(rank_)]; }
  const LoweredPtr& lowered() const { return lowered_; }

  Rank rank_ = 0;
  LoweredPtr lowered_;
  OpInfo info;
  DType dtype = DType::bytes;
  ReduceOp op = ReduceOp::none;
  double factor = 1;
  WireFormat wire = WireFormat::f32;
  std::uint64_t nbytes = 0;                   // of the larger of this rank's input and output
  std::uint64_t in_bytes = 0, out_bytes = 0;  // extents behind in_ptr and out_ptr on this rank; 0 = not used
  std::uint64_t segment_bytes = 0;            // of one chunk per window
  std::uint64_t stride = 0;                   // distance of positions in a slot
  std::uint32_t windows = 1;
  bool large_slot = false;
  bool uses_slot = false;  // this rank has staged chunks
  bool blind = false;      // this rank waits for nobody of its node, and so looks at nobody's entry
  // The inline protocol (execution_inline.cpp): what peers read lies in mailboxes instead of slots or registered
  // memory.
  bool inlined = false;
  std::uint32_t inline_offset = 0;   // of the staged chunks in a mailbox
  std::uint64_t inline_readers = 0;  // ranks that read this one's mailbox, a bit each
  std::uint64_t info_hash = 0;       // of `info`, without a sequence number

  std::vector<BoundInstr> instrs;
  std::vector<std::uint32_t> in_order;  // indices of in-order instructions
  std::vector<std::uint32_t> network;   // indices of network instructions
  std::vector<BoundLink> links;
  std::vector<Place> places;
  std::vector<PieceRefs> pieces;
  std::vector<std::uint8_t> raw;
  std::vector<StageCopy> load;     // at a window's start: user memory -> slot (skipped for `shared` when registered)
  std::vector<StageCopy> store;    // at a window's end: slot -> user memory (likewise)
  std::vector<StageCopy> through;  // input -> output user memory, when they differ
  // Per buffer (data, input, output): whether its shared chunks could be reached in user memory, and through which
  // pointer; base = pointer + base_delta is what chunk offsets count from.
  struct Registrable {
    bool possible = false;
    bool via_out = false;
    std::int64_t base_delta = 0;
    std::int64_t low = 0, high = 0;  // extent of the shared chunks relative to the pointer
  };
  std::array<Registrable, 3> registrable;

  // What runs beside it: the operation is complete when all slices are. Its own share is the first slice.
  std::vector<Slice> beside;

 private:
  friend class PlanBuilder;
};

}  // namespace ringleader
