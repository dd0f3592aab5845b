// Which accesses are ordered whatever the interleaving. An in-order instruction's past is a vector of counts, one per
// rank; almost every question is answered by the waits the rank itself has made, so the full vector is only searched
// for (exactly) where those do not suffice. Messages between nodes order nothing here: accesses to one memory are
// made from one node.
#include <algorithm>

#include "core/check.hpp"

namespace ringleader::checking {

Order::Order(const Facts& facts)
    : facts_(facts),
      local_(facts.lowered.node.size()),
      known_(local_.size()),
      joined_(facts.total, 0),
      index_(local_.size()),
      best_(local_.size(), 0) {
  const std::vector<std::int32_t>& node = facts.lowered.node;
  std::vector<std::size_t> by_node(node.size());
  for (std::size_t r = 0; r < node.size(); ++r) by_node[r] = r;
  std::stable_sort(by_node.begin(), by_node.end(), [&](std::size_t a, std::size_t b) { return node[a] < node[b]; });
  for (std::size_t first = 0; first < by_node.size();) {
    std::size_t end = first;
    while (end < by_node.size() && node[by_node[end]] == node[by_node[first]]) ++end;
    for (std::size_t k = first; k < end; ++k) {
      local_[by_node[k]] = static_cast<std::int32_t>(k - first);
      known_[by_node[k]].assign(end - first, 0);
    }
    first = end;
  }
  find_joined();
}

// A network instruction is joined by the first in-order instruction that depends on it, directly or through others.
void Order::find_joined() {
  std::vector<std::uint32_t> stack;
  for (Rank rank = 0; rank < facts_.lowered.n; ++rank) {
    const RankProgram& program = facts_.lowered.programs[rank];
    for (const std::uint32_t i : facts_.in_order[rank]) {
      stack.assign(1, i);
      while (!stack.empty()) {
        const Instr& instr = program.instrs[stack.back()];
        stack.pop_back();
        for (std::uint32_t d = 0; d < instr.dep_n; ++d) {
          const std::uint32_t dep = program.deps[instr.dep_first + d];
          std::uint32_t& joined = joined_[facts_.number(rank, dep)];
          if (program.instrs[dep].op == Op::reduce || joined != 0) continue;
          joined = facts_.count[facts_.number(rank, i)];
          stack.push_back(dep);
        }
      }
    }
  }
}

void Order::advance(Rank rank, const Instr& instr) {
  const RankProgram& program = facts_.lowered.programs[rank];
  for (std::uint32_t i = 0; i < instr.wait_n; ++i) {
    const Wait& wait = program.waits[instr.wait_first + i];
    std::uint32_t& known = known_[rank][local_[wait.rank]];
    known = std::max(known, wait.count);
  }
}

bool Order::before(Event event, Rank rank, std::uint32_t index) {
  const RankProgram& program = facts_.lowered.programs[rank];
  const Instr& instr = program.instrs[index];
  const std::uint32_t count = facts_.count[facts_.number(rank, index)];
  const bool network = event.code & kNetwork;
  const std::uint32_t target = network ? joined_[facts_.number(event.rank, event.code & ~kNetwork)] : event.code;
  if (count != 0) {  // in order
    if (event.rank == rank) return target != 0 && (network ? target <= count : target < count);
    if (target != 0 && known(rank, event.rank) >= target) return true;
    return search(event, past_of(rank, index));
  }
  for (std::uint32_t i = 0; i < instr.dep_n; ++i) {
    const std::uint32_t dep = program.deps[instr.dep_first + i];
    if (event.rank != rank) continue;
    if (network && dep == (event.code & ~kNetwork)) return true;
    const std::uint32_t passed = facts_.count[facts_.number(rank, dep)];
    if (target != 0 && passed >= target) return true;
  }
  for (std::uint32_t i = 0; i < instr.wait_n && target != 0; ++i) {
    const Wait& wait = program.waits[instr.wait_first + i];
    if (wait.rank == event.rank && wait.count >= target) return true;
  }
  return search(event, past_of(rank, index));
}

bool Order::before_end(Event event, Rank rank, const std::vector<Wait>& first, const std::vector<Wait>* second) {
  if (event.rank == rank) return true;  // the rank has finished its own program
  const std::uint32_t target = event.code & kNetwork ? joined_[facts_.number(event.rank, event.code & ~kNetwork)]
                                                     : event.code;
  if (target != 0 && known(rank, event.rank) >= target) return true;
  Past past;
  past.rank = rank;
  past.own = static_cast<std::uint32_t>(facts_.in_order[rank].size()) + 1;
  past.waits = first;
  if (second) past.waits.insert(past.waits.end(), second->begin(), second->end());
  for (const Wait& wait : past.waits)
    if (target != 0 && wait.rank == event.rank && wait.count >= target) return true;
  const RankProgram& program = facts_.lowered.programs[rank];
  for (const Instr& instr : program.instrs)
    if (instr.op != Op::reduce)
      past.waits.insert(past.waits.end(), program.waits.begin() + instr.wait_first,
                        program.waits.begin() + instr.wait_first + instr.wait_n);
  return search(event, past);
}

Order::Past Order::past_of(Rank rank, std::uint32_t index) const {
  const RankProgram& program = facts_.lowered.programs[rank];
  Past past;
  past.rank = rank;
  past.own = facts_.count[facts_.number(rank, index)];
  if (past.own != 0) return past;
  std::vector<std::uint32_t> stack(1, index);
  std::vector<std::uint8_t> seen(program.instrs.size(), 0);
  while (!stack.empty()) {
    const Instr& instr = program.instrs[stack.back()];
    stack.pop_back();
    past.waits.insert(past.waits.end(), program.waits.begin() + instr.wait_first,
                      program.waits.begin() + instr.wait_first + instr.wait_n);
    for (std::uint32_t i = 0; i < instr.dep_n; ++i) {
      const std::uint32_t dep = program.deps[instr.dep_first + i];
      past.own = std::max(past.own, facts_.count[facts_.number(rank, dep)]);
      if (program.instrs[dep].op == Op::reduce || seen[dep]) continue;
      seen[dep] = 1;
      past.network.push_back(dep);
      stack.push_back(dep);
    }
  }
  return past;
}

const std::vector<Order::Passed>& Order::index(Rank rank) {
  if (index_[rank]) return *index_[rank];
  auto list = std::make_unique<std::vector<Passed>>();
  const RankProgram& program = facts_.lowered.programs[rank];
  for (std::uint32_t i = 0; i < program.instrs.size(); ++i) {
    const Instr& instr = program.instrs[i];
    const std::size_t number = facts_.number(rank, i);
    const std::uint32_t at = instr.op == Op::reduce ? facts_.count[number] : joined_[number];
    for (std::uint32_t w = 0; w < instr.wait_n && at != 0; ++w)
      list->push_back({program.waits[instr.wait_first + w].rank, at, program.waits[instr.wait_first + w].count});
  }
  std::sort(list->begin(), list->end(),
            [](const Passed& a, const Passed& b) { return a.peer != b.peer ? a.peer < b.peer : a.at < b.at; });
  for (std::size_t i = 1; i < list->size(); ++i)
    if ((*list)[i].peer == (*list)[i - 1].peer) (*list)[i].count = std::max((*list)[i].count, (*list)[i - 1].count);
  index_[rank] = std::move(list);
  return *index_[rank];
}

// Backwards from the past: which count of every rank is certainly behind it? A wait for count c of a rank brings in
// all that rank had waited for by then.
bool Order::search(Event event, const Past& past) {
  std::uint32_t target = event.code;
  if (event.code & kNetwork) {
    const std::uint32_t number = event.code & ~kNetwork;
    if (event.rank == past.rank && std::find(past.network.begin(), past.network.end(), number) != past.network.end())
      return true;
    target = joined_[facts_.number(event.rank, number)];
    if (target == 0) return false;  // no other instruction can tell that it has finished
  }
  std::fill(best_.begin(), best_.end(), 0);
  std::vector<Rank> work;
  const auto raise = [&](Rank rank, std::uint32_t count) {
    if (best_[rank] >= count) return;
    best_[rank] = count;
    work.push_back(rank);
  };
  raise(past.rank, past.own);
  for (const Wait& wait : past.waits) raise(wait.rank, wait.count);
  while (!work.empty() && best_[event.rank] < target) {
    const Rank rank = work.back();
    work.pop_back();
    for (const Passed& passed : index(rank))
      if (passed.at <= best_[rank]) raise(passed.peer, passed.count);
  }
  return best_[event.rank] >= target;
}

}  // namespace ringleader::checking
