// Kernels for avx2; compiled with the flags in isa.cmake.
#if defined(__x86_64__)
#define RINGLEADER_COMPRESS_TABLE avx2_table
#include "compress/kernels.hpp"
#endif
