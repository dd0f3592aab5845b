// The state of one operation in flight, shared between who started it and who completes it.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/clock.hpp"
#include "base/fork.hpp"
#include "base/types.hpp"
#include "memory/strided.hpp"

namespace ringleader {

class CompletionSink;
class Recorder;

// Invariant: a result is in the caller's arrays before anybody can see that the work is done, and nothing is written
// there afterwards. So what has to be copied to them is part of the work, and made by whoever completes it, whether or
// not somebody still looks at it. A work that fails copies nothing.
class WorkState : public std::enable_shared_from_this<WorkState> {
 public:
  // Owners of the memory that is in use, let go of when the work is done. Never destroyed by a thread of ours: see
  // bind/kept.hpp.
  using Kept = std::unique_ptr<void, void (*)(void*)>;

  WorkState() = default;
  WorkState(std::vector<StridedCopy> copies, Kept kept) : copies_(std::move(copies)), kept_(std::move(kept)) {}

  // First call wins; later ones are ignored. One thread at a time may complete or fail a work.
  void complete();
  void fail(const Error& error);

  bool done() const { return done_.load(std::memory_order_acquire); }
  // Waits until done or `until`; true if done. Does not throw the operation's error; see rethrow().
  bool wait_until(Clock::time_point until);
  void rethrow() const;  // throws the error if the work failed
  std::optional<Error> error() const;
  void watch(std::shared_ptr<CompletionSink> sink, std::uint64_t token);
  // This is message `number` of a recorder that lives as long as anybody may complete the work; before it is started.
  void record(Recorder& recorder, std::uint64_t number) {
    recorder_ = &recorder;
    number_ = number;
  }

  // Facts about a completed receive, written by the completer before complete().
  Rank source = -1;
  std::int64_t tag = 0;
  std::size_t nbytes = 0;

 private:
  void finish(std::optional<Error> error);
  std::atomic<bool> done_{false};
  mutable std::mutex mutex_;
  Parents<std::condition_variable> condition_;
  std::optional<Error> error_;
  std::vector<std::pair<std::shared_ptr<CompletionSink>, std::uint64_t>> watchers_;
  std::vector<StridedCopy> copies_;
  Kept kept_{nullptr, [](void*) {}};
  Recorder* recorder_ = nullptr;
  std::uint64_t number_ = 0;
};

// A queue of completed works' tokens.
class CompletionSink {
 public:
  void push(std::uint64_t token);
  std::optional<std::uint64_t> pop(Clock::time_point until);  // nothing after `until` or once closed
  void close();

 private:
  std::mutex mutex_;
  Parents<std::condition_variable> condition_;
  std::deque<std::uint64_t> tokens_;
  bool closed_ = false;
};

}  // namespace ringleader
