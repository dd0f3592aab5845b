// One rank's end of a group: runs operations in order, on the caller's thread or on its progress thread, and turns every
// failure into one error with one first cause on all ranks.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/execution.hpp"
#include "core/mesh.hpp"
#include "core/p2p.hpp"
#include "core/work.hpp"
#include "transport/shm/waiter.hpp"
#include "transport/tcp/control_connection.hpp"

namespace ringleader {

class UcxWorker;

struct CommOptions {
  std::uint64_t slot_bytes = 512 << 10;       // of one large staging slot
  std::uint64_t small_slot_bytes = 32 << 10;  // of one small one
  std::uint64_t ring_bytes = 128 << 10;       // of one point-to-point ring
  WaitPolicy wait;
};

struct ConnectRequest {
  std::vector<std::int32_t> nodes;                       // by rank
  std::vector<std::shared_ptr<PeerProcess>> processes;   // ranks of my node (mine: self), null for others
  std::vector<std::uint64_t> control_offsets;            // of their shared blocks
  std::vector<std::vector<int>> sockets;                 // ranks of other nodes: control, p2p, data...
  std::vector<std::string> names;
  std::shared_ptr<UcxWorker> ucx = nullptr;              // carries the data in the stead of data sockets
  std::vector<std::string> ucx_addresses = {};           // of the workers of ranks of other nodes
  std::size_t ucx_channels = 0;                          // links with each
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
  std::shared_ptr<WorkState> start(std::shared_ptr<const Plan> plan, void* in, void* out, double timeout);
  std::shared_ptr<WorkState> isend(const void* data, std::size_t bytes, Rank dst, std::int64_t tag, double timeout);
  std::shared_ptr<WorkState> irecv(void* data, std::size_t bytes, Rank src, std::int64_t tag, double timeout);

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
  void require_usable();  // throws Error(aborted | closed | forked | invalid)
  struct RankStatus {
    std::string name, last;
    bool alive = true;
    std::uint64_t sequence = 0;
  };
  RankStatus status_of(Rank rank);

 private:
  friend class Call;

  struct Job {
    std::shared_ptr<const Plan> plan;
    void *in, *out;
    double timeout;
    std::shared_ptr<WorkState> work;
  };

  // How far a thread that drives an operation got with its waiting.
  struct Driver {
    explicit Driver(Communicator& communicator)
        : waiter(communicator.options_.wait, &communicator.mesh_.own->control, &communicator.spin_budget_) {}
    Waiter waiter;
    double timeout = 0;
    Clock::time_point started{}, deadline{}, next_health{};
    std::uint32_t moves = 0;
    std::vector<pollfd> fds;
  };

  bool acquire();  // the right to run an operation now; false if another runs or waits
  void release();
  void begin(const std::shared_ptr<const Plan>& plan, void* in, void* out, double timeout, Driver& driver);
  bool drive(Driver& driver, Clock::time_point until, bool serve_p2p);
  void check(Driver& driver, Clock::time_point now);
  void check_peers(bool in_operation);
  void tell_presence();
  void compare_presence();
  bool entered(Rank rank) const;
  std::vector<Rank> culprits() const;
  Error timeout_error(const Driver& driver, Clock::time_point now) const;
  std::string last_operation(Rank rank) const;
  Error first_cause_of(const Error& error);
  bool said_goodbye(Rank rank);
  [[noreturn]] void throw_aborted() const;
  void fail(const Error& error);
  void spread(const Error& error);
  void poll_control(const std::string& where);
  void hear_control();  // the same outside of operations: what is heard is kept, not thrown
  std::shared_ptr<WorkState> pushed_on(std::shared_ptr<WorkState> work);
  void enqueue(Job job);
  bool waiting_jobs();
  void ensure_thread();
  void thread_main();
  void run_job(Job& job);
  void p2p_turn(Driver& driver);
  void connect_peer(Rank rank, const ConnectRequest& request, std::vector<std::unique_ptr<ByteStream>>& streams);
  void connect_data(Rank rank, const ConnectRequest& request);
  void close_links();
  void bury();
  Clock::time_point deadline_in(double timeout, Clock::time_point from) const;

  Mesh mesh_;
  CommOptions options_;
  SpinBudget spin_budget_;
  std::atomic<double> timeout_;
  std::uint64_t generation_;  // of forks
  std::atomic<State> state_{State::fresh};
  std::atomic<bool> closing_{false};

  std::vector<std::unique_ptr<ControlConnection>> control_;  // by rank; null for ranks of my node
  mutable std::mutex control_mutex_;                         // guards control_, goodbye_, gone_ and presence_
  std::vector<char> goodbye_;                                // network peers that said they leave
  std::vector<char> gone_;                                   // network peers whose control connection ended without goodbye
  std::vector<OpInfo> presence_;                             // the last operation each network peer said it waits in
  std::uint64_t presence_sent_ = 0;                          // sequence of the last one told to them; under busy_
  std::unique_ptr<PointToPoint> p2p_;

  mutable std::mutex failure_mutex_;
  std::optional<Error> first_;  // the first cause

  // One operation runs at a time: whoever holds busy_ uses execution_, the links and next_sequence_.
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Job> queue_;
  bool busy_ = false;
  bool stop_ = false;
  int helpers_ = 0;  // callers that move messages while they wait for one
  bool thread_started_ = false;
  std::thread thread_;
  Execution execution_;
  std::uint64_t next_sequence_ = 1;
};

// A synchronous operation: runs on the calling thread if nothing else runs or waits, else behind what does.
class Call {
 public:
  Call(std::shared_ptr<Communicator> communicator, std::shared_ptr<const Plan> plan, void* in, void* out, double timeout);
  // Aborts the communicator if the operation was left unfinished.
  ~Call();
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  bool spin(int rounds);                    // tries without waiting; true if complete
  bool advance(Clock::time_point until);    // true if complete; throws the operation's error

 private:
  std::shared_ptr<Communicator> communicator_;
  Communicator::Driver driver_;
  std::shared_ptr<WorkState> queued_;  // set if it went through the queue
  bool running_ = false;
};

}  // namespace ringleader
