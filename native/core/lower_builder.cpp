#include "core/lower_builder.hpp"

#include <algorithm>
#include <map>

namespace ringleader::lowering {

namespace {
constexpr std::size_t kMaxCount = 1u << 20;  // a progress counter is window << 20 | count
}

Builder::Builder(Memory& memory, Rank n, const std::vector<std::int32_t>& node)
    : memory_(memory), node_(node), local_(static_cast<std::size_t>(n)), ranks_(static_cast<std::size_t>(n)) {
  std::map<std::int32_t, std::int32_t> sizes;
  for (Rank rank = 0; rank < n; ++rank) local_[rank] = sizes[node_[rank]]++;
  for (Rank rank = 0; rank < n; ++rank) ranks_[rank].known.resize(static_cast<std::size_t>(sizes[node_[rank]]));
}

void Builder::begin(Needs& needs, Rank executor, bool in_order) const {
  needs.count.resize(node_.size(), 0);
  for (const Rank rank : needs.touched) needs.count[rank] = 0;
  needs.touched.clear();
  needs.published.clear();
  needs.deps.clear();
  needs.own = 0;
  needs.executor = executor;
  needs.in_order = in_order;
}

std::uint32_t Builder::known_at(Rank executor, Rank peer, std::uint32_t count) const {
  const Known& entry = known(executor, peer);
  if (entry.at <= count) return entry.count;
  return entry.earlier_at <= count ? entry.earlier_count : 0;
}

bool Builder::implied(const Needs& needs, Event event) const {
  const Rank executor = needs.executor;
  const bool network = event.code & kNetwork;
  if (event.rank != executor) {
    std::uint32_t count = event.code;
    if (network) {
      count = ranks_[event.rank].joined[index(event)];
      if (count == 0) return std::find(needs.published.begin(), needs.published.end(), event) != needs.published.end();
    }
    if (needs.count[event.rank] >= count) return true;
    return known_at(executor, event.rank, needs.in_order ? ~0u : needs.own) >= count;
  }
  if (!network) return needs.in_order || needs.own >= event.code;
  const std::uint32_t joined = ranks_[executor].joined[index(event)];
  if (joined != 0 && (needs.in_order || joined <= needs.own)) return true;
  return std::find(needs.deps.begin(), needs.deps.end(), index(event)) != needs.deps.end();
}

void Builder::add(Needs& needs, Event event) const {
  if (implied(needs, event)) return;
  const bool network = event.code & kNetwork;
  if (event.rank == needs.executor) {
    if (network)
      needs.deps.push_back(index(event));
    else
      needs.own = event.code;  // not implied, so later than what was there
    return;
  }
  std::uint32_t count = event.code;
  if (network && (count = ranks_[event.rank].joined[index(event)]) == 0) {
    needs.published.push_back(event);
    return;
  }
  if (needs.count[event.rank] == 0) needs.touched.push_back(event.rank);
  needs.count[event.rank] = count;
}

std::uint32_t Builder::publish(Event event) {
  const std::uint32_t target = index(event);
  const std::uint32_t joined = ranks_[event.rank].joined[target];
  if (joined != 0) return joined;
  Needs needs;
  begin(needs, event.rank, true);
  needs.deps.push_back(target);
  return append(Op::reduce, 0, 0, -1, needs).code;
}

Event Builder::append(Op op, std::uint8_t flags, std::int16_t channel, Rank peer, const Needs& collected) {
  Needs resolved;
  const Needs* needs = &collected;
  if (!collected.published.empty()) {  // publications go into other ranks' programs, before this instruction
    resolved = collected;
    for (const Event event : collected.published) {
      const std::uint32_t count = publish(event);
      if (resolved.count[event.rank] == 0) resolved.touched.push_back(event.rank);
      resolved.count[event.rank] = std::max(resolved.count[event.rank], count);
    }
    needs = &resolved;
  }
  RankState& state = ranks_[collected.executor];
  const auto at = static_cast<std::uint32_t>(state.program.instrs.size());
  Instr instr{};
  instr.op = op;
  instr.flags = flags;
  instr.channel = channel;
  instr.peer = peer;
  instr.dst_first = instr.src_first = static_cast<std::uint32_t>(state.program.operands.size());
  instr.wait_first = static_cast<std::uint32_t>(state.program.waits.size());
  instr.dep_first = static_cast<std::uint32_t>(state.program.deps.size());
  Event event{collected.executor, kNetwork | at};
  if (op == Op::reduce) {
    state.in_order.push_back(at);
    event.code = static_cast<std::uint32_t>(state.in_order.size()) + 1;
  }
  append_waits(state, *needs, event.code);
  append_deps(state, *needs, event.code);
  instr.wait_n = static_cast<std::uint32_t>(state.program.waits.size()) - instr.wait_first;
  instr.dep_n = static_cast<std::uint32_t>(state.program.deps.size()) - instr.dep_first;
  state.program.instrs.push_back(instr);
  state.joined.push_back(0);
  return event;
}

void Builder::append_waits(RankState& state, const Needs& needs, std::uint32_t count) {
  for (const Rank peer : needs.touched) {
    const std::uint32_t need = needs.count[peer];
    Known& entry = state.known[local_[peer]];
    if (needs.in_order) {
      if (entry.count >= need) continue;
      entry = {need, count, entry.count, entry.at};
    } else if (known_at(needs.executor, peer, needs.own) >= need) {
      continue;
    }
    state.program.waits.push_back({peer, need});
  }
}

void Builder::append_deps(RankState& state, const Needs& needs, std::uint32_t count) {
  if (!needs.in_order && needs.own != 0) state.program.deps.push_back(state.in_order[needs.own - 2]);
  for (const std::uint32_t dep : needs.deps) {
    const std::uint32_t joined = state.joined[dep];
    if (joined != 0 && (needs.in_order || joined <= needs.own)) continue;  // joined since it was collected
    state.program.deps.push_back(dep);
    if (needs.in_order) state.joined[dep] = count;
  }
}

void Builder::add_dst(Rank executor, const Operand& operand) {
  RankProgram& program = ranks_[executor].program;
  program.operands.push_back(operand);
  ++program.instrs.back().dst_n;
  ++program.instrs.back().src_first;
}

void Builder::add_src(Rank executor, const Operand& operand) {
  RankProgram& program = ranks_[executor].program;
  program.operands.push_back(operand);
  ++program.instrs.back().src_n;
}

bool Builder::passed(Event at, Event event) const {
  const bool network = event.code & kNetwork;
  if (network) {
    const std::uint32_t joined = ranks_[event.rank].joined[index(event)];
    if (joined == 0) return false;
    event.code = joined;
    if (event.rank == at.rank) return joined <= at.code;
  }
  if (event.rank == at.rank) return event.code < at.code;
  return known_at(at.rank, event.rank, at.code) >= event.code;
}

bool Builder::passed_at_end(Rank rank, Event event) const { return known(rank, event.rank).count >= event.code; }

void Builder::merge_fused(RankState& state) {
  if (state.fused.empty()) return;
  RankProgram& program = state.program;
  std::stable_sort(state.fused.begin(), state.fused.end(),
                   [](const Fused& a, const Fused& b) { return a.instr < b.instr; });
  std::vector<Operand> operands;
  operands.reserve(program.operands.size() + state.fused.size());
  auto next = state.fused.begin();
  for (std::uint32_t i = 0; i < program.instrs.size(); ++i) {
    Instr& instr = program.instrs[i];
    const auto old_dst = program.operands.begin() + instr.dst_first;
    const auto old_src = program.operands.begin() + instr.src_first;
    instr.dst_first = static_cast<std::uint32_t>(operands.size());
    operands.insert(operands.end(), old_dst, old_dst + instr.dst_n);
    for (; next != state.fused.end() && next->instr == i; ++next, ++instr.dst_n) operands.push_back(next->dst);
    instr.src_first = static_cast<std::uint32_t>(operands.size());
    operands.insert(operands.end(), old_src, old_src + instr.src_n);
  }
  program.operands = std::move(operands);
}

std::vector<RankProgram> Builder::take() {
  std::vector<RankProgram> programs;
  programs.reserve(ranks_.size());
  for (RankState& state : ranks_) {
    if (state.in_order.size() + 2 > kMaxCount)
      throw Error(ErrorKind::invalid, "a rank has " + std::to_string(state.in_order.size()) +
                                          " shared-memory instructions; at most " + std::to_string(kMaxCount - 2) +
                                          " fit the progress counter: use fewer chunks");
    merge_fused(state);
    programs.push_back(std::move(state.program));
  }
  return programs;
}

}  // namespace ringleader::lowering
