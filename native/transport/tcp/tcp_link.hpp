// A Link over one connected TCP socket: header, then payload, one message after the other in each direction.
#pragma once

#include <sys/uio.h>

#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "base/clock.hpp"
#include "transport/link.hpp"
#include "transport/tcp/line_pace.hpp"
#include "transport/tcp/socket.hpp"
#include "transport/wire_stream.hpp"

namespace ringleader {

// Not thread-safe: the engine that owns it drives it. Wire format: MessageHeader (link.hpp, little-endian), then
// `bytes` bytes of payload. Nothing is acknowledged: a message that comes before its receive was posted waits in the
// socket. Every message must be exactly the one the posted receive describes; any difference ends the link.
class TcpLink final : public Link {
 public:
  // Takes over `fd`, a connected, authenticated stream socket. `peer_name` is how messages call the peer ("rank 2 (host
  // b)").
  TcpLink(int fd, Rank peer, std::string peer_name);
  ~TcpLink() override;
  TcpLink(const TcpLink&) = delete;
  TcpLink& operator=(const TcpLink&) = delete;

  void post_send(SendRequest&& request) override;
  void post_recv(RecvRequest&& request) override;
  bool progress() override;
  int poll_fd() const override { return socket_.fd(); }
  short poll_events() const override;
  Haste haste() const override;
  void prepare_sleep() override;
  void close() override;
  KernelTimes kernel_times() const override;

 private:
  struct Free {
    void operator()(unsigned char* memory) const;
  };

  // Bytes sent, and payload and header bytes consumed; at most about `budget`.
  std::size_t send_some(std::size_t budget);
  std::size_t recv_some(std::size_t budget);

  std::size_t gather_encoded(iovec* vectors, std::size_t& bytes);
  ssize_t send_pieces(iovec* vectors, std::size_t used);
  ssize_t send_together(const iovec* vectors, std::size_t used);
  void advance_send(std::size_t bytes);
  bool advance_encoded(std::size_t& bytes);
  void take_header(const RecvRequest& request);
  void consume_buffer(RecvRequest& request);
  std::size_t read_into_buffer(std::size_t limit, bool& drained);
  std::size_t read_into_pieces(const RecvRequest& request, std::size_t limit, bool& drained);
  void advance_recv(const RecvRequest& request, std::size_t bytes);
  std::size_t received(ssize_t result, std::size_t asked, bool& drained);
  std::uint64_t to_come() const;
  std::string activity() const;
  void await_first();
  void first_came();
  void flow_begins();
  void flow_ends();

  tcp::Socket socket_;
  Rank peer_;
  std::string peer_name_;
  std::optional<Error> failure_;  // the first one; the stream cannot be resynchronised after it

  // Of sends_.front(), part 0 is the header and part i piece i - 1; `send_offset_` bytes of that part are gone.
  std::deque<SendRequest> sends_;
  // If it has a wire format, part 1 is the payload: encoded_[encoded_begin_, encoded_end_), then what comes at
  // send_cursor_.
  std::size_t send_part_ = 0;
  std::size_t send_offset_ = 0;
  std::unique_ptr<unsigned char[], Free> encoded_;
  std::size_t encoded_begin_ = 0;
  std::size_t encoded_end_ = 0;
  std::uint64_t send_payload_ = 0;  // encoded bytes of it that are gone
  WireCursor send_cursor_;

  // Of recvs_.front(): `remaining_` payload bytes are not yet in the pieces; the next one belongs at
  // pieces[recv_piece_].data + recv_offset_ (at recv_cursor_, if it has a wire format).
  std::deque<RecvRequest> recvs_;
  bool header_seen_ = false;
  std::uint64_t remaining_ = 0;
  std::size_t recv_piece_ = 0;
  std::size_t recv_offset_ = 0;
  WireCursor recv_cursor_;

  // Since when the front message is waited for (only if it is the first of a window), and since when it flows (see
  // LinkTimes), with the bytes received by then. Zero: not.
  Clock::time_point awaited_{}, flowing_{};
  std::uint64_t flow_start_ = 0;
  LinePace pace_;
  std::size_t low_water_ = 1;  // bytes that must have come before the socket counts as readable

  // Bytes [begin_, end_) were read from the socket and not yet consumed: headers with what small payload came along,
  // and payload on its way to a fold or to be decoded.
  std::unique_ptr<unsigned char[], Free> buffer_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
};

}  // namespace ringleader
