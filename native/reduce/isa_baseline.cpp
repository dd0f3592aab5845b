// Kernels for any machine of the architecture (SSE2 on x86-64, NEON on aarch64).
#define RINGLEADER_KERNEL_TABLE baseline_table
#include "reduce/kernels.hpp"
