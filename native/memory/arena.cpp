#include "memory/arena.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <optional>
#include <string>

#include "memory/cores.hpp"
#include "memory/space.hpp"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14
#endif
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U  // Linux 6.3
#endif

namespace ringleader {

namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kHuge = 2 * kMiB;           // alignment that lets the kernel use huge pages
constexpr std::size_t kMinSlot = 64;              // a cache line: neighbours never share one
constexpr std::size_t kReservePiece = 64 * kMiB;  // reserved between two looks at the free memory

constexpr std::size_t kMostSmall = 1024 * kMiB;  // address space for allocations below a page

std::atomic<Arena*> current_arena{nullptr};
Arena* inherited = nullptr;  // the parents' arenas; written in a forked child's handler only

std::size_t page_size() { return Arena::page_bytes(); }

constexpr std::size_t round_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

std::string readable(std::size_t bytes) {
  const std::string exact = std::to_string(bytes) + " bytes";
  return bytes < kMiB ? exact : std::to_string(bytes / kMiB) + " MiB (" + exact + ")";
}

[[noreturn]] void fail_memory(const std::string& what) {
  throw Error(ErrorKind::memory, "the shared-memory arena cannot be made: " + what);
}

int make_memfd() {
  int fd = ::memfd_create("ringleader", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
  if (fd < 0 && errno == EINVAL) fd = ::memfd_create("ringleader", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0)
    fail_memory(std::string("memfd_create: ") + std::strerror(errno) + "; raise the limit of open files (ulimit -n)");
  return fd;
}

// Maps `fd` at a huge-page boundary; null if the address space does not allow it.
std::byte* map_aligned(int fd, std::size_t bytes) {
  void* space = ::mmap(nullptr, bytes + kHuge, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (space == MAP_FAILED) return nullptr;
  const auto raw = reinterpret_cast<std::uintptr_t>(space);
  const std::uintptr_t at = round_up(raw, kHuge);
  void* mapped = ::mmap(reinterpret_cast<void*>(at), bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
  if (mapped == MAP_FAILED) {
    ::munmap(space, bytes + kHuge);
    return nullptr;
  }
  if (at > raw) ::munmap(space, at - raw);
  if (raw + kHuge > at) ::munmap(reinterpret_cast<void*>(at + bytes), raw + kHuge - at);
  return static_cast<std::byte*>(mapped);
}

}  // namespace

// Called by the fork handler: async-signal-safe, takes no lock (the parent's threads may have held any).
void retire_arena_in_child() {
  Arena* arena = current_arena.exchange(nullptr, std::memory_order_relaxed);
  if (arena == nullptr) return;
  arena->older_ = inherited;
  inherited = arena;
}

std::size_t Arena::page_bytes() {
  static const auto bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

Arena* Arena::current() { return current_arena.load(std::memory_order_acquire); }

Arena& Arena::instance() {
  Arena* arena = current();
  if (arena != nullptr) return *arena;
  // No lock, because a fork could leave it locked in the child: of two threads that race, one throws its arena away.
  std::unique_ptr<Arena> fresh(new Arena);
  if (current_arena.compare_exchange_strong(arena, fresh.get(), std::memory_order_acq_rel)) return *fresh.release();
  return *arena;
}

Arena::Arena() : fd_(make_memfd()), generation_(fork_generation()) {
  close_in_child(fd_);
  const std::size_t machine = static_cast<std::size_t>(::sysconf(_SC_PHYS_PAGES)) * page_size();
  const std::size_t room = address_room();
  const int ranks = expected_local_ranks();
  size_ = arena_bytes(machine, room, ranks);
  if (size_ < kLeastArena) {
    close_owned(fd_, generation_);
    fail_memory("this process may map " + readable(room) + " more, and " + std::to_string(ranks) +
                " ranks of this host need 2 x " + readable(kLeastArena) +
                " each; raise RLIMIT_AS (ulimit -v), or start fewer ranks");
  }
  rlimit file{};
  if (::getrlimit(RLIMIT_FSIZE, &file) == 0 && file.rlim_cur < size_)
    size_ = std::bit_floor(file.rlim_cur);  // else SIGXFSZ
  for (; size_ >= kLeastArena; size_ /= 2) {
    if (::ftruncate(fd_, static_cast<off_t>(size_)) != 0) continue;
    base_ = map_aligned(fd_, size_);
    if (base_ != nullptr) break;
  }
  const int error = errno;
  std::size_t got = 0;
  while (base_ != nullptr && got < identity_.size()) {
    const ssize_t n = ::getrandom(identity_.data() + got, identity_.size() - got, 0);
    if (n > 0) got += static_cast<std::size_t>(n);
  }
  if (base_ == nullptr) {
    close_owned(fd_, generation_);
    fail_memory(std::string("no address space for 16 MiB: ") + std::strerror(error) + "; raise RLIMIT_AS (ulimit -v)");
  }
  // Peers check these seals: the file can never shrink under their mappings.
  (void)::fcntl(fd_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  (void)::madvise(base_, size_, MADV_HUGEPAGE);  // takes effect where shmem_enabled is `advise`
  (void)::madvise(base_, size_, MADV_DONTDUMP);  // a core dump would allocate every page of it
  // Offset 0 is never given out: where offsets are told to peers it means that there is nothing yet.
  space_.give(page_size(), large_bytes() - page_size());
  small_space_.give(large_bytes(), size_ - large_bytes());
}

std::size_t Arena::large_bytes() const { return size_ - std::min(kMostSmall, size_ / 16 / kMiB * kMiB); }

Arena::~Arena() {
  if (base_ != nullptr) ::munmap(base_, size_);
  close_owned(fd_, generation_);
}

void* Arena::allocate(std::size_t bytes, std::size_t align) {
  if (forked()) {
    throw Error(ErrorKind::forked,
                "shared memory of the parent process cannot be used in a forked child; "
                "create a new communicator in the child");
  }
  if (!std::has_single_bit(align) || align > kHuge) {
    throw Error(ErrorKind::invalid,
                "alignment is " + std::to_string(align) + ", expected a power of two up to 2097152");
  }
  const std::size_t page = page_size();
  if (bytes > size_) {
    throw Error(ErrorKind::memory,
                "cannot allocate " + readable(bytes) + " of shared memory: the arena has " + readable(size_));
  }
  const std::size_t slot = std::bit_ceil(std::max({bytes, align, kMinSlot, page / 64}));
  if (slot < page) return allocate_small(slot);
  const std::size_t whole = round_up(std::max<std::size_t>(bytes, 1), page);
  const Offset offset = take_pages(whole, std::max({align, page, whole >= kHuge ? kHuge : page}), space_);
  const std::lock_guard lock(mutex_);
  live_[offset].bytes = whole;
  return base_ + offset;
}

void* Arena::adopt(void* memory, std::size_t bytes) {
  const std::size_t page = page_size(), whole = round_up(std::max<std::size_t>(bytes, 1), page);
  if (memory == nullptr || reinterpret_cast<std::uintptr_t>(memory) % page != 0 || contains(memory, 1))
    throw Error(ErrorKind::invalid, "only whole pages outside the arena can become part of it");
  void* inside = allocate(whole, page);
  std::memcpy(inside, memory, bytes);
  const auto offset = static_cast<off_t>(offset_of(inside));
  if (::mmap(memory, whole, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_POPULATE, fd_, offset) == MAP_FAILED) {
    const int error = errno;
    release(inside);
    throw Error(ErrorKind::memory,
                std::string("memory cannot become part of the arena: mmap: ") + std::strerror(error));
  }
  (void)::madvise(memory, whole, MADV_DONTDUMP);
  const std::lock_guard lock(mutex_);
  live_.at(offset_of(inside)).adopted = static_cast<std::byte*>(memory);
  return inside;
}

void Arena::release(void* memory, std::shared_ptr<Claim> claim) {
  if (memory == nullptr) return;
  Arena* arena = current();
  if (arena != nullptr && arena->contains(memory, 1)) {
    arena->release_at(arena->offset_of(memory), std::move(claim));
    return;
  }
  for (const Arena* old = inherited; old != nullptr; old = old->older_) {
    if (old->contains(memory, 1)) return;  // the parent's memory is the parent's to free
  }
  throw Error(ErrorKind::invalid, "released memory that is not of the shared-memory arena");
}

void Arena::release_at(Offset offset, std::shared_ptr<Claim> claim) {
  Offset first = offset;
  std::size_t bytes = page_size();
  Claims dropped;  // a claim may be the last to hold a peer's mapping, whose end takes time
  {
    const std::lock_guard lock(mutex_);
    const auto found = live_.find(offset);
    if (found != live_.end()) {
      Extent& extent = found->second;
      bytes = extent.bytes;
      const bool claimed = !extent.claims.empty();
      if (claim != nullptr) extent.claims.push_back(std::move(claim));
      drop_over(extent.claims, dropped);
      const bool ours = share_again(extent);
      if (!ours || !extent.claims.empty()) {
        if (!claimed) claimed_.fetch_add(1, std::memory_order_relaxed);
        extent.adopted = nullptr;
        released_.insert(live_.extract(found));
        return;
      }
      if (claimed) claimed_.fetch_sub(1, std::memory_order_relaxed);
      live_.erase(found);
    } else {
      if (claim != nullptr) throw Error(ErrorKind::internal, "a small allocation of the arena cannot be claimed");
      if (!free_small(offset)) return;
      first = offset / bytes * bytes;
    }
  }
  free_pages(first, bytes);
}

// ---- memory that peers may still touch

std::atomic<std::uint64_t> Arena::seclusions_{0};

Arena::Extents::const_iterator Arena::extent_of(Offset offset) const {
  auto at = live_.upper_bound(offset);
  if (at == live_.begin()) return live_.end();
  --at;
  return offset - at->first < at->second.bytes ? at : live_.end();
}

bool Arena::shared(const void* memory, std::size_t bytes) const {
  if (!contains(memory, bytes)) return false;
  const Offset offset = offset_of(memory);
  if (offset + bytes > large_bytes()) return false;
  if (seclusions() == 0) return true;
  const std::lock_guard lock(mutex_);
  const auto at = extent_of(offset);
  if (at == live_.end() || bytes > at->second.bytes - (offset - at->first)) return false;
  const auto& secluded = at->second.secluded;
  const auto next = secluded.lower_bound(offset + std::max<std::size_t>(bytes, 1));
  return next == secluded.begin() || std::prev(next)->second <= offset;
}

void* Arena::current_address(void* memory) const {
  if (seclusions() == 0 || !contains(memory, 1)) return memory;
  const std::lock_guard lock(mutex_);
  const auto at = extent_of(offset_of(memory));
  if (at == live_.end() || at->second.adopted == nullptr || at->second.secluded.empty()) return memory;
  return at->second.adopted + (offset_of(memory) - at->first);
}

void Arena::seclude(void* memory, std::size_t bytes, std::shared_ptr<Claim> claim) {
  if (bytes == 0 || !contains(memory, bytes)) return;
  const Offset offset = offset_of(memory), page = page_size();
  const std::lock_guard lock(mutex_);
  const auto found = extent_of(offset);
  if (found == live_.end()) return;
  Extent& extent = live_.at(found->first);
  const Offset first = offset / page * page;
  const Offset end = std::min<Offset>(round_up(offset + bytes, page), found->first + extent.bytes);
  if (extent.claims.empty()) claimed_.fetch_add(1, std::memory_order_relaxed);
  extent.claims.push_back(std::move(claim));
  // Before any page changes hands: a thread that then stores to a private page, and looks afterwards, sees that this
  // has begun.
  seclusions_.fetch_add(1, std::memory_order_seq_cst);
  // What is private already is left alone; what is not is noted first, so that it is nobody's to show even if the copy
  // fails.
  std::vector<std::pair<Offset, Offset>> gaps;
  Offset at = first;
  for (const auto& [from, to] : extent.secluded) {
    if (to <= at || from >= end) continue;
    if (from > at) gaps.emplace_back(at, from);
    at = to;
  }
  if (at < end) gaps.emplace_back(at, end);
  for (const auto& [from, to] : gaps) extent.secluded.emplace(from, to);
  if (!gaps.empty()) extent.punched = false;
  for (const auto& [from, to] : gaps)
    make_private(from, to, extent.adopted != nullptr ? extent.adopted + (from - found->first) : base_ + from);
}

// A private mapping of the same pages in the place of the shared one, at one stroke; and then each page is written to,
// which changes nothing in it but gives this process a copy of its own. A store of another thread comes before that and
// is copied, or waits, or makes the copy itself.
void Arena::make_private(Offset first, Offset end, std::byte* at) {
  const std::size_t bytes = end - first;
  require_room(bytes, bytes);
  if (::mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, fd_, static_cast<off_t>(first)) == MAP_FAILED)
    throw Error(ErrorKind::memory,
                "a private copy of " + readable(bytes) + " cannot be made: mmap: " + std::strerror(errno));
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t piece = std::min(bytes - done, kReservePiece);
    if (::madvise(at + done, piece, MADV_POPULATE_WRITE) != 0) {
      if (errno == EINTR || errno == EAGAIN) continue;
      if (errno == ENOMEM)
        throw Error(ErrorKind::memory,
                    "a private copy of " + readable(bytes) + " cannot be made: " + std::strerror(errno));
      for (std::size_t page = 0; page < piece; page += page_size())  // an older kernel
        std::atomic_ref(reinterpret_cast<unsigned char&>(at[done + page])).fetch_or(0, std::memory_order_relaxed);
    }
    done += piece;
  }
}

// Under mutex_, of memory that nobody in this process uses: private pages are dropped. False if the system refuses for
// now.
bool Arena::share_again(Extent& extent) {
  while (!extent.secluded.empty()) {
    const auto [first, end] = *extent.secluded.begin();
    // Adopted memory was made private at its other address, which is its adopter's to unmap.
    if (extent.adopted == nullptr) {
      if (::mmap(base_ + first, end - first, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd_,
                 static_cast<off_t>(first)) == MAP_FAILED)
        return false;
      (void)::madvise(base_ + first, end - first, MADV_HUGEPAGE);
      (void)::madvise(base_ + first, end - first, MADV_DONTDUMP);
    }
    extent.secluded.erase(extent.secluded.begin());
  }
  return true;
}

void Arena::drop_over(Claims& claims, Claims& dropped) {
  const auto rest = std::partition(claims.begin(), claims.end(), [](const auto& claim) { return !claim->over(); });
  dropped.insert(dropped.end(), std::make_move_iterator(rest), std::make_move_iterator(claims.end()));
  claims.erase(rest, claims.end());
}

void Arena::reclaim() {
  Arena* arena = current();
  if (arena != nullptr && arena->claimed_.load(std::memory_order_relaxed) != 0) arena->reclaim_all();
}

void Arena::reclaim_all() {
  Claims dropped;
  std::vector<std::pair<Offset, std::size_t>> free;
  {
    const std::lock_guard lock(mutex_);
    // Of live memory that was secluded and that nobody claims any more the pages behind are given back; it stays
    // private.
    for (auto& [offset, extent] : live_) {
      if (extent.claims.empty()) continue;
      drop_over(extent.claims, dropped);
      if (!extent.claims.empty()) continue;
      claimed_.fetch_sub(1, std::memory_order_relaxed);
      if (extent.punched) continue;
      extent.punched = true;
      for (const auto& [first, end] : extent.secluded) (void)punch(first, end - first);
    }
    for (auto at = released_.begin(); at != released_.end();) {
      Extent& extent = at->second;
      drop_over(extent.claims, dropped);
      if (!extent.claims.empty() || !share_again(extent)) {
        ++at;
        continue;
      }
      free.emplace_back(at->first, extent.bytes);
      at = released_.erase(at);
      claimed_.fetch_sub(1, std::memory_order_relaxed);
    }
  }
  for (const auto& [offset, bytes] : free) free_pages(offset, bytes);
}

// ---- pages

Arena::Offset Arena::take_pages(std::size_t bytes, std::size_t align, Space& space) {
  reclaim();
  std::optional<Offset> offset;
  {
    const std::lock_guard lock(mutex_);
    offset = space.take(bytes, align);
  }
  if (!offset)
    throw Error(ErrorKind::memory, "cannot allocate " + readable(bytes) +
                                       " of shared memory: no room in the arena of " + readable(size_) + ", " +
                                       readable(used()) + " of it in use; release some of it");
  try {
    reserve(*offset, bytes);
  } catch (...) {
    clear(*offset, bytes);
    const std::lock_guard lock(mutex_);
    space.give(*offset, bytes);
    throw;
  }
  used_.fetch_add(bytes, std::memory_order_relaxed);
  return *offset;
}

void Arena::free_pages(Offset offset, std::size_t bytes) {
  clear(offset, bytes);
  used_.fetch_sub(bytes, std::memory_order_relaxed);
  const std::lock_guard lock(mutex_);
  space_of(offset).give(offset, bytes);
}

void* Arena::allocate_small(std::size_t slot) {
  auto& open = open_slabs_[static_cast<std::size_t>(std::countr_zero(slot))];
  std::unique_lock lock(mutex_);
  Offset page;
  if (!open.empty()) {
    page = *open.begin();
  } else {
    lock.unlock();
    // Used below even if another thread has opened one meanwhile: a page without anything in it would never be given
    // back.
    page = take_pages(page_size(), page_size(), small_space_);
    const std::size_t slots = page_size() / slot;
    lock.lock();
    slabs_.emplace(page, Slab{slot, slots == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << slots) - 1});
    open.insert(page);
  }
  Slab& slab = slabs_.at(page);
  const auto index = static_cast<std::size_t>(std::countr_zero(slab.free));
  slab.free &= slab.free - 1;
  if (slab.free == 0) open.erase(page);
  lock.unlock();
  return std::memset(base_ + page + index * slot, 0, slot);
}

bool Arena::free_small(Offset offset) {
  const Offset page = offset / page_size() * page_size();
  const auto found = slabs_.find(page);
  const std::size_t slot = found == slabs_.end() ? 1 : found->second.slot;
  const std::uint64_t bit = found == slabs_.end() ? 0 : std::uint64_t{1} << ((offset - page) / slot);
  if (found == slabs_.end() || (offset - page) % slot != 0 || (found->second.free & bit) != 0) {
    throw Error(ErrorKind::invalid, "released arena memory at offset " + std::to_string(offset) +
                                        " that is not allocated; it was released twice, or is inside an allocation");
  }
  Slab& slab = found->second;
  slab.free |= bit;
  auto& open = open_slabs_[static_cast<std::size_t>(std::countr_zero(slot))];
  if (static_cast<std::size_t>(std::popcount(slab.free)) < page_size() / slot) {
    open.insert(page);
    return false;
  }
  open.erase(page);
  slabs_.erase(found);
  return true;
}

// Best fit. Among the extents that are large enough but may lie badly for a wide alignment only a few are tried; one
// that is larger by the alignment always fits.
std::optional<Arena::Offset> Arena::Space::take(std::size_t bytes, std::size_t align) {
  const auto place = [&](std::pair<std::size_t, Offset> extent) {
    const Offset at = round_up(extent.second, align);
    return at + bytes <= extent.second + extent.first ? std::optional(at) : std::nullopt;
  };
  auto candidate = by_size_.lower_bound({bytes, 0});
  for (int tries = 0; candidate != by_size_.end() && !place(*candidate); ++tries, ++candidate) {
    if (tries == 16) candidate = std::prev(by_size_.lower_bound({bytes + align, 0}));
  }
  if (candidate == by_size_.end()) return std::nullopt;
  const auto [length, start] = *candidate;
  const Offset at = *place(*candidate);
  erase(by_offset_.find(start));
  if (at > start) give(start, at - start);
  if (start + length > at + bytes) give(at + bytes, start + length - at - bytes);
  return at;
}

// Invariant: free extents never touch each other.
void Arena::Space::give(Offset offset, std::size_t bytes) {
  const auto next = by_offset_.lower_bound(offset);
  if (next != by_offset_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      offset = before->first;
      bytes += before->second;
      erase(before);
    }
  }
  if (next != by_offset_.end() && offset + bytes == next->first) {
    bytes += next->second;
    erase(next);
  }
  by_offset_.emplace(offset, bytes);
  by_size_.emplace(bytes, offset);
}

void Arena::Space::erase(std::map<Offset, std::size_t>::iterator extent) {
  by_size_.erase({extent->second, extent->first});
  by_offset_.erase(extent);
}

// In pieces, each after a look at the free memory: several processes may be reserving at once, and whoever comes too
// late shall see an error instead of the OOM killer.
void Arena::reserve(Offset offset, std::size_t bytes) {
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t piece = std::min(bytes - done, kReservePiece);
    require_room(bytes - done, bytes);
    // Maps the pages as well, huge ones where enabled, so that the first use does not fault page by page. Older kernels
    // refuse; what counts is fallocate.
    (void)::madvise(base_ + offset + done, piece, MADV_POPULATE_WRITE);
    while (::fallocate(fd_, FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset + done), static_cast<off_t>(piece)) != 0) {
      if (errno == EINTR) continue;
      const int error = errno;
      const MemoryRoom room = memory_room();
      throw Error(ErrorKind::memory, "cannot reserve " + readable(bytes) +
                                         " of shared memory: " + std::strerror(error) + ", free are " +
                                         readable(room.free) + "; use smaller buffers or fewer ranks per host");
    }
    done += piece;
  }
}

void Arena::require_room(std::size_t bytes, std::size_t wanted) {
  std::size_t budget = unchecked_.load(std::memory_order_relaxed);
  while (bytes <= budget) {
    if (unchecked_.compare_exchange_weak(budget, budget - bytes, std::memory_order_relaxed)) return;
  }
  const MemoryRoom room = memory_room();
  const std::size_t margin = std::min(256 * kMiB, room.total / 32);  // for everything else that grows meanwhile
  if (room.free < margin || room.free - margin < bytes) {
    throw Error(ErrorKind::memory, "cannot reserve " + readable(wanted) + " of shared memory: free are " +
                                       readable(room.free) + " of " + readable(room.total) +
                                       (room.by_cgroup ? " that the container's memory limit allows" : " of memory") +
                                       ", and " + readable(margin) +
                                       " are kept back; use smaller buffers or fewer ranks per host, free memory" +
                                       (room.by_cgroup ? ", or raise the container's memory limit" : ""));
  }
  unchecked_.store(std::min(4 * kMiB, (room.free - margin - bytes) / 8), std::memory_order_relaxed);
}

bool Arena::punch(Offset offset, std::size_t bytes) {
  const auto at = static_cast<off_t>(offset);
  while (::fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, static_cast<off_t>(bytes)) != 0)
    if (errno != EINTR) return false;
  return true;
}

// Of memory that becomes free: where the pages stay, it is zero all the same.
void Arena::clear(Offset offset, std::size_t bytes) {
  if (!punch(offset, bytes)) std::memset(base_ + offset, 0, bytes);
}

void ArenaDeleter::operator()(void* memory) const noexcept { Arena::release(memory); }

}  // namespace ringleader
