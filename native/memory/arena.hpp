// The arena: this process's one block of memory that the other processes of the host map. An anonymous memfd, sparse,
// whose pages are reserved when memory is allocated and returned to the system when it is released.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>

#include "core/types.hpp"
#include "memory/fork.hpp"

namespace ringleader {

// Names a process's arena, and so the process, uniquely among all of the host (random).
using Identity = std::array<std::uint8_t, 16>;

class Arena {
 public:
  // This process's arena, made on first use; a forked child that asks gets a new one of its own. Throws Error(memory).
  static Arena& instance();
  // The same, without making one: null if there is none yet.
  static Arena* current();
  // Frees what allocate() returned (nullptr is allowed). Memory of a parent process's arena, seen by a forked child, is
  // left alone. Any thread. Throws Error(invalid) if `memory` is no live allocation.
  static void release(void* memory);

  // `bytes` (0 counts as 1) of zero-filled memory whose pages are reserved: touching it never faults fatally later.
  // `align` is a power of two up to 2 MiB. Throws Error(memory | invalid | forked).
  void* allocate(std::size_t bytes, std::size_t align = 64);

  // Moves the pages at `memory` into the arena: their content is then arena memory, at the address returned and, until somebody
  // unmaps it, also at `memory`, which must be the start of a mapping of the caller's own that nobody else touches meanwhile. Release the
  // address returned once nothing uses the memory at either. Throws Error(memory | invalid | forked), and then nothing has changed.
  void* adopt(void* memory, std::size_t bytes);

  bool contains(const void* memory, std::size_t bytes) const {
    const auto at = reinterpret_cast<std::uintptr_t>(memory), first = reinterpret_cast<std::uintptr_t>(base_);
    return at >= first && at - first <= size_ && bytes <= size_ - (at - first);
  }
  std::uint64_t offset_of(const void* memory) const {
    return static_cast<std::uint64_t>(static_cast<const std::byte*>(memory) - base_);
  }
  std::size_t used() const { return used_.load(std::memory_order_relaxed); }  // reserved bytes, whole pages
  std::byte* base() const { return base_; }
  std::size_t size() const { return size_; }
  int fd() const { return fd_; }
  const Identity& identity() const { return identity_; }
  bool forked() const { return generation_ != fork_generation(); }  // this object is a parent's

  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena();

 private:
  // A page cut into equal power-of-two slots for allocations below a page.
  struct Slab {
    std::size_t slot = 0;    // bytes per slot
    std::uint64_t free = 0;  // one bit per free slot
  };
  using Offset = std::uint64_t;

  Arena();
  friend void retire_arena_in_child();
  void free_at(Offset offset);
  Offset allocate_pages(std::size_t bytes, std::size_t align);
  void free_pages(Offset offset, std::size_t bytes);
  void* allocate_small(std::size_t slot);
  bool free_small(Offset offset);  // true if its page became empty and left slabs_
  // Address space; under mutex_.
  Offset take(std::size_t bytes, std::size_t align);
  void give(Offset offset, std::size_t bytes);
  void erase_free(std::map<Offset, std::size_t>::iterator extent);
  // Pages; without mutex_, on extents that belong to the caller.
  void reserve(Offset offset, std::size_t bytes);
  void punch(Offset offset, std::size_t bytes);
  void require_room(std::size_t bytes, std::size_t wanted);

  std::byte* base_ = nullptr;
  std::size_t size_ = 0;
  int fd_ = -1;
  Identity identity_{};
  std::uint64_t generation_ = 0;
  Arena* older_ = nullptr;  // the parent's arena, in a forked child
  std::atomic<std::size_t> used_{0};
  std::atomic<std::size_t> unchecked_{0};  // bytes that may be reserved before the system is asked for its room again

  mutable std::mutex mutex_;                               // guards everything below
  std::map<Offset, std::size_t> free_by_offset_;           // maximal free extents, whole pages
  std::set<std::pair<std::size_t, Offset>> free_by_size_;  // the same, for best fit
  std::unordered_map<Offset, std::size_t> live_;           // page-granular allocations: bytes
  std::unordered_map<Offset, Slab> slabs_;                 // by page
  std::array<std::set<Offset>, 32> open_slabs_;            // pages with a free slot, by log2(slot)
};

// Frees arena memory at the end of scope.
struct ArenaDeleter {
  void operator()(void* memory) const noexcept;
};
template <class T>
using ArenaPtr = std::unique_ptr<T, ArenaDeleter>;

}  // namespace ringleader
