// Arena memory of closed communicators that peers may still touch. It is released once every peer has said that it left
// too, or died. Looked through whenever a communicator is made or closed.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "memory/peer.hpp"

namespace ringleader::graveyard {

struct Mourner {
  std::shared_ptr<PeerProcess> process;
  const std::atomic<std::uint32_t>* departed;  // in the buried memory itself; the peer sets it
};

void bury(std::vector<Mourner> mourners, std::vector<void*> memory);
void reap();

}  // namespace ringleader::graveyard
