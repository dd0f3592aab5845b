#include "core/communicator.hpp"

#include <algorithm>
#include <new>

#include "base/fork.hpp"
#include "core/ring_pair.hpp"
#include "transport/tcp/tcp_link.hpp"
#include "transport/tcp/tcp_stream.hpp"
#include "transport/ucx/ucx_link.hpp"

namespace ringleader {

Communicator::Communicator(Rank rank, Rank size, double timeout_seconds, const CommOptions& options)
    : options_(options),
      spin_budget_(options.wait.spin_us),
      timeout_(timeout_seconds),
      generation_(fork_generation()),
      execution_(mesh_) {
  if (size < 1 || rank < 0 || rank >= size)
    throw Error(ErrorKind::invalid,
                "rank " + std::to_string(rank) + " of " + std::to_string(size) + ": expected 0 <= rank < size");
  if (options.bound) cores_ = CoreMask::of_this_thread();
  Arena::reclaim();
  mesh_.rank = rank;
  mesh_.size = size;
  mesh_.slot_bytes = options.slot_bytes;
  mesh_.small_slot_bytes = options.small_slot_bytes;
  options_.inline_bytes = std::min<std::uint64_t>(options.inline_bytes, Mailbox::kPayload);
  void* memory = Arena::instance().allocate_pages(SharedBlock::bytes(size));
  mesh_.own = static_cast<SharedBlock*>(memory);  // arena memory is zero: the block's valid initial state
  mesh_.own_rings.resize(static_cast<std::size_t>(size));
  mesh_.peers.resize(static_cast<std::size_t>(size));
  mesh_.lateness = std::make_unique<Lateness[]>(static_cast<std::size_t>(size));
}

Communicator::~Communicator() {
  close(0.1);
  if (!buried_ && generation_ == fork_generation()) bury();
}

std::uint64_t Communicator::control_offset() const {
  offset_told_.store(true, std::memory_order_relaxed);
  return Arena::instance().offset_of(mesh_.own);
}

void Communicator::connect(ConnectRequest request) {
  const auto n = static_cast<std::size_t>(mesh_.size);
  if (state() != State::fresh) throw Error(ErrorKind::invalid, "connect: the communicator is connected already");
  for (const std::size_t given : {request.nodes.size(), request.processes.size(), request.control_offsets.size(),
                                  request.sockets.size(), request.names.size()})
    if (given != n)
      throw Error(ErrorKind::invalid,
                  "connect: expected " + std::to_string(n) + " entries, one per rank, got " + std::to_string(given));
  std::vector<std::unique_ptr<ByteStream>> streams(n);
  control_.resize(n);
  goodbye_.assign(n, 0);
  gone_.assign(n, 0);
  presence_.resize(n);
  asked_.assign(n, 0);
  answers_.resize(n);
  for (Rank r = 0; r < mesh_.size; ++r) connect_peer(r, request, streams);
  p2p_ = std::make_unique<PointToPoint>(mesh_.rank, std::move(streams), request.names);
  mesh_.own->control.state.store(static_cast<std::uint32_t>(BlockState::live), std::memory_order_release);
  connected_ = true;
  state_.store(State::live, std::memory_order_release);
}

void Communicator::connect_peer(Rank rank, const ConnectRequest& request,
                                std::vector<std::unique_ptr<ByteStream>>& streams) {
  const auto r = static_cast<std::size_t>(rank);
  Mesh::Peer& peer = mesh_.peers[r];
  peer.name = request.names[r];
  if (rank == mesh_.rank) {
    peer.process = PeerProcess::self();
    peer.shared = mesh_.own;
    return;
  }
  if (request.nodes[r] == request.nodes[static_cast<std::size_t>(mesh_.rank)]) {
    peer.process = request.processes[r];
    if (!peer.process)
      throw Error(ErrorKind::invalid, "connect: " + peer.name + " is on this node but has no process", {rank});
    if (peer.process == PeerProcess::self()) peer.process = PeerProcess::mirror();  // a thread's
    if (!peer.process->contains(request.control_offsets[r], SharedBlock::bytes(mesh_.size)) ||
        request.control_offsets[r] % 64)
      throw Error(ErrorKind::invalid, "connect: the control block of " + peer.name + " lies outside its arena", {rank});
    peer.shared = reinterpret_cast<SharedBlock*>(peer.process->base() + request.control_offsets[r]);
    departures_->expect(peer.process, mesh_.own->left(mesh_.size) + rank);
    mesh_.local.push_back(rank);
    mesh_.local_blocks.push_back(&peer.shared->control);
    streams[r] = std::make_unique<RingPair>(mesh_, rank, options_.ring_bytes);
    return;
  }
  const std::vector<int>& sockets = request.sockets[r];
  const std::size_t needed = request.ucx ? 2 : 3;
  if (sockets.size() < needed)
    throw Error(ErrorKind::invalid,
                "connect: " + peer.name + " needs at least " + std::to_string(needed) + " connections, got " +
                    std::to_string(sockets.size()),
                {rank});
  options_.wait.turns_per_clock = 1;  // a turn then asks the sockets
  control_[r] = std::make_unique<ControlConnection>(sockets[0], rank, peer.name);
  streams[r] = std::make_unique<TcpStream>(sockets[1], rank, peer.name);
  connect_data(rank, request);
}

void Communicator::connect_data(Rank rank, const ConnectRequest& request) {
  const auto r = static_cast<std::size_t>(rank);
  Mesh::Peer& peer = mesh_.peers[r];
  const std::vector<int>& sockets = request.sockets[r];
  for (std::size_t i = 2; i < sockets.size(); ++i)
    peer.links.push_back(std::make_unique<TcpLink>(sockets[i], rank, peer.name));
  for (auto& link : peer.links) link->meter = &mesh_.meter;
  if (!request.ucx) return;
  if (request.ucx_addresses.size() != request.names.size() || request.ucx_channels < 1 || request.ucx_channels > 255)
    throw Error(ErrorKind::invalid, "connect: UCX needs an address per rank and 1 to 255 channels, got " +
                                        std::to_string(request.ucx_addresses.size()) + " and " +
                                        std::to_string(request.ucx_channels));
  for (std::size_t i = 0; i < request.ucx_channels; ++i)
    peer.links.push_back(std::make_unique<UcxLink>(request.ucx, request.ucx_addresses[r], mesh_.rank, rank,
                                                   static_cast<std::uint8_t>(i), peer.name));
}

std::shared_ptr<const Plan> Communicator::make_plan(PlanRequest request) {
  require_usable();
  const Lowered& lowered = *request.lowered;
  if (lowered.n != mesh_.size)
    throw Error(ErrorKind::invalid, "the schedule is for " + std::to_string(lowered.n) +
                                        " ranks, the communicator has " + std::to_string(mesh_.size));
  std::size_t connections = 1;
  for (Rank r = 0; r < mesh_.size; ++r) {
    const Mesh::Peer& peer = mesh_.peers[static_cast<std::size_t>(r)];
    const bool same_node = lowered.node[static_cast<std::size_t>(r)] ==
                           lowered.node[static_cast<std::size_t>(mesh_.rank)];
    if (same_node != (peer.shared != nullptr))
      throw Error(ErrorKind::invalid, "the schedule was lowered for another node layout: " + peer.name + " is on " +
                                          (same_node ? "another" : "this") + " node");
    if (!peer.links.empty()) connections = peer.links.size();
  }
  request.rank = mesh_.rank;
  request.slot_bytes = options_.slot_bytes;
  request.small_slot_bytes = options_.small_slot_bytes;
  request.inline_bytes = options_.inline_bytes;
  request.connections = connections;
  return std::make_shared<const Plan>(request);
}

void Communicator::refuse() {
  if (generation_ != fork_generation())
    throw Error(ErrorKind::forked,
                "this communicator belongs to the parent process; a forked child cannot use it. "
                "Create communicators after forking, or start workers with the spawn method");
  switch (state()) {
    case State::live:
      if (!aborted(mesh_.own->control)) return;
      try {
        throw_aborted();  // by a peer, since the last operation
      } catch (const Error& error) {
        fail(error);
        throw;
      }
    case State::fresh: throw Error(ErrorKind::invalid, "the communicator is not connected yet");
    case State::closed: throw Error(ErrorKind::closed, "the communicator is closed");
    case State::aborted: throw_aborted();
  }
}

std::string Communicator::abort_reason() const {
  if (forked()) return "";
  std::lock_guard lock(failure_mutex_);
  return first_ ? first_->what() : "";
}

std::vector<Rank> Communicator::lost_ranks() {
  if (forked()) return {};
  hear_control();
  std::vector<Rank> lost;
  for (const Rank r : mesh_.local)
    if (!mesh_.peers[static_cast<std::size_t>(r)].process->alive()) lost.push_back(r);
  {
    std::lock_guard lock(control_mutex_);
    for (std::size_t r = 0; r < gone_.size(); ++r)
      if (gone_[r]) lost.push_back(static_cast<Rank>(r));
  }
  std::lock_guard lock(failure_mutex_);
  if (first_ && first_->kind == ErrorKind::peer_lost)
    for (const Rank r : first_->ranks)
      if (std::find(lost.begin(), lost.end(), r) == lost.end()) lost.push_back(r);
  std::sort(lost.begin(), lost.end());
  return lost;
}

void Communicator::close_links() {
  for (Mesh::Peer& peer : mesh_.peers)
    for (auto& link : peer.links) link->close();
}

// Leaving: what is in flight gets the time to complete, because peers need this rank's part in it and may be behind.
// Then they learn of it, what is still in flight here fails, and the memory that peers may still touch is released: it
// is given out again once all of them have left too.
void Communicator::close(double timeout_seconds) {
  if (forked()) return;  // a copy in a forked child: the parent's resources are not ours to touch
  const auto until = Clock::now() +
                     std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(timeout_seconds));
  if (state() == State::live && !closing_.load()) {
    // Small sends were reported complete when they were copied; they must not be lost now.
    while (!p2p_->flushed() && !aborted(mesh_.own->control) && Clock::now() < until)
      if (!p2p_->progress()) std::this_thread::yield();
    const auto last = until - std::chrono::duration_cast<Clock::duration>(
                                  std::chrono::duration<double>(timeout_seconds / 20));  // for the rest
    std::unique_lock lock(mutex_);
    while ((busy() || !queue_.empty()) && state() == State::live && !ended() && Clock::now() < last)
      wake_->wait_for(lock, std::chrono::milliseconds(1));
  }
  if (closing_.exchange(true)) return;
  const bool connected = state() != State::fresh;
  mesh_.own->control.state.store(static_cast<std::uint32_t>(BlockState::closed), std::memory_order_release);
  if (connected) ring(mesh_.local_blocks);
  ring(mesh_.own->control);
  const Error closed(ErrorKind::closed, "the communicator was closed while the operation was in flight");
  std::deque<Job> pending;
  bool quiet;
  {
    std::unique_lock lock(mutex_);
    stop_ = true;
    pending.swap(queue_);
    update_wanted();
    wake_->notify_all();
    quiet = wake_->wait_until(lock, until, [this] { return !busy(); });
  }
  for (Job& job : pending) job.work->fail(closed);
  if (thread_started_) thread_->join();
  if (p2p_) p2p_->fail_all(closed);
  quiet &= helped(until);
  state_.store(State::closed, std::memory_order_release);
  {
    std::lock_guard lock(control_mutex_);
    for (auto& connection : control_)
      if (connection) connection->send_goodbye();
    control_.clear();
  }
  slice_use_.reset();
  recorder().closed();
  // Who still drives an operation works in this memory: it is given back with the communicator then.
  if (quiet) bury();
}

// Whether no caller moves messages any more, now that all of them have failed: it sleeps in this rank's block and rings
// those of peers.
bool Communicator::helped(Clock::time_point until) {
  std::unique_lock lock(mutex_);
  if (helpers_ != 0) ring(mesh_.own->control);
  return wake_->wait_until(lock, std::max(until, Clock::now() + std::chrono::milliseconds(100)),
                           [this] { return helpers_ == 0; });
}

// Tells peers how far this rank has left. Invariant: it is so for good, and after `everything` none of their memory is
// touched.
void Communicator::tell_left(Left what) {
  std::lock_guard lock(reach_mutex_);
  if (told_.load(std::memory_order_relaxed) >= what) return;
  told_.store(what, std::memory_order_relaxed);
  for (const Rank r : mesh_.local)
    mesh_.peers[static_cast<std::size_t>(r)].shared->left(mesh_.size)[mesh_.rank].store(
        static_cast<std::uint32_t>(what), std::memory_order_release);
}

// Under nobody's hands any more.
void Communicator::bury() {
  buried_ = true;
  close_links();
  if (p2p_) p2p_->close();
  tell_left(Left::everything);
  std::shared_ptr<Claim> claim;
  if (connected_)
    claim = std::make_shared<PeersClaim>(departures_, Left::everything);
  else if (offset_told_.load(std::memory_order_relaxed))  // to whom, only they know
    claim = std::make_shared<LastingClaim>();
  for (std::byte* slots : mesh_.own_slots) Arena::release(slots, claim);
  for (void* ring : mesh_.own_rings) Arena::release(ring, claim);
  Arena::release(mesh_.own, claim);
  Arena::reclaim();
}

}  // namespace ringleader
