// Codecs for avx2; compiled with the flags in isa.cmake.
#if defined(__x86_64__)
#define RINGLEADER_CODEC_TABLE avx2_table
#include "wire/codecs.hpp"
#endif
