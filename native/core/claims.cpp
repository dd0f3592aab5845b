#include "core/claims.hpp"

#include <algorithm>

namespace ringleader {

void Departures::expect(std::shared_ptr<PeerProcess> process, const std::atomic<std::uint32_t>* told) {
  const std::lock_guard lock(mutex_);
  peers_.push_back({std::move(process), told});
}

// Invariant: a peer that is known to have left everything is not looked at again, since its word lies in memory that may belong to others
// once all have.
bool Departures::all(Left what) {
  const std::lock_guard lock(mutex_);
  bool every = true;
  for (Peer& peer : peers_) {
    if (peer.known < Left::everything) {
      // The process first: what it told before its end counts all the same.
      if (!peer.process->alive())
        peer.known = Left::everything;
      else
        peer.known = std::max(peer.known, Left{std::min(peer.told->load(std::memory_order_acquire), std::uint32_t{2})});
    }
    every &= peer.known >= what;
  }
  return every;
}

}  // namespace ringleader
