// The arena: reservation, release, alignment, errors, threads, forks.
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "doctest/doctest.h"
#include "memory/arena.hpp"
#include "memory/cores.hpp"
#include "memory/space.hpp"
#include "test_memory_support.hpp"

using namespace ringleader;
using namespace ringleader::testing;

namespace {

constexpr std::size_t kMiB = 1 << 20;

std::size_t file_bytes() {  // what the arena's file really holds
  struct stat status{};
  REQUIRE(::fstat(Arena::instance().fd(), &status) == 0);
  return static_cast<std::size_t>(status.st_blocks) * 512;
}

bool all_zero(const void* memory, std::size_t bytes) {
  const auto* at = static_cast<const unsigned char*>(memory);
  return std::all_of(at, at + bytes, [](unsigned char byte) { return byte == 0; });
}

ErrorKind kind_of(auto&& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.kind;
  }
  FAIL("expected an error");
  return ErrorKind::internal;
}

}  // namespace

TEST_CASE("arena memory is zero, aligned, reserved and inside") {
  Arena& arena = Arena::instance();
  const std::size_t before = arena.used();
  struct Request {
    std::size_t bytes, align;
  };
  std::vector<void*> blocks;
  for (const auto& [bytes, align] : std::vector<Request>{{0, 1},
                                                         {1, 1},
                                                         {64, 64},
                                                         {65, 8},
                                                         {1000, 512},
                                                         {64, 2048},
                                                         {4096, 64},
                                                         {4097, 64},
                                                         {100, 4096},
                                                         {5000, 65536},
                                                         {3 * kMiB + 1, 64},
                                                         {10, 2 * kMiB}}) {
    void* block = arena.allocate(bytes, align);
    CHECK(reinterpret_cast<std::uintptr_t>(block) % std::max<std::size_t>(align, 64) == 0);
    CHECK(arena.contains(block, bytes));
    CHECK(arena.base() + arena.offset_of(block) == block);
    CHECK(all_zero(block, bytes));
    std::memset(block, 0xa5, bytes);
    blocks.push_back(block);
  }
  CHECK(arena.used() > before);
  CHECK(file_bytes() == arena.used());
  for (void* block : blocks) Arena::release(block);
  CHECK(arena.used() == before);
  CHECK(file_bytes() == before);
}

TEST_CASE("offset 0, which means nothing where offsets are told, is never given out") {
  Arena& arena = Arena::instance();
  std::vector<void*> blocks;
  for (const std::size_t bytes : {64, 4096, 65536, 4096, 1 << 20}) {
    blocks.push_back(arena.allocate(bytes, 64));
    CHECK(arena.offset_of(blocks.back()) != 0);
  }
  for (void* block : blocks) Arena::release(block);
}

TEST_CASE("allocations do not overlap, small ones share a page") {
  Arena& arena = Arena::instance();
  const std::size_t before = arena.used();
  std::vector<unsigned char*> blocks;
  for (unsigned i = 0; i < 200; ++i) {
    blocks.push_back(static_cast<unsigned char*>(arena.allocate(64 + i)));
    std::memset(blocks.back(), static_cast<int>(i + 1), 64 + i);
  }
  for (unsigned i = 0; i < 200; ++i) {
    CHECK(std::all_of(blocks[i], blocks[i] + 64 + i, [&](unsigned char byte) { return byte == i + 1; }));
  }
  CHECK(arena.used() - before <= 200 * 512 / 2);
  for (unsigned i = 0; i < 200; ++i) Arena::release(blocks[(i * 77) % 200]);
  CHECK(arena.used() == before);
}

TEST_CASE("recycled memory is zero again") {
  Arena& arena = Arena::instance();
  for (const std::size_t bytes : {std::size_t{64}, std::size_t{2000}, std::size_t{70000}, 5 * kMiB}) {
    for (int round = 0; round < 3; ++round) {
      void* block = arena.allocate(bytes);
      CHECK(all_zero(block, bytes));
      std::memset(block, 0xff, bytes);
      Arena::release(block);
    }
  }
}

TEST_CASE("released memory goes back to the system, and neighbours merge") {
  Arena& arena = Arena::instance();
  const std::size_t before = file_bytes();
  std::vector<void*> blocks;
  for (int i = 0; i < 16; ++i) blocks.push_back(arena.allocate(kMiB));
  CHECK(file_bytes() == before + 16 * kMiB);
  const std::uint64_t first = arena.offset_of(*std::min_element(blocks.begin(), blocks.end()));
  for (std::size_t i = 0; i < 16; i += 2) Arena::release(blocks[i]);
  CHECK(file_bytes() == before + 8 * kMiB);
  for (std::size_t i = 1; i < 16; i += 2) Arena::release(blocks[i]);
  CHECK(file_bytes() == before);
  void* whole = arena.allocate(16 * kMiB);  // fits where the sixteen were
  CHECK(arena.offset_of(whole) <= (first + 2 * kMiB - 1) / (2 * kMiB) * 2 * kMiB);
  Arena::release(whole);
}

TEST_CASE("twenty thousand allocations of varying size stay flat") {
  Arena& arena = Arena::instance();
  const std::size_t before = file_bytes();
  std::mt19937 random(7);
  std::vector<std::pair<unsigned char*, std::size_t>> live;
  std::uint64_t farthest = 0;
  std::size_t most = 0, bytes_live = 0;
  for (int i = 0; i < 20000; ++i) {
    const std::size_t bytes = std::size_t{1} << (random() % 16);
    const std::size_t size = bytes + random() % bytes;
    auto* block = static_cast<unsigned char*>(arena.allocate(size));
    block[0] = static_cast<unsigned char>(i);
    block[size - 1] = static_cast<unsigned char>(i);
    live.emplace_back(block, size);
    bytes_live += size;
    most = std::max(most, bytes_live);
    if (size >= 4096)
      farthest = std::max(farthest, arena.offset_of(block) + size);  // smaller ones have a part of their own
    if (live.size() > 100) {
      const std::size_t pick = random() % live.size();
      CHECK_MESSAGE(live[pick].first[0] == live[pick].first[live[pick].second - 1], "allocation ", i);
      bytes_live -= live[pick].second;
      Arena::release(live[pick].first);
      live[pick] = live.back();
      live.pop_back();
    }
  }
  CHECK(farthest < before + 4 * most + 8 * kMiB);  // no creeping through the address space
  for (const auto& [block, size] : live) Arena::release(block);
  CHECK(file_bytes() == before);
}

TEST_CASE("a request beyond the free memory is a clean error") {
  Arena& arena = Arena::instance();
  const std::size_t before = arena.used();
  const std::size_t wanted = memory_room().free;  // the margin is missing
  REQUIRE(wanted < arena.size());
  try {
    (void)arena.allocate(wanted);
    FAIL("expected an error");
  } catch (const Error& error) {
    CHECK(error.kind == ErrorKind::memory);
    CHECK(std::string(error.what()).find(std::to_string(wanted)) != std::string::npos);
    CHECK(std::string(error.what()).find("free are") != std::string::npos);
  }
  CHECK(arena.used() == before);
  CHECK(file_bytes() == before);
  CHECK(kind_of([&] { (void)arena.allocate(arena.size() + 1); }) == ErrorKind::memory);
  CHECK(kind_of([&] { (void)arena.allocate(SIZE_MAX); }) == ErrorKind::memory);
  void* block = arena.allocate(kMiB);  // and it works on
  Arena::release(block);
}

TEST_CASE("misuse is refused") {
  Arena& arena = Arena::instance();
  CHECK(kind_of([&] { (void)arena.allocate(8, 3); }) == ErrorKind::invalid);
  CHECK(kind_of([&] { (void)arena.allocate(8, 4 * kMiB); }) == ErrorKind::invalid);
  int outside = 0;
  CHECK(kind_of([&] { Arena::release(&outside); }) == ErrorKind::invalid);
  for (const std::size_t bytes : {std::size_t{100}, std::size_t{100000}}) {
    auto* block = static_cast<std::byte*>(arena.allocate(bytes));
    CHECK(kind_of([&] { Arena::release(block + 64); }) == ErrorKind::invalid);
    Arena::release(block);
    CHECK(kind_of([&] { Arena::release(block); }) == ErrorKind::invalid);
  }
  Arena::release(nullptr);
  CHECK_FALSE(arena.contains(&outside, 1));
  CHECK_FALSE(arena.contains(arena.base(), arena.size() + 1));
  CHECK(arena.contains(arena.base() + arena.size(), 0));
  CHECK_FALSE(arena.contains(arena.base() + 1, SIZE_MAX));
}

TEST_CASE("threads allocate and release at once") {
  const std::size_t before = file_bytes();
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t, &wrong] {
      std::mt19937 random(static_cast<unsigned>(t));
      std::vector<std::pair<unsigned char*, std::size_t>> live;
      for (int i = 0; i < 1000; ++i) {
        const std::size_t size = 1 + random() % (i % 4 == 0 ? 50000 : 3000);
        auto* block = static_cast<unsigned char*>(Arena::instance().allocate(size));
        std::memset(block, t + 1, size);
        live.emplace_back(block, size);
        if (live.size() < 20) continue;
        const auto [old, bytes] = live.front();
        wrong += std::any_of(old, old + bytes, [&](unsigned char byte) { return byte != t + 1; });
        Arena::release(old);
        live.erase(live.begin());
      }
      for (const auto& [block, size] : live) Arena::release(block);
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK(file_bytes() == before);
}

TEST_CASE("a forked child leaves the parent's arena alone and may have its own") {
  Arena& arena = Arena::instance();
  const std::uint64_t generation = fork_generation();
  auto* large = static_cast<unsigned char*>(arena.allocate(3 * kMiB));
  auto* small = static_cast<unsigned char*>(arena.allocate(100));
  std::memset(large, 1, 3 * kMiB);
  std::memset(small, 2, 100);
  const std::size_t held = file_bytes();
  const int child = exit_of(in_child([&] {
    if (fork_generation() == generation || Arena::current() != nullptr || !arena.forked()) return false;
    if (large[kMiB] != 1 || small[99] != 2) return false;  // still readable
    Arena::release(large);                                 // as a garbage collector would
    Arena::release(small);
    if (kind_of([&] { (void)arena.allocate(10); }) != ErrorKind::forked) return false;
    Arena& own = Arena::instance();
    if (&own == &arena || own.identity() == arena.identity() || own.forked()) return false;
    auto* block = static_cast<unsigned char*>(own.allocate(kMiB));
    std::memset(block, 9, kMiB);
    if (arena.contains(block, 1)) return false;
    Arena::release(block);
    Arena::release(large);
    return own.used() == 0;
  }));
  CHECK(child == 0);
  CHECK(fork_generation() == generation);
  CHECK(file_bytes() == held);
  CHECK(std::all_of(large, large + 3 * kMiB, [](unsigned char byte) { return byte == 1; }));
  Arena::release(large);
  Arena::release(small);
}

// A sanitizer's own allocator may be copied locked: not ours to test.
TEST_CASE("forking while other threads allocate leaves the child usable" * doctest::skip(kSanitized)) {
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&] {
      while (!stop) Arena::release(Arena::instance().allocate(10000));
    });
  }
  int failed = 0;
  for (int i = 0; i < 30; ++i) {
    failed += exit_of(in_child([] {
                ::alarm(20);
                void* block = Arena::instance().allocate(100);
                Arena::release(block);
                return true;
              })) != 0;
  }
  stop = true;
  for (auto& thread : threads) thread.join();
  CHECK(failed == 0);
}

TEST_CASE("limits of the process make the arena smaller, not impossible") {
  const std::size_t full = Arena::instance().size();
  const auto limited = [&](int resource, std::size_t limit, std::size_t at_most) {
    return exit_of(in_child([&] {
      const rlimit wanted{limit, limit};
      if (::setrlimit(static_cast<__rlimit_resource_t>(resource), &wanted) != 0) return false;
      const Arena& arena = Arena::instance();
      void* block = Arena::instance().allocate(kMiB);
      std::memset(block, 1, kMiB);
      return arena.size() <= at_most && arena.size() < full && arena.size() >= 16 * kMiB;
    }));
  };
  CHECK(limited(RLIMIT_FSIZE, 256 * kMiB, 256 * kMiB) == 0);
  if constexpr (!kSanitized) {  // sanitizers need their own address space
    std::size_t pages = 0;      // the child keeps what is mapped here
    std::ifstream("/proc/self/statm") >> pages;
    CHECK(limited(RLIMIT_AS, pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)) + 8192 * kMiB, full) == 0);
  }
}

TEST_CASE("adopted pages are arena memory at both addresses") {
  Arena& arena = Arena::instance();
  const std::size_t bytes = 5 * kMiB + 123, before = arena.used();
  void* own = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(own != MAP_FAILED);
  auto* at = static_cast<unsigned char*>(own);
  for (std::size_t i = 0; i < bytes; ++i) at[i] = static_cast<unsigned char>(i * 7 >> 2);
  const std::vector<unsigned char> content(at, at + bytes);

  CHECK(kind_of([&] { arena.adopt(at + 1, 100); }) == ErrorKind::invalid);
  CHECK(kind_of([&] { arena.adopt(nullptr, 100); }) == ErrorKind::invalid);
  auto* inside = static_cast<unsigned char*>(arena.adopt(own, bytes));
  CHECK(arena.contains(inside, bytes));
  CHECK_FALSE(arena.contains(own, 1));
  CHECK(arena.used() >= before + bytes);
  CHECK(kind_of([&] { arena.adopt(inside, 100); }) == ErrorKind::invalid);
  CHECK(std::equal(content.begin(), content.end(), at));
  CHECK(std::equal(content.begin(), content.end(), inside));
  at[17] = 1;
  inside[bytes - 1] = 2;
  CHECK(inside[17] == 1);
  CHECK(at[bytes - 1] == 2);

  REQUIRE(::munmap(own, bytes) == 0);
  Arena::release(inside);
  CHECK(arena.used() == before);
}

namespace {

struct Switch final : Claim {
  bool over() override { return off; }
  std::atomic<bool> off{false};
};

// What a peer sees of the arena: a mapping of its own.
struct PeerView {
  PeerView()
      : base(static_cast<unsigned char*>(
            ::mmap(nullptr, Arena::instance().size(), PROT_READ | PROT_WRITE, MAP_SHARED, Arena::instance().fd(), 0))) {
    REQUIRE(base != MAP_FAILED);
  }
  PeerView(const PeerView&) = delete;
  PeerView& operator=(const PeerView&) = delete;
  ~PeerView() { ::munmap(base, Arena::instance().size()); }
  unsigned char* of(const void* memory) const { return base + Arena::instance().offset_of(memory); }
  unsigned char* base;
};

}  // namespace

TEST_CASE("claimed memory is given out again only when its claims are over") {
  Arena& arena = Arena::instance();
  const std::size_t before = arena.used(), held = file_bytes();
  for (const std::size_t bytes : {std::size_t{1}, 5 * kMiB}) {
    const auto first = std::make_shared<Switch>(), second = std::make_shared<Switch>();
    auto* memory = static_cast<unsigned char*>(arena.allocate_pages(bytes));
    arena.seclude(memory, bytes, first);
    Arena::release(memory, second);
    for (Switch* next : {first.get(), second.get()}) {
      Arena::reclaim();
      CHECK(arena.used() > before);
      std::vector<void*> others;
      for (int i = 0; i < 4; ++i) others.push_back(arena.allocate(bytes < kMiB ? 4096 : bytes));
      for (void* other : others) {
        CHECK(other != memory);
        Arena::release(other);
      }
      next->off = true;
    }
    Arena::reclaim();
    CHECK(arena.used() == before);
    CHECK(file_bytes() == held);
    void* again = arena.allocate(bytes < kMiB ? 4096 : bytes);
    CHECK(again == memory);
    CHECK(all_zero(again, bytes));
    std::memset(PeerView().of(again), 7, bytes);  // shared again, not private
    CHECK(static_cast<unsigned char*>(again)[bytes - 1] == 7);
    Arena::release(again);
  }
  void* small = arena.allocate(100);
  CHECK_FALSE(arena.shared(small, 100));  // it shares its page with others, so it is shown to nobody
  Arena::release(small);
}

TEST_CASE("secluded memory keeps its content and hears no more of peers") {
  Arena& arena = Arena::instance();
  const PeerView peer;
  const std::size_t before = arena.used(), page = Arena::page_bytes(), bytes = 64 * page;
  const auto claim = std::make_shared<Switch>();
  auto* memory = static_cast<unsigned char*>(arena.allocate(bytes));
  for (std::size_t i = 0; i < bytes; ++i) memory[i] = static_cast<unsigned char>(i * 7 >> 3);
  const std::vector<unsigned char> content(memory, memory + bytes);
  const std::uint64_t seen = Arena::seclusions();
  arena.seclude(memory + 10 * page + 5, 20 * page, claim);
  arena.seclude(memory + 5 * page, 10 * page, claim);  // overlaps
  CHECK(Arena::seclusions() == seen + 2);
  CHECK(std::equal(content.begin(), content.end(), memory));
  std::memset(peer.of(memory), 0xee, bytes);
  for (std::size_t i = 0; i < 64; ++i) {
    const bool secluded = i >= 5 && i <= 30;
    CHECK(arena.shared(memory + i * page, page) == !secluded);
    CHECK(memory[i * page + 9] == (secluded ? content[i * page + 9] : 0xee));
  }
  CHECK_FALSE(arena.shared(memory, bytes));
  memory[7 * page] = 1;
  CHECK(peer.of(memory)[7 * page] == 0xee);
  // Once nobody looks, the pages behind go back; the private ones stay.
  const std::size_t held = file_bytes();
  claim->off = true;
  Arena::reclaim();
  CHECK(file_bytes() == held - 26 * page);
  CHECK(memory[7 * page] == 1);
  CHECK_FALSE(arena.shared(memory + 7 * page, 1));
  Arena::release(memory);
  CHECK(arena.used() == before);
}

#if defined(__SANITIZE_THREAD__)
constexpr bool kMappingIsAWrite =
    true;  // to TSan, which knows nothing of page tables: each store beside it would be a race
#else
constexpr bool kMappingIsAWrite = false;
#endif

TEST_CASE("no store is lost while memory is secluded" * doctest::skip(kMappingIsAWrite)) {
  Arena& arena = Arena::instance();
  constexpr std::size_t kBytes = 8 * kMiB;
  for (int round = 0; round < 5; ++round) {
    const auto claim = std::make_shared<Switch>();
    auto* memory = static_cast<unsigned char*>(arena.allocate(kBytes));
    std::atomic<std::size_t> turns{0};
    std::thread writer([&] {  // counts in one byte of each page
      for (std::size_t turn = 0; turn < 100; ++turn, turns = turn)
        for (std::size_t i = 0; i < kBytes; i += 4096) ++memory[i];
    });
    REQUIRE(eventually([&] { return turns > 1; }));
    arena.seclude(memory, kBytes, claim);
    writer.join();
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < kBytes; i += 4096) wrong += memory[i] != 100;
    CHECK(wrong == 0);
    claim->off = true;
    Arena::release(memory);
  }
}

TEST_CASE("adopted memory is secluded where it was adopted") {
  Arena& arena = Arena::instance();
  const PeerView peer;
  const std::size_t bytes = 3 * kMiB, before = arena.used();
  void* own = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(own != MAP_FAILED);
  auto* at = static_cast<unsigned char*>(own);
  std::memset(at, 3, bytes);
  auto* inside = static_cast<unsigned char*>(arena.adopt(own, bytes));
  CHECK(arena.current_address(inside + 17) == inside + 17);
  const auto claim = std::make_shared<Switch>();
  arena.seclude(inside + kMiB, kMiB, claim);
  CHECK(arena.current_address(inside + 17) == at + 17);  // the whole of it: peers may be shown the rest no more
  std::memset(peer.of(inside), 9, bytes);
  CHECK(at[kMiB] == 3);
  CHECK(at[2 * kMiB - 1] == 3);
  CHECK(at[kMiB - 1] == 9);
  claim->off = true;
  REQUIRE(::munmap(own, bytes) == 0);
  Arena::release(inside);
  CHECK(arena.used() == before);
}

TEST_CASE("arenas of all ranks fit the address space") {
  constexpr std::size_t kGiB = 1024 * kMiB, kTiB = 1024 * kGiB, kSpace = 128 * kTiB;
  CHECK(arena_bytes(32 * kGiB, kSpace, 8) == 64 * kGiB);  // twice the memory where it fits
  CHECK(arena_bytes(2 * kTiB, kSpace, 8) == 4 * kTiB);
  CHECK(arena_bytes(2 * kTiB, kSpace, 64) == kTiB);  // 64 of them: half of the space
  CHECK(arena_bytes(12 * kTiB, kSpace, 1024) * 1024 <= kSpace / 2);
  CHECK(arena_bytes(256 * kGiB, 4 * kGiB, 2) == kGiB);  // ulimit -v
  CHECK(arena_bytes(256 * kGiB, 3 * kGiB, 1) == 3 * kGiB / 2);
  CHECK(arena_bytes(256 * kGiB, 100 * kMiB, 8) < kLeastArena);
  CHECK(arena_bytes(kGiB, 0, 0) == 0);
  for (const int ranks : {1, 2, 3, 7, 64, 100, 1000})
    CHECK(arena_bytes(2 * kTiB, kSpace, ranks) * static_cast<std::size_t>(ranks) <= kSpace / 2);
}
