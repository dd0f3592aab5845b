#include "core/lower_memory.hpp"

namespace ringleader::lowering {

Memory::Memory(const CollectiveState& state, const bool (&used)[kBufferCount], const std::vector<std::int32_t>& scratch)
    : state_(state), scratch_(static_cast<std::size_t>(state.n)) {
  std::uint64_t stride = 0;
  for (int b = 0; b < kBufferCount; ++b) {
    used_[b] = used[b] || state.uses(static_cast<Buffer>(b));
    if (b == static_cast<int>(Buffer::scratch) || !used_[b]) continue;
    offset_[b] = static_cast<LocId>(stride);
    stride += static_cast<std::uint64_t>(state.chunks);
  }
  const std::uint64_t dense = stride * static_cast<std::uint64_t>(state.n);
  if (dense > (1u << 28))
    throw Error(ErrorKind::invalid, std::to_string(state.n) + " ranks with " + std::to_string(state.chunks) +
                                        " chunks each are too many to lower; use fewer chunks");
  stride_ = static_cast<LocId>(stride);
  dense_ = static_cast<LocId>(dense);
  locations_.resize(dense_);
  for (LocId id = 0; id < dense_; ++id) {
    const Place where = place(id);
    if (!state.valid_at_start(where.rank, where.buffer, where.chunk)) continue;
    locations_[id].contributions = 1;
    locations_[id].lowest = where.rank;
  }
  for (Rank rank = 0; rank < state.n; ++rank)
    for (std::int32_t i = 0; i < scratch[rank]; ++i) grow_scratch(rank);
}

Place Memory::place(LocId id) const {
  if (id >= dense_) return scratch_place_[id - dense_];
  const Rank rank = static_cast<Rank>(id / stride_);
  const LocId rest = id % stride_;
  const auto chunks = static_cast<LocId>(state_.chunks);
  for (int b = static_cast<int>(Buffer::output); b >= 0; --b)
    if (used_[b] && rest >= offset_[b] && rest - offset_[b] < chunks)
      return {rank, static_cast<Buffer>(b), static_cast<std::int32_t>(rest - offset_[b])};
  return {rank, Buffer::data, static_cast<std::int32_t>(rest)};
}

std::int32_t Memory::grow_scratch(Rank rank) {
  const auto chunk = static_cast<std::int32_t>(scratch_[rank].size());
  scratch_[rank].push_back(static_cast<LocId>(locations_.size()));
  scratch_place_.push_back({rank, Buffer::scratch, chunk});
  scratch_class_.push_back(-1);
  locations_.emplace_back();
  return chunk;
}

}  // namespace ringleader::lowering
