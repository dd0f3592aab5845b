// How many cores and how much memory this process may really use: affinity and container limits, not the machine's
// numbers.
#pragma once

#include <cstddef>
#include <string>

namespace ringleader {

// The smaller of the affinity mask and the cgroup CPU quota (v1 or v2, own group and all above), at least 1. Not
// cached. `root` is put before /proc and /sys (tests).
int usable_cores(const std::string& root = "");

struct MemoryRoom {
  std::size_t free;   // bytes that can still be had without the OOM killer: MemAvailable and every cgroup limit
  std::size_t total;  // of the machine or the tightest cgroup
  bool by_cgroup;     // a cgroup is what limits
};
MemoryRoom memory_room(const std::string& root = "");

}  // namespace ringleader
