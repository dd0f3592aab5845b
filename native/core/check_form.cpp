// The form of lowered programs: what can be said without running them.
#include <algorithm>
#include <array>

#include "core/check.hpp"
#include "core/lowered_text.hpp"

namespace ringleader::checking {

namespace {

// Index within its block of the chunk whose size the operand's i-th chunk has.
std::int32_t chunk_class(const Lowered& lowered, const Operand& operand, std::int32_t i) {
  if (operand.buffer == Buffer::scratch) return lowered.layouts[operand.rank].scratch_class[operand.chunk + i];
  return (operand.chunk + i) % (lowered.chunks / lowered.blocks);
}

}  // namespace

bool same_sizes(const Lowered& lowered, const Operand& a, const Operand& b) {
  if (a.count != b.count) return false;
  // Outside scratch the classes follow one another alike, so the first chunk speaks for all.
  const bool dense = a.buffer != Buffer::scratch && b.buffer != Buffer::scratch;
  for (std::int32_t i = 0; i < (dense ? 1 : a.count); ++i)
    if (chunk_class(lowered, a, i) != chunk_class(lowered, b, i)) return false;
  return true;
}

namespace {

class Form {
 public:
  Form(const Lowered& lowered, Report& report) : lowered_(lowered), report_(report) {}

  bool run() {
    if (!sizes()) return false;
    for (rank_ = 0; rank_ < lowered_.n; ++rank_) {
      const RankProgram& program = lowered_.programs[rank_];
      for (index_ = 0; index_ < program.instrs.size(); ++index_)
        if (!ranges(program, program.instrs[index_])) return false;
      for (const auto* waits : {&program.out_waits, &program.free_waits})
        for (const Wait& wait : *waits)
          if (!can_wait(wait)) return stop("waits for rank " + std::to_string(wait.rank) + " at its end");
    }
    written_.resize(lowered_.layouts.size());
    for (rank_ = 0; rank_ < lowered_.n; ++rank_)
      for (std::size_t b = 0; b < 3; ++b) {  // what is rounded at the start is written
        written_[rank_][b] = lowered_.layouts[rank_].rounded[b];
        written_[rank_][b].resize(static_cast<std::size_t>(lowered_.chunks), 0);
      }
    for (rank_ = 0; rank_ < lowered_.n; ++rank_) {
      const RankProgram& program = lowered_.programs[rank_];
      for (index_ = 0; index_ < program.instrs.size(); ++index_) meaning(program, program.instrs[index_]);
    }
    written_flags();
    return true;
  }

 private:
  bool stop(const std::string& why) {
    report_.add("rank " + std::to_string(rank_) + " instruction #" + std::to_string(index_) + ": " + why);
    return false;
  }
  void say(const RankProgram& program, const std::string& why) {
    report_.add("rank " + std::to_string(rank_) + " " + instr_text(program, index_) + ": " + why);
  }
  bool same_node(Rank a) const { return lowered_.node[a] == lowered_.node[rank_]; }
  bool can_wait(const Wait& wait) const {
    return wait.rank >= 0 && wait.rank < lowered_.n && wait.rank != rank_ && same_node(wait.rank);
  }

  bool sizes() {
    const auto n = static_cast<std::size_t>(lowered_.n);
    bool right = lowered_.n >= 1 && lowered_.blocks >= 1 && lowered_.chunks >= 1 &&
                 lowered_.chunks % lowered_.blocks == 0 && lowered_.programs.size() == n &&
                 lowered_.layouts.size() == n && lowered_.node.size() == n;
    for (std::size_t r = 0; right && r < n; ++r) {
      const RankLayout& layout = lowered_.layouts[r];
      for (int b = 0; b < 3; ++b) {
        const std::size_t size = lowered_.layouts[0].reach[b].size();
        right = right && (size == 0 || size == static_cast<std::size_t>(lowered_.chunks)) &&
                layout.reach[b].size() == size && layout.written[b].size() == size && layout.loaded[b].size() == size &&
                (layout.rounded[b].empty() || layout.rounded[b].size() == size);
      }
      right = right && layout.scratch_class.size() == static_cast<std::size_t>(layout.scratch_chunks);
    }
    if (!right) report_.add("programs, layouts and nodes do not have one entry per rank and chunk");
    return right;
  }

  bool ranges(const RankProgram& program, const Instr& instr) {
    const auto inside = [](std::uint32_t first, std::uint32_t n, std::size_t size) {
      return static_cast<std::size_t>(first) + n <= size;
    };
    if (!inside(instr.dst_first, instr.dst_n, program.operands.size()) ||
        !inside(instr.src_first, instr.src_n, program.operands.size()) ||
        !inside(instr.wait_first, instr.wait_n, program.waits.size()) ||
        !inside(instr.dep_first, instr.dep_n, program.deps.size()))
      return stop("operands, waits or dependencies out of range");
    const bool in_order = instr.op == Op::reduce;
    const bool shape = in_order               ? (instr.dst_n == 0) == (instr.src_n == 0)
                       : instr.op == Op::send ? instr.src_n == 1 && instr.dst_n == 0
                                              : instr.src_n == 0 && instr.dst_n == 1;
    if (!shape) return stop("wrong number of operands");
    if (!in_order && (instr.peer < 0 || instr.peer >= lowered_.n || same_node(instr.peer)))
      return stop("network peer " + std::to_string(instr.peer) + " is no rank of another node");
    for (std::uint32_t i = 0; i < instr.wait_n; ++i)
      if (!can_wait(program.waits[instr.wait_first + i])) return stop("waits for a rank of another node or itself");
    for (std::uint32_t i = 0; i < instr.dep_n; ++i)
      if (program.deps[instr.dep_first + i] >= program.instrs.size()) return stop("dependency out of range");
    for (std::uint32_t i = 0; i < instr.dst_n; ++i)
      if (!valid(program.operands[instr.dst_first + i], in_order)) return stop("destination out of range");
    for (std::uint32_t i = 0; i < instr.src_n; ++i)
      if (!valid(program.operands[instr.src_first + i], in_order)) return stop("source out of range");
    return true;
  }

  bool valid(const Operand& operand, bool in_order) const {
    if (operand.rank < 0 || operand.rank >= lowered_.n || operand.count < 1 || operand.chunk < 0) return false;
    if (in_order ? !same_node(operand.rank) : operand.rank != rank_) return false;
    const RankLayout& layout = lowered_.layouts[operand.rank];
    const int b = static_cast<int>(operand.buffer);
    if (b >= kBufferCount) return false;
    const std::int64_t size = operand.buffer == Buffer::scratch ? layout.scratch_chunks
                                                                : static_cast<std::int64_t>(layout.reach[b].size());
    return static_cast<std::int64_t>(operand.chunk) + operand.count <= size;
  }

  void meaning(const RankProgram& program, const Instr& instr) {
    if (instr.dst_n + instr.src_n == 0) return;
    const Operand& head = program.operands[instr.dst_n > 0 ? instr.dst_first : instr.src_first];
    for (std::uint32_t i = 0; i < instr.dst_n + instr.src_n; ++i) {
      const bool dst = i < instr.dst_n;
      const Operand& operand = program.operands[dst ? instr.dst_first + i : instr.src_first + i - instr.dst_n];
      if (!same_sizes(lowered_, operand, head)) say(program, "operands differ in size");
      reach(program, operand, dst);
      if (dst) overlaps(program, instr, operand);
    }
  }

  // May this rank touch the operand in this way?
  void reach(const RankProgram& program, const Operand& operand, bool dst) {
    if (operand.buffer == Buffer::scratch) {
      if (operand.initial) say(program, "scratch has no initial content");
      return;
    }
    const int b = static_cast<int>(operand.buffer);
    for (std::int32_t i = 0; i < operand.count; ++i) {
      const auto chunk = static_cast<std::size_t>(operand.chunk + i);
      if (dst) written_[operand.rank][b][chunk] = 1;
      const Reach reach = lowered_.layouts[operand.rank].reach[b][chunk];
      const auto where = [&] { return chunk_text(operand.rank, operand.buffer, operand.chunk + i, 1); };
      if (operand.rank == rank_) {
        if (operand.initial) say(program, "reads the initial copy of its own " + where());
      } else if (operand.initial) {
        if (dst || reach != Reach::snapshot) say(program, where() + " has no initial copy to use");
      } else if (reach != Reach::shared) {
        say(program, where() + " is not shared, but touched from another rank");
      }
    }
  }

  // All sources of a chunk are read before its destinations are written, chunk by chunk: a source that overlaps a
  // destination but is shifted against it would read what was just written.
  void overlaps(const RankProgram& program, const Instr& instr, const Operand& dst) {
    for (std::uint32_t i = 0; i < instr.src_n; ++i) {
      const Operand& src = program.operands[instr.src_first + i];
      if (src.rank == dst.rank && src.buffer == dst.buffer && !src.initial && src.chunk != dst.chunk &&
          src.chunk < dst.chunk + dst.count && dst.chunk < src.chunk + src.count)
        say(program, "source and destination overlap, shifted");
    }
  }

  void written_flags() {
    for (Rank rank = 0; rank < lowered_.n; ++rank)
      for (int b = 0; b < 3; ++b)
        for (std::size_t chunk = 0; chunk < lowered_.layouts[rank].written[b].size(); ++chunk)
          if (lowered_.layouts[rank].written[b][chunk] != written_[rank][b][chunk])
            report_.add("layout: " + chunk_text(rank, static_cast<Buffer>(b), static_cast<std::int32_t>(chunk), 1) +
                        " is " + (written_[rank][b][chunk] ? "written" : "not written") + ", but marked otherwise");
  }

  const Lowered& lowered_;
  Report& report_;
  Rank rank_ = 0;
  std::size_t index_ = 0;
  std::vector<std::array<std::vector<std::uint8_t>, 3>> written_;
};

}  // namespace

bool check_form(const Lowered& lowered, Report& report) { return Form(lowered, report).run(); }

}  // namespace ringleader::checking
