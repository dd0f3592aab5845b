#include "memory/cores.hpp"

#include <sched.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string_view>
#include <vector>

namespace ringleader {

namespace {

constexpr std::size_t kUnlimited = std::numeric_limits<std::size_t>::max();

std::optional<std::string> first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!file || !std::getline(file, line)) return std::nullopt;
  return line;
}

// A whole number of bytes or microseconds; "max", "-1" and anything unreadable is nothing.
std::optional<std::uint64_t> number(const std::optional<std::string>& text) {
  if (!text || text->empty() || text->front() < '0' || text->front() > '9') return std::nullopt;
  return std::strtoull(text->c_str(), nullptr, 10);
}

// The value of "key value" or "key: value kB" lines; 0 if absent.
std::uint64_t keyed(const std::string& path, std::string_view key) {
  std::ifstream file(path);
  std::string name;
  std::string rest;
  while (file >> name && std::getline(file, rest)) {
    if (name == key) return std::strtoull(rest.c_str(), nullptr, 10);
  }
  return 0;
}

bool has_word(const std::string& list, std::string_view word) {
  std::istringstream words(list);
  std::string item;
  while (std::getline(words, item, ',')) {
    if (item == word) return true;
  }
  return false;
}

// This process's path in the hierarchy of `controller` (version 1), or in the unified one (empty controller).
std::optional<std::string> cgroup_path(const std::string& root, std::string_view controller) {
  std::ifstream file(root + "/proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (controller.empty() ? controllers.empty() : has_word(controllers, controller)) return line.substr(second + 1);
  }
  return std::nullopt;
}

// The directories that limit this process for that controller: its own group and all above up to the mount point.
std::vector<std::string> cgroup_directories(const std::string& root, std::string_view controller) {
  const auto path = cgroup_path(root, controller);
  if (!path) return {};
  std::ifstream file(root + "/proc/self/mountinfo");
  std::string line;
  while (std::getline(file, line)) {
    // id parent dev ROOT MOUNTPOINT options [tags] - TYPE source SUPEROPTIONS
    const auto dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::istringstream before(line.substr(0, dash)), after(line.substr(dash + 3));
    std::string skip, mounted, point, type, source, options;
    before >> skip >> skip >> skip >> mounted >> point;
    after >> type >> source >> options;
    if (controller.empty() ? type != "cgroup2" : type != "cgroup" || !has_word(options, controller)) continue;
    // Inside a container the mount may show only a subtree.
    std::string below = *path;
    if (mounted != "/") below = below.starts_with(mounted) ? below.substr(mounted.size()) : "";
    while (!below.empty() && below.back() == '/') below.pop_back();
    std::vector<std::string> directories;
    for (;;) {
      directories.push_back(root + point + below);
      if (below.empty()) return directories;
      below.erase(std::min(below.rfind('/'), below.size() - 1));
    }
  }
  return {};
}

struct GroupMemory {
  std::optional<std::uint64_t> limit, usage;
  std::uint64_t reclaimable;
};

GroupMemory group_memory(const std::string& directory, bool unified) {
  const std::string stat = directory + "/memory.stat";
  const std::string prefix = unified ? "" : "total_";
  // As the kernel estimates MemAvailable: half of the active file pages can go.
  const std::uint64_t reclaimable = keyed(stat, prefix + "inactive_file") + keyed(stat, prefix + "active_file") / 2;
  if (unified) {
    return {number(first_line(directory + "/memory.max")), number(first_line(directory + "/memory.current")),
            reclaimable};
  }
  return {number(first_line(directory + "/memory.limit_in_bytes")),
          number(first_line(directory + "/memory.usage_in_bytes")), reclaimable};
}

}  // namespace

CoreMask CoreMask::of_this_thread() {
  constexpr std::size_t kWordBits = 8 * sizeof(unsigned long);
  CoreMask mask;
  for (std::size_t words = 1024 / kWordBits; words <= (1 << 20) / kWordBits; words *= 2) {
    mask.bits_.assign(words, 0);
    // Fails while the kernel's masks are larger than ours.
    if (::sched_getaffinity(0, words * sizeof(unsigned long), reinterpret_cast<cpu_set_t*>(mask.bits_.data())) == 0)
      return mask;
  }
  mask.bits_.clear();
  return mask;
}

int CoreMask::count() const {
  int sum = 0;
  for (const unsigned long word : bits_) sum += std::popcount(word);
  return sum;
}

void CoreMask::apply_to_this_thread() const {
  if (!empty())
    ::sched_setaffinity(0, bits_.size() * sizeof(unsigned long), reinterpret_cast<const cpu_set_t*>(bits_.data()));
}

int quota_cores(const std::string& root) {
  double cores = std::numeric_limits<double>::infinity();
  for (const auto& directory : cgroup_directories(root, "")) {
    const auto line = first_line(directory + "/cpu.max");  // "quota period" or "max period"
    const auto quota = number(line);
    if (!quota) continue;
    const auto space = line->find(' ');
    const auto period = number(space == std::string::npos ? std::nullopt : std::optional(line->substr(space + 1)));
    cores = std::min(
        cores, static_cast<double>(*quota) / static_cast<double>(std::max<std::uint64_t>(1, period.value_or(100000))));
  }
  for (const auto& directory : cgroup_directories(root, "cpu")) {
    const auto quota = number(first_line(directory + "/cpu.cfs_quota_us"));
    const auto period = number(first_line(directory + "/cpu.cfs_period_us"));
    if (quota && period && *period > 0)
      cores = std::min(cores, static_cast<double>(*quota) / static_cast<double>(*period));
  }
  return std::isinf(cores) ? 0 : std::max(1, static_cast<int>(std::min(cores, 1e9)));
}

int usable_cores(const std::string& root) {
  const int bound = std::max(1, CoreMask::of_this_thread().count()), quota = quota_cores(root);
  return quota == 0 ? bound : std::min(bound, quota);
}

MemoryRoom memory_room(const std::string& root) {
  const std::string meminfo = root + "/proc/meminfo";
  const std::uint64_t total = keyed(meminfo, "MemTotal:") * 1024;
  // Not to know is no reason to refuse.
  MemoryRoom room{total == 0 ? kUnlimited : keyed(meminfo, "MemAvailable:") * 1024, total == 0 ? kUnlimited : total,
                  false};
  for (const bool unified : {true, false}) {
    for (const auto& directory : cgroup_directories(root, unified ? "" : "memory")) {
      const GroupMemory group = group_memory(directory, unified);
      if (!group.limit || !group.usage || *group.limit >= room.total) continue;
      const std::uint64_t used = *group.usage - std::min(*group.usage, group.reclaimable);
      const std::uint64_t free = *group.limit - std::min(*group.limit, used);
      if (free < room.free) room = {free, *group.limit, true};
    }
  }
  return room;
}

}  // namespace ringleader
