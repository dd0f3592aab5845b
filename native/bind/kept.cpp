#include "bind/kept.hpp"

#include <pthread.h>

#include <atomic>

namespace nb = nanobind;

namespace ringleader {

namespace {

struct Kept {
  PyObject* object;
  std::uint64_t generation;
  Kept* next;
};

std::atomic<Kept*> released{nullptr};  // a stack, of works that are done
std::atomic<bool> called{false};       // Python has been asked to call `let_go`

int let_go(void*) {
  let_go_of_kept();
  return 0;
}

// Any thread, with or without the GIL.
void release(void* pointer) {
  auto* kept = static_cast<Kept*>(pointer);
  if (kept == nullptr || kept->generation != fork_generation()) return;  // a forked child lets its copies be
  kept->next = released.load(std::memory_order_relaxed);
  while (!released.compare_exchange_weak(kept->next, kept, std::memory_order_acq_rel, std::memory_order_relaxed))
    continue;
  // Python has room for a few calls only; then the next work does it.
  if (!called.exchange(true, std::memory_order_acq_rel) && Py_AddPendingCall(&let_go, nullptr) != 0)
    called.store(false);
}

void forget_in_child() {
  released.store(nullptr, std::memory_order_relaxed);
  called.store(false, std::memory_order_relaxed);
}

[[maybe_unused]] const int registered = ::pthread_atfork(nullptr, nullptr, &forget_in_child);

}  // namespace

WorkState::Kept keep(nb::handle object) {
  if (!object.is_valid() || object.is_none()) return {nullptr, &release};
  return {new Kept{object.inc_ref().ptr(), fork_generation(), nullptr}, &release};
}

void let_go_of_kept() {
  called.store(false, std::memory_order_release);
  Kept* each = released.exchange(nullptr, std::memory_order_acq_rel);
  while (each != nullptr) {
    Kept* const next = each->next;
    Py_DECREF(each->object);
    delete each;
    each = next;
  }
}

}  // namespace ringleader
