// Kernels for avx512; compiled with the flags in isa.cmake.
#if defined(__x86_64__)
#define RINGLEADER_COMPRESS_TABLE avx512_table
#include "compress/kernels.hpp"
#endif
