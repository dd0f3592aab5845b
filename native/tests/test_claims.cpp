// Who may write which memory until when: a rank that stops in the middle of an operation, and goes on when the others
// have given it up. Ranks are threads here, or rather turns of one thread: a rank is stopped by not giving it one. They
// reach each other's memory through mappings of their own (PeerProcess::mirror), as processes do; the thread sanitizer
// does without, so these tests are not for it.
#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <thread>

#include "core/program.hpp"
#include "doctest/doctest.h"
#include "tests/engine_group.hpp"
#include "tests/test_memory_support.hpp"

using namespace ringleader;
using namespace ringleader::test;

namespace {

#if defined(__SANITIZE_THREAD__)
constexpr bool kOneMapping = true;
#else
constexpr bool kOneMapping = false;
#endif

constexpr std::uint64_t kCount = 300'000;

// Reduce-scatter, then all-gather: every rank reduces its chunk and writes it to all.
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

std::shared_ptr<const Plan> all_reduce(Communicator& communicator, const std::vector<std::int32_t>& nodes, bool push) {
  const Rank n = communicator.size();
  const auto table = two_shot(n);
  LowerOptions options;
  options.push = push;
  PlanRequest request;
  request.lowered = lower(table.data(), table.size(), Collective::all_reduce, n, -1, n, nodes, options);
  request.count = kCount;
  request.dtype = DType::i32;
  request.op = ReduceOp::sum;
  request.info.count = kCount;
  return communicator.make_plan(std::move(request));
}

struct Array {
  explicit Array(std::uint64_t count = kCount)
      : data(static_cast<std::int32_t*>(Arena::instance().allocate(4 * count))), n(count) {}
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  ~Array() { drop(); }
  void fill(std::int32_t value) { std::fill(data, data + n, value); }
  std::uint64_t other_than(std::int32_t value) const {
    return n - static_cast<std::uint64_t>(std::count(data, data + n, value));
  }
  void drop() {
    Arena::release(data);
    data = nullptr;
  }
  std::int32_t* data;
  std::uint64_t n;
};

// Three ranks in an all_reduce of registered arrays, of which the last has entered and stands still; the others have
// timed out.
struct Stopped {
  explicit Stopped(bool push) {
    for (std::size_t r = 0; r < 3; ++r) arrays[r].fill(static_cast<std::int32_t>(r + 1));
    for (Rank r = 0; r < 3; ++r) plans[static_cast<std::size_t>(r)] = all_reduce(*group[r], group.nodes(), push);
    std::unique_ptr<Call> calls[2];
    const auto enter = [&](std::size_t r, double limit) {
      auto call = std::make_unique<Call>(*group[static_cast<Rank>(r)], plans[r], arrays[r].data, arrays[r].data, limit);
      CHECK_FALSE(call->advance(Clock::now()));
      return call;
    };
    zombie = enter(2, 60);
    for (std::size_t r : {0, 1}) calls[r] = enter(r, 0.2);
    for (std::size_t turn = 0; calls[0] || calls[1]; turn ^= 1) {
      if (!calls[turn]) continue;
      try {
        while (!calls[turn]->advance(Clock::now() + std::chrono::milliseconds(1))) break;
      } catch (const Error& error) {
        kinds[turn] = error.kind;
        calls[turn].reset();
      }
    }
  }
  // The stopped rank goes on, to the end of its call.
  void resume() {
    try {
      while (!zombie->advance(Clock::now())) continue;
    } catch (const Error&) {}
    zombie.reset();
  }
  EngineGroup group{{0, 0, 0}};
  Array arrays[3];
  std::shared_ptr<const Plan> plans[3];
  std::unique_ptr<Call> zombie;
  ErrorKind kinds[2] = {ErrorKind::internal, ErrorKind::internal};
};

}  // namespace

TEST_CASE("claims: a rank that goes on after it was given up changes nothing" * doctest::skip(kOneMapping)) {
  for (const bool push : {false, true}) {
    CAPTURE(push);
    Stopped stopped(push);
    CHECK((stopped.kinds[0] == ErrorKind::timeout || stopped.kinds[1] == ErrorKind::timeout));
    for (std::size_t r : {0, 1}) {
      CHECK_FALSE(Arena::instance().shared(stopped.arrays[r].data, 4 * kCount));
      stopped.arrays[r].fill(-5);
    }
    stopped.resume();
    for (std::size_t r : {0, 1}) CHECK(stopped.arrays[r].other_than(-5) == 0);
  }
}

TEST_CASE("claims: memory that was freed meanwhile is not given out again before the stopped rank has gone on" *
          doctest::skip(kOneMapping)) {
  for (const bool push : {false, true}) {
    CAPTURE(push);
    const std::size_t before = Arena::instance().used();
    {
      Stopped stopped(push);
      for (std::size_t r : {0, 1}) {
        stopped.group[static_cast<Rank>(r)]->close(2);  // control block, mailboxes and slots go too
        stopped.arrays[r].drop();
      }
      std::vector<std::unique_ptr<Array>> others;
      for (const std::uint64_t count :
           {kCount, kCount, kCount, kCount, 200'000ul, 50'000ul, 10'000ul, 5'000ul, 2'000ul, 2'000ul, 2'000ul}) {
        others.push_back(std::make_unique<Array>(count));
        others.back()->fill(-6);
      }
      stopped.resume();
      stopped.group[2]->close(2);
      for (const auto& other : others) CHECK(other->other_than(-6) == 0);
    }
    Arena::reclaim();
    CHECK(Arena::instance().used() == before);  // nothing is held back once all have left
  }
}

TEST_CASE("claims: ranks that run and give up too leave registered memory registered") {
  EngineGroup group({0, 0});
  Array arrays[2];
  const auto errors = group.run([&](Rank r) {
    const auto plan = all_reduce(*group[r], group.nodes(), true);
    if (r == 1) {
      while (group[0]->status_of(0).sequence == 0) std::this_thread::yield();
      group[1]->abort(ErrorKind::aborted, 1, "enough");
    } else {
      run_plan(group[r], plan, arrays[r].data, arrays[r].data);
    }
  });
  CHECK(text_of(errors[0]).find("enough") != std::string::npos);
  CHECK(Arena::instance().shared(arrays[0].data, 4 * kCount));
}

TEST_CASE("claims: an operation over pages that another communicator's failure took away does not end well" *
          doctest::skip(kOneMapping)) {
  Array array, other;
  array.fill(1);
  other.fill(2);
  EngineGroup healthy({0, 0});
  const auto plan = [&](Rank r) { return all_reduce(*healthy[r], healthy.nodes(), true); };
  const auto plan0 = plan(0), plan1 = plan(1);
  Call first(*healthy[0], plan0, array.data, array.data, 30);
  CHECK_FALSE(first.advance(Clock::now()));
  struct Nobodys final : Claim {
    bool over() override { return true; }
  };
  Arena::instance().seclude(array.data + kCount / 2, 4000, std::make_shared<Nobodys>());
  Call second(*healthy[1], plan1, other.data, other.data, 30);
  std::string texts[2];
  for (std::size_t turn = 0; texts[0].empty() || texts[1].empty(); turn ^= 1) {
    if (!texts[turn].empty()) continue;
    try {
      if ((turn == 0 ? first : second).advance(Clock::now() + std::chrono::milliseconds(1))) texts[turn] = "done";
    } catch (const Error& error) {
      texts[turn] = error.what();
    }
  }
  for (const std::string& text : texts) CHECK(text.find("taken away") != std::string::npos);
}

TEST_CASE("claims: the block of a communicator that was never connected stays, since peers know where it is") {
  Arena& arena = Arena::instance();
  const std::size_t before = arena.used();
  std::vector<void*> blocks;
  for (const bool told : {false, true}) {
    auto communicator = std::make_unique<Communicator>(0, 2, 5, CommOptions{});
    if (told) blocks.push_back(arena.base() + communicator->control_offset());
    communicator.reset();
    CHECK((arena.used() > before) == told);
  }
  std::vector<void*> others;
  for (int i = 0; i < 50; ++i) {
    others.push_back(arena.allocate(SharedBlock::bytes(2)));
    CHECK(others.back() != blocks[0]);
  }
  for (void* other : others) Arena::release(other);
}

// ---- what peers publish is bounded on reading

namespace {

// Rank 1 has entered an operation and `damage`s what it shows; what rank 0 says then.
std::pair<ErrorKind, std::vector<Rank>> read_damaged(bool registered, const std::function<void(SharedBlock&)>& damage) {
  EngineGroup group({0, 0});
  Array arrays[2];
  std::vector<std::int32_t> plain[2] = {std::vector<std::int32_t>(kCount), std::vector<std::int32_t>(kCount)};
  const auto data = [&](std::size_t r) { return registered ? arrays[r].data : plain[r].data(); };
  const auto plan0 = all_reduce(*group[0], group.nodes(), true), plan1 = all_reduce(*group[1], group.nodes(), true);
  Call hostile(*group[1], plan1, data(1), data(1), 30);
  CHECK_FALSE(hostile.advance(Clock::now()));
  damage(*group[1]->mesh().own);
  try {
    Call reader(*group[0], plan0, data(0), data(0), 30);
    while (!reader.advance(Clock::now() + std::chrono::milliseconds(1))) continue;
  } catch (const Error& error) {
    return {error.kind, error.ranks};
  }
  return {ErrorKind::invalid, {}};
}

}  // namespace

TEST_CASE("bounds: registered memory that lies outside the peer's arena is refused") {
  const std::uint64_t size = Arena::instance().size();
  for (const std::uint64_t base : {size, size - 64, UINT64_MAX, UINT64_MAX - 4 * kCount, std::uint64_t{1} << 63}) {
    CAPTURE(base);
    const auto [kind, ranks] = read_damaged(true, [&](SharedBlock& block) {
      const std::uint64_t window = block.control.progress.load() >> kCountBits;
      for (std::size_t b = 0; b < 3; ++b)
        block.control.entries[window % kEntrySlots].words[sizeof(OpInfo) / 8 + b] = base;
    });
    CHECK(kind == ErrorKind::internal);
    CHECK(ranks == std::vector<Rank>{1});
  }
}

TEST_CASE("bounds: staging slots that are not where or what they must be are refused") {
  const std::uint64_t size = Arena::instance().size();
  for (const std::uint64_t offset : {std::uint64_t{0}, size, size - 64, UINT64_MAX, std::uint64_t{1} << 63}) {
    CAPTURE(offset);
    const auto [kind, ranks] = read_damaged(false, [&](SharedBlock& block) {
      for (auto& place : block.slot_offset) place = offset;
    });
    CHECK(kind == ErrorKind::internal);
    CHECK(ranks == std::vector<Rank>{1});
  }
  for (const std::uint64_t bytes : {std::uint64_t{0}, std::uint64_t{64}, std::uint64_t{1} << 63, UINT64_MAX}) {
    CAPTURE(bytes);
    const auto [kind, ranks] = read_damaged(false, [&](SharedBlock& block) {
      for (auto& place : block.slot_bytes) place = bytes;
    });
    CHECK(kind == ErrorKind::internal);
    CHECK(ranks == std::vector<Rank>{1});
  }
}

TEST_CASE("bounds: message rings that are not where or what they must be are refused") {
  const std::uint64_t size = Arena::instance().size();
  struct Wild {
    std::uint64_t offset, bytes;
  };
  for (const auto& [offset, bytes] : std::vector<Wild>{{size, 4096},
                                                       {size - 64, 4096},
                                                       {UINT64_MAX - 63, 4096},
                                                       {4096, UINT64_MAX},
                                                       {4096, std::uint64_t{1} << 63},
                                                       {4096, 0},
                                                       {4097, 4096}}) {
    CAPTURE(offset);
    CAPTURE(bytes);
    EngineGroup group({0, 0});
    SharedBlock& block = *group[1]->mesh().own;
    block.ring_bytes = bytes;
    block.rings()[0] = offset;
    char byte = 0;
    const auto work = group[0]->irecv(&byte, 1, 1, 0, 30);
    const auto until = Clock::now() + std::chrono::seconds(30);
    while (!group[0]->help(*work, Clock::now() + std::chrono::milliseconds(10)) && Clock::now() < until) continue;
    REQUIRE(work->done());
    CHECK(work->error()->kind == ErrorKind::internal);
    CHECK(work->error()->ranks == std::vector<Rank>{1});
  }
}

TEST_CASE("bounds: a rank that does not know what it owns any more frees nothing else") {
  const std::size_t before = Arena::instance().used();
  Array bystander;
  bystander.fill(4);
  {
    EngineGroup group({0, 0});
    std::vector<std::int32_t> x(2 * kCount);
    const auto errors = group.run([&](Rank r) {
      auto* data = x.data() + static_cast<std::size_t>(r) * kCount;
      run_plan(group[r], all_reduce(*group[r], group.nodes(), true), data, data);
    });
    for (Rank r = 0; r < 2; ++r) {
      CHECK(text_of(errors[static_cast<std::size_t>(r)]) == "");
      SharedBlock& block = *group[r]->mesh().own;
      for (auto& place : block.slot_offset) place = Arena::instance().offset_of(bystander.data);
      for (Rank p = 0; p < 2; ++p) block.rings()[p] = Arena::instance().offset_of(bystander.data);
    }
  }
  CHECK(bystander.other_than(4) == 0);
  bystander.drop();
  CHECK(Arena::instance().used() == before);
}

TEST_CASE("bounds: an abort record that names no rank of the group") {
  EngineGroup group({0, 0});
  for (const Rank wild : {2, 77, -5, INT32_MAX})
    static_cast<void>(set_abort(group[0]->mesh().own->control, ErrorKind::peer_lost, wild, "wild"));
  try {
    group[0]->require_usable();
    FAIL("expected an error");
  } catch (const Error& error) {
    CHECK(error.ranks.empty());
  }
}
