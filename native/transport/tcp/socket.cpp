#include "transport/tcp/socket.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <system_error>

#include "base/fork.hpp"

namespace ringleader::tcp {

namespace {

constexpr int kKeepIdleSeconds = 2;
constexpr int kKeepIntervalSeconds = 1;
constexpr int kKeepProbes = 4;
constexpr int kUserTimeoutMs = 6000;

std::string describe(int code) { return std::generic_category().message(code); }

// Failing is harmless: the descriptor may be another stream socket (a Unix socket pair in tests), which has no such
// option.
void set(int fd, int level, int option, int value) {
  static_cast<void>(setsockopt(fd, level, option, &value, sizeof value));
}

bool within_this_host(int fd) {
  sockaddr_storage own{}, other{};
  socklen_t own_bytes = sizeof own, other_bytes = sizeof other;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&own), &own_bytes) != 0 ||
      getpeername(fd, reinterpret_cast<sockaddr*>(&other), &other_bytes) != 0 || own.ss_family != other.ss_family)
    return false;
  if (own.ss_family == AF_INET)
    return reinterpret_cast<sockaddr_in&>(own).sin_addr.s_addr == reinterpret_cast<sockaddr_in&>(other).sin_addr.s_addr;
  return own.ss_family == AF_INET6 &&
         std::memcmp(&reinterpret_cast<sockaddr_in6&>(own).sin6_addr, &reinterpret_cast<sockaddr_in6&>(other).sin6_addr,
                     sizeof(in6_addr)) == 0;
}

}  // namespace

void prepare_data(int fd) {
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0) {
    throw Error(ErrorKind::invalid, "descriptor " + std::to_string(fd) + " is not an open socket: " + describe(errno));
  }
  set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  // Within a host nothing can be congested, and a congestion control that paces (BBR) only delays: half the rate at 256
  // KiB. Every kernel has Reno, and lets everybody use it.
  if (within_this_host(fd)) static_cast<void>(setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4));
  set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(fd, IPPROTO_TCP, TCP_KEEPIDLE, kKeepIdleSeconds);
  set(fd, IPPROTO_TCP, TCP_KEEPINTVL, kKeepIntervalSeconds);
  set(fd, IPPROTO_TCP, TCP_KEEPCNT, kKeepProbes);
}

void prepare_control(int fd) {
  prepare_data(fd);
  set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, kUserTimeoutMs);
}

Error lost(Rank peer, const std::string& peer_name, const std::string& what, int code) {
  return Error(ErrorKind::peer_lost,
               "connection to " + peer_name + " was lost during " + what + ": " +
                   (code == 0 ? "the peer closed it" : describe(code)),
               {peer});
}

bool would_block(int code) { return code == EAGAIN || code == EWOULDBLOCK || code == EINTR; }

Socket::Socket(int fd) : fd_(fd), generation_(fork_generation()) { close_in_child(fd); }

namespace {

// A connection that is closed with bytes unread is reset, and what was sent over it and has not arrived yet is lost.
// The peer may still need that for an operation that is complete here.
void discard_unread(int fd) {
  char unread[16 * 1024];
  for (int i = 0; i < 1024 && recv(fd, unread, sizeof unread, MSG_DONTWAIT) > 0; ++i) continue;
}

}  // namespace

void Socket::close() {
  if (fd_ >= 0 && generation_ == fork_generation()) discard_unread(fd_);
  close_owned(fd_, generation_);
  fd_ = -1;
}

}  // namespace ringleader::tcp
