// How fast the reduction kernels are: every instruction set of this machine, sums of 2, 4 and 8 sources into 1 to 4 destinations,
// for operands that fit the first-level cache, the second-level cache, and neither. Bytes of one operand count.
//
// cmake --build build/dev --target probe_fold && build/dev/probe_fold
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#include "reduce/table.hpp"

using namespace ringleader;

namespace {

double rate(const kernels::Isa& isa, DType dtype, std::size_t nsrc, std::size_t ndst, std::size_t bytes) {
  std::vector<std::vector<std::uint16_t>> memory(nsrc + ndst, std::vector<std::uint16_t>(bytes / 2, 0x3c00));
  std::vector<const void*> srcs;
  std::vector<void*> dsts;
  for (std::size_t k = 0; k < nsrc; ++k) srcs.push_back(memory[k].data());
  // As in an all-reduce among ranks: the results replace the sources of the first ranks.
  for (std::size_t j = 0; j < ndst; ++j) dsts.push_back(j < nsrc ? memory[j].data() : memory[nsrc + j].data());
  const auto kernel = isa.table->fold[static_cast<int>(dtype)][static_cast<int>(ReduceOp::sum)];
  const FoldSpec spec{dtype, ReduceOp::sum, 1, 0};
  const std::size_t calls = std::max<std::size_t>(1, (std::size_t{8} << 20) / bytes);
  std::vector<double> rates;
  for (int repeat = 0; repeat < 9; ++repeat) {
    const auto began = std::chrono::steady_clock::now();
    for (std::size_t c = 0; c < calls; ++c)
      kernel(spec, dsts.data(), ndst, srcs.data(), nullptr, nsrc, bytes / item_size(dtype));
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    rates.push_back(static_cast<double>(bytes * calls) / took.count() / 1e9);
  }
  std::sort(rates.begin(), rates.end());
  return rates[rates.size() / 2];
}

}  // namespace

int main() {
  constexpr struct {
    const char* name;
    std::size_t bytes;
  } sizes[] = {{"8 KiB", 8 << 10}, {"64 KiB", 64 << 10}, {"16 MiB", 16 << 20}};
  std::printf("%-9s %-5s %-8s", "isa", "type", "src,dst");
  for (const auto& size : sizes) std::printf(" %10s", size.name);
  std::printf("   GB/s of one operand\n");
  for (const kernels::Isa& isa : kernels::available()) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      for (const auto& shape : {std::pair{2, 1}, std::pair{2, 2}, std::pair{4, 1}, std::pair{4, 4}, std::pair{8, 8}}) {
        const auto nsrc = static_cast<std::size_t>(shape.first), ndst = static_cast<std::size_t>(shape.second);
        std::printf("%-9s %-5s %zu,%-6zu", isa.name, name(dtype), nsrc, ndst);
        for (const auto& size : sizes) std::printf(" %10.1f", rate(isa, dtype, nsrc, ndst, size.bytes));
        std::printf("\n");
      }
    }
  }
}
