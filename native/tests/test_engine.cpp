// The engine end to end: schedules lowered, bound and run by ranks that are threads.
#include <cstring>

#include "core/program.hpp"
#include "doctest/doctest.h"
#include "tests/engine_group.hpp"

using namespace ringleader;
using namespace ringleader::test;

namespace {

std::vector<Transfer> ring(Rank n) {
  std::vector<Transfer> table;
  for (Rank t = 0; t < n - 1; ++t)
    for (Rank r = 0; r < n; ++r) {
      const Rank c = (r - t + n) % n;
      table.push_back({t, r, c, (r + 1) % n, c, 1, 0, 0, 0, 1});
    }
  for (Rank t = 0; t < n - 1; ++t)
    for (Rank r = 0; r < n; ++r) {
      const Rank c = (r + 1 - t + n) % n;
      table.push_back({n - 1 + t, r, c, (r + 1) % n, c, 1, 0, 0, 0, 0});
    }
  return table;
}

std::vector<Transfer> two_shot(Rank n) {
  std::vector<Transfer> table;
  for (Rank c = 0; c < n; ++c)
    for (Rank s = 0; s < n; ++s)
      if (s != c) table.push_back({0, s, c, c, c, 1, 0, 0, 0, 1});
  for (Rank c = 0; c < n; ++c)
    for (Rank d = 0; d < n; ++d)
      if (d != c) table.push_back({1, c, c, d, c, 1, 0, 0, 0, 0});
  return table;
}

std::vector<Transfer> one_shot(Rank n) {
  std::vector<Transfer> table;
  for (Rank d = 0; d < n; ++d)
    for (Rank s = 0; s < n; ++s)
      if (s != d) table.push_back({0, s, 0, d, 0, 1, 0, 0, 0, 1});
  return table;
}

PlanRequest all_reduce_request(const std::vector<Transfer>& table, Rank n, std::int32_t chunks,
                               const std::vector<std::int32_t>& nodes, std::uint64_t count) {
  PlanRequest request;
  request.lowered = lower(table.data(), table.size(), Collective::all_reduce, n, -1, chunks, nodes, LowerOptions{});
  request.count = count;
  request.dtype = DType::i32;
  request.op = ReduceOp::sum;
  request.info.count = count;
  request.info.collective = 0;
  request.info.dtype = static_cast<std::uint8_t>(DType::i32);
  request.info.op = 0;
  return request;
}

std::int32_t value(Rank r, std::uint64_t i, int round) {
  return static_cast<std::int32_t>(
      (i * 7 + static_cast<std::uint64_t>(r) * 1000003 + static_cast<std::uint64_t>(round)) % 100003);
}

// Several all-reduces in a row, sizes and algorithms alternating, some asynchronous; every element checked.
void all_reduce_rounds(EngineGroup& group, int rounds, bool async) {
  const Rank n = group.size();
  const std::vector<std::uint64_t> counts{0, 1, 5, 1000, 70001};
  const auto errors = group.run([&](Rank r) {
    std::vector<std::shared_ptr<const Plan>> plans;
    for (const std::uint64_t count : counts) {
      plans.push_back(group[r]->make_plan(all_reduce_request(ring(n), n, n, group.nodes(), count)));
      plans.push_back(group[r]->make_plan(all_reduce_request(two_shot(n), n, n, group.nodes(), count)));
      plans.push_back(group[r]->make_plan(all_reduce_request(one_shot(n), n, 1, group.nodes(), count)));
    }
    for (int round = 0; round < rounds; ++round) {
      std::vector<std::vector<std::int32_t>> data;
      std::vector<std::shared_ptr<WorkState>> works;
      for (std::size_t p = 0; p < plans.size(); ++p) {
        const std::uint64_t count = counts[p / 3];
        auto& x = data.emplace_back(count + 2);
        x.front() = x.back() = -77;
        for (std::uint64_t i = 0; i < count; ++i) x[i + 1] = value(r, i, round);
      }
      for (std::size_t p = 0; p < plans.size(); ++p) {
        void* pointer = data[p].data() + 1;
        if (async && (p + static_cast<std::size_t>(round)) % 2)
          works.push_back(group[r]->start(plans[p], pointer, pointer, 0));
        else
          run_plan(group[r], plans[p], pointer, pointer);
      }
      for (const auto& work : works) {
        work->wait_until(Clock::now() + std::chrono::seconds(30));
        work->rethrow();
      }
      for (std::size_t p = 0; p < plans.size(); ++p) {
        const std::uint64_t count = counts[p / 3];
        if (data[p].front() != -77 || data[p].back() != -77) throw std::runtime_error("guard words were overwritten");
        for (std::uint64_t i = 0; i < count; ++i) {
          std::int32_t want = 0;
          for (Rank q = 0; q < n; ++q) want += value(q, i, round);
          if (data[p][i + 1] != want)
            throw std::runtime_error("plan " + std::to_string(p) + " element " + std::to_string(i) + ": " +
                                     std::to_string(data[p][i + 1]) + " instead of " + std::to_string(want));
        }
      }
    }
  });
  for (Rank r = 0; r < n; ++r) CHECK(text_of(errors[static_cast<std::size_t>(r)]) == "");
}

CommOptions small_slots() {
  CommOptions options;
  options.slot_bytes = 16 << 10;  // so that 70001 elements cross many windows
  options.small_slot_bytes = 1 << 10;
  return options;
}

}  // namespace

TEST_CASE("all-reduce over shared memory, windows and all") {
  for (const Rank n : {1, 2, 3, 5}) {
    EngineGroup group(std::vector<std::int32_t>(static_cast<std::size_t>(n), 0), 30, small_slots());
    all_reduce_rounds(group, 8, false);
  }
}

TEST_CASE("all-reduce on the progress thread, mixed with synchronous calls, keeps order") {
  EngineGroup group({0, 0, 0}, 30, small_slots());
  all_reduce_rounds(group, 8, true);
}

TEST_CASE("all-reduce over TCP, one and two connections a peer") {
  for (const std::size_t connections : {1u, 2u}) {
    EngineGroup group({0, 1, 2}, 30, small_slots(), connections);
    all_reduce_rounds(group, 4, connections == 2);
  }
}

TEST_CASE("all-reduce over two nodes of two ranks: shared memory and TCP in one program") {
  EngineGroup group({0, 0, 1, 1}, 30, small_slots());
  all_reduce_rounds(group, 4, true);
}

TEST_CASE("registered memory is used in place") {
  EngineGroup group({0, 0, 0});
  const std::uint64_t count = 300000;
  const auto errors = group.run([&](Rank r) {
    const auto plan = group[r]->make_plan(all_reduce_request(two_shot(3), 3, 3, group.nodes(), count));
    auto* x = static_cast<std::int32_t*>(Arena::instance().allocate(count * 4));
    for (int round = 0; round < 5; ++round) {
      for (std::uint64_t i = 0; i < count; ++i) x[i] = value(r, i, round);
      run_plan(group[r], plan, x, x);
      for (std::uint64_t i = 0; i < count; ++i)
        if (x[i] != value(0, i, round) + value(1, i, round) + value(2, i, round)) throw std::runtime_error("wrong sum");
    }
    const auto staged = group[r]->mesh().counters.bytes_staged_in.load();
    if (staged != 0) throw std::runtime_error("registered memory was staged: " + std::to_string(staged));
    Arena::release(x);
  });
  for (const auto& error : errors) CHECK(text_of(error) == "");
}

TEST_CASE("an operation that could not begin has not happened: others go on, and it can be tried again") {
  CommOptions options;
  options.slot_bytes = std::uint64_t{1} << 60;  // more than there ever is
  EngineGroup group({0, 0}, 30, options);
  const auto errors = group.run([&](Rank r) {
    const auto large = group[r]->make_plan(all_reduce_request(two_shot(2), 2, 2, group.nodes(), 100000));
    const auto small = group[r]->make_plan(all_reduce_request(two_shot(2), 2, 2, group.nodes(), 1000));
    std::vector<std::int32_t> x(100000, r + 1);
    for (int attempt = 0; attempt < 2 && r == 0; ++attempt) {
      try {
        run_plan(group[r], large, x.data(), x.data());
      } catch (const Error& error) {
        if (error.kind == ErrorKind::memory) continue;
      }
      throw std::runtime_error("there was memory for it");
    }
    run_plan(group[r], small, x.data(), x.data());
    if (x[0] != 3 || x[999] != 3) throw std::runtime_error("wrong sum");
  });
  for (const auto& error : errors) CHECK(text_of(error) == "");
}

TEST_CASE("ranks that disagree all get an error naming both sides") {
  for (const bool network : {false, true}) {
    EngineGroup group(network ? std::vector<std::int32_t>{0, 1, 2} : std::vector<std::int32_t>{0, 0, 0}, 10);
    const auto errors = group.run([&](Rank r) {
      const std::uint64_t count = r == 1 ? 2000 : 1000;
      const auto plan = group[r]->make_plan(all_reduce_request(two_shot(3), 3, 3, group.nodes(), count));
      std::vector<std::int32_t> x(count, 1);
      run_plan(group[r], plan, x.data(), x.data());
    });
    for (const auto& error : errors) {
      REQUIRE(error);
      CHECK(kind_of(error) == ErrorKind::mismatch);
      CHECK(text_of(error).find("1000") != std::string::npos);
      CHECK(text_of(error).find("2000") != std::string::npos);
    }
  }
}

TEST_CASE("a late rank is named when the deadline passes, also by ranks that exchange nothing with it") {
  for (const std::int32_t apart : {0, 1}) {
    EngineGroup group({0, apart, 2 * apart, 3 * apart}, 30);
    const auto errors = group.run([&](Rank r) {
      const auto plan = group[r]->make_plan(all_reduce_request(ring(4), 4, 4, group.nodes(), 1000));
      std::vector<std::int32_t> x(1000, 1);
      if (r == 2) std::this_thread::sleep_for(std::chrono::milliseconds(3000));
      run_plan(group[r], plan, x.data(), x.data(), 1.5);
    });
    for (const Rank r : {0, 1, 3}) {
      REQUIRE(errors[static_cast<std::size_t>(r)]);
      CHECK(kind_of(errors[static_cast<std::size_t>(r)]) == ErrorKind::timeout);
      CHECK(text_of(errors[static_cast<std::size_t>(r)]).find("waiting for rank 2") != std::string::npos);
    }
    REQUIRE(errors[2]);
  }
}

TEST_CASE("two ranks of a host that both call themselves the root: who comes second is told in that operation") {
  for (const std::uint64_t count : {10u, 100000u}) {  // beside the flag, and through slots
    EngineGroup group({0, 0}, 30);
    const auto broadcast = [&](Rank r) {
      const std::vector<Transfer> table{{0, r, 0, 1 - r, 0, 1, 0, 0, 0, 0}};
      PlanRequest request;
      request.lowered = lower(table.data(), table.size(), Collective::broadcast, 2, r, 1, group.nodes(),
                              LowerOptions{false});
      request.count = count;
      request.dtype = DType::i32;
      request.info.collective = static_cast<std::uint8_t>(Collective::broadcast);
      request.info.root = r;
      std::vector<std::int32_t> x(count, r);
      run_plan(group[r], group[r]->make_plan(std::move(request)), x.data(), x.data(), 10);
    };
    broadcast(0);
    CHECK_THROWS_WITH_AS(broadcast(1), doctest::Contains("root 0"), Error);
    CHECK_THROWS_WITH_AS(group[0]->require_usable(), doctest::Contains("root 1"), Error);
  }
}

TEST_CASE("memory of a communicator that is closed under a caller's hands stays until the caller has left") {
  const std::size_t before = Arena::instance().used();
  {
    EngineGroup group({0, 0}, 30);
    const auto plan = group[0]->make_plan(all_reduce_request(two_shot(2), 2, 2, group.nodes(), 100));
    std::vector<std::int32_t> x(100, 1);
    const std::size_t live = Arena::instance().used();
    {
      Call call(*group[0], plan, x.data(), x.data(), 10);
      CHECK(!call.spin());
      group[1]->close(1);
      group[0]->close(0.05);
      CHECK(Arena::instance().used() > before + (live - before) / 4);
      CHECK_THROWS_AS(call.advance(Clock::now() + std::chrono::seconds(5)), Error);
    }
  }
  CHECK(Arena::instance().used() == before);
}

TEST_CASE("an operation of which a slice can not start, since peers gave that slice up, ends its communicator") {
  EngineGroup group({0, 0}, 30), beside({0, 0}, 30);
  const auto request = [&] { return all_reduce_request(two_shot(2), 2, 2, group.nodes(), 100); };
  auto plan = std::make_shared<Plan>(*group[0]->make_plan(request()));
  plan->beside.push_back({beside[0], beside[0]->make_plan(request()), 0});
  beside[1]->abort(ErrorKind::mismatch, 1, "rank 1 runs another operation");
  std::vector<std::int32_t> x(100, 1);
  const auto work = group[0]->start(plan, x.data(), x.data(), 10);
  REQUIRE(work->wait_until(Clock::now() + std::chrono::seconds(5)));
  CHECK_THROWS_WITH_AS(work->rethrow(), doctest::Contains("rank 1 runs another operation"), Error);
  CHECK(group[0]->state() == Communicator::State::aborted);
  CHECK_THROWS_WITH_AS(group[1]->require_usable(), doctest::Contains("rank 1 runs another operation"), Error);
}

TEST_CASE("ranks on different hosts that only wait for each other learn that they disagree") {
  EngineGroup group({0, 1}, 30);
  const auto errors = group.run([&](Rank r) {  // each waits for a message of the other, in different operations
    const std::vector<Transfer> table{{0, 1 - r, 0, r, 0, 1, 0, 0, 0, 0}};
    PlanRequest request;
    request.lowered = lower(table.data(), table.size(), Collective::broadcast, 2, 1 - r, 1, group.nodes(),
                            LowerOptions{});
    request.count = 10;
    request.dtype = DType::i32;
    request.info.collective = static_cast<std::uint8_t>(Collective::broadcast);
    request.info.root = 1 - r;
    std::vector<std::int32_t> x(10, r);
    run_plan(group[r], group[r]->make_plan(std::move(request)), x.data(), x.data(), 10);
  });
  for (const auto& error : errors) {
    REQUIRE(error);
    CHECK(kind_of(error) == ErrorKind::mismatch);
  }
}

TEST_CASE("two roots: every rank raises in that operation or in the next, however the ranks lie on nodes") {
  for (const std::vector<std::int32_t>& nodes :
       {std::vector<std::int32_t>{0, 0, 0, 0}, {0, 0, 1, 1}, {0, 1, 0, 1}, {0, 1, 2, 3}, {0, 0, 0, 1}})
    for (const bool gathers : {false, true})
      for (Rank odd = 0; odd < 4; ++odd) {
        EngineGroup group(nodes, 60);
        const auto began = Clock::now();
        const auto errors = group.run([&](Rank r) {
          const Rank root = r == odd ? (odd + 1) % 4 : odd;
          std::vector<Transfer> table;  // a chain that begins or ends at the root
          for (Rank i = 0; i < 3; ++i) {
            const Rank from = (root + (gathers ? 3 - i : i)) % 4, to = (root + (gathers ? 2 - i : i + 1)) % 4;
            table.push_back({i, from, 0, to, 0, 1, 0, 0, 0, static_cast<std::uint8_t>(gathers)});
          }
          const Collective collective = gathers ? Collective::reduce : Collective::broadcast;
          PlanRequest request;
          request.lowered = lower(table.data(), table.size(), collective, 4, root, 1, group.nodes(), LowerOptions{});
          request.count = 1000;
          request.dtype = DType::i32;
          request.op = gathers ? ReduceOp::sum : ReduceOp::none;
          request.info.collective = static_cast<std::uint8_t>(collective);
          request.info.root = root;
          std::vector<std::int32_t> x(1000, r);
          run_plan(group[r], group[r]->make_plan(std::move(request)), x.data(), x.data());
          run_plan(group[r], group[r]->make_plan(all_reduce_request(ring(4), 4, 4, group.nodes(), 1000)), x.data(),
                   x.data());
        });
        for (const auto& error : errors) {
          REQUIRE(error);
          CHECK(kind_of(error) == ErrorKind::mismatch);
        }
        CHECK(Clock::now() - began < std::chrono::seconds(30));
      }
}

TEST_CASE(
    "who is behind completes its operation, though others failed in a later one because a rank has left in order") {
  for (const std::vector<std::int32_t>& nodes : {std::vector<std::int32_t>{0, 0, 0}, {0, 1, 2}, {0, 0, 1}, {0, 1, 1}}) {
    EngineGroup group(nodes, 30);
    const auto broadcast = [&](Rank r) {
      const std::vector<Transfer> table{{0, 0, 0, 1, 0, 1, 0, 0, 0, 0}, {0, 0, 0, 2, 0, 1, 0, 0, 0, 0}};
      PlanRequest request;
      request.lowered = lower(table.data(), table.size(), Collective::broadcast, 3, 0, 1, group.nodes(),
                              LowerOptions{false});
      request.count = 1000;
      request.dtype = DType::i32;
      request.info.collective = static_cast<std::uint8_t>(Collective::broadcast);
      request.info.root = 0;
      std::vector<std::int32_t> x(1000, r + 5);
      run_plan(group[r], group[r]->make_plan(std::move(request)), x.data(), x.data());
      CHECK(x[999] == 5);
    };
    const auto sum = [&](Rank r) {
      std::vector<std::int32_t> x(1000, 1);
      run_plan(group[r], group[r]->make_plan(all_reduce_request(ring(3), 3, 3, group.nodes(), 1000)), x.data(),
               x.data());
    };
    broadcast(0);
    broadcast(1);
    group[0]->close(2);
    CHECK_THROWS_WITH_AS(sum(1), doctest::Contains("rank 0 has left"), Error);
    broadcast(2);
    CHECK_THROWS_WITH_AS(sum(2), doctest::Contains("rank 0 has left"), Error);
  }
}

TEST_CASE("abort from another thread ends a blocked call, and closing ends it too") {
  for (const bool close : {false, true}) {
    EngineGroup group({0, 0}, 60);
    const auto began = Clock::now();
    std::thread killer([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      if (close)
        group[0]->close(2);
      else
        group[0]->abort(ErrorKind::aborted, 0, "because the test says so");
    });
    const auto errors = group.run([&](Rank r) {
      if (r == 1) return;
      const auto plan = group[r]->make_plan(all_reduce_request(two_shot(2), 2, 2, group.nodes(), 1000));
      std::vector<std::int32_t> x(1000, 1);
      run_plan(group[r], plan, x.data(), x.data());
    });
    killer.join();
    REQUIRE(errors[0]);
    CHECK(kind_of(errors[0]) == (close ? ErrorKind::closed : ErrorKind::aborted));
    CHECK(Clock::now() - began < std::chrono::seconds(10));
    if (!close) {
      CHECK_THROWS_WITH_AS(group[1]->require_usable(), doctest::Contains("because the test says so"), Error);
    }
  }
}

TEST_CASE("messages with tags travel beside collectives, over both kinds of link") {
  EngineGroup group({0, 0, 1}, 30);
  const auto errors = group.run([&](Rank r) {
    const auto plan = group[r]->make_plan(all_reduce_request(ring(3), 3, 3, group.nodes(), 5000));
    std::vector<std::int32_t> x(5000, r);
    std::vector<std::vector<char>> in(3, std::vector<char>(300000)), out(3);
    std::vector<std::shared_ptr<WorkState>> works;
    for (Rank p = 0; p < 3; ++p) {
      if (p == r) continue;
      out[static_cast<std::size_t>(p)].assign(300000, static_cast<char>(10 * r + p));
      works.push_back(group[r]->irecv(in[static_cast<std::size_t>(p)].data(), 300000, p, 5, 0));
      works.push_back(group[r]->isend(out[static_cast<std::size_t>(p)].data(), 300000, p, 5, 0));
    }
    for (int i = 0; i < 20; ++i) run_plan(group[r], plan, x.data(), x.data());
    for (const auto& work : works) {
      if (!group[r]->help(*work, Clock::now() + std::chrono::seconds(30)))
        throw std::runtime_error("message did not arrive");
      work->rethrow();
    }
    for (Rank p = 0; p < 3; ++p)
      if (p != r && in[static_cast<std::size_t>(p)] != std::vector<char>(300000, static_cast<char>(10 * p + r)))
        throw std::runtime_error("wrong message");
  });
  for (const auto& error : errors) CHECK(text_of(error) == "");
}
