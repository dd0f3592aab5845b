// The flight recorder: the last operations of one communicator, kept in memory that outlives the process if a file is
// given. Always on, so it costs the fastest operations two reads of the processor's counter and a few stores.
//
// Layout of the memory (and of the file), which src/ringleader/runtime/flight/records.py reads: a header of one page,
// records of collectives, records of messages, strings. All numbers are little-endian.
//
// Invariant: a record is written by one thread at a time; `version` is 0 while it changes, and its number + 1
// otherwise, so a reader in any process that looks at it before and after can tell a whole record from a torn one.
#pragma once

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

#include "base/types.hpp"
#include "transport/link.hpp"

namespace ringleader {

// Time as cheap as it comes: a counter that runs evenly, whose rate the header tells.
inline std::uint64_t ticks() {
#if defined(__x86_64__)
  return __rdtsc();
#elif defined(__aarch64__)
  std::uint64_t value;
  asm volatile("mrs %0, cntvct_el0" : "=r"(value));
  return value;
#else
  return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
#endif
}

enum class RecordState : std::uint32_t { queued = 1, running = 2, done = 3, failed = 4 };

// Codes that stand in OpInfo::collective beside those of Collective. root = the peer, shape[0] = the tag, count =
// bytes.
inline constexpr std::uint8_t kSendCode = 100, kReceiveCode = 101;

struct Record {
  std::atomic<std::uint64_t> version;
  std::atomic<std::uint64_t> info[sizeof(OpInfo) / 8];
  std::atomic<std::uint64_t> plan;                  // Plan::info_hash of the description, 0 of messages
  std::atomic<std::uint64_t> queued, begun, ended;  // ticks; 0: not, or not yet
  std::atomic<std::uint32_t> site;                  // a string: where it was called; 0: not known
  std::atomic<std::uint32_t> state;                 // RecordState
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && sizeof(Record) == sizeof(OpInfo) + 48);

struct RecorderHeader {
  static constexpr std::uint64_t kMagic = 0x31544847494c4652;  // "RFLIGHT1"
  std::uint64_t magic;
  std::uint32_t header_bytes, record_bytes, info_bytes, capacity;  // of each kind of records
  std::uint32_t strings_bytes;
  std::int32_t rank, size, pid;
  std::int64_t real_offset;             // nanoseconds from the steady clock to the time of day
  std::uint64_t first_ticks, first_ns;  // counter and steady clock, read together; and later again
  std::atomic<std::uint64_t> last_ticks, last_ns;
  std::atomic<std::uint64_t> operations, messages;  // how many were begun
  std::atomic<std::uint32_t> strings_used;
  std::atomic<std::uint32_t> end;  // 0 in use, 1 failed, 2 closed
  char host[64];
  char group[512];   // job, name and members, a line each
  char cause[1024];  // why it failed
};
static_assert(sizeof(RecorderHeader) <= 4096);

class Recorder {
 public:
  static constexpr std::uint32_t kLeast = 16, kUsual = 256;

  // Throws Error(memory). `entries` of each kind, rounded up to a power of two, at least kLeast.
  explicit Recorder(std::uint32_t entries = kUsual);
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  // Who records, how much (0: only what error messages tell of, without times) and where: in a file if `path` is given.
  // Before the first operation. Throws Error(invalid) with the reason if there can be no such file; then it goes on in
  // memory.
  void open(std::uint32_t entries, const std::string& path, Rank rank, Rank size, const std::string& host,
            const std::string& group);
  std::uint32_t capacity() const { return mask_ + 1; }

  // An operation begins; its number is info.sequence. `plan`: a hash of the rest of `info` but the history, not 0.
  void begin(const OpInfo& info, std::uint64_t plan, std::uint64_t queued, std::uint32_t site) {
    write(operations_[info.sequence & mask_], info, plan, queued, timed_ ? ticks() : 0, site);
    header_->operations.store(info.sequence, std::memory_order_relaxed);
  }
  void end(std::uint64_t sequence, RecordState state) { close(operations_[sequence & mask_], state); }
  // Where the running operation was called, once it is worth finding out.
  void locate(std::uint64_t sequence, std::uint32_t site) {
    Record& record = operations_[sequence & mask_];
    if (record.version.load(std::memory_order_relaxed) == sequence + 1)
      record.site.store(site, std::memory_order_relaxed);
  }
  // What is known of one of the last capacity() operations: by whoever may begin one.
  OpInfo operation(std::uint64_t sequence) const {
    std::uint64_t words[sizeof(OpInfo) / 8];
    const Record& record = operations_[sequence & mask_];
    for (std::size_t i = 0; i < sizeof(OpInfo) / 8; ++i) words[i] = record.info[i].load(std::memory_order_relaxed);
    OpInfo info;
    std::memcpy(&info, words, sizeof info);
    return info;
  }

  // A message; returns its number. Any thread.
  std::uint64_t message(bool send, Rank peer, std::int64_t tag, std::uint64_t bytes, std::uint32_t site);
  void end_message(std::uint64_t number, RecordState state);

  // The number of a string, 0 if there is no room for it. Any thread.
  std::uint32_t string(std::string_view text);

  void tick();  // reads both clocks, now and then
  void fail(const std::string& cause);
  void closed();

  // A copy of all of it, as a file has it.
  std::string snapshot();

 private:
  static void write(Record& record, const OpInfo& info, std::uint64_t plan, std::uint64_t queued, std::uint64_t begun,
                    std::uint32_t site) {
    // Each store after the first is a release: who reads a new word with acquire, and then the version, finds it
    // changed.
    constexpr auto kRelease = std::memory_order_release;
    record.version.store(0, std::memory_order_relaxed);
    std::uint64_t words[sizeof(OpInfo) / 8];
    std::memcpy(words, &info, sizeof info);
    constexpr std::size_t kHistory = offsetof(OpInfo, history) / 8;
    if (plan != 0 && record.plan.load(std::memory_order_relaxed) == plan) {  // a program's loop fills all slots alike
      record.info[0].store(words[0], kRelease);
      record.info[kHistory].store(words[kHistory], kRelease);
    } else {
      for (std::size_t i = 0; i < sizeof(OpInfo) / 8; ++i) record.info[i].store(words[i], kRelease);
      record.plan.store(plan, kRelease);
    }
    record.queued.store(queued, kRelease);
    record.begun.store(begun, kRelease);
    record.ended.store(0, kRelease);
    record.site.store(site, kRelease);
    record.state.store(static_cast<std::uint32_t>(RecordState::running), kRelease);
    record.version.store(info.sequence + 1, kRelease);
  }
  void close(Record& record, RecordState state) const {
    if (timed_) record.ended.store(ticks(), std::memory_order_relaxed);
    record.state.store(static_cast<std::uint32_t>(state), std::memory_order_release);
  }
  void map(std::uint32_t entries, int file);
  void unmap();

  bool timed_ = true;
  std::uint64_t generation_;  // of forks: a child must not write into its parent's file
  std::uint32_t mask_ = 0;
  std::size_t bytes_ = 0;
  RecorderHeader* header_ = nullptr;
  Record* operations_ = nullptr;
  Record* messages_ = nullptr;
  char* strings_ = nullptr;
  std::atomic<std::uint64_t> next_message_{0};
  std::mutex mutex_;  // of the strings and the end
  std::map<std::string, std::uint32_t, std::less<>> numbers_;
};

}  // namespace ringleader
