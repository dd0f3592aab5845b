#include "transport/shm/waiter.hpp"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>

#include "memory/time_slice.hpp"

namespace ringleader {

namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr auto kFirstTurn = microseconds(50);
constexpr auto kLongestTurn = milliseconds(2);
constexpr auto kSwitch = std::chrono::nanoseconds(900);  // a yield that takes longer let somebody else run
constexpr auto kUnhurried = microseconds(50);  // before that, checking deadlines and peers is not worth a system call

timespec to_timespec(Clock::duration duration) {
  const auto ns = std::max<std::int64_t>(0, std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count());
  return {static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
}

}  // namespace

// The doorbell is read before the announcement: a ring after it changes the word and the futex does not sleep.
Waiter::Announcement::Announcement(ControlBlock* announced) : block(announced) {
  if (block == nullptr) return;
  seen = block->doorbell.load(std::memory_order_acquire);
  block->sleeping.fetch_add(1, std::memory_order_seq_cst);
  full_fence();  // the announcement before what ready() reads; ring() has the mirror image
}

Waiter::Announcement::~Announcement() {
  if (block != nullptr) block->sleeping.fetch_sub(1, std::memory_order_release);
}

bool Waiter::due_for_sleep_by_clock() {
  now_ = Clock::now();
  if (spins_++ == 0) {
    start_ = now_;
    turn_ = blind_turn_ = kFirstTurn;
    useless_poll_ = false;
  }
  const auto waited = now_ - start_;
  const Clock::duration spin = policy_.oversubscribed ? Clock::duration(0)
                               : budget_ != nullptr   ? Clock::duration(budget_->get())
                                                      : microseconds(policy_.spin_us);
  if (waited < spin) {
    cpu_relax();
    return false;
  }
  past_spinning_ = true;
  slow_ = waited >= std::max<Clock::duration>(spin, kUnhurried) || policy_.yield_us == 0;
  if (waited >= spin + microseconds(policy_.yield_us)) return true;
  if (trust_ != nullptr && (longest_yield_ >= YieldTrust::kForeign || trust_->sleeps())) return true;
  TimeSlice::ask(policy_.slice_us);
  ::sched_yield();
  const auto back = Clock::now();
  shared_core_ |= back - now_ > kSwitch;
  longest_yield_ = std::max(longest_yield_, back - now_);
  now_ = back;
  return false;
}

// Nothing is learned from such a wait (spins_ stays 0): it tells nothing about how long spinning pays.
void Waiter::sleep_at_once() {
  now_ = Clock::now();
  turn_ = kLongestTurn;
  if (!useless_poll_) blind_turn_ = kFirstTurn;
  past_spinning_ = slow_ = true;
}

void Waiter::sleep(std::uint32_t seen, std::span<pollfd> fds, Clock::duration max_sleep) {
  ++sleeps_;
  auto limit = std::max<Clock::duration>(max_sleep, microseconds(1));
  if (!fds.empty() && (own_ != nullptr || useless_poll_)) {
    Clock::duration& turn = useless_poll_ ? blind_turn_ : turn_;
    limit = std::min(limit, turn);
    turn = std::min<Clock::duration>(turn * 2, kLongestTurn);
  }
  const timespec timeout = to_timespec(limit);
  if (sleeps_on_doorbell(fds)) {
    ::syscall(SYS_futex, &own_->doorbell, FUTEX_WAIT, seen, &timeout, nullptr, 0);
    useless_poll_ = false;
  } else if (!fds.empty() && !useless_poll_) {
    // A descriptor that is ready though nothing moves (a peer that hung up, say) must not turn sleeping into spinning:
    // then every other sleep ignores the descriptors.
    useless_poll_ = ::ppoll(fds.data(), fds.size(), &timeout, nullptr) > 0;
  } else {
    ::nanosleep(&timeout, nullptr);
    useless_poll_ = false;
  }
}

}  // namespace ringleader
