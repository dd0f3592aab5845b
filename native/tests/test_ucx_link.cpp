#include "transport/ucx/ucx_link.hpp"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "test_link_support.hpp"
#include "transport/wire_stream.hpp"

namespace ringleader {
namespace {

using test::drive;
using test::error_of;
using test::pattern;
using test::recv_request;
using test::send_request;
using test::UcxPair;

const std::string kTransports[] = {"tcp,self", "posix,cma,self", "sysv,self"};

}  // namespace

TEST_CASE("ucx link: a sender far ahead of the receiver is held back") {
  if (!test::have_ucx()) return;
  for (const std::string& transports : kTransports) {
    CAPTURE(transports);
    UcxPair pair(transports);
    constexpr std::uint32_t n = 3000;
    std::uint64_t value = 0;
    std::vector<std::uint32_t> sent(n);
    for (std::uint32_t i = 0; i < n; ++i) pair.a.post_send(send_request(1, {{&value, 8}}, &sent[i], i));
    for (int i = 0; i < 3000; ++i) pair.step();
    CHECK(sent[10] == 1);
    CHECK(sent[100] == 0);
  }
}

TEST_CASE("ucx link: folding and wire formats take bounded memory on both sides") {
  if (!test::have_ucx()) return;
  const auto keep_first = [](const void*, void*, const void*, std::size_t) {};
  for (const WireFormat wire : {WireFormat::f32, WireFormat::bf16, WireFormat::int8})
    for (const std::string& transports : kTransports) {
      CAPTURE(transports);
      UcxPair pair(transports);
      std::vector<float> in(5000001), out(5000001);
      std::uint32_t done[2] = {};
      SendRequest send = send_request(2, {{out.data(), 4 * out.size()}}, &done[0]);
      send.wire = wire;
      send.header.bytes = payload_bytes(send.pieces, wire);
      RecvRequest recv = recv_request(2, {{in.data(), 4 * in.size()}}, &done[1]);
      recv.header = send.header;
      recv.wire = wire;
      recv.fold = keep_first;
      recv.item = 4;
      pair.a.post_send(std::move(send));
      pair.b.post_recv(std::move(recv));
      std::size_t most[2] = {};
      drive(
          [&] {
            pair.step();
            most[0] = std::max(most[0], pair.worker_a->taken());
            most[1] = std::max(most[1], pair.worker_b->taken());
          },
          [&] { return done[0] + done[1] == 2; });
      CHECK(most[0] <= (wire == WireFormat::f32 ? 1 : 18) * UcxLink::kFragment);
      CHECK(most[1] <= 6 * UcxLink::kFragment);
      CHECK(pair.worker_a->taken() + pair.worker_b->taken() == 0);
    }
}

TEST_CASE("ucx link: several channels of one pair of workers keep their messages apart") {
  if (!test::have_ucx()) return;
  UcxPair pair("tcp,self");
  UcxLink c(pair.worker_a, pair.worker_b->address(), 0, 1, 1, "rank 1");
  UcxLink d(pair.worker_b, pair.worker_a->address(), 1, 0, 1, "rank 0");
  std::vector<unsigned char> out[2] = {pattern(700000, 1), pattern(700000, 2)}, in[2];
  in[0].resize(700000);
  in[1].resize(700000);
  std::uint32_t done[4] = {};
  c.post_send(send_request(1, {{out[1].data(), out[1].size()}}, &done[0]));
  pair.a.post_send(send_request(1, {{out[0].data(), out[0].size()}}, &done[1]));
  pair.b.post_recv(recv_request(1, {{in[0].data(), in[0].size()}}, &done[2]));
  d.post_recv(recv_request(1, {{in[1].data(), in[1].size()}}, &done[3]));
  drive(
      [&] {
        pair.step();
        c.progress();
        d.progress();
      },
      [&] { return done[0] + done[1] + done[2] + done[3] == 4; });
  CHECK(in[0] == out[0]);
  CHECK(in[1] == out[1]);
}

TEST_CASE("ucx link: a peer that closes is lost, whether it was sending or receiving; what it had sent arrives") {
  if (!test::have_ucx()) return;
  for (const std::size_t bytes : {100UL, 20UL << 20}) {
    for (const bool sending : {false, true}) {
      UcxPair pair("tcp,self");
      std::vector<unsigned char> data(bytes), small(8, 7), got(8);
      std::uint32_t first[2] = {}, done = 0;
      pair.a.post_send(send_request(8, {{small.data(), 8}}, &first[0]));
      pair.b.post_recv(recv_request(8, {{got.data(), 8}}, &first[1]));
      if (sending)
        pair.b.post_send(send_request(9, {{data.data(), bytes}}, nullptr));
      else
        pair.b.post_recv(recv_request(9, {{data.data(), bytes}}, &done));
      drive([&] { pair.step(); }, [&] { return first[0] == 1; });
      pair.a.close();
      pair.worker_a.reset();                      // with its last link a worker is gone, as if the process had ended
      if (sending && bytes < UcxLink::kInline) {  // it has left before; the next operation tells
        drive([&] { pair.b.progress(); }, [&] { return pair.b.poll_events() == 0; });
        pair.b.post_recv(recv_request(9, {{data.data(), bytes}}, &done));
      }
      const Error error = error_of(pair.b);
      CHECK(error.kind == ErrorKind::peer_lost);
      CHECK(error.ranks == std::vector<Rank>{0});
      CHECK(std::string(error.what()).find("connection to rank 0 (host a) was lost during all_reduce #9") == 0);
      CHECK(first[1] == 1);
      CHECK(got == small);
      CHECK(done == 0);
    }
  }
}

TEST_CASE("ucx link: two threads exchange large messages with a fold, sleeping on the descriptor") {
  if (!test::have_ucx()) return;
  for (const std::string& transports : kTransports) {
    CAPTURE(transports);
    UcxPair pair(transports);
    constexpr std::size_t n = 3 << 20;
    constexpr std::uint64_t rounds = 3;
    bool right[2] = {};
    int waited[2] = {}, ended[2] = {};
    const auto run = [&](UcxLink& link, int self) {
      const auto add = [](const void*, void* dst, const void* src, std::size_t bytes) {
        for (std::size_t i = 0; i < bytes / 4; ++i)
          static_cast<std::uint32_t*>(dst)[i] += static_cast<const std::uint32_t*>(src)[i];
      };
      std::vector<std::uint32_t> mine(n), sum(n);
      for (std::size_t i = 0; i < n; ++i)
        mine[i] = sum[i] = static_cast<std::uint32_t>(i * static_cast<std::size_t>(self + 1));
      for (std::uint64_t round = 0; round < rounds; ++round) {
        if (self == 1) usleep(20000);  // late: the other sleeps meanwhile
        std::uint32_t sent = 0, got = 0;
        auto recv = recv_request(round, {{sum.data(), 4 * n}}, &got);
        recv.fold = add;
        recv.item = 4;
        link.post_recv(std::move(recv));
        link.post_send(send_request(round, {{mine.data(), 4 * n}}, &sent));
        const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
        while (sent + got < 2 && std::chrono::steady_clock::now() < limit) {
          if (link.progress()) continue;
          pollfd fd{link.poll_fd(), link.poll_events(), 0};
          if (fd.fd < 0) continue;
          waited[self]++;
          if (::poll(&fd, 1, 5000) == 0) ended[self]++;
        }
      }
      right[self] = true;
      for (std::size_t i = 0; i < n; ++i)
        if (sum[i] != static_cast<std::uint32_t>(
                          i * ((static_cast<std::size_t>(self) + 1) + rounds * (2 - static_cast<std::size_t>(self)))))
          right[self] = false;
    };
    std::thread other([&] { run(pair.b, 1); });
    run(pair.a, 0);
    other.join();
    CHECK(right[0]);
    CHECK(right[1]);
    CHECK(ended[0] + ended[1] == 0);  // every sleep was ended by an event
  }
}

TEST_CASE("ucx: a library that is not there is an error that says what was tried and how to get it") {
  if (test::have_ucx()) return;  // loaded once per process
  try {
    ucx::load({"/nonexistent/libucp.so.0"});
    FAIL("loaded");
  } catch (const Error& error) {
    const std::string text = error.what();
    CHECK(error.kind == ErrorKind::invalid);
    CHECK(text.find("/nonexistent/libucp.so.0: ") != std::string::npos);
    CHECK(text.find("pip install libucx-cu12") != std::string::npos);
    CHECK(text.find("RINGLEADER_UCX_LIBRARY") != std::string::npos);
  }
}

TEST_CASE("ucx: a setting that UCX does not take is an error with UCX's words") {
  if (!test::have_ucx()) return;
  CHECK_THROWS_WITH_AS(test::ucx_worker("nosuchtransport"), doctest::Contains("UCX_TLS"), Error);
}

}  // namespace ringleader
