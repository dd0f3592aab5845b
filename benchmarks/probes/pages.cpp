// What pages and stores do to memory bandwidth: copies, and sums of two operands into both, in pages of 4 KiB and of 2 MiB (private
// memory with MADV_HUGEPAGE, which most systems give), with ordinary stores and with stores that bypass the caches. "read" is the copy and
// a sum over what it wrote, as a peer or the program would: what was written past the caches comes back from memory.
//
// GB/s of one operand, one thread, median of 9.
//
// cmake --build build/dev --target probe_pages && build/dev/probe_pages
#include <immintrin.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "reduce/reduce.hpp"

using namespace ringleader;

namespace {

constexpr std::size_t kMost = std::size_t{64} << 20;

float* memory(bool huge) {
  void* at = ::mmap(nullptr, kMost, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) std::exit(1);
  ::madvise(at, kMost, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  std::memset(at, 0, kMost);
  return static_cast<float*>(at);
}

void copy_past_caches(float* to, const float* from, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes / 4; i += 4)
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + i), _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
  _mm_sfence();
}

template <class Work>
double rate(std::size_t bytes, const Work& work) {
  std::vector<double> rates;
  const std::size_t rounds = std::max<std::size_t>(1, (std::size_t{16} << 20) / bytes);
  for (int repeat = 0; repeat < 9; ++repeat) {
    const auto began = std::chrono::steady_clock::now();
    for (std::size_t r = 0; r < rounds; ++r) work();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    rates.push_back(static_cast<double>(bytes * rounds) / took.count() / 1e9);
  }
  std::sort(rates.begin(), rates.end());
  return rates[rates.size() / 2];
}

float sum_of(const float* from, std::size_t count) {
  float unused = 0;
  const void* srcs[] = {from, from};
  static std::vector<float> part(1024);
  void* dst = part.data();
  for (std::size_t i = 0; i < count; i += part.size()) {
    srcs[0] = srcs[1] = from + i;
    fold(FoldSpec{DType::f32, ReduceOp::max, 1, 0}, &dst, 1, srcs, nullptr, 2, part.size());
    unused += part[0];
  }
  return unused;
}

}  // namespace

int main() {
  std::printf("%10s %8s %8s %10s %8s %12s %8s\n", "KiB", "pages", "copy", "past", "copy+read", "past+read", "sum both");
  volatile float sink = 0;
  for (const bool huge : {false, true}) {
    float *a = memory(huge), *b = memory(huge);
    for (std::size_t bytes : {std::size_t{256} << 10, std::size_t{4} << 20, std::size_t{16} << 20, kMost}) {
      const void* srcs[] = {a, b};
      void* dsts[] = {a, b};
      std::printf("%10zu %8s %8.1f %10.1f %8.1f %12.1f %8.1f\n", bytes >> 10, huge ? "2 MiB" : "4 KiB",
                  rate(bytes, [&] { std::memcpy(a, b, bytes); }), rate(bytes, [&] { copy_past_caches(a, b, bytes); }),
                  rate(bytes, [&] { std::memcpy(a, b, bytes); sink = sum_of(a, bytes / 4); }),
                  rate(bytes, [&] { copy_past_caches(a, b, bytes); sink = sum_of(a, bytes / 4); }),
                  rate(bytes, [&] { fold(FoldSpec{DType::f32, ReduceOp::sum, 1, 0}, dsts, 2, srcs, nullptr, 2, bytes / 4); }));
    }
    ::munmap(a, kMost);
    ::munmap(b, kMost);
  }
}
