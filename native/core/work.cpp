#include "core/work.hpp"

#include <utility>

#include "core/recorder.hpp"

namespace ringleader {

void WorkState::complete() {
  if (done()) return;
  for (const StridedCopy& copy : copies_) copy.run();
  finish(std::nullopt);
}

void WorkState::fail(const Error& error) { finish(error); }

void WorkState::finish(std::optional<Error> error) {
  std::vector<std::pair<std::shared_ptr<CompletionSink>, std::uint64_t>> watchers;
  Kept kept{nullptr, kept_.get_deleter()};
  {
    std::lock_guard lock(mutex_);
    if (done_.load(std::memory_order_relaxed)) return;
    if (recorder_ != nullptr) recorder_->end_message(number_, error ? RecordState::failed : RecordState::done);
    error_ = std::move(error);
    watchers.swap(watchers_);
    kept = std::move(kept_);
    done_.store(true, std::memory_order_release);
    // Under the mutex: a waiter that saw done_ == false is inside wait() or has not taken the mutex yet.
    condition_->notify_all();
  }
  for (auto& [sink, token] : watchers) sink->push(token);
}

bool WorkState::wait_until(Clock::time_point until) {
  if (done()) return true;
  std::unique_lock lock(mutex_);
  return condition_->wait_until(lock, until, [this] { return done_.load(std::memory_order_relaxed); });
}

void WorkState::rethrow() const {
  if (const auto failure = error()) throw *failure;
}

std::optional<Error> WorkState::error() const {
  if (!done()) return std::nullopt;
  std::lock_guard lock(mutex_);
  return error_;
}

void WorkState::watch(std::shared_ptr<CompletionSink> sink, std::uint64_t token) {
  {
    std::lock_guard lock(mutex_);
    if (!done_.load(std::memory_order_relaxed)) {
      watchers_.emplace_back(std::move(sink), token);
      return;
    }
  }
  sink->push(token);
}

void CompletionSink::push(std::uint64_t token) {
  std::lock_guard lock(mutex_);
  tokens_.push_back(token);
  condition_->notify_one();
}

std::optional<std::uint64_t> CompletionSink::pop(Clock::time_point until) {
  std::unique_lock lock(mutex_);
  condition_->wait_until(lock, until, [this] { return closed_ || !tokens_.empty(); });
  if (tokens_.empty()) return std::nullopt;
  const std::uint64_t token = tokens_.front();
  tokens_.pop_front();
  return token;
}

void CompletionSink::close() {
  std::lock_guard lock(mutex_);
  closed_ = true;
  condition_->notify_all();
}

}  // namespace ringleader
