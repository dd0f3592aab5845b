// What comes from a peer, fuzzed: streams that a real sender has written, changed at random (bits, cuts, doubled,
// dropped and moved parts, foreign bytes), fed in random pieces to the real receivers. Whatever comes, memory outside
// what was posted stays as it is, memory that is kept for it is bounded, and the end is an error or a right message.
// Runs under ASan with the other tests.
#include <doctest/doctest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/p2p.hpp"
#include "test_tcp_support.hpp"
#include "transport/tcp/control_connection.hpp"
#include "transport/tcp/tcp_link.hpp"
#include "transport/tcp/tcp_stream.hpp"
#include "transport/wire_stream.hpp"

namespace ringleader {
namespace {

using Bytes = std::vector<unsigned char>;
using Random = std::mt19937;

// More where time does not count, as for the long tests in Python.
int rounds(int usual) { return std::getenv("RINGLEADER_LONG_TESTS") != nullptr ? usual * 50 : usual; }

std::size_t below(Random& random, std::size_t limit) { return limit == 0 ? 0 : random() % limit; }

// All that is in the socket now, and its end if it has one.
Bytes drain(int fd) {
  Bytes all;
  unsigned char buffer[8192];
  for (ssize_t n; (n = recv(fd, buffer, sizeof buffer, MSG_DONTWAIT)) > 0;) all.insert(all.end(), buffer, buffer + n);
  return all;
}

// One to three changes of a good stream; sometimes none.
void spoil(Bytes& wire, Random& random) {
  for (std::size_t change = below(random, 4); change > 0 && !wire.empty(); --change) {
    const std::size_t at = below(random, wire.size());
    const auto from = wire.begin() + static_cast<std::ptrdiff_t>(at);
    const std::size_t length = 1 + below(random, std::min<std::size_t>(wire.size() - at, 64));
    const auto to = from + static_cast<std::ptrdiff_t>(length);
    switch (random() % 7) {
      case 0: wire[at] = static_cast<unsigned char>(wire[at] ^ (1U << random() % 8)); break;
      case 1: wire[at] = static_cast<unsigned char>(random()); break;
      case 2: wire.resize(at); break;
      case 3: wire.erase(from, to); break;
      case 4: {
        const Bytes part(from, to);
        wire.insert(wire.begin() + static_cast<std::ptrdiff_t>(below(random, wire.size())), part.begin(), part.end());
        break;
      }
      case 5: {  // a field that is suddenly huge, or nothing
        const unsigned char fill = random() % 2 == 0 ? 0xFF : 0;
        std::fill(from, from + static_cast<std::ptrdiff_t>(std::min<std::size_t>(length, 8)), fill);
        break;
      }
      default: {
        Bytes foreign(length);
        for (unsigned char& byte : foreign) byte = static_cast<unsigned char>(random());
        wire.insert(from, foreign.begin(), foreign.end());
      }
    }
  }
}

// Sends the wire in pieces, `step` after each; then closes this end.
template <typename Step>
void feed(int raw, const Bytes& wire, Random& random, Step step) {
  for (std::size_t sent = 0; sent < wire.size();) {
    const std::size_t most = random() % 3 == 0 ? 3 : 4096;
    const std::size_t n = std::min(wire.size() - sent, 1 + below(random, most));
    const ssize_t taken = send(raw, wire.data() + sent, n, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (taken < 0) break;  // the receiver has had enough
    sent += static_cast<std::size_t>(taken);
    step();
  }
  ::close(raw);
}

// A buffer with guard words on both sides.
class Guarded {
 public:
  explicit Guarded(std::size_t bytes) : memory_(bytes + 128, 0xA5), bytes_(bytes) { std::fill_n(data(), bytes, 0); }
  unsigned char* data() { return memory_.data() + 64; }
  bool whole() const {
    return std::count(memory_.begin(), memory_.begin() + 64, 0xA5) == 64 &&
           std::count(memory_.end() - 64, memory_.end(), 0xA5) == 64 && memory_.size() == bytes_ + 128;
  }

 private:
  Bytes memory_;
  std::size_t bytes_;
};

void add_floats(const void*, void* dst, const void* incoming, std::size_t bytes) {
  auto* to = static_cast<float*>(dst);
  const auto* from = static_cast<const float*>(incoming);
  for (std::size_t i = 0; i < bytes / sizeof(float); ++i) to[i] += from[i];
}

struct Shape {
  std::size_t elements;
  WireFormat wire;
  bool fold;
};

}  // namespace

TEST_CASE("hostile: messages of a link, changed anywhere and cut anywhere") {
  Random random(41);
  for (int round = 0; round < rounds(600); ++round) {
    std::vector<Shape> shapes(1 + below(random, 4));
    for (Shape& shape : shapes) {
      const WireFormat wires[] = {WireFormat::f32, WireFormat::f32, WireFormat::bf16, WireFormat::f16};
      shape = {1 + below(random, random() % 4 == 0 ? 5000 : 40), wires[random() % 4], random() % 2 == 0};
    }
    Bytes wire;
    std::vector<float> values(5000, 1.5F);
    {
      const auto [raw, fd] = test::unix_pair();
      TcpLink sender(fd, 1, "rank 1");
      for (std::size_t i = 0; i < shapes.size(); ++i) {
        std::uint32_t done = 0;
        std::vector<Piece> pieces{{values.data(), shapes[i].elements * sizeof(float)}};
        SendRequest request = test::send_request(9, pieces, &done, static_cast<std::uint32_t>(i));
        request.wire = shapes[i].wire;
        request.header.bytes = payload_bytes(pieces, shapes[i].wire);
        sender.post_send(std::move(request));
        while (done == 0) {
          sender.progress();
          const Bytes part = drain(raw);
          wire.insert(wire.end(), part.begin(), part.end());
        }
      }
      const Bytes part = drain(raw);
      wire.insert(wire.end(), part.begin(), part.end());
      ::close(raw);
    }
    const Bytes good = wire;
    spoil(wire, random);

    const auto [raw, fd] = test::unix_pair();
    TcpLink receiver(fd, 0, "rank 0");
    std::vector<Guarded> buffers;
    std::vector<std::uint32_t> done(shapes.size(), 0);
    for (const Shape& shape : shapes) buffers.emplace_back(shape.elements * sizeof(float));
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      std::vector<Piece> pieces{{buffers[i].data(), shapes[i].elements * sizeof(float)}};
      RecvRequest request = test::recv_request(9, pieces, &done[i], static_cast<std::uint32_t>(i));
      request.wire = shapes[i].wire;
      request.header.bytes = payload_bytes(pieces, shapes[i].wire);
      request.item = sizeof(float);
      if (shapes[i].fold) request.fold = add_floats;
      receiver.post_recv(std::move(request));
    }
    bool failed = false;
    const auto step = [&] {
      try {
        if (!failed) receiver.progress();
      } catch (const Error& error) {
        failed = true;
        CHECK((error.kind == ErrorKind::mismatch || error.kind == ErrorKind::peer_lost));
      }
    };
    feed(raw, wire, random, step);
    for (int i = 0; i < 10 && !failed; ++i)
      step();  // it has closed, so at the latest after the last message there is an end
    for (const Guarded& buffer : buffers) CHECK(buffer.whole());
    // A receive is done only if its message came: none after the first that did not.
    CHECK(std::is_sorted(done.begin(), done.end(), std::greater<>()));
    if (wire == good) {
      CHECK(std::count(done.begin(), done.end(), 1U) == static_cast<std::ptrdiff_t>(done.size()));
      float value = 0;
      std::memcpy(&value, buffers[0].data(), sizeof value);
      CHECK(value == 1.5F);
    }
  }
}

TEST_CASE("hostile: point-to-point messages, changed anywhere and cut anywhere") {
  constexpr auto kNever = Clock::time_point::max();
  constexpr std::size_t kLimit = 200'000;
  Random random(43);
  for (int round = 0; round < rounds(500); ++round) {
    Bytes wire, payload(150'000);
    for (std::size_t i = 0; i < payload.size(); ++i) payload[i] = static_cast<unsigned char>(i * 31);
    const std::size_t messages = 1 + below(random, 5);
    {
      const auto [raw, fd] = test::unix_pair();
      std::vector<std::unique_ptr<ByteStream>> streams(2);
      streams[1] = std::make_unique<TcpStream>(fd, 1, "rank 1");
      PointToPoint sender(0, std::move(streams), {"rank 0", "rank 1"});
      for (std::size_t i = 0; i < messages; ++i) {
        const std::size_t bytes = below(random, random() % 4 == 0 ? payload.size() : 300);
        // One may be given up half-way: a cancel frame.
        const auto deadline = random() % 5 == 0 ? Clock::now() : kNever;
        sender.isend(payload.data(), bytes, 1, static_cast<std::int64_t>(random() % 3), deadline);
        for (int k = 0; k < 40 && !(sender.idle() && sender.flushed()); ++k) {
          sender.progress();
          const Bytes part = drain(raw);
          wire.insert(wire.end(), part.begin(), part.end());
        }
      }
      ::close(raw);
    }
    spoil(wire, random);

    const auto [raw, fd] = test::unix_pair();
    std::vector<std::unique_ptr<ByteStream>> streams(2);
    streams[0] = std::make_unique<TcpStream>(fd, 0, "rank 0");
    PointToPoint self(1, std::move(streams), {"rank 0", "rank 1"}, kLimit);
    std::vector<Guarded> buffers;
    buffers.reserve(messages);
    std::vector<std::shared_ptr<WorkState>> works;
    for (std::size_t i = 0; i < messages; ++i) {
      const std::size_t room = below(random, random() % 3 == 0 ? payload.size() : 300);
      buffers.emplace_back(room);
      works.push_back(self.irecv(buffers[i].data(), room, random() % 2 == 0 ? 0 : -1,
                                 static_cast<std::int64_t>(random() % 3), kNever));
    }
    feed(raw, wire, random, [&] { self.progress(); });
    for (int i = 0; i < 50; ++i) self.progress();
    // Its end has been seen unless unexpected messages fill their limit, which bounds them: receives free it.
    for (int i = 0; i < 200 && !self.isend(nullptr, 0, 0, 0, kNever)->error(); ++i) {
      for (std::int64_t tag = 0; tag < 3; ++tag) {
        auto scratch = std::make_shared<Bytes>(payload.size());
        const auto work = self.irecv(scratch->data(), scratch->size(), 0, tag, Clock::now());
        self.progress();
        CHECK(work->done());
      }
    }
    for (const Guarded& buffer : buffers) CHECK(buffer.whole());
  }
}

TEST_CASE("hostile: control messages, changed anywhere and cut anywhere") {
  using Type = ControlConnection::Event::Type;
  Random random(47);
  for (int round = 0; round < rounds(1500); ++round) {
    Bytes wire;
    {
      const auto [raw, fd] = test::unix_pair();
      ControlConnection sender(fd, 1, "rank 1");
      for (std::size_t i = below(random, 4); i > 0; --i) sender.send_presence(test::example_info(i));
      if (random() % 2 == 0)
        sender.send_abort(ErrorKind::timeout, static_cast<Rank>(random() % 9), std::string(below(random, 5000), 'x'));
      if (random() % 2 == 0) sender.send_goodbye();
      wire = drain(raw);
      ::close(raw);
    }
    spoil(wire, random);
    const auto [raw, fd] = test::unix_pair();
    ControlConnection connection(fd, 0, "rank 0");
    int lost = 0, events = 0;
    const auto look = [&] {
      for (;;) {
        const ControlConnection::Event event = connection.poll();
        if (event.type == Type::none) return;
        ++events;
        lost += event.type == Type::lost ? 1 : 0;
        // What was said before may still follow; after the end nothing does.
        CHECK(event.reason.size() <= ControlConnection::kMaxReason);
        CHECK_NOTHROW(event.info.text());
      }
    };
    feed(raw, wire, random, look);
    for (int i = 0; i < 10 && connection.poll_fd() != -1; ++i) look();
    CHECK(connection.poll_fd() == -1);
    CHECK(lost <= 1);
    CHECK(events <= 16);
  }
}

}  // namespace ringleader
