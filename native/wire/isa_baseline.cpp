// Codecs for any machine of the architecture; compiled with the flags in isa.cmake.
#define RINGLEADER_CODEC_TABLE baseline_table
#include "wire/codecs.hpp"
