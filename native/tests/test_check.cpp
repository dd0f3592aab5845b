// The proofs themselves: right programs pass, and every mutation that matters is reported. What "matters" is told by an
// independent oracle: brute-force reachability over all instructions of all ranks.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "core/lowered_text.hpp"
#include "test_lower_cases.hpp"

using namespace ringleader;
using namespace ringleader::testing;

namespace {

std::string first_of(const CheckReport& report) { return report.violations.empty() ? "" : report.violations[0]; }

bool mentions(const CheckReport& report, const std::string& word) {
  return std::any_of(report.violations.begin(), report.violations.end(),
                     [&](const std::string& text) { return text.find(word) != std::string::npos; });
}

// Which instructions certainly finish before which others, by program order, dependencies and waits. Vertices: every
// rank's entry, then its instructions; an extra vertex per rank for its end.
class Reachability {
 public:
  explicit Reachability(const Lowered& lowered) : lowered_(lowered) {
    std::size_t total = 0;
    for (const RankProgram& program : lowered.programs) {
      base_.push_back(total);
      total += program.instrs.size() + 2;
    }
    before_.assign(total, {});
    for (Rank r = 0; r < lowered.n; ++r) {
      const RankProgram& program = lowered.programs[r];
      std::size_t previous = entry(r);
      const std::size_t end = base_[r] + program.instrs.size() + 1;
      for (std::size_t i = 0; i < program.instrs.size(); ++i) {
        const Instr& instr = program.instrs[i];
        before_[vertex(r, i)].push_back(entry(r));
        before_[end].push_back(vertex(r, i));
        if (instr.op == Op::reduce) {
          before_[vertex(r, i)].push_back(previous);
          previous = vertex(r, i);
        }
        for (std::uint32_t k = 0; k < instr.wait_n; ++k)
          before_[vertex(r, i)].push_back(reached(program.waits[instr.wait_first + k]));
        for (std::uint32_t k = 0; k < instr.dep_n; ++k)
          before_[vertex(r, i)].push_back(vertex(r, program.deps[instr.dep_first + k]));
      }
      for (const auto* waits : {&program.out_waits, &program.free_waits})
        for (const Wait& wait : *waits) before_[end].push_back(reached(wait));
    }
  }
  std::size_t entry(Rank r) const { return base_[r]; }
  std::size_t vertex(Rank r, std::size_t instr) const { return base_[r] + 1 + instr; }
  std::size_t end(Rank r) const { return base_[r] + lowered_.programs[r].instrs.size() + 1; }
  std::size_t reached(const Wait& wait) const {
    std::uint32_t count = 1;
    std::size_t at = entry(wait.rank);
    const RankProgram& program = lowered_.programs[wait.rank];
    for (std::size_t i = 0; i < program.instrs.size() && count < wait.count; ++i)
      if (program.instrs[i].op == Op::reduce) {
        ++count;
        at = vertex(wait.rank, i);
      }
    return at;
  }
  bool ordered(std::size_t earlier, std::size_t later) const {
    std::vector<std::uint8_t> seen(before_.size(), 0);
    std::vector<std::size_t> stack(1, later);
    while (!stack.empty()) {
      const std::size_t at = stack.back();
      stack.pop_back();
      for (const std::size_t next : before_[at]) {
        if (next == earlier) return true;
        if (!seen[next]) stack.push_back(next);
        seen[next] = 1;
      }
    }
    return false;
  }

 private:
  const Lowered& lowered_;
  std::vector<std::size_t> base_;
  std::vector<std::vector<std::size_t>> before_;
};

struct Tally {
  int reported = 0, redundant = 0;
};

// Small cases of every kind on every placement: what the mutation tests run over.
template <class Visit>
void each_small(Visit&& visit) {
  std::vector<Case> cases{ring(3), ring(4),       one_shot(3),      two_shot(3, 2),     doubling(4),
                          tree(5), all_to_all(3), dissemination(4), rotating_gather(4), hierarchical(2, 2)};
  for (const Case& c : cases)
    for (const auto& node : placements(c.n))
      for (const bool push : {true, false}) {
        const LoweredPtr lowered = c.lowered(node, push);
        CAPTURE(c.name);
        CAPTURE(push);
        CAPTURE(node);
        visit(c, *lowered);
      }
}

}  // namespace

TEST_CASE("every case is proved on every placement, whatever the seed") {
  for (const Case& c : all_cases())
    for (const auto& node : placements(c.n))
      for (const bool push : {true, false}) {
        const LoweredPtr lowered = c.lowered(node, push);
        for (std::uint64_t seed = 0; seed < 3; ++seed) {
          const CheckReport report = check(*lowered, seed);
          CAPTURE(c.name);
          CAPTURE(c.n);
          CAPTURE(push);
          CHECK_MESSAGE(report.violations.empty(), first_of(report));
        }
      }
}

TEST_CASE("a dropped wait is reported unless another path gives the same order") {
  Tally tally;
  each_small([&](const Case&, const Lowered& lowered) {
    for (Rank r = 0; r < lowered.n; ++r)
      for (std::size_t i = 0; i < lowered.programs[r].instrs.size(); ++i)
        for (std::uint32_t w = 0; w < lowered.programs[r].instrs[i].wait_n; ++w) {
          Lowered mutant = lowered;
          RankProgram& program = mutant.programs[r];
          Instr& instr = program.instrs[i];
          const Wait dropped = program.waits[instr.wait_first + w];
          std::swap(program.waits[instr.wait_first + w], program.waits[instr.wait_first + instr.wait_n - 1]);
          --instr.wait_n;
          const Reachability reach(mutant);
          const bool redundant = reach.ordered(reach.reached(dropped), reach.vertex(r, i));
          const CheckReport report = check(mutant, i);
          ++(redundant ? tally.redundant : tally.reported);
          CHECK_MESSAGE(report.violations.empty() == redundant,
                        "without (" << dropped.rank << " >= " << dropped.count
                                    << "): " << instr_text(lowered.programs[r], i) << ": " << first_of(report));
          if (!redundant) CHECK_MESSAGE(mentions(report, "race"), first_of(report));
        }
  });
  CHECK(tally.reported > 300);
  CHECK(tally.redundant < tally.reported / 4);  // pruning leaves little that is not needed
}

TEST_CASE("a wait for one count less is reported unless another path gives the same order") {
  int reported = 0;
  each_small([&](const Case&, const Lowered& lowered) {
    for (Rank r = 0; r < lowered.n; ++r)
      for (std::size_t i = 0; i < lowered.programs[r].instrs.size(); ++i)
        for (std::uint32_t w = 0; w < lowered.programs[r].instrs[i].wait_n; ++w) {
          Lowered mutant = lowered;
          Wait& wait = mutant.programs[r].waits[mutant.programs[r].instrs[i].wait_first + w];
          const Wait whole = wait;
          if (wait.count < 2) continue;
          --wait.count;
          const Reachability reach(mutant);
          const bool redundant = reach.ordered(reach.reached(whole), reach.vertex(r, i));
          const CheckReport report = check(mutant, i);
          reported += !redundant;
          CHECK_MESSAGE(report.violations.empty() == redundant, instr_text(lowered.programs[r], i));
        }
  });
  CHECK(reported > 100);
}

TEST_CASE("a dropped dependency is reported unless another path gives the same order") {
  Tally tally;
  each_small([&](const Case&, const Lowered& lowered) {
    for (Rank r = 0; r < lowered.n; ++r)
      for (std::size_t i = 0; i < lowered.programs[r].instrs.size(); ++i)
        for (std::uint32_t d = 0; d < lowered.programs[r].instrs[i].dep_n; ++d) {
          Lowered mutant = lowered;
          RankProgram& program = mutant.programs[r];
          Instr& instr = program.instrs[i];
          const std::uint32_t dropped = program.deps[instr.dep_first + d];
          std::swap(program.deps[instr.dep_first + d], program.deps[instr.dep_first + instr.dep_n - 1]);
          --instr.dep_n;
          const Reachability reach(mutant);
          const bool redundant = reach.ordered(reach.vertex(r, dropped), reach.vertex(r, i));
          const CheckReport report = check(mutant, i);
          ++(redundant ? tally.redundant : tally.reported);
          CHECK_MESSAGE(report.violations.empty() == redundant, "without #" << dropped << ": "
                                                                            << instr_text(lowered.programs[r], i)
                                                                            << ": " << first_of(report));
        }
  });
  CHECK(tally.reported > 200);
}

TEST_CASE("dropped waits before reading out and before reuse are reported") {
  int reported = 0;
  each_small([&](const Case&, const Lowered& lowered) {
    for (Rank r = 0; r < lowered.n; ++r)
      for (const bool out : {true, false}) {
        const RankProgram& program = lowered.programs[r];
        for (std::size_t w = 0; w < (out ? program.out_waits : program.free_waits).size(); ++w) {
          Lowered mutant = lowered;
          std::vector<Wait>& waits = out ? mutant.programs[r].out_waits : mutant.programs[r].free_waits;
          const Wait dropped = waits[w];
          waits.erase(waits.begin() + static_cast<std::ptrdiff_t>(w));
          // what is waited for before reading out is behind us at reuse too; the other way round it is not
          Lowered early = mutant;
          if (out) early.programs[r].free_waits.clear();
          const Reachability reach(early);
          const bool redundant = reach.ordered(reach.reached(dropped), reach.end(r));
          const CheckReport report = check(mutant, w);
          reported += !redundant;
          CHECK_MESSAGE(report.violations.empty() == redundant, first_of(report));
        }
      }
  });
  CHECK(reported > 100);
}

TEST_CASE("an instruction that does nothing is reported") {
  each_small([&](const Case&, const Lowered& lowered) {
    for (Rank r = 0; r < lowered.n; ++r)
      for (std::size_t i = 0; i < lowered.programs[r].instrs.size(); ++i) {
        if (lowered.programs[r].instrs[i].op != Op::reduce || lowered.programs[r].instrs[i].dst_n == 0) continue;
        Lowered mutant = lowered;
        mutant.programs[r].instrs[i].dst_n = mutant.programs[r].instrs[i].src_n = 0;
        CHECK_FALSE(check(mutant, i).violations.empty());
        if (lowered.programs[r].instrs[i].dst_n == 1) continue;
        mutant = lowered;
        --mutant.programs[r].instrs[i].dst_n;  // one destination of a fused instruction
        CHECK_FALSE(check(mutant, i).violations.empty());
      }
  });
}

TEST_CASE("a send or a receive without its other end is reported") {
  each_small([&](const Case&, const Lowered& lowered) {
    for (Rank r = 0; r < lowered.n; ++r)
      for (std::size_t i = 0; i < lowered.programs[r].instrs.size(); ++i) {
        if (lowered.programs[r].instrs[i].op == Op::reduce) continue;
        Lowered mutant = lowered;
        Instr& instr = mutant.programs[r].instrs[i];
        instr.op = Op::reduce;
        instr.dst_n = instr.src_n = 0;
        CHECK(mentions(check(mutant, i), "no matching"));
      }
  });
}

TEST_CASE("messages out of order on a link are reported") {
  const Case c = ring(4);
  const LoweredPtr lowered = c.lowered({0, 1, 2, 3});
  Lowered mutant = *lowered;
  std::vector<std::size_t> sends;
  for (std::size_t i = 0; i < mutant.programs[1].instrs.size(); ++i)
    if (mutant.programs[1].instrs[i].op == Op::send) sends.push_back(i);
  REQUIRE(sends.size() == 6);
  Instr& a = mutant.programs[1].instrs[sends[0]];
  Instr& b = mutant.programs[1].instrs[sends[1]];
  std::swap(a.src_first, b.src_first);
  std::swap(a.dep_first, b.dep_first);
  std::swap(a.dep_n, b.dep_n);
  CHECK_FALSE(check(mutant, 1).violations.empty());
}

TEST_CASE("swapped in-order instructions are reported") {
  const LoweredPtr lowered = ring(4).lowered({0, 0, 0, 0});
  for (std::size_t i = 0; i + 1 < lowered->programs[2].instrs.size(); ++i) {
    Lowered mutant = *lowered;
    std::swap(mutant.programs[2].instrs[i], mutant.programs[2].instrs[i + 1]);
    CAPTURE(i);
    CHECK_FALSE(check(mutant, i).violations.empty());
  }
}

TEST_CASE("a cycle of waits is a deadlock that names the instructions") {
  Lowered mutant = *two_shot(2).lowered({0, 0});
  for (Rank r = 0; r < 2; ++r) {
    Instr& instr = mutant.programs[r].instrs[0];
    REQUIRE(instr.wait_n == 1);
    mutant.programs[r].waits[instr.wait_first].count = 2;
  }
  const CheckReport report = check(mutant, 0);
  CHECK(mentions(report, "deadlock"));
  CHECK(mentions(report, "rank 0 #0 reduce"));
  CHECK(mentions(report, "needs rank 0 to reach 2, which stands at 1"));
}

TEST_CASE("crossing messages are a deadlock under rendezvous") {
  // Two ranks on two nodes, each first sending, then receiving in the same step: staging makes it work...
  const LoweredPtr lowered = doubling(2).lowered({0, 1});
  CHECK(check(*lowered, 0).violations.empty());
  // ... and if each receive also needed the rank's own send to be over, nothing could move.
  Lowered mutant = *lowered;
  for (RankProgram& program : mutant.programs) {
    std::uint32_t send = 0;
    for (std::uint32_t i = 0; i < program.instrs.size(); ++i)
      if (program.instrs[i].op == Op::send) send = i;
    for (Instr& instr : program.instrs)
      if (instr.op == Op::recv) {
        instr.dep_first = static_cast<std::uint32_t>(program.deps.size());
        instr.dep_n = 1;
        program.deps.push_back(send);
      }
  }
  CHECK(mentions(check(mutant, 0), "deadlock"));
}

TEST_CASE("wrong flags are reported") {
  each_small([&](const Case& c, const Lowered& lowered) {
    if (c.collective != Collective::all_reduce) return;
    for (Rank r = 0; r < lowered.n; ++r)
      for (std::size_t i = 0; i < lowered.programs[r].instrs.size(); ++i) {
        const Instr& instr = lowered.programs[r].instrs[i];
        for (const std::uint8_t bit : {kFinal, kDstRaw, kIncomingRaw}) {
          const bool folds = instr.op == Op::reduce && instr.dst_n > 0 && bit == kFinal;
          if (!folds && instr.op != Op::recv_reduce) continue;
          Lowered mutant = lowered;
          mutant.programs[r].instrs[i].flags ^= bit;
          CHECK(mentions(check(mutant, i), "flags"));
        }
        for (std::uint32_t s = 0; s < instr.src_n && instr.op == Op::reduce; ++s) {
          Lowered mutant = lowered;
          mutant.programs[r].operands[instr.src_first + s].raw ^= 1;
          CHECK(mentions(check(mutant, i), "flags"));
          mutant = lowered;
          mutant.programs[r].operands[instr.src_first + s].initial ^= 1;
          CHECK_FALSE(check(mutant, i).violations.empty());
        }
      }
  });
}

TEST_CASE("a fold in another order on one rank is reported as association") {
  for (const auto& node : {std::vector<std::int32_t>{0, 0, 0, 0}, std::vector<std::int32_t>{0, 1, 2, 3}}) {
    const LoweredPtr lowered = one_shot(4).lowered(node);
    Lowered mutant = *lowered;
    for (Instr& instr : mutant.programs[3].instrs)
      if (instr.src_n > 2) {
        Operand* sources = mutant.programs[3].operands.data() + instr.src_first;
        std::swap(sources[0], sources[1]);
      } else if (instr.op == Op::recv_reduce) {
        instr.flags ^= kIncomingFirst;
      }
    CHECK(mentions(check(mutant, 0), "association: rank 3"));
  }
}

TEST_CASE("wrong layouts are reported") {
  each_small([&](const Case&, const Lowered& lowered) {
    for (Rank r = 0; r < lowered.n; ++r)
      for (int b = 0; b < 3; ++b)
        for (std::size_t k = 0; k < lowered.layouts[r].reach[b].size(); ++k) {
          Lowered mutant = lowered;
          mutant.layouts[r].written[b][k] ^= 1;
          CHECK(mentions(check(mutant, k), "layout"));
          if (lowered.layouts[r].loaded[b][k]) {
            mutant = lowered;
            mutant.layouts[r].loaded[b][k] = 0;
            CHECK(mentions(check(mutant, k), "holds nothing"));
          }
          if (lowered.layouts[r].reach[b][k] != Reach::private_) {
            mutant = lowered;
            mutant.layouts[r].reach[b][k] = Reach::private_;
            CHECK_FALSE(check(mutant, k).violations.empty());
          }
        }
  });
}

TEST_CASE("nonsense is refused, not followed") {
  const LoweredPtr lowered = ring(3).lowered({0, 0, 1});
  Lowered mutant = *lowered;
  mutant.programs[0].instrs[0].src_first = 1u << 30;
  CHECK_FALSE(check(mutant, 0).violations.empty());
  mutant = *lowered;
  for (Operand& operand : mutant.programs[1].operands) operand.chunk = 99;
  CHECK_FALSE(check(mutant, 0).violations.empty());
  mutant = *lowered;
  mutant.programs.pop_back();
  CHECK_FALSE(check(mutant, 0).violations.empty());
  mutant = *lowered;
  mutant.layouts[1].loaded[0].clear();
  CHECK_FALSE(check(mutant, 0).violations.empty());
}
