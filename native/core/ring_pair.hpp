// The byte stream to a peer of the same node: one ring each way, each made by its writer when it first has something to
// say.
#pragma once

#include <cstdint>
#include <memory>

#include "core/mesh.hpp"
#include "transport/shm/ring_stream.hpp"
#include "transport/stream.hpp"

namespace ringleader {

class RingPair final : public ByteStream {
 public:
  // `ring_bytes` (a power of two) is the capacity of the ring this rank writes; the peer says its own's in its shared
  // block.
  RingPair(Mesh& mesh, Rank peer, std::uint64_t ring_bytes);
  std::size_t write(const void* data, std::size_t bytes) override;
  std::size_t read(void* data, std::size_t bytes) override;
  int poll_fd() const override { return -1; }

 private:
  void open_writer();
  bool open_reader();
  bool peer_present();
  RingStream::Peer peer_of_stream();

  Mesh& mesh_;
  Rank peer_;
  std::uint64_t ring_bytes_;
  std::uint32_t asked_ = 0;
  ByteRing unused_{};  // stands in for the direction that a one-way stream does not use
  std::unique_ptr<RingStream> writer_, reader_;
};

}  // namespace ringleader
