// Codecs for avx512; compiled with the flags in isa.cmake.
#if defined(__x86_64__)
#define RINGLEADER_CODEC_TABLE avx512_table
#include "wire/codecs.hpp"
#endif
