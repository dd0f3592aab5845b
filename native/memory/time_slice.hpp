// A short slice of the core for threads that wait. A yield gives the core away for a whole slice of whoever comes next,
// some milliseconds on a machine with other work. Since Linux 6.12 a thread may ask for a shorter slice of its own
// without any privilege: then it gets the core back sooner, and its share of the core stays the same.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "base/fork.hpp"

namespace ringleader {

// Who is touched: threads of this process that wait in the engine, one by one, when they first yield. Not touched:
// threads of another policy than SCHED_OTHER, of a nice value below 0, or with a slice of their own; and what a touched
// thread starts later (threads, forked children, programs): the kernel gives these the usual slice
// (SCHED_FLAG_RESET_ON_FORK).
class TimeSlice {
 public:
  static constexpr std::uint32_t kLeastUs = 100, kMostUs = 100'000;  // the kernel's limits

  // For as long as one lives, threads keep what they asked for; with the last one all get the usual slice again. Not
  // for use across forks.
  class Use {
   public:
    Use();
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    std::uint64_t generation_;
  };

  // The calling thread's; 0: leaves everything as it is. Once per thread: later calls cost two reads.
  static void ask(std::uint32_t microseconds) {
    if (microseconds != 0 && asked_ != epoch()) ask_now(microseconds);
  }
  // What would come of asking, tried on a thread of its own: empty if the kernel grants it, else why not.
  static std::string refusal(std::uint32_t microseconds);

 private:
  // Grows whenever slices were given back, and in forked children.
  static std::uint64_t epoch() { return epochs_.load(std::memory_order_relaxed) + (fork_generation() << 32); }
  static void ask_now(std::uint32_t microseconds);

  static std::atomic<std::uint64_t> epochs_;
  static inline thread_local constinit std::uint64_t asked_ = 0;
};

}  // namespace ringleader
