// Short slices of the core: who gets one, who does not, and that all give them back.
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "doctest/doctest.h"
#include "memory/time_slice.hpp"
#include "test_memory_support.hpp"

using namespace ringleader;
using namespace ringleader::testing;

namespace {

struct Attributes {  // the kernel's sched_attr, first version
  std::uint32_t size = 48, policy = 0;
  std::uint64_t flags = 0;
  std::int32_t nice = 0;
  std::uint32_t priority = 0;
  std::uint64_t runtime = 0, deadline = 0, period = 0;
};

std::uint64_t slice_of(pid_t thread) {
  Attributes attributes;
  return ::syscall(SYS_sched_getattr, thread, &attributes, sizeof attributes, 0) == 0 ? attributes.runtime : 0;
}

bool granted() {
  const std::string why = TimeSlice::refusal(200);
  if (!why.empty()) MESSAGE("not tested here: ", why);
  return why.empty();
}

constexpr std::uint64_t kAsked = 200'000;

}  // namespace

TEST_CASE("time slice: the thread that asks gets it, what it starts does not, and the last use gives it back") {
  if (!granted()) return;
  std::thread([] {
    const std::uint64_t usual = slice_of(0);
    auto first = std::make_unique<TimeSlice::Use>();
    TimeSlice::ask(0);
    CHECK(slice_of(0) == usual);
    TimeSlice::ask(200);
    CHECK(slice_of(0) == kAsked);
    std::uint64_t of_thread = 0;
    std::thread([&] { of_thread = slice_of(0); }).join();
    CHECK(of_thread == usual);
    CHECK(exit_of(in_child([&] { return slice_of(0) == usual; })) == 0);
    auto second = std::make_unique<TimeSlice::Use>();
    first.reset();
    CHECK(slice_of(0) == kAsked);
    second.reset();
    CHECK(slice_of(0) == usual);
    // And again, for the next one.
    const TimeSlice::Use third;
    TimeSlice::ask(200);
    CHECK(slice_of(0) == kAsked);
  }).join();
}

TEST_CASE("time slice: nothing is asked for where nobody uses it") {
  if (!granted()) return;
  std::thread([] {
    const std::uint64_t usual = slice_of(0);
    TimeSlice::ask(200);
    CHECK(slice_of(0) == usual);
  }).join();
}

TEST_CASE("time slice: the last use gives back what other threads got") {
  if (!granted()) return;
  auto use = std::make_unique<TimeSlice::Use>();
  std::atomic<pid_t> thread{0};
  std::atomic<bool> end{false};
  std::thread other([&] {
    TimeSlice::ask(200);
    thread = ::gettid();
    while (!end) ::usleep(1000);
  });
  while (thread == 0) ::usleep(100);
  CHECK(slice_of(thread) == kAsked);
  use.reset();
  CHECK(slice_of(thread) != kAsked);
  end = true;
  other.join();
}

TEST_CASE("time slice: a policy, a priority or a slice of the thread's own is left alone") {
  if (!granted()) return;
  const TimeSlice::Use use;
  std::thread([] {
    sched_param none{};
    REQUIRE(::sched_setscheduler(0, SCHED_BATCH, &none) == 0);
    TimeSlice::ask(200);
    CHECK(::sched_getscheduler(0) == SCHED_BATCH);
    CHECK(slice_of(0) != kAsked);
  }).join();
  std::thread([] {
    Attributes attributes;
    attributes.runtime = 5'000'000;
    REQUIRE(::syscall(SYS_sched_setattr, 0, &attributes, 0) == 0);
    TimeSlice::ask(200);
    CHECK(slice_of(0) == 5'000'000);
  }).join();
  std::thread([] {
    REQUIRE(::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), 5) == 0);  // of this thread, on Linux
    TimeSlice::ask(200);
    CHECK(slice_of(0) == kAsked);
    CHECK(::getpriority(PRIO_PROCESS, static_cast<id_t>(::gettid())) == 5);
  }).join();
}

#if defined(__SANITIZE_THREAD__)
constexpr bool kNoThreadsAfterFork = true;  // TSan ends a child of a threaded process that starts a thread
#else
constexpr bool kNoThreadsAfterFork = false;
#endif

TEST_CASE("time slice: a forked child asks for itself" * doctest::skip(kNoThreadsAfterFork)) {
  if (!granted()) return;
  const TimeSlice::Use use;
  TimeSlice::ask(200);
  CHECK(exit_of(in_child([] {
          const TimeSlice::Use own;
          TimeSlice::ask(200);
          return slice_of(0) == kAsked;
        })) == 0);
}
