// Another process of this host: its mapped arena, and the socket whose closing tells that it is gone.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "memory/arena.hpp"

namespace ringleader {

class PeerProcess {
 public:
  // Maps the arena of the process `identity` and keeps `live_fd`, one end of a connected Unix socket whose other end
  // that process holds (-1: none). Both descriptors are owned from here on, also when it throws; `arena_fd` is closed.
  // While anybody holds the object of a living process, the same identity gives the same object and further descriptors
  // are closed. `pid` (0 = unknown) is watched too if the socket proves it. Throws Error(invalid | memory).
  static std::shared_ptr<PeerProcess> attach(const Identity& identity, int arena_fd, std::size_t arena_size,
                                             int live_fd, int pid);
  // The attached, living process of that identity, or null. This process's own identity gives self().
  static std::shared_ptr<PeerProcess> find(const Identity& identity);
  // This process: its own arena, always alive.
  static std::shared_ptr<PeerProcess> self();
  // The same with a mapping of its own of this process's arena, as another process would have: for ranks that are
  // threads of one process, so that memory which is taken away from peers (Arena::seclude) is out of their reach too.
  // Throws Error(memory).
  static std::shared_ptr<PeerProcess> mirror();

  std::byte* base() const { return base_; }
  std::size_t size() const { return size_; }
  const Identity& identity() const { return identity_; }
  int live_fd() const { return live_fd_; }  // poll it for POLLRDHUP; -1 for this process itself
  int pid() const { return pid_; }
  bool contains(std::uint64_t offset, std::uint64_t bytes) const { return offset <= size_ && bytes <= size_ - offset; }

  // False once the process died or closed its end; then false for ever. Never blocks; one poll(2). Any thread.
  bool alive();

  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;
  ~PeerProcess();

 private:
  PeerProcess() = default;
  static std::shared_ptr<PeerProcess> of_this_process();
  void map(int arena_fd, std::size_t bytes);
  void watch_pid();

  std::byte* base_ = nullptr;
  std::size_t size_ = 0;
  Identity identity_{};
  int live_fd_ = -1;
  int pid_fd_ = -1;
  int pid_ = 0;
  bool self_ = false;    // of this process
  bool mapped_ = false;  // base_ is a mapping of its own
  std::uint64_t generation_ = 0;
  std::atomic<bool> dead_{false};
};

}  // namespace ringleader
