// The control block: what one rank of one communicator shows to the other ranks of its host. It lies in the rank's
// arena and is plain shared memory; all zero is its valid initial state. Peers' blocks are read with suspicion: values
// are bounded on reading.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/types.hpp"
#include "transport/link.hpp"

namespace ringleader {

inline constexpr unsigned kCountBits = 20;  // of the progress word: window << 20 | count
inline constexpr std::uint64_t kMaxCount = (std::uint64_t{1} << kCountBits) - 1;
inline constexpr std::uint64_t progress_word(std::uint64_t window, std::uint64_t count) {
  return window << kCountBits | count;
}

// Low bits of a published fingerprint: which of data, input, output are registered user memory.
inline constexpr std::uint64_t kRegisteredMask = 7;

inline constexpr std::size_t kEntrySlots = 4;
inline constexpr std::size_t kReasonBytes = 1600;

// What a rank published when it entered a window (a private copy of it).
struct Entry {
  std::uint64_t window = 0;
  OpInfo info;
  std::uint64_t base[3] = {0, 0, 0};  // arena offsets of data, input, output where registered
};

// The shared form of an Entry. A sequence lock: `version` is window + 1, or 0 while the words change.
struct alignas(64) EntrySlot {
  static constexpr std::size_t kWords = (sizeof(OpInfo) + sizeof(Entry::base)) / 8;
  std::atomic<std::uint64_t> version;
  std::atomic<std::uint64_t> words[kWords];
};
static_assert(sizeof(OpInfo) % 8 == 0);

// Why a communicator ended. All zero: it has not.
struct AbortSlot {
  std::atomic<std::uint32_t> state;  // 0 none, 1 being written, 2 set
  std::int32_t kind;                 // ErrorKind; valid once state is 2
  std::int32_t rank;                 // the cause, -1 if unknown
  char reason[kReasonBytes];         // the last byte stays 0
};

enum class BlockState : std::uint32_t { fresh = 0, live = 1, closed = 2 };

struct ControlBlock {
  // Line 0: written by the owner for every instruction, read by its peers.
  alignas(64) std::atomic<std::uint64_t> progress;
  std::atomic<std::uint64_t> fingerprint[kEntrySlots];  // by window % 4
  // Line 1: written by peers, and only when the owner sleeps.
  alignas(64) std::atomic<std::uint32_t> doorbell;
  std::atomic<std::uint32_t> sleeping;  // threads of the owner that sleep or are about to
  std::atomic<std::uint32_t>
      core;  // 1 + the core that the owner ran on when it last looked; 0 = it does not tell. A hint.
  // Line 2: almost never written.
  alignas(64) std::atomic<std::uint32_t> state;  // BlockState
  AbortSlot abort;
  // An end that spares the operations before one: a peer that left in order has done its part in them.
  std::atomic<std::uint64_t> later_from;  // sequence of the first operation that it ends; 0 none. Set after `later` is.
  AbortSlot later;
  EntrySlot entries[kEntrySlots];  // by window % 4
  std::atomic<std::uint64_t>
      beats;  // counts the looks around of the owner while it waits long: it lives, and waits for whom it shows
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free);
static_assert(offsetof(ControlBlock, doorbell) == 64 && offsetof(ControlBlock, state) == 128);

// Orders all earlier stores of this thread before all later loads (store-load: the one thing release/acquire do not
// give).
void full_fence();

// The owner enters a window: first its entry and fingerprint (low three bits replaced by `registered`), later the
// progress word with count 1, which publishes them.
void publish_entry(ControlBlock& own, std::uint64_t window, const OpInfo& info, std::uint64_t fingerprint,
                   std::uint64_t registered, const std::uint64_t (&base)[3]);
inline void publish_progress(ControlBlock& own, std::uint64_t window, std::uint64_t count) {
  own.progress.store(progress_word(window, count), std::memory_order_release);
}

// False if the block does not (or no longer) hold that window's entry, or it changed while being read.
bool read_entry(const ControlBlock& block, std::uint64_t window, Entry& out);

inline std::uint64_t fingerprint_of(const ControlBlock& block, std::uint64_t window) {
  return block.fingerprint[window % kEntrySlots].load(std::memory_order_acquire);
}

// Wakes the block's owner if it sleeps. Call after publishing what it may be waiting for (the call contains the fence).
void ring(ControlBlock& peer);
// The same for several, with one fence; null entries are skipped.
void ring(std::span<ControlBlock* const> peers);

struct AbortRecord {
  ErrorKind kind;
  Rank rank;  // the cause, -1 if unknown
  std::string reason;
};

// Writes the record unless the block has one: the first cause wins. True if this call set it. Rings the owner. Any
// process. `from`: 0, or the first operation that it ends; of several such records the first text and the lowest number
// stay.
bool set_abort(ControlBlock& block, ErrorKind kind, Rank rank, const std::string& reason, std::uint64_t from = 0);
inline bool aborted(const ControlBlock& block) { return block.abort.state.load(std::memory_order_acquire) != 0; }
// Whether a record ends the operation with this number.
inline bool aborted(const ControlBlock& block, std::uint64_t sequence) {
  if (aborted(block)) return true;
  const std::uint64_t from = block.later_from.load(std::memory_order_acquire);
  return from != 0 && from <= sequence;
}
// The record, else the one that spares earlier operations; nothing while there is none or while it is being written.
std::optional<AbortRecord> abort_of(const ControlBlock& block);

}  // namespace ringleader
