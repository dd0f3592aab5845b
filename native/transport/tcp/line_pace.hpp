// How fast a line delivers, and whether it is slow enough to be slept for. Pure: the clock is the caller's.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "base/clock.hpp"

namespace ringleader {

// Invariant: the estimate is never kept alive by its own effect. What a sleep does (late wake-ups, batches) must not
// look like the line, so
// - only time counts in which this thread kept looking at the socket: a gap between two looks in which it slept, or
// others had the core,
//   does not, though the bytes that came in it do (so a busy core makes a line look fast, never slow);
// - a sample in which a wait slept because of this estimate is void;
// - while the estimate says "slow", every now and then a sample is waited for awake, sooner if the last one said
// otherwise. One sample says little: a late sender makes a fast line look slow, the burst of a shaper a slow one fast.
// So the median of five counts.
class LinePace {
 public:
  // A sleep that waits for data of a slow line ends when this much has come: a packet a wake-up would cost more
  // processor time than everything else.
  static constexpr std::size_t kBatch = 64 * 1024;
  // A line is slow if what is waited for takes longer, many times what waking up takes.
  static constexpr double kWorthSleepingNs = 100'000;
  // Less is over before its speed can be told from the kernel's hiccups.
  static constexpr std::size_t kWorthTiming = 12 * 1024;
  // Between two looks of a thread that does nothing else: some receives that find nothing, and a yield that finds
  // nobody.
  static constexpr Clock::duration kAwake = std::chrono::microseconds(20);
  static constexpr std::uint32_t kLongestPause = 32;  // samples between those waited for awake

  // All that had come of a message was taken, and more of it is to come.
  void begins(Clock::time_point now) {
    last_ = now;
    start();
    flowing_ = true;
  }
  // A look at the socket, which brought `bytes`.
  void looked(Clock::time_point now, std::size_t bytes) {
    if (!flowing_) return;
    if (now - last_ <= kAwake) awake_ += now - last_;
    last_ = now;
    bytes_ += bytes;
    if (bytes_ >= kBatch) complete();
  }
  // The message is there.
  void ends() {
    if (flowing_ && bytes_ >= kWorthTiming) complete();
    flowing_ = false;
  }
  // A wait for this line goes to sleep because slow() said so.
  void slept() { void_ = true; }

  // Whether `bytes` are worth sleeping for now.
  bool slow(std::uint64_t bytes) const {
    return !probing() && pace_ * static_cast<double>(std::min<std::uint64_t>(bytes, kBatch)) > kWorthSleepingNs;
  }
  bool known() const { return samples_ > 0; }
  // Nanoseconds a byte.
  double pace() const { return pace_; }

 private:
  static constexpr std::size_t kMedian = 5;

  static bool slow_pace(double pace) { return pace * static_cast<double>(kBatch) > kWorthSleepingNs; }
  bool probing() const { return pause_ == 0; }

  void start() {
    awake_ = {};
    bytes_ = 0;
    void_ = false;
  }
  void complete() {
    const bool counts = !void_;
    if (counts)
      add(static_cast<double>(std::chrono::nanoseconds(awake_).count()) / static_cast<double>(bytes_));
    else if (pause_ > 0)
      --pause_;
    start();
  }
  void add(double sample) {
    recent_[samples_++ % kMedian] = sample;
    if (samples_ < kMedian) return;
    std::array<double, kMedian> sorted = recent_;
    std::nth_element(sorted.begin(), sorted.begin() + kMedian / 2, sorted.end());
    pace_ = sorted[kMedian / 2];
    if (!slow_pace(sample)) {
      last_pause_ = pause_ = 0;
    } else {
      last_pause_ = std::min(kLongestPause, 2 * last_pause_ + 1);
      pause_ = last_pause_;
    }
  }

  bool flowing_ = false;
  bool void_ = false;  // the sample that is being taken does not count
  Clock::time_point last_{};
  Clock::duration awake_{};
  std::size_t bytes_ = 0;
  std::array<double, kMedian> recent_{};
  std::size_t samples_ = 0;
  double pace_ = 0;                           // 0 until there are enough samples
  std::uint32_t pause_ = 0, last_pause_ = 0;  // samples until the next one is waited for awake; 0: now
};

}  // namespace ringleader
