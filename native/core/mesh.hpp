// What one rank of a communicator holds of the others: mapped memory, network links, and the shared block it shows
// them.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/plan.hpp"
#include "memory/peer.hpp"
#include "transport/link.hpp"
#include "transport/shm/control.hpp"

namespace ringleader {

// The inline protocol's staging slot: what a rank shows to its peers in one window, with the flag that says so. The
// first line holds the flag and, if it fits, the whole payload: then a reader misses one cache line per peer, and a
// writer fills one. Two per rank, used in turn. All zero is the valid initial state.
struct alignas(64) Mailbox {
  static constexpr std::size_t kHeader = 16;         // a payload of up to 64 - kHeader bytes follows it at once
  static constexpr std::size_t kPayload = 16 << 10;  // else it begins in the next line
  std::atomic<std::uint64_t> window;                 // the window the rest belongs to; written last
  std::atomic<std::uint64_t> fingerprint;
  std::byte payload[64 - kHeader + kPayload];
};

enum SlotClass : std::size_t { kSmallSlot = 0, kLargeSlot = 1 };

// A rank's memory that all ranks of its node see. Followed by three arrays: by rank, arena offsets of the rings this
// rank writes to each peer (0 = not made yet); a bit per rank that this one waited for when it last looked around
// (ControlBlock::beats); and by rank, how far each peer has left (`Left`), which the peer writes. Peers could write all
// of it: a rank keeps what it needs to know of its own block elsewhere.
struct SharedBlock {
  ControlBlock control;
  alignas(64)
      std::atomic<std::uint64_t> slot_offset[2];  // arena offset of the pair of slots of each class; 0 = not made yet
  std::atomic<std::uint64_t> slot_bytes[2];       // of one slot of the pair
  std::atomic<std::uint64_t> ring_bytes;          // capacity of the rings this rank writes
  Mailbox mailbox[2];                             // by window % 2
  std::atomic<std::uint64_t>* rings() { return reinterpret_cast<std::atomic<std::uint64_t>*>(this + 1); }
  std::atomic<std::uint64_t>* awaited(Rank size) { return rings() + size; }
  static std::size_t awaited_words(Rank size) { return (static_cast<std::size_t>(size) + 63) / 64; }
  std::atomic<std::uint32_t>* left(Rank size) {
    return reinterpret_cast<std::atomic<std::uint32_t>*>(awaited(size) + awaited_words(size));
  }
  static std::size_t bytes(Rank size) {
    return sizeof(SharedBlock) + 12 * static_cast<std::size_t>(size) + 8 * awaited_words(size);
  }
};

// Counters of one communicator. Written by whoever runs an operation (one thread at a time), read by anybody.
struct Counters {
  using Counter = std::atomic<std::uint64_t>;
  Counter operations{0}, windows{0}, sleeps{0}, bytes_staged_in{0}, bytes_staged_out{0}, bytes_written_peer{0},
      bytes_read_peer{0};
  static void add(Counter& counter, std::uint64_t amount) {
    counter.store(counter.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
  }
};

// Of a peer of the same node: time in which this rank did nothing but wait while the peer had not come, in how many
// windows that was so, and the longest in one. Counted only beyond spinning: in waits that cost a look at the clock
// anyway.
struct Lateness {
  Counters::Counter ns{0}, windows{0}, longest_ns{0};
  std::uint64_t window = 0, in_window = 0;  // the last one
  bool missing = false;                     // at the last look
};

struct Mesh {
  struct Peer {
    std::string name;                      // for messages
    std::shared_ptr<PeerProcess> process;  // same node only (own rank: this process)
    SharedBlock* shared = nullptr;
    std::uint64_t seen = 0;                    // the last known value of its progress word
    std::vector<std::unique_ptr<Link>> links;  // other nodes only: one per data connection
  };

  Rank rank = 0;
  Rank size = 1;
  std::uint64_t slot_bytes = 0, small_slot_bytes = 0;
  SharedBlock* own = nullptr;
  std::array<std::byte*, 2> own_slots{};    // the pair of each class; null = not made yet
  std::vector<void*> own_rings;             // by rank; null = not made yet
  std::vector<Peer> peers;                  // by rank
  std::vector<Rank> local;                  // other ranks of this node
  std::vector<ControlBlock*> local_blocks;  // theirs, for ringing
  Counters counters;
  ReceiveMeter meter;
  std::unique_ptr<Lateness[]> lateness;  // by rank

  // Where the free waits of the last window that used a slot are kept until the slot is used again.
  struct PendingFree {
    std::uint64_t window = 0;
    LoweredPtr lowered;
    const std::vector<Wait>* waits = nullptr;
  };
  std::array<std::array<PendingFree, 2>, 2> pending_free;  // [class][window % 2]

  // The same for mailboxes: the window that filled each last, and the local ranks that read it then (a bit each).
  struct PendingReaders {
    std::uint64_t window = 0, readers = 0;
  };
  std::array<PendingReaders, 2> pending_readers;

  std::uint64_t next_window = 1;

  ControlBlock& control(Rank r) const { return peers[static_cast<std::size_t>(r)].shared->control; }
  const std::string& name(Rank r) const { return peers[static_cast<std::size_t>(r)].name; }
  Mailbox& mailbox(Rank r, std::uint64_t window) const {
    return peers[static_cast<std::size_t>(r)].shared->mailbox[window & 1];
  }

  // Progress only grows, so what was seen of it once stays true and needs no look at the peer's memory. For whoever
  // runs an operation.
  bool reached(Rank r, std::uint64_t window, std::uint32_t count) {
    std::uint64_t& seen = peers[static_cast<std::size_t>(r)].seen;
    if (seen >= progress_word(window, count)) return true;
    seen = control(r).progress.load(std::memory_order_acquire);
    return seen >= progress_word(window, count);
  }
};

}  // namespace ringleader
