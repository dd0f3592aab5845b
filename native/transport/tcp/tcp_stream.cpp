#include "transport/tcp/tcp_stream.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "transport/tcp/socket.hpp"

namespace ringleader {

TcpStream::TcpStream(int fd, Rank peer, std::string peer_name)
    : socket_(fd), peer_(peer), peer_name_(std::move(peer_name)) {
  tcp::prepare_data(socket_.fd());
}

TcpStream::~TcpStream() = default;

std::size_t TcpStream::write(const void* data, std::size_t bytes) {
  const ssize_t n = send(socket_.fd(), data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (n >= 0) return static_cast<std::size_t>(n);
  if (tcp::would_block(errno)) return 0;
  throw tcp::lost(peer_, peer_name_, "a send", errno);
}

std::size_t TcpStream::read(void* data, std::size_t bytes) {
  if (bytes == 0) return 0;  // recv would return 0, which means that the peer closed
  const ssize_t n = recv(socket_.fd(), data, bytes, MSG_DONTWAIT);
  if (n > 0) return static_cast<std::size_t>(n);
  if (n < 0 && tcp::would_block(errno)) return 0;
  throw tcp::lost(peer_, peer_name_, "a receive", n == 0 ? 0 : errno);
}

}  // namespace ringleader
