// What an execution waits for, for sleepers and for messages.
#include <algorithm>
#include <bit>

#include "core/execution.hpp"

namespace ringleader {

// In the inline protocol a peer's entry counts: its flag comes right after. Seeing more than the flag here matters
// where the peer is in another operation and never sets it.
bool Execution::reached(const Wait& wait, std::uint64_t window) const {
  return mesh_.reached(wait.rank, window, wait.count);
}

bool Execution::can_move() const {
  const auto instr_ready = [this](const BoundInstr& instr) {
    for (std::uint32_t d = 0; d < instr.dep_n; ++d)
      if (!done_[program_->deps[instr.dep_first + d]]) return false;
    for (std::uint32_t w = 0; w < instr.wait_n; ++w) {
      const Wait& wait = program_->waits[instr.wait_first + w];
      if (!reached(wait, window_number())) return false;
    }
    return true;
  };
  switch (phase_) {
    case Phase::enter: {
      if (plan_->inlined) return mailbox_free();
      const Mesh::PendingFree& pending = mesh_.pending_free[plan_->large_slot][window_number() & 1];
      return !pending.waits || reached_all(*pending.waits, pending.window);
    }
    case Phase::finish_previous: return reached_all(program_->out_waits, window_number() - 1);
    case Phase::finish_last: return reached_all(program_->out_waits, window_number());
    case Phase::release: return reached_all(program_->free_waits, window_number());
    case Phase::done: return true;
    case Phase::run: break;
  }
  if (cursor_ < plan_->in_order.size() && instr_ready(plan_->instrs[plan_->in_order[cursor_]])) return true;
  for (std::size_t i = 0; i < links_.size(); ++i) {
    const BoundLink& bound = plan_->links[i];
    const LinkState& state = links_[i];
    if (state.next_send < bound.sends.size() && instr_ready(plan_->instrs[bound.sends[state.next_send]])) return true;
    if (state.next_receive < bound.receives.size() && instr_ready(plan_->instrs[bound.receives[state.next_receive]]))
      return true;
  }
  return false;
}

// Whether a peer of this node holds something up now, or what it did lets something go on. Peers tell by a doorbell,
// which a sleep on descriptors hears only when it ends.
bool Execution::waits_in_memory() const {
  if (mesh_.local.empty()) return false;
  if (phase_ != Phase::run) return true;
  const auto only_memory = [this](const BoundInstr& instr) {
    const std::uint32_t* const deps = program_->deps.data() + instr.dep_first;
    return instr.wait_n > 0 &&
           std::all_of(deps, deps + instr.dep_n, [this](std::uint32_t dep) { return done_[dep] != 0; });
  };
  if (cursor_ < plan_->in_order.size() && only_memory(plan_->instrs[plan_->in_order[cursor_]])) return true;
  for (std::size_t i = 0; i < links_.size(); ++i) {
    const BoundLink& bound = plan_->links[i];
    const LinkState& state = links_[i];
    if (state.next_send < bound.sends.size() && only_memory(plan_->instrs[bound.sends[state.next_send]])) return true;
    if (state.next_receive < bound.receives.size() && only_memory(plan_->instrs[bound.receives[state.next_receive]]))
      return true;
  }
  return false;
}

bool Execution::unhurried() const {
  if (links_.empty() || waits_in_memory()) return false;
  bool any = false;
  for (const LinkState& state : links_) {
    const Haste haste = state.link->haste();
    if (haste == Haste::prompt) return false;
    any |= haste == Haste::unhurried;
  }
  return any;
}

void Execution::poll_descriptors(std::vector<pollfd>& fds) const {
  for (const LinkState& state : links_) {
    if (state.link->poll_fd() < 0 || !state.link->poll_events()) continue;
    state.link->prepare_sleep();
    fds.push_back(pollfd{state.link->poll_fd(), state.link->poll_events(), 0});
  }
}

// What holds this rank up in shared memory now, reached or not.
template <class Visit>
bool Execution::each_wait(Visit&& visit) const {
  const auto all = [&](const std::vector<Wait>& waits, std::uint64_t window) {
    return std::all_of(waits.begin(), waits.end(), [&](const Wait& wait) { return visit(wait, window); });
  };
  switch (phase_) {
    case Phase::enter: {
      if (plan_->inlined) {
        const Mesh::PendingReaders& pending = mesh_.pending_readers[window_number() & 1];
        for (std::uint64_t rest = pending.readers; rest != 0; rest &= rest - 1)
          if (!visit(Wait{static_cast<Rank>(std::countr_zero(rest)), kMaxCount}, pending.window)) return false;
        return true;
      }
      const Mesh::PendingFree& pending = mesh_.pending_free[plan_->large_slot][window_number() & 1];
      return !pending.waits || all(*pending.waits, pending.window);
    }
    case Phase::finish_previous: return all(program_->out_waits, window_number() - 1);
    case Phase::finish_last: return all(program_->out_waits, window_number());
    case Phase::release: return all(program_->free_waits, window_number());
    case Phase::done: return true;
    case Phase::run: break;
  }
  if (cursor_ == plan_->in_order.size()) return true;
  const BoundInstr& instr = plan_->instrs[plan_->in_order[cursor_]];
  const Wait* const first = program_->waits.data() + instr.wait_first;
  return std::all_of(first, first + instr.wait_n, [&](const Wait& wait) { return visit(wait, window_number()); });
}

std::vector<Rank> Execution::blocked_on() const {
  std::vector<Rank> ranks;
  if (!plan_) return ranks;
  each_wait([&](const Wait& wait, std::uint64_t window) {
    if (!reached(wait, window)) ranks.push_back(wait.rank);
    return true;
  });
  if (phase_ == Phase::run)
    for (const BoundLink& bound : plan_->links) {
      const auto open = [this](std::uint32_t index) { return !done_[index]; };
      if (std::any_of(bound.receives.begin(), bound.receives.end(), open) ||
          std::any_of(bound.sends.begin(), bound.sends.end(), open))
        ranks.push_back(bound.peer);
    }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

bool Execution::waits_elsewhere(std::uint32_t core) const {
  bool any = false;
  const bool none_here = each_wait([&](const Wait& wait, std::uint64_t window) {
    if (reached(wait, window)) return true;
    any = true;
    const std::uint32_t theirs = mesh_.control(wait.rank).core.load(std::memory_order_relaxed);
    return theirs != 0 && theirs != core;
  });
  return any && none_here && links_.empty();
}

std::string Execution::describe() const {
  if (!plan_) return "nothing";
  return info().text() + " (window " + std::to_string(window_ + 1) + " of " + std::to_string(plan_->windows) +
         ", step " + std::to_string(cursor_) + " of " + std::to_string(plan_->in_order.size()) + " here)";
}

}  // namespace ringleader
