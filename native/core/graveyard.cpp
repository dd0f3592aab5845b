#include "core/graveyard.hpp"

#include <algorithm>
#include <mutex>

#include "memory/arena.hpp"
#include "memory/fork.hpp"

namespace ringleader::graveyard {

namespace {

struct Grave {
  std::vector<Mourner> mourners;
  std::vector<void*> memory;
  std::uint64_t generation;
};

struct Yard {
  std::mutex mutex;
  std::vector<Grave> graves;
};

// Never destroyed: communicators may be closed while the process's statics are torn down.
Yard& yard() {
  static Yard* const instance = new Yard;
  return *instance;
}

bool free_to_release(Grave& grave) {
  return std::all_of(grave.mourners.begin(), grave.mourners.end(), [](Mourner& mourner) {
    return mourner.departed->load(std::memory_order_acquire) != 0 || !mourner.process->alive();
  });
}

}  // namespace

void bury(std::vector<Mourner> mourners, std::vector<void*> memory) {
  {
    std::lock_guard lock(yard().mutex);
    yard().graves.push_back({std::move(mourners), std::move(memory), fork_generation()});
  }
  reap();
}

void reap() {
  std::vector<Grave> done;
  {
    std::lock_guard lock(yard().mutex);
    auto& graves = yard().graves;
    const auto keep = std::partition(graves.begin(), graves.end(), [](Grave& grave) {
      return grave.generation != fork_generation() || !free_to_release(grave);
    });
    done.assign(std::make_move_iterator(keep), std::make_move_iterator(graves.end()));
    graves.erase(keep, graves.end());
  }
  for (const Grave& grave : done)
    for (void* memory : grave.memory) Arena::release(memory);
}

}  // namespace ringleader::graveyard
