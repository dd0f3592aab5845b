// Messages that fail: too long, too many, too late, from a peer that is lost or sends anything.
#include <algorithm>
#include <cstring>
#include <random>
#include <thread>

#include "test_p2p_support.hpp"

namespace ringleader {

using namespace test;

TEST_CASE("p2p: a message longer than the buffer fails that receive only") {
  for (const bool early : {false, true}) {
    World world(2, Kind::ring);
    const Bytes out = pattern(100000, 1);
    Bytes small(99999, 0xEE), next(10);
    WorkPtr recv = early ? world[1].irecv(small.data(), small.size(), 0, 3, kNever) : nullptr;
    const WorkPtr send = world[0].isend(out.data(), out.size(), 1, 3, kNever);
    world.settle();
    if (!early) recv = world[1].irecv(small.data(), small.size(), 0, 3, kNever);
    world.finish({send, world[0].isend(out.data(), 10, 1, 3, kNever), world[1].irecv(next.data(), 10, 0, 3, kNever)});
    const Error error = error_of(recv);
    CHECK(error.kind == ErrorKind::mismatch);
    CHECK(error.ranks == std::vector<Rank>{0});
    CHECK(std::string(error.what()) ==
          "message of 100000 bytes with tag 3 from rank 0 does not fit the receive buffer of 99999 bytes");
    CHECK(std::count(small.begin(), small.end(), 0xEE) == 99999);
    CHECK(std::equal(next.begin(), next.end(), out.begin()));
  }
}

TEST_CASE("p2p: unexpected messages are bounded per peer, and a receive lets the rest through") {
  for (const Kind kind : {Kind::tcp, Kind::ring}) {
    constexpr std::size_t n = 40, bytes = 100000;
    World world(3, kind, 1000000);
    std::vector<Bytes> out, in;
    std::vector<WorkPtr> works;
    for (unsigned i = 0; i < n; ++i) {
      out.push_back(pattern(bytes, i));
      in.emplace_back(bytes);
    }
    for (std::size_t i = 0; i < n; ++i) works.push_back(world[0].isend(out[i].data(), bytes, 1, 0, kNever));
    world.settle();
    if (kind == Kind::ring) {  // no other buffer between them: 9 messages and the start of the tenth
      CHECK(works[8]->done());
      CHECK(!works[10]->done());
      std::vector<pollfd> fds;
      world[1].poll_descriptors(fds);
      CHECK(fds.empty());
    }
    std::int32_t value = 5, got = 0;  // another peer is not affected
    world.finish({world[2].isend(&value, 4, 1, 0, kNever), world[1].irecv(&got, 4, 2, 0, kNever)});
    for (std::size_t i = 0; i < n; ++i) works.push_back(world[1].irecv(in[i].data(), bytes, 0, 0, kNever));
    world.finish(works);
    CHECK(in == out);
  }
  // A single message above the limit, and many empty ones.
  World world(2, Kind::ring, 5000);
  const Bytes out = pattern(2000000, 1);
  Bytes in(2000000);
  std::vector<WorkPtr> works{world[0].isend(out.data(), out.size(), 1, 0, kNever)};
  for (int i = 0; i < 5000; ++i) works.push_back(world[0].isend(nullptr, 0, 1, 1, kNever));
  world.settle();
  CHECK(!works[0]->done());
  works.push_back(world[1].irecv(in.data(), in.size(), 0, 0, kNever));
  for (int i = 0; i < 5000; ++i) works.push_back(world[1].irecv(nullptr, 0, 0, 1, kNever));
  world.finish(works);
  CHECK(in == out);
}

TEST_CASE("p2p: deadlines fail the operation with peer and tag, and the stream goes on") {
  World world(2, Kind::ring, 100000);
  const Bytes out = pattern(1000000, 1);
  Bytes in(1000000), later(1000000);
  const auto recv = world[1].irecv(in.data(), 4, 0, 77, Clock::now() + milliseconds(5));
  const auto any = world[1].irecv(in.data(), 4, -1, 78, Clock::now() + milliseconds(5));
  test::drive([&] { world.step(); }, [&] { return recv->done() && any->done(); });
  CHECK(error_of(recv).kind == ErrorKind::timeout);
  CHECK(contains(error_of(recv), "receive with tag 77 from rank 0 timed out"));
  CHECK(error_of(recv).ranks == std::vector<Rank>{0});
  CHECK(contains(error_of(any), "from any rank"));
  CHECK(world[1].idle());

  // Never begun, and stuck in the middle behind the limit.
  auto lent = std::make_unique<Bytes>(out);
  const auto stuck = world[0].isend(lent->data(), lent->size(), 1, 1, Clock::now() + milliseconds(200));
  const auto queued = world[0].isend(lent->data(), lent->size(), 1, 2, Clock::now() + milliseconds(200));
  test::drive([&] { world.step(); }, [&] { return stuck->done() && queued->done(); });
  CHECK(contains(error_of(stuck), "send of 1000000 bytes with tag 1 to rank 1 timed out with"));
  CHECK(contains(error_of(queued), "timed out with 0 bytes taken"));
  lent.reset();  // its memory is ours again
  const auto given_up = world[1].irecv(in.data(), in.size(), 0, 1, kNever);
  const auto good = world[1].irecv(later.data(), later.size(), 0, 2, kNever);
  world.finish({world[0].isend(out.data(), out.size(), 1, 2, kNever), good});
  CHECK(later == out);
  CHECK(error_of(given_up).kind == ErrorKind::timeout);
  CHECK(contains(error_of(given_up), "the sender gave up its message of 1000000 bytes with tag 1 from rank 0 after"));

  // A receive that is being filled when its deadline passes: the rest is drained.
  auto lent_in = std::make_unique<Bytes>(1000000);
  const auto deadline = Clock::now() + milliseconds(500);  // long after the first bytes, whatever else the machine does
  const auto filled = world[1].irecv(lent_in->data(), lent_in->size(), 0, 3, deadline);
  const auto send = world[0].isend(out.data(), out.size(), 1, 3, kNever);
  world[1].progress();
  std::this_thread::sleep_until(deadline + milliseconds(5));
  world[1].progress();
  CHECK(contains(error_of(filled), "receive timed out with"));
  lent_in.reset();
  std::fill(later.begin(), later.end(), 0);
  world.finish({send, world[1].irecv(later.data(), later.size(), 0, 3, kNever),
                world[0].isend(out.data(), out.size(), 1, 3, kNever)});
  CHECK(later == out);
}

TEST_CASE("p2p: a lost peer fails what needs it, and what had arrived can still be received") {
  const auto fds = test::tcp_pair();
  std::vector<std::unique_ptr<ByteStream>> streams(3), other(3);
  streams[1] = std::make_unique<TcpStream>(fds.first, 1, "rank 1");
  other[0] = std::make_unique<TcpStream>(fds.second, 0, "rank 0");
  PointToPoint self(0, std::move(streams), {"rank 0", "rank 1", "rank 2"});
  const std::int32_t value = 42;
  std::int32_t got = 0, never = 0;
  {
    PointToPoint peer(1, std::move(other), {"rank 0", "rank 1", "rank 2"});
    CHECK(peer.isend(&value, 4, 0, 1, kNever)->done());
  }
  const Bytes large(10000000);
  const auto specific = self.irecv(&never, 4, 1, 2, kNever), any = self.irecv(&never, 4, -1, 2, kNever);
  const auto unrelated = self.irecv(&never, 4, 2, 2, kNever);
  const auto send = self.isend(large.data(), large.size(), 1, 2, kNever);
  test::drive([&] { self.progress(); }, [&] { return specific->done() && any->done() && send->done(); });
  for (const auto& work : {specific, any, send}) {
    CHECK(error_of(work).kind == ErrorKind::peer_lost);
    CHECK(error_of(work).ranks == std::vector<Rank>{1});
    CHECK(contains(error_of(work), "rank 1"));
  }
  CHECK(!unrelated->done());
  const auto arrived = self.irecv(&got, 4, 1, 1, kNever);
  CHECK(arrived->done());
  CHECK_NOTHROW(arrived->rethrow());
  CHECK(got == 42);
  CHECK(error_of(self.irecv(&never, 4, 1, 1, kNever)).kind == ErrorKind::peer_lost);
  CHECK(error_of(self.irecv(&never, 4, -1, 1, kNever)).kind == ErrorKind::peer_lost);
  CHECK(error_of(self.isend(&value, 4, 1, 1, kNever)).kind == ErrorKind::peer_lost);
  self.fail_all(Error(ErrorKind::aborted, "the communicator was aborted"));
  CHECK(error_of(unrelated).kind == ErrorKind::aborted);
  CHECK(error_of(self.isend(&value, 4, 0, 1, kNever)).kind == ErrorKind::aborted);
  CHECK(self.idle());
}

TEST_CASE("p2p: a rank out of range is refused") {
  World world(2, Kind::ring);
  CHECK_THROWS_AS(world[0].isend(nullptr, 0, 2, 0, kNever), Error);
  CHECK_THROWS_AS(world[0].isend(nullptr, 0, -1, 0, kNever), Error);
  CHECK_THROWS_AS(world[0].irecv(nullptr, 0, 2, 0, kNever), Error);
  CHECK_THROWS_AS(world[0].irecv(nullptr, 0, -2, 0, kNever), Error);
}

TEST_CASE("p2p: arbitrary bytes from a peer lose that peer, never more") {
  std::mt19937 random(17);
  for (int i = 0; i < 400; ++i) {
    const auto [raw, fd] = test::unix_pair();
    std::vector<std::unique_ptr<ByteStream>> streams(2);
    streams[0] = std::make_unique<TcpStream>(fd, 0, "rank 0");
    PointToPoint self(1, std::move(streams), {"rank 0", "rank 1"}, 100000);
    Bytes in(100, 0xEE), wire(2000);
    const auto recv = self.irecv(in.data(), 50, 0, 0, kNever);
    for (auto& byte : wire) byte = static_cast<unsigned char>(random());
    p2p::Frame frame{p2p::kFrameMagic, p2p::kData, 0, 50, 0, 50, 0};
    if (i % 2 == 0) {  // plausible headers with a wild field
      const std::uint64_t wild = random() % 2 == 0 ? ~0ULL >> random() % 64 : random();
      switch (random() % 5) {
        case 0: frame.kind = static_cast<std::uint32_t>(wild % 4); break;
        case 1: frame.total = wild; break;
        case 2: frame.offset = wild; break;
        case 3: frame.bytes = static_cast<std::uint32_t>(wild); break;
        default:
          frame.tag = static_cast<std::int64_t>(wild % 2);
          frame.total = wild;
          break;
      }
      std::memcpy(wire.data(), &frame, sizeof frame);
      std::memcpy(wire.data() + sizeof frame + 50, &frame, sizeof frame);
    }
    CHECK(send(raw, wire.data(), wire.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(wire.size()));
    ::close(raw);
    test::drive([&] { self.progress(); },
                [&] { return !self.isend(nullptr, 0, 0, 0, kNever)->error() ? false : true; });
    CHECK(recv->done());
    CHECK(std::count(in.begin() + 50, in.end(), 0xEE) == 50);
  }
}

}  // namespace ringleader
