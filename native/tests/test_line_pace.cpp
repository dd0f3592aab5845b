// The estimate of a line's pace, with a clock of its own: what it makes of slow and fast lines, and that it cannot keep
// itself alive.
#include <algorithm>
#include <chrono>
#include <cstdint>

#include "doctest/doctest.h"
#include "transport/tcp/line_pace.hpp"

using namespace ringleader;
using namespace std::chrono_literals;

namespace {

// A receiver of messages of one size. Between two looks it spends `turn`, or, where the estimate says so, sleeps until
// a batch is there and then needs `wake` to get the core again. The line brings `ns_per_byte`; a message begins to come
// when it is waited for.
struct Receiver {
  double ns_per_byte;
  Clock::duration turn = 2us;
  Clock::duration wake = 50us;
  std::uint64_t message = 512 << 10;
  bool shared = false;  // a computation has the core for 2 ms after every 1000 looks
  int looks = 0;
  LinePace pace{};
  Clock::time_point now{};
  Clock::duration awake{}, asleep{};

  void receive(Clock::duration late = 0ns) {
    const Clock::time_point begun = now;
    const auto come = [&] {  // of the message, by now
      const auto ns = static_cast<double>(std::chrono::nanoseconds(now - begun).count());
      const double there = now - begun < late ? 0 : ns / ns_per_byte;
      return std::min<std::uint64_t>(message, static_cast<std::uint64_t>(there));
    };
    pace.begins(now);
    for (std::uint64_t taken = 0; taken < message;) {
      const std::uint64_t left = message - taken;
      if (pace.slow(left)) {
        pace.slept();
        const Clock::time_point before = now;
        const std::uint64_t wanted = taken + std::min<std::uint64_t>(left, LinePace::kBatch);
        while (come() < wanted) now += 10us;
        now += wake;
        asleep += now - before;
      } else {
        now += turn;
        awake += turn;
        if (shared && ++looks % 1000 == 0) now += 2ms;
      }
      const std::uint64_t got = come() - taken;
      taken += got;
      pace.looked(now, got);
    }
    pace.ends();
  }
};

constexpr double kLoopback = 0.5, kGigabit = 8, k200Megabit = 40;

}  // namespace

TEST_CASE("pace: a fast line is never slept for, whatever others do with the core") {
  for (const Clock::duration turn : {1us, 5us, 19us, 100us, 3000us}) {
    Receiver receiver{kLoopback, turn};
    for (int i = 0; i < 200; ++i) receiver.receive();
    CHECK(receiver.asleep == 0us);
  }
}

TEST_CASE("pace: a few late senders do not make a line slow") {
  Receiver receiver{kLoopback};
  for (int i = 0; i < 200; ++i) receiver.receive(i % 3 == 0 ? Clock::duration(5ms) : Clock::duration(0));
  CHECK(receiver.asleep == 0us);
}

TEST_CASE("pace: a fast line that looked slow is found out, though sleeping for it goes on making it look slow") {
  for (const Clock::duration wake : {50us, 300us, 3000us}) {
    Receiver receiver{kLoopback, 2us, wake};
    receiver.message = 128 << 10;
    for (int i = 0; i < 100; ++i) receiver.receive(4ms);  // busy senders
    CHECK(receiver.pace.pace() * LinePace::kBatch > LinePace::kWorthSleepingNs);
    receiver.asleep = {};
    for (int i = 0; i < 64; ++i) receiver.receive();
    const auto lost = receiver.asleep;
    receiver.asleep = {};
    for (int i = 0; i < 1000; ++i) receiver.receive();
    CHECK(receiver.asleep == 0us);
    CHECK(lost <= 40 * 2 * (wake + 100us));
  }
}

TEST_CASE("pace: a slow line is slept for, but for a few percent") {
  for (const double line : {kGigabit, k200Megabit}) {
    Receiver receiver{line};
    for (int i = 0; i < 10; ++i) receiver.receive();
    receiver.awake = receiver.asleep = {};
    for (int i = 0; i < 200; ++i) receiver.receive();
    CHECK(receiver.awake < receiver.asleep / 10);
  }
}

TEST_CASE("pace: a slow line is known as such where a computation has the core half of the time") {
  Receiver receiver{k200Megabit};
  receiver.shared = true;
  for (int i = 0; i < 10; ++i) receiver.receive();
  receiver.awake = receiver.asleep = {};
  for (int i = 0; i < 100; ++i) receiver.receive();
  CHECK(receiver.awake < receiver.asleep / 10);
}

TEST_CASE("pace: a line that becomes fast, or slow, is followed") {
  Receiver receiver{k200Megabit};
  for (int i = 0; i < 50; ++i) receiver.receive();
  receiver.ns_per_byte = kLoopback;
  for (int i = 0; i < 32; ++i) receiver.receive();
  receiver.asleep = {};
  for (int i = 0; i < 100; ++i) receiver.receive();
  CHECK(receiver.asleep == 0us);
  receiver.ns_per_byte = kGigabit;
  for (int i = 0; i < 5; ++i) receiver.receive();
  receiver.awake = {};
  receiver.asleep = {};
  for (int i = 0; i < 100; ++i) receiver.receive();
  CHECK(receiver.awake < receiver.asleep / 10);
}

TEST_CASE("pace: small messages are waited for awake") {
  Receiver receiver{k200Megabit};
  for (int i = 0; i < 10; ++i) receiver.receive();
  CHECK(!receiver.pace.slow(1024));
}
