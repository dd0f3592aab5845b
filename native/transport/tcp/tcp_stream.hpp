// A ByteStream over one connected TCP socket.
#pragma once

#include <string>

#include "base/types.hpp"
#include "transport/stream.hpp"
#include "transport/tcp/socket.hpp"

namespace ringleader {

class TcpStream final : public ByteStream {
 public:
  // Takes over `fd`, a connected, authenticated stream socket.
  TcpStream(int fd, Rank peer, std::string peer_name);
  ~TcpStream() override;
  TcpStream(const TcpStream&) = delete;
  TcpStream& operator=(const TcpStream&) = delete;

  std::size_t write(const void* data, std::size_t bytes) override;
  std::size_t read(void* data, std::size_t bytes) override;
  int poll_fd() const override { return socket_.fd(); }

 private:
  tcp::Socket socket_;
  Rank peer_;
  std::string peer_name_;
};

}  // namespace ringleader
