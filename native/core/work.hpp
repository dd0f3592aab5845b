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

#include "core/types.hpp"

namespace ringleader {

using Clock = std::chrono::steady_clock;

class CompletionSink;

class WorkState : public std::enable_shared_from_this<WorkState> {
 public:
  // First call wins; later ones are ignored. Thread-safe.
  void complete();
  void fail(const Error& error);

  bool done() const { return done_.load(std::memory_order_acquire); }
  // Waits until done or `until`; true if done. Does not throw the operation's error; see rethrow().
  bool wait_until(Clock::time_point until);
  void rethrow() const;  // throws the error if the work failed
  std::optional<Error> error() const;
  void watch(std::shared_ptr<CompletionSink> sink, std::uint64_t token);

  // Facts about a completed receive, written by the completer before complete().
  Rank source = -1;
  std::int64_t tag = 0;
  std::size_t nbytes = 0;

 private:
  void finish(std::optional<Error> error);
  std::atomic<bool> done_{false};
  mutable std::mutex mutex_;
  std::condition_variable condition_;
  std::optional<Error> error_;
  std::vector<std::pair<std::shared_ptr<CompletionSink>, std::uint64_t>> watchers_;
};

// A queue of completed works' tokens.
class CompletionSink {
 public:
  void push(std::uint64_t token);
  std::optional<std::uint64_t> pop(Clock::time_point until);  // nothing after `until` or once closed
  void close();

 private:
  std::mutex mutex_;
  std::condition_variable condition_;
  std::deque<std::uint64_t> tokens_;
  bool closed_ = false;
};

}  // namespace ringleader
