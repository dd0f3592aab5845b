#include "transport/shm/ring_stream.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>

namespace ringleader {

ByteRing* ByteRing::create(void* memory) {
  auto* ring = new (memory) ByteRing;
  ring->head.store(0, std::memory_order_relaxed);
  ring->tail.store(0, std::memory_order_release);
  return ring;
}

RingStream::RingStream(ByteRing* in, ByteRing* out, std::size_t capacity, Peer peer)
    : in_(in),
      out_(out),
      capacity_(capacity),
      peer_(std::move(peer)),
      in_head_(in->head.load(std::memory_order_relaxed)),
      out_tail_(out->tail.load(std::memory_order_relaxed)) {
  if (!std::has_single_bit(capacity)) {
    throw Error(ErrorKind::invalid, "ring capacity must be a power of two, got " + std::to_string(capacity));
  }
}

std::size_t RingStream::write(const void* data, std::size_t bytes) {
  if (bytes == 0) return 0;
  // Acquire: the consumer has finished reading what it freed.
  const std::uint64_t used = out_tail_ - out_->head.load(std::memory_order_acquire);
  if (used > capacity_) corrupted("outgoing");
  const std::size_t n = std::min<std::uint64_t>(bytes, capacity_ - used);
  if (n == 0) {
    if (!peer_.alive()) peer_lost("a send");
    return 0;
  }
  const std::size_t at = out_tail_ & (capacity_ - 1);
  const std::size_t first = std::min(n, capacity_ - at);
  std::memcpy(out_->data() + at, data, first);
  std::memcpy(out_->data(), static_cast<const unsigned char*>(data) + first, n - first);
  out_tail_ += n;
  out_->tail.store(out_tail_, std::memory_order_release);
  if (peer_.notify) peer_.notify();
  return n;
}

std::size_t RingStream::read(void* data, std::size_t bytes) {
  if (bytes == 0) return 0;
  std::uint64_t used = in_->tail.load(std::memory_order_acquire) - in_head_;
  if (used == 0) {
    if (peer_.alive()) return 0;
    // It may have written and then died; what it wrote still counts.
    used = in_->tail.load(std::memory_order_acquire) - in_head_;
    if (used == 0) peer_lost("a receive");
  }
  if (used > capacity_) corrupted("incoming");
  const std::size_t n = std::min<std::uint64_t>(bytes, used);
  const std::size_t at = in_head_ & (capacity_ - 1);
  const std::size_t first = std::min(n, capacity_ - at);
  std::memcpy(data, in_->data() + at, first);
  std::memcpy(static_cast<unsigned char*>(data) + first, in_->data(), n - first);
  in_head_ += n;
  in_->head.store(in_head_, std::memory_order_release);
  if (peer_.notify) peer_.notify();
  return n;
}

void RingStream::corrupted(const char* what) const {
  throw Error(ErrorKind::peer_lost,
              "the " + std::string(what) + " ring shared with " + peer_.name +
                  " holds impossible positions: its memory was damaged",
              {peer_.rank});
}

void RingStream::peer_lost(const char* what) const {
  throw Error(ErrorKind::peer_lost, peer_.name + " was lost during " + what, {peer_.rank});
}

}  // namespace ringleader
