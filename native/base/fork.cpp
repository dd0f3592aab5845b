#include "base/fork.hpp"

#include <pthread.h>
#include <unistd.h>

#include <array>

namespace ringleader {

namespace detail {
std::atomic<std::uint64_t> fork_count{0};
}

void retire_arena_in_child();  // memory/arena.cpp

namespace {

// Descriptors to close in a child. Blocks are only ever added and slots are claimed by compare-and-swap, so that the
// child's handler, which may run while another thread of the parent was in the middle of anything, can read the list
// without a lock.
struct FdBlock {
  std::array<std::atomic<int>, 256> plus_one{};  // descriptor + 1; 0 = free
  std::atomic<FdBlock*> next{nullptr};
};
constinit FdBlock first_block;

void in_child() {
  detail::fork_count.fetch_add(1, std::memory_order_relaxed);
  retire_arena_in_child();
  for (FdBlock* block = &first_block; block != nullptr; block = block->next.load(std::memory_order_acquire)) {
    for (auto& slot : block->plus_one) {
      const int fd = slot.exchange(0, std::memory_order_relaxed) - 1;
      if (fd >= 0) ::close(fd);
    }
  }
}

[[maybe_unused]] const int registered = ::pthread_atfork(nullptr, nullptr, &in_child);

}  // namespace

void close_in_child(int fd) {
  if (fd < 0) return;
  for (FdBlock* block = &first_block;;) {
    for (auto& slot : block->plus_one) {
      int expected = 0;
      if (slot.compare_exchange_strong(expected, fd + 1, std::memory_order_relaxed)) return;
    }
    FdBlock* next = block->next.load(std::memory_order_acquire);
    if (next == nullptr) {
      auto* fresh = new FdBlock;
      if (block->next.compare_exchange_strong(next, fresh, std::memory_order_acq_rel)) {
        next = fresh;
      } else {
        delete fresh;
      }
    }
    block = next;
  }
}

void close_owned(int fd, std::uint64_t generation) {
  if (fd < 0 || generation != fork_generation()) return;
  // Off the list before the number can be given to somebody else's descriptor.
  bool listed = true;
  for (FdBlock* block = &first_block; block != nullptr && listed; block = block->next.load(std::memory_order_acquire)) {
    for (auto& slot : block->plus_one) {
      int expected = fd + 1;
      if (slot.compare_exchange_strong(expected, 0, std::memory_order_relaxed)) {
        listed = false;
        break;
      }
    }
  }
  ::close(fd);
}

}  // namespace ringleader
