// Waiting inside a progress loop: spin while an answer within microseconds is likely, then give the core to others,
// then sleep in the kernel. Usage:
//   Waiter waiter(policy, own_block);
//   while (!done()) {
//     if (progress()) { waiter.progressed(); continue; }
//     waiter.idle(ready, fds, max_sleep);
//     if (waiter.slow()) check_deadline_peers_and_abort(waiter.now());
//   }
#pragma once

#include <poll.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <concepts>
#include <cstdint>
#include <span>

#include "base/clock.hpp"
#include "transport/shm/control.hpp"

namespace ringleader {

struct WaitPolicy {
  std::uint32_t spin_us = 20;    // busy waiting; not at all when oversubscribed
  std::uint32_t yield_us = 500;  // sched_yield after that, before sleeping
  bool oversubscribed = false;   // more local ranks than usable cores
  std::uint32_t slice_us =
      0;  // slice of the core that a thread asks for when it first yields (TimeSlice); 0: the usual one
  std::uint32_t turns_per_clock =
      32;  // idle turns between looks at the clock while spinning; 1 where a turn is a system call
};

// How long spinning pays, learned from how waits ended; shared by all waits of a communicator. On a machine with other
// work a peer is often not running at all, and every microsecond of spinning keeps it from the core. Any thread; races
// lose a lesson.
class SpinBudget {
 public:
  explicit SpinBudget(std::uint32_t limit_us) : limit_ns_(limit_us * 1000), ns_(limit_us * 1000) {}
  std::chrono::nanoseconds get() const { return std::chrono::nanoseconds(ns_.load(std::memory_order_relaxed)); }
  // A wait ended after `waited`. Spinning pays while peers run on cores of their own. It does not where they share
  // ours, and that shows in yields after which somebody else ran: then every microsecond of spinning keeps the peer
  // from answering. Where nobody did, a wait that the longest spinning would have met is one for more of it, however
  // short the present budget: else what a busy moment took would stay lost.
  void learn(std::chrono::nanoseconds waited, bool shared_core) {
    const std::uint32_t now = ns_.load(std::memory_order_relaxed);
    if (shared_core)
      ns_.store(now / 2, std::memory_order_relaxed);
    else if (now < limit_ns_ && waited < std::chrono::nanoseconds(limit_ns_))
      ns_.store(std::min(limit_ns_, now + now / 4 + kStepNs), std::memory_order_relaxed);
  }

 private:
  static constexpr std::uint32_t kStepNs = 250;
  std::uint32_t limit_ns_;
  std::atomic<std::uint32_t> ns_;
};

// Whether to yield or to sleep, learned from how long yields took; shared by all waits of a communicator. Where the
// core's other threads are peers, they answer and give it back, and a yield is cheaper than sleeping and being woken.
// Where somebody computes who knows nothing of this job, a yield gives the core away until the kernel's next tick,
// milliseconds later, but who sleeps gets it at once when it is woken. A yield is tried again now and then, less and
// less often while it goes on being the worse way. Any thread; races lose a lesson.
class YieldTrust {
 public:
  static constexpr auto kForeign = std::chrono::microseconds(
      500);  // no peer keeps the core that long before it yields, too

  bool sleeps() const { return left_.load(std::memory_order_relaxed) > 0; }
  // A wait went beyond spinning; `longest`: of its yields, 0 if there was none.
  void learn(std::chrono::nanoseconds longest) {
    const std::uint32_t left = left_.load(std::memory_order_relaxed);
    if (longest >= kForeign) {
      const std::uint32_t span = std::min(kLongest, 2 * span_.load(std::memory_order_relaxed));
      span_.store(span, std::memory_order_relaxed);
      left_.store(span, std::memory_order_relaxed);
    } else if (left > 0) {
      left_.store(left - 1, std::memory_order_relaxed);
    } else if (longest > std::chrono::nanoseconds(0)) {
      span_.store(kFirst, std::memory_order_relaxed);
    }
  }

 private:
  static constexpr std::uint32_t kFirst = 16, kLongest = 1024;  // waits until the next yield
  std::atomic<std::uint32_t> left_{0}, span_{kFirst};
};

inline void cpu_relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#endif
}

// How often to look again, before yielding, for peers that run on other cores while others share ours: a yield costs a
// switch and back, and whoever shares the core waits for the same peers. Learned likewise. One thread at a time.
class Patience {
 public:
  // Whether to look once more; `looked`: how often the current wait has done so.
  bool more(std::uint32_t looked) const { return looked < (trial_ ? kMost : looks_); }
  // A wait is over or gives up: `looked` looks were spent, with or without success.
  void learn(std::uint32_t looked, bool success) {
    if (looked == 0) return;
    // That few looks were in vain says nothing of more, so now and then a wait looks as often as could ever pay.
    trial_ = ++lessons_ % kBetweenTrials == 0;
    looks_ = success ? std::min(kMost, std::max(looks_, looked) + looks_ / 8 + 1)
                     : std::max(kLeast, looks_ - looks_ / 8);
  }

 private:
  static constexpr std::uint32_t kLeast = 4, kMost = 64;  // about 50 ns each
  static constexpr std::uint32_t kBetweenTrials = 64;
  std::uint32_t looks_ = kMost / 2;
  std::uint32_t lessons_ = 0;
  bool trial_ = false;  // of the next wait
};

class Waiter {
 public:
  // `own`: the control block whose doorbell peers ring; null if nobody does (network only).
  // `budget`: where to learn how long to spin; null: always policy.spin_us.
  // `trust`: likewise whether to yield; null: always policy.yield_us.
  explicit Waiter(const WaitPolicy& policy, ControlBlock* own, SpinBudget* budget = nullptr,
                  YieldTrust* trust = nullptr)
      : policy_(policy), own_(own), budget_(budget), trust_(trust) {}

  // Something moved: the next idle() starts over at spinning.
  void progressed() {
    if (budget_ != nullptr && spins_ > 0) budget_->learn(now_ - start_, shared_core_);
    if (trust_ != nullptr && spins_ > 0 && past_spinning_) trust_->learn(longest_yield_);
    longest_yield_ = {};
    spins_ = 0;
    past_spinning_ = shared_core_ = slow_ = false;
    useless_poll_ = false;
  }

  // Nothing moved. Waits a little, at most about `max_sleep`. Before sleeping, the sleep is announced and then
  // `ready()` (true: something may move now) is asked, so that no wake-up is lost: whoever changes what `ready` looks
  // at rings after. `fds`: descriptors whose readiness also ends a sleep. A doorbell cannot end a poll(2): with both it
  // polls in short turns.
  template <class Ready>
  void idle(Ready&& ready, std::span<pollfd> fds, Clock::duration max_sleep) {
    idle(ready, [fds] { return fds; }, max_sleep);
  }
  // The same with descriptors that are gathered only when it comes to sleeping.
  template <class Ready, std::invocable Descriptors>
  void idle(Ready&& ready, Descriptors&& descriptors, Clock::duration max_sleep, bool unhurried = false) {
    if (unhurried)
      sleep_at_once();
    else if (!due_for_sleep())
      return;
    const std::span<pollfd> fds = descriptors();
    const Announcement announcement(sleeps_on_doorbell(fds) ? own_ : nullptr);
    if (ready()) return;
    sleep(announcement.seen, fds, max_sleep);
  }

  bool slow() const { return slow_; }             // past spinning: time to check deadlines, peers, abort
  Clock::time_point now() const { return now_; }  // last clock reading of idle(); valid while slow()
  std::uint64_t sleeps() const { return sleeps_; }

 private:
  // Tells the peers for its lifetime that this thread is about to sleep on the doorbell value `seen`.
  struct Announcement {
    explicit Announcement(ControlBlock* block);
    ~Announcement();
    Announcement(const Announcement&) = delete;
    Announcement& operator=(const Announcement&) = delete;
    ControlBlock* block;
    std::uint32_t seen = 0;
  };

  bool sleeps_on_doorbell(std::span<pollfd> fds) const { return own_ != nullptr && (fds.empty() || useless_poll_); }
  // Spins or yields once (false), or says that it is time to sleep. While spinning, the clock is read now and then
  // only.
  bool due_for_sleep() {
    if (spins_ != 0 && !past_spinning_ && !policy_.oversubscribed && spins_ % policy_.turns_per_clock != 0) {
      ++spins_;
      cpu_relax();
      return false;
    }
    return due_for_sleep_by_clock();
  }
  bool due_for_sleep_by_clock();
  void sleep_at_once();
  void sleep(std::uint32_t seen, std::span<pollfd> fds, Clock::duration max_sleep);

  WaitPolicy policy_;
  ControlBlock* own_;
  SpinBudget* budget_;
  YieldTrust* trust_;
  Clock::duration longest_yield_{};  // of this wait
  bool past_spinning_ = false;       // this wait outlasted the spinning
  bool shared_core_ = false;         // somebody else ran during a yield of this wait
  std::uint32_t spins_ = 0;          // idle() calls since progress
  bool slow_ = false;
  Clock::time_point start_{}, now_{};  // of the first and of the last clock reading since progress
  Clock::duration turn_{};             // length of the next short sleep; grows until progress
  bool useless_poll_ = false;          // the last poll said that something could be done, and yet nothing moved since
  Clock::duration blind_turn_{};       // length of the next sleep that ignores descriptors; grows until progress
  std::uint64_t sleeps_ = 0;
};

}  // namespace ringleader
