#include "transport/ucx/ucx_link.hpp"

#include <poll.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <thread>

#include "test_tcp_support.hpp"
#include "test_ucx_support.hpp"

namespace ringleader {
namespace {

using test::drive;
using test::recv_request;
using test::send_request;
using test::UcxPair;

const std::string kTransports[] = {"tcp,self", "posix,cma,self", "sysv,self"};

std::vector<unsigned char> pattern(std::size_t bytes, unsigned seed) {
  std::vector<unsigned char> data(bytes);
  for (std::size_t i = 0; i < bytes; ++i) data[i] = static_cast<unsigned char>((i * 2654435761U + seed * 97U) >> 5);
  return data;
}

// The peer is driven too, as long as it has no error: UCX moves nothing by itself.
Error error_of(UcxLink& link, UcxLink* other = nullptr) {
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

std::vector<Piece> cut_at_random(unsigned char* data, std::size_t bytes, std::mt19937& random) {
  std::vector<Piece> list;
  for (std::size_t at = 0; at < bytes;) {
    const std::size_t n = std::min<std::size_t>(bytes - at, random() % (bytes / 40 + 3));
    list.push_back({data + at, n});
    at += n;
  }
  list.push_back({nullptr, 0});
  return list;
}

}  // namespace

TEST_CASE("ucx link: messages of many sizes and piece layouts arrive whole, both ways at once") {
  if (!test::have_ucx()) return;
  for (const std::string& transports : kTransports) {
    CAPTURE(transports);
    UcxPair pair(transports);
    std::mt19937 random(7);
    std::uint64_t expected_bytes = 0, messages = 0;
    for (std::size_t bytes : {0UL, 1UL, 8UL, 111UL, UcxLink::kInline, UcxLink::kInline + 1, 16273UL, UcxLink::kFragment,
                              UcxLink::kFragment + 1, 300000UL, 9000001UL}) {
      for (const bool whole : {true, false}) {
        CAPTURE(bytes);
        std::vector<unsigned char> out[2] = {pattern(bytes, 1), pattern(bytes, 2)};
        std::vector<unsigned char> in[2] = {std::vector<unsigned char>(bytes + 1, 0xEE), std::vector<unsigned char>(bytes + 1, 0xEE)};
        const auto pieces = [&](unsigned char* data) {
          return whole ? std::vector<Piece>{{data, bytes}} : cut_at_random(data, bytes, random);
        };
        std::uint32_t done[4] = {};
        pair.a.post_send(send_request(bytes, pieces(out[0].data()), &done[0]));
        pair.b.post_send(send_request(bytes, pieces(out[1].data()), &done[1]));
        pair.a.post_recv(recv_request(bytes, pieces(in[0].data()), &done[2]));
        pair.b.post_recv(recv_request(bytes, pieces(in[1].data()), &done[3]));
        drive([&] { pair.step(); }, [&] { return done[0] + done[1] + done[2] + done[3] == 4; });
        for (int side = 0; side < 2; ++side) {
          CHECK(in[side][bytes] == 0xEE);
          in[side].pop_back();
          CHECK(in[side] == out[1 - side]);
        }
        CHECK(pair.a.poll_events() == 0);
        expected_bytes += bytes;
        ++messages;
      }
    }
    CHECK(pair.a.bytes_sent == expected_bytes + messages * sizeof(MessageHeader));
    CHECK(pair.a.bytes_sent == pair.b.bytes_received);
    CHECK(pair.b.bytes_sent == pair.a.bytes_received);
  }
}

TEST_CASE("ucx link: many small messages are completed in order, and a sender far ahead is held back") {
  if (!test::have_ucx()) return;
  for (const std::string& transports : kTransports) {
    CAPTURE(transports);
    UcxPair pair(transports);
    constexpr std::uint32_t n = 3000;
    std::vector<std::uint64_t> out(n), in(n);
    std::vector<std::uint32_t> sent(n), got(n);
    std::iota(out.begin(), out.end(), 1000);
    for (std::uint32_t i = 0; i < n; ++i) pair.a.post_send(send_request(1, {{&out[i], i % 9}}, &sent[i], i));
    for (int i = 0; i < 3000; ++i) {
      pair.a.progress();
      CHECK(pair.b.progress() == false);  // nothing is consumed without a receive
    }
    CHECK(pair.b.bytes_received == 0);
    CHECK(sent[10] == 1);
    CHECK(sent[100] == 0);
    std::uint32_t posted = 0;
    drive(
        [&] {
          for (std::uint32_t k = 0; k < 7 && posted < n; ++k, ++posted) {
            pair.b.post_recv(recv_request(1, {{&in[posted], posted % 9}}, &got[posted], posted));
          }
          pair.step();
          for (std::uint32_t i = 1; i < posted; ++i) {
            if (got[i] > got[i - 1]) FAIL("out of order");
          }
        },
        [&] { return got[n - 1] == 1 && sent[n - 1] == 1; });
    for (std::uint32_t i = 0; i < n; ++i) {
      std::uint64_t expected = 0;
      std::memcpy(&expected, &out[i], i % 9);
      if (in[i] != expected) FAIL("message " << i);
    }
  }
}

namespace {

struct FoldCount {
  std::size_t calls = 0, bytes = 0, largest = 0;
};

// Not commutative, so that a wrong side shows.
void fold_items(const void* context, void* dst, const void* src, std::size_t bytes) {
  auto* count = static_cast<FoldCount*>(const_cast<void*>(context));
  count->calls++;
  count->bytes += bytes;
  count->largest = std::max(count->largest, bytes);
  REQUIRE(bytes % 8 == 0);
  REQUIRE(reinterpret_cast<std::uintptr_t>(src) % 8 == 0);
  auto* d = static_cast<std::uint64_t*>(dst);
  const auto* s = static_cast<const std::uint64_t*>(src);
  for (std::size_t i = 0; i < bytes / 8; ++i) d[i] = 3 * d[i] + s[i];
}

}  // namespace

TEST_CASE("ucx link: folding streams through bounded memory, small and large, in any pieces") {
  if (!test::have_ucx()) return;
  for (const std::string& transports : kTransports) {
    for (const std::size_t n : {5UL, 1024UL, 1025UL, 600001UL}) {
      CAPTURE(transports);
      CAPTURE(n);
      UcxPair pair(transports);
      std::vector<std::uint64_t> in(n), out(n), expected(n);
      for (std::size_t i = 0; i < n; ++i) {
        in[i] = i * 7;
        out[i] = i * i;
        expected[i] = 3 * in[i] + out[i];
      }
      FoldCount count;
      std::uint32_t done[2] = {};
      auto recv = recv_request(2, {{in.data(), 8 * 3}, {nullptr, 0}, {in.data() + 3, 8 * (n - 3)}}, &done[0]);
      recv.fold = fold_items;
      recv.fold_context = &count;
      recv.item = 8;
      pair.b.post_recv(std::move(recv));
      pair.a.post_send(send_request(2, {{out.data(), 8 * (n - 1)}, {out.data() + n - 1, 8}}, &done[1]));
      std::size_t most = 0;
      drive(
          [&] {
            pair.step();
            most = std::max(most, pair.worker_b->taken());
          },
          [&] { return done[0] + done[1] == 2; });
      CHECK(in == expected);
      CHECK(count.bytes == 8 * n);
      CHECK(count.largest <= UcxLink::kFragment);
      CHECK(most <= 6 * UcxLink::kFragment);
      CHECK(pair.worker_b->taken() == 0);
    }
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

TEST_CASE("ucx link: malformed posts are refused") {
  if (!test::have_ucx()) return;
  UcxPair pair("tcp,self");
  std::vector<char> bytes(30000);
  auto send = send_request(1, {{bytes.data(), 8}}, nullptr);
  send.header.bytes = 9;
  CHECK_THROWS_AS(pair.a.post_send(std::move(send)), Error);
  for (const auto& [size, item] : {std::pair<std::size_t, std::size_t>{7, 4}, {30000, 12}}) {
    auto recv = recv_request(1, {{bytes.data(), size}}, nullptr);
    recv.fold = fold_items;
    recv.item = item;
    CHECK_THROWS_AS(pair.a.post_recv(std::move(recv)), Error);
  }
}

TEST_CASE("ucx link: a different operation is a mismatch that shows both sides, and stores nothing") {
  if (!test::have_ucx()) return;
  for (const std::size_t bytes : {64UL, 100000UL}) {
    UcxPair pair("tcp,self");
    std::vector<unsigned char> out = pattern(bytes, 5), in(bytes);
    std::uint32_t done = 0;
    auto send = send_request(12, {{out.data(), bytes}}, nullptr);
    send.header.info.shape[0] = 3;
    send.header.info.shape[1] = 2;
    send.header.info.dtype = static_cast<std::uint8_t>(DType::i32);
    pair.a.post_send(std::move(send));
    pair.b.post_recv(recv_request(12, {{in.data(), bytes}}, &done));
    const Error error = error_of(pair.b, &pair.a);
    const std::string text = error.what();
    CHECK(error.kind == ErrorKind::mismatch);
    CHECK(error.ranks == std::vector<Rank>{0});
    CHECK(text.find("this rank runs all_reduce #12: float32, shape (2, 3)") != std::string::npos);
    CHECK(text.find("rank 0 (host a) runs all_reduce #12: int32, shape (3, 2)") != std::string::npos);
    CHECK(done == 0);
    CHECK(std::count(in.begin(), in.end(), 0) == static_cast<std::ptrdiff_t>(bytes));
    CHECK_THROWS_AS(pair.b.progress(), Error);  // and stays so
  }
}

TEST_CASE("ucx link: each other header field is compared, sizes across the protocols too") {
  if (!test::have_ucx()) return;
  const std::function<void(MessageHeader&)> changes[] = {
      [](MessageHeader& h) { h.magic ^= 0x20; },
      [](MessageHeader& h) { h.index++; },
      [](MessageHeader& h) { h.window++; },
  };
  for (const auto& change : changes) {
    UcxPair pair("tcp,self");
    unsigned char data[8] = {};
    auto send = send_request(5, {{data, 8}}, nullptr);
    change(send.header);
    pair.a.post_send(std::move(send));
    pair.b.post_recv(recv_request(5, {{data, 8}}, nullptr));
    CHECK(error_of(pair.b, &pair.a).kind == ErrorKind::mismatch);
  }
  for (const auto& [sent, expected] : {std::pair<std::size_t, std::size_t>{9, 8}, {8, 9}, {9, 90000}, {90000, 9}, {90000, 700000}}) {
    UcxPair pair("tcp,self");
    std::vector<unsigned char> data(700000);
    pair.a.post_send(send_request(5, {{data.data(), sent}}, nullptr));
    pair.b.post_recv(recv_request(5, {{data.data(), expected}}, nullptr));
    const Error error = error_of(pair.b, &pair.a);
    CHECK(error.kind == ErrorKind::mismatch);
    CHECK(std::string(error.what()).find(std::to_string(expected) + " bytes; rank 0 (host a) sent window 5, message 0, " +
                                         std::to_string(sent) + " bytes") != std::string::npos);
  }
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
      pair.worker_a.reset();  // with its last link a worker is gone, as if the process had ended
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

TEST_CASE("ucx link: closing is final, and nothing is written afterwards") {
  if (!test::have_ucx()) return;
  for (const std::string& transports : kTransports) {
    CAPTURE(transports);
    UcxPair pair(transports);
    std::vector<unsigned char> out(5 << 20, 1), in(5 << 20);
    std::uint32_t done[2] = {};
    pair.a.post_send(send_request(1, {{out.data(), out.size()}}, &done[0]));
    pair.b.post_recv(recv_request(1, {{in.data(), in.size()}}, &done[1]));
    for (int i = 0; i < 2; ++i) pair.step();
    pair.b.close();
    pair.b.close();
    pair.worker_b.reset();
    const std::vector<unsigned char> before = in;
    try {
      for (int i = 0; i < 200; ++i) pair.a.progress();
    } catch (const Error&) {
    }
    CHECK(in == before);
    CHECK(done[1] == 0);
    CHECK(pair.b.poll_fd() == -1);
    CHECK_THROWS_AS(pair.b.progress(), Error);
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
        for (std::size_t i = 0; i < bytes / 4; ++i) static_cast<std::uint32_t*>(dst)[i] += static_cast<const std::uint32_t*>(src)[i];
      };
      std::vector<std::uint32_t> mine(n), sum(n);
      for (std::size_t i = 0; i < n; ++i) mine[i] = sum[i] = static_cast<std::uint32_t>(i * static_cast<std::size_t>(self + 1));
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
        if (sum[i] != static_cast<std::uint32_t>(i * ((static_cast<std::size_t>(self) + 1) + rounds * (2 - static_cast<std::size_t>(self)))))
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
