#include "memory/space.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>

namespace ringleader {

namespace {

constexpr std::size_t kGiB = std::size_t{1} << 30;
constexpr std::size_t kUserSpace = std::size_t{1} << 47;  // of x86-64; where there is less, a mapping that fails tells
constexpr int kManyRanks = 64;                            // where nobody has said how many there will be

std::atomic<int> expected{0};

std::size_t mapped_now() {
  std::size_t pages = 0;
  if (std::FILE* file = std::fopen("/proc/self/statm", "re")) {
    if (std::fscanf(file, "%zu", &pages) != 1) pages = 0;
    std::fclose(file);
  }
  return pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace

void expect_local_ranks(int ranks) { expected.store(ranks, std::memory_order_relaxed); }

int expected_local_ranks() {
  const int ranks = expected.load(std::memory_order_relaxed);
  return ranks > 0 ? ranks : kManyRanks;
}

std::size_t address_room() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur > kUserSpace)
    return kUserSpace;
  const std::size_t mapped = mapped_now();
  return limit.rlim_cur > mapped ? limit.rlim_cur - mapped : 0;
}

std::size_t arena_bytes(std::size_t machine_bytes, std::size_t room, int ranks) {
  const std::size_t share = room / 2 / static_cast<std::size_t>(std::max(ranks, 1));
  const std::size_t wanted = (2 * machine_bytes + kGiB - 1) / kGiB * kGiB;
  return std::min(wanted, share) / kLeastArena * kLeastArena;
}

}  // namespace ringleader
