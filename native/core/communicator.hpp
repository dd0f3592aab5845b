// One rank's end of a group: runs operations in order, on the caller's thread or on its progress thread, and turns
// every failure into one error with one first cause on all ranks.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/fork.hpp"
#include "core/claims.hpp"
#include "core/execution.hpp"
#include "core/mesh.hpp"
#include "core/p2p.hpp"
#include "core/work.hpp"
#include "memory/cores.hpp"
#include "memory/time_slice.hpp"
#include "transport/shm/waiter.hpp"
#include "transport/tcp/control_connection.hpp"

namespace ringleader {

class UcxWorker;

struct CommOptions {
  std::uint64_t slot_bytes = 512 << 10;       // of one large staging slot
  std::uint64_t small_slot_bytes = 32 << 10;  // of one small one
  std::uint64_t inline_bytes = 8 << 10;       // most that a rank shows through its mailbox; 0 = none
  std::uint64_t ring_bytes = 128 << 10;       // of one point-to-point ring
  WaitPolicy wait;
  bool bound = false;  // the thread that makes the communicator is bound to cores; its own threads get the same
};

struct ConnectRequest {
  std::vector<std::int32_t> nodes;                      // by rank
  std::vector<std::shared_ptr<PeerProcess>> processes;  // ranks of my node (mine: self), null for others
  std::vector<std::uint64_t> control_offsets;           // of their shared blocks
  std::vector<std::vector<int>> sockets;                // ranks of other nodes: control, p2p, data...
  std::vector<std::string> names;
  std::shared_ptr<UcxWorker> ucx = nullptr;     // carries the data in the stead of data sockets
  std::vector<std::string> ucx_addresses = {};  // of the workers of ranks of other nodes
  std::size_t ucx_channels = 0;                 // links with each
};

class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  enum class State { fresh, live, aborted, closed };

  // Throws Error(invalid | memory).
  Communicator(Rank rank, Rank size, double timeout_seconds, const CommOptions& options);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  std::uint64_t control_offset() const;
  void connect(ConnectRequest request);

  // Fills in what the request must agree with (rank, slots, connections).
  std::shared_ptr<const Plan> make_plan(PlanRequest request);
  // Each returns `work`, by default a new one.
  // `site`: where it was called, a string of the recorder.
  std::shared_ptr<WorkState> start(std::shared_ptr<const Plan> plan, void* in, void* out, double timeout,
                                   std::shared_ptr<WorkState> work = nullptr, std::uint32_t site = 0);
  std::shared_ptr<WorkState> isend(const void* data, std::size_t bytes, Rank dst, std::int64_t tag, double timeout,
                                   std::shared_ptr<WorkState> work = nullptr, std::uint32_t site = 0);
  std::shared_ptr<WorkState> irecv(void* data, std::size_t bytes, Rank src, std::int64_t tag, double timeout,
                                   std::shared_ptr<WorkState> work = nullptr, bool exact = false,
                                   std::uint32_t site = 0);
  // Works of this communicator as one operation in the order of the others: those called later come after it. It is
  // over when all of them are, and fails with the first error among them.
  std::shared_ptr<WorkState> join(std::vector<std::shared_ptr<WorkState>> parts, std::shared_ptr<WorkState> work);
  // Whether fewer than kMostQueued operations wait for their turn; waits for it until then. What is not waited for by a
  // program is so bounded, and with it the memory that it keeps.
  bool has_room(Clock::time_point until);
  bool forked() const {
    return generation_ != fork_generation();
  }  // a forked child's copy of its parent's communicator

  // Waits for a message and moves messages meanwhile; true if `work` is done.
  bool help(WorkState& work, Clock::time_point until);

  void abort(ErrorKind kind, Rank cause, const std::string& reason);
  void close(double timeout_seconds);

  Rank rank() const { return mesh_.rank; }
  Rank size() const { return mesh_.size; }
  State state() const { return state_.load(std::memory_order_acquire); }
  std::string abort_reason() const;
  std::vector<Rank> lost_ranks();
  double timeout() const { return timeout_.load(std::memory_order_relaxed); }
  void set_timeout(double seconds) { timeout_.store(seconds, std::memory_order_relaxed); }
  Mesh& mesh() { return mesh_; }
  Recorder& recorder() { return execution_.recorder(); }
  void require_usable() {  // throws Error(aborted | closed | forked | invalid)
    if (generation_ != fork_generation() || state() != State::live || aborted(mesh_.own->control)) refuse();
  }
  struct RankStatus {
    std::string name, last;
    bool alive = true;
    std::uint64_t sequence = 0;
  };
  RankStatus status_of(Rank rank);

 private:
  friend class Call;

  void refuse();  // throws why require_usable() does, unless the cause is gone by now

  struct Job {
    std::shared_ptr<const Plan> plan;  // null: all that is to be done is to wait for `parts`
    void *in = nullptr, *out = nullptr;
    double timeout = 0;
    std::shared_ptr<WorkState> work;
    std::vector<std::shared_ptr<WorkState>> parts = {};
    std::uint64_t queued = 0;  // ticks
    std::uint32_t site = 0;
  };

  // How far a thread that drives an operation got with its waiting.
  struct Driver {
    explicit Driver(Communicator& communicator, double limit = 0)
        : waiter(communicator.options_.wait, &communicator.mesh_.own->control, &communicator.spin_budget_,
                 &communicator.yield_trust_),
          timeout(limit) {}
    Waiter waiter;
    double timeout;
    Clock::time_point started{}, deadline{}, next_health{};
    Clock::time_point idle_since{};  // the last look at who is late, in a wait that has gone beyond spinning
    std::uint32_t moves = 0;
    std::uint32_t looked = 0;    // in vain at peers on other cores, in this wait
    bool nudged = false;         // the last sleep was ended by a peer, and nothing moved for it
    Clock::time_point spared{};  // since when messages are waited for after an end that spares operations
    // Near the limit: until when the others have time to show that they wait, and how often the ranks of this node had
    // by then.
    Clock::time_point verdict{};
    std::vector<std::uint64_t> beats;
    std::vector<pollfd> fds;
  };

  // The right to run an operation now; false if another runs or waits.
  bool acquire() {
    std::uint32_t free = 0;
    return turn_.compare_exchange_strong(free, kBusy, std::memory_order_acquire, std::memory_order_relaxed);
  }
  void release() {
    std::uint32_t mine = kBusy;
    if (!turn_.compare_exchange_strong(mine, 0, std::memory_order_release, std::memory_order_relaxed))
      release_contended();
  }
  void release_contended();
  bool worth_another_look(std::uint32_t& looked);
  void update_wanted();  // under mutex_
  bool busy() const { return (turn_.load(std::memory_order_acquire) & kBusy) != 0; }
  void begin(const Plan& plan, void* in, void* out, std::uint64_t queued = 0, std::uint32_t site = 0) {
    if (told_ != Left::nothing) throw_aborted();
    execution_.begin(plan, in, out, next_sequence_, queued, site);
    ++next_sequence_;
  }
  bool drive(Driver& driver, Clock::time_point until, bool serve_p2p);
  void check(Driver& driver, Clock::time_point now);
  void note_late(Driver& driver);
  void charge_late(Driver& driver, Clock::time_point now);
  void check_peers(bool in_operation);
  void tell_presence();
  void compare_presence();
  bool entered(Rank rank) const;
  bool ended() const { return aborted(mesh_.own->control, execution_.sequence()); }
  void show_wait();
  void answer_inquiries();
  void inquire(Driver& driver, Clock::time_point now);
  std::optional<std::vector<Rank>> awaited_by(const Driver& driver, Rank rank) const;
  std::vector<Rank> culprits(const Driver& driver) const;
  Error timeout_error(const Driver& driver, Clock::time_point now) const;
  std::string last_operation(Rank rank) const;
  Error first_cause_of(const Error& error);
  std::optional<Error> give_up_operation(const std::string& cause);
  void tell_left(Left what);
  bool controlled(const Error& error);
  bool said_goodbye(Rank rank);
  [[noreturn]] void throw_aborted() const;
  std::uint64_t spares(const Error& error);
  void fail(const Error& error, std::uint64_t from = 0);
  void spread(const Error& error, std::uint64_t from);
  void poll_control(const std::string& where);
  void hear_control();  // the same outside of operations: what is heard is kept, not thrown
  std::shared_ptr<WorkState> pushed_on(std::shared_ptr<WorkState> work);
  void enqueue(Job job);
  bool waiting_jobs();
  void ensure_thread();
  void thread_main();
  void run_job(Job& job);
  void run_join(Job& job);
  std::vector<std::shared_ptr<WorkState>> start_slices(const Job& job);
  void join_slices(const Plan& plan, const std::vector<std::shared_ptr<WorkState>>& works);
  void give_up_slices(const Plan& plan, const std::vector<std::shared_ptr<WorkState>>& works, const Error& cause);
  void p2p_turn(Driver& driver);
  void connect_peer(Rank rank, const ConnectRequest& request, std::vector<std::unique_ptr<ByteStream>>& streams);
  void connect_data(Rank rank, const ConnectRequest& request);
  void close_links();
  bool helped(Clock::time_point until);
  void bury();
  Clock::time_point deadline_in(double timeout, Clock::time_point from) const;

  Mesh mesh_;
  CommOptions options_;
  CoreMask cores_;                                          // of its own threads; empty: as those that start them
  std::optional<TimeSlice::Use> slice_use_{std::in_place};  // until closed
  SpinBudget spin_budget_;
  YieldTrust yield_trust_;
  Patience patience_;  // under kBusy
  std::atomic<double> timeout_;
  std::uint64_t generation_;  // of forks
  std::atomic<State> state_{State::fresh};
  std::atomic<bool> closing_{false};
  bool buried_ = false;
  mutable std::atomic<bool> offset_told_{false};  // somebody may know where the shared block is
  bool connected_ = false;                        // and departures_ expects all who do

  // Peers' memory outside of operations (abort records, doorbells) is touched under it, and not once told_ is
  // `everything`.
  std::mutex reach_mutex_;
  std::atomic<Left> told_{Left::nothing};  // how far the peers know this rank to have left
  std::shared_ptr<Departures> departures_ = std::make_shared<Departures>();  // how far they have

  std::vector<std::unique_ptr<ControlConnection>> control_;  // by rank; null for ranks of my node
  mutable std::mutex control_mutex_;                         // guards it and what was heard over it
  std::vector<char> goodbye_;                                // network peers that said they leave
  std::vector<char> gone_;        // network peers whose control connection ended without goodbye
  std::vector<OpInfo> presence_;  // the last operation each network peer said it waits in
  std::vector<char> asked_;       // network peers that want to know whom this rank waits for
  std::vector<std::optional<std::vector<Rank>>>
      answers_;                      // whom network peers said they wait for, since this rank asked
  std::uint64_t presence_sent_ = 0;  // sequence of the last one told to them; under kBusy
  std::unique_ptr<PointToPoint> p2p_;

  mutable std::mutex failure_mutex_;
  std::optional<Error> first_;  // the first cause

  // One operation runs at a time: whoever holds kBusy uses execution_, the links and next_sequence_. kWanted stands
  // while an operation is queued or the end has come: then no caller may run past them, and whoever is done tells the
  // progress thread. Set and cleared under mutex_.
  static constexpr std::uint32_t kBusy = 1, kWanted = 2;
  static constexpr std::size_t kMostQueued = 1024;
  std::atomic<std::uint32_t> turn_{0};
  std::mutex mutex_;
  Parents<std::condition_variable> wake_;
  std::deque<Job> queue_;
  bool stop_ = false;
  int helpers_ = 0;  // under mutex_: callers that move messages while they wait for one
  bool thread_started_ = false;
  Parents<std::thread> thread_;
  Execution execution_;
  std::uint64_t next_sequence_ = 1;
};

// A synchronous operation: runs on the calling thread if nothing else runs or waits, else behind what does.
// Communicator and plan must outlive it.
class Call {
 public:
  // `site`: asked where it was called, if that is worth knowing.
  Call(Communicator& communicator, const std::shared_ptr<const Plan>& plan, void* in, void* out, double timeout,
       std::uint32_t (*site)(Communicator&) = nullptr);
  // Aborts the communicator if the operation was left unfinished.
  ~Call();
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  bool spin();  // tries for a few microseconds, without sleeping or yielding; true if complete
  bool advance(Clock::time_point until);  // true if complete; throws the operation's error
  void locate(std::uint32_t site);        // where it was called

 private:
  void finish();
  [[noreturn]] void fail(const Error& error);
  std::string interrupted() const;
  Communicator& communicator_;
  double timeout_;
  std::optional<Communicator::Driver> driver_;  // once it comes to waiting
  std::shared_ptr<WorkState> queued_;           // set if it went through the queue
  bool running_ = false;
  std::uint64_t sequence_ = 0;  // once it runs
};

}  // namespace ringleader
