// The inline protocol, for programs in which nobody needs more of the others than what they start with, and little of
// it: payload and flag travel together, in a mailbox of the rank they come from. See docs/architecture.md, "The inline
// protocol".
#include <algorithm>
#include <bit>

#include "core/execution.hpp"

namespace ringleader {

namespace {

// After so many polls in vain a peer is looked at more closely: one in another operation never fills its mailbox.
constexpr std::uint32_t kPatientPolls = 64;

}  // namespace

Execution::Step Execution::progress_inline() {
  bool moved = false;
  switch (phase_) {
    case Phase::enter:
      if (!mailbox_free()) return Step::idle;
      fill_mailbox();
      phase_ = Phase::run;
      moved = true;
      [[fallthrough]];
    case Phase::run:
      for (; cursor_ < plan_->in_order.size(); ++cursor_) {
        const BoundInstr& instr = plan_->instrs[plan_->in_order[cursor_]];
        const Wait* const waits = program_->waits.data() + instr.wait_first;
        for (std::uint32_t w = 0; w < instr.wait_n; ++w)
          if (!arrived(waits[w].rank)) return moved ? Step::moved : Step::idle;
        execute(instr);
        moved = true;
      }
      finish_inline();
      phase_ = Phase::done;
      return Step::done;
    default: return Step::done;
  }
}

// Invariant: a mailbox is written again only after everybody who read it two windows ago is through with that window.
// Where all wait for all, having completed the window between says so, and no peer's memory is looked at for it.
bool Execution::mailbox_free() const {
  Mesh::PendingReaders& pending = mesh_.pending_readers[window_number() & 1];
  for (; pending.readers != 0; pending.readers &= pending.readers - 1)
    if (!mesh_.reached(static_cast<Rank>(std::countr_zero(pending.readers)), pending.window, kMaxCount)) return false;
  return true;
}

// The entry is published like every other: a peer in another operation looks there. Peers in this one poll the mailbox
// only, so that the control block stays in our cache.
void Execution::fill_mailbox() {
  const std::uint64_t window = window_number();
  stage_in();
  publish_entry(mesh_.own->control, window, info(), fingerprint_, 0, base_);
  publish_progress(mesh_.own->control, window, 1);
  Mailbox& mailbox = mesh_.mailbox(mesh_.rank, window);
  mailbox.fingerprint.store(fingerprint_, std::memory_order_relaxed);
  mailbox.window.store(window, std::memory_order_release);
  ring_due_ = true;
}

bool Execution::arrived(Rank rank) {
  View& view = views_[static_cast<std::size_t>(rank)];
  const std::uint64_t window = window_number();
  if (view.window == window) return true;
  Mailbox& mailbox = mesh_.mailbox(rank, window);
  const std::uint64_t filled = mailbox.window.load(std::memory_order_acquire);
  if (filled != window) {
    if (filled > window) throw_mismatch(rank);  // it went on without waiting for us
    if (++polls_ > kPatientPolls && mesh_.reached(rank, window, 1)) check_fingerprint(rank);
    return false;
  }
  if (mailbox.fingerprint.load(std::memory_order_relaxed) != fingerprint_) throw_mismatch(rank);
  view = View{
      window, reinterpret_cast<std::byte*>(&mailbox) + plan_->inline_offset, 0, {}};  // registered memory plays no part
  std::uint64_t& seen = mesh_.peers[static_cast<std::size_t>(rank)].seen;
  seen = std::max(seen, progress_word(window, 1));
  return true;
}

void Execution::finish_inline() {
  const std::uint64_t window = window_number();
  publish_progress(mesh_.own->control, window, kMaxCount);
  mesh_.pending_readers[window & 1] = {window, plan_->inline_readers};
  settle();
  if (plan_->blind) look_around();
}

}  // namespace ringleader
