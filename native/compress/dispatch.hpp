// The kernels this machine runs; for the files of this room.
#pragma once

#include "compress/table.hpp"

namespace ringleader::compress {

const Table& kernels();

// Spreads a seed, so that neighbouring ones have nothing in common.
inline std::uint32_t spread(std::uint32_t x) {
  x += 0x9e3779b9U;
  x ^= x >> 16;
  x *= 0x21f0aaadU;
  x ^= x >> 15;
  x *= 0x735a2d97U;
  x ^= x >> 15;
  return x;
}

}  // namespace ringleader::compress
