// What the engine relies on, for the links of every transport: TCP, Unix sockets, UCX over TCP and over shared memory.
#include "transport/link.hpp"

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>

#include "test_link_support.hpp"
#include "transport/ucx/ucx_link.hpp"
#include "transport/wire_stream.hpp"

namespace ringleader {
namespace {

using test::drive;
using test::error_of;
using test::LinkPair;
using test::pattern;
using test::recv_request;
using test::send_request;

// The large ones are cut short where buffers are tiny, for time.
std::vector<std::size_t> sizes(const LinkPair& pair) {
  std::vector<std::size_t> all{0,
                               1,
                               8,
                               111,
                               UcxLink::kInline,
                               UcxLink::kInline + 1,
                               16264,
                               16384,
                               UcxLink::kFragment,
                               UcxLink::kFragment + 1,
                               400001};
  if (pair.kind.find("tiny") == std::string::npos) all.push_back(9000001);
  return all;
}

std::vector<Piece> cut_at_random(void* data, std::size_t bytes, std::size_t item, std::mt19937& random) {
  std::vector<Piece> list;
  const std::size_t items = bytes / item;
  for (std::size_t at = 0; at < items;) {
    const std::size_t n = std::min<std::size_t>(items - at, random() % (items / 40 + 3));
    list.push_back({static_cast<char*>(data) + at * item, n * item});
    at += n;
  }
  list.push_back({nullptr, 0});
  return list;
}

}  // namespace

TEST_CASE("link: messages of many sizes and piece layouts arrive whole, both ways at once") {
  for (LinkPair& pair : test::link_pairs()) {
    CAPTURE(pair.kind);
    std::mt19937 random(7);
    std::uint64_t expected_bytes = 0;
    for (const std::size_t bytes : sizes(pair))
      for (const bool whole : {true, false}) {
        CAPTURE(bytes);
        std::vector<unsigned char> out[2] = {pattern(bytes, 1), pattern(bytes, 2)};
        std::vector<unsigned char> in[2] = {std::vector<unsigned char>(bytes + 1, 0xEE),
                                            std::vector<unsigned char>(bytes + 1, 0xEE)};
        const auto pieces = [&](unsigned char* data) {
          return whole ? std::vector<Piece>{{data, bytes}} : cut_at_random(data, bytes, 1, random);
        };
        std::uint32_t done[4] = {};
        pair.a->post_send(send_request(bytes, pieces(out[0].data()), &done[0]));
        pair.b->post_send(send_request(bytes, pieces(out[1].data()), &done[1]));
        pair.a->post_recv(recv_request(bytes, pieces(in[0].data()), &done[2]));
        pair.b->post_recv(recv_request(bytes, pieces(in[1].data()), &done[3]));
        drive([&] { pair.step(); }, [&] { return done[0] + done[1] + done[2] + done[3] == 4; });
        for (int side = 0; side < 2; ++side) {
          CHECK(in[side][bytes] == 0xEE);
          in[side].pop_back();
          CHECK(in[side] == out[1 - side]);
        }
        CHECK(pair.a->poll_events() == 0);
        expected_bytes += bytes + sizeof(MessageHeader);
      }
    CHECK(pair.a->bytes_sent == expected_bytes);
    CHECK(pair.a->bytes_sent == pair.b->bytes_received);
    CHECK(pair.b->bytes_sent == pair.a->bytes_received);
  }
}

TEST_CASE("link: many small messages are completed in order, whenever their receives are posted") {
  for (LinkPair& pair : test::link_pairs()) {
    CAPTURE(pair.kind);
    constexpr std::uint32_t n = 3000;
    std::vector<std::uint64_t> out(n), in(n);
    std::vector<std::uint32_t> sent(n), got(n);
    std::iota(out.begin(), out.end(), 1000);
    for (std::uint32_t i = 0; i < n; ++i) pair.a->post_send(send_request(1, {{&out[i], i % 9}}, &sent[i], i));
    for (int i = 0; i < 300; ++i) {
      pair.a->progress();
      CHECK(pair.b->progress() == false);  // nothing is consumed without a receive
    }
    CHECK(pair.b->bytes_received == 0);
    CHECK(sent[0] == 1);
    std::uint32_t posted = 0;
    drive(
        [&] {
          for (std::uint32_t k = 0; k < 7 && posted < n; ++k, ++posted)
            pair.b->post_recv(recv_request(1, {{&in[posted], posted % 9}}, &got[posted], posted));
          pair.step();
          for (std::uint32_t i = 1; i < posted; ++i)
            if (got[i] > got[i - 1]) FAIL("out of order");
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

// Not commutative, so that a wrong side shows.
void fold_items(const void* context, void* dst, const void* src, std::size_t bytes) {
  *static_cast<std::size_t*>(const_cast<void*>(context)) += bytes;
  REQUIRE(bytes % 8 == 0);
  REQUIRE(reinterpret_cast<std::uintptr_t>(src) % 8 == 0);
  auto* d = static_cast<std::uint64_t*>(dst);
  const auto* s = static_cast<const std::uint64_t*>(src);
  for (std::size_t i = 0; i < bytes / 8; ++i) d[i] = 3 * d[i] + s[i];
}

}  // namespace

TEST_CASE("link: folding works on whole aligned items, small and large, in any pieces") {
  for (LinkPair& pair : test::link_pairs())
    for (const std::size_t n : {5UL, 1024UL, 1025UL, 60001UL}) {
      CAPTURE(pair.kind);
      CAPTURE(n);
      std::vector<std::uint64_t> in(n), out(n), expected(n);
      for (std::size_t i = 0; i < n; ++i) {
        in[i] = i * 7;
        out[i] = i * i;
        expected[i] = 3 * in[i] + out[i];
      }
      // A preceding message of odd size must not shift what is folded.
      char odd[5] = {1, 2, 3, 4, 5}, odd_in[5] = {};
      std::size_t folded = 0;
      std::uint32_t done[4] = {};
      pair.a->post_send(send_request(1, {{odd, 5}}, &done[0]));
      pair.a->post_send(send_request(2, {{out.data(), 8 * (n - 1)}, {out.data() + n - 1, 8}}, &done[1]));
      pair.b->post_recv(recv_request(1, {{odd_in, 5}}, &done[2]));
      auto recv = recv_request(2, {{in.data(), 8 * 3}, {nullptr, 0}, {in.data() + 3, 8 * (n - 3)}}, &done[3]);
      recv.fold = fold_items;
      recv.fold_context = &folded;
      recv.item = 8;
      pair.b->post_recv(std::move(recv));
      drive([&] { pair.step(); }, [&] { return done[0] + done[1] + done[2] + done[3] == 4; });
      CHECK(std::memcmp(odd, odd_in, 5) == 0);
      CHECK(in == expected);
      CHECK(folded == 8 * n);
    }
}

namespace {

void add_floats(const void*, void* dst, const void* src, std::size_t bytes) {
  auto* d = static_cast<float*>(dst);
  const auto* s = static_cast<const float*>(src);
  for (std::size_t i = 0; i < bytes / 4; ++i) d[i] += s[i];
}

// What must lie at the receiver: every piece encoded as a run of its own, decoded, stored or added, rounded.
std::vector<float> expected_floats(const std::vector<float>& out, const std::vector<Piece>& pieces,
                                   std::vector<float> in, WireFormat wire, bool fold, bool round) {
  for (const Piece& piece : pieces) {
    const std::size_t n = piece.bytes / 4;
    if (n == 0) continue;
    const auto at = static_cast<std::size_t>(static_cast<const float*>(piece.data) - out.data());
    std::vector<unsigned char> encoded(encoded_bytes(wire, n));
    std::vector<float> decoded(n);
    encode(wire, encoded.data(), out.data() + at, n);
    decode(wire, decoded.data(), encoded.data(), n);
    for (std::size_t i = 0; i < n; ++i) in[at + i] = fold ? in[at + i] + decoded[i] : decoded[i];
    if (fold && round) round_to_wire(wire, in.data() + at, in.data() + at, n);
  }
  return in;
}

}  // namespace

TEST_CASE("link: wire formats give the bits of whole runs, stored, folded and rounded, several messages at once") {
  const WireFormat formats[] = {WireFormat::bf16, WireFormat::f16, WireFormat::int8, WireFormat::onebit};
  for (LinkPair& pair : test::link_pairs()) {
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    for (const WireFormat wire : formats)
      for (const std::size_t n :
           {1UL, 129UL, 4096UL, 4097UL, pair.kind.find("tiny") == std::string::npos ? 1200001UL : 70001UL}) {
        CAPTURE(pair.kind);
        CAPTURE(name(wire));
        CAPTURE(n);
        constexpr std::size_t kMessages = 3;  // stored, folded, folded and rounded
        std::vector<std::vector<float>> out(kMessages), in(kMessages), expected(kMessages);
        std::uint32_t done[2 * kMessages] = {};
        for (std::size_t m = 0; m < kMessages; ++m) {
          out[m].resize(n);
          in[m].resize(n);
          for (float& value : out[m]) value = normal(random);
          for (float& value : in[m]) value = normal(random);
          SendRequest send = send_request(
              1, m == 0 ? std::vector<Piece>{{out[m].data(), 4 * n}} : cut_at_random(out[m].data(), 4 * n, 4, random),
              &done[2 * m], static_cast<std::uint32_t>(m));
          expected[m] = expected_floats(out[m], send.pieces, in[m], wire, m > 0, m == 2);
          send.wire = wire;
          send.header.bytes = payload_bytes(send.pieces, wire);
          RecvRequest recv = recv_request(1, {}, &done[2 * m + 1], static_cast<std::uint32_t>(m));
          recv.header = send.header;
          recv.wire = wire;
          recv.round = m == 2;
          recv.item = 4;
          if (m > 0) recv.fold = add_floats;
          for (const Piece& piece : send.pieces) {
            const auto at = piece.data == nullptr ? 0 : static_cast<const float*>(piece.data) - out[m].data();
            recv.pieces.push_back({in[m].data() + at, piece.bytes});
          }
          pair.a->post_send(std::move(send));
          pair.b->post_recv(std::move(recv));
        }
        drive([&] { pair.step(); }, [&] { return std::accumulate(done, done + 2 * kMessages, 0U) == 2 * kMessages; });
        for (std::size_t m = 0; m < kMessages; ++m) CHECK(std::memcmp(in[m].data(), expected[m].data(), 4 * n) == 0);
      }
  }
}

TEST_CASE("link: malformed posts are refused") {
  for (LinkPair& pair : test::link_pairs()) {
    CAPTURE(pair.kind);
    char bytes[8] = {};
    auto send = send_request(1, {{bytes, 8}}, nullptr);
    send.header.bytes = 9;
    CHECK_THROWS_AS(pair.a->post_send(std::move(send)), Error);
    auto recv = recv_request(1, {{bytes, 7}}, nullptr);
    recv.fold = fold_items;
    recv.item = 4;
    CHECK_THROWS_AS(pair.a->post_recv(std::move(recv)), Error);
    auto encoded = recv_request(1, {{bytes, 8}}, nullptr);
    encoded.wire = WireFormat::bf16;  // 4 bytes then, not 8
    CHECK_THROWS_AS(pair.a->post_recv(std::move(encoded)), Error);
  }
}

TEST_CASE("link: a different operation is a mismatch that shows both sides, and stores nothing") {
  for (const std::size_t bytes : {64UL, 100000UL})
    for (LinkPair& pair : test::link_pairs()) {
      CAPTURE(pair.kind);
      std::vector<unsigned char> out = pattern(bytes, 5), in(bytes);
      std::uint32_t done = 0;
      auto send = send_request(12, {{out.data(), bytes}}, nullptr);
      send.header.info.shape[0] = 3;
      send.header.info.shape[1] = 2;
      send.header.info.dtype = static_cast<std::uint8_t>(DType::i32);
      pair.a->post_send(std::move(send));
      pair.b->post_recv(recv_request(12, {{in.data(), bytes}}, &done));
      const Error error = error_of(*pair.b, pair.a.get());
      const std::string text = error.what();
      CHECK(error.kind == ErrorKind::mismatch);
      CHECK(error.ranks == std::vector<Rank>{0});
      CHECK(text.find("this rank runs all_reduce #12: float32, shape (2, 3)") != std::string::npos);
      CHECK(text.find("rank 0 (host a) runs all_reduce #12: int32, shape (3, 2)") != std::string::npos);
      CHECK(done == 0);
      CHECK(std::count(in.begin(), in.end(), 0) == static_cast<std::ptrdiff_t>(bytes));
      CHECK_THROWS_AS(pair.b->progress(), Error);  // and stays so
    }
}

TEST_CASE("link: each other header field is compared, and so are sizes, small against large too") {
  const std::function<void(MessageHeader&)> changes[] = {
      [](MessageHeader& h) { h.magic ^= 0x20; },
      [](MessageHeader& h) { h.index++; },
      [](MessageHeader& h) { h.window++; },
      [](MessageHeader& h) { h.info.wire = 2; },
  };
  for (const auto& change : changes)
    for (LinkPair& pair : test::link_pairs()) {
      CAPTURE(pair.kind);
      unsigned char data[8] = {};
      auto send = send_request(5, {{data, 8}}, nullptr);
      change(send.header);
      pair.a->post_send(std::move(send));
      pair.b->post_recv(recv_request(5, {{data, 8}}, nullptr));
      CHECK(error_of(*pair.b, pair.a.get()).kind == ErrorKind::mismatch);
    }
  for (const auto& [sent, expected] :
       {std::pair<std::size_t, std::size_t>{9, 8}, {8, 9}, {9, 90000}, {90000, 9}, {90000, 700000}})
    for (LinkPair& pair : test::link_pairs()) {
      CAPTURE(pair.kind);
      std::vector<unsigned char> data(700000);
      pair.a->post_send(send_request(5, {{data.data(), sent}}, nullptr));
      pair.b->post_recv(recv_request(5, {{data.data(), expected}}, nullptr));
      const Error error = error_of(*pair.b, pair.a.get());
      CHECK(error.kind == ErrorKind::mismatch);
      CHECK(std::string(error.what())
                .find(std::to_string(expected) + " bytes; rank 0 (host a) sent window 5, message 0, " +
                      std::to_string(sent) + " bytes") != std::string::npos);
    }
}

TEST_CASE("link: closing is final, and nothing is written afterwards") {
  for (LinkPair& pair : test::link_pairs()) {
    CAPTURE(pair.kind);
    std::vector<unsigned char> out(5 << 20, 1), in(5 << 20);
    std::uint32_t done[2] = {};
    pair.a->post_send(send_request(1, {{out.data(), out.size()}}, &done[0]));
    pair.b->post_recv(recv_request(1, {{in.data(), in.size()}}, &done[1]));
    for (int i = 0; i < 2; ++i) pair.step();
    pair.b->close();
    pair.b->close();
    const std::vector<unsigned char> before = in;
    try {
      for (int i = 0; i < 200; ++i) pair.a->progress();
    } catch (const Error&) {}
    CHECK(in == before);
    CHECK(done[1] == 0);
    CHECK(pair.b->poll_fd() == -1);
    CHECK_THROWS_AS(pair.b->progress(), Error);
  }
}

}  // namespace ringleader
