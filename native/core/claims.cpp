#include "core/claims.hpp"

#include <algorithm>

namespace ringleader {

void Departures::expect(std::shared_ptr<PeerProcess> process, const std::atomic<std::uint32_t>* told) {
  const std::lock_guard lock(mutex_);
  peers_.push_back({std::move(process), told});
}

// Invariant: a peer that is known to have left everything is not looked at again, since its word lies in memory that
// may belong to others once all have. Whether a process lives costs a system call, so that is asked last, and ends with
// the first that does.
bool Departures::all(Left what) {
  const std::lock_guard lock(mutex_);
  for (Peer& peer : peers_) {
    if (peer.known >= what) continue;
    peer.known = std::max(peer.known, Left{std::min(peer.told->load(std::memory_order_acquire), std::uint32_t{2})});
    if (peer.known >= what) continue;
    if (peer.process->alive()) return false;
    peer.known = Left::everything;
  }
  return true;
}

}  // namespace ringleader
