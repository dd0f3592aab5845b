// How many cores and how much memory this process may really use: affinity and container limits, not the machine's
// numbers.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace ringleader {

// The smaller of the affinity mask and the cgroup CPU quota (v1 or v2, own group and all above), at least 1. Not
// cached. `root` is put before /proc and /sys (tests).
int usable_cores(const std::string& root = "");
// The quota alone, in whole cores, at least 1; 0 if there is none.
int quota_cores(const std::string& root = "");

// The cores that a thread may run on. Threads that a bound rank starts later, from whatever thread, are given its
// cores.
class CoreMask {
 public:
  static CoreMask of_this_thread();  // empty if the kernel does not tell
  bool empty() const { return bits_.empty(); }
  int count() const;
  // Best effort: a thread that may run elsewhere is slower, not wrong.
  void apply_to_this_thread() const;

 private:
  std::vector<unsigned long> bits_;  // as the kernel wants them
};

struct MemoryRoom {
  std::size_t free;   // bytes that can still be had without the OOM killer: MemAvailable and every cgroup limit
  std::size_t total;  // of the machine or the tightest cgroup
  bool by_cgroup;     // a cgroup is what limits
};
MemoryRoom memory_room(const std::string& root = "");

}  // namespace ringleader
