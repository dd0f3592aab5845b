// What happens to this process's resources in a forked child. Objects remember the generation they were made in; a
// different one later means "I am a copy in a forked child", which must neither use nor tear down what is the parent's.
#pragma once

#include <atomic>
#include <cstdint>

namespace ringleader {

namespace detail {
extern std::atomic<std::uint64_t> fork_count;
}

// Grows by one in every forked child; a relaxed read of one word.
inline std::uint64_t fork_generation() { return detail::fork_count.load(std::memory_order_relaxed); }

// A connected descriptor that a forked child (a data loader's worker, say) keeps open hides this process's death from
// its peer. Descriptors listed here are closed in the child, in the child only, by the fork handler. An owner in the
// child must then not close the number again: `close_owned` does the right thing on both sides.
void close_in_child(int fd);
// Closes `fd`, taken in generation `generation`, and removes it from the list; in a later generation does nothing.
void close_owned(int fd, std::uint64_t generation);

}  // namespace ringleader
