// Random schedules: whatever a table says, step by step, the lowered programs do, in any interleaving, without races
// and without getting stuck. Two interpreters, one of tables and one of programs, must agree on every chunk.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <tuple>

#include "test_lower_cases.hpp"

using namespace ringleader;
using namespace ringleader::testing;

namespace {

constexpr std::int32_t kScratch = 3;

struct Value {
  std::uint64_t tree = 0;  // hash of the expression; 0 = holds nothing
  Rank lowest = 0;
};
using Key = std::tuple<Rank, int, std::int32_t>;
using State = std::map<Key, Value>;

Value combine(const Value& a, const Value& b) {
  return {(a.tree * 1000003u) ^ (b.tree + 0x9e3779b97f4a7c15u + (b.tree << 7)), std::min(a.lowest, b.lowest)};
}

State start(const Case& c) {
  State state;
  for (Rank r = 0; r < c.n; ++r)
    for (std::int32_t k = 0; k < c.chunks; ++k)
      state[{r, 0, k}] = {static_cast<std::uint64_t>(r) * 7919 + static_cast<std::uint64_t>(k) * 104729 + 1, r};
  return state;
}

// Tables: all transfers of a step read the state before it; reduces into one chunk are folded by lowest contribution.
State interpret(const Case& c) {
  State state = start(c);
  for (std::size_t at = 0; at < c.table.size();) {
    State next = state;
    std::map<Key, std::vector<Value>> folds;
    const std::int32_t step = c.table[at].step;
    for (; at < c.table.size() && c.table[at].step == step; ++at)
      for (std::int32_t i = 0; i < c.table[at].count; ++i) {
        const Transfer& t = c.table[at];
        // By value: the rows are packed, and a tuple's constructor would bind references to misaligned members.
        const Rank src_rank = t.src_rank, dst_rank = t.dst_rank;
        const Value value = state.at({src_rank, t.src_buffer, t.src_chunk + i});
        const Key to{dst_rank, t.dst_buffer, t.dst_chunk + i};
        if (t.reduce)
          folds[to].push_back(value);
        else
          next[to] = value;
      }
    for (auto& [to, values] : folds) {
      if (state.count(to)) values.insert(values.begin(), state.at(to));
      std::stable_sort(values.begin(), values.end(),
                       [](const Value& a, const Value& b) { return a.lowest < b.lowest; });
      Value sum = values[0];
      for (std::size_t k = 1; k < values.size(); ++k) sum = combine(sum, values[k]);
      next[to] = sum;
    }
    state = std::move(next);
  }
  return state;
}

// Programs: any instruction that may run, runs.
class Machine {
 public:
  Machine(const Case& c, const Lowered& lowered, std::uint64_t seed)
      : lowered_(lowered), state_(start(c)), initial_(state_), random_(seed), count_(lowered.programs.size(), 0) {
    for (const RankProgram& program : lowered.programs) done_.emplace_back(program.instrs.size(), false);
  }

  bool run() {
    std::size_t left = 0;
    for (const auto& done : done_) left += done.size();
    while (left > 0) {
      std::vector<std::pair<Rank, std::size_t>> choice;
      for (Rank r = 0; r < lowered_.n; ++r) collect(r, choice);
      if (choice.empty()) return false;
      const auto [rank, index] = choice[random_() % choice.size()];
      if (index == kEnter)
        ++count_[rank];
      else
        left -= execute(rank, index);
    }
    return true;
  }
  const State& state() const { return state_; }

 private:
  static constexpr std::size_t kEnter = ~std::size_t{0};

  void collect(Rank r, std::vector<std::pair<Rank, std::size_t>>& choice) {
    if (count_[r] == 0) {
      choice.push_back({r, kEnter});
      return;
    }
    const RankProgram& program = lowered_.programs[r];
    std::set<std::tuple<Rank, std::int16_t>> links;
    bool in_order = true;
    for (std::size_t i = 0; i < program.instrs.size(); ++i) {
      if (done_[r][i]) continue;
      const Instr& instr = program.instrs[i];
      if (instr.op == Op::reduce) {
        if (in_order && ready(r, i)) choice.push_back({r, i});
        in_order = false;
      } else if (instr.op == Op::send && links.insert({instr.peer, instr.channel}).second) {
        const std::size_t other = receive_of(r, instr);
        if (count_[instr.peer] > 0 && ready(r, i) && ready(instr.peer, other)) choice.push_back({r, i});
      }
    }
  }

  std::size_t receive_of(Rank r, const Instr& send) const {
    const RankProgram& program = lowered_.programs[send.peer];
    for (std::size_t i = 0; i < program.instrs.size(); ++i) {
      const Instr& instr = program.instrs[i];
      const bool receives = instr.op == Op::recv || instr.op == Op::recv_reduce;
      if (receives && !done_[send.peer][i] && instr.peer == r && instr.channel == send.channel) return i;
    }
    FAIL("a send without a receive");
    return 0;
  }

  bool ready(Rank r, std::size_t i) const {
    const RankProgram& program = lowered_.programs[r];
    const Instr& instr = program.instrs[i];
    for (std::uint32_t w = 0; w < instr.wait_n; ++w) {
      const Wait& wait = program.waits[instr.wait_first + w];
      if (count_[wait.rank] < wait.count) return false;
    }
    for (std::uint32_t d = 0; d < instr.dep_n; ++d)
      if (!done_[r][program.deps[instr.dep_first + d]]) return false;
    return true;
  }

  Value load(const Operand& operand, std::int32_t k) const {
    const State& from = operand.initial ? initial_ : state_;
    const auto found = from.find({operand.rank, static_cast<int>(operand.buffer), operand.chunk + k});
    REQUIRE(found != from.end());
    return found->second;
  }
  void store(const Operand& operand, std::int32_t k, const Value& value) {
    state_[{operand.rank, static_cast<int>(operand.buffer), operand.chunk + k}] = value;
  }

  std::size_t execute(Rank r, std::size_t i) {
    const RankProgram& program = lowered_.programs[r];
    const Instr& instr = program.instrs[i];
    done_[r][i] = true;
    if (instr.op == Op::reduce) {
      const std::int32_t chunks = instr.dst_n > 0 ? program.operands[instr.dst_first].count : 0;
      for (std::int32_t k = 0; k < chunks; ++k) {
        Value sum = load(program.operands[instr.src_first], k);
        for (std::uint32_t s = 1; s < instr.src_n; ++s)
          sum = combine(sum, load(program.operands[instr.src_first + s], k));
        for (std::uint32_t d = 0; d < instr.dst_n; ++d) store(program.operands[instr.dst_first + d], k, sum);
      }
      ++count_[r];
      return 1;
    }
    const std::size_t other = receive_of(r, instr);
    const RankProgram& peer = lowered_.programs[instr.peer];
    const Instr& recv = peer.instrs[other];
    done_[instr.peer][other] = true;
    const Operand& src = program.operands[instr.src_first];
    const Operand& dst = peer.operands[recv.dst_first];
    for (std::int32_t k = 0; k < src.count; ++k) {
      Value value = load(src, k);
      if (recv.op == Op::recv_reduce)
        value = recv.flags & kIncomingFirst ? combine(value, load(dst, k)) : combine(load(dst, k), value);
      store(dst, k, value);
    }
    return 2;
  }

  const Lowered& lowered_;
  State state_;
  const State initial_;
  std::mt19937_64 random_;
  std::vector<std::uint32_t> count_;
  std::vector<std::vector<bool>> done_;
};

// Any table that keeps the rules: reads what is there; a copy is alone in its destination. One chunk per block, so
// that all chunks have one size.
Case random_case(std::mt19937_64& random) {
  const auto below = [&](std::int32_t limit) {
    return static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(limit));
  };
  const Rank n = 2 + below(5);
  Case c{"random", Collective::reduce_scatter, n, 0, n, {}};
  std::set<Key> valid;
  for (Rank r = 0; r < n; ++r)
    for (std::int32_t k = 0; k < n; ++k) valid.insert({r, 0, k});
  const std::int32_t steps = 1 + below(6);
  for (std::int32_t step = 0; step < steps; ++step) {
    std::set<Key> copied, reduced, now = valid;
    const std::int32_t transfers = 1 + below(3 * n);
    for (std::int32_t i = 0; i < transfers; ++i) {
      const auto source = std::next(valid.begin(), below(static_cast<std::int32_t>(valid.size())));
      const auto [src_rank, src_buffer, src_chunk] = *source;
      const bool scratch = below(4) == 0;
      const Rank dst_rank = below(n);
      const std::int32_t dst_chunk = below(scratch ? kScratch : below(2) ? n : 1 + src_chunk % n);
      std::int32_t count = 1;
      while (below(3) == 0 && valid.count({src_rank, src_buffer, src_chunk + count}) &&
             dst_chunk + count < (scratch ? kScratch : n))
        ++count;
      const bool reduce = below(2) == 0;
      const int dst_buffer = scratch ? 3 : 0;
      bool fits = true;
      for (std::int32_t k = 0; k < count; ++k) {
        const Key to{dst_rank, dst_buffer, dst_chunk + k};
        fits = fits && !copied.count(to) && (reduce || !reduced.count(to)) &&
               to != Key{src_rank, src_buffer, src_chunk + k};
      }
      if (!fits) continue;
      for (std::int32_t k = 0; k < count; ++k) {
        (reduce ? reduced : copied).insert({dst_rank, dst_buffer, dst_chunk + k});
        now.insert({dst_rank, dst_buffer, dst_chunk + k});
      }
      Transfer t = transfer(step, src_rank, src_chunk, dst_rank, dst_chunk, reduce, count,
                            static_cast<Buffer>(src_buffer), static_cast<Buffer>(dst_buffer));
      t.channel = static_cast<std::int16_t>(below(2));
      c.table.push_back(t);
    }
    valid = now;
  }
  return c;
}

}  // namespace

TEST_CASE("random schedules: programs do what the table says, without races or deadlocks") {
  std::mt19937_64 random(20240607);
  for (int round = 0; round < 1500; ++round) {
    const Case c = random_case(random);
    std::vector<std::int32_t> node;
    const auto nodes = 1 + random() % 3;
    for (Rank r = 0; r < c.n; ++r) node.push_back(static_cast<std::int32_t>(random() % nodes));
    const LoweredPtr lowered = c.lowered(node, random() % 2 == 0);
    CAPTURE(round);
    for (const std::string& violation : check(*lowered, random()).violations) {
      // a random table computes no collective, and may count contributions twice
      const bool about_result = violation.find("ends with") != std::string::npos;
      const bool about_count = violation.find("final mark") != std::string::npos;
      CHECK_MESSAGE((about_result || about_count || violation.rfind("further", 0) == 0), violation);
    }
    const State expected = interpret(c);
    Machine machine(c, *lowered, random());
    REQUIRE(machine.run());
    for (const auto& [key, value] : expected) {
      const auto& [rank, buffer, chunk] = key;
      CAPTURE(rank);
      CAPTURE(buffer);
      CAPTURE(chunk);
      CHECK(machine.state().at(key).tree == value.tree);
    }
  }
}
