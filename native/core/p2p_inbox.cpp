#include "core/p2p_inbox.hpp"

#include <algorithm>
#include <cstring>

namespace ringleader::p2p {

namespace {

constexpr std::size_t kReadAhead = 16 * 1024;
// From this size on bytes are read straight to their destination.
constexpr std::size_t kDirect = 4 * 1024;
// Charged per unexpected message besides its bytes, so that empty messages are bounded too.
constexpr std::size_t kMessageCharge = 256;

std::size_t charge(const Message& message) {
  std::size_t bytes = kMessageCharge;
  for (const Message::Chunk& chunk : message.chunks) bytes += chunk.bytes;
  return bytes;
}

void append_chunk(Message& message, std::size_t bytes) {
  message.chunks.push_back({std::make_unique_for_overwrite<unsigned char[]>(bytes), bytes, 0});
}

void complete(Message& message) {
  WorkState& work = *message.target->work;
  work.source = message.source;
  work.tag = message.tag;
  work.nbytes = static_cast<std::size_t>(message.total);
  work.complete();
  message.target = nullptr;
}

std::string describe(const Message& message, const std::string& source_name) {
  return "message of " + std::to_string(message.total) + " bytes with tag " + std::to_string(message.tag) + " from " +
         source_name;
}

}  // namespace

void attach(Message& message, RecvOpPtr op, const std::string& source_name) {
  message.kept = false;
  if (op->exact && message.total != op->capacity) {
    op->work->fail(Error(ErrorKind::mismatch,
                         "rank " + std::to_string(message.source) + " sent " + std::to_string(message.total) +
                             " bytes (tag " + std::to_string(message.tag) + ") where this rank receives " +
                             std::to_string(op->capacity) + " bytes",
                         {message.source}));
    message.chunks.clear();
  } else if (message.total > op->capacity) {
    op->work->fail(Error(ErrorKind::mismatch,
                         describe(message, source_name) + " does not fit the receive buffer of " +
                             std::to_string(op->capacity) + " bytes",
                         {message.source}));
    message.chunks.clear();
  } else {
    unsigned char* to = op->data;
    for (const Message::Chunk& chunk : message.chunks) {
      std::memcpy(to, chunk.data.get(), chunk.filled);
      to += chunk.filled;
    }
    message.chunks.clear();
    if (message.lender && message.total > 0) std::memcpy(to, message.lender->data, message.lender->bytes);
    message.target = std::move(op);
    if (message.received == message.total) complete(message);
  }
  if (message.lender) message.lender->work->complete();
  message.lender = nullptr;
}

std::size_t Inbox::read(ByteStream& stream, std::size_t budget) {
  std::size_t moved = 0;
  while (moved < budget) {
    if (!in_frame_) {
      if (!next_frame(stream)) break;
      moved += sizeof(Frame);
      if (!in_frame_) continue;  // it was a cancel frame
    }
    held_ = !admit_frame();
    if (held_) break;
    if (frame_left_ > 0) {
      unsigned char nowhere[kDirect];
      std::size_t n = frame_left_;
      unsigned char* to = nowhere;
      if (current_->target) {
        to = current_->target->data + current_->received;
      } else if (current_->kept) {
        to = current_->chunks.back().data.get() + current_->chunks.back().filled;
      } else {
        n = std::min(n, sizeof nowhere);
      }
      n = take_bytes(stream, to, n);
      if (n == 0) break;
      if (current_->kept) current_->chunks.back().filled += n;
      current_->received += n;
      frame_left_ -= n;
      moved += n;
    }
    if (frame_left_ == 0) end_frame();
  }
  return moved;
}

// Reads and checks a frame's header; false if it has not wholly arrived.
bool Inbox::next_frame(ByteStream& stream) {
  while (end_ - begin_ < sizeof(Frame)) {
    if (!fill(stream)) return false;
  }
  std::memcpy(&frame_, buffer_.get() + begin_, sizeof(Frame));
  begin_ += sizeof(Frame);
  begin_frame();
  return true;
}

// Nothing in a frame is believed: after this, `bytes` is bounded by kMaxFrame and by what the message has left.
void Inbox::begin_frame() {
  if (frame_.magic != kFrameMagic) malformed("no frame header");
  if (frame_.kind != kData && frame_.kind != kCancel) malformed("a frame of unknown kind");
  if (current_ &&
      (frame_.tag != current_->tag || frame_.total != current_->total || frame_.offset != current_->received)) {
    malformed("a frame that does not continue its message");
  }
  if (frame_.kind == kCancel) {
    if (!current_ || frame_.bytes != 0) malformed("a cancel frame for no message");
    cancel_message();
    return;
  }
  if (!current_ && frame_.offset != 0) malformed("a message without its beginning");
  if (frame_.bytes > kMaxFrame || frame_.bytes > frame_.total - frame_.offset ||
      (frame_.bytes == 0 && frame_.total != 0)) {
    malformed("a frame of impossible length");
  }
  in_frame_ = true;
  admitted_ = false;
  frame_left_ = frame_.bytes;
  if (current_) return;
  current_ = std::make_shared<Message>();
  current_->source = peer_;
  current_->tag = frame_.tag;
  current_->total = frame_.total;
  current_->arrival = arrivals_++;
  if (RecvOpPtr op = matcher_.match(peer_, frame_.tag)) {
    // An empty message is complete with its header; the others are completed by end_frame().
    attach(*current_, std::move(op), peer_name_);
  } else {
    current_->kept = true;
    unexpected_[frame_.tag].push_back(current_);
    unexpected_bytes_ += kMessageCharge;
  }
}

// Makes room for a frame of an unexpected message; false if the limit forbids it. The message can be matched all the
// same, after which its bytes need no room here.
bool Inbox::admit_frame() {
  if (admitted_ || !current_->kept) return true;
  if (unexpected_bytes_ + frame_.bytes > limit_) return false;
  if (frame_.bytes > 0) append_chunk(*current_, frame_.bytes);
  unexpected_bytes_ += frame_.bytes;
  admitted_ = true;
  return true;
}

void Inbox::end_frame() {
  in_frame_ = false;
  if (current_->received < current_->total) return;
  if (current_->target) complete(*current_);
  current_ = nullptr;
}

void Inbox::cancel_message() {
  if (current_->target) {
    current_->target->work->fail(Error(ErrorKind::timeout,
                                       "the sender gave up its " + describe(*current_, peer_name_) + " after " +
                                           std::to_string(current_->received) + " bytes",
                                       {peer_}));
  } else if (current_->kept) {
    take(current_);
  }
  current_ = nullptr;
}

void Inbox::deliver_local(const SendOpPtr& op) {
  auto message = std::make_shared<Message>();
  message->source = peer_;
  message->tag = op->tag;
  message->total = message->received = op->bytes;
  message->arrival = arrivals_++;
  message->lender = op;
  if (RecvOpPtr receive = matcher_.match(peer_, op->tag)) {
    attach(*message, std::move(receive), peer_name_);
    return;
  }
  message->kept = true;
  if (unexpected_bytes_ + kMessageCharge + op->bytes <= limit_) {
    if (op->bytes > 0) {
      append_chunk(*message, op->bytes);
      std::memcpy(message->chunks.back().data.get(), op->data, op->bytes);
      message->chunks.back().filled = op->bytes;
    }
    message->lender = nullptr;
    op->work->complete();
  } else {
    std::erase_if(lent_, [](const MessagePtr& each) { return !each->lender; });
    lent_.push_back(message);
  }
  unexpected_bytes_ += charge(*message);
  unexpected_[op->tag].push_back(std::move(message));
}

MessagePtr Inbox::find(std::int64_t tag) const {
  const auto it = unexpected_.find(tag);
  return it == unexpected_.end() ? nullptr : it->second.front();
}

void Inbox::take(const MessagePtr& message) {
  const auto it = unexpected_.find(message->tag);
  std::erase(it->second, message);
  if (it->second.empty()) unexpected_.erase(it);
  unexpected_bytes_ -= charge(*message);
}

std::size_t Inbox::lending() const {
  return static_cast<std::size_t>(
      std::count_if(lent_.begin(), lent_.end(), [](const auto& each) { return each->lender; }));
}

Clock::time_point Inbox::expire(Clock::time_point now) {
  auto earliest = Clock::time_point::max();
  if (current_ && current_->target) {
    if (current_->target->deadline > now) {
      earliest = current_->target->deadline;
    } else {
      current_->target->work->fail(Error(ErrorKind::timeout,
                                         "receive timed out with " + std::to_string(current_->received) +
                                             " bytes arrived of the " + describe(*current_, peer_name_),
                                         {peer_}));
      current_->target = nullptr;
    }
  }
  for (const MessagePtr& message : lent_) {
    if (!message->lender) continue;
    if (message->lender->deadline > now) {
      earliest = std::min(earliest, message->lender->deadline);
      continue;
    }
    message->lender->work->fail(Error(ErrorKind::timeout,
                                      "send to myself timed out: no receive took the " + describe(*message, peer_name_),
                                      {peer_}));
    message->lender = nullptr;
    take(message);
  }
  return earliest;
}

void Inbox::fail(const Error& error) {
  for (const MessagePtr& message : lent_) {
    if (!message->lender) continue;
    message->lender->work->fail(error);
    message->lender = nullptr;
    take(message);
  }
  lent_.clear();
  if (current_ && current_->target) current_->target->work->fail(error);
  if (current_ && current_->kept) take(current_);
  current_ = nullptr;
  in_frame_ = held_ = false;
}

std::size_t Inbox::take_bytes(ByteStream& stream, unsigned char* to, std::size_t bytes) {
  if (begin_ == end_) {
    if (bytes >= kDirect) return stream.read(to, bytes);
    if (!fill(stream)) return 0;
  }
  const std::size_t n = std::min(bytes, end_ - begin_);
  std::memcpy(to, buffer_.get() + begin_, n);
  begin_ += n;
  return n;
}

bool Inbox::fill(ByteStream& stream) {
  if (!buffer_) buffer_ = std::make_unique_for_overwrite<unsigned char[]>(kReadAhead);
  if (begin_ > 0) std::memmove(buffer_.get(), buffer_.get() + begin_, end_ - begin_);  // less than a header
  end_ -= begin_;
  begin_ = 0;
  const std::size_t n = stream.read(buffer_.get() + end_, kReadAhead - end_);
  end_ += n;
  return n > 0;
}

void Inbox::malformed(const char* what) const {
  throw Error(ErrorKind::peer_lost,
              peer_name_ + " sent " + what + " on the point-to-point connection: do all ranks run the same version?",
              {peer_});
}

}  // namespace ringleader::p2p
