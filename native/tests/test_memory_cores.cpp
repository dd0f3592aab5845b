// Container limits, read from a tree of files as the kernel shows them.
#include <sched.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "doctest/doctest.h"
#include "memory/cores.hpp"

using namespace ringleader;

namespace {

class FakeRoot {
 public:
  FakeRoot() {
    std::string name = (std::filesystem::temp_directory_path() / "ringleader-root-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
    write("/proc/meminfo", "MemTotal:       64000000 kB\nMemFree:  1000 kB\nMemAvailable:   32000000 kB\n");
  }
  FakeRoot(const FakeRoot&) = delete;
  FakeRoot& operator=(const FakeRoot&) = delete;
  ~FakeRoot() { std::filesystem::remove_all(path_); }
  void write(const std::string& file, const std::string& text) const {
    const std::filesystem::path full = path_ + file;
    std::filesystem::create_directories(full.parent_path());
    std::ofstream(full) << text;
  }
  void unified(const std::string& group, const std::string& mounted = "/") const {
    write("/proc/self/cgroup", "0::" + group + "\n");
    write("/proc/self/mountinfo", "24 1 0:22 / /proc rw - proc proc rw\n30 24 0:26 " + mounted +
                                      " /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n");
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace

TEST_CASE("without limits: affinity and MemAvailable") {
  const FakeRoot root;
  cpu_set_t set;
  REQUIRE(::sched_getaffinity(0, sizeof set, &set) == 0);
  CHECK(usable_cores(root.path()) == CPU_COUNT(&set));
  const MemoryRoom room = memory_room(root.path());
  CHECK(room.free == 32000000ull * 1024);
  CHECK(room.total == 64000000ull * 1024);
  CHECK_FALSE(room.by_cgroup);
  root.unified("/job");
  root.write("/sys/fs/cgroup/job/cpu.max", "max 100000\n");
  root.write("/sys/fs/cgroup/job/memory.max", "max\n");
  CHECK(usable_cores(root.path()) == CPU_COUNT(&set));
  CHECK(quota_cores(root.path()) == 0);
  CHECK(memory_room(root.path()).free == 32000000ull * 1024);
}

TEST_CASE("affinity counts") {
  cpu_set_t all, one;
  REQUIRE(::sched_getaffinity(0, sizeof all, &all) == 0);
  CPU_ZERO(&one);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &all)) {
      CPU_SET(cpu, &one);
      break;
    }
  }
  REQUIRE(::sched_setaffinity(0, sizeof one, &one) == 0);
  CHECK(usable_cores() == 1);
  REQUIRE(::sched_setaffinity(0, sizeof all, &all) == 0);
}

TEST_CASE("a thread's cores can be given to another") {
  cpu_set_t all, one, seen;
  REQUIRE(::sched_getaffinity(0, sizeof all, &all) == 0);
  CPU_ZERO(&one);
  int last = CPU_SETSIZE - 1;
  while (!CPU_ISSET(last, &all)) --last;
  CPU_SET(last, &one);
  const CoreMask before = CoreMask::of_this_thread();
  CHECK(before.count() == CPU_COUNT(&all));
  REQUIRE(::sched_setaffinity(0, sizeof one, &one) == 0);
  const CoreMask bound = CoreMask::of_this_thread();
  before.apply_to_this_thread();
  CHECK(bound.count() == 1);
  std::thread other([&] {
    bound.apply_to_this_thread();
    CHECK(::sched_getaffinity(0, sizeof seen, &seen) == 0);
  });
  other.join();
  CHECK(CPU_EQUAL(&seen, &one));
  CoreMask().apply_to_this_thread();  // an empty one changes nothing
  REQUIRE(::sched_getaffinity(0, sizeof seen, &seen) == 0);
  CHECK(CPU_EQUAL(&seen, &all));
}

TEST_CASE("cgroup v2: the tightest group on the way up counts") {
  const FakeRoot root;
  root.unified("/pod/box/job");
  root.write("/sys/fs/cgroup/pod/box/job/cpu.max", "max 100000\n");
  root.write("/sys/fs/cgroup/pod/box/cpu.max", "150000 100000\n");  // one and a half: one core for certain
  root.write("/sys/fs/cgroup/pod/cpu.max", "800000 100000\n");
  CHECK(usable_cores(root.path()) == 1);
  CHECK(quota_cores(root.path()) == 1);
  root.write("/sys/fs/cgroup/pod/box/cpu.max", "350000 100000\n");
  CHECK(quota_cores(root.path()) == 3);
  root.write("/sys/fs/cgroup/pod/box/cpu.max", "20000 100000\n");
  CHECK(usable_cores(root.path()) == 1);

  root.write("/sys/fs/cgroup/pod/box/job/memory.max", "max\n");
  root.write("/sys/fs/cgroup/pod/box/memory.max", "8000000000\n");
  root.write("/sys/fs/cgroup/pod/box/memory.current", "5000000000\n");
  root.write("/sys/fs/cgroup/pod/box/memory.stat", "anon 1\ninactive_file 500000000\nactive_file 400000000\n");
  const MemoryRoom room = memory_room(root.path());
  CHECK(room.free == 3700000000ull);  // page cache that can go is not in the way
  CHECK(room.total == 8000000000ull);
  CHECK(room.by_cgroup);
  root.write("/sys/fs/cgroup/pod/box/memory.current", "9000000000\n");  // a limit lowered below the use
  CHECK(memory_room(root.path()).free == 0);
}

TEST_CASE("cgroup v2: a container sees its own subtree as the root") {
  const FakeRoot root;
  root.unified("/docker/abc", "/docker/abc");
  root.write("/sys/fs/cgroup/cpu.max", "100000 100000\n");
  root.write("/sys/fs/cgroup/memory.max", "1000000000\n");
  root.write("/sys/fs/cgroup/memory.current", "400000000\n");
  CHECK(usable_cores(root.path()) == 1);
  CHECK(memory_room(root.path()).free == 600000000ull);
}

TEST_CASE("cgroup v1") {
  const FakeRoot root;
  root.write("/proc/self/cgroup", "9:memory:/job\n4:cpu,cpuacct:/job\n0::/\n");
  root.write("/proc/self/mountinfo",
             "31 1 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
             "35 1 0:31 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
  root.write("/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "100000\n");
  root.write("/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
  root.write("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  root.write("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  root.write("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "2000000000\n");
  root.write("/sys/fs/cgroup/memory/job/memory.usage_in_bytes", "1500000000\n");
  root.write("/sys/fs/cgroup/memory/job/memory.stat", "inactive_file 1\ntotal_inactive_file 100000000\n");
  root.write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  root.write("/sys/fs/cgroup/memory/memory.usage_in_bytes", "1900000000\n");
  CHECK(usable_cores(root.path()) == 1);
  const MemoryRoom room = memory_room(root.path());
  CHECK(room.free == 600000000ull);
  CHECK(room.by_cgroup);
}
