// Kernels for any machine of the architecture; compiled with the flags in isa.cmake.
#define RINGLEADER_COMPRESS_TABLE baseline_table
#include "compress/kernels.hpp"
