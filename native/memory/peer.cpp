#include "memory/peer.hpp"

#include "memory/space.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434  // Linux 5.3
#endif

namespace ringleader {

namespace {

struct Registry {
  std::mutex mutex;
  std::map<Identity, std::weak_ptr<PeerProcess>> processes;
  std::weak_ptr<PeerProcess> mirror;
  std::uint64_t generation = fork_generation();
};

// A forked child starts with an empty registry of its own: the parent's may have been locked when it forked, and the
// parent's connections are not the child's.
Registry& registry() {
  static std::atomic<Registry*> registries{new Registry};
  Registry* known = registries.load(std::memory_order_acquire);
  if (known->generation == fork_generation()) return *known;
  auto* fresh = new Registry;
  if (registries.compare_exchange_strong(known, fresh, std::memory_order_acq_rel)) return *fresh;
  delete fresh;
  return *known;
}

// Closes a descriptor at the end of scope unless taken.
class Fd {
 public:
  explicit Fd(int fd) : fd_(fd) {}
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  ~Fd() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }
  int take() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

[[noreturn]] void refuse(int pid, const std::string& what) {
  throw Error(ErrorKind::invalid,
              "the shared memory offered by process " + std::to_string(pid) + " is refused: " + what);
}

// What a peer sends is checked before it is mapped: a file that could shrink would be a bus error later.
void check_arena_file(int fd, std::size_t size, int pid) {
  struct stat status{};
  if (::fstat(fd, &status) != 0) refuse(pid, std::string("fstat: ") + std::strerror(errno));
  if (!S_ISREG(status.st_mode)) refuse(pid, "the descriptor is not a memory file");
  if (size == 0 || static_cast<std::size_t>(status.st_size) != size) {
    refuse(pid, "it is " + std::to_string(status.st_size) + " bytes, announced were " + std::to_string(size));
  }
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) refuse(pid, "it is not sealed against shrinking");
}

}  // namespace

std::shared_ptr<PeerProcess> PeerProcess::attach(const Identity& identity, int arena_fd, std::size_t arena_size,
                                                 int live_fd, int pid) {
  Fd arena(arena_fd), live(live_fd);
  if (auto known = find(identity)) return known;
  check_arena_file(arena.get(), arena_size, pid);

  std::shared_ptr<PeerProcess> peer(new PeerProcess);
  peer->identity_ = identity;
  peer->pid_ = pid;
  peer->generation_ = fork_generation();
  peer->map(arena.get(), arena_size);
  peer->live_fd_ = live.take();
  close_in_child(peer->live_fd_);
  peer->watch_pid();

  Registry& known = registry();
  std::shared_ptr<PeerProcess> first;  // dropped outside the lock
  const std::lock_guard lock(known.mutex);
  auto& slot = known.processes[identity];
  first = slot.lock();
  if (first != nullptr && !first->dead_.load(std::memory_order_relaxed)) return first;  // another thread was faster
  slot = peer;
  return peer;
}

void PeerProcess::map(int arena_fd, std::size_t bytes) {
  void* base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, arena_fd, 0);
  if (base == MAP_FAILED) {
    const std::string why = std::strerror(errno);
    throw Error(ErrorKind::memory, "cannot map " + std::to_string(bytes) + " bytes of shared memory of process " +
                                       std::to_string(pid_) + ": " + why + "; this process may map " +
                                       std::to_string(address_room()) +
                                       " bytes more: raise RLIMIT_AS (ulimit -v), or start fewer ranks on this host");
  }
  base_ = static_cast<std::byte*>(base);
  size_ = bytes;
  mapped_ = true;
  (void)::madvise(base, bytes, MADV_HUGEPAGE);
  (void)::madvise(base, bytes, MADV_DONTDUMP);
}

std::shared_ptr<PeerProcess> PeerProcess::find(const Identity& identity) {
  const Arena* own = Arena::current();
  if (own != nullptr && own->identity() == identity) return self();
  std::shared_ptr<PeerProcess> found;
  Registry& known = registry();
  {
    const std::lock_guard lock(known.mutex);
    const auto at = known.processes.find(identity);
    if (at != known.processes.end()) found = at->second.lock();
  }
  return found != nullptr && found->alive() ? found : nullptr;
}

std::shared_ptr<PeerProcess> PeerProcess::of_this_process() {
  const Arena& own = Arena::instance();
  std::shared_ptr<PeerProcess> process(new PeerProcess);
  process->base_ = own.base();
  process->size_ = own.size();
  process->identity_ = own.identity();
  process->pid_ = static_cast<int>(::getpid());
  process->self_ = true;
  process->generation_ = fork_generation();
  return process;
}

std::shared_ptr<PeerProcess> PeerProcess::self() {
  const Identity& own = Arena::instance().identity();
  Registry& known = registry();
  const std::lock_guard lock(known.mutex);
  auto& slot = known.processes[own];
  auto found = slot.lock();
  if (found == nullptr) slot = found = of_this_process();
  return found;
}

std::shared_ptr<PeerProcess> PeerProcess::mirror() {
#if defined(__SANITIZE_THREAD__)
  return self();  // the sanitizer knows memory by its address: ranks must meet at one
#else
  Registry& known = registry();
  const std::lock_guard lock(known.mutex);
  auto found = known.mirror.lock();
  if (found == nullptr) {
    found = of_this_process();
    found->map(Arena::instance().fd(), Arena::instance().size());
    known.mirror = found;
  }
  return found;
#endif
}

// The socket's closing is hidden while a forked child of the peer still holds a copy of it; the process itself cannot
// hide. The number is used only if the socket's credentials name the same process, which rules out another pid
// namespace and a number that was given again.
void PeerProcess::watch_pid() {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (pid_ <= 0 || ::getsockopt(live_fd_, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) return;
  if (credentials.pid != pid_ || pid_ == ::getpid()) return;
  pid_fd_ = static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0));
  close_in_child(pid_fd_);
}

bool PeerProcess::alive() {
  if (generation_ != fork_generation()) return false;  // the child has none of its parent's connections
  if (self_) return true;
  if (dead_.load(std::memory_order_relaxed)) return false;
  pollfd watched[2] = {{live_fd_, POLLRDHUP, 0}, {pid_fd_, POLLIN, 0}};  // negative ones are skipped
  if (::poll(watched, 2, 0) > 0) dead_.store(true, std::memory_order_relaxed);
  return !dead_.load(std::memory_order_relaxed);
}

PeerProcess::~PeerProcess() {
  if (mapped_) ::munmap(base_, size_);
  if (self_) return;
  close_owned(live_fd_, generation_);
  close_owned(pid_fd_, generation_);
  if (generation_ != fork_generation()) return;
  Registry& known = registry();
  const std::lock_guard lock(known.mutex);
  const auto at = known.processes.find(identity_);
  if (at != known.processes.end() && at->second.expired()) known.processes.erase(at);
}

}  // namespace ringleader
