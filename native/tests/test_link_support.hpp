// Pairs of links of every transport, for what all of them must do alike.
#pragma once

#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "test_tcp_support.hpp"
#include "test_ucx_support.hpp"
#include "transport/tcp/tcp_link.hpp"

namespace ringleader::test {

inline std::vector<unsigned char> pattern(std::size_t bytes, unsigned seed) {
  std::vector<unsigned char> data(bytes);
  for (std::size_t i = 0; i < bytes; ++i) data[i] = static_cast<unsigned char>((i * 2654435761U + seed * 97U) >> 5);
  return data;
}

// What progress() throws. The peer is driven too, as long as it has no error: a transport may move nothing by itself.
inline Error error_of(Link& link, Link* other = nullptr) {
  try {
    for (int i = 0; i < 2000; ++i) {
      link.progress();
      if (other != nullptr) other->progress();
      usleep(100);
    }
  } catch (const Error& error) {
    return error;
  }
  return Error(ErrorKind::internal, "nothing was thrown");
}

// Link `a` of rank 0 ("rank 0 (host a)") and `b` of rank 1, connected.
struct LinkPair {
  std::string kind;
  std::unique_ptr<Link> a, b;
  void step() {
    a->progress();
    b->progress();
  }
};

inline LinkPair tcp_links(std::string kind, std::pair<int, int> fds, bool tiny) {
  if (tiny) {
    tiny_buffers(fds.first);
    tiny_buffers(fds.second);
  }
  return {std::move(kind), std::make_unique<TcpLink>(fds.first, 1, "rank 1 (host b)"),
          std::make_unique<TcpLink>(fds.second, 0, "rank 0 (host a)")};
}

inline LinkPair ucx_links(const std::string& transports) {
  const auto a = ucx_worker(transports), b = ucx_worker(transports);
  return {"ucx " + transports, std::make_unique<UcxLink>(a, b->address(), 0, 1, std::uint8_t{0}, "rank 1 (host b)"),
          std::make_unique<UcxLink>(b, a->address(), 1, 0, std::uint8_t{0}, "rank 0 (host a)")};
}

// Fresh pairs of every kind that this machine has.
inline std::vector<LinkPair> link_pairs() {
  std::vector<LinkPair> pairs;
  pairs.push_back(tcp_links("tcp", tcp_pair(), false));
  pairs.push_back(tcp_links("tcp, tiny buffers", tcp_pair(), true));
  pairs.push_back(tcp_links("unix", unix_pair(), false));
  pairs.push_back(tcp_links("unix, tiny buffers", unix_pair(), true));
  if (have_ucx())
    for (const char* transports : {"tcp,self", "posix,cma,self", "sysv,self"}) pairs.push_back(ucx_links(transports));
  return pairs;
}

}  // namespace ringleader::test
