#include "transport/tcp/tcp_link.hpp"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <new>
#include <span>

#include "transport/message.hpp"
#include "transport/tcp/socket.hpp"

namespace ringleader {

namespace {

// Bytes received per progress() call: small enough that neither sending nor any other link waits long.
constexpr std::size_t kRecvBudget = 512 * 1024;
// Bytes given to one send. The socket's buffer limits what it takes; a smaller limit of ours would only end kernel
// segments early (1 MiB over loopback: 21 segments instead of 17, a quarter slower).
constexpr std::size_t kSendBudget = 4096 * 1024;
// Header and payload up to this are copied together: cheaper for the kernel than a list of pieces.
constexpr std::size_t kTogether = 8 * 1024;
// Payload is folded from a buffer that stays in the L2 cache.
constexpr std::size_t kBufferBytes = 256 * 1024;
// A read for a header takes this much along, so that a small message costs one system call. What follows in a large
// message goes straight to its destination.
constexpr std::size_t kReadAhead = 16 * 1024;
constexpr std::size_t kMaxIovecs = 64;
constexpr std::size_t kAlign = 64;
static_assert(kRecvBudget >= kBufferBytes && kReadAhead >= sizeof(MessageHeader));

Piece part(SendRequest& request, std::size_t index) {
  return index == 0 ? Piece{&request.header, sizeof request.header} : request.pieces[index - 1];
}

}  // namespace

void TcpLink::Free::operator()(unsigned char* memory) const { ::operator delete[](memory, std::align_val_t{kAlign}); }

TcpLink::TcpLink(int fd, Rank peer, std::string peer_name)
    : socket_(fd), peer_(peer), peer_name_(std::move(peer_name)) {
  tcp::prepare_data(socket_.fd());
}

TcpLink::~TcpLink() { close(); }

void TcpLink::close() {
  socket_.close();
  if (!failure_) failure_.emplace(ErrorKind::closed, "connection to " + peer_name_ + " was closed by this rank");
}

void TcpLink::post_send(SendRequest&& request) {
  check_posted(request.header, request.pieces, request.wire);
  sends_.push_back(std::move(request));
}

void TcpLink::post_recv(RecvRequest&& request) {
  check_posted(request.header, request.pieces, request.wire);
  check_fold(request, kAlign);
  recvs_.push_back(std::move(request));
  if (recvs_.size() == 1) await_first();
}

short TcpLink::poll_events() const {
  return static_cast<short>((recvs_.empty() ? 0 : POLLIN) | (sends_.empty() ? 0 : POLLOUT));
}

// What comes next was posted, so its size is known before it comes. Small messages, and the end of large ones, are
// always prompt.
Haste TcpLink::haste() const {
  if (recvs_.empty() && sends_.empty()) return Haste::none;
  if (!pace_.known()) return recvs_.empty() ? Haste::none : Haste::prompt;
  const std::uint64_t next = recvs_.empty() ? sends_.front().header.bytes
                             : header_seen_ ? to_come()
                                            : recvs_.front().header.bytes;
  return pace_.slow(next) ? Haste::unhurried : Haste::prompt;
}

// Of the front message, once its header is there. What lies in the buffer is less than an item or a block of it, and
// the kernel no longer counts it: to wait for `remaining_` bytes would be to wait for more than ever come.
std::uint64_t TcpLink::to_come() const { return remaining_ - (end_ - begin_); }

void TcpLink::prepare_sleep() {
  const bool unhurried = haste() == Haste::unhurried;
  if (unhurried) pace_.slept();
  const std::size_t wanted = unhurried && header_seen_ ? std::min<std::uint64_t>(to_come(), LinePace::kBatch) : 1;
  if (wanted == low_water_) return;
  const int value = static_cast<int>(wanted);
  if (setsockopt(socket_.fd(), SOL_SOCKET, SO_RCVLOWAT, &value, sizeof value) == 0) low_water_ = wanted;
}

bool TcpLink::progress() {
  if (failure_) throw *failure_;
  try {
    const std::uint64_t before = bytes_received;
    const std::size_t sent = sends_.empty() ? 0 : send_some(kSendBudget);
    const std::size_t consumed = recvs_.empty() ? 0 : recv_some(kRecvBudget);
    return sent + consumed > 0 || bytes_received != before;
  } catch (const Error& error) {
    failure_ = error;
    throw;
  }
}

std::string TcpLink::activity() const {
  if (!recvs_.empty()) return recvs_.front().header.info.text();
  return sends_.empty() ? "no operation" : sends_.front().header.info.text();
}

// ---------------------------------------------------------------- sending

// The front always has bytes left (advance_send drops messages that have none), so there is something to send.
std::size_t TcpLink::send_some(std::size_t budget) {
  iovec vectors[kMaxIovecs];
  std::size_t used = 0, bytes = 0;
  std::size_t first = send_part_, offset = send_offset_;
  for (SendRequest& request : sends_) {
    if (request.wire != WireFormat::f32) {  // alone: there is one buffer of encoded payload
      if (&request == &sends_.front()) used = gather_encoded(vectors, bytes);
      break;
    }
    for (std::size_t i = first; i <= request.pieces.size() && used < kMaxIovecs && bytes < budget; ++i) {
      const Piece piece = part(request, i);
      const std::size_t n = std::min(piece.bytes - offset, budget - bytes);
      if (n > 0) vectors[used++] = {static_cast<char*>(piece.data) + offset, n};
      bytes += n;
      offset = 0;
    }
    if (used == kMaxIovecs || bytes == budget) break;
    first = 0;
  }
  const ssize_t result = bytes <= kTogether ? send_together(vectors, used) : send_pieces(vectors, used);
  if (result < 0) {
    if (tcp::would_block(errno)) return 0;
    throw tcp::lost(peer_, peer_name_, activity(), errno);
  }
  const auto sent = static_cast<std::size_t>(result);
  bytes_sent += sent;
  advance_send(sent);
  return sent;
}

ssize_t TcpLink::send_pieces(iovec* vectors, std::size_t used) {
  msghdr message{};
  message.msg_iov = vectors;
  message.msg_iovlen = used;
  return sendmsg(socket_.fd(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

ssize_t TcpLink::send_together(const iovec* vectors, std::size_t used) {
  std::array<char, kTogether> together;
  std::size_t bytes = 0;
  for (const iovec& piece : std::span(vectors, used)) {
    std::memcpy(together.data() + bytes, piece.iov_base, piece.iov_len);
    bytes += piece.iov_len;
  }
  return send(socket_.fd(), together.data(), bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
}

// Header and encoded payload of the front message; more is encoded when all that was has gone.
std::size_t TcpLink::gather_encoded(iovec* vectors, std::size_t& bytes) {
  SendRequest& request = sends_.front();
  std::size_t used = 0;
  if (send_part_ == 0)
    vectors[used++] = {reinterpret_cast<char*>(&request.header) + send_offset_, sizeof request.header - send_offset_};
  if (encoded_begin_ == encoded_end_) {
    if (!encoded_)
      encoded_.reset(static_cast<unsigned char*>(::operator new[](kBufferBytes, std::align_val_t{kAlign})));
    encoded_begin_ = 0;
    encoded_end_ = encode_next(request, send_cursor_, encoded_.get(), kBufferBytes);
  }
  if (encoded_begin_ < encoded_end_) vectors[used++] = {encoded_.get() + encoded_begin_, encoded_end_ - encoded_begin_};
  for (std::size_t i = 0; i < used; ++i) bytes += vectors[i].iov_len;
  return used;
}

// Counts `bytes` off the front message; true if that was its end.
bool TcpLink::advance_encoded(std::size_t& bytes) {
  if (send_part_ == 0) {
    const std::size_t n = std::min(bytes, sizeof(MessageHeader) - send_offset_);
    bytes -= n;
    send_offset_ += n;
    if (send_offset_ < sizeof(MessageHeader)) return false;
    send_part_ = 1;
    send_offset_ = 0;
  }
  const std::size_t n = std::min(bytes, encoded_end_ - encoded_begin_);
  bytes -= n;
  encoded_begin_ += n;
  send_payload_ += n;
  if (send_payload_ < sends_.front().header.bytes) return false;
  send_payload_ = 0;
  send_cursor_ = {};
  return true;
}

// Afterwards the next byte to go is at (send_part_, send_offset_) of the front, and every message without bytes left
// has been completed and dropped.
void TcpLink::advance_send(std::size_t bytes) {
  while (!sends_.empty()) {
    SendRequest& request = sends_.front();
    if (request.wire != WireFormat::f32) {
      if (!advance_encoded(bytes)) return;
      send_part_ = request.pieces.size() + 1;
    }
    for (; send_part_ <= request.pieces.size(); ++send_part_, send_offset_ = 0) {
      const std::size_t left = part(request, send_part_).bytes - send_offset_;
      if (bytes < left) {
        send_offset_ += bytes;
        return;
      }
      bytes -= left;
    }
    if (request.done != nullptr) *request.done = 1;
    sends_.pop_front();
    send_part_ = 0;
  }
}

// ---------------------------------------------------------------- receiving

std::size_t TcpLink::recv_some(std::size_t budget) {
  std::size_t moved = 0;
  bool drained = false;  // the last read took all there was: another would only return EAGAIN
  while (!recvs_.empty() && moved < budget) {
    RecvRequest& request = recvs_.front();
    const std::size_t before = end_ - begin_;
    if (!header_seen_ && before >= sizeof(MessageHeader)) take_header(request);
    if (header_seen_) consume_buffer(request);
    moved += before - (end_ - begin_);
    if (header_seen_ && remaining_ == 0) {
      if (flowing_ != Clock::time_point{}) flow_ends();
      if (request.done != nullptr) *request.done = 1;
      recvs_.pop_front();
      header_seen_ = false;
      if (!recvs_.empty()) await_first();
      continue;
    }
    if (drained) break;
    std::size_t got = 0;
    if (!header_seen_) {
      got = read_into_buffer(kReadAhead, drained);
    } else if (request.fold != nullptr || request.wire != WireFormat::f32) {
      // Never past this message, so that the next header is read together with its payload.
      got = read_into_buffer(std::min<std::uint64_t>(kBufferBytes, remaining_), drained);
    } else {
      got = read_into_pieces(request, budget - moved, drained);
      moved += got;
    }
    if (got == 0) break;
  }
  if (drained && header_seen_ && flowing_ == Clock::time_point{} && remaining_ >= LinePace::kWorthTiming) flow_begins();
  return moved;
}

void TcpLink::await_first() {
  if (recvs_.front().header.index == 0) awaited_ = Clock::now();
}

void TcpLink::first_came() {
  ReceiveMeter::add(times.messages, 1);
  if (awaited_ == Clock::time_point{}) return;
  const auto waited = static_cast<std::uint64_t>(std::chrono::nanoseconds(Clock::now() - awaited_).count());
  awaited_ = {};
  ReceiveMeter::add(times.waits, 1);
  ReceiveMeter::add(times.waited_ns, waited);
  if (waited > times.longest_wait_ns.load(std::memory_order_relaxed))
    times.longest_wait_ns.store(waited, std::memory_order_relaxed);
}

// What has arrived of the front message was taken, and more of it is to come.
void TcpLink::flow_begins() {
  flowing_ = Clock::now();
  flow_start_ = bytes_received;
  pace_.begins(flowing_);
  if (meter != nullptr) meter->begin(flowing_);
}

void TcpLink::flow_ends() {
  const auto now = Clock::now();
  const std::uint64_t flowed = bytes_received - flow_start_;
  const auto ns = static_cast<std::uint64_t>(std::chrono::nanoseconds(now - flowing_).count());
  ReceiveMeter::add(times.flow_bytes, flowed);
  ReceiveMeter::add(times.flow_ns, ns);
  pace_.ends();
  if (meter != nullptr) meter->end(now, flowed);
  flowing_ = {};
}

// Asked while the communicator lives. Should it end this moment, the answer is nothing, or about another connection:
// numbers for display.
KernelTimes TcpLink::kernel_times() const {
  tcp_info info{};
  socklen_t bytes = sizeof info;
  if (getsockopt(socket_.fd(), IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) return {};
  return {info.tcpi_rtt, info.tcpi_rttvar, info.tcpi_min_rtt, info.tcpi_total_retrans};
}

void TcpLink::take_header(const RecvRequest& request) {
  MessageHeader got;
  std::memcpy(&got, buffer_.get() + begin_, sizeof got);
  check_header(request.header, got, peer_, peer_name_);
  // From here on sizes come from the posted request, never from the wire.
  begin_ += sizeof got;
  header_seen_ = true;
  first_came();
  remaining_ = request.header.bytes;
  recv_piece_ = 0;
  recv_offset_ = 0;
  recv_cursor_ = {};
}

// Stores or folds buffered payload of the front message; a last partial item (when folding) or block (of a wire format)
// stays in the buffer.
void TcpLink::consume_buffer(RecvRequest& request) {
  std::size_t available = std::min<std::uint64_t>(end_ - begin_, remaining_);
  if (request.wire != WireFormat::f32) {
    const std::size_t n = decode_next(request, recv_cursor_, buffer_.get() + begin_, available);
    begin_ += n;
    remaining_ -= n;
    return;
  }
  if (request.fold != nullptr && available > 0 && begin_ % request.item != 0) {
    // Kernels read items in place, so they must be aligned; the buffer's start is.
    std::memmove(buffer_.get(), buffer_.get() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  while (available > 0) {
    const Piece& piece = request.pieces[recv_piece_];
    std::size_t n = std::min(available, piece.bytes - recv_offset_);
    void* destination = static_cast<char*>(piece.data) + recv_offset_;
    if (request.fold == nullptr) {
      if (n > 0) std::memcpy(destination, buffer_.get() + begin_, n);
    } else {
      // Pieces are whole items, so what is left of one is too: n shrinks only where the buffer ends inside an item.
      n -= n % request.item;
      if (n == 0 && piece.bytes > recv_offset_) break;
      if (n > 0) request.fold(request.fold_context, destination, buffer_.get() + begin_, n);
    }
    begin_ += n;
    available -= n;
    advance_recv(request, n);
  }
}

void TcpLink::advance_recv(const RecvRequest& request, std::size_t bytes) {
  remaining_ -= bytes;
  recv_offset_ += bytes;
  while (recv_piece_ < request.pieces.size() && recv_offset_ >= request.pieces[recv_piece_].bytes) {
    recv_offset_ -= request.pieces[recv_piece_++].bytes;
  }
}

// Reads until the buffer holds at most `limit` bytes.
std::size_t TcpLink::read_into_buffer(std::size_t limit, bool& drained) {
  if (!buffer_) buffer_.reset(static_cast<unsigned char*>(::operator new[](kBufferBytes, std::align_val_t{kAlign})));
  // What is left is less than a header, an item or a block, so moving it is cheap and leaves an aligned start.
  if (begin_ > 0) std::memmove(buffer_.get(), buffer_.get() + begin_, end_ - begin_);
  end_ -= begin_;
  begin_ = 0;
  const std::size_t asked = limit - end_;
  const std::size_t got = received(recv(socket_.fd(), buffer_.get() + end_, asked, MSG_DONTWAIT), asked, drained);
  end_ += got;
  return got;
}

std::size_t TcpLink::read_into_pieces(const RecvRequest& request, std::size_t limit, bool& drained) {
  iovec vectors[kMaxIovecs];
  std::size_t used = 0, bytes = 0;
  std::size_t offset = recv_offset_;
  for (std::size_t i = recv_piece_; i < request.pieces.size() && used < kMaxIovecs && bytes < limit; ++i) {
    const Piece& piece = request.pieces[i];
    const std::size_t n = std::min(piece.bytes - offset, limit - bytes);
    if (n > 0) vectors[used++] = {static_cast<char*>(piece.data) + offset, n};
    bytes += n;
    offset = 0;
  }
  const std::size_t got = received(readv(socket_.fd(), vectors, static_cast<int>(used)), bytes, drained);
  advance_recv(request, got);
  return got;
}

std::size_t TcpLink::received(ssize_t result, std::size_t asked, bool& drained) {
  if (flowing_ != Clock::time_point{}) pace_.looked(Clock::now(), result > 0 ? static_cast<std::size_t>(result) : 0);
  if (result == 0) throw tcp::lost(peer_, peer_name_, activity(), 0);
  if (result < 0) {
    if (!tcp::would_block(errno)) throw tcp::lost(peer_, peer_name_, activity(), errno);
    drained = true;
    return 0;
  }
  const auto got = static_cast<std::size_t>(result);
  drained = got < asked;
  bytes_received += got;
  return got;
}

}  // namespace ringleader
