#include <algorithm>
#include <cstring>
#include <random>
#include <thread>

#include "test_p2p_support.hpp"

namespace ringleader {

using namespace test;

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
  const auto send = [&](std::size_t from, int value, std::int64_t tag) {
    return world[from].isend(&out[value], 4, 2, tag, kNever);
  };
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
  const auto late = world[0].isend(out.data(), 9000, 0, 4, kNever),
             later = world[0].isend(out.data(), 9000, 0, 5, Clock::now());
  CHECK(late->done());
  world.settle();
  CHECK(error_of(later).kind == ErrorKind::timeout);
  CHECK(world[0].idle());
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
