// A Program is one rank's share of a schedule, lowered: what the engine runs. See docs/architecture.md,
// "The lowered program". Programs are count- and dtype-independent: operands name chunks, and a Plan turns
// chunks into addresses.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/types.hpp"

namespace ringleader {

enum class Buffer : std::uint8_t { data = 0, input = 1, output = 2, scratch = 3 };
inline constexpr int kBufferCount = 4;

// One row of a schedule's table; layout equals the NumPy structured dtype ringleader.schedule.TRANSFER_DTYPE.
#pragma pack(push, 1)
struct Transfer {
  std::int32_t step;
  std::int32_t src_rank;
  std::int32_t src_chunk;
  std::int32_t dst_rank;
  std::int32_t dst_chunk;
  std::int32_t count;  // contiguous chunks
  std::int16_t channel;
  std::uint8_t src_buffer;  // Buffer
  std::uint8_t dst_buffer;  // Buffer
  std::uint8_t reduce;      // 0 copy, 1 reduce into the destination
};
#pragma pack(pop)
static_assert(sizeof(Transfer) == 29);

// How a chunk of one rank's data/input/output buffer is reached (scratch is always Slot memory).
enum class Reach : std::uint8_t {
  // Only its owner touches it: user memory.
  private_ = 0,
  // Peers read its initial content only, and its owner overwrites it: peers read a copy in the slot, the owner works
  // in user memory; the two never conflict.
  snapshot = 1,
  // Peers read or write it: user memory if that is registered on its owner, else the slot.
  shared = 2,
};

enum class Op : std::uint8_t {
  reduce = 0,       // dsts = fold(srcs); one source is a copy; zero operands is a publication (NOP). In order.
  send = 1,         // network: src -> peer
  recv = 2,         // network: peer -> dst
  recv_reduce = 3,  // network: dst = fold(dst, incoming), see kIncomingFirst
};

// Instruction flags.
inline constexpr std::uint8_t kFinal = 1;          // the result holds all n contributions: AVG scales here
inline constexpr std::uint8_t kIncomingFirst = 2;  // recv_reduce: incoming op dst instead of dst op incoming
inline constexpr std::uint8_t kDstRaw = 4;         // recv_reduce: dst holds one untouched contribution (PREMUL_SUM)
inline constexpr std::uint8_t kIncomingRaw = 8;    // recv_reduce: so does what arrives
inline constexpr std::uint8_t kRound = 16;         // the result is rounded to the wire format (lower_wire.hpp)

struct Operand {
  Rank rank;
  Buffer buffer;
  std::uint8_t raw;      // source holds exactly one rank's untouched contribution: PREMUL_SUM scales it on reading
  std::uint8_t initial;  // read the initial version (Reach::snapshot chunks of other ranks)
  std::int32_t chunk;
  std::int32_t count;
};

struct Wait {
  Rank rank;            // a peer on the same node
  std::uint32_t count;  // its progress counter must have reached this within the current window; 1 = entered
};

struct Instr {
  Op op;
  std::uint8_t flags;
  std::int16_t channel;
  Rank peer;  // network instructions; -1 otherwise
  // [first, first + n) into the RankProgram's pools
  std::uint32_t dst_first, dst_n, src_first, src_n, wait_first, wait_n, dep_first, dep_n;
};

struct RankProgram {
  // In-order instructions (Op::reduce) run in array order; each one's completion raises the progress counter by one
  // (which starts at 1 = entered). Network instructions complete out of order, but per (peer, channel) sends and
  // receives are posted in array order.
  std::vector<Instr> instrs;
  std::vector<Operand> operands;
  std::vector<Wait> waits;
  std::vector<std::uint32_t> deps;  // indices of instructions of this program
  std::vector<Wait> out_waits;      // before own shared chunks may be read out: their last remote writers
  std::vector<Wait> free_waits;     // before own memory may be reused: its last remote readers and writers
};

// Classes of every rank's chunks; all ranks hold all of them, because addresses in a peer's slot follow from them.
struct RankLayout {
  std::vector<Reach> reach[3];           // data, input, output: one entry per chunk (empty if the buffer is unused)
  std::vector<std::uint8_t> written[3];  // 1 if the program writes the chunk (anyone)
  std::vector<std::uint8_t>
      loaded[3];  // 1 if the chunk's initial content is valid and anyone reads it, or it is final as it is
  // 1 if the initial content is rounded to the wire format when the window starts (then it counts as written).
  std::vector<std::uint8_t> rounded[3];  // empty where LowerOptions::wire is off
  std::int32_t scratch_chunks = 0;
  std::vector<std::int32_t> scratch_class;  // index within its block of the chunk whose size each scratch chunk has
};

struct Lowered {
  Collective collective;
  Rank n;
  Rank root;
  std::int32_t chunks;                // C, chunks of `data` (and of input/output for all_to_all)
  std::int32_t blocks;                // B: 1, or n for collectives over n blocks; chunks per block = C / B
  std::vector<std::int32_t> node;     // node of each rank; equal = shared memory, different = network
  std::vector<RankProgram> programs;  // one per rank
  std::vector<RankLayout> layouts;    // one per rank
  bool wire = false;                  // LowerOptions::wire
};
using LoweredPtr = std::shared_ptr<const Lowered>;

struct LowerOptions {
  bool push = true;   // copies between ranks of a node are done by the source (push) or the destination (pull)
  bool wire = false;  // network messages have a wire format: mark what must be rounded
};

// Throws Error(invalid) naming the transfer if the table cannot be lowered.
LoweredPtr lower(const Transfer* table, std::size_t transfers, Collective collective, Rank n, Rank root,
                 std::int32_t chunks, std::vector<std::int32_t> node, const LowerOptions& options);

// Proofs on the lowered form (schedule/verify calls them): replays all programs; reports violations as text.
struct CheckReport {
  std::vector<std::string> violations;  // empty = proved
  std::uint64_t instructions = 0;
  std::uint64_t waits = 0;
};
CheckReport check(const Lowered& lowered, std::uint64_t seed);

}  // namespace ringleader
