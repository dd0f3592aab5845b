// What every TCP connection of the native core has in common: options, and the text of its errors.
#pragma once

#include <cstdint>
#include <string>

#include "base/types.hpp"

namespace ringleader::tcp {

// Non-blocking, no Nagle delay, keepalive: an idle connection whose peer host vanished fails within about 6 s.
// Throws Error(invalid) if `fd` is not an open socket.
//
// TCP_USER_TIMEOUT is left alone on purpose: Linux also applies it to a peer that is alive but reads nothing for a
// while (zero window), and a rank that is merely late must not be declared dead. See prepare_control().
void prepare_data(int fd);

// The same plus TCP_USER_TIMEOUT. For connections whose peer always reads soon and that carry little, so their window
// never closes: there unacknowledged data means a dead host, which shows within about 6 s.
void prepare_control(int fd);

// "connection to rank 2 (host b, pid 77) was lost during <what>: Connection reset by peer". `code` is an errno value;
// 0 means that the peer closed the connection.
Error lost(Rank peer, const std::string& peer_name, const std::string& what, int code);

// True for errno values that only mean "not now".
bool would_block(int code);

// Owns a connected descriptor. A forked child's copy is closed at the fork, so that the connection ends when this
// process does.
class Socket {
 public:
  explicit Socket(int fd);
  ~Socket() { close(); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int fd() const { return fd_; }
  bool open() const { return fd_ >= 0; }
  void close();

 private:
  int fd_;
  std::uint64_t generation_;
};

}  // namespace ringleader::tcp
