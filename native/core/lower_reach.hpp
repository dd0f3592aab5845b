// Which chunks may be read from their initial copy (Reach::snapshot), and how a step's transfers become moves of two
// sub-steps. Inside lower only.
#pragma once

#include <cstdint>
#include <vector>

#include "core/lower_emit.hpp"

namespace ringleader::lowering {

class Steps {
 public:
  // `order`: rows of the table by step. Marks the snapshot chunks in memory.
  Steps(const CollectiveState& state, Memory& memory, const Builder& builder, const Transfer* table,
        const std::vector<std::uint32_t>& order, bool push);

  // The moves of the step that begins at order[at]: `first` fills scratch chunks with what the step overwrites
  // (exchanges), `then` does the work. Returns the position after the step.
  std::size_t moves(std::size_t at, Large<Move>& first, Large<Move>& then);

 private:
  std::size_t step_end(std::size_t at) const;
  void mark_writes(std::size_t at, std::size_t end);
  void find_snapshots();
  void judge_reads(std::size_t at, std::size_t end);
  void add_move(const Transfer& t, std::uint32_t row, std::int32_t i, Large<Move>& first, Large<Move>& then);
  Rank executor(const Transfer& t) const;
  LocId src_id(const Transfer& t, std::int32_t i) const;
  LocId dst_id(const Transfer& t, std::int32_t i) const;

  const CollectiveState& state_;
  Memory& memory_;
  const Builder& builder_;
  const Transfer* table_;
  const std::vector<std::uint32_t>& order_;
  bool push_;
  Large<std::int32_t> first_write_;  // step of the first write to each location
  Large<std::int32_t> last_write_;   // latest step that writes it, among those seen
  Large<std::uint8_t> reads_;        // see judge_reads
};

}  // namespace ringleader::lowering
