// How a wait for a TCP link is spent: at once in the kernel, and until a batch has come, where the line is known to be
// slow.
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <span>

#include "test_link_support.hpp"

namespace ringleader {
namespace {

using test::drive;
using test::pattern;
using test::recv_request;
using test::send_request;

Piece piece(std::vector<unsigned char>& data) { return {data.data(), data.size()}; }

// Two links with a line between them that passes on only as much as it is told.
class Line {
 public:
  Line() : Line(test::tcp_pair(), test::tcp_pair()) {}
  ~Line() {
    ::close(in_);
    ::close(out_);
  }
  // What the sender has sent so far, without waiting for more of it.
  void take() {
    unsigned char part[65536];
    for (ssize_t n = 0; (n = recv(in_, part, sizeof part, MSG_DONTWAIT)) > 0;)
      held_.insert(held_.end(), part, part + n);
  }
  std::size_t pass(std::size_t bytes) {
    const std::size_t n = std::min(bytes, held_.size());
    std::size_t sent = 0;
    while (sent < n)
      sent += static_cast<std::size_t>(std::max<ssize_t>(0, send(out_, held_.data() + sent, n - sent, MSG_NOSIGNAL)));
    held_.erase(held_.begin(), held_.begin() + static_cast<std::ptrdiff_t>(n));
    return n;
  }
  std::size_t held() const { return held_.size(); }
  TcpLink a, b;

 private:
  Line(std::pair<int, int> first, std::pair<int, int> second)
      : a(first.first, 1, "rank 1 (host b)"),
        b(second.second, 0, "rank 0 (host a)"),
        in_(first.second),
        out_(second.first) {}
  int in_, out_;
  std::vector<unsigned char> held_;
};

// Two messages from end to end, 16 KiB every 500 us (33 MB/s), for a receiver that keeps looking.
void make_slow(Line& line) {
  std::vector<unsigned char> out = pattern(512 << 10, 1), in(out.size());
  for (int message = 0; message < 2; ++message) {
    std::uint32_t sent = 0, got = 0;
    auto next = Clock::now();
    line.a.post_send(send_request(1, {piece(out)}, &sent));
    line.b.post_recv(recv_request(1, {piece(in)}, &got));
    while (sent + got < 2) {
      line.a.progress();
      line.take();
      if (Clock::now() >= next && line.pass(16 << 10) > 0) next = Clock::now() + std::chrono::microseconds(500);
      line.b.progress();
    }
    CHECK(in == out);
  }
}

std::size_t low_water(const TcpLink& link) {
  int value = 0;
  socklen_t bytes = sizeof value;
  CHECK(getsockopt(link.poll_fd(), SOL_SOCKET, SO_RCVLOWAT, &value, &bytes) == 0);
  return static_cast<std::size_t>(value);
}

bool readable(const TcpLink& link, int limit_ms) {
  pollfd fd{link.poll_fd(), POLLIN, 0};
  return poll(&fd, 1, limit_ms) > 0;
}

}  // namespace

TEST_CASE("haste: a link that is idle or new asks for no sleep") {
  Line line;
  CHECK(line.b.haste() == Haste::none);
  std::vector<unsigned char> in(1 << 20);
  std::uint32_t got = 0;
  line.b.post_recv(recv_request(1, {piece(in)}, &got));
  CHECK(line.b.haste() == Haste::prompt);
  line.b.prepare_sleep();
  CHECK(low_water(line.b) == 1);
}

TEST_CASE("haste: large messages of a slow line are slept for in batches, small ones and the end are not") {
  Line line;
  std::vector<unsigned char> large = pattern(256 << 10, 1), small = pattern(64, 2);
  make_slow(line);

  std::vector<unsigned char> in(large.size());
  std::uint32_t sent = 0, got = 0;
  line.b.post_recv(recv_request(2, {piece(in)}, &got));
  CHECK(line.b.haste() == Haste::unhurried);
  line.b.prepare_sleep();
  CHECK(low_water(line.b) == 1);  // the header has to be seen first: a mismatch is told at once
  line.a.post_send(send_request(2, {piece(large)}, &sent));
  drive([&] { line.a.progress(), line.take(); },
        [&] { return sent == 1 && line.held() == large.size() + sizeof(MessageHeader); });
  const std::uint64_t before = line.b.bytes_received;
  line.pass(16 << 10);
  CHECK(readable(line.b, 1000));
  drive([&] { line.b.progress(); }, [&] { return line.b.bytes_received >= before + (16 << 10); });
  line.b.prepare_sleep();
  CHECK(low_water(line.b) == 64 << 10);
  line.pass(32 << 10);
  CHECK(!readable(line.b, 20));
  line.pass(64 << 10);
  CHECK(readable(line.b, 1000));

  // Whatever the end's size, it ends a sleep.
  const std::uint64_t all = line.b.bytes_received + (96 << 10) + line.held() - 100;
  line.pass(line.held() - 100);
  drive([&] { line.b.progress(); }, [&] { return line.b.bytes_received >= all; });
  CHECK(line.b.haste() == Haste::prompt);
  line.b.prepare_sleep();
  CHECK(low_water(line.b) == 1);
  line.pass(100);
  drive([&] { line.b.progress(); }, [&] { return got == 1; });
  CHECK(in == large);

  std::vector<unsigned char> little(small.size());
  line.b.post_recv(recv_request(3, {piece(little)}, &got));
  CHECK(line.b.haste() == Haste::prompt);
}

TEST_CASE("haste: a sleep does not wait for bytes that are read already") {
  Line line;
  make_slow(line);

  constexpr std::size_t kElements = 32768, kBlock = 129;
  std::vector<float> out(kElements), in(kElements);
  for (std::size_t i = 0; i < kElements; ++i) out[i] = static_cast<float>(i % 101);
  std::uint32_t sent = 0, got = 0;
  SendRequest send = send_request(2, {{out.data(), 4 * kElements}}, &sent);
  RecvRequest recv = recv_request(2, {{in.data(), 4 * kElements}}, &got);
  send.wire = recv.wire = WireFormat::int8;
  send.header.bytes = recv.header.bytes = encoded_bytes(WireFormat::int8, kElements);
  line.b.post_recv(std::move(recv));
  line.a.post_send(std::move(send));
  drive([&] { line.a.progress(), line.take(); }, [&] { return sent == 1; });

  // Half a block waits in the link for its other half.
  const std::uint64_t before = line.b.bytes_received, first = sizeof(MessageHeader) + 10 * kBlock + 60;
  line.pass(first);
  drive([&] { line.b.progress(); }, [&] { return line.b.bytes_received == before + first; });
  CHECK(line.b.haste() == Haste::unhurried);
  line.b.prepare_sleep();
  CHECK(low_water(line.b) == line.held());
  line.pass(line.held());
  CHECK(readable(line.b, 1000));
  drive([&] { line.b.progress(); }, [&] { return got == 1; });
  CHECK(in[kElements - 1] == out[kElements - 1]);
}

}  // namespace ringleader
