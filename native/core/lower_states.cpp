#include "core/lower_states.hpp"

namespace ringleader {

std::int32_t block_count(Collective collective, Rank n) {
  switch (collective) {
    case Collective::all_reduce:
    case Collective::broadcast:
    case Collective::reduce:
    case Collective::barrier: return 1;
    case Collective::reduce_scatter:
    case Collective::all_gather:
    case Collective::gather:
    case Collective::scatter:
    case Collective::all_to_all: return n;
  }
  throw Error(ErrorKind::invalid, "collective code " + std::to_string(static_cast<int>(collective)) +
                                      " is unknown; expected 0 (all_reduce) to 8 (barrier)");
}

bool CollectiveState::valid_at_start(Rank rank, Buffer buffer, std::int32_t chunk) const {
  switch (collective) {
    case Collective::all_reduce:
    case Collective::reduce:
    case Collective::reduce_scatter:
    case Collective::barrier: return buffer == Buffer::data;
    case Collective::broadcast:
    case Collective::scatter: return buffer == Buffer::data && rank == root;
    case Collective::all_gather:
    case Collective::gather: return buffer == Buffer::data && block(chunk) == rank;
    case Collective::all_to_all: return buffer == Buffer::input;
  }
  return false;
}

bool CollectiveState::required_at_end(Rank rank, Buffer buffer, std::int32_t chunk) const {
  switch (collective) {
    case Collective::all_reduce:
    case Collective::broadcast:
    case Collective::all_gather:
    case Collective::barrier: return buffer == Buffer::data;
    case Collective::reduce:
    case Collective::gather: return buffer == Buffer::data && rank == root;
    case Collective::reduce_scatter:
    case Collective::scatter: return buffer == Buffer::data && block(chunk) == rank;
    case Collective::all_to_all: return buffer == Buffer::output;
  }
  return false;
}

void CollectiveState::source_of(Rank rank, std::int32_t chunk, Rank* from, std::int32_t* from_chunk) const {
  *from_chunk = chunk;
  switch (collective) {
    case Collective::all_gather:
    case Collective::gather: *from = block(chunk); return;
    case Collective::all_to_all:  // output block s at rank d is input block d at rank s
      *from = block(chunk);
      *from_chunk = rank * chunks_per_block + chunk % chunks_per_block;
      return;
    default: *from = root;
  }
}

const char* name(Buffer buffer) {
  static const char* const names[kBufferCount] = {"data", "input", "output", "scratch"};
  const int code = static_cast<int>(buffer);
  return code < kBufferCount ? names[code] : "?";
}

std::string chunk_text(Rank rank, Buffer buffer, std::int32_t chunk, std::int32_t count) {
  std::string text = "rank " + std::to_string(rank) + " " + name(buffer) + "[" + std::to_string(chunk);
  if (count != 1) text.append(":").append(std::to_string(static_cast<std::int64_t>(chunk) + count));
  return text.append("]");
}

std::string transfer_text(std::size_t index, const Transfer& transfer) {
  return "transfer #" + std::to_string(index) + " (step " + std::to_string(transfer.step) + ", " +
         chunk_text(transfer.src_rank, Buffer{transfer.src_buffer}, transfer.src_chunk, transfer.count) + " -> " +
         chunk_text(transfer.dst_rank, Buffer{transfer.dst_buffer}, transfer.dst_chunk, transfer.count) +
         (transfer.reduce ? ", reduce)" : ", copy)");
}

}  // namespace ringleader
