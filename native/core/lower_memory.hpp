// The memory a lowering reasons about: every chunk of every rank's buffers is one *location* with an integer id, and
// what has happened to it so far. Inside lower only.
#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <new>
#include <utility>
#include <vector>

#include "core/lower_states.hpp"

namespace ringleader::lowering {

using LocId = std::uint32_t;

// An access to a location by an instruction that has been emitted. In-order instructions are named by the count they
// complete with, network instructions by kNetwork | their index in the rank's program.
struct Event {
  Rank rank;
  std::uint32_t code;
  bool operator==(const Event&) const = default;
};
inline constexpr std::uint32_t kNetwork = 0x80000000u;
inline constexpr Rank kNobody = -1;

struct Location {
  Event writer{kNobody, 0};        // last writer; nobody = initial content
  std::int32_t readers = -1;       // head of the list of readers since then (Memory::readers)
  std::int32_t contributions = 0;  // ranks whose contribution is in it; 0 = holds nothing
  Rank lowest = kNobody;           // the lowest of them
  bool remote = false;             // another rank of the node reads (not the initial copy) or writes it
  bool written = false;
  bool loaded = false;    // its initial content is read
  bool snapshot = false;  // peers read its initial content only, and its owner overwrites it
};

struct Place {
  Rank rank;
  Buffer buffer;
  std::int32_t chunk;
};

// For arrays with an entry per location: on huge pages, where the kernel has any, so that gigabytes of them do not cost
// a page fault for every 4 KiB.
template <class T>
struct HugePages {
  using value_type = T;
  static constexpr std::size_t kPage = std::size_t{2} << 20;
  HugePages() = default;
  template <class U>
  HugePages(const HugePages<U>&) {}  // NOLINT: allocators convert
  T* allocate(std::size_t n) {
    const std::size_t bytes = n * sizeof(T);
    if (bytes < 2 * kPage) return static_cast<T*>(::operator new(bytes));
    void* memory = ::operator new(bytes, std::align_val_t{kPage});
    ::madvise(memory, bytes, MADV_HUGEPAGE);
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, std::size_t n) {
    if (n * sizeof(T) < 2 * kPage)
      ::operator delete(memory);
    else
      ::operator delete(memory, std::align_val_t{kPage});
  }
  bool operator==(const HugePages&) const = default;
};
template <class T>
using Large = std::vector<T, HugePages<T>>;

class Memory {
 public:
  // `scratch[r]` = scratch chunks the schedule itself uses on rank r; `used` = buffers any transfer names.
  Memory(const CollectiveState& state, const bool (&used)[kBufferCount], const std::vector<std::int32_t>& scratch);

  LocId id(Rank rank, Buffer buffer, std::int32_t chunk) const {
    if (buffer == Buffer::scratch) return scratch_[rank][chunk];
    return static_cast<LocId>(rank) * stride_ + offset_[static_cast<int>(buffer)] + static_cast<LocId>(chunk);
  }
  Place place(LocId id) const;
  // A fresh scratch chunk of the rank, after all others; returns its chunk number.
  std::int32_t grow_scratch(Rank rank);

  Location& operator[](LocId id) { return locations_[id]; }
  const Location& operator[](LocId id) const { return locations_[id]; }
  std::size_t size() const { return locations_.size(); }
  bool has(Buffer buffer) const { return used_[static_cast<int>(buffer)]; }
  const std::vector<LocId>& scratch(Rank rank) const { return scratch_[rank]; }

  // Index within its block of the chunk whose size a location has; -1 for scratch nothing was written to.
  std::int32_t chunk_class(Place place) const {
    if (place.buffer == Buffer::scratch) return scratch_class_[scratch_[place.rank][place.chunk] - dense_];
    return place.chunk % state_.chunks_per_block;
  }
  void set_scratch_class(Place place, std::int32_t value) {
    scratch_class_[scratch_[place.rank][place.chunk] - dense_] = value;
  }

  void add_reader(LocId id, Event event) {
    Location& location = locations_[id];
    if (location.readers >= 0 && nodes_[location.readers].event == event) return;
    if (free_ < 0) {
      nodes_.push_back({event, -1});
      free_ = static_cast<std::int32_t>(nodes_.size()) - 1;
    }
    ReaderNode& node = nodes_[free_];
    const std::int32_t taken = std::exchange(free_, node.next);
    node = {event, location.readers};
    location.readers = taken;
  }
  void forget_readers(LocId id) {
    std::int32_t& head = locations_[id].readers;
    while (head >= 0) {
      const std::int32_t next = nodes_[head].next;
      nodes_[head].next = free_;
      free_ = std::exchange(head, next);
    }
  }
  template <class Visit>
  void each_reader(const Location& location, Visit&& visit) const {
    for (std::int32_t i = location.readers; i >= 0; i = nodes_[i].next) visit(nodes_[i].event);
  }

 private:
  struct ReaderNode {
    Event event;
    std::int32_t next;
  };
  CollectiveState state_;
  bool used_[kBufferCount];
  LocId offset_[kBufferCount] = {0, 0, 0, 0};
  LocId stride_ = 0;
  LocId dense_ = 0;  // ids below: data, input, output; then scratch in order of creation
  Large<Location> locations_;
  std::vector<std::vector<LocId>> scratch_;  // per rank: id of each scratch chunk
  std::vector<Place> scratch_place_;         // by id - dense_
  std::vector<std::int32_t> scratch_class_;  // by id - dense_
  Large<ReaderNode> nodes_;
  std::int32_t free_ = -1;  // nodes that are in no list, linked
};

}  // namespace ringleader::lowering
