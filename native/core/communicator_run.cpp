// How operations get their turn and are driven: on the caller's thread, or on the progress thread.
#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "core/communicator.hpp"

namespace ringleader {

using std::chrono::milliseconds;

namespace {

constexpr auto kHealthInterval = milliseconds(5);  // between looks at peers while waiting
constexpr auto kLongestSleep = milliseconds(50);
constexpr auto kWorthSpinning = std::chrono::microseconds(4);  // a learned budget below this: peers share our core
// A wait that long may be for ever: ranks that only wait for each other in different operations learn it from what they
// tell, and a timeout can name the late rank. To tell a peer costs a few microseconds, so that with many peers it is
// told later.
constexpr auto kWorthTelling = milliseconds(20);
constexpr auto kWorthTellingPerPeer = std::chrono::microseconds(100);
// Before the limit passes, everybody is asked for whom they wait: a rank that waits looks around at least every 50 ms,
// if it gets to run.
constexpr auto kInquiry = milliseconds(300);
// Messages on their way from a rank that has given up an operation, because others have left, have so long to arrive.
constexpr auto kSpared = milliseconds(1000);
constexpr std::uint32_t kMovesPerClock = 64;  // progress steps between looks at the clock
constexpr int kQuickRounds = 200;             // attempts of Call::spin: a few microseconds

}  // namespace

Clock::time_point Communicator::deadline_in(double timeout, Clock::time_point from) const {
  const double seconds = timeout > 0 ? timeout : this->timeout();
  if (seconds > 1e9) return Clock::time_point::max();
  return from + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

void Communicator::release_contended() {
  {
    std::lock_guard lock(mutex_);
    turn_.fetch_and(~kBusy, std::memory_order_release);
  }
  wake_->notify_all();
}

void Communicator::update_wanted() {
  if (stop_ || !queue_.empty())
    turn_.fetch_or(kWanted, std::memory_order_relaxed);
  else
    turn_.fetch_and(~kWanted, std::memory_order_relaxed);
}

// Under kBusy, with more ranks than cores, when nothing moved: whether to try again before yielding. `looked` belongs
// to the wait.
bool Communicator::worth_another_look(std::uint32_t& looked) {
  const auto core = static_cast<std::uint32_t>(::sched_getcpu()) + 1;
  std::atomic<std::uint32_t>& shown = mesh_.own->control.core;
  if (shown.load(std::memory_order_relaxed) != core) shown.store(core, std::memory_order_relaxed);
  if (patience_.more(looked) && execution_.waits_elsewhere(core)) {
    ++looked;
    cpu_relax();
    return true;
  }
  patience_.learn(looked, false);
  looked = 0;
  return false;
}

// Under kBusy. True when the operation is complete, false after `until`. Throws its error.
bool Communicator::drive(Driver& driver, Clock::time_point until, bool serve_p2p) {
  for (;;) {
    const Execution::Step step = execution_.progress();
    if (step == Execution::Step::done) {
      if (driver.idle_since != Clock::time_point{}) charge_late(driver, Clock::now());
      driver.waiter.progressed();
      patience_.learn(driver.looked, true);
      if (execution_.unanswered()) poll_control("");
      return true;
    }
    const bool stopped = ended() || closing_.load(std::memory_order_relaxed);
    if (step == Execution::Step::moved && !stopped) {
      driver.waiter.progressed();
      patience_.learn(driver.looked, true);
      driver.looked = 0;
      if (driver.idle_since != Clock::time_point{}) charge_late(driver, Clock::now());
      if (++driver.moves % kMovesPerClock != 0) continue;
      const auto now = Clock::now();
      check(driver, now);
      if (now >= until) return false;
      continue;
    }
    if (stopped) check(driver, Clock::now());
    if (serve_p2p) p2p_->progress();
    if (options_.wait.oversubscribed && !stopped && worth_another_look(driver.looked)) continue;
    const std::uint64_t sleeps = driver.waiter.sleeps();
    const auto ready = [&] { return execution_.can_move() || ended() || closing_.load(std::memory_order_relaxed); };
    const auto descriptors = [&] {
      driver.fds.clear();
      execution_.poll_descriptors(driver.fds);
      return std::span<pollfd>(driver.fds);
    };
    execution_.settle();
    // A peer that rings though nothing moves may be in another operation: the next look around is not far.
    driver.waiter.idle(ready, descriptors, driver.nudged ? Clock::duration(kHealthInterval) : kLongestSleep,
                       execution_.unhurried());
    const bool slept = driver.waiter.sleeps() != sleeps;
    Counters::add(mesh_.counters.sleeps, driver.waiter.sleeps() - sleeps);
    if (!driver.waiter.slow()) continue;
    note_late(driver);
    driver.nudged = slept && driver.idle_since - driver.waiter.now() < kHealthInterval / 2;
    check(driver, driver.waiter.now());
    if (driver.waiter.now() >= until) return false;
  }
}

// Charges the time since the last look, in which nothing moved, to the peers of this node that had not come by then.
void Communicator::charge_late(Driver& driver, Clock::time_point now) {
  const auto since = std::exchange(driver.idle_since, Clock::time_point{});
  if (since == Clock::time_point{}) return;
  const auto passed = static_cast<std::uint64_t>(
      std::chrono::nanoseconds(std::max(now - since, Clock::duration::zero())).count());
  for (const Rank r : mesh_.local) {
    Lateness& late = mesh_.lateness[static_cast<std::size_t>(r)];
    if (!std::exchange(late.missing, false)) continue;
    late.in_window += passed;
    Counters::add(late.ns, passed);
    if (late.in_window > late.longest_ns.load(std::memory_order_relaxed))
      late.longest_ns.store(late.in_window, std::memory_order_relaxed);
  }
}

// A wait has gone beyond spinning: from here on it is told whom it is for.
void Communicator::note_late(Driver& driver) {
  const auto now = Clock::now();  // the waiter's is from before it slept
  charge_late(driver, now);
  driver.idle_since = now;
  const std::uint64_t window = execution_.window_number();
  for (const Rank r : mesh_.local) {
    if (mesh_.reached(r, window, 1)) continue;
    Lateness& late = mesh_.lateness[static_cast<std::size_t>(r)];
    late.missing = true;
    if (std::exchange(late.window, window) == window) continue;
    late.in_window = 0;
    Counters::add(late.windows, 1);
  }
}

void Communicator::enqueue(Job job) {
  {
    std::lock_guard lock(mutex_);
    if (stop_) throw Error(ErrorKind::closed, "the communicator is closed");
    ensure_thread();
    queue_.push_back(std::move(job));
    update_wanted();
    ring(mesh_.own->control);  // the thread may sleep in a point-to-point turn
  }
  wake_->notify_all();
}

// Under mutex_.
void Communicator::ensure_thread() {
  if (thread_started_ || stop_) return;
  *thread_ = std::thread([this] { thread_main(); });
  thread_started_ = true;
}

std::shared_ptr<WorkState> Communicator::start(std::shared_ptr<const Plan> plan, void* in, void* out, double timeout,
                                               std::shared_ptr<WorkState> work, std::uint32_t site) {
  require_usable();
  if (!work) work = std::make_shared<WorkState>();
  enqueue(Job{std::move(plan), in, out, timeout, work, {}, ticks(), site});
  return work;
}

std::shared_ptr<WorkState> Communicator::join(std::vector<std::shared_ptr<WorkState>> parts,
                                              std::shared_ptr<WorkState> work) {
  require_usable();
  Job job;
  job.work = work;
  job.parts = std::move(parts);
  enqueue(std::move(job));
  return work;
}

bool Communicator::has_room(Clock::time_point until) {
  std::unique_lock lock(mutex_);
  return wake_->wait_until(lock, until, [this] { return queue_.size() < kMostQueued; });
}

std::shared_ptr<WorkState> Communicator::isend(const void* data, std::size_t bytes, Rank dst, std::int64_t tag,
                                               double timeout, std::shared_ptr<WorkState> work, std::uint32_t site) {
  require_usable();
  if (!work) work = std::make_shared<WorkState>();
  if (dst >= 0 && dst < size()) work->record(recorder(), recorder().message(true, dst, tag, bytes, site));
  return pushed_on(p2p_->isend(data, bytes, dst, tag, deadline_in(timeout, Clock::now()), std::move(work)));
}

std::shared_ptr<WorkState> Communicator::irecv(void* data, std::size_t bytes, Rank src, std::int64_t tag,
                                               double timeout, std::shared_ptr<WorkState> work, bool exact,
                                               std::uint32_t site) {
  require_usable();
  if (!work) work = std::make_shared<WorkState>();
  if (src >= -1 && src < size()) work->record(recorder(), recorder().message(false, src, tag, bytes, site));
  return pushed_on(p2p_->irecv(data, bytes, src, tag, deadline_in(timeout, Clock::now()), std::move(work), exact));
}

// Tries a new message at once; the progress thread is bothered only with what remains.
std::shared_ptr<WorkState> Communicator::pushed_on(std::shared_ptr<WorkState> work) {
  p2p_->progress();
  if (work->done()) return work;
  {
    std::lock_guard lock(mutex_);
    ensure_thread();
  }
  wake_->notify_all();
  return work;
}

// A caller that waits for a message moves messages itself meanwhile, in the progress thread's stead: no switch of
// threads between the arrival and the return.
bool Communicator::help(WorkState& work, Clock::time_point until) {
  bool helping;
  {
    std::lock_guard lock(mutex_);
    helping = !stop_;
    helpers_ += helping;
  }
  if (!helping) return work.wait_until(until);
  Driver driver(*this);
  while (!work.done()) {
    p2p_turn(driver);
    if (driver.waiter.slow() && driver.waiter.now() >= until) break;
    if (closing_.load(std::memory_order_relaxed)) work.wait_until(until);
  }
  {
    std::lock_guard lock(mutex_);
    --helpers_;
  }
  if (closing_.load(std::memory_order_relaxed) || !p2p_->idle()) wake_->notify_all();
  return work.done();
}

// The progress thread: queued operations in order; between and during them, point-to-point messages.
void Communicator::thread_main() {
  cores_.apply_to_this_thread();
  TimeSlice::ask(options_.wait.slice_us);
  Driver p2p_driver(*this);
  std::unique_lock lock(mutex_);
  for (;;) {
    if (!queue_.empty() && !busy() && !stop_) {
      Job job = std::move(queue_.front());
      queue_.pop_front();
      turn_.fetch_or(kBusy, std::memory_order_acquire);  // nobody else can: kWanted stands
      lock.unlock();
      run_job(job);
      job = {};
      lock.lock();
      turn_.fetch_and(~kBusy, std::memory_order_release);
      update_wanted();
      wake_->notify_all();
      continue;
    }
    if (stop_ && !busy()) return;
    if (!p2p_->idle() && !stop_ && helpers_ == 0) {
      lock.unlock();
      p2p_turn(p2p_driver);
      lock.lock();
      continue;
    }
    // Wakes for a new job, the end of a caller's operation, new point-to-point work, or the end.
    wake_->wait_for(lock, milliseconds(100));
  }
}

void Communicator::run_job(Job& job) {
  if (!job.plan) return run_join(job);
  Driver driver(*this, job.timeout);
  std::vector<std::shared_ptr<WorkState>> slices;
  try {
    require_usable();
    slices = start_slices(job);
    begin(*job.plan, job.in, job.out, job.queued, job.site);
  } catch (const Error& error) {
    // What could not begin can be tried again, unless parts of it were to run beside it: of those peers may run some by
    // now.
    const Error cause = job.plan->beside.empty() ? error : first_cause_of(error);
    give_up_slices(*job.plan, slices, cause);
    job.work->fail(cause);
    return;
  }
  try {
    while (!drive(driver, Clock::time_point::max(), true)) continue;
    execution_.finish(RecordState::done);
    join_slices(*job.plan, slices);
    job.work->complete();
  } catch (const Error& error) {
    const Error cause = first_cause_of(error);
    give_up_slices(*job.plan, slices, cause);
    job.work->fail(cause);
  }
}

// Its parts are messages, or what runs beside this communicator: they need no turn. While this one has it, what was
// called later waits. All ranks have begun their parts when they called this operation, so waiting for them here cannot
// close a circle that a legal program does not have.
void Communicator::run_join(Job& job) {
  Driver driver(*this);
  for (const auto& part : job.parts)
    while (!part->done()) {
      if (p2p_->idle())
        part->wait_until(Clock::now() + milliseconds(5));
      else
        p2p_turn(driver);
      if (!closing_.load(std::memory_order_relaxed) && !aborted(mesh_.own->control)) continue;
      try {
        check(driver, Clock::now());
      } catch (const Error& error) {
        const Error cause = first_cause_of(error);
        p2p_->fail_all(cause);  // messages are over now; nobody is to wait for anything else
        return job.work->fail(cause);
      }
    }
  for (const auto& part : job.parts)
    if (const auto error = part->error()) return job.work->fail(*error);
  job.work->complete();
}

void Communicator::p2p_turn(Driver& driver) {
  try {
    if (p2p_->progress()) {
      driver.waiter.progressed();
      return;
    }
    ControlBlock& own = mesh_.own->control;
    if (aborted(own)) throw_aborted();
    if (closing_.load(std::memory_order_relaxed)) return;
    if (own.later_from.load(std::memory_order_relaxed) != 0 && !busy()) {
      const auto now = Clock::now();
      if (driver.spared == Clock::time_point{}) driver.spared = now;
      if (now - driver.spared >= kSpared) throw_aborted();
    }
    bool moved = false;
    const auto ready = [&] {
      moved = p2p_->progress();
      return moved || aborted(own) || closing_.load(std::memory_order_relaxed) || waiting_jobs();
    };
    const auto descriptors = [&] {
      driver.fds.clear();
      p2p_->poll_descriptors(driver.fds);
      return std::span<pollfd>(driver.fds);
    };
    driver.waiter.idle(ready, descriptors, milliseconds(5));
    if (moved) driver.waiter.progressed();
    if (driver.waiter.slow() && driver.waiter.now() >= driver.next_health) {
      driver.next_health = driver.waiter.now() + kHealthInterval;
      check_peers(false);
    }
  } catch (const Error& error) {
    fail(error);
  }
}

bool Communicator::waiting_jobs() {
  std::lock_guard lock(mutex_);
  return !busy() && !queue_.empty();
}

// Looks at everything that could end a wait other than its completion. Throws.
void Communicator::check(Driver& driver, Clock::time_point now) {
  if (ended()) throw_aborted();
  if (closing_.load(std::memory_order_relaxed))
    throw Error(ErrorKind::closed, "the communicator was closed while the operation was in flight");
  if (driver.started == Clock::time_point{}) {  // the clock is read only once an operation takes long
    driver.started = now;
    driver.deadline = deadline_in(driver.timeout, now);
  }
  if (now >= driver.next_health) {
    driver.next_health = now + kHealthInterval;
    recorder().tick();
    check_peers(true);
    if (now - driver.started >= kWorthTelling + mesh_.size * kWorthTellingPerPeer) tell_presence();
  }
  if (now >= driver.deadline - std::min<Clock::duration>(kInquiry, (driver.deadline - driver.started) / 2)) {
    if (driver.verdict == Clock::time_point{}) inquire(driver, now);
    if (now >= driver.verdict) throw timeout_error(driver, now);
  }
}

// ---- synchronous calls

Call::Call(Communicator& communicator, const std::shared_ptr<const Plan>& plan, void* in, void* out, double timeout,
           std::uint32_t (*site)(Communicator&))
    : communicator_(communicator), timeout_(timeout) {
  communicator.require_usable();
  if (!plan->beside.empty() || !communicator.acquire()) {
    queued_ = communicator.start(plan, in, out, timeout, nullptr, site != nullptr ? site(communicator) : 0);
    return;
  }
  try {
    communicator.begin(*plan, in, out);
  } catch (...) {
    communicator.release();
    throw;
  }
  running_ = true;
  sequence_ = communicator.execution_.sequence();
}

Call::~Call() {
  if (queued_ && !queued_->done()) {
    communicator_.abort(ErrorKind::aborted, communicator_.rank(), interrupted());
    queued_->wait_until(Clock::time_point::max());  // the caller's memory is not touched any more: a matter of moments
  }
  if (!running_) return;
  communicator_.fail(Error(ErrorKind::aborted, interrupted(), {communicator_.rank()}));
  if (const auto failed = communicator_.give_up_operation(interrupted()))
    std::fprintf(stderr, "ringleader: %s\n", failed->what());
  communicator_.release();
}

std::string Call::interrupted() const {
  return "an operation was interrupted on " + communicator_.mesh_.name(communicator_.rank());
}

bool Call::spin() {
  if (!running_) return false;
  const bool oversubscribed = communicator_.options_.wait.oversubscribed;
  const int rounds = communicator_.spin_budget_.get() < kWorthSpinning ? 1 : kQuickRounds;
  Execution& execution = communicator_.execution_;
  std::uint32_t looked = 0;
  try {
    for (int i = 0; oversubscribed || i < rounds; ++i) {
      const Execution::Step step = execution.progress();
      if (step == Execution::Step::done) {
        communicator_.patience_.learn(looked, true);
        if (execution.unanswered()) communicator_.poll_control("");
        finish();
        return true;
      }
      if (oversubscribed) {
        if (step == Execution::Step::idle && !communicator_.worth_another_look(looked)) return false;
      } else if (step == Execution::Step::idle) {
        cpu_relax();
      }
    }
  } catch (const Error& error) {
    fail(error);
  }
  return false;
}

bool Call::advance(Clock::time_point until) {
  if (queued_) {
    if (!queued_->wait_until(until)) return false;
    queued_->rethrow();
    return true;
  }
  if (!driver_) driver_.emplace(communicator_, timeout_);
  try {
    if (!communicator_.drive(*driver_, until, false)) return false;
  } catch (const Error& error) {
    fail(error);
  }
  finish();
  return true;
}

void Call::finish() {
  running_ = false;
  communicator_.execution_.finish(RecordState::done);
  communicator_.release();
}

void Call::locate(std::uint32_t site) {
  if (sequence_ != 0) communicator_.recorder().locate(sequence_, site);
}

void Call::fail(const Error& error) {
  running_ = false;
  const Error cause = communicator_.first_cause_of(error);
  communicator_.release();
  throw cause;
}

}  // namespace ringleader
