// Sockets and deadlines shared by the tests of the TCP transport.
#pragma once

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "transport/link.hpp"

namespace ringleader::test {

inline std::pair<int, int> unix_pair() {
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, fds) != 0) throw std::runtime_error("socketpair failed");
  return {fds[0], fds[1]};
}

// Two connected TCP sockets on loopback.
inline std::pair<int, int> tcp_pair() {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  const int client = socket(AF_INET, SOCK_STREAM, 0);
  if (bind(listener, generic, length) != 0 || listen(listener, 1) != 0 ||
      getsockname(listener, generic, &length) != 0 || connect(client, generic, length) != 0) {
    throw std::runtime_error("no loopback TCP connection");
  }
  const int server = accept(listener, nullptr, nullptr);
  ::close(listener);
  return {client, server};
}

// Makes every large write a partial one. (A tiny receive buffer would only wait for the kernel's window timers.)
inline void tiny_buffers(int fd) {
  const int bytes = 1;  // the kernel raises it to its minimum, a few KiB
  setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
}

// Calls `step` until `finished`; gives up (test failure) after a generous limit.
inline void drive(const std::function<void()>& step, const std::function<bool()>& finished) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!finished()) {
    step();
    if (std::chrono::steady_clock::now() > limit) {
      FAIL("no progress within 60 s");
      return;
    }
  }
}

inline OpInfo example_info(std::uint64_t sequence) {
  OpInfo info;
  info.sequence = sequence;
  info.count = 6;
  info.algorithm = 0x5f3a120000000001ULL;
  info.collective = static_cast<std::uint8_t>(Collective::all_reduce);
  info.dtype = static_cast<std::uint8_t>(DType::f32);
  info.op = static_cast<std::uint8_t>(ReduceOp::sum);
  info.ndim = 2;
  info.shape[0] = 2;
  info.shape[1] = 3;
  return info;
}

inline MessageHeader header(std::uint64_t sequence, std::uint32_t index, const std::vector<Piece>& pieces) {
  MessageHeader result{kHeaderMagic, index, sequence, 0, example_info(sequence)};
  for (const Piece& piece : pieces) result.bytes += piece.bytes;
  return result;
}

inline SendRequest send_request(std::uint64_t sequence, std::vector<Piece> pieces, std::uint32_t* done,
                                std::uint32_t index = 0) {
  SendRequest request;
  request.header = header(sequence, index, pieces);
  request.pieces = std::move(pieces);
  request.done = done;
  return request;
}

inline RecvRequest recv_request(std::uint64_t sequence, std::vector<Piece> pieces, std::uint32_t* done,
                                std::uint32_t index = 0) {
  RecvRequest request;
  request.header = header(sequence, index, pieces);
  request.pieces = std::move(pieces);
  request.done = done;
  return request;
}

}  // namespace ringleader::test
