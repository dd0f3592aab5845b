// The kernels of one instruction set: one function per (dtype, op). Each isa_*.cpp defines one table; dispatch is
// reduce.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "reduce/reduce.hpp"

namespace ringleader::kernels {

inline constexpr int kOpCount = 9;  // sum ... bxor

using Fold = void (*)(const FoldSpec& spec, void* const* dsts, std::size_t ndst, const void* const* srcs,
                      const std::uint8_t* raw, std::size_t nsrc, std::size_t count);

struct Table {
  Fold fold[kDTypeCount][kOpCount];  // null = not supported; the avg row divides by final_n
};

extern const Table baseline_table;
#if defined(__x86_64__)
extern const Table avx2_table;
extern const Table avx512_table;
#endif

struct Isa {
  const char* name;
  const Table* table;
};

// Those this machine can run, best first; the last one runs everywhere.
std::vector<Isa> available();

}  // namespace ringleader::kernels
