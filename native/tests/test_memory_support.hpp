// Child processes and descriptor passing for the tests of shared memory.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstring>
#include <utility>

#include "doctest/doctest.h"

namespace ringleader::testing {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// Runs `body` in a forked child; the child's exit code is 0 if it returned true.
template <class Body>
pid_t in_child(Body&& body) {
  const pid_t pid = ::fork();
  REQUIRE(pid >= 0);
  if (pid > 0) return pid;
  bool good = false;
  try {
    good = body();
  } catch (...) {}
  ::_exit(good ? 0 : 1);
}

// The exit code, or 128 + the signal that ended it.
inline int exit_of(pid_t pid) {
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

struct SocketPair {
  int fd[2] = {-1, -1};
  SocketPair() { REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd) == 0); }
  SocketPair(const SocketPair&) = delete;
  SocketPair& operator=(const SocketPair&) = delete;
  ~SocketPair() {
    drop(0);
    drop(1);
  }
  void drop(int side) {
    if (fd[side] >= 0) ::close(fd[side]);
    fd[side] = -1;
  }
  int take(int side) { return std::exchange(fd[side], -1); }
};

// Sends `value` and a copy of the descriptor `fd`.
template <class Value>
bool send_with_fd(int socket, const Value& value, int fd) {
  iovec part{const_cast<Value*>(&value), sizeof value};
  alignas(cmsghdr) char space[CMSG_SPACE(sizeof fd)] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = space;
  message.msg_controllen = sizeof space;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof fd);
  std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  return ::sendmsg(socket, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof value);
}

// The received descriptor, -1 if there was none.
template <class Value>
int receive_with_fd(int socket, Value& value) {
  iovec part{&value, sizeof value};
  alignas(cmsghdr) char space[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = space;
  message.msg_controllen = sizeof space;
  if (::recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != static_cast<ssize_t>(sizeof value)) return -1;
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  int fd = -1;
  if (header != nullptr) std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
  return fd;
}

// True once `condition` holds; false after half a minute.
template <class Condition>
bool eventually(Condition&& condition) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > limit) return false;
    ::usleep(500);
  }
  return true;
}

}  // namespace ringleader::testing
