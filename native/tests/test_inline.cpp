// The inline protocol: which plans use it, that its results are those of the slots, bit by bit, and that ranks which
// disagree, leave or come late are noticed as everywhere else.
#include <algorithm>
#include <atomic>
#include <chrono>

#include "core/program.hpp"
#include "doctest/doctest.h"
#include "reduce/reduce.hpp"
#include "tests/engine_group.hpp"

using namespace ringleader;
using namespace ringleader::test;

namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kManyOperations = 20000;
const std::vector<Rank> kRanks{1, 2, 3, 9};
#else
const std::vector<Rank> kRanks{1, 2, 3, 4, 5, 6, 7, 8, 9};
constexpr int kManyOperations = (1 << 20) + 1000;
#endif

std::vector<Transfer> all_to_each(Rank n) {
  std::vector<Transfer> table;
  for (Rank d = 0; d < n; ++d)
    for (Rank s = 0; s < n; ++s)
      if (s != d) table.push_back({0, s, 0, d, 0, 1, 0, 0, 0, 1});
  return table;
}

std::vector<Transfer> from_root(Rank n, Rank root) {
  std::vector<Transfer> table;
  for (Rank d = 0; d < n; ++d)
    if (d != root) table.push_back({0, root, 0, d, 0, 1, 0, 0, 0, 0});
  return table;
}

PlanRequest request(const std::vector<Transfer>& table, Collective collective, const EngineGroup& group, Rank root,
                    std::int32_t chunks, std::uint64_t count, DType dtype, ReduceOp op, bool push = false) {
  PlanRequest made;
  LowerOptions options;
  options.push = push;
  made.lowered = lower(table.data(), table.size(), collective, group.size(), root, chunks, group.nodes(), options);
  made.count = count;
  made.dtype = dtype;
  made.op = op;
  made.factor = 0.75;
  made.info.count = count;
  made.info.root = root;
  made.info.collective = static_cast<std::uint8_t>(collective);
  made.info.dtype = static_cast<std::uint8_t>(dtype);
  made.info.op = static_cast<std::uint8_t>(op);
  return made;
}

PlanRequest one_shot(const EngineGroup& group, std::uint64_t count, DType dtype = DType::i32,
                     ReduceOp op = ReduceOp::sum) {
  return request(all_to_each(group.size()), Collective::all_reduce, group, -1, 1, count, dtype, op);
}

PlanRequest broadcast(const EngineGroup& group, Rank root, std::uint64_t count, bool push = false) {
  return request(from_root(group.size(), root), Collective::broadcast, group, root, 1, count, DType::i32,
                 ReduceOp::none, push);
}

std::vector<std::int32_t> nodes_of(Rank n) { return std::vector<std::int32_t>(static_cast<std::size_t>(n), 0); }

CommOptions with_inline(std::uint64_t bytes) {
  CommOptions options;
  options.inline_bytes = bytes;
  return options;
}

std::byte pattern(Rank r, std::size_t i, int round) {
  // Small numbers in every type's low byte, so that integers do not only wrap and floats are mostly finite.
  return static_cast<std::byte>((i * 131 + static_cast<std::size_t>(r) * 71 + static_cast<std::size_t>(round) * 17) %
                                61);
}

struct Kind {
  std::uint64_t count;
  DType dtype = DType::i32;
  ReduceOp op = ReduceOp::sum;
};

// What each rank has after `rounds` all-reduces of each kind.
std::vector<std::vector<std::byte>> outcomes(std::uint64_t inline_bytes, Rank n, const std::vector<Kind>& kinds,
                                             int rounds) {
  EngineGroup group(nodes_of(n), 30, with_inline(inline_bytes));
  std::vector<std::vector<std::byte>> results(static_cast<std::size_t>(n));
  const auto errors = group.run([&](Rank r) {
    for (const Kind& kind : kinds) {
      const auto plan = group[r]->make_plan(one_shot(group, kind.count, kind.dtype, kind.op));
      if (plan->inlined != (inline_bytes != 0 && n > 1)) throw std::runtime_error("another protocol than expected");
      std::vector<std::byte> data(kind.count * item_size(kind.dtype));
      for (int round = 0; round < rounds; ++round) {
        for (std::size_t i = 0; i < data.size(); ++i) data[i] = pattern(r, i, round);
        run_plan(group[r], plan, data.data(), data.data());
        auto& result = results[static_cast<std::size_t>(r)];
        result.insert(result.end(), data.begin(), data.end());
      }
    }
  });
  for (const auto& error : errors) CHECK(text_of(error) == "");
  return results;
}

}  // namespace

TEST_CASE("small one-step programs on one host are inlined, others are not") {
  EngineGroup group(nodes_of(3), 30, with_inline(4096));
  const auto inlined = [&](PlanRequest made) { return group[0]->make_plan(std::move(made))->inlined; };
  CHECK(inlined(one_shot(group, 0)));
  CHECK(inlined(one_shot(group, 1)));
  CHECK(inlined(one_shot(group, 1024)));
  CHECK_FALSE(inlined(one_shot(group, 1025)));
  CHECK(inlined(broadcast(group, 1, 8)));
  CHECK_FALSE(inlined(broadcast(group, 1, 8, true)));  // the root writes into its peers' memory
  const std::vector<Transfer> two_steps{{0, 0, 0, 1, 0, 1, 0, 0, 0, 0}, {1, 1, 0, 2, 0, 1, 0, 0, 0, 0}};
  CHECK_FALSE(inlined(request(two_steps, Collective::broadcast, group, 0, 1, 8, DType::i32, ReduceOp::none)));
  EngineGroup off(nodes_of(3), 30, with_inline(0));
  CHECK_FALSE(off[0]->make_plan(one_shot(off, 1))->inlined);
  EngineGroup network({0, 0, 1}, 30);
  CHECK_FALSE(network[0]->make_plan(one_shot(network, 1))->inlined);
  EngineGroup alone({0}, 30);
  CHECK_FALSE(alone[0]->make_plan(one_shot(alone, 1))->inlined);
}

TEST_CASE("where the payload begins: with the flag, while it fits its line") {
  EngineGroup group(nodes_of(2));
  for (const auto& [count, offset] : {std::pair{0u, 16u}, {1u, 16u}, {12u, 16u}, {13u, 64u}, {2048u, 64u}})
    CHECK(group[0]->make_plan(one_shot(group, count))->inline_offset == offset);
}

TEST_CASE("inlined results equal those of the slots: every number of ranks, sizes around every limit") {
  const std::vector<Kind> kinds{{0}, {1}, {11}, {12}, {13}, {28}, {29}, {2047}, {2048}};
  for (const Rank n : kRanks) CHECK(outcomes(8192, n, kinds, 5) == outcomes(0, n, kinds, 5));
}

TEST_CASE("inlined results equal those of the slots: every type and operation") {
  std::vector<Kind> kinds;
  for (int dtype = 0; dtype < kDTypeCount; ++dtype)
    for (int op = 0; op <= static_cast<int>(ReduceOp::bxor); ++op)
      if (supported(static_cast<DType>(dtype), static_cast<ReduceOp>(op)))
        for (const std::uint64_t count : {3u, 100u})
          kinds.push_back({count, static_cast<DType>(dtype), static_cast<ReduceOp>(op)});
  CHECK(kinds.size() > 100);
  CHECK(outcomes(8192, 3, kinds, 2) == outcomes(0, 3, kinds, 2));
}

TEST_CASE("both protocols in turn, also on the progress thread, keep order") {
  EngineGroup group(nodes_of(4));
  const auto errors = group.run([&](Rank r) {
    const auto small = group[r]->make_plan(one_shot(group, 7));
    const auto large = group[r]->make_plan(one_shot(group, 5000));
    const auto spread = group[r]->make_plan(broadcast(group, 2, 7));
    if (!small->inlined || large->inlined || !spread->inlined)
      throw std::runtime_error("another protocol than expected");
    for (int round = 0; round < 200; ++round) {
      std::vector<std::int32_t> a(7, r + round), b(5000, r - round), c(7, r == 2 ? round : -1);
      std::vector<std::shared_ptr<WorkState>> works;
      if (round % 3 == 0) {
        works = {group[r]->start(small, a.data(), a.data(), 0), group[r]->start(large, b.data(), b.data(), 0),
                 group[r]->start(spread, c.data(), c.data(), 0)};
      } else {
        run_plan(group[r], small, a.data(), a.data());
        if (round % 3 == 1)
          works = {group[r]->start(large, b.data(), b.data(), 0)};
        else
          run_plan(group[r], large, b.data(), b.data());
        run_plan(group[r], spread, c.data(), c.data());
      }
      for (const auto& work : works) {
        work->wait_until(Clock::now() + std::chrono::seconds(30));
        work->rethrow();
      }
      if (a != std::vector<std::int32_t>(7, 6 + 4 * round) || b != std::vector<std::int32_t>(5000, 6 - 4 * round) ||
          c != std::vector<std::int32_t>(7, round))
        throw std::runtime_error("wrong result in round " + std::to_string(round));
    }
  });
  for (const auto& error : errors) CHECK(text_of(error) == "");
}

TEST_CASE("registered memory of an operation before plays no part in an inlined one") {
  EngineGroup group(nodes_of(3));
  const auto errors = group.run([&](Rank r) {
    const std::vector<Transfer> to_root{{0, 1, 0, 0, 0, 1, 0, 0, 0, 1}, {0, 2, 0, 0, 0, 1, 0, 0, 0, 1}};
    const auto made = [&](std::uint64_t count) {
      return group[r]->make_plan(request(to_root, Collective::reduce, group, 0, 1, count, DType::i32, ReduceOp::sum));
    };
    const auto large = made(5000), small = made(10);
    if (large->inlined || !small->inlined) throw std::runtime_error("another protocol than expected");
    auto* x = static_cast<std::int32_t*>(Arena::instance().allocate(5000 * sizeof(std::int32_t)));
    for (int round = 0; round < 10; ++round)
      for (const auto& plan : {large, small}) {
        std::fill_n(x, 5000, r + round);
        run_plan(group[r], plan, x, r == 0 ? x : nullptr);
        if (x[3] != (r == 0 ? 3 + 3 * round : r + round))
          throw std::runtime_error("wrong sum in round " + std::to_string(round));
      }
    Arena::release(x);
  });
  for (const auto& error : errors) CHECK(text_of(error) == "");
}

TEST_CASE("with more ranks than cores: waits for peers on other cores and on this one") {
  CommOptions options;
  options.wait.oversubscribed = true;
  EngineGroup group(nodes_of(5), 30, options);
  const auto errors = group.run([&](Rank r) {
    const auto small = group[r]->make_plan(one_shot(group, 3));
    const auto large = group[r]->make_plan(one_shot(group, 4000));
    for (int round = 0; round < 300; ++round) {
      std::vector<std::int32_t> x(round % 7 == 0 ? 4000 : 3, r + round);
      Call call(*group[r], round % 7 == 0 ? large : small, x.data(), x.data(), 0);
      if (round % 2 == 0 || !call.spin())
        while (!call.advance(Clock::now() + std::chrono::milliseconds(100))) continue;
      if (x.back() != 10 + 5 * round) throw std::runtime_error("wrong sum in round " + std::to_string(round));
    }
  });
  for (const auto& error : errors) CHECK(text_of(error) == "");
}

TEST_CASE("a root runs ahead by two mailboxes and no further") {
  EngineGroup group(nodes_of(3));
  std::atomic<int> sent{0};
  std::atomic<bool> go{false};
  const auto errors = group.run([&](Rank r) {
    const auto plan = group[r]->make_plan(broadcast(group, 0, 5));
    for (int round = 0; round < 50; ++round) {
      std::vector<std::int32_t> x(5, r == 0 ? 100 + round : -1);
      if (r == 1 && round == 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        if (sent != 2) throw std::runtime_error("the root is " + std::to_string(sent.load()) + " broadcasts ahead");
        go = true;
      }
      run_plan(group[r], plan, x.data(), x.data());
      if (r == 0) ++sent;
      if (x != std::vector<std::int32_t>(5, 100 + round))
        throw std::runtime_error("wrong content in round " + std::to_string(round));
    }
  });
  for (const auto& error : errors) CHECK(text_of(error) == "");
  CHECK(go);
}

TEST_CASE("inlined operations without end") {
  EngineGroup group(nodes_of(2));
  const auto errors = group.run([&](Rank r) {
    const auto plan = group[r]->make_plan(one_shot(group, 1, DType::i64));
    for (int round = 0; round < kManyOperations; ++round) {
      std::int64_t x = round * (r + 1);
      run_plan(group[r], plan, &x, &x);
      if (x != std::int64_t{3} * round) throw std::runtime_error("wrong sum in round " + std::to_string(round));
    }
  });
  for (const auto& error : errors) CHECK(text_of(error) == "");
}

TEST_CASE("ranks that disagree in an inlined operation all get an error naming both sides") {
  for (const std::uint64_t other :
       {2u, 1500u, 100000u}) {  // inlined as well, beside the flag or after it, and not inlined
    EngineGroup group(nodes_of(3), 10);
    const auto errors = group.run([&](Rank r) {
      const std::uint64_t count = r == 1 ? other : 1000;
      const auto plan = group[r]->make_plan(one_shot(group, count));
      std::vector<std::int32_t> x(count, 1);
      for (int round = 0; round < 3; ++round) run_plan(group[r], plan, x.data(), x.data());
    });
    for (const auto& error : errors) {
      REQUIRE(error);
      CHECK(kind_of(error) == ErrorKind::mismatch);
      CHECK(text_of(error).find("1000 elements") != std::string::npos);
      CHECK(text_of(error).find(std::to_string(other) + " elements") != std::string::npos);
    }
  }
}

TEST_CASE("ranks of different limits disagree; the texts show it") {
  EngineGroup group(nodes_of(2), 10, with_inline(4096));
  const auto errors = group.run([&](Rank r) {
    auto plan = group[r]->make_plan(one_shot(group, 10));
    if (r == 1) {  // as a rank whose limit is 0 would bind it
      PlanRequest without = one_shot(group, 10);
      without.rank = 1;
      without.slot_bytes = without.small_slot_bytes = 4096;
      plan = std::make_shared<const Plan>(without);
    }
    std::vector<std::int32_t> x(10, 1);
    run_plan(group[r], plan, x.data(), x.data());
  });
  for (const auto& error : errors) {
    REQUIRE(error);
    CHECK(kind_of(error) == ErrorKind::mismatch);
    CHECK(text_of(error).find("inline") != std::string::npos);
  }
}

TEST_CASE("a disagreement about a one-way operation shows in the next one that looks") {
  EngineGroup group(nodes_of(2), 10);
  const auto errors = group.run([&](Rank r) {
    const auto spread = group[r]->make_plan(broadcast(group, r, 10));  // both believe to be the root
    const auto sum = group[r]->make_plan(one_shot(group, 10));
    std::vector<std::int32_t> x(10, 1);
    run_plan(group[r], spread, x.data(), x.data());
    run_plan(group[r], sum, x.data(), x.data());
  });
  for (const auto& error : errors) {
    REQUIRE(error);
    CHECK(kind_of(error) == ErrorKind::mismatch);
    CHECK(text_of(error).find("root 0") != std::string::npos);
    CHECK(text_of(error).find("root 1") != std::string::npos);
  }
}

TEST_CASE("a late rank is named when an inlined operation's deadline passes; one that closes ends it") {
  for (const bool closes : {false, true}) {
    EngineGroup group(nodes_of(3), 30);
    const auto errors = group.run([&](Rank r) {
      const auto plan = group[r]->make_plan(one_shot(group, 10));
      std::vector<std::int32_t> x(10, 1);
      run_plan(group[r], plan, x.data(), x.data());
      if (r == 2 && closes) return group[r]->close(1);
      if (r == 2) std::this_thread::sleep_for(std::chrono::milliseconds(800));
      run_plan(group[r], plan, x.data(), x.data(), 0.3);
    });
    for (const Rank r : {0, 1}) {
      const auto& error = errors[static_cast<std::size_t>(r)];
      REQUIRE(error);
      CHECK(kind_of(error) == (closes ? ErrorKind::peer_lost : ErrorKind::timeout));
      CHECK(text_of(error).find("rank 2") != std::string::npos);
    }
  }
}

TEST_CASE("sleepers are woken by what is published to a mailbox") {
  EngineGroup group(nodes_of(2));
  const auto errors = group.run([&](Rank r) {
    const auto plan = group[r]->make_plan(one_shot(group, 1));
    for (int round = 0; round < 20; ++round) {
      std::int32_t x = round;
      if (r == round % 2) std::this_thread::sleep_for(std::chrono::milliseconds(15));
      const auto began = Clock::now();
      run_plan(group[r], plan, &x, &x);
      if (x != 2 * round) throw std::runtime_error("wrong sum");
      if (r == round % 2 && Clock::now() - began > std::chrono::seconds(5))
        throw std::runtime_error("the sleeper was not woken");
    }
  });
  for (const auto& error : errors) CHECK(text_of(error) == "");
}
