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

std::atomic<Arena*> current_arena{nullptr};
Arena* inherited = nullptr;  // the parents' arenas; written in a forked child's handler only

std::size_t page_size() {
  static const auto bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

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
  // Address space is cheap: as much again, so that fragments never are what stops an allocation. Less where a limit
  // (RLIMIT_AS, RLIMIT_FSIZE, a small address space) refuses it.
  size_ = round_up(2 * machine, 1024 * kMiB);
  rlimit file{};
  if (::getrlimit(RLIMIT_FSIZE, &file) == 0 && file.rlim_cur < size_)
    size_ = std::bit_floor(file.rlim_cur);  // else SIGXFSZ
  for (; size_ >= 16 * kMiB; size_ /= 2) {
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
  give(page_size(), size_ - page_size());
}

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
  const Offset offset = allocate_pages(whole, std::max({align, page, whole >= kHuge ? kHuge : page}));
  const std::lock_guard lock(mutex_);
  live_.emplace(offset, whole);
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
    throw Error(ErrorKind::memory, std::string("memory cannot become part of the arena: mmap: ") + std::strerror(error));
  }
  (void)::madvise(memory, whole, MADV_DONTDUMP);
  return inside;
}

void Arena::release(void* memory) {
  if (memory == nullptr) return;
  Arena* arena = current();
  if (arena != nullptr && arena->contains(memory, 1)) {
    arena->free_at(arena->offset_of(memory));
    return;
  }
  for (const Arena* old = inherited; old != nullptr; old = old->older_) {
    if (old->contains(memory, 1)) return;  // the parent's memory is the parent's to free
  }
  throw Error(ErrorKind::invalid, "released memory that is not of the shared-memory arena");
}

void Arena::free_at(Offset offset) {
  Offset first = offset;
  std::size_t bytes = page_size();
  {
    const std::lock_guard lock(mutex_);
    const auto found = live_.find(offset);
    if (found != live_.end()) {
      bytes = found->second;
      live_.erase(found);
    } else {
      if (!free_small(offset)) return;
      first = offset / bytes * bytes;
    }
  }
  free_pages(first, bytes);
}

Arena::Offset Arena::allocate_pages(std::size_t bytes, std::size_t align) {
  Offset offset;
  {
    const std::lock_guard lock(mutex_);
    offset = take(bytes, align);
  }
  try {
    reserve(offset, bytes);
  } catch (...) {
    punch(offset, bytes);
    const std::lock_guard lock(mutex_);
    give(offset, bytes);
    throw;
  }
  used_.fetch_add(bytes, std::memory_order_relaxed);
  return offset;
}

void Arena::free_pages(Offset offset, std::size_t bytes) {
  punch(offset, bytes);
  used_.fetch_sub(bytes, std::memory_order_relaxed);
  const std::lock_guard lock(mutex_);
  give(offset, bytes);
}

void* Arena::allocate_small(std::size_t slot) {
  auto& open = open_slabs_[static_cast<std::size_t>(std::countr_zero(slot))];
  std::unique_lock lock(mutex_);
  Offset page;
  if (!open.empty()) {
    page = *open.begin();
  } else {
    lock.unlock();
    // Used below even if another thread has opened one meanwhile: a page without anything in it would never be given back.
    page = allocate_pages(page_size(), page_size());
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
Arena::Offset Arena::take(std::size_t bytes, std::size_t align) {
  const auto place = [&](std::pair<std::size_t, Offset> extent) {
    const Offset at = round_up(extent.second, align);
    return at + bytes <= extent.second + extent.first ? std::optional(at) : std::nullopt;
  };
  auto candidate = free_by_size_.lower_bound({bytes, 0});
  for (int tries = 0; candidate != free_by_size_.end() && !place(*candidate); ++tries, ++candidate) {
    if (tries == 16) candidate = std::prev(free_by_size_.lower_bound({bytes + align, 0}));
  }
  if (candidate == free_by_size_.end()) {
    throw Error(ErrorKind::memory, "cannot allocate " + readable(bytes) +
                                       " of shared memory: no room in the arena of " + readable(size_) + ", " +
                                       readable(used()) + " of it in use; release some of it");
  }
  const auto [length, start] = *candidate;
  const Offset at = *place(*candidate);
  erase_free(free_by_offset_.find(start));
  if (at > start) give(start, at - start);
  if (start + length > at + bytes) give(at + bytes, start + length - at - bytes);
  return at;
}

// Invariant: free extents never touch each other.
void Arena::give(Offset offset, std::size_t bytes) {
  const auto next = free_by_offset_.lower_bound(offset);
  if (next != free_by_offset_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      offset = before->first;
      bytes += before->second;
      erase_free(before);
    }
  }
  if (next != free_by_offset_.end() && offset + bytes == next->first) {
    bytes += next->second;
    erase_free(next);
  }
  free_by_offset_.emplace(offset, bytes);
  free_by_size_.emplace(bytes, offset);
}

void Arena::erase_free(std::map<Offset, std::size_t>::iterator extent) {
  free_by_size_.erase({extent->second, extent->first});
  free_by_offset_.erase(extent);
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

void Arena::punch(Offset offset, std::size_t bytes) {
  const auto at = static_cast<off_t>(offset);
  while (::fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, static_cast<off_t>(bytes)) != 0) {
    if (errno == EINTR) continue;
    std::memset(base_ + offset, 0, bytes);  // the pages stay, but free memory is zero all the same
    return;
  }
}

void ArenaDeleter::operator()(void* memory) const noexcept { Arena::release(memory); }

}  // namespace ringleader
