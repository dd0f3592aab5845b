// What happens to this process's resources in a forked child. Objects remember the generation they were made in; a
// different one later means "I am a copy in a forked child", which must neither use nor tear down what is the parent's.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>

namespace ringleader {

namespace detail {
extern std::atomic<std::uint64_t> fork_count;
}

// Grows by one in every forked child; a relaxed read of one word.
inline std::uint64_t fork_generation() { return detail::fork_count.load(std::memory_order_relaxed); }

// A member that a forked child must not destroy, because threads that exist in the parent only wait in it or run by it:
// destroying a condition variable waits for its waiters, and destroying a thread that was not joined ends the process.
template <class T>
class Parents {
 public:
  Parents() { ::new (static_cast<void*>(bytes_)) T; }
  Parents(const Parents&) = delete;
  Parents& operator=(const Parents&) = delete;
  ~Parents() {
    if (generation_ == fork_generation()) (*this)->~T();
  }
  T* operator->() { return std::launder(reinterpret_cast<T*>(bytes_)); }
  T& operator*() { return *operator->(); }

 private:
  alignas(T) unsigned char bytes_[sizeof(T)];
  std::uint64_t generation_ = fork_generation();
};

// An object that a forked child must leave as it is, with all that it has: threads of the parent may have been in the
// middle of it.
template <class T, class... Arguments>
std::shared_ptr<T> make_parents(Arguments&&... arguments) {
  const std::uint64_t generation = fork_generation();
  return std::shared_ptr<T>(new T(std::forward<Arguments>(arguments)...), [generation](T* object) {
    if (generation == fork_generation()) delete object;
  });
}

// A connected descriptor that a forked child (a data loader's worker, say) keeps open hides this process's death from
// its peer. Descriptors listed here are closed in the child, in the child only, by the fork handler. An owner in the
// child must then not close the number again: `close_owned` does the right thing on both sides.
void close_in_child(int fd);
// Closes `fd`, taken in generation `generation`, and removes it from the list; in a later generation does nothing.
void close_owned(int fd, std::uint64_t generation);

}  // namespace ringleader
