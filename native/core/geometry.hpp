// How a collective's vectors are cut into blocks and chunks, and which of them are a rank's input and output.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "core/program.hpp"

namespace ringleader {

// data (all_to_all: input and output) = `blocks` blocks of `elements` elements; a block = `per_block` chunks, as even
// as can be, the first elements % per_block of them one element longer.
struct Geometry {
  std::int32_t chunks = 1, blocks = 1, per_block = 1;
  std::uint64_t elements = 0;
  std::size_t item = 1;

  std::uint64_t chunk_elements(std::int32_t within) const {
    const auto m = static_cast<std::uint64_t>(per_block);
    return elements / m + (static_cast<std::uint64_t>(within) < elements % m ? 1 : 0);
  }
  std::uint64_t chunk_bytes(std::int32_t chunk) const { return chunk_elements(chunk % per_block) * item; }
  std::uint64_t max_chunk_bytes() const { return chunk_elements(0) * item; }
  std::uint64_t block_bytes() const { return elements * item; }
  std::uint64_t total_bytes() const { return block_bytes() * static_cast<std::uint64_t>(blocks); }
  std::int64_t offset(std::int32_t chunk) const {
    const auto m = static_cast<std::uint64_t>(per_block);
    const auto block = static_cast<std::uint64_t>(chunk / per_block),
               within = static_cast<std::uint64_t>(chunk % per_block);
    return static_cast<std::int64_t>((block * elements + within * (elements / m) + std::min(within, elements % m)) *
                                     item);
  }
};

// Which part of a rank's call arguments a chunk is: offset in bytes from the input (output) pointer, or nothing.
struct UserMap {
  Collective collective;
  Rank rank, root;
  const Geometry* geometry;

  std::optional<std::int64_t> input(Buffer buffer, std::int32_t chunk) const {
    switch (collective) {
      case Collective::all_reduce:
      case Collective::reduce:
      case Collective::barrier:
      case Collective::reduce_scatter: return natural(buffer == Buffer::data, chunk);
      case Collective::broadcast:
      case Collective::scatter: return natural(buffer == Buffer::data && rank == root, chunk);
      case Collective::all_gather:
      case Collective::gather: return own_block(buffer == Buffer::data, chunk);
      case Collective::all_to_all: return natural(buffer == Buffer::input, chunk);
    }
    return std::nullopt;
  }

  std::optional<std::int64_t> output(Buffer buffer, std::int32_t chunk) const {
    switch (collective) {
      case Collective::all_reduce:
      case Collective::broadcast:
      case Collective::barrier:
      case Collective::all_gather: return natural(buffer == Buffer::data, chunk);
      case Collective::reduce:
      case Collective::gather: return natural(buffer == Buffer::data && rank == root, chunk);
      case Collective::reduce_scatter:
      case Collective::scatter: return own_block(buffer == Buffer::data, chunk);
      case Collective::all_to_all: return natural(buffer == Buffer::output, chunk);
    }
    return std::nullopt;
  }

 private:
  std::optional<std::int64_t> natural(bool present, std::int32_t chunk) const {
    return present ? std::optional(geometry->offset(chunk)) : std::nullopt;
  }
  std::optional<std::int64_t> own_block(bool present, std::int32_t chunk) const {
    if (!present || chunk / geometry->per_block != rank) return std::nullopt;
    return geometry->offset(chunk) - geometry->offset(rank * geometry->per_block);
  }
};

}  // namespace ringleader
