// What a TCP link measures of itself: the speed of what it waits for, and how long it waits for the first message of a
// window.
#include <unistd.h>

#include <algorithm>

#include "test_link_support.hpp"

namespace ringleader {
namespace {

using test::drive;
using test::pattern;
using test::recv_request;
using test::send_request;

struct Pair {
  explicit Pair(std::pair<int, int> fds) : a(fds.first, 1, "rank 1 (host b)"), b(fds.second, 0, "rank 0 (host a)") {}
  TcpLink a, b;
};

Piece piece(std::vector<unsigned char>& data) { return {data.data(), data.size()}; }

}  // namespace

TEST_CASE("link times: only what comes after a message has run dry tells its speed") {
  Pair pair(test::tcp_pair());
  ReceiveMeter meter;
  pair.b.meter = &meter;
  std::vector<unsigned char> small = pattern(4000, 1), in(small.size());
  std::uint32_t sent = 0, got = 0;
  pair.a.post_send(send_request(1, {piece(small)}, &sent));
  drive([&] { pair.a.progress(); }, [&] { return sent == 1; });
  usleep(20000);  // it is all there when the receive is posted: a late receiver, not a slow line
  pair.b.post_recv(recv_request(1, {piece(in)}, &got));
  drive([&] { pair.b.progress(); }, [&] { return got == 1; });
  CHECK(pair.b.times.messages == 1);
  CHECK(pair.b.times.flow_bytes == 0);
  CHECK(pair.b.times.flow_ns == 0);

  std::vector<unsigned char> large = pattern(8 << 20, 2), into(large.size());
  sent = got = 0;
  pair.a.post_send(send_request(2, {piece(large)}, &sent));
  pair.b.post_recv(recv_request(2, {piece(into)}, &got));
  drive(
      [&] {
        pair.a.progress();
        for (int i = 0; i < 100; ++i) pair.b.progress();  // takes all there is before more comes
      },
      [&] { return sent + got == 2; });
  CHECK(into == large);
  CHECK(pair.b.times.messages == 2);
  CHECK(pair.b.times.flow_bytes > 0);
  CHECK(pair.b.times.flow_bytes < large.size());
  CHECK(pair.b.times.flow_ns > 0);
  CHECK(meter.bytes == pair.b.times.flow_bytes);
  CHECK(meter.ns == pair.b.times.flow_ns);
}

TEST_CASE("link times: the wait for the first message of a window, and for no other") {
  Pair pair(test::unix_pair());
  std::vector<unsigned char> out = pattern(100, 1), in(100), more(100);
  std::uint32_t sent[2] = {0, 0}, got[2] = {0, 0};
  pair.b.post_recv(recv_request(1, {piece(in)}, &got[0], 0));
  pair.b.post_recv(recv_request(1, {piece(more)}, &got[1], 1));
  pair.b.progress();
  usleep(20000);
  pair.a.post_send(send_request(1, {piece(out)}, &sent[0], 0));
  drive([&] { pair.a.progress(), pair.b.progress(); }, [&] { return got[0] == 1; });
  CHECK(pair.b.times.waits == 1);
  CHECK(pair.b.times.waited_ns >= 20'000'000);
  CHECK(pair.b.times.longest_wait_ns == pair.b.times.waited_ns);
  usleep(20000);
  pair.a.post_send(send_request(1, {piece(out)}, &sent[1], 1));
  const std::uint64_t waited = pair.b.times.waited_ns;
  drive([&] { pair.a.progress(), pair.b.progress(); }, [&] { return got[1] == 1; });
  CHECK(pair.b.times.waits == 1);
  CHECK(pair.b.times.waited_ns == waited);
}

TEST_CASE("link times: links that receive at the same time count once for the rank") {
  ReceiveMeter meter;
  const ReceiveMeter::Time start{};
  const auto at = [&](int ms) { return start + std::chrono::milliseconds(ms); };
  meter.begin(at(10));
  meter.begin(at(20));
  meter.end(at(30), 1000);
  CHECK(meter.ns == 0);  // the other one goes on
  meter.end(at(50), 500);
  CHECK(meter.ns == 40'000'000);
  meter.begin(at(100));
  meter.end(at(101), 10);
  CHECK(meter.ns == 41'000'000);
  CHECK(meter.bytes == 1510);
}

TEST_CASE("link times: the kernel's numbers of a TCP connection, and none of another socket") {
  Pair tcp(test::tcp_pair()), local(test::unix_pair());
  std::vector<unsigned char> out = pattern(1 << 20, 1), in(out.size());
  std::uint32_t sent = 0, got = 0;
  tcp.a.post_send(send_request(1, {piece(out)}, &sent));
  tcp.b.post_recv(recv_request(1, {piece(in)}, &got));
  drive([&] { tcp.a.progress(), tcp.b.progress(); }, [&] { return sent + got == 2; });
  CHECK(tcp.a.kernel_times().rtt_us > 0);
  CHECK(tcp.a.kernel_times().least_rtt_us <= tcp.a.kernel_times().rtt_us);
  CHECK(local.a.kernel_times().rtt_us == 0);
}

}  // namespace ringleader
