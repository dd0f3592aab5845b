#include "reduce/reduce.hpp"

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "reduce/table.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#include <emmintrin.h>
#endif

namespace ringleader {

namespace kernels {

std::vector<Isa> available() {
  std::vector<Isa> isas;
#if defined(__x86_64__)
  __builtin_cpu_init();
  // __builtin_cpu_supports also asks whether the operating system saves the registers.
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  const bool f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & (1U << 29)) != 0;
  const bool avx2 = f16c && __builtin_cpu_supports("avx2");
  if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
    isas.push_back({"avx512", &avx512_table});
  }
  if (avx2) isas.push_back({"avx2", &avx2_table});
  isas.push_back({"baseline", &baseline_table});
#elif defined(__aarch64__)
  isas.push_back({"neon", &baseline_table});
#else
  isas.push_back({"baseline", &baseline_table});
#endif
  return isas;
}

}  // namespace kernels

namespace {

using kernels::Isa;

Isa choose() {
  const std::vector<Isa> isas = kernels::available();
  const char* asked = std::getenv("RINGLEADER_ISA");
  if (asked == nullptr || *asked == '\0') return isas.front();
  std::string names;
  for (const Isa& isa : isas) {
    if (std::strcmp(isa.name, asked) == 0) return isa;
    names += (names.empty() ? "" : ", ") + std::string(isa.name);
  }
  throw Error(ErrorKind::invalid, "RINGLEADER_ISA='" + std::string(asked) +
                                      "' is not available on this machine; expected one of: " + names +
                                      ", or unset it for the best of them");
}

const Isa& chosen() {
  static const Isa isa = choose();
  return isa;
}

// The kernel, or null. A value outside the enumerations (it comes from Python as a number) is not supported.
kernels::Fold find(const kernels::Table& table, DType dtype, ReduceOp op) {
  const auto row = static_cast<unsigned>(dtype);
  const auto column = static_cast<unsigned>(op);
  if (row >= static_cast<unsigned>(kDTypeCount) || column >= static_cast<unsigned>(kernels::kOpCount)) return nullptr;
  return table.fold[row][column];
}

#if defined(__x86_64__)
// From here on a reader who comes after the copy finds little of it in the caches. Measured with copy and reader
// together: equal at this size, a tenth to a fifth faster above (on a 32 MiB third-level cache), slower below.
constexpr std::size_t kStreamBytes = std::size_t{16} << 20;

void stream(char* dst, const char* src, std::size_t bytes) {
  const std::size_t head = (64 - (reinterpret_cast<std::uintptr_t>(dst) & 63)) & 63;
  std::memcpy(dst, src, head);
  const std::size_t body = (bytes - head) & ~std::size_t{63};
  char* to = dst + head;
  const char* from = src + head;
  for (std::size_t i = 0; i < body; i += 64) {
    for (std::size_t j = 0; j < 64; j += 16) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + i + j),
                       _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i + j)));
    }
  }
  _mm_sfence();  // readers synchronise through ordinary stores, which must not overtake these
  std::memcpy(to + body, from + body, bytes - head - body);
}
#endif

}  // namespace

bool supported(DType dtype, ReduceOp op) {
  if (op == ReduceOp::none) return static_cast<int>(dtype) < kDTypeCount;
  return find(kernels::baseline_table, dtype, op) != nullptr;
}

void fold(const FoldSpec& spec, void* const* dsts, std::size_t ndst, const void* const* srcs, const std::uint8_t* raw,
          std::size_t nsrc, std::size_t count) {
  const bool divides = spec.op == ReduceOp::avg && spec.final_n > 1;
  const bool scales = spec.op == ReduceOp::premul_sum && raw != nullptr && nsrc == 1 && raw[0] != 0;
  const bool copies = nsrc == 1 && !divides && !scales;
  const ReduceOp op = spec.op == ReduceOp::avg && !divides ? ReduceOp::sum : spec.op;
  const kernels::Fold kernel = copies ? nullptr : find(*chosen().table, spec.dtype, op);
  if (nsrc == 0 || !supported(spec.dtype, spec.op) || (!copies && kernel == nullptr)) {
    throw Error(ErrorKind::invalid, std::string("cannot reduce ") + name(spec.dtype) + " with " + name(spec.op) +
                                        " over " + std::to_string(nsrc) + " sources");
  }
  if (count == 0 || ndst == 0) return;
  if (!copies) return kernel(spec, dsts, ndst, srcs, raw, nsrc, count);
  const std::size_t bytes = count * item_size(spec.dtype);
  for (std::size_t j = 0; j < ndst; ++j) {
    if (dsts[j] != srcs[0]) stream_copy(dsts[j], srcs[0], bytes);
  }
}

void stream_copy(void* dst, const void* src, std::size_t bytes) {
  if (bytes == 0) return;
#if defined(__x86_64__)
  if (bytes >= kStreamBytes) return stream(static_cast<char*>(dst), static_cast<const char*>(src), bytes);
#endif
  std::memcpy(dst, src, bytes);
}

const char* isa() { return chosen().name; }

}  // namespace ringleader
