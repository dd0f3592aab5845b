// The codecs of one instruction set. Each isa_*.cpp defines one table; dispatch is wire.cpp.
#pragma once

#include <cstddef>

#include "wire/wire.hpp"

namespace ringleader::codecs {

struct Codec {
  void (*encode)(void* dst, const float* src, std::size_t elements);
  void (*decode)(float* dst, const void* src, std::size_t elements);
};

struct Table {
  Codec codec[kWireFormatCount];
};

extern const Table baseline_table;
#if defined(__x86_64__)
extern const Table avx2_table;
extern const Table avx512_table;
#endif

}  // namespace ringleader::codecs
