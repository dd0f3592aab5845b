// The kernels of one instruction set. Each isa_*.cpp defines one table; dispatch is compress.cpp.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ringleader::compress {

inline constexpr int kWireSchemes = 3;  // the first schemes are wire formats
inline constexpr int kOwnSchemes = 9;   // onebit and so on

struct Codec {
  void (*encode)(std::uint8_t* dst, const float* src, std::size_t elements, std::uint32_t seed, std::uint32_t first);
  void (*decode)(float* dst, const std::uint8_t* src, std::size_t elements);
};

// How many elements have magnitudes above and equal to one that is given.
struct Tally {
  std::size_t greater, equal;
};

struct Table {
  Codec codec[kOwnSchemes];
  void (*multiply)(float* out, const float* x, float factor, std::size_t n);
  // e = y - sent * factor, or 0 where that is not finite.
  void (*residual)(float* e, const float* y, const float* sent, float factor, std::size_t n);
  void (*add)(float* out, const float* a, const float* b, std::size_t n);
  void (*scaled_add)(float* out, const float* a, float scale, const float* b, std::size_t n);
  void (*clean)(float* x, std::size_t n);
  // Indices of the elements whose magnitude, as bits, is at least `least`; stops after `room` of them (which `index`
  // has, and 16 more).
  std::size_t (*collect)(const float* x, std::size_t n, std::uint32_t least, std::uint32_t* index, std::size_t room);
  Tally (*tally)(const float* x, std::size_t n, std::uint32_t bits);
  // Indices, ascending, of the elements whose magnitude is above `bits`, and of the first `ties` that are equal; stops
  // as collect does.
  std::size_t (*collect_ties)(const float* x, std::size_t n, std::uint32_t bits, std::size_t ties, std::uint32_t* index,
                              std::size_t room);
  // Rows of m q, and the same plus sums over rows of m^T p; q is transposed (rank x columns), as in expand_row.
  void (*project)(float* p, const float* m, const float* q, std::size_t rows, std::size_t columns, std::size_t rank);
  void (*project_back)(float* q, const float* m, const float* p, std::size_t rows, std::size_t columns,
                       std::size_t rank);
  // Whether some magnitude, as bits, is below `least` and not 0; and x without these, which may be x.
  bool (*has_less)(const float* x, std::size_t n, std::uint32_t least);
  void (*drop_less)(float* out, const float* x, std::size_t n, std::uint32_t least);
  // A row of p q^T.
  void (*expand_row)(float* out, float* error, const float* p, const float* q, std::size_t columns, std::size_t rank);
  double (*dot)(const float* a, const float* b, std::size_t n);
  void (*subtract)(float* a, const float* b, float factor, std::size_t n);
};

extern const Table baseline_table;
#if defined(__x86_64__)
extern const Table avx2_table;
extern const Table avx512_table;
#endif

}  // namespace ringleader::compress
