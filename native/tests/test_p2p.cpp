#include "core/p2p.hpp"

#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <thread>

#include "test_tcp_support.hpp"
#include "transport/shm/ring_stream.hpp"
#include "transport/tcp/tcp_stream.hpp"

namespace ringleader {
namespace {

using std::chrono::milliseconds;
constexpr auto kNever = Clock::time_point::max();
using Bytes = std::vector<unsigned char>;
using WorkPtr = std::shared_ptr<WorkState>;

Bytes pattern(std::size_t bytes, unsigned seed) {
  Bytes data(bytes);
  for (std::size_t i = 0; i < bytes; ++i) data[i] = static_cast<unsigned char>((i * 2654435761U + seed * 97U) >> 5);
  return data;
}

enum class Kind { tcp, tiny_tcp, ring };

// n ranks in this process, each with a stream to every other.
struct World {
  World(Rank n, Kind kind, std::size_t limit = PointToPoint::kUnexpectedLimit, std::size_t capacity = 4096) {
    std::vector<std::vector<std::unique_ptr<ByteStream>>> streams(static_cast<std::size_t>(n));
    for (auto& list : streams) list.resize(static_cast<std::size_t>(n));
    for (Rank a = 0; a < n; ++a) {
      names.push_back("rank " + std::to_string(a));
      for (Rank b = 0; b < a; ++b) {
        auto& ab = streams[static_cast<std::size_t>(a)][static_cast<std::size_t>(b)];
        auto& ba = streams[static_cast<std::size_t>(b)][static_cast<std::size_t>(a)];
        if (kind == Kind::ring) {
          const auto alive = [] { return true; };
          ByteRing* one = ring(capacity);
          ByteRing* two = ring(capacity);
          ab = std::make_unique<RingStream>(one, two, capacity, RingStream::Peer{b, "rank " + std::to_string(b), alive, {}});
          ba = std::make_unique<RingStream>(two, one, capacity, RingStream::Peer{a, "rank " + std::to_string(a), alive, {}});
        } else {
          const auto fds = kind == Kind::tcp ? test::tcp_pair() : test::unix_pair();
          if (kind == Kind::tiny_tcp) {
            test::tiny_buffers(fds.first);
            test::tiny_buffers(fds.second);
          }
          ab = std::make_unique<TcpStream>(fds.first, b, "rank " + std::to_string(b));
          ba = std::make_unique<TcpStream>(fds.second, a, "rank " + std::to_string(a));
        }
      }
    }
    for (Rank r = 0; r < n; ++r) {
      ranks.push_back(std::make_unique<PointToPoint>(r, std::move(streams[static_cast<std::size_t>(r)]), names, limit));
    }
  }

  ByteRing* ring(std::size_t capacity) {
    memory.emplace_back(ByteRing::bytes_needed(capacity) + 64);
    auto address = reinterpret_cast<std::uintptr_t>(memory.back().data());
    return ByteRing::create(reinterpret_cast<void*>((address + 63) & ~std::uintptr_t{63}));
  }

  PointToPoint& operator[](std::size_t r) { return *ranks[r]; }
  void step() {
    for (auto& rank : ranks) rank->progress();
  }
  void finish(const std::vector<WorkPtr>& works) {
    test::drive([&] { step(); }, [&] { return std::all_of(works.begin(), works.end(), [](const auto& w) { return w->done(); }); });
    for (const auto& work : works) CHECK_NOTHROW(work->rethrow());
  }
  void settle() {  // until nothing has moved for a while
    for (int quiet = 0; quiet < 20; ++quiet) {
      bool moved = false;
      for (auto& rank : ranks) moved |= rank->progress();
      if (moved) quiet = 0;
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }

  std::vector<Bytes> memory;
  std::vector<std::string> names;
  std::vector<std::unique_ptr<PointToPoint>> ranks;
};

Error error_of(const WorkPtr& work) { return work->error().value_or(Error(ErrorKind::internal, "it did not fail")); }

bool contains(const Error& error, const std::string& text) { return std::string(error.what()).find(text) != std::string::npos; }

}  // namespace

TEST_CASE("p2p: messages of all sizes, both ways at once, received before or after they arrive") {
  for (const Kind kind : {Kind::tcp, Kind::tiny_tcp, Kind::ring}) {
    for (const bool early : {false, true}) {
      World world(2, kind);
      std::vector<WorkPtr> works;
      std::vector<Bytes> out[2], in[2];
      const std::size_t sizes[] = {0, 1, 40, 8191, 8193, 65536, 65537, 200000, 3000001};
      for (std::size_t side = 0; side < 2; ++side) {
        for (std::size_t i = 0; i < std::size(sizes); ++i) {
          out[side].push_back(pattern(sizes[i], static_cast<unsigned>(10 * side + i)));
          in[side].emplace_back(sizes[i] + 1, 0xEE);
        }
      }
      const auto post = [&](bool receive) {
        for (std::size_t side = 0; side < 2; ++side) {
          for (std::size_t i = 0; i < std::size(sizes); ++i) {
            const Rank other = static_cast<Rank>(1 - side);
            works.push_back(receive ? world[side].irecv(in[side][i].data(), sizes[i], other, 5, kNever)
                                    : world[side].isend(out[side][i].data(), sizes[i], other, 5, kNever));
          }
        }
      };
      post(early);
      world.settle();
      post(!early);
      world.finish(works);
      for (std::size_t side = 0; side < 2; ++side) {
        for (std::size_t i = 0; i < std::size(sizes); ++i) {
          CHECK(in[side][i].back() == 0xEE);
          in[side][i].pop_back();
          CHECK(in[side][i] == out[1 - side][i]);
          const WorkPtr& recv = works[(early ? 0 : 2 * std::size(sizes)) + side * std::size(sizes) + i];
          CHECK(recv->nbytes == sizes[i]);
          CHECK(recv->source == static_cast<Rank>(1 - side));
          CHECK(recv->tag == 5);
        }
        CHECK(world[side].idle());
        CHECK(world[side].next_deadline() == kNever);
      }
    }
  }
}

TEST_CASE("p2p: matching is by source and tag, in order") {
  World world(3, Kind::ring);
  std::int32_t out[6] = {10, 11, 12, 13, 14, 15}, in[6] = {};
  const auto send = [&](std::size_t from, int value, std::int64_t tag) { return world[from].isend(&out[value], 4, 2, tag, kNever); };
  // rank 2 receives: two with tag 7 from 0, one with tag -1 from 1, any with tag 7
  const auto first = world[2].irecv(&in[0], 4, 0, 7, kNever);
  const auto second = world[2].irecv(&in[1], 4, 0, 7, kNever);
  world.finish({send(0, 0, 8), send(0, 1, 7), send(0, 2, 7), send(1, 3, 7), send(1, 4, -1), first, second});
  CHECK(in[0] == 11);
  CHECK(in[1] == 12);
  world.settle();
  const auto any = world[2].irecv(&in[2], 4, -1, 7, kNever);
  const auto negative = world[2].irecv(&in[3], 4, 1, -1, kNever);
  const auto eight = world[2].irecv(&in[4], 4, -1, 8, kNever);
  world.finish({any, negative, eight});
  CHECK(in[2] == 13);
  CHECK(any->source == 1);
  CHECK(in[3] == 14);
  CHECK(in[4] == 10);
  CHECK(eight->source == 0);
  // posted any-source receives are served in posting order, whoever sends
  const auto a = world[2].irecv(&in[0], 4, -1, 9, kNever), b = world[2].irecv(&in[1], 4, -1, 9, kNever);
  const auto c = world[2].irecv(&in[2], 4, 0, 9, kNever);
  world.finish({send(1, 0, 9)});
  world.settle();
  world.finish({send(0, 1, 9)});
  world.settle();
  world.finish({send(0, 2, 9), a, b, c});
  CHECK(in[0] == 10);
  CHECK(in[1] == 11);
  CHECK(in[2] == 12);
}

TEST_CASE("p2p: any-source takes unexpected messages in order of arrival") {
  World world(4, Kind::tcp);
  for (std::int32_t from : {2, 0, 1}) {
    world.finish({world[static_cast<std::size_t>(from)].isend(&from, 4, 3, 1, kNever)});
    world.settle();
  }
  for (const std::int32_t expected : {2, 0, 1}) {
    std::int32_t value = -1;
    world.finish({world[3].irecv(&value, 4, -1, 1, kNever)});
    CHECK(value == expected);
  }
}

TEST_CASE("p2p: random traffic between three ranks is delivered exactly") {
  for (const Kind kind : {Kind::tcp, Kind::tiny_tcp, Kind::ring}) {
    World world(3, kind, 300000);
    std::mt19937 random(5);
    struct One {
      Bytes out, in;
      WorkPtr send, recv;
      std::size_t from, to;
      std::int64_t tag;
    };
    std::vector<std::unique_ptr<One>> all;
    for (int i = 0; i < 600; ++i) {
      auto one = std::make_unique<One>();
      const std::size_t bytes = random() % 10 == 0 ? random() % 150000 : random() % 300;
      one->out = pattern(bytes, static_cast<unsigned>(i));
      one->in.resize(bytes);
      one->from = random() % 3;
      one->to = random() % 3;
      one->tag = static_cast<std::int64_t>(random() % 3);
      all.push_back(std::move(one));
    }
    // Per (from, to, tag) both sides post in the same order; otherwise anyhow.
    std::size_t sent = 0, posted = 0;
    while (sent < all.size() || posted < all.size()) {
      if (sent < all.size() && random() % 2 == 0) {
        One& one = *all[sent++];
        one.send = world[one.from].isend(one.out.data(), one.out.size(), static_cast<Rank>(one.to), one.tag, kNever);
      } else if (posted < all.size()) {
        One& one = *all[posted++];
        one.recv = world[one.to].irecv(one.in.data(), one.in.size(), static_cast<Rank>(one.from), one.tag, kNever);
      }
      if (random() % 4 == 0) world.step();
    }
    std::vector<WorkPtr> works;
    for (const auto& one : all) works.insert(works.end(), {one->send, one->recv});
    world.finish(works);
    for (const auto& one : all) CHECK(one->in == one->out);
  }
}

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

TEST_CASE("p2p: sends to myself are buffered up to the limit and wait beyond it") {
  World world(1, Kind::ring, 10000);
  const Bytes out = pattern(9000, 1);
  Bytes in(9000), again(9000), small(4);
  const auto buffered = world[0].isend(out.data(), 9000, 0, 1, kNever);
  CHECK(buffered->done());
  const auto waiting = world[0].isend(out.data() + 1, 8000, 0, 1, kNever);
  CHECK(!waiting->done());
  CHECK(!world[0].idle());
  world.finish({world[0].irecv(in.data(), 9000, 0, 1, kNever)});
  CHECK(in == out);
  CHECK(!waiting->done());
  const auto recv = world[0].irecv(again.data(), 9000, -1, 1, kNever);
  world.finish({recv, waiting});
  CHECK(recv->nbytes == 8000);
  CHECK(std::equal(out.begin() + 1, out.begin() + 8001, again.begin()));
  const auto posted = world[0].irecv(small.data(), 4, 0, 2, kNever);
  world.finish({world[0].isend(out.data(), 3, 0, 2, kNever), posted});
  CHECK(world[0].idle());
  const auto late = world[0].isend(out.data(), 9000, 0, 4, kNever), later = world[0].isend(out.data(), 9000, 0, 5, Clock::now());
  CHECK(late->done());
  world.settle();
  CHECK(error_of(later).kind == ErrorKind::timeout);
  CHECK(world[0].idle());
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
  const auto stuck = world[0].isend(lent->data(), lent->size(), 1, 1, Clock::now() + milliseconds(20));
  const auto queued = world[0].isend(lent->data(), lent->size(), 1, 2, Clock::now() + milliseconds(20));
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
  const auto filled = world[1].irecv(lent_in->data(), lent_in->size(), 0, 3, Clock::now() + milliseconds(20));
  const auto send = world[0].isend(out.data(), out.size(), 1, 3, kNever);
  world[1].progress();
  std::this_thread::sleep_for(milliseconds(25));
  world[1].progress();
  CHECK(contains(error_of(filled), "receive timed out with"));
  lent_in.reset();
  std::fill(later.begin(), later.end(), 0);
  world.finish({send, world[1].irecv(later.data(), later.size(), 0, 3, kNever), world[0].isend(out.data(), out.size(), 1, 3, kNever)});
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

TEST_CASE("p2p: a small send completes at once but is flushed only when the stream took it") {
  World world(2, Kind::ring, 100, 256);
  const Bytes out = pattern(1000, 1);
  Bytes in(1000);
  CHECK(world[0].flushed());
  CHECK(world[0].isend(out.data(), out.size(), 1, 0, kNever)->done());
  CHECK(!world[0].flushed());
  CHECK(!world[0].idle());
  world.finish({world[1].irecv(in.data(), in.size(), 0, 0, kNever)});
  CHECK(in == out);
  CHECK(world[0].flushed());
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
        default: frame.tag = static_cast<std::int64_t>(wild % 2); frame.total = wild; break;
      }
      std::memcpy(wire.data(), &frame, sizeof frame);
      std::memcpy(wire.data() + sizeof frame + 50, &frame, sizeof frame);
    }
    CHECK(send(raw, wire.data(), wire.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(wire.size()));
    ::close(raw);
    test::drive([&] { self.progress(); }, [&] { return !self.isend(nullptr, 0, 0, 0, kNever)->error() ? false : true; });
    CHECK(recv->done());
    CHECK(std::count(in.begin() + 50, in.end(), 0xEE) == 50);
  }
}

TEST_CASE("p2p: threads of both ends post while others make progress") {
  for (const Kind kind : {Kind::tcp, Kind::ring}) {
    World world(2, kind, 20000);
    constexpr int n = 400;
    std::atomic<bool> stop{false};
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (std::size_t side = 0; side < 2; ++side) {
      threads.emplace_back([&, side] {
        while (!stop) {
          if (!world[side].progress()) std::this_thread::yield();
        }
      });
      for (std::int64_t tag = 0; tag < 2; ++tag) {
        threads.emplace_back([&, side, tag] {
          for (int i = 0; i < n; ++i) {
            const std::size_t bytes = static_cast<std::size_t>((i * 977) % 12000);
            const Bytes out = pattern(bytes, static_cast<unsigned>(i));
            Bytes in(bytes);
            const auto send = world[side].isend(out.data(), bytes, static_cast<Rank>(1 - side), tag, kNever);
            const auto recv = world[side].irecv(in.data(), bytes, static_cast<Rank>(1 - side), tag, kNever);
            if (!recv->wait_until(Clock::now() + std::chrono::seconds(60)) || recv->error() || in != out) ++wrong;
            if (!send->wait_until(Clock::now() + std::chrono::seconds(60)) || send->error()) ++wrong;
          }
        });
      }
    }
    for (std::size_t t = 0; t < threads.size(); ++t) {
      if (t % 3 != 0) threads[t].join();
    }
    stop = true;
    threads[0].join();
    threads[3].join();
    CHECK(wrong == 0);
  }
}

}  // namespace ringleader
