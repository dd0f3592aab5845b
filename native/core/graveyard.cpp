#include "core/graveyard.hpp"

#include <algorithm>
#include <atomic>
#include <mutex>

#include "memory/arena.hpp"
#include "memory/fork.hpp"

namespace ringleader::graveyard {

namespace {

struct Grave {
  std::vector<Mourner> mourners;
  std::vector<void*> memory;
};

struct Yard {
  std::mutex mutex;
  std::vector<Grave> graves;
  std::uint64_t generation = fork_generation();
};

// Never destroyed: communicators may be closed while the process's statics are torn down. A forked child begins with a yard of its own,
// since the parent's may have been locked when it forked, and its graves are the parent's.
Yard& yard() {
  static std::atomic<Yard*> yards{new Yard};
  Yard* known = yards.load(std::memory_order_acquire);
  if (known->generation == fork_generation()) return *known;
  auto* fresh = new Yard;
  if (yards.compare_exchange_strong(known, fresh, std::memory_order_acq_rel)) return *fresh;
  delete fresh;
  return *known;
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
    yard().graves.push_back({std::move(mourners), std::move(memory)});
  }
  reap();
}

void reap() {
  std::vector<Grave> done;
  {
    std::lock_guard lock(yard().mutex);
    auto& graves = yard().graves;
    const auto keep = std::partition(graves.begin(), graves.end(), [](Grave& grave) {
      return !free_to_release(grave);
    });
    done.assign(std::make_move_iterator(keep), std::make_move_iterator(graves.end()));
    graves.erase(keep, graves.end());
  }
  for (const Grave& grave : done)
    for (void* memory : grave.memory) Arena::release(memory);
}

}  // namespace ringleader::graveyard
