// The receiving half of point-to-point messaging with one peer: reads frames and delivers messages.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/p2p_outbox.hpp"
#include "core/work.hpp"
#include "transport/stream.hpp"

namespace ringleader::p2p {

struct RecvOp {
  unsigned char* data;
  std::size_t capacity;
  Rank source;  // -1 = any
  std::int64_t tag;
  Clock::time_point deadline;
  std::shared_ptr<WorkState> work;
  bool exact = false;  // a shorter message is an error too
};
using RecvOpPtr = std::shared_ptr<RecvOp>;

// A message that is arriving or has arrived.
struct Message {
  Rank source;
  std::int64_t tag;
  std::uint64_t total;  // as the sender says: compared, never allocated
  std::uint64_t received = 0;
  std::uint64_t arrival = 0;  // order of arrival over all peers
  // Where bytes go: to `target`; else, while `kept`, into chunks; else nowhere.
  RecvOpPtr target;
  bool kept = false;
  struct Chunk {
    std::unique_ptr<unsigned char[]> data;
    std::size_t bytes;  // allocated: at most kMaxFrame
    std::size_t filled;
  };
  std::deque<Chunk> chunks;
  SendOpPtr lender;  // a message to myself too large to keep: its bytes are still the sender's
};
using MessagePtr = std::shared_ptr<Message>;

// Finds the receive for each message that begins; fails receives it cannot serve.
class Matcher {
 public:
  virtual ~Matcher() = default;
  // The posted receive that matches, taken off the list; null if none.
  virtual RecvOpPtr match(Rank source, std::int64_t tag) = 0;
};

// Attaches a message to its receive: copies what was kept and completes or fails the receive where that is decided.
void attach(Message& message, RecvOpPtr op, const std::string& source_name);

class Inbox {
 public:
  // `limit`: bytes of unexpected messages that are kept.
  Inbox(Rank peer, std::string peer_name, std::size_t limit, Matcher& matcher, std::uint64_t& arrivals)
      : peer_(peer), peer_name_(std::move(peer_name)), limit_(limit), matcher_(matcher), arrivals_(arrivals) {}

  // Reads up to about `budget` bytes; returns the bytes moved. Throws Error(peer_lost), also for malformed frames.
  std::size_t read(ByteStream& stream, std::size_t budget);
  // A message that is known whole: from this process itself. Completes `op` unless it has to stay pending.
  void deliver_local(const SendOpPtr& op);

  // The oldest unexpected message with this tag; null if none. take() removes it.
  MessagePtr find(std::int64_t tag) const;
  void take(const MessagePtr& message);

  // True while nothing is read because unexpected messages fill the limit.
  bool held() const { return held_; }
  // A message has begun, and its next bytes are wanted.
  bool arriving() const { return current_ != nullptr && !held_; }
  // An operation depends on this inbox: a receive is being filled, or a send to myself waits for its receive.
  bool busy() const { return (current_ && current_->target) || lending() > 0; }
  // Fails what is past its deadline: the receive that is being filled, and sends to myself. Returns the earliest left.
  Clock::time_point expire(Clock::time_point now);
  // The connection ended: the message that was arriving never completes, nor do sends to myself. Whole ones stay.
  void fail(const Error& error);

 private:
  bool next_frame(ByteStream& stream);
  void begin_frame();
  bool admit_frame();
  void end_frame();
  void cancel_message();
  std::size_t take_bytes(ByteStream& stream, unsigned char* to, std::size_t bytes);
  bool fill(ByteStream& stream);
  std::size_t lending() const;
  [[noreturn]] void malformed(const char* what) const;

  Rank peer_;
  std::string peer_name_;
  std::size_t limit_;
  Matcher& matcher_;
  std::uint64_t& arrivals_;

  // Read ahead and not consumed: [begin_, end_) of buffer_.
  std::unique_ptr<unsigned char[]> buffer_;
  std::size_t begin_ = 0, end_ = 0;

  Frame frame_{};
  bool in_frame_ = false;  // frame_ was read and is valid; frame_left_ of its bytes are to come
  bool admitted_ = false;  // there is a place for its bytes
  std::size_t frame_left_ = 0;
  MessagePtr current_;

  std::unordered_map<std::int64_t, std::deque<MessagePtr>> unexpected_;
  std::size_t unexpected_bytes_ = 0;  // charge() of all of them
  std::vector<MessagePtr> lent_;      // those of them with a lender, and some that had one
  bool held_ = false;
};

}  // namespace ringleader::p2p
