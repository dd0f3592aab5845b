// What each collective starts from and must end with (the table in docs/architecture.md), and the texts that name a
// chunk or a transfer. Shared by lower and check.
#pragma once

#include <string>

#include "core/program.hpp"

namespace ringleader {

struct CollectiveState {
  Collective collective;
  Rank n;
  Rank root;
  std::int32_t chunks;            // C
  std::int32_t chunks_per_block;  // m = C / B

  std::int32_t block(std::int32_t chunk) const { return chunk / chunks_per_block; }

  // Is this chunk's content given when the operation starts?
  bool valid_at_start(Rank rank, Buffer buffer, std::int32_t chunk) const;
  // Must this chunk hold the result when the operation ends?
  bool required_at_end(Rank rank, Buffer buffer, std::int32_t chunk) const;
  // For collectives that only move data: the place whose initial content a required chunk must equal.
  void source_of(Rank rank, std::int32_t chunk, Rank* from, std::int32_t* from_chunk) const;
  // Buffers the collective itself is about: data, or input and output for all_to_all.
  bool uses(Buffer buffer) const {
    const bool moved = collective == Collective::all_to_all;
    return moved ? buffer == Buffer::input || buffer == Buffer::output : buffer == Buffer::data;
  }
};

// all_reduce, reduce and reduce_scatter combine contributions exactly once each; barrier combines them any way.
inline bool is_reducing(Collective collective) {
  return collective == Collective::all_reduce || collective == Collective::reduce ||
         collective == Collective::reduce_scatter;
}

// B: the number of blocks `data` is divided into.
std::int32_t block_count(Collective collective, Rank n);

const char* name(Buffer buffer);
std::string chunk_text(Rank rank, Buffer buffer, std::int32_t chunk, std::int32_t count);
std::string transfer_text(std::size_t index, const Transfer& transfer);

}  // namespace ringleader
