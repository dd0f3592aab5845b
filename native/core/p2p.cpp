#include "core/p2p.hpp"

#include <algorithm>

namespace ringleader {

namespace {

// Bytes per peer and direction in one progress() call, so that no peer starves the others.
constexpr std::size_t kBudget = 512 * 1024;
// How often a socket is read that nothing is expected from (each try is a system call).
constexpr auto kQuietInterval = std::chrono::microseconds(50);

}  // namespace

PointToPoint::PointToPoint(Rank self, std::vector<std::unique_ptr<ByteStream>> streams, std::vector<std::string> names,
                           std::size_t unexpected_limit)
    : self_(self) {
  for (std::size_t r = 0; r < streams.size(); ++r) {
    peers_.push_back(
        std::make_unique<Peer>(static_cast<Rank>(r), names.at(r), std::move(streams[r]), unexpected_limit, *this));
  }
}

void PointToPoint::check_rank(Rank rank, const char* what) const {
  if (rank < 0 || rank >= static_cast<Rank>(peers_.size())) {
    throw Error(ErrorKind::invalid, std::string(what) + " must be a rank in [0, " + std::to_string(peers_.size()) +
                                        "), got " + std::to_string(rank));
  }
}

std::shared_ptr<WorkState> PointToPoint::isend(const void* data, std::size_t bytes, Rank dst, std::int64_t tag,
                                               Clock::time_point deadline, std::shared_ptr<WorkState> work) {
  const std::lock_guard lock(mutex_);
  check_rank(dst, "the destination of a send");
  work->tag = tag;
  work->nbytes = bytes;
  Peer& peer = *peers_[static_cast<std::size_t>(dst)];
  if (failure_ || peer.lost) {
    work->fail(failure_ ? *failure_ : *peer.lost);
    return work;
  }
  auto op = std::make_shared<p2p::SendOp>(
      p2p::SendOp{static_cast<const unsigned char*>(data), bytes, tag, deadline, work});
  if (dst == self_) {
    peer.inbox.deliver_local(op);
  } else {
    const bool first = peer.outbox.empty();
    peer.outbox.add(std::move(op));
    if (first) step(dst, Clock::now());
  }
  if (!work->done()) next_deadline_ = std::min(next_deadline_, deadline);
  return work;
}

std::shared_ptr<WorkState> PointToPoint::irecv(void* data, std::size_t bytes, Rank src, std::int64_t tag,
                                               Clock::time_point deadline, std::shared_ptr<WorkState> work,
                                               bool exact) {
  const std::lock_guard lock(mutex_);
  if (src != -1) check_rank(src, "the source of a receive (or -1 for any)");
  auto op = std::make_shared<p2p::RecvOp>(
      p2p::RecvOp{static_cast<unsigned char*>(data), bytes, src, tag, deadline, work, exact});
  if (failure_) {
    work->fail(*failure_);
    return work;
  }
  if (const p2p::MessagePtr message = find_unexpected(src, tag)) {
    Peer& peer = *peers_[static_cast<std::size_t>(message->source)];
    peer.inbox.take(message);
    p2p::attach(*message, std::move(op), peer.name);
    // Room was made, and what follows may be waiting in the inbox, where no poll would show it.
    step(message->source, Clock::now());
  } else if (const std::optional<Error> error = failure_for(src)) {
    work->fail(*error);
  } else {
    posted_[tag].push_back(std::move(op));
    ++posted_all_;
    ++(src == -1 ? posted_any_ : peers_[static_cast<std::size_t>(src)]->posted);
  }
  if (!work->done()) next_deadline_ = std::min(next_deadline_, deadline);
  return work;
}

// What already arrived can still be received from a lost peer; nothing else can. A receive from any source fails with
// the first lost peer, because whether that peer would have sent the message cannot be known.
std::optional<Error> PointToPoint::failure_for(Rank source) const {
  if (source != -1) return peers_[static_cast<std::size_t>(source)]->lost;
  for (const auto& peer : peers_) {
    if (peer->lost) return peer->lost;
  }
  return std::nullopt;
}

p2p::MessagePtr PointToPoint::find_unexpected(Rank source, std::int64_t tag) const {
  if (source != -1) return peers_[static_cast<std::size_t>(source)]->inbox.find(tag);
  p2p::MessagePtr oldest;
  for (const auto& peer : peers_) {
    p2p::MessagePtr message = peer->inbox.find(tag);
    if (message && (!oldest || message->arrival < oldest->arrival)) oldest = std::move(message);
  }
  return oldest;
}

p2p::RecvOpPtr PointToPoint::match(Rank source, std::int64_t tag) {
  const auto list = posted_.find(tag);
  if (list == posted_.end()) return nullptr;
  const auto it = std::find_if(list->second.begin(), list->second.end(),
                               [&](const p2p::RecvOpPtr& op) { return op->source == source || op->source == -1; });
  if (it == list->second.end()) return nullptr;
  p2p::RecvOpPtr op = std::move(*it);
  list->second.erase(it);
  if (list->second.empty()) posted_.erase(list);
  --posted_all_;
  --(op->source == -1 ? posted_any_ : peers_[static_cast<std::size_t>(op->source)]->posted);
  return op;
}

// ---------------------------------------------------------------- progress

bool PointToPoint::progress() {
  const std::lock_guard lock(mutex_);
  if (failure_) return false;
  const auto now = Clock::now();
  bool moved = false;
  for (Rank rank = 0; rank < static_cast<Rank>(peers_.size()); ++rank) moved |= step(rank, now);
  if (now >= next_deadline_) moved |= expire(now);
  return moved;
}

bool PointToPoint::step(Rank rank, Clock::time_point now) {
  Peer& peer = *peers_[static_cast<std::size_t>(rank)];
  if (!peer.stream || peer.lost) return false;
  std::optional<Error> error;
  std::size_t moved = 0;
  try {
    if (!peer.outbox.empty()) moved += peer.outbox.write(*peer.stream, kBudget);
  } catch (const Error& failed) {
    error = failed;
  }
  try {
    if (!error) {
      if (wants_read(peer, now)) moved += peer.inbox.read(*peer.stream, kBudget);
    } else {
      // The peer does not take our bytes any more, but what it sent before it left still counts.
      while (peer.inbox.read(*peer.stream, kBudget) > 0) {}
    }
  } catch (const Error& failed) {
    if (!error) error = failed;
  }
  if (error) lose(rank, *error);
  return error || moved > 0;
}

// Shared memory is always looked at: its peer may be waiting for room, and only we can tell. A socket is too while
// something may come that is wanted, else now and then (a poll shows it to a caller that sleeps).
bool PointToPoint::wants_read(Peer& peer, Clock::time_point now) const {
  if (peer.posted + posted_any_ > 0 || peer.inbox.arriving() || peer.stream->poll_fd() < 0) return true;
  if (now < peer.read_next) return false;
  peer.read_next = now + kQuietInterval;
  return true;
}

bool PointToPoint::idle() const {
  const std::lock_guard lock(mutex_);
  return posted_all_ == 0 && std::all_of(peers_.begin(), peers_.end(),
                                         [](const auto& peer) { return peer->outbox.empty() && !peer->inbox.busy(); });
}

bool PointToPoint::flushed() const {
  const std::lock_guard lock(mutex_);
  return std::all_of(peers_.begin(), peers_.end(), [](const auto& peer) { return peer->outbox.empty(); });
}

Clock::time_point PointToPoint::next_deadline() const {
  const std::lock_guard lock(mutex_);
  return next_deadline_;
}

void PointToPoint::poll_descriptors(std::vector<pollfd>& out) const {
  const std::lock_guard lock(mutex_);
  for (const auto& peer : peers_) {
    if (!peer->stream || peer->lost || peer->stream->poll_fd() < 0) continue;
    const int events = (peer->inbox.held() ? 0 : POLLIN) | (peer->outbox.empty() ? 0 : POLLOUT);
    if (events != 0) out.push_back({peer->stream->poll_fd(), static_cast<short>(events), 0});
  }
}

// ---------------------------------------------------------------- failure

template <class Predicate>
void PointToPoint::fail_posted(Predicate affected, const Error& error) {
  for (auto list = posted_.begin(); list != posted_.end();) {
    std::erase_if(list->second, [&](const p2p::RecvOpPtr& op) {
      if (!affected(*op)) return false;
      --posted_all_;
      --(op->source == -1 ? posted_any_ : peers_[static_cast<std::size_t>(op->source)]->posted);
      op->work->fail(error);
      return true;
    });
    list = list->second.empty() ? posted_.erase(list) : std::next(list);
  }
}

void PointToPoint::lose(Rank rank, const Error& error) {
  Peer& peer = *peers_[static_cast<std::size_t>(rank)];
  peer.lost = error;
  peer.outbox.fail(error);
  peer.inbox.fail(error);
  fail_posted([&](const p2p::RecvOp& op) { return op.source == rank || op.source == -1; }, error);
}

bool PointToPoint::expire(Clock::time_point now) {
  auto earliest = Clock::time_point::max();
  bool any = false;
  for (Rank rank = 0; rank < static_cast<Rank>(peers_.size()); ++rank) {
    Peer& peer = *peers_[static_cast<std::size_t>(rank)];
    earliest = std::min({earliest, peer.outbox.expire(now, peer.name, rank), peer.inbox.expire(now)});
  }
  for (auto& [tag, list] : posted_) {
    for (const p2p::RecvOpPtr& op : list) {
      if (op->deadline > now) {
        earliest = std::min(earliest, op->deadline);
        continue;
      }
      any = true;
      const bool from_any = op->source == -1;
      op->work->fail(Error(ErrorKind::timeout,
                           "receive with tag " + std::to_string(tag) + " from " +
                               (from_any ? "any rank" : peers_[static_cast<std::size_t>(op->source)]->name) +
                               " timed out: no such message arrived",
                           from_any ? std::vector<Rank>{} : std::vector<Rank>{op->source}));
    }
  }
  // Failed above with texts of their own; a second failure is ignored.
  if (any)
    fail_posted([&](const p2p::RecvOp& op) { return op.deadline <= now; }, Error(ErrorKind::timeout, "timed out"));
  next_deadline_ = earliest;
  return true;
}

void PointToPoint::fail_all(const Error& error) {
  const std::lock_guard lock(mutex_);
  if (failure_) return;
  failure_ = error;
  for (const auto& peer : peers_) {
    peer->outbox.fail(error);
    peer->inbox.fail(error);
  }
  fail_posted([](const p2p::RecvOp&) { return true; }, error);
  next_deadline_ = Clock::time_point::max();
}

void PointToPoint::close() {
  const std::lock_guard lock(mutex_);
  for (const auto& peer : peers_) peer->stream.reset();
}

}  // namespace ringleader
