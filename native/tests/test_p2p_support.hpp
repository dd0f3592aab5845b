// Ranks in one process that exchange messages over TCP, tiny TCP buffers or rings in shared memory.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/p2p.hpp"
#include "test_tcp_support.hpp"
#include "transport/shm/ring_stream.hpp"
#include "transport/tcp/tcp_stream.hpp"

namespace ringleader::test {

using std::chrono::milliseconds;
inline constexpr auto kNever = Clock::time_point::max();
using Bytes = std::vector<unsigned char>;
using WorkPtr = std::shared_ptr<WorkState>;

inline Bytes pattern(std::size_t bytes, unsigned seed) {
  Bytes data(bytes);
  for (std::size_t i = 0; i < bytes; ++i) data[i] = static_cast<unsigned char>((i * 2654435761U + seed * 97U) >> 5);
  return data;
}

enum class Kind { tcp, tiny_tcp, ring };

// n ranks in this process, each with a stream to every other.
struct World {
  World(Rank n, Kind kind, std::size_t limit = PointToPoint::kUnexpectedLimit, std::size_t capacity = 4096) {
    std::vector<std::vector<std::unique_ptr<ByteStream>>> streams(static_cast<std::size_t>(n));
    for (auto& list : streams) list.resize(static_cast<std::size_t>(n));
    for (Rank a = 0; a < n; ++a) {
      names.push_back("rank " + std::to_string(a));
      for (Rank b = 0; b < a; ++b) {
        auto& ab = streams[static_cast<std::size_t>(a)][static_cast<std::size_t>(b)];
        auto& ba = streams[static_cast<std::size_t>(b)][static_cast<std::size_t>(a)];
        if (kind == Kind::ring) {
          const auto alive = [] { return true; };
          ByteRing* one = ring(capacity);
          ByteRing* two = ring(capacity);
          ab = std::make_unique<RingStream>(one, two, capacity,
                                            RingStream::Peer{b, "rank " + std::to_string(b), alive, {}});
          ba = std::make_unique<RingStream>(two, one, capacity,
                                            RingStream::Peer{a, "rank " + std::to_string(a), alive, {}});
        } else {
          const auto fds = kind == Kind::tcp ? tcp_pair() : unix_pair();
          if (kind == Kind::tiny_tcp) {
            tiny_buffers(fds.first);
            tiny_buffers(fds.second);
          }
          ab = std::make_unique<TcpStream>(fds.first, b, "rank " + std::to_string(b));
          ba = std::make_unique<TcpStream>(fds.second, a, "rank " + std::to_string(a));
        }
      }
    }
    for (Rank r = 0; r < n; ++r) {
      ranks.push_back(std::make_unique<PointToPoint>(r, std::move(streams[static_cast<std::size_t>(r)]), names, limit));
    }
  }

  ByteRing* ring(std::size_t capacity) {
    memory.emplace_back(ByteRing::bytes_needed(capacity) + 64);
    auto address = reinterpret_cast<std::uintptr_t>(memory.back().data());
    return ByteRing::create(reinterpret_cast<void*>((address + 63) & ~std::uintptr_t{63}));
  }

  PointToPoint& operator[](std::size_t r) { return *ranks[r]; }
  void step() {
    for (auto& rank : ranks) rank->progress();
  }
  void finish(const std::vector<WorkPtr>& works) {
    drive([&] { step(); },
          [&] { return std::all_of(works.begin(), works.end(), [](const auto& w) { return w->done(); }); });
    for (const auto& work : works) CHECK_NOTHROW(work->rethrow());
  }
  void settle() {  // until nothing has moved for a while
    for (int quiet = 0; quiet < 20; ++quiet) {
      bool moved = false;
      for (auto& rank : ranks) moved |= rank->progress();
      if (moved) quiet = 0;
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }

  std::vector<Bytes> memory;
  std::vector<std::string> names;
  std::vector<std::unique_ptr<PointToPoint>> ranks;
};

inline Error error_of(const WorkPtr& work) {
  return work->error().value_or(Error(ErrorKind::internal, "it did not fail"));
}

inline bool contains(const Error& error, const std::string& text) {
  return std::string(error.what()).find(text) != std::string::npos;
}

}  // namespace ringleader::test
