#include "memory/time_slice.hpp"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace ringleader {

std::atomic<std::uint64_t> TimeSlice::epochs_{1};

namespace {

// As the kernel has it (first version); not every C library declares it.
struct Attributes {
  std::uint32_t size = 48;
  std::uint32_t policy = 0;
  std::uint64_t flags = 0;
  std::int32_t nice = 0;
  std::uint32_t priority = 0;
  std::uint64_t runtime = 0, deadline = 0, period = 0;
};
static_assert(sizeof(Attributes) == 48);
constexpr std::uint64_t kResetOnFork = 1;

// 0 or what errno says.
int get(pid_t thread, Attributes& attributes) {
  return ::syscall(SYS_sched_getattr, thread, &attributes, sizeof attributes, 0) == 0 ? 0 : errno;
}
int set(pid_t thread, const Attributes& now, std::uint64_t slice_ns) {
  Attributes wanted;
  wanted.policy = now.policy;
  wanted.nice = now.nice;
  wanted.flags = kResetOnFork;  // kept when the slice is given back, as to drop it takes a privilege
  wanted.runtime = slice_ns;
  return ::syscall(SYS_sched_setattr, thread, &wanted, 0) == 0 ? 0 : errno;
}

// The slice of a thread that has none of its own: what the child of a thread with kResetOnFork gets. 0 if the kernel
// does not tell.
std::uint64_t usual_slice() {
  std::uint64_t slice = 0;
  const auto look = [&slice] {
    Attributes mine;
    if (get(0, mine) == 0) slice = mine.runtime;
  };
  std::thread([&look] {
    Attributes mine;
    if (get(0, mine) == 0 && set(0, mine, 0) == 0) std::thread(look).join();
  }).join();
  return slice;
}

// Asks for the calling thread; empty if it has the slice now.
std::string try_to_get(std::uint64_t slice_ns, std::uint64_t usual_ns) {
  Attributes before, after;
  if (const int code = get(0, before)) return std::generic_category().message(code);
  if (before.policy != SCHED_OTHER) return "the thread has another policy than SCHED_OTHER";
  if (before.nice < 0) return "the thread has a nice value below 0";
  if (before.runtime == 0 || usual_ns == 0) return "the kernel knows no slices of threads (Linux 6.12 or later does)";
  if (before.runtime != usual_ns) return "the thread has a slice of its own";
  if (slice_ns >= usual_ns) return "the usual slice is no longer";
  if (const int code = set(0, before, slice_ns)) return std::generic_category().message(code);
  if (get(0, after) != 0 || after.runtime != slice_ns) return "the kernel gave another slice";
  return "";
}

// The threads that have a short slice, and how many uses there are. One per process: never ended, since threads may
// outlive statics, and a forked child makes its own, since a lock may have been held when it was forked.
struct Register {
  explicit Register(std::uint64_t generation) : made_in(generation) {}
  const std::uint64_t made_in;
  std::mutex mutex;
  int uses = 0;
  struct Entry {
    pid_t thread;
    std::uint64_t slice_ns;
  };
  std::vector<Entry> entries;
  std::uint64_t usual_ns = 0;
  bool usual_known = false;
};

Register& here() {
  static std::atomic<Register*> current{nullptr};
  Register* found = current.load(std::memory_order_acquire);
  while (found == nullptr || found->made_in != fork_generation()) {
    auto* fresh = new Register(fork_generation());
    if (current.compare_exchange_strong(found, fresh, std::memory_order_acq_rel)) return *fresh;
    delete fresh;
  }
  return *found;
}

std::uint64_t usual_slice_of(Register& all) {
  std::lock_guard lock(all.mutex);
  if (!std::exchange(all.usual_known, true)) all.usual_ns = usual_slice();
  return all.usual_ns;
}

// A thread's number may be another thread's once it has ended.
struct Leaving {
  std::uint64_t generation = fork_generation();
  ~Leaving() {
    if (generation != fork_generation()) return;
    Register& all = here();
    const std::lock_guard lock(all.mutex);
    std::erase_if(all.entries, [me = ::gettid()](const Register::Entry& entry) { return entry.thread == me; });
  }
};

}  // namespace

void TimeSlice::ask_now(std::uint32_t microseconds) {
  Register& all = here();
  const std::uint64_t usual = usual_slice_of(all);
  const std::lock_guard lock(all.mutex);
  asked_ = epoch();
  const std::uint64_t slice_ns = std::clamp(microseconds, kLeastUs, kMostUs) * std::uint64_t{1000};
  if (all.uses == 0 || !try_to_get(slice_ns, usual).empty()) return;
  thread_local Leaving leaving;
  static_cast<void>(leaving);
  all.entries.push_back({::gettid(), slice_ns});
}

std::string TimeSlice::refusal(std::uint32_t microseconds) {
  const std::uint64_t usual = usual_slice_of(here());
  std::string why;
  std::thread([&] {
    why = try_to_get(std::clamp(microseconds, kLeastUs, kMostUs) * std::uint64_t{1000}, usual);
  }).join();
  return why;
}

TimeSlice::Use::Use() : generation_(fork_generation()) {
  Register& all = here();
  const std::lock_guard lock(all.mutex);
  ++all.uses;
}

TimeSlice::Use::~Use() {
  if (generation_ != fork_generation()) return;
  Register& all = here();
  const std::lock_guard lock(all.mutex);
  if (--all.uses > 0) return;
  epochs_.fetch_add(1, std::memory_order_relaxed);
  for (const auto& [thread, slice_ns] : all.entries) {
    Attributes now;
    if (get(thread, now) == 0 && now.policy == SCHED_OTHER && now.runtime == slice_ns)
      static_cast<void>(set(thread, now, 0));
  }
  all.entries.clear();
}

}  // namespace ringleader
