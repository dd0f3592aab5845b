#include "core/ring_pair.hpp"

#include <bit>

namespace ringleader {

RingPair::RingPair(Mesh& mesh, Rank peer, std::uint64_t ring_bytes)
    : mesh_(mesh), peer_(peer), ring_bytes_(ring_bytes) {}

// Asked in spinning loops; whether the process lives costs a system call, so that is looked at now and then only.
bool RingPair::peer_present() {
  Mesh::Peer& peer = mesh_.peers[static_cast<std::size_t>(peer_)];
  if (peer.shared->control.state.load(std::memory_order_acquire) == static_cast<std::uint32_t>(BlockState::closed))
    return false;
  return ++asked_ % 1024 != 0 || peer.process->alive();
}

RingStream::Peer RingPair::peer_of_stream() {
  return RingStream::Peer{peer_, mesh_.name(peer_), [this] { return peer_present(); },
                          [this] { ring(mesh_.control(peer_)); }};
}

void RingPair::open_writer() {
  Arena& arena = Arena::instance();
  void* memory = arena.allocate_pages(ByteRing::bytes_needed(ring_bytes_));
  mesh_.own_rings[static_cast<std::size_t>(peer_)] = memory;
  writer_ = std::make_unique<RingStream>(&unused_, ByteRing::create(memory), ring_bytes_, peer_of_stream());
  mesh_.own->ring_bytes.store(ring_bytes_, std::memory_order_relaxed);
  mesh_.own->rings()[peer_].store(arena.offset_of(memory), std::memory_order_release);
}

bool RingPair::open_reader() {
  Mesh::Peer& peer = mesh_.peers[static_cast<std::size_t>(peer_)];
  const std::uint64_t offset = peer.shared->rings()[mesh_.rank].load(std::memory_order_acquire);
  if (offset == 0) return false;
  const std::uint64_t capacity = peer.shared->ring_bytes.load(std::memory_order_relaxed);
  if (!std::has_single_bit(capacity) || capacity > peer.process->size() || offset % 64 != 0 ||
      !peer.process->contains(offset, ByteRing::bytes_needed(capacity)))
    throw Error(ErrorKind::internal, "the message ring of " + peer.name + " is damaged", {peer_});
  auto* in = reinterpret_cast<ByteRing*>(peer.process->base() + offset);
  reader_ = std::make_unique<RingStream>(in, &unused_, capacity, peer_of_stream());
  return true;
}

std::size_t RingPair::write(const void* data, std::size_t bytes) {
  if (!writer_) open_writer();
  return writer_->write(data, bytes);
}

std::size_t RingPair::read(void* data, std::size_t bytes) {
  if (!reader_ && !open_reader()) {
    if (!peer_present() && mesh_.peers[static_cast<std::size_t>(peer_)].shared->rings()[mesh_.rank].load() == 0)
      throw Error(ErrorKind::peer_lost, mesh_.name(peer_) + " has left, and no message from it is there", {peer_});
    return 0;
  }
  return reader_->read(data, bytes);
}

}  // namespace ringleader
