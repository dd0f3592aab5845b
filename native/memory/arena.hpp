// The arena: this process's one block of memory that the other processes of the host map. An anonymous memfd, sparse,
// whose pages are reserved when memory is allocated and returned to the system when it is released.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/fork.hpp"
#include "base/types.hpp"

namespace ringleader {

// Names a process's arena, and so the process, uniquely among all of the host (random).
using Identity = std::array<std::uint8_t, 16>;

// The right of other processes to touch memory that was shown to them: docs/architecture.md, "Who may write which
// memory until when".
class Claim {
 public:
  virtual ~Claim() = default;
  // Whether none of them will touch it again; once true, true for ever. Never blocks, and does not ask the arena for
  // anything.
  virtual bool over() = 0;
};

class Arena {
 public:
  // This process's arena, made on first use; a forked child that asks gets a new one of its own. Throws Error(memory).
  static Arena& instance();
  // The same, without making one: null if there is none yet.
  static Arena* current();
  // Frees what allocate() returned (nullptr is allowed). Memory of a parent process's arena, seen by a forked child, is
  // left alone. Any thread. Throws Error(invalid) if `memory` is no live allocation.
  // Invariant: the memory is given out again only when `claim` and all earlier claims on it are over; till then its
  // pages stay as they are. Looked at here and in reclaim().
  static void release(void* memory, std::shared_ptr<Claim> claim = nullptr);
  // Gives out again what has been released and is claimed no more. Whenever a communicator is made or closed, and
  // before memory runs out.
  static void reclaim();

  // `bytes` (0 counts as 1) of zero-filled memory whose pages are reserved: touching it never faults fatally later.
  // `align` is a power of two up to 2 MiB. Throws Error(memory | invalid | forked).
  void* allocate(std::size_t bytes, std::size_t align = 64);
  // The same in pages of its own, for what peers are shown of this process's own accord: only such memory can be
  // claimed.
  void* allocate_pages(std::size_t bytes) { return allocate(std::max(bytes, page_bytes()), page_bytes()); }
  static std::size_t page_bytes();

  // Moves the pages at `memory` into the arena: their content is then arena memory, at the address returned and, until
  // somebody unmaps it, also at `memory`, which must be the start of a mapping of the caller's own that nobody else
  // touches meanwhile. Release the address returned once nothing uses the memory at either. Throws Error(memory |
  // invalid | forked), and then nothing has changed.
  void* adopt(void* memory, std::size_t bytes);

  // Takes memory away from everybody else who has mapped it: the whole pages that hold `bytes` at `memory`, part of a
  // live allocation, keep their address and content but become this process's private memory; what others write goes to
  // the pages that were there before, which are nobody's until `claim` is over. Threads of this process may go on using
  // the memory meanwhile: no store of theirs is lost. Of adopted memory only the address that was adopted stays good;
  // see current_address(). Throws Error(memory) if there is no memory for the copy: then others may still write there,
  // and it may not be used.
  void seclude(void* memory, std::size_t bytes, std::shared_ptr<Claim> claim);
  // How many times seclude() was called. Whoever shows arena memory to peers reads it before, and asks again, if it has
  // grown, whether the memory is still the one that peers see: before each time that he tells them of something in it.
  static std::uint64_t seclusions() { return seclusions_.load(std::memory_order_acquire); }
  // Whether the memory, all of it, is what peers see at its offset. Small allocations (below a page) never are: they
  // share pages.
  bool shared(const void* memory, std::size_t bytes) const;
  // Where the memory at an address of the arena is to be used; different only in adopted allocations of which a part
  // was secluded.
  void* current_address(void* memory) const;

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
  using Offset = std::uint64_t;
  // A page cut into equal power-of-two slots for allocations below a page.
  struct Slab {
    std::size_t slot = 0;    // bytes per slot
    std::uint64_t free = 0;  // one bit per free slot
  };
  // Free address space: maximal extents of whole pages. Under mutex_.
  class Space {
   public:
    std::optional<Offset> take(std::size_t bytes, std::size_t align);
    void give(Offset offset, std::size_t bytes);

   private:
    void erase(std::map<Offset, std::size_t>::iterator extent);
    std::map<Offset, std::size_t> by_offset_;
    std::set<std::pair<std::size_t, Offset>> by_size_;  // the same, for best fit
  };
  using Claims = std::vector<std::shared_ptr<Claim>>;
  // An allocation of whole pages.
  struct Extent {
    std::size_t bytes = 0;
    std::byte* adopted = nullptr;       // where else it is mapped
    std::map<Offset, Offset> secluded;  // first -> end, whole pages; disjoint
    bool punched = false;  // nobody sees the pages behind the secluded ones any more, and they are given back
    Claims claims;         // not known to be over
  };
  using Extents = std::map<Offset, Extent>;

  Arena();
  friend void retire_arena_in_child();
  std::size_t large_bytes() const;  // of the part for whole pages, at the front; small allocations lie behind it
  void release_at(Offset offset, std::shared_ptr<Claim> claim);
  Offset take_pages(std::size_t bytes, std::size_t align, Space& space);
  void free_pages(Offset offset, std::size_t bytes);
  void* allocate_small(std::size_t slot);
  bool free_small(Offset offset);  // true if its page became empty and left slabs_
  // Of live_ and under mutex_: the allocation that holds `offset`, or null.
  Extents::const_iterator extent_of(Offset offset) const;
  void make_private(Offset first, Offset end, std::byte* at);
  bool share_again(Extent& extent);
  static void drop_over(Claims& claims, Claims& dropped);
  void reclaim_all();
  Space& space_of(Offset offset) { return offset < large_bytes() ? space_ : small_space_; }
  // Pages; without mutex_, on extents that belong to the caller.
  void reserve(Offset offset, std::size_t bytes);
  bool punch(Offset offset, std::size_t bytes);
  void clear(Offset offset, std::size_t bytes);
  void require_room(std::size_t bytes, std::size_t wanted);

  std::byte* base_ = nullptr;
  std::size_t size_ = 0;
  int fd_ = -1;
  Identity identity_{};
  std::uint64_t generation_ = 0;
  Arena* older_ = nullptr;  // the parent's arena, in a forked child
  std::atomic<std::size_t> used_{0};
  std::atomic<std::size_t> unchecked_{0};  // bytes that may be reserved before the system is asked for its room again
  std::atomic<std::size_t> claimed_{0};    // extents of live_ and released_ with claims, or about so many
  static std::atomic<std::uint64_t> seclusions_;

  mutable std::mutex mutex_;                     // guards everything below
  Space space_, small_space_;                    // for whole pages, for slabs
  Extents live_;                                 // allocations of whole pages
  Extents released_;                             // those that are still claimed
  std::unordered_map<Offset, Slab> slabs_;       // by page
  std::array<std::set<Offset>, 32> open_slabs_;  // pages with a free slot, by log2(slot)
};

// Frees arena memory at the end of scope.
struct ArenaDeleter {
  void operator()(void* memory) const noexcept;
};
template <class T>
using ArenaPtr = std::unique_ptr<T, ArenaDeleter>;

}  // namespace ringleader
