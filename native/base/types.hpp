// Vocabulary shared by every part of the native core. The numeric codes are the contract with Python
// (src/ringleader/_core.pyi and runtime/dtypes.py); add at the end, never renumber.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace ringleader {

using Rank = std::int32_t;

enum class DType : std::uint8_t {
  f32 = 0,
  f64 = 1,
  f16 = 2,
  bf16 = 3,
  i8 = 4,
  i16 = 5,
  i32 = 6,
  i64 = 7,
  u8 = 8,
  u16 = 9,
  u32 = 10,
  u64 = 11,
  boolean = 12,
  c64 = 13,
  c128 = 14,
  bytes = 15,  // opaque: copies only, item size 1
};
inline constexpr int kDTypeCount = 16;

enum class ReduceOp : std::uint8_t {
  sum = 0,
  prod = 1,
  min = 2,
  max = 3,
  avg = 4,
  premul_sum = 5,
  band = 6,
  bor = 7,
  bxor = 8,
  none = 255,  // data movement only
};

enum class Collective : std::uint8_t {
  all_reduce = 0,
  reduce_scatter = 1,
  all_gather = 2,
  broadcast = 3,
  reduce = 4,
  gather = 5,
  scatter = 6,
  all_to_all = 7,
  barrier = 8,
};

std::size_t item_size(DType dtype);
const char* name(DType dtype);
const char* name(ReduceOp op);
const char* name(Collective collective);

// Kinds of failure; each becomes one class of ringleader.errors.
enum class ErrorKind : int {
  invalid = 0,    // ValueError: bad argument, refused before the first byte
  timeout = 1,    // CollectiveTimeout: deadline passed
  peer_lost = 2,  // PeerLost: a peer died or left
  mismatch = 3,   // MismatchError: ranks disagree about the operation
  aborted = 4,    // AbortedError: this communicator was aborted
  closed = 5,     // ClosedError: used after close
  forked = 6,     // ForkError: used in a forked child
  memory = 7,     // OutOfMemory: memory could not be reserved
  internal = 8,   // InternalError
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind_, const std::string& what, std::vector<Rank> ranks_ = {})
      : std::runtime_error(what), kind(kind_), ranks(std::move(ranks_)) {}
  ErrorKind kind;
  std::vector<Rank> ranks;  // the ranks that are the cause, where known
};

}  // namespace ringleader
