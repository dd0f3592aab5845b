// Lowered programs as text, for people and for error messages.
#pragma once

#include <string>

#include "core/program.hpp"

namespace ringleader {

// "#3 reduce rank 0 data[1] = rank 0 data[1] raw + rank 1 data[1] raw final  waits (1 >= 1)"
std::string instr_text(const RankProgram& program, std::size_t index);
// One instruction per line, then the waits before reading out and before reuse.
std::string program_text(const Lowered& lowered, Rank rank);

}  // namespace ringleader
