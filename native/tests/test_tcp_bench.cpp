// Measurements of the TCP link against plain socket loops, two processes on loopback. Skipped by default:
//   ringleader_tests --no-skip -tc="bench: tcp*"
#include <fcntl.h>
#include <netinet/tcp.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "test_tcp_support.hpp"
#include "transport/tcp/tcp_link.hpp"

namespace ringleader {
namespace {

using Seconds = std::chrono::duration<double>;

double now() { return Seconds(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Runs `side(0, fd)` in this process and `side(1, fd)` in a forked one; returns what the former returned.
double both(const std::function<double(int, int)>& side) {
  const auto [a, b] = test::tcp_pair();
  const pid_t child = fork();
  if (child == 0) {
    ::close(a);
    side(1, b);
    _exit(0);
  }
  ::close(b);
  const double result = side(0, a);
  waitpid(child, nullptr, 0);
  return result;
}

double plain_duplex(int fd, std::size_t bytes, int rounds) {
  fcntl(fd, F_SETFL, O_NONBLOCK);
  std::vector<char> out(bytes, 1), in(bytes, 2);
  double start = 0;
  for (int r = -2; r < rounds; ++r) {
    if (r == 0) start = now();
    std::size_t sent = 0, got = 0;
    while (sent < bytes || got < bytes) {
      if (sent < bytes)
        sent += static_cast<std::size_t>(std::max<ssize_t>(0, send(fd, &out[sent], bytes - sent, MSG_NOSIGNAL)));
      if (got < bytes) got += static_cast<std::size_t>(std::max<ssize_t>(0, recv(fd, &in[got], bytes - got, 0)));
    }
  }
  const double rate = static_cast<double>(bytes) * rounds / (now() - start);
  ::close(fd);
  return rate;
}

void add_floats(const void*, void* dst, const void* src, std::size_t bytes) {
  auto* d = static_cast<float*>(dst);
  const auto* s = static_cast<const float*>(src);
  for (std::size_t i = 0; i < bytes / sizeof(float); ++i) d[i] += s[i];
}

double link_duplex(int side, int fd, std::size_t bytes, int rounds, FoldFn fold) {
  TcpLink link(fd, 1 - side, "peer");
  std::vector<char> out(bytes, 1), in(bytes, 2);
  double start = 0;
  for (int r = -2; r < rounds; ++r) {
    if (r == 0) start = now();
    std::uint32_t sent = 0, got = 0;
    auto recv = test::recv_request(7, {{in.data(), bytes}}, &got);
    recv.fold = fold;
    recv.item = sizeof(float);
    link.post_recv(std::move(recv));
    link.post_send(test::send_request(7, {{out.data(), bytes}}, &sent));
    while (sent == 0 || got == 0) link.progress();
  }
  return static_cast<double>(bytes) * rounds / (now() - start);
}

// Microseconds one way.
double plain_pingpong(int side, int fd, int rounds) {
  fcntl(fd, F_SETFL, O_NONBLOCK);
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  char buffer[120] = {};
  const double start = now();
  for (int r = 0; r < 2 * rounds; ++r) {
    if (r % 2 == side) {
      if (send(fd, buffer, sizeof buffer, MSG_NOSIGNAL) < 0) break;
    } else {
      while (recv(fd, buffer, sizeof buffer, 0) < 0 && errno == EAGAIN) {}
    }
  }
  const double time = now() - start;
  ::close(fd);
  return time / (2 * rounds) * 1e6;
}

double link_pingpong(int side, int fd, int rounds) {
  TcpLink link(fd, 1 - side, "peer");
  std::uint64_t value = 0;
  const double start = now();
  for (int r = 0; r < 2 * rounds; ++r) {
    std::uint32_t done = 0;
    if (r % 2 == side) {
      link.post_send(test::send_request(7, {{&value, sizeof value}}, &done));
    } else {
      link.post_recv(test::recv_request(7, {{&value, sizeof value}}, &done));
    }
    while (done == 0) link.progress();
  }
  return (now() - start) / (2 * rounds) * 1e6;
}

}  // namespace

TEST_CASE("bench: tcp duplex rate and ping-pong latency" * doctest::skip()) {
  for (int repeat = 0; repeat < 3; ++repeat) {
    for (std::size_t bytes : {64UL << 10, 1UL << 20, 16UL << 20}) {
      const int rounds = static_cast<int>(std::max<std::size_t>(8, (256UL << 20) / bytes));
      const double plain = both([&](int, int fd) { return plain_duplex(fd, bytes, rounds); });
      const double link = both([&](int side, int fd) { return link_duplex(side, fd, bytes, rounds, nullptr); });
      const double fold = both([&](int side, int fd) { return link_duplex(side, fd, bytes, rounds, add_floats); });
      std::printf("duplex %8zu B: plain %.2f GB/s each way, link %.2f, link with fold %.2f\n", bytes, plain / 1e9,
                  link / 1e9, fold / 1e9);
    }
    const double plain = both([&](int side, int fd) { return plain_pingpong(side, fd, 20000); });
    const double link = both([&](int side, int fd) { return link_pingpong(side, fd, 20000); });
    std::printf("ping-pong 8 B (with header): plain %.2f us one way, link %.2f us\n", plain, link);
  }
}

}  // namespace ringleader
