// A ByteStream to a process of the same host over two byte rings in shared memory, one for each direction.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "base/types.hpp"
#include "transport/stream.hpp"

namespace ringleader {

// Lies in shared memory, followed by its data; one producer, one consumer. Positions count bytes from the ring's
// creation and never wrap; byte p lies at data()[p & (capacity - 1)]. Invariant: head <= tail <= head + capacity.
struct ByteRing {
  alignas(64) std::atomic<std::uint64_t> head;  // consumed up to here; written by the consumer only
  alignas(64) std::atomic<std::uint64_t> tail;  // produced up to here; written by the producer only

  unsigned char* data() { return reinterpret_cast<unsigned char*>(this + 1); }
  static std::size_t bytes_needed(std::size_t capacity) { return sizeof(ByteRing) + capacity; }
  // Makes an empty ring at `memory` (64-byte aligned). By its owner, before the peer may use it.
  static ByteRing* create(void* memory);
};
static_assert(sizeof(ByteRing) == 128 && std::atomic<std::uint64_t>::is_always_lock_free);

class RingStream final : public ByteStream {
 public:
  struct Peer {
    Rank rank;
    std::string name;
    std::function<bool()>
        alive;  // false: nobody will write any more. Asked whenever nothing can be moved: keep it cheap
    std::function<void()> notify;  // called after bytes were written or room was made; may be empty
  };

  // `capacity` (a power of two) is the same for both rings. The memory must outlive the stream.
  // Throws Error(invalid).
  RingStream(ByteRing* in, ByteRing* out, std::size_t capacity, Peer peer);

  std::size_t write(const void* data, std::size_t bytes) override;
  std::size_t read(void* data, std::size_t bytes) override;
  int poll_fd() const override { return -1; }

 private:
  [[noreturn]] void corrupted(const char* what) const;
  [[noreturn]] void peer_lost(const char* what) const;

  ByteRing* in_;
  ByteRing* out_;
  std::size_t capacity_;
  Peer peer_;
  // Our own positions are kept here and only published: shared memory is read for the peer's positions alone, and those
  // are checked, so that no peer can make us touch memory outside the rings.
  std::uint64_t in_head_, out_tail_;
};

}  // namespace ringleader
