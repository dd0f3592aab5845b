// What peers of this host may still do to memory that a communicator showed them, as far as they have told:
// docs/architecture.md, "Who may write which memory until when".
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "memory/arena.hpp"
#include "memory/peer.hpp"

namespace ringleader {

// How far a rank has left a communicator for good, as it tells each peer by a word in the peer's own shared block. Its
// process's end says the same. Nothing else does: a rank that does not answer may be stopped in the middle of a store,
// and go on with it at any time.
enum class Left : std::uint32_t {
  nothing = 0,
  operations = 1,  // no operation of it touches memory of others any more
  everything = 2,  // nothing of it does; the telling itself was the last time
};

// What the peers of one communicator have told. Any thread.
class Departures {
 public:
  // `told` lies in arena memory of this process, which must not be given out again before all have left everything.
  void expect(std::shared_ptr<PeerProcess> process, const std::atomic<std::uint32_t>* told);
  // Whether all peers have left so far, or ended.
  bool all(Left what);

 private:
  struct Peer {
    std::shared_ptr<PeerProcess> process;
    const std::atomic<std::uint32_t>* told;
    Left known = Left::nothing;
  };
  std::mutex mutex_;
  std::vector<Peer> peers_;
};

// On memory that peers touch in operations only (a user's), or at any time (the communicator's own).
class PeersClaim final : public Claim {
 public:
  PeersClaim(std::shared_ptr<Departures> departures, Left until) : departures_(std::move(departures)), until_(until) {}
  bool over() override { return departures_->all(until_); }

 private:
  std::shared_ptr<Departures> departures_;
  Left until_;
};

// On memory whose place was told to ranks that are not known: they may connect, and write there, at any time.
class LastingClaim final : public Claim {
 public:
  bool over() override { return false; }
};

}  // namespace ringleader
