#include "transport/tcp/socket.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <system_error>

#include "memory/fork.hpp"

namespace ringleader::tcp {

namespace {

constexpr int kKeepIdleSeconds = 2;
constexpr int kKeepIntervalSeconds = 1;
constexpr int kKeepProbes = 4;
constexpr int kUserTimeoutMs = 6000;

std::string describe(int code) { return std::generic_category().message(code); }

// Failing is harmless: the descriptor may be another stream socket (a Unix socket pair in tests), which has no such option.
void set(int fd, int level, int option, int value) { static_cast<void>(setsockopt(fd, level, option, &value, sizeof value)); }

}  // namespace

void prepare_data(int fd) {
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0) {
    throw Error(ErrorKind::invalid, "descriptor " + std::to_string(fd) + " is not an open socket: " + describe(errno));
  }
  set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
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

void Socket::close() {
  close_owned(fd_, generation_);
  fd_ = -1;
}

}  // namespace ringleader::tcp
