#include "core/lowered_text.hpp"

#include "core/lower_states.hpp"

namespace ringleader {

namespace {

std::string operand_text(const Operand& operand) {
  std::string text = chunk_text(operand.rank, operand.buffer, operand.chunk, operand.count);
  if (operand.initial) text += " initial";
  if (operand.raw) text += " raw";
  return text;
}

std::string list_text(const RankProgram& program, std::uint32_t first, std::uint32_t n, const char* between) {
  std::string text;
  for (std::uint32_t i = 0; i < n; ++i) {
    if (i > 0) text += between;
    text += operand_text(program.operands[first + i]);
  }
  return text;
}

std::string waits_text(const Wait* waits, std::size_t n) {
  std::string text;
  for (std::size_t i = 0; i < n; ++i)
    text += " (" + std::to_string(waits[i].rank) + " >= " + std::to_string(waits[i].count) + ")";
  return text;
}

std::string work_text(const RankProgram& program, const Instr& instr) {
  const std::string dst = list_text(program, instr.dst_first, instr.dst_n, " and ");
  const std::string src = list_text(program, instr.src_first, instr.src_n, " + ");
  const std::string link = "rank " + std::to_string(instr.peer) + " channel " + std::to_string(instr.channel);
  switch (instr.op) {
    case Op::reduce:
      if (instr.dst_n == 0) return "publish";
      return std::string(instr.src_n > 1 ? "reduce " : "copy ") + dst + " = " + src;
    case Op::send: return "send " + src + " -> " + link;
    case Op::recv: return "recv " + dst + " <- " + link;
    case Op::recv_reduce:
      if (instr.flags & kIncomingFirst) return "recv_reduce " + dst + " = incoming + own <- " + link;
      return "recv_reduce " + dst + " = own + incoming <- " + link;
  }
  return "?";
}

}  // namespace

std::string instr_text(const RankProgram& program, std::size_t index) {
  const Instr& instr = program.instrs[index];
  std::string text("#");
  text.append(std::to_string(index)).append(" ").append(work_text(program, instr));
  if (instr.flags & kFinal) text += " final";
  if (instr.flags & kRound) text += " rounded";
  if (instr.flags & kDstRaw) text += " dst-raw";
  if (instr.flags & kIncomingRaw) text += " incoming-raw";
  if (instr.wait_n > 0) text += "  waits" + waits_text(program.waits.data() + instr.wait_first, instr.wait_n);
  if (instr.dep_n > 0) text += "  after";
  for (std::uint32_t i = 0; i < instr.dep_n; ++i) text += " #" + std::to_string(program.deps[instr.dep_first + i]);
  return text;
}

std::string program_text(const Lowered& lowered, Rank rank) {
  const RankProgram& program = lowered.programs.at(static_cast<std::size_t>(rank));
  std::string text;
  std::uint32_t count = 2;
  for (std::size_t i = 0; i < program.instrs.size(); ++i) {
    text += instr_text(program, i);
    if (program.instrs[i].op == Op::reduce) text += "  counts " + std::to_string(count++);
    text += "\n";
  }
  if (!program.out_waits.empty())
    text += "before reading out: waits" + waits_text(program.out_waits.data(), program.out_waits.size()) + "\n";
  if (!program.free_waits.empty())
    text += "before reuse: waits" + waits_text(program.free_waits.data(), program.free_waits.size()) + "\n";
  return text;
}

}  // namespace ringleader
