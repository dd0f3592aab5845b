// The control block: entries, fingerprints, the doorbell and the abort record.
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "doctest/doctest.h"
#include "memory/arena.hpp"
#include "test_memory_support.hpp"
#include "transport/shm/control.hpp"

using namespace ringleader;
using namespace ringleader::testing;

namespace {

using Block = ArenaPtr<ControlBlock>;
Block make_block() { return Block(static_cast<ControlBlock*>(Arena::instance().allocate(sizeof(ControlBlock), 64))); }

OpInfo info_of(std::uint64_t window) {
  OpInfo info;
  info.sequence = window;
  info.count = window * 3;
  info.algorithm = ~window;
  info.factor = static_cast<double>(window) / 2;
  info.root = static_cast<std::int32_t>(window % 1000);
  info.collective = static_cast<std::uint8_t>(window % 9);
  for (auto& extent : info.shape) extent = static_cast<std::int64_t>(window);
  return info;
}

bool consistent(const Entry& entry, std::uint64_t window) {
  const OpInfo wanted = info_of(window);
  bool good = entry.window == window && entry.info.sequence == window && entry.info.count == wanted.count &&
              entry.info.algorithm == wanted.algorithm && entry.info.factor == wanted.factor &&
              entry.info.root == wanted.root && entry.info.collective == wanted.collective;
  for (const auto extent : entry.info.shape) good = good && extent == static_cast<std::int64_t>(window);
  for (std::uint64_t i = 0; i < 3; ++i) good = good && entry.base[i] == window * 10 + i;
  return good;
}

void enter(ControlBlock& block, std::uint64_t window) {
  const std::uint64_t base[3] = {window * 10, window * 10 + 1, window * 10 + 2};
  publish_entry(block, window, info_of(window), 0xabcdef0000ull + window * 8 + 5, window % 8, base);
  publish_progress(block, window, 1);
}

}  // namespace

TEST_CASE("a zeroed control block is fresh") {
  const Block block = make_block();
  CHECK(block->progress.load() == 0);
  CHECK(block->state.load() == static_cast<std::uint32_t>(BlockState::fresh));
  CHECK_FALSE(aborted(*block));
  CHECK_FALSE(abort_of(*block).has_value());
  Entry entry;
  for (std::uint64_t window = 0; window < 8; ++window) CHECK_FALSE(read_entry(*block, window, entry));
}

TEST_CASE("entries and fingerprints are kept for the last four windows") {
  const Block block = make_block();
  Entry entry;
  for (std::uint64_t window = 0; window < 20; ++window) {
    enter(*block, window);
    CHECK(block->progress.load() == progress_word(window, 1));
    for (std::uint64_t old = window < 3 ? 0 : window - 3; old <= window; ++old) {
      REQUIRE(read_entry(*block, old, entry));
      CHECK(consistent(entry, old));
      const std::uint64_t fingerprint = fingerprint_of(*block, old);
      CHECK((fingerprint & kRegisteredMask) == old % 8);
      CHECK((fingerprint & ~kRegisteredMask) == ((0xabcdef0000ull + old * 8 + 5) & ~kRegisteredMask));
    }
    if (window >= 4) CHECK_FALSE(read_entry(*block, window - 4, entry));
    CHECK_FALSE(read_entry(*block, window + 1, entry));
  }
  CHECK(progress_word(7, kMaxCount) < progress_word(8, 0));
}

TEST_CASE("a torn entry is never delivered") {
  const Block block = make_block();
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (std::uint64_t window = 0; !stop; ++window) enter(*block, window);
  });
  std::uint64_t delivered = 0, torn = 0;
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (delivered < 20000 && std::chrono::steady_clock::now() < limit) {
    const std::uint64_t window = block->progress.load(std::memory_order_acquire) >> kCountBits;
    for (std::uint64_t back = 0; back < 4 && back <= window; ++back) {
      Entry entry;
      if (!read_entry(*block, window - back, entry)) continue;
      ++delivered;
      torn += !consistent(entry, window - back);
    }
  }
  stop = true;
  writer.join();
  CHECK(delivered >= 20000);
  CHECK(torn == 0);
}

TEST_CASE("only a sleeper is rung") {
  const Block a = make_block(), b = make_block();
  ring(*a);
  ControlBlock* const peers[] = {a.get(), nullptr, b.get()};
  ring(peers);
  CHECK(a->doorbell.load() == 0);
  b->sleeping.store(2);
  ring(peers);
  ring(*b);
  CHECK(a->doorbell.load() == 0);
  CHECK(b->doorbell.load() == 2);
}

TEST_CASE("the first abort wins and later ones change nothing") {
  const Block block = make_block();
  CHECK(set_abort(*block, ErrorKind::peer_lost, 3, "rank 3 (host a, pid 7) died"));
  CHECK(aborted(*block));
  CHECK_FALSE(set_abort(*block, ErrorKind::timeout, 1, "later"));
  const auto record = abort_of(*block);
  REQUIRE(record.has_value());
  CHECK(record->kind == ErrorKind::peer_lost);
  CHECK(record->rank == 3);
  CHECK(record->reason == "rank 3 (host a, pid 7) died");
}

TEST_CASE(
    "an end that spares earlier operations: the first text and the lowest number stay, and a real abort comes before "
    "it") {
  const Block block = make_block();
  CHECK(set_abort(*block, ErrorKind::peer_lost, 3, "rank 3 has left", 29));
  CHECK_FALSE(set_abort(*block, ErrorKind::peer_lost, 2, "rank 2 has left", 27));
  CHECK_FALSE(set_abort(*block, ErrorKind::peer_lost, 2, "rank 2 has left", 28));
  CHECK_FALSE(aborted(*block));
  CHECK_FALSE(aborted(*block, 26));
  CHECK(aborted(*block, 27));
  CHECK(abort_of(*block)->reason == "rank 3 has left");
  CHECK(set_abort(*block, ErrorKind::mismatch, 1, "ranks disagree"));
  CHECK(aborted(*block, 1));
  CHECK(abort_of(*block)->reason == "ranks disagree");
}

TEST_CASE("racing aborts leave one whole record") {
  for (int round = 0; round < 50; ++round) {
    const Block block = make_block();
    std::atomic<int> winners{0}, winner{-1};
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        if (set_abort(*block, ErrorKind::aborted, t, std::string(500, static_cast<char>('a' + t)))) {
          ++winners;
          winner = t;
        }
      });
    }
    for (auto& thread : threads) thread.join();
    const auto record = abort_of(*block);
    REQUIRE(record.has_value());
    CHECK(winners == 1);
    CHECK(record->rank == winner);
    CHECK(record->reason == std::string(500, static_cast<char>('a' + winner)));
  }
}

TEST_CASE("a long reason is cut, wild values are bounded") {
  const Block block = make_block();
  CHECK(set_abort(*block, ErrorKind::internal, -1, std::string(5000, 'x')));
  CHECK(abort_of(*block)->reason == std::string(kReasonBytes - 1, 'x'));
  block->abort.kind = 77;
  for (char& byte : block->abort.reason) byte = 'y';  // no terminator
  const auto record = abort_of(*block);
  CHECK(record->kind == ErrorKind::aborted);
  CHECK(record->reason.size() == kReasonBytes);
}

TEST_CASE("an abort whose writer was killed half-way is completed by the next") {
  const Block block = make_block();
  block->abort.state.store(1);
  CHECK(aborted(*block));
  CHECK_FALSE(abort_of(*block).has_value());
  CHECK(set_abort(*block, ErrorKind::peer_lost, 2, "rank 2 died"));
  CHECK(abort_of(*block)->reason == "rank 2 died");
}

TEST_CASE("an abort written by another process is seen and rings") {
  const Block block = make_block();
  block->sleeping.store(1);
  CHECK(exit_of(in_child([&] { return set_abort(*block, ErrorKind::timeout, 5, "from the child"); })) == 0);
  CHECK(abort_of(*block)->reason == "from the child");
  CHECK(abort_of(*block)->rank == 5);
  CHECK(block->doorbell.load() == 1);
}
