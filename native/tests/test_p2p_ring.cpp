#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <random>
#include <thread>

#include "test_tcp_support.hpp"
#include "transport/shm/ring_stream.hpp"

namespace ringleader {
namespace {

// Two rings with guard bytes around them.
struct Rings {
  static constexpr std::size_t kGuard = 4096;
  explicit Rings(std::size_t capacity_, bool shared = false) : capacity(capacity_) {
    each = (ByteRing::bytes_needed(capacity) + 63) / 64 * 64;
    bytes = 2 * each + 3 * kGuard;
    memory = static_cast<unsigned char*>(
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | (shared ? MAP_SHARED : MAP_PRIVATE), -1, 0));
    std::fill(memory, memory + bytes, static_cast<unsigned char>(0xEE));
    one = ByteRing::create(memory + kGuard);
    two = ByteRing::create(memory + 2 * kGuard + each);
  }
  ~Rings() { munmap(memory, bytes); }
  Rings(const Rings&) = delete;
  Rings& operator=(const Rings&) = delete;

  bool guards_intact() const {
    const auto good = [&](std::size_t from, std::size_t to) {
      return std::all_of(memory + from, memory + to, [](unsigned char byte) { return byte == 0xEE; });
    };
    return good(0, kGuard) && good(kGuard + ByteRing::bytes_needed(capacity), 2 * kGuard + each) &&
           good(2 * kGuard + each + ByteRing::bytes_needed(capacity), bytes);
  }
  RingStream left(std::function<bool()> alive = [] { return true; }, std::function<void()> notify = {}) {
    return RingStream(one, two, capacity, {1, "rank 1", std::move(alive), std::move(notify)});
  }
  RingStream right(std::function<bool()> alive = [] { return true; }) {
    return RingStream(two, one, capacity, {0, "rank 0", std::move(alive), {}});
  }

  std::size_t capacity, each, bytes;
  unsigned char* memory;
  ByteRing *one, *two;
};

// The stream's byte p, the same for writer and reader.
unsigned char byte_at(std::uint64_t p) { return static_cast<unsigned char>(p * 2654435761U >> 9); }

// Writes `total` patterned bytes and checks as many incoming ones, in pieces of random size; number of wrong bytes.
std::uint64_t exchange(RingStream& stream, std::uint64_t total, unsigned seed, std::size_t largest) {
  std::mt19937 random(seed);
  std::vector<unsigned char> buffer(largest);
  std::uint64_t sent = 0, got = 0, wrong = 0;
  while (sent < total || got < total) {
    std::size_t n = std::min<std::uint64_t>(1 + random() % largest, total - sent);
    for (std::size_t i = 0; i < n; ++i) buffer[i] = byte_at(sent + i);
    const std::size_t written = stream.write(buffer.data(), n);
    sent += written;
    n = stream.read(buffer.data(), std::min<std::uint64_t>(1 + random() % largest, total - got));
    for (std::size_t i = 0; i < n; ++i) wrong += buffer[i] != byte_at(got + i);
    got += n;
    if (written == 0 && n == 0) std::this_thread::yield();
  }
  return wrong;
}

}  // namespace

TEST_CASE("ring stream: two threads exchange bytes across many wrap-arounds") {
  for (const std::size_t capacity : {1UL, 64UL, 4096UL}) {
    Rings rings(capacity);
    RingStream left = rings.left(), right = rings.right();
    std::uint64_t wrong = 0;
    std::thread other([&] { wrong = exchange(right, 40 * capacity + 1000, 1, 3 * capacity + 5); });
    CHECK(exchange(left, 40 * capacity + 1000, 2, capacity / 2 + 1) == 0);
    other.join();
    CHECK(wrong == 0);
    CHECK(rings.guards_intact());
  }
}

TEST_CASE("ring stream: two processes") {
  Rings rings(1024, true);
  const pid_t child = fork();
  if (child == 0) {
    RingStream right = rings.right();
    _exit(exchange(right, 300000, 1, 1500) == 0 ? 0 : 1);
  }
  RingStream left = rings.left();
  CHECK(exchange(left, 300000, 2, 1500) == 0);
  int status = -1;
  waitpid(child, &status, 0);
  CHECK(status == 0);
}

TEST_CASE("ring stream: full and empty, notification, and the peer's death") {
  Rings rings(64);
  bool alive = true;
  int notified = 0;
  RingStream left = rings.left([&] { return alive; }, [&] { ++notified; }), right = rings.right();
  unsigned char buffer[100] = {1, 2, 3};
  CHECK(left.write(buffer, 0) == 0);
  CHECK(left.write(buffer, 100) == 64);
  CHECK(notified == 1);
  CHECK(left.write(buffer, 1) == 0);
  CHECK(right.write(buffer, 10) == 10);
  alive = false;
  CHECK_THROWS_AS(left.write(buffer, 1), Error);
  CHECK(left.read(buffer, 100) == 10);  // what it wrote before still counts
  CHECK(notified == 2);
  try {
    left.read(buffer, 1);
    FAIL("a dead peer was not noticed");
  } catch (const Error& error) {
    CHECK(error.kind == ErrorKind::peer_lost);
    CHECK(error.ranks == std::vector<Rank>{1});
  }
}

TEST_CASE("ring stream: corrupted positions are an error and nothing outside is touched") {
  std::mt19937_64 random(3);
  for (int i = 0; i < 1000; ++i) {
    Rings rings(64);
    RingStream left = rings.left();
    unsigned char buffer[200] = {};
    for (int k = 0; k < 10; ++k) {
      rings.one->tail = random() >> (random() % 64);
      rings.one->head = random();
      rings.two->head = random() >> (random() % 64);
      rings.two->tail = random();
      try {
        const std::size_t written = left.write(buffer, random() % 100);
        const std::size_t got = left.read(buffer, random() % 100);
        CHECK(written <= 64);
        CHECK(got <= 64);
      } catch (const Error& error) {
        CHECK(error.kind == ErrorKind::peer_lost);
      }
    }
    CHECK(rings.guards_intact());
  }
  Rings rings(64);
  CHECK_THROWS_AS(RingStream(rings.one, rings.two, 63, {1, "rank 1", [] { return true; }, {}}), Error);
}

}  // namespace ringleader
