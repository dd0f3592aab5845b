#include "core/p2p_outbox.hpp"

#include <algorithm>

namespace ringleader::p2p {

namespace {

// Payload up to this size is copied behind its header, so that small messages share one write and complete at once.
constexpr std::size_t kCopied = 8 * 1024;

}  // namespace

std::size_t Outbox::write(ByteStream& stream, std::size_t budget) {
  std::size_t written = 0;
  while (written < budget) {
    if (staged_ < stage_.size()) {
      const std::size_t n = stream.write(stage_.data() + staged_, stage_.size() - staged_);
      staged_ += n;
      written += n;
      if (staged_ < stage_.size()) break;
      stage_.clear();
      staged_ = 0;
    }
    if (direct_left_ > 0) {
      const std::size_t n = stream.write(direct_, direct_left_);
      direct_ += n;
      direct_left_ -= n;
      written += n;
      if (direct_left_ > 0) break;
      if (offset_ == queue_.front()->bytes) finish_front();
    }
    if (queue_.empty()) break;
    stage_next();
  }
  return written;
}

// Stages frames until one is written from the message's own memory or enough for one write has come together.
void Outbox::stage_next() {
  while (!queue_.empty() && stage_.size() < kMaxFrame) {
    const SendOp& op = *queue_.front();
    const std::size_t n = std::min(kMaxFrame, op.bytes - offset_);
    stage_frame(kData, op, n);
    const unsigned char* payload = op.data + offset_;
    offset_ += n;
    if (n > kCopied) {
      direct_ = payload;
      direct_left_ = n;
      return;
    }
    stage_bytes(payload, n);
    if (offset_ == op.bytes) finish_front();
  }
}

void Outbox::stage_frame(std::uint32_t kind, const SendOp& op, std::size_t bytes) {
  const Frame frame{kFrameMagic, kind, op.tag, op.bytes, offset_, static_cast<std::uint32_t>(bytes), 0};
  stage_bytes(&frame, sizeof frame);
}

void Outbox::stage_bytes(const void* data, std::size_t bytes) {
  const auto* first = static_cast<const unsigned char*>(data);
  stage_.insert(stage_.end(), first, first + bytes);
}

void Outbox::finish_front() {
  queue_.front()->work->complete();
  queue_.pop_front();
  offset_ = 0;
}

// Gives the front message up without breaking the stream. A frame that was begun is finished with its true bytes,
// copied while the message's memory may still be read; false if that was the last one, so that the message is sent
// after all.
bool Outbox::abandon_front() {
  stage_bytes(direct_, direct_left_);
  direct_left_ = 0;
  if (offset_ == queue_.front()->bytes) return false;
  if (offset_ > 0) stage_frame(kCancel, *queue_.front(), 0);
  return true;
}

Clock::time_point Outbox::expire(Clock::time_point now, const std::string& peer_name, Rank peer) {
  auto earliest = Clock::time_point::max();
  for (auto it = queue_.begin(); it != queue_.end();) {
    const SendOpPtr op = *it;
    if (op->deadline > now) {
      earliest = std::min(earliest, op->deadline);
      ++it;
      continue;
    }
    const bool front = it == queue_.begin();
    const std::size_t taken = front ? offset_ - direct_left_ : 0;
    // (An empty message is never begun and still queued: it is staged whole.)
    if (front && offset_ > 0 && !abandon_front()) {
      op->work->complete();
    } else {
      op->work->fail(Error(ErrorKind::timeout,
                           "send of " + std::to_string(op->bytes) + " bytes with tag " + std::to_string(op->tag) +
                               " to " + peer_name + " timed out with " + std::to_string(taken) +
                               " bytes taken: is there a receive for this tag?",
                           {peer}));
    }
    if (front) offset_ = 0;
    it = queue_.erase(it);
  }
  return earliest;
}

void Outbox::fail(const Error& error) {
  for (const SendOpPtr& op : queue_) op->work->fail(error);
  queue_.clear();
  stage_.clear();
  staged_ = offset_ = direct_left_ = 0;
  direct_ = nullptr;
}

}  // namespace ringleader::p2p
