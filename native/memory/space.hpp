// How much address space an arena takes. It costs nothing else, but there is not always much: every process of a host
// maps the arenas of all others, so with 64 ranks on a machine with 2 TiB of memory "as large as the memory" would be
// all that 47 bits address.
#pragma once

#include <cstddef>

namespace ringleader {

inline constexpr std::size_t kLeastArena = std::size_t{16} << 20;

// How many ranks will be on this host, as far as is known. Counts until the arena is made.
void expect_local_ranks(int ranks);
int expected_local_ranks();

// Address space that this process may still map, in bytes.
std::size_t address_room();

// The size of one arena of `ranks`: twice the machine's memory, so that fragments never are what stops an allocation,
// or less where all arenas together would take more than half of the room; then the other half is left for everything
// else. Below kLeastArena if there is no room for it.
std::size_t arena_bytes(std::size_t machine_bytes, std::size_t room, int ranks);

}  // namespace ringleader
