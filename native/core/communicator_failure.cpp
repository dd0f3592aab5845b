// How failures are noticed, told to peers and reported: one first cause everywhere.
#include <algorithm>
#include <iterator>
#include <utility>

#include "core/communicator.hpp"

namespace ringleader {

using std::chrono::milliseconds;

namespace {

constexpr auto kLeavingTime = milliseconds(20);  // for peers that run to leave an operation that has failed

std::string seconds_text(Clock::duration duration) {
  const double seconds = std::chrono::duration<double>(duration).count();
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", seconds);
  return text;
}

constexpr auto kLeastInquiry = milliseconds(100);  // however short the limit is

BlockState block_state(const ControlBlock& block) {
  return static_cast<BlockState>(block.state.load(std::memory_order_acquire));
}

}  // namespace

// Dead peers end every wait; peers that left in good order end only waits for them. `in_operation`: the caller drives
// one.
void Communicator::check_peers(bool in_operation) {
  const std::string where = in_operation ? " while " + mesh_.name(mesh_.rank) + " was in " + execution_.describe() : "";
  std::vector<Rank> left;
  for (const Rank r : mesh_.local) {
    if (block_state(mesh_.control(r)) == BlockState::closed) {
      left.push_back(r);
    } else if (!mesh_.peers[static_cast<std::size_t>(r)].process->alive()) {
      // Its last words may be an abort record naming the true cause.
      if (aborted(mesh_.own->control)) throw_aborted();
      throw Error(ErrorKind::peer_lost, mesh_.name(r) + " died (its process is gone)" + where, {r});
    }
  }
  // A network peer that said goodbye may have left data in the sockets: their end, met when reading, is what counts
  // there. In shared memory all its progress is visible once its state is.
  poll_control(where);
  if (in_operation) {
    show_wait();
    answer_inquiries();
    execution_.compare_local();
    compare_presence();
  }
  if (left.empty() || !in_operation) return;
  if (ended()) throw_aborted();  // it said why before it left
  for (const Rank r : execution_.blocked_on())
    if (std::find(left.begin(), left.end(), r) != left.end())
      throw Error(ErrorKind::peer_lost,
                  mesh_.name(r) + " has left the communicator (closed it or exited) while " + mesh_.name(mesh_.rank) +
                      " waits for it in " + execution_.describe(),
                  {r});
}

void Communicator::poll_control(const std::string& where) {
  std::lock_guard lock(control_mutex_);
  for (std::size_t r = 0; r < control_.size(); ++r) {
    if (!control_[r] || goodbye_[r]) continue;
    const ControlConnection::Event event = control_[r]->poll();
    switch (event.type) {
      case ControlConnection::Event::Type::none: break;
      case ControlConnection::Event::Type::goodbye: goodbye_[r] = 1; break;
      case ControlConnection::Event::Type::presence: presence_[r] = event.info; break;
      case ControlConnection::Event::Type::inquiry: asked_[r] = 1; break;
      case ControlConnection::Event::Type::answer: answers_[r] = event.ranks; break;
      case ControlConnection::Event::Type::abort:
        set_abort(mesh_.own->control, event.kind, event.rank, event.reason, event.from);
        if (ended()) throw_aborted();
        break;
      case ControlConnection::Event::Type::lost:
        gone_[r] = 1;
        throw Error(ErrorKind::peer_lost,
                    "connection to " + mesh_.peers[r].name + " was lost (" + event.reason + ")" + where,
                    {static_cast<Rank>(r)});
    }
  }
}

void Communicator::hear_control() {
  for (std::size_t heard = 0; heard <= control_.size(); ++heard) {  // each round ends at one peer's news
    try {
      poll_control("");
      return;
    } catch (const Error&) {
      continue;  // kept in gone_ or in the own block's abort record
    }
  }
}

// Ranks that wait long tell the others in which operation: so a late rank can be named by ranks that do not exchange a
// message with it, and a disagreement shows where both sides only wait.
void Communicator::tell_presence() {
  if (presence_sent_ == execution_.info().sequence) return;
  presence_sent_ = execution_.info().sequence;
  std::lock_guard lock(control_mutex_);
  for (std::size_t r = 0; r < control_.size(); ++r)
    if (control_[r] && !goodbye_[r]) control_[r]->send_presence(execution_.info());
}

void Communicator::compare_presence() {
  std::lock_guard lock(control_mutex_);
  for (std::size_t r = 0; r < presence_.size(); ++r) execution_.compare(static_cast<Rank>(r), presence_[r]);
}

// Whether a rank is known to have entered the current operation.
bool Communicator::entered(Rank rank) const {
  if (rank == mesh_.rank) return true;
  const Mesh::Peer& peer = mesh_.peers[static_cast<std::size_t>(rank)];
  if (peer.shared)
    return (peer.shared->control.progress.load(std::memory_order_acquire) >> kCountBits) >= execution_.window_number();
  std::lock_guard lock(control_mutex_);
  return presence_[static_cast<std::size_t>(rank)].sequence >= execution_.info().sequence;
}

// Tells the ranks of this node, which may look for whom to blame, that this one lives and for whom it waits.
void Communicator::show_wait() {
  if (mesh_.local.empty()) return;
  std::vector<std::uint64_t> words(SharedBlock::awaited_words(mesh_.size), 0);
  for (const Rank r : execution_.blocked_on()) words[static_cast<std::size_t>(r) / 64] |= std::uint64_t{1} << (r % 64);
  for (std::size_t i = 0; i < words.size(); ++i)
    mesh_.own->awaited(mesh_.size)[i].store(words[i], std::memory_order_relaxed);
  mesh_.own->control.beats.fetch_add(1, std::memory_order_release);
}

void Communicator::answer_inquiries() {
  std::lock_guard lock(control_mutex_);
  for (std::size_t r = 0; r < control_.size(); ++r)
    if (std::exchange(asked_[r], 0) && control_[r]) control_[r]->send_answer(execution_.blocked_on());
}

// The limit is near. Who is to blame is found by asking everybody for whom they wait.
void Communicator::inquire(Driver& driver, Clock::time_point now) {
  driver.verdict = std::max(driver.deadline, now + kLeastInquiry);
  driver.beats.assign(static_cast<std::size_t>(mesh_.size), 0);
  for (const Rank r : mesh_.local)
    driver.beats[static_cast<std::size_t>(r)] = mesh_.control(r).beats.load(std::memory_order_acquire);
  std::lock_guard lock(control_mutex_);
  for (std::size_t r = 0; r < control_.size(); ++r) {
    answers_[r].reset();
    if (control_[r] && !goodbye_[r]) control_[r]->send_inquiry();
  }
}

// Whom a peer waits for, if it has shown since the inquiry that it does.
std::optional<std::vector<Rank>> Communicator::awaited_by(const Driver& driver, Rank rank) const {
  const Mesh::Peer& peer = mesh_.peers[static_cast<std::size_t>(rank)];
  if (!peer.shared) {
    std::lock_guard lock(control_mutex_);
    return answers_[static_cast<std::size_t>(rank)];
  }
  if (peer.shared->control.beats.load(std::memory_order_acquire) == driver.beats[static_cast<std::size_t>(rank)])
    return std::nullopt;
  std::vector<Rank> ranks;
  for (Rank r = 0; r < mesh_.size; ++r)
    if (peer.shared->awaited(mesh_.size)[r / 64].load(std::memory_order_relaxed) >> (r % 64) & 1) ranks.push_back(r);
  return ranks;
}

// Who holds the operation up: along the chains of ranks that wait for one another, in whatever operation, those at the
// ends, which wait for nobody.
std::vector<Rank> Communicator::culprits(const Driver& driver) const {
  std::vector<Rank> chain = execution_.blocked_on(), ends;
  std::vector<char> seen(static_cast<std::size_t>(mesh_.size), 0);
  const std::vector<Rank> direct = chain;
  seen[static_cast<std::size_t>(mesh_.rank)] = 1;
  while (!chain.empty()) {
    const Rank r = chain.back();
    chain.pop_back();
    if (r < 0 || r >= mesh_.size || std::exchange(seen[static_cast<std::size_t>(r)], 1)) continue;
    if (const auto next = awaited_by(driver, r)) {
      chain.insert(chain.end(), next->begin(), next->end());
    } else {
      ends.push_back(r);
    }
  }
  for (Rank r = 0; ends.empty() && r < mesh_.size; ++r)
    if (!entered(r)) ends.push_back(r);
  if (ends.empty()) ends = direct;
  std::sort(ends.begin(), ends.end());
  return ends;
}

std::string Communicator::last_operation(Rank rank) const {
  const Mesh::Peer& peer = mesh_.peers[static_cast<std::size_t>(rank)];
  if (!peer.shared) {
    std::lock_guard lock(control_mutex_);
    const OpInfo& last = presence_[static_cast<std::size_t>(rank)];
    if (last.sequence >= execution_.info().sequence) return "waits in " + last.text();
    return "has not said that it entered the operation";
  }
  const std::uint64_t window = peer.shared->control.progress.load(std::memory_order_acquire) >> kCountBits;
  if (window == 0) return "has entered no operation yet";
  Entry entry;
  if (!read_entry(peer.shared->control, window, entry)) return "is between operations";
  return "last entered " + entry.info.text();
}

Error Communicator::timeout_error(const Driver& driver, Clock::time_point now) const {
  std::vector<Rank> missing = culprits(driver);
  const std::string waited = seconds_text(now - driver.started), title = execution_.info().title();
  // The cause first: who, and what it has not done.
  std::string text;
  for (const Rank r : missing)
    text += mesh_.name(r) +
            (!entered(r)             ? " has not entered " + title
             : awaited_by(driver, r) ? " waits in " + title + " too"
                                     : " has entered " + title + " and does not go on") +
            "; ";
  text += mesh_.name(mesh_.rank) + " waited " + waited + "\ntimed out after " + waited + " on " +
          mesh_.name(mesh_.rank) + " in " + execution_.describe();
  for (const Rank r : missing) {
    text += "; waiting for " + mesh_.name(r) + ", which " + last_operation(r);
    if (entered(r) && !awaited_by(driver, r)) text += " and waits for nobody: it is stopped, or so slow";
  }
  return Error(ErrorKind::timeout, text, std::move(missing));
}

void Communicator::throw_aborted() const {
  {
    std::lock_guard lock(failure_mutex_);
    if (first_)
      throw Error(ErrorKind::aborted, std::string("the communicator was aborted: ") + first_->what(), first_->ranks);
  }
  // A peer's record; it may be half written for a moment.
  std::optional<AbortRecord> record;
  for (int i = 0; i < 1000 && !(record = abort_of(mesh_.own->control)); ++i) std::this_thread::yield();
  if (!record) throw Error(ErrorKind::aborted, "the communicator was aborted by a peer that gave no reason");
  std::vector<Rank> ranks;
  if (record->rank >= 0 && record->rank < mesh_.size) ranks.push_back(record->rank);
  throw Error(record->kind, record->reason, ranks);
}

// What an operation that stopped with `error` reports. A lost data connection may only be how a peer's abort arrives
// first: its own words, or the end of a control connection (that process is gone for certain), are waited for a moment,
// because they name the cause.
Error Communicator::first_cause_of(const Error& error) {
  Error cause = error;
  const bool lost = error.kind == ErrorKind::peer_lost;
  if (lost || error.kind == ErrorKind::mismatch) {
    // A disagreement may only show that peers have given the operation up already; then they have said so before. And
    // the death of a process of this node is certain: no connection has more to say of it.
    const auto until = Clock::now() + milliseconds(lost && controlled(error) ? 500 : 0);
    do {
      try {
        poll_control("");
      } catch (const Error& reported) {
        cause = reported;
        break;
      }
      if (cause.ranks.size() == 1 && said_goodbye(cause.ranks.front())) break;
      std::this_thread::sleep_for(milliseconds(2));
    } while (Clock::now() < until);
  }
  if (cause.kind == ErrorKind::peer_lost && cause.ranks.size() == 1 && said_goodbye(cause.ranks.front()))
    cause = Error(ErrorKind::peer_lost,
                  mesh_.name(cause.ranks.front()) + " has left the communicator (closed it or exited) while " +
                      mesh_.name(mesh_.rank) + " waits for it in " + execution_.describe(),
                  cause.ranks);
  if (cause.kind == ErrorKind::mismatch) {  // peers get the text too: a link says "this rank"
    std::string text = cause.what();
    const std::string self = "this rank";
    const std::size_t first = text.find(self);
    if (first != std::string::npos && text.find("earlier operation") < first) text += execution_.past_text();
    for (std::size_t at = text.find(self); at != std::string::npos; at = text.find(self, at))
      text.replace(at, self.size(), mesh_.name(mesh_.rank));
    cause = Error(cause.kind, text, cause.ranks);
  }
  fail(cause, spares(cause));
  return give_up_operation(cause.what()).value_or(cause);
}

// Under kBusy, once the peers have been told to give up: the operation, if there is one, is left for good. Invariant:
// before anybody learns that it is over, the user's memory that was shown in it is out of reach of every peer that has
// not left its operations too. Peers that still run do so at once, so they are waited for a moment; others may be
// stopped, and go on with a store at any time. Returns what the caller must be told instead of the cause: that his
// memory could not be taken away.
std::optional<Error> Communicator::give_up_operation(const std::string& cause) {
  const auto shown = execution_.shown();
  execution_.finish(RecordState::failed);
  close_links();
  tell_left(Left::operations);
  if (shown.empty()) return std::nullopt;
  const auto until = Clock::now() + kLeavingTime;
  bool left;
  while (!(left = departures_->all(Left::operations)) && Clock::now() < until)
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  if (left) return std::nullopt;
  std::optional<Error> failed;
  const auto claim = std::make_shared<PeersClaim>(departures_, Left::operations);
  for (const auto memory : shown) {
    try {
      Arena::instance().seclude(memory.data(), memory.size(), claim);
    } catch (const Error& error) {
      failed = Error(
          ErrorKind::memory,
          std::string("registered arrays of a failed operation must not be used any more, since a rank that does "
                      "not answer may still write to them, and they could not be taken away from it: ") +
              error.what() + "; drop them. The operation failed because: " + cause);
    }
  }
  return failed;
}

// The first operation that an error ends, if it spares those before. A peer that left in order has done its part in all
// that were complete for it. That this rank's operation lacks it, is no reason for others, which may be behind, to give
// theirs up.
std::uint64_t Communicator::spares(const Error& error) {
  if (error.kind != ErrorKind::peer_lost || error.ranks.size() != 1) return 0;
  const Rank r = error.ranks.front();
  if (r < 0 || r >= mesh_.size || r == mesh_.rank) return 0;
  const Mesh::Peer& peer = mesh_.peers[static_cast<std::size_t>(r)];
  const bool left = peer.shared ? block_state(peer.shared->control) == BlockState::closed : said_goodbye(r);
  return left ? execution_.sequence() : 0;
}

// Whether the rank that the error names is reached over a control connection.
bool Communicator::controlled(const Error& error) {
  std::lock_guard lock(control_mutex_);
  const auto r = static_cast<std::size_t>(error.ranks.empty() ? mesh_.rank : error.ranks.front());
  return r < control_.size() && control_[r] != nullptr;
}

bool Communicator::said_goodbye(Rank rank) {
  std::lock_guard lock(control_mutex_);
  return static_cast<std::size_t>(rank) < goodbye_.size() && goodbye_[static_cast<std::size_t>(rank)];
}

// Records the first cause, tells the peers, fails what is queued. Any thread.
void Communicator::fail(const Error& error, std::uint64_t from) {
  {
    std::lock_guard lock(failure_mutex_);
    if (first_) return;
    first_ = error;
  }
  recorder().fail(error.what());
  if (!closing_.load()) {
    state_.store(State::aborted, std::memory_order_release);
    spread(error, from);
  }
  std::deque<Job> pending;
  {
    std::lock_guard lock(mutex_);
    pending.swap(queue_);
    update_wanted();
  }
  const Error later(ErrorKind::aborted, std::string("the communicator was aborted: ") + error.what(), error.ranks);
  for (Job& job : pending) job.work->fail(later);
  if (p2p_) p2p_->fail_all(later);
  // Who runs an operation gives it up himself. If nobody does, no operation will run any more.
  if (!closing_.load() && acquire()) {
    give_up_operation(error.what());
    release();
  }
}

void Communicator::spread(const Error& error, std::uint64_t from) {
  const Rank cause = error.ranks.empty() ? -1 : error.ranks.front();
  const std::string reason = error.what();
  {
    std::lock_guard lock(reach_mutex_);
    if (told_.load(std::memory_order_relaxed) == Left::everything) return;
    set_abort(mesh_.own->control, error.kind, cause, reason);
    for (const Rank r : mesh_.local) set_abort(mesh_.control(r), error.kind, cause, reason, from);
  }
  std::lock_guard lock(control_mutex_);
  for (std::size_t r = 0; r < control_.size(); ++r)
    if (control_[r] && !goodbye_[r]) control_[r]->send_abort(error.kind, cause, reason, from);
}

void Communicator::abort(ErrorKind kind, Rank cause, const std::string& reason) {
  if (generation_ != fork_generation())
    throw Error(ErrorKind::forked, "a forked child cannot abort its parent's communicator");
  if (state() != State::live) return;
  fail(Error(kind, reason, cause >= 0 ? std::vector<Rank>{cause} : std::vector<Rank>{}));
}

Communicator::RankStatus Communicator::status_of(Rank rank) {
  if (forked()) refuse();
  const Mesh::Peer& peer = mesh_.peers[static_cast<std::size_t>(rank)];
  RankStatus status;
  status.name = peer.name;
  if (told_.load(std::memory_order_acquire) == Left::everything) {  // the shared blocks may be other memory by now
    status.alive = false;
    return status;
  }
  if (!peer.shared) {
    hear_control();
    std::lock_guard lock(control_mutex_);
    const auto r = static_cast<std::size_t>(rank);
    status.alive = r < goodbye_.size() && !goodbye_[r] && !gone_[r];
    if (r < presence_.size() && presence_[r].sequence) {
      status.last = presence_[r].text();
      status.sequence = presence_[r].sequence;
    }
    return status;
  }
  const ControlBlock& block = peer.shared->control;
  status.alive = block_state(block) != BlockState::closed && peer.process && peer.process->alive();
  const std::uint64_t window = block.progress.load(std::memory_order_acquire) >> kCountBits;
  Entry entry;
  if (window > 0 && read_entry(block, window, entry)) {
    status.last = entry.info.text();
    status.sequence = entry.info.sequence;
  }
  return status;
}

}  // namespace ringleader
