// Kernels for avx512; compiled with the flags in isa.cmake.
#if defined(__x86_64__)
#define RINGLEADER_KERNEL_TABLE avx512_table
#include "reduce/kernels.hpp"
#endif
