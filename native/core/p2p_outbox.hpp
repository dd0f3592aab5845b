// The sending half of point-to-point messaging with one peer: a queue of messages cut into frames.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "core/work.hpp"
#include "transport/stream.hpp"

namespace ringleader::p2p {

// Wire format: a frame is this header (little-endian) and `bytes` bytes. The frames of a message follow each other with
// no other message's between them. A `cancel` frame says that the sender gave the message up.
struct Frame {
  std::uint32_t magic;
  std::uint32_t kind;
  std::int64_t tag;
  std::uint64_t total;   // bytes of the whole message
  std::uint64_t offset;  // of this frame within the message
  std::uint32_t bytes;   // of this frame; 0 only for empty messages and cancel
  std::uint32_t reserved;
};
static_assert(sizeof(Frame) == 40);
inline constexpr std::uint32_t kFrameMagic = 0x524c5031;  // "RLP1"
inline constexpr std::uint32_t kData = 1, kCancel = 2;
inline constexpr std::size_t kMaxFrame = 64 * 1024;

struct SendOp {
  const unsigned char* data;
  std::size_t bytes;
  std::int64_t tag;
  Clock::time_point deadline;
  std::shared_ptr<WorkState> work;
};
using SendOpPtr = std::shared_ptr<SendOp>;

class Outbox {
 public:
  void add(SendOpPtr op) { queue_.push_back(std::move(op)); }
  // Nothing is left to be written.
  bool empty() const { return queue_.empty() && staged_ == stage_.size(); }
  // Writes up to about `budget` bytes and completes what was handed over whole; returns the bytes written.
  std::size_t write(ByteStream& stream, std::size_t budget);
  // Fails messages past their deadline and returns the earliest deadline left.
  Clock::time_point expire(Clock::time_point now, const std::string& peer_name, Rank peer);
  // Forgets everything; the memory of messages is not touched any more.
  void fail(const Error& error);

 private:
  void stage_next();
  void stage_bytes(const void* data, std::size_t bytes);
  void stage_frame(std::uint32_t kind, const SendOp& op, std::size_t bytes);
  void finish_front();
  bool abandon_front();

  // To be written, in this order: stage_[staged_..], then `direct_left_` bytes at `direct_` in the front message's
  // memory, then the front message from `offset_` on, then the rest of the queue.
  std::vector<unsigned char> stage_;
  std::size_t staged_ = 0;
  const unsigned char* direct_ = nullptr;
  std::size_t direct_left_ = 0;
  std::deque<SendOpPtr> queue_;
  std::size_t offset_ = 0;
};

}  // namespace ringleader::p2p
