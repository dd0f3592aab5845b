// An ordered, reliable, non-blocking byte stream to one peer: a TCP connection or a pair of shared-memory rings.
#pragma once

#include <cstddef>
#include <memory>

namespace ringleader {

class ByteStream {
 public:
  virtual ~ByteStream() = default;
  // Bytes taken (0 = full right now). Throws Error(peer_lost).
  virtual std::size_t write(const void* data, std::size_t bytes) = 0;
  // Bytes delivered (0 = nothing there right now). Throws Error(peer_lost) when the peer closed.
  virtual std::size_t read(void* data, std::size_t bytes) = 0;
  virtual int poll_fd() const = 0;  // -1 for shared memory
};

}  // namespace ringleader
