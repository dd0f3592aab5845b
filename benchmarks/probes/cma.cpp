// All-reduce of plain (unregistered) memory among processes of a host, two ways:
//
//   bounce  in windows: copy what others reduce into a shared slot; reduce the own share from all slots, writing the result into the own
//           memory and all slots; copy the others' results out
//   read    cross-memory attach: process_vm_readv the own share of every peer, in pieces, and reduce; then process_vm_readv the others'
//           results from them
//   write   the same, but results go to the peers by process_vm_writev, piece by piece, while they are in the cache
//
// Microseconds, median over calls of the slowest rank. Needs permission to attach (same user and kernel.yama.ptrace_scope 0, or root).
//
// cmake --build build/dev --target probe_cma && build/dev/probe_cma
#include <sched.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "reduce/reduce.hpp"

using namespace ringleader;

namespace {

constexpr int kMaxRanks = 8, kMaxCalls = 4096;
constexpr std::size_t kSlot = 512 << 10;

struct alignas(128) Flag {
  std::atomic<long> value;
};

struct Shared {
  Flag flags[kMaxRanks];
  pid_t pid[kMaxRanks];
  char* user[kMaxRanks];
  double took[kMaxRanks][kMaxCalls];
  alignas(4096) char slot[kMaxRanks][kSlot];
};

Shared* shared;
int ranks, me;
long met = 0;

void meet() {
  shared->flags[me].value.store(++met, std::memory_order_release);
  for (int r = 0; r < ranks; ++r)
    while (shared->flags[r].value.load(std::memory_order_acquire) < met) ::sched_yield();
}

void move(bool writes, int rank, char* local, char* remote, std::size_t bytes) {
  const iovec mine{local, bytes}, theirs{remote, bytes};
  const ssize_t n = writes ? ::process_vm_writev(shared->pid[rank], &mine, 1, &theirs, 1, 0)
                           : ::process_vm_readv(shared->pid[rank], &mine, 1, &theirs, 1, 0);
  if (n != static_cast<ssize_t>(bytes)) {
    std::perror("process_vm_readv or _writev");
    std::_Exit(1);
  }
}

const FoldSpec kSum{DType::f32, ReduceOp::sum, 1, 0};

void bounce(char* user, std::size_t bytes) {
  const auto n = static_cast<std::size_t>(ranks), own = static_cast<std::size_t>(me);
  const std::size_t share = bytes / n, piece = std::min(share, kSlot / n);
  for (std::size_t at = 0; at < share; at += piece) {
    for (std::size_t r = 0; r < n; ++r)
      if (r != own) std::memcpy(shared->slot[own] + r * piece, user + r * share + at, piece);
    meet();
    const void* srcs[kMaxRanks];
    void* dsts[kMaxRanks];
    for (std::size_t r = 0; r < n; ++r) srcs[r] = dsts[r] = shared->slot[r] + own * piece;
    srcs[own] = dsts[own] = user + own * share + at;
    fold(kSum, dsts, n, srcs, nullptr, n, piece / 4);
    meet();
    for (std::size_t r = 0; r < n; ++r)
      if (r != own) std::memcpy(user + r * share + at, shared->slot[own] + r * piece, piece);
  }
}

void attach(char* user, std::size_t bytes, std::size_t limit, bool writes) {
  static std::vector<char> staging(std::size_t{kMaxRanks} << 20);
  const auto n = static_cast<std::size_t>(ranks), own = static_cast<std::size_t>(me);
  const std::size_t share = bytes / n, piece = std::min(share, limit);
  meet();
  for (std::size_t at = own * share; at < (own + 1) * share; at += piece) {
    const void* srcs[kMaxRanks];
    void* dst = user + at;
    for (std::size_t r = 0; r < n; ++r) {
      srcs[r] = r == own ? dst : staging.data() + r * piece;
      if (r != own) move(false, static_cast<int>(r), staging.data() + r * piece, shared->user[r] + at, piece);
    }
    fold(kSum, &dst, 1, srcs, nullptr, n, piece / 4);
    for (std::size_t r = 0; writes && r < n; ++r)
      if (r != own) move(true, static_cast<int>(r), user + at, shared->user[r] + at, piece);
  }
  meet();
  for (std::size_t r = 0; !writes && r < n; ++r)
    if (r != own) move(false, static_cast<int>(r), user + r * share, shared->user[r] + r * share, share);
  meet();
}

template <class Call>
void measure(const char* name, std::size_t bytes, std::size_t piece, const Call& call) {
  const int calls = static_cast<int>(std::clamp<std::size_t>((std::size_t{128} << 20) / bytes, 7, 200));
  for (int i = -2; i < calls; ++i) {
    meet();
    const auto began = std::chrono::steady_clock::now();
    call();
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - began;
    if (i >= 0) shared->took[me][i] = took.count();
  }
  meet();
  if (me == 0) {
    std::vector<double> slowest;
    for (int i = 0; i < calls; ++i) {
      double most = 0;
      for (int r = 0; r < ranks; ++r) most = std::max(most, shared->took[r][i]);
      slowest.push_back(most);
    }
    std::sort(slowest.begin(), slowest.end());
    std::printf("%d ranks %7zu KiB  %-6s piece %4zu KiB %10.1f us\n", ranks, bytes >> 10, name, piece >> 10,
                slowest[slowest.size() / 2]);
    std::fflush(stdout);
  }
  meet();
}

void rank_body() {
  const int cores = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(me % cores, &one);
  ::sched_setaffinity(0, sizeof one, &one);
  for (std::size_t bytes : {std::size_t{256} << 10, std::size_t{1} << 20, std::size_t{4} << 20, std::size_t{64} << 20}) {
    void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) std::_Exit(1);
    char* user = static_cast<char*>(at);
    std::memset(user, 0, bytes);
    shared->user[me] = user;
    shared->pid[me] = ::getpid();
    meet();
    measure("bounce", bytes, kSlot / static_cast<std::size_t>(ranks), [=] { bounce(user, bytes); });
    for (std::size_t piece : {std::size_t{64} << 10, std::size_t{256} << 10}) {
      measure("read", bytes, piece, [=] { attach(user, bytes, piece, false); });
      measure("write", bytes, piece, [=] { attach(user, bytes, piece, true); });
    }
    ::munmap(at, bytes);
  }
}

}  // namespace

int main() {
  for (int n : {2, 4}) {
    void* at = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return 1;
    shared = static_cast<Shared*>(at);
    ranks = n;
    for (int r = 0; r < n; ++r) {
      if (::fork() != 0) continue;
      me = r;
      rank_body();
      std::_Exit(0);
    }
    int status = 0, failed = 0;
    while (::wait(&status) > 0) failed |= status;
    ::munmap(at, sizeof(Shared));
    if (failed) return 1;
  }
}
