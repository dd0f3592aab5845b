// What the engine knows of a network transport: per peer and channel one Link, an ordered pair of message streams.
// Sends complete in posting order and receives complete in posting order; the k-th message posted for sending on one
// side is the k-th posted for receiving on the other. Nothing above this file knows which transport it is.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/types.hpp"
#include "wire/wire.hpp"

namespace ringleader {

// Describes an operation completely; travels with the first message of each link and lies in the shared entry records.
// Plain data, fixed size: it is part of the wire format.
struct OpInfo {
  std::uint64_t sequence = 0;   // operation number on this communicator
  std::uint64_t count = 0;      // elements (per block for block collectives)
  std::uint64_t algorithm = 0;  // hash of the algorithm's full name with parameters
  double factor = 0;            // PREMUL_SUM
  std::int32_t root = -1;
  std::uint8_t collective = 255;
  std::uint8_t dtype = 255;
  std::uint8_t op = 255;
  std::uint8_t ndim = 0;                       // 255 = shape not given
  std::int64_t shape[6] = {0, 0, 0, 0, 0, 0};  // first six dimensions
  std::uint8_t wire = 0;                       // WireFormat of the messages
  std::uint8_t inlined = 0;                    // 1: payload beside the flag (Plan::inlined)
  std::uint8_t unused[2] = {0, 0};
  std::uint32_t history = 0;     // of this operation and all before it: equal only where ranks have run the same ones
  char algorithm_name[40] = {};  // and protocol, for messages: as much as there is room for, then zeros

  std::uint64_t fingerprint() const;  // hash of every field but history and name; never 0
  std::string title() const;          // "all_reduce #12"
  std::string text() const;  // "all_reduce #12: float32, shape (2, 3), 6 elements, op sum, algorithm ring/push"
  // Both sides, of which only what differs is told: "rank 0 called all_reduce #8 with shape (3,); rank 1 called ...".
  std::string beside(const OpInfo& other, const std::string& me, const std::string& them) const;

 private:
  std::vector<std::pair<std::string, std::string>> fields() const;  // names and values, in words
};

struct MessageHeader {
  std::uint32_t magic;   // kHeaderMagic
  std::uint32_t index;   // number of the message on this link within the window
  std::uint64_t window;  // window sequence number
  std::uint64_t bytes;   // payload bytes that follow, encoded if info.wire says so
  OpInfo info;
};
inline constexpr std::uint32_t kHeaderMagic = 0x524c4d34;  // "RLM4"

struct Piece {
  void* data;
  std::size_t bytes;
};

// dst = fold(dst, incoming) for `bytes` bytes; called on whole items only. `context` is the plan's.
using FoldFn = void (*)(const void* context, void* dst, const void* incoming, std::size_t bytes);

// With a wire format other than f32 the pieces are f32 values, whole ones; every piece is encoded as a run of its own.
struct SendRequest {
  MessageHeader header;
  std::vector<Piece> pieces;
  WireFormat wire = WireFormat::f32;
  std::uint32_t* done = nullptr;  // set to 1 when the buffers may be reused
};

struct RecvRequest {
  MessageHeader header;  // what must arrive; a different fingerprint throws Error(mismatch) with both texts
  std::vector<Piece> pieces;
  WireFormat wire = WireFormat::f32;
  bool round = false;     // what a fold gives is rounded to the wire format
  FoldFn fold = nullptr;  // null: received bytes are stored
  const void* fold_context = nullptr;
  std::size_t item = 1;  // item size, for fold
  std::uint32_t* done = nullptr;
};

// When a rank waits for data: the time in which at least one of its links was receiving, and what came in it. Written
// by whoever runs an operation (one thread at a time), read by anybody.
class ReceiveMeter {
 public:
  using Time = std::chrono::steady_clock::time_point;
  void begin(Time now) {
    if (active_++ == 0) since_ = now;
  }
  void end(Time now, std::uint64_t received) {
    add(bytes, received);
    if (--active_ == 0) add(ns, static_cast<std::uint64_t>((now - since_).count()));
  }
  static void add(std::atomic<std::uint64_t>& counter, std::uint64_t amount) {
    counter.store(counter.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
  }
  std::atomic<std::uint64_t> bytes{0}, ns{0};

 private:
  int active_ = 0;
  Time since_{};
};

// What one link measured of itself; all of it since the start. Only links that time their messages fill it in.
struct LinkTimes {
  std::atomic<std::uint64_t> messages{0};  // received
  // Of large messages, what came after the connection had run dry within the message, and how long that took: the peer
  // had begun to send, and nothing lay in buffers, so it came at the speed of the link however late this rank was.
  std::atomic<std::uint64_t> flow_bytes{0}, flow_ns{0};
  // From the time this rank could take the first message of a window until its header was there.
  std::atomic<std::uint64_t> waits{0}, waited_ns{0}, longest_wait_ns{0};
};

// What the kernel knows of a connection; 0 where it does not say.
struct KernelTimes {
  std::uint32_t rtt_us = 0, jitter_us = 0, least_rtt_us = 0;
  std::uint64_t retransmits = 0;
};

// How a wait for a link is best spent: `none` if nothing is waited for or it cannot be told; `prompt` if an answer
// within microseconds is likely; `unhurried` if the link is known to need so long for what is next that the core is
// better given to others.
enum class Haste { none, prompt, unhurried };

class Link {
 public:
  virtual ~Link() = default;
  virtual void post_send(SendRequest&& request) = 0;
  virtual void post_recv(RecvRequest&& request) = 0;
  // Moves what can be moved without blocking; true if a byte moved. Throws Error(peer_lost | mismatch).
  virtual bool progress() = 0;
  // For sleeping: the descriptor and the poll events that would let progress() move something; -1 if none.
  virtual int poll_fd() const = 0;
  virtual short poll_events() const = 0;
  virtual Haste haste() const { return Haste::prompt; }
  // Called before a sleep on poll_fd(): it need not end before there is enough to be worth it.
  virtual void prepare_sleep() {}
  virtual void close() = 0;
  virtual KernelTimes kernel_times() const { return {}; }  // any thread
  std::uint64_t bytes_sent = 0, bytes_received = 0;        // payload and headers, for counters
  LinkTimes times;
  ReceiveMeter* meter = nullptr;  // of the rank; set before the first message, null in tests of links alone
};

}  // namespace ringleader
