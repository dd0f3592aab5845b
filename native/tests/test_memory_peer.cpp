// Peer processes: mapping, sharing of objects, liveness, refusal of what is not an arena.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>

#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "doctest/doctest.h"
#include "memory/peer.hpp"
#include "test_memory_support.hpp"

using namespace ringleader;
using namespace ringleader::testing;

namespace {

struct Hello {
  Identity identity;
  std::size_t size;
  std::uint64_t offset;  // of kWords numbers
};
constexpr std::uint64_t kWords = 5000;

// A child with an arena of its own that introduces itself on `socket` and stays until the socket closes.
pid_t start_peer(SocketPair& pair) {
  const pid_t pid = in_child([&] {
    ::alarm(60);
    pair.drop(0);
    Arena& arena = Arena::instance();
    auto* words = static_cast<std::uint64_t*>(arena.allocate(kWords * 8));
    for (std::uint64_t i = 0; i < kWords; ++i) words[i] = i * i + 1;
    if (!send_with_fd(pair.fd[1], Hello{arena.identity(), arena.size(), arena.offset_of(words)}, arena.fd()))
      return false;
    char byte = 0;
    if (::read(pair.fd[1], &byte, 1) == 1) {  // "look": the parent wrote
      for (std::uint64_t i = 0; i < kWords; ++i) {
        if (words[i] != i + 7) return false;
      }
      if (::write(pair.fd[1], &byte, 1) != 1) return false;
    }
    return ::read(pair.fd[1], &byte, 1) <= 0;
  });
  pair.drop(1);
  return pid;
}

std::size_t open_descriptors() {
  std::size_t count = 0;
  for (int fd = 0; fd < 1024; ++fd) count += ::fcntl(fd, F_GETFD) >= 0;
  return count;
}

}  // namespace

TEST_CASE("memory of a peer process is read and written both ways") {
  const std::size_t before = open_descriptors();
  {
    SocketPair pair;
    const pid_t pid = start_peer(pair);
    Hello hello{};
    const int fd = receive_with_fd(pair.fd[0], hello);
    REQUIRE(fd >= 0);
    const int live = ::dup(pair.fd[0]);
    auto peer = PeerProcess::attach(hello.identity, fd, hello.size, live, pid);
    CHECK(peer->alive());
    CHECK(peer->size() == hello.size);
    CHECK(peer->contains(hello.offset, kWords * 8));
    CHECK_FALSE(peer->contains(hello.offset + 64, hello.size));
    CHECK_FALSE(peer->contains(UINT64_MAX, 1));
    auto* words = reinterpret_cast<std::uint64_t*>(peer->base() + hello.offset);
    for (std::uint64_t i = 0; i < kWords; ++i) REQUIRE(words[i] == i * i + 1);
    for (std::uint64_t i = 0; i < kWords; ++i) words[i] = i + 7;
    char byte = 'x';
    REQUIRE(::write(pair.fd[0], &byte, 1) == 1);
    REQUIRE(::read(pair.fd[0], &byte, 1) == 1);
    CHECK(peer->alive());

    CHECK(PeerProcess::find(hello.identity) == peer);
    // A second connection of the same two processes: the object is shared, the further descriptors are closed.
    const int other_arena = ::memfd_create("other", MFD_CLOEXEC), other_live = ::dup(pair.fd[0]);
    CHECK(PeerProcess::attach(hello.identity, other_arena, hello.size, other_live, pid) == peer);
    CHECK(::fcntl(other_arena, F_GETFD) < 0);
    CHECK(::fcntl(other_live, F_GETFD) < 0);
    CHECK(::fcntl(fd, F_GETFD) < 0);

    peer.reset();
    CHECK(PeerProcess::find(hello.identity) == nullptr);
    CHECK(::fcntl(live, F_GETFD) < 0);
    pair.drop(0);
    CHECK(exit_of(pid) == 0);
  }
  CHECK(open_descriptors() == before);
}

TEST_CASE("a killed peer is noticed, for ever, and its memory stays readable") {
  SocketPair pair;
  const pid_t pid = start_peer(pair);
  Hello hello{};
  const int fd = receive_with_fd(pair.fd[0], hello);
  auto peer = PeerProcess::attach(hello.identity, fd, hello.size, pair.take(0), pid);
  CHECK(peer->alive());
  REQUIRE(::kill(pid, SIGKILL) == 0);
  CHECK(eventually([&] { return !peer->alive(); }));
  CHECK(exit_of(pid) == 128 + SIGKILL);
  for (int i = 0; i < 100; ++i) CHECK_FALSE(peer->alive());
  CHECK(PeerProcess::find(hello.identity) == nullptr);
  const auto* words = reinterpret_cast<const std::uint64_t*>(peer->base() + hello.offset);
  CHECK(words[10] == 101);
}

TEST_CASE("a peer that closes its end is gone, unread bytes or not, and may come again") {
  SocketPair first;
  const Identity identity{1, 2, 3, 99};
  const int file = ::memfd_create("arena", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  REQUIRE(::ftruncate(file, 1 << 20) == 0);
  REQUIRE(::fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
  auto peer = PeerProcess::attach(identity, ::dup(file), 1 << 20, first.take(0), 0);
  REQUIRE(::write(first.fd[1], "unread", 6) == 6);
  CHECK(peer->alive());
  first.drop(1);
  CHECK_FALSE(peer->alive());
  SocketPair second;
  auto again = PeerProcess::attach(identity, ::dup(file), 1 << 20, second.take(0), 0);
  CHECK(again != peer);
  CHECK(again->alive());
  peer.reset();  // the old one going does not unregister the new one
  CHECK(PeerProcess::find(identity) == again);
  ::close(file);
}

TEST_CASE("this process is its own peer") {
  auto self = PeerProcess::self();
  Arena& arena = Arena::instance();
  CHECK(self->base() == arena.base());
  CHECK(self->identity() == arena.identity());
  CHECK(self->alive());
  CHECK(self->live_fd() == -1);
  CHECK(PeerProcess::find(arena.identity()) == self);
  CHECK(PeerProcess::find(Identity{42}) == nullptr);
  SocketPair pair;
  CHECK(PeerProcess::attach(arena.identity(), ::dup(arena.fd()), arena.size(), pair.take(0), ::getpid()) == self);
  auto* mine = static_cast<char*>(arena.allocate(1));
  self.reset();
  *mine = 3;  // still mapped
  CHECK(*mine == 3);
  Arena::release(mine);
}

TEST_CASE("what is not an arena is refused and nothing leaks") {
  const std::size_t before = open_descriptors();
  const auto refused = [](int fd, std::size_t size) {
    SocketPair pair;
    try {
      (void)PeerProcess::attach(Identity{7, 7}, fd, size, pair.take(0), 1);
    } catch (const Error& error) {
      CHECK(std::string(error.what()).find("process 1") != std::string::npos);
      return error.kind == ErrorKind::invalid;
    }
    return false;
  };
  const auto memory = [](std::size_t bytes, int seals) {
    const int fd = ::memfd_create("arena", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    REQUIRE(::ftruncate(fd, static_cast<off_t>(bytes)) == 0);
    REQUIRE(::fcntl(fd, F_ADD_SEALS, seals) == 0);
    return fd;
  };
  CHECK(refused(memory(8192, F_SEAL_SHRINK), 1 << 20));  // smaller than announced: a bus error later
  CHECK(refused(memory(1 << 20, 0), 1 << 20));           // could shrink later
  CHECK(refused(memory(0, F_SEAL_SHRINK), 0));
  CHECK(refused(::open("/dev/zero", O_RDWR | O_CLOEXEC), 1 << 20));
  CHECK(refused(-1, 1 << 20));
  CHECK(open_descriptors() == before);
}

TEST_CASE("a forked worker that outlives a killed peer does not hide its death") {
  SocketPair pair;
  SocketPair report;
  const pid_t pid = in_child([&] {
    pair.drop(0);
    ::alarm(60);
    // The peer's own end, listed as its PeerProcess would list it.
    close_in_child(pair.fd[1]);
    const pid_t worker = ::fork();
    if (worker == 0) {
      ::sleep(30);
      ::_exit(0);
    }
    if (::write(report.fd[1], &worker, sizeof worker) != sizeof worker) return false;
    ::pause();
    return true;
  });
  pair.drop(1);
  pid_t worker = 0;
  REQUIRE(::read(report.fd[0], &worker, sizeof worker) == sizeof worker);
  const int file = ::memfd_create("arena", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  REQUIRE(::ftruncate(file, 4096) == 0);
  REQUIRE(::fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
  auto peer = PeerProcess::attach(Identity{5}, file, 4096, pair.take(0), 0);
  CHECK(peer->alive());
  REQUIRE(::kill(pid, SIGKILL) == 0);
  CHECK(eventually([&] { return !peer->alive(); }));
  CHECK(::kill(worker, SIGKILL) == 0);  // it was still there
  CHECK(exit_of(pid) == 128 + SIGKILL);
}

TEST_CASE("a forked child does not disturb its parent's peers") {
  SocketPair pair;
  const pid_t pid = start_peer(pair);
  Hello hello{};
  const int fd = receive_with_fd(pair.fd[0], hello);
  auto peer = PeerProcess::attach(hello.identity, fd, hello.size, pair.take(0), pid);
  CHECK(exit_of(in_child([&] {
          if (peer->alive() || PeerProcess::find(hello.identity) != nullptr) return false;
          const int reused = ::open("/dev/null", O_RDONLY);  // takes a number that the parent's connection had
          peer.reset();
          return ::fcntl(reused, F_GETFD) >= 0 && PeerProcess::self()->alive();
        })) == 0);
  CHECK(peer->alive());
  const auto* words = reinterpret_cast<const std::uint64_t*>(peer->base() + hello.offset);
  CHECK(words[20] == 401);
  peer.reset();
  CHECK(exit_of(pid) == 0);
}

TEST_CASE("threads attach and drop the same peer at once") {
  SocketPair pair;
  const int file = ::memfd_create("arena", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  REQUIRE(::ftruncate(file, 1 << 20) == 0);
  REQUIRE(::fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
  std::vector<std::thread> threads;
  std::atomic<int> dead{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        auto peer = PeerProcess::attach(Identity{8}, ::dup(file), 1 << 20, ::dup(pair.fd[0]), 0);
        dead += !peer->alive();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(dead == 0);
  CHECK(PeerProcess::find(Identity{8}) == nullptr);
  ::close(file);
}
