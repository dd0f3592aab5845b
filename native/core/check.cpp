// check: proofs on the lowered form. The programs of all ranks are replayed together in a random order that their
// waits, dependencies and links allow, under a strict model: a message moves only when both ends are ready for it and
// it is first on its link.
//
//   deadlock   nothing can advance. (Whether a replay gets stuck does not depend on its order: every step only ever
//              enables others.)
//   races      two accesses to one location, one of them a write, that are not ordered by program order, dependencies
//              and waits in every interleaving: consecutive conflicting accesses of the replay are tested exactly.
//   order      the k-th send of a link matches the k-th receive.
//   content    every rank ends with the collective's final state, identically associated.
#include "core/check.hpp"

#include <algorithm>
#include <tuple>

#include "core/lowered_text.hpp"

namespace ringleader {

namespace checking {

void Report::add(std::string text) {
  if (++count_ <= kLimit) out_.push_back(std::move(text));
  if (count_ == kLimit + 1) out_.push_back("further violations are left out");
}

std::uint64_t mix(std::uint64_t value) {  // splitmix64
  value += 0x9e3779b97f4a7c15u;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

Facts::Facts(const Lowered& programs)
    : lowered(programs),
      state{programs.collective, programs.n, programs.root, programs.chunks, programs.chunks / programs.blocks} {
  for (const RankProgram& program : lowered.programs) {
    base.push_back(total);
    total += program.instrs.size();
    in_order.emplace_back();
    for (std::uint32_t i = 0; i < program.instrs.size(); ++i) {
      if (program.instrs[i].op == Op::reduce) in_order.back().push_back(i);
      count.push_back(program.instrs[i].op == Op::reduce ? static_cast<std::uint32_t>(in_order.back().size()) + 1 : 0);
    }
  }
}

std::string Facts::text(Rank rank, std::uint32_t index) const {
  return "rank " + std::to_string(rank) + " " + instr_text(lowered.programs[rank], index);
}

namespace {

struct End {
  Rank src, dst;
  std::int16_t channel;
  std::uint32_t index;
  auto link() const { return std::tie(src, dst, channel); }
};

std::vector<End> ends(const Lowered& lowered, bool sends) {
  std::vector<End> out;
  for (Rank rank = 0; rank < lowered.n; ++rank) {
    const RankProgram& program = lowered.programs[rank];
    for (std::uint32_t i = 0; i < program.instrs.size(); ++i) {
      const Instr& instr = program.instrs[i];
      if (instr.op == Op::reduce || (instr.op == Op::send) != sends) continue;
      out.push_back({sends ? rank : instr.peer, sends ? instr.peer : rank, instr.channel, i});
    }
  }
  std::stable_sort(out.begin(), out.end(), [](const End& a, const End& b) { return a.link() < b.link(); });
  return out;
}

// Do both ends of a message mean the same chunks, as far as sizes go?
bool alike(const Facts& facts, const Message& message) {
  const RankProgram& from = facts.lowered.programs[message.src];
  const RankProgram& to = facts.lowered.programs[message.dst];
  return same_sizes(facts.lowered, from.operands[from.instrs[message.send].src_first],
                    to.operands[to.instrs[message.recv].dst_first]);
}

}  // namespace

void match_messages(Facts& facts, Report& report) {
  const std::vector<End> sends = ends(facts.lowered, true), recvs = ends(facts.lowered, false);
  std::size_t r = 0;
  const auto alone = [&](const End& end, bool send) {
    report.add(facts.text(send ? end.src : end.dst, end.index) + ": has no matching " + (send ? "receive" : "send") +
               " at rank " + std::to_string(send ? end.dst : end.src));
  };
  for (std::size_t s = 0; s < sends.size(); ++s) {
    while (r < recvs.size() && recvs[r].link() < sends[s].link()) alone(recvs[r++], false);
    if (r == recvs.size() || recvs[r].link() != sends[s].link()) {
      alone(sends[s], true);
      continue;
    }
    const bool same_link = s > 0 && sends[s - 1].link() == sends[s].link();
    const auto number = static_cast<std::int32_t>(facts.messages.size());
    if (same_link)
      facts.messages.back().next = number;
    else
      facts.first.push_back(number);
    facts.messages.push_back({sends[s].src, sends[s].dst, sends[s].index, recvs[r++].index, -1});
    if (!alike(facts, facts.messages.back()))
      report.add("order: " + facts.text(sends[s].src, sends[s].index) + " meets a receive of another size, " +
                 facts.text(sends[s].dst, facts.messages.back().recv));
  }
  while (r < recvs.size()) alone(recvs[r++], false);
}

}  // namespace checking

CheckReport check(const Lowered& lowered, std::uint64_t seed) {
  using namespace checking;
  CheckReport result;
  Report report(result.violations);
  if (!check_form(lowered, report)) return result;
  for (const RankProgram& program : lowered.programs) {
    result.instructions += program.instrs.size();
    result.waits += program.waits.size() + program.out_waits.size() + program.free_waits.size();
  }
  Facts facts(lowered);
  match_messages(facts, report);
  if (report.count() == 0) replay(facts, seed, report);
  return result;
}

}  // namespace ringleader
