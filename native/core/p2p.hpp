// Point-to-point messages with tags, beside the collectives: one byte stream per peer.
#pragma once

#include <poll.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/p2p_inbox.hpp"
#include "core/p2p_outbox.hpp"
#include "core/work.hpp"
#include "transport/stream.hpp"

namespace ringleader {

// Matching: a message goes to the first posted receive whose tag is equal and whose source is the sender or -1; a
// receive takes the first message, in order of arrival, that matches. Messages with one source and tag never overtake
// each other.
//
// Unexpected messages (those whose receive is not posted yet) are kept in heap memory, up to `unexpected_limit` bytes
// per peer including a charge of 256 bytes each. Beyond it that peer's stream is not read until receives free some, and
// so its sends wait. A receive for a message that lies behind such a backlog therefore waits until the backlog is
// received; it fails by its deadline if that never happens.
//
// A send is complete when its memory may be reused, which says nothing about the receiver. Thread-safe.
class PointToPoint final : private p2p::Matcher {
 public:
  static constexpr std::size_t kUnexpectedLimit = std::size_t{64} << 20;

  // One stream and one name per rank; the own rank's stream is null.
  PointToPoint(Rank self, std::vector<std::unique_ptr<ByteStream>> streams, std::vector<std::string> names,
               std::size_t unexpected_limit = kUnexpectedLimit);
  ~PointToPoint() override = default;

  // Throw Error(invalid) for a rank out of range; every other failure is the work's. `deadline` may be
  // time_point::max(). Memory belongs to the operation until its work is done.
  std::shared_ptr<WorkState> isend(const void* data, std::size_t bytes, Rank dst, std::int64_t tag,
                                   Clock::time_point deadline,
                                   std::shared_ptr<WorkState> work = std::make_shared<WorkState>());
  // src -1 = any. The work's nbytes tells how long the message was; longer than `bytes` is Error(mismatch), and so is
  // shorter if it is to be `exact`.
  std::shared_ptr<WorkState> irecv(void* data, std::size_t bytes, Rank src, std::int64_t tag,
                                   Clock::time_point deadline,
                                   std::shared_ptr<WorkState> work = std::make_shared<WorkState>(), bool exact = false);

  // Moves what can be moved, and fails what is past its deadline. True if anything happened.
  bool progress();
  // No operation of this rank is pending. (Others may still be sending: progress() is then what takes their messages
  // in.)
  bool idle() const;
  // Everything sent so far was handed to the streams. (Small messages are copied, so their sends complete before that:
  // leaving without progress() until then would lose them.)
  bool flushed() const;
  // The earliest deadline of what is pending (time_point::max() if none): do not sleep past it.
  Clock::time_point next_deadline() const;
  // Appends what to poll for before the next progress(). Streams without descriptors (shared memory) are not in it.
  void poll_descriptors(std::vector<pollfd>& out) const;
  // Everything pending fails, and everything later too; the first error stays. Memory of operations is not touched
  // after.
  void fail_all(const Error& error);
  void close();  // lets go of the streams; after fail_all()

 private:
  struct Peer {
    Peer(Rank rank, std::string name_, std::unique_ptr<ByteStream> stream_, std::size_t limit, PointToPoint& owner)
        : name(name_), stream(std::move(stream_)), inbox(rank, std::move(name_), limit, owner, owner.arrivals_) {}
    std::string name;
    std::unique_ptr<ByteStream> stream;
    p2p::Outbox outbox;
    p2p::Inbox inbox;
    std::size_t posted = 0;         // receives posted for this source
    Clock::time_point read_next{};  // see wants_read()
    std::optional<Error> lost;
  };

  p2p::RecvOpPtr match(Rank source, std::int64_t tag) override;
  void check_rank(Rank rank, const char* what) const;
  bool step(Rank rank, Clock::time_point now);
  bool wants_read(Peer& peer, Clock::time_point now) const;
  p2p::MessagePtr find_unexpected(Rank source, std::int64_t tag) const;
  std::optional<Error> failure_for(Rank source) const;
  void lose(Rank rank, const Error& error);
  bool expire(Clock::time_point now);
  template <class Predicate>
  void fail_posted(Predicate affected, const Error& error);

  mutable std::mutex mutex_;
  Rank self_;
  std::uint64_t arrivals_ = 0;
  std::vector<std::unique_ptr<Peer>> peers_;
  std::unordered_map<std::int64_t, std::deque<p2p::RecvOpPtr>> posted_;  // by tag, in posting order
  std::size_t posted_any_ = 0, posted_all_ = 0;
  Clock::time_point next_deadline_ = Clock::time_point::max();  // never later than the earliest one pending
  std::optional<Error> failure_;
};

}  // namespace ringleader
