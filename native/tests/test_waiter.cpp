// Waiting: no wake-up is lost, and waiting costs no processor time.
#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <thread>
#include <vector>

#include "doctest/doctest.h"
#include "memory/arena.hpp"
#include "test_memory_support.hpp"
#include "transport/shm/waiter.hpp"

using namespace ringleader;
using namespace ringleader::testing;
using namespace std::chrono_literals;

namespace {

using Block = ArenaPtr<ControlBlock>;
Block make_block() { return Block(static_cast<ControlBlock*>(Arena::instance().allocate(sizeof(ControlBlock), 64))); }

constexpr auto kForever = 20s;  // a lost wake-up would cost this
constexpr WaitPolicy kSleepAtOnce{0, 0, true};
constexpr WaitPolicy kDefault{};

struct Outcome {
  Clock::duration longest{};  // wait
  std::uint64_t sleeps = 0;
};

// Waits `rounds` times for the peer to be as far and answers, at random offsets, so that every interleaving of
// announcing, looking, ringing and sleeping comes up.
Outcome ping_pong(ControlBlock& own, ControlBlock& peer, bool first, std::uint64_t rounds, const WaitPolicy& policy) {
  std::mt19937 random(first ? 1 : 2);
  Outcome outcome;
  Waiter waiter(policy, &own);
  for (std::uint64_t round = 1; round <= rounds; ++round) {
    const std::uint64_t awaited = first ? round - 1 : round;
    const auto ready = [&] { return peer.progress.load(std::memory_order_acquire) >= awaited; };
    const auto begin = Clock::now();
    while (!ready()) waiter.idle(ready, {}, kForever);
    waiter.progressed();
    outcome.longest = std::max(outcome.longest, Clock::now() - begin);
    for (std::uint32_t pauses = static_cast<std::uint32_t>(random()) % 64; pauses > 0; --pauses) cpu_relax();
    if (random() % 4096 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 200));
    own.progress.store(round, std::memory_order_release);
    ring(peer);
  }
  outcome.sleeps = waiter.sleeps();
  return outcome;
}

double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_THREAD, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// The share of a core that waiting in vain for `span` costs.
double cost_of_waiting(Clock::duration span, const WaitPolicy& policy, ControlBlock* own, std::span<pollfd> fds) {
  Waiter waiter(policy, own);
  const double before = cpu_seconds();
  const auto until = Clock::now() + span;
  while (!waiter.slow() || waiter.now() < until) waiter.idle([] { return false; }, fds, 1ms);
  CHECK(waiter.sleeps() > 0);
  return (cpu_seconds() - before) / std::chrono::duration<double>(span).count();
}

// Whether that is under five percent, in one of three tries: a machine with much else to do makes the same work dearer.
bool waits_cheaply(Clock::duration span, const WaitPolicy& policy, ControlBlock* own, std::span<pollfd> fds) {
  for (int attempt = 0; attempt < 3; ++attempt) {
    if (cost_of_waiting(span, policy, own, fds) < 0.05) return true;
  }
  return false;
}

}  // namespace

TEST_CASE("threads: no wake-up is lost when every wait sleeps") {
  const Block a = make_block(), b = make_block();
  const std::uint64_t rounds = kSanitized ? 10000 : 30000;
  Outcome outcomes[2];
  std::thread other([&] { outcomes[1] = ping_pong(*b, *a, false, rounds, kSleepAtOnce); });
  outcomes[0] = ping_pong(*a, *b, true, rounds, kSleepAtOnce);
  other.join();
  CHECK(std::max(outcomes[0].longest, outcomes[1].longest) < kForever / 2);
  CHECK(outcomes[0].sleeps + outcomes[1].sleeps > rounds / 4);
  CHECK(a->sleeping.load() == 0);
  CHECK(b->sleeping.load() == 0);
}

TEST_CASE("threads: no wake-up is lost with spinning and yielding") {
  const Block a = make_block(), b = make_block();
  const std::uint64_t rounds = kSanitized ? 20000 : 100000;
  Outcome outcomes[2];
  std::thread other([&] { outcomes[1] = ping_pong(*b, *a, false, rounds, kDefault); });
  outcomes[0] = ping_pong(*a, *b, true, rounds, kDefault);
  other.join();
  CHECK(std::max(outcomes[0].longest, outcomes[1].longest) < kForever / 2);
}

TEST_CASE("processes: no wake-up is lost, sleeping at once or not") {
  const Block a = make_block(), b = make_block(), c = make_block(), d = make_block();
  const std::uint64_t rounds = kSanitized ? 50000 : 300000;
  const pid_t child = in_child([&] {
    ::alarm(100);
    const auto slept = ping_pong(*b, *a, false, rounds / 10, kSleepAtOnce);
    const auto spun = ping_pong(*d, *c, false, rounds, kDefault);
    return std::max(slept.longest, spun.longest) < kForever / 2;
  });
  const auto slept = ping_pong(*a, *b, true, rounds / 10, kSleepAtOnce);
  CHECK(slept.longest < kForever / 2);
  CHECK(slept.sleeps > 0);
  CHECK(ping_pong(*c, *d, true, rounds, kDefault).longest < kForever / 2);
  CHECK(exit_of(child) == 0);
}

TEST_CASE("what is published between the last look and the sleep is not slept over") {
  const Block own = make_block(), peer = make_block();
  Waiter waiter(kSleepAtOnce, own.get());
  const auto begin = Clock::now();
  for (std::uint64_t round = 1; round <= 100 && Clock::now() - begin < kForever / 2; ++round) {
    waiter.idle(
        [&] {
          const bool there = peer->progress.load(std::memory_order_acquire) >= round;
          peer->progress.store(round, std::memory_order_release);  // just too late for this look
          ring(*own);
          return there;
        },
        {}, kForever);
  }
  CHECK(waiter.sleeps() == 100);
  CHECK(Clock::now() - begin < kForever / 2);
}

TEST_CASE("announcing and ringing in the same moment") {
  // Both sides leave a common start within nanoseconds; a missing fence on either side loses wake-ups here.
  const Block own = make_block(), peer = make_block();
  const std::uint64_t rounds = kSanitized ? 5000 : 100000;
  std::atomic<std::uint64_t> start{0};
  std::thread publisher([&] {
    std::mt19937 random(3);
    for (std::uint64_t round = 1; round <= rounds; ++round) {
      for (int spins = 0; start.load(std::memory_order_acquire) < round; ++spins) {
        if (spins > 1000) ::sched_yield();
      }
      for (std::uint32_t turns = static_cast<std::uint32_t>(random()) % 512; turns > 0; --turns) {
        (void)own->sleeping.load(std::memory_order_relaxed);  // keeps the line close: ring() then reads it early
      }
      peer->progress.store(round, std::memory_order_release);
      ring(*own);
    }
  });
  Waiter waiter(kSleepAtOnce, own.get());
  Clock::duration longest{};
  for (std::uint64_t round = 1; round <= rounds; ++round) {
    const auto ready = [&] { return peer->progress.load(std::memory_order_acquire) >= round; };
    start.store(round, std::memory_order_release);
    const auto begin = Clock::now();
    while (!ready()) waiter.idle(ready, {}, kForever);
    waiter.progressed();
    longest = std::max(longest, Clock::now() - begin);
  }
  publisher.join();
  CHECK(longest < kForever / 2);
  CHECK(waiter.sleeps() > 0);
}

TEST_CASE("several threads of one owner may sleep on its doorbell") {
  const Block own = make_block();
  std::atomic<std::uint64_t> value{0};
  std::vector<std::thread> sleepers;
  std::atomic<int> late{0};
  for (int t = 0; t < 3; ++t) {
    sleepers.emplace_back([&] {
      Waiter waiter(kSleepAtOnce, own.get());
      for (std::uint64_t wanted = 1; wanted <= 500; ++wanted) {
        const auto ready = [&] { return value.load(std::memory_order_acquire) >= wanted; };
        const auto begin = Clock::now();
        while (!ready()) waiter.idle(ready, {}, kForever);
        waiter.progressed();
        late += Clock::now() - begin > kForever / 2;
      }
    });
  }
  for (int i = 0; i < 500; ++i) {
    std::this_thread::sleep_for(100us);
    value.fetch_add(1, std::memory_order_release);
    ring(*own);
  }
  for (auto& sleeper : sleepers) sleeper.join();
  CHECK(late == 0);
  CHECK(own->sleeping.load() == 0);
}

TEST_CASE("a long wait costs under five percent of a core") {
  const Block own = make_block();
  SocketPair pair;
  pollfd quiet[1] = {{pair.fd[0], POLLIN, 0}};
  CHECK(waits_cheaply(2s, kDefault, own.get(), {}));
  CHECK(waits_cheaply(1s, kDefault, own.get(), quiet));
  CHECK(waits_cheaply(1s, WaitPolicy{0, 500, true}, nullptr, quiet));
  // A descriptor that is ready though nothing comes of it.
  SocketPair hung;
  hung.drop(1);
  pollfd ready[1] = {{hung.fd[0], 0, 0}};
  CHECK(waits_cheaply(1s, kDefault, own.get(), ready));
  CHECK(waits_cheaply(1s, kDefault, nullptr, ready));
}

TEST_CASE("a readable descriptor ends a sleep") {
  const Block own = make_block();
  SocketPair pair;
  for (ControlBlock* block : {own.get(), static_cast<ControlBlock*>(nullptr)}) {
    pollfd fds[1] = {{pair.fd[0], POLLIN, 0}};
    std::thread writer([&] {
      std::this_thread::sleep_for(30ms);
      CHECK(::write(pair.fd[1], "x", 1) == 1);
    });
    Waiter waiter(kDefault, block);
    const auto begin = Clock::now();
    while ((fds[0].revents & POLLIN) == 0) waiter.idle([] { return false; }, fds, kForever);
    CHECK(Clock::now() - begin < kForever / 2);
    CHECK(waiter.sleeps() > 0);
    writer.join();
    char byte = 0;
    CHECK(::read(pair.fd[0], &byte, 1) == 1);
  }
}

TEST_CASE("slow() rises with waiting and falls with progress; ready() stops a sleep") {
  const Block own = make_block();
  Waiter waiter(WaitPolicy{50, 100, false}, own.get());
  waiter.idle([] { return false; }, {}, 1ms);
  CHECK_FALSE(waiter.slow());
  while (waiter.sleeps() == 0) waiter.idle([] { return false; }, {}, 1ms);
  CHECK(waiter.slow());
  const auto asked = waiter.sleeps();
  waiter.idle(
      [&] {
        CHECK(own->sleeping.load() == 1);  // announced before looking
        return true;
      },
      {}, kForever);
  CHECK(waiter.sleeps() == asked);
  waiter.progressed();
  CHECK_FALSE(waiter.slow());
  waiter.idle([] { return false; }, {}, 1ms);
  CHECK(waiter.sleeps() == asked);
  CHECK_THROWS(([&] {
    for (;;) waiter.idle([]() -> bool { throw 1; }, {}, 1ms);
  }()));
  CHECK(own->sleeping.load() == 0);
}

TEST_CASE("a poll that brought something does not make the next sleep ignore the descriptors") {
  const Block own = make_block();
  int pipe[2];
  REQUIRE(::pipe(pipe) == 0);
  CHECK(::write(pipe[1], "x", 1) == 1);
  pollfd fds[] = {{pipe[0], POLLIN, 0}};
  Waiter waiter(kDefault, own.get());
  int on_doorbell = 0;  // sleeps on the doorbell are announced before `ready` is asked
  const auto ready = [&] {
    on_doorbell += own->sleeping.load() > 0;
    return false;
  };
  const auto descriptors = [&] { return std::span<pollfd>(fds); };
  for (int i = 0; i < 10; ++i) {
    waiter.idle(ready, descriptors, kForever, true);
    waiter.progressed();
  }
  CHECK(on_doorbell == 0);
  // Where nothing moves, the descriptor that is ready all the time must not turn sleeping into spinning.
  for (int i = 0; i < 10; ++i) waiter.idle(ready, descriptors, kForever, true);
  CHECK(on_doorbell == 5);
  ::close(pipe[0]);
  ::close(pipe[1]);
}

TEST_CASE("a budget of spinning that a busy moment took comes back, for answers that spinning could have met") {
  SpinBudget budget(20);
  for (int i = 0; i < 100; ++i) budget.learn(5us, true);
  CHECK(budget.get() == 0ns);
  for (int i = 0; i < 100; ++i) budget.learn(1ms, false);
  CHECK(budget.get() == 0ns);  // no spinning would have met these
  for (int i = 0; i < 100; ++i) budget.learn(8us, false);
  CHECK(budget.get() == 20us);
}

TEST_CASE("few looks in vain do not keep more from being tried") {
  Patience patience;
  // As if the answer came after `needed` looks.
  const auto wait = [&](std::uint32_t needed) {
    std::uint32_t looked = 0;
    while (looked < needed && patience.more(looked)) ++looked;
    patience.learn(looked, looked == needed);
    return looked == needed;
  };
  for (int i = 0; i < 100; ++i) wait(1000);  // nobody comes: as few as possible
  int found = 0;
  for (int i = 0; i < 200; ++i) found += wait(20);
  CHECK(found > 100);
  int looks = 0;
  for (int i = 0; i < 1280; ++i) {
    std::uint32_t looked = 0;
    while (patience.more(looked)) ++looked;
    patience.learn(looked, false);
    looks += static_cast<int>(looked);
  }
  CHECK(looks < 1280 * 9);  // few, and a trial now and then
}

TEST_CASE(
    "yields that others used for long teach sleeping; they are tried again, less and less often while that goes on") {
  YieldTrust trust;
  const auto trials = [&](int waits, std::chrono::nanoseconds yield) {
    int tried = 0;
    for (int i = 0; i < waits; ++i) {
      const bool sleeps = trust.sleeps();
      tried += !sleeps;
      trust.learn(sleeps ? 0ns : yield);
    }
    return tried;
  };
  CHECK(trials(1000, 2us) == 1000);
  CHECK(trials(20'000, 3ms) < 30);
  trials(2000, 2us);
  CHECK(!trust.sleeps());
  CHECK(trials(1000, 300us) == 1000);  // peers that work
  trials(1, 3ms);
  CHECK(trust.sleeps());
  trials(40, 2us);  // one interruption is soon forgotten
  CHECK(!trust.sleeps());
}
