#include "transport/shm/control.hpp"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <cstring>

namespace ringleader {

namespace {

using Words = std::uint64_t[EntrySlot::kWords];

void wake(ControlBlock& block) {
  block.doorbell.fetch_add(1, std::memory_order_release);
  ::syscall(SYS_futex, &block.doorbell, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);  // not PRIVATE: other processes
}

}  // namespace

void full_fence() {
#if defined(__SANITIZE_THREAD__)  // GCC's thread sanitizer has no fences; a read-modify-write orders the same way
  static thread_local std::atomic<int> anything{0};
  anything.fetch_add(1, std::memory_order_seq_cst);
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

// The words are stored with release and loaded with acquire instead of fences: a reader that sees a word of a later
// entry also sees that `version` had been cleared before it.
void publish_entry(ControlBlock& own, std::uint64_t window, const OpInfo& info, std::uint64_t fingerprint,
                   std::uint64_t registered, const std::uint64_t (&base)[3]) {
  Words words;
  std::memcpy(words, &info, sizeof info);
  std::memcpy(words + sizeof info / 8, base, sizeof base);
  EntrySlot& slot = own.entries[window % kEntrySlots];
  slot.version.store(0, std::memory_order_relaxed);
  for (std::size_t i = 0; i < EntrySlot::kWords; ++i) slot.words[i].store(words[i], std::memory_order_release);
  slot.version.store(window + 1, std::memory_order_release);
  own.fingerprint[window % kEntrySlots].store((fingerprint & ~kRegisteredMask) | (registered & kRegisteredMask),
                                              std::memory_order_release);
}

bool read_entry(const ControlBlock& block, std::uint64_t window, Entry& out) {
  const EntrySlot& slot = block.entries[window % kEntrySlots];
  if (slot.version.load(std::memory_order_acquire) != window + 1) return false;
  Words words;
  for (std::size_t i = 0; i < EntrySlot::kWords; ++i) words[i] = slot.words[i].load(std::memory_order_acquire);
  if (slot.version.load(std::memory_order_relaxed) != window + 1) return false;
  out.window = window;
  std::memcpy(static_cast<void*>(&out.info), words, sizeof out.info);
  std::memcpy(out.base, words + sizeof out.info / 8, sizeof out.base);
  return true;
}

void ring(ControlBlock& peer) {
  full_fence();
  if (peer.sleeping.load(std::memory_order_relaxed) != 0) wake(peer);
}

void ring(std::span<ControlBlock* const> peers) {
  full_fence();
  for (ControlBlock* peer : peers) {
    if (peer != nullptr && peer->sleeping.load(std::memory_order_relaxed) != 0) wake(*peer);
  }
}

namespace {

bool write(AbortSlot& slot, ErrorKind kind, Rank rank, const std::string& reason) {
  std::uint32_t none = 0;
  if (!slot.state.compare_exchange_strong(none, 1, std::memory_order_acq_rel)) {
    // The first writer has a few lines to write. If it was killed half-way, the record is completed in its place.
    const auto patience = std::chrono::steady_clock::now() + std::chrono::milliseconds(20);
    while (slot.state.load(std::memory_order_acquire) == 1) {
      if (std::chrono::steady_clock::now() > patience) break;
      ::sched_yield();
    }
    if (slot.state.load(std::memory_order_acquire) == 2) return false;
  }
  slot.kind = static_cast<std::int32_t>(kind);
  slot.rank = rank;
  const std::size_t length = std::min(reason.size(), kReasonBytes - 1);
  std::memcpy(slot.reason, reason.data(), length);
  slot.reason[length] = 0;
  slot.state.store(2, std::memory_order_release);
  return true;
}

std::optional<AbortRecord> read(const AbortSlot& slot) {
  if (slot.state.load(std::memory_order_acquire) != 2) return std::nullopt;
  const bool known = slot.kind >= 0 && slot.kind <= static_cast<std::int32_t>(ErrorKind::internal);
  return AbortRecord{known ? static_cast<ErrorKind>(slot.kind) : ErrorKind::aborted, slot.rank,
                     std::string(slot.reason, ::strnlen(slot.reason, kReasonBytes))};
}

}  // namespace

bool set_abort(ControlBlock& block, ErrorKind kind, Rank rank, const std::string& reason, std::uint64_t from) {
  bool first = write(from == 0 ? block.abort : block.later, kind, rank, reason);
  if (from != 0) {
    std::uint64_t known = block.later_from.load(std::memory_order_acquire);
    while ((known == 0 || from < known) &&
           !block.later_from.compare_exchange_weak(known, from, std::memory_order_acq_rel))
      continue;
  }
  if (first || from != 0) ring(block);
  return first;
}

std::optional<AbortRecord> abort_of(const ControlBlock& block) {
  return aborted(block) ? read(block.abort) : read(block.later);
}

}  // namespace ringleader
