// The clock of all limits and measurements.
#pragma once

#include <chrono>

namespace ringleader {

using Clock = std::chrono::steady_clock;

}  // namespace ringleader
