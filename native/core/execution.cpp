#include "core/execution.hpp"

#include <algorithm>
#include <cstring>

#include "reduce/reduce.hpp"

namespace ringleader {

namespace {

// Work on so much at most is over before a sleeping peer would mind that it is woken only then.
constexpr std::uint64_t kQuickBytes = 256 << 10;

// The upper half: there every bit of what was hashed has come.
std::uint32_t short_history(std::uint64_t history) { return static_cast<std::uint32_t>(history >> 32); }

// Whether two ranks' descriptions are of the same call, whatever came before.
bool same_call(OpInfo one, const OpInfo& other) {
  one.history = other.history;
  return std::memcmp(&one, &other, sizeof one) == 0;
}

}  // namespace

void Execution::begin(const Plan& plan, void* in, void* out, std::uint64_t sequence, std::uint64_t queued,
                      std::uint32_t site) {
  plan_ = &plan;
  program_ = &plan_->program();
  seclusions_ = Arena::seclusions();
  if (seclusions_ != 0) {
    in = Arena::instance().current_address(in);
    out = Arena::instance().current_address(out);
  }
  in_ = static_cast<std::byte*>(in);
  out_ = static_cast<std::byte*>(out);
  if (views_.empty()) views_.resize(static_cast<std::size_t>(mesh_.size));
  cursor_ = 0;
  if (plan_->inlined) {
    registered_bits_ = 0;
    own_slots_ = reinterpret_cast<std::byte*>(mesh_.own->mailbox) + plan_->inline_offset;
    own_slot_bytes_ = sizeof(Mailbox);
    links_.clear();
    polls_ = 0;
  } else {
    prepare_slot();
    find_registered();
    done_.assign(plan_->instrs.size(), 0);
    links_.assign(plan_->links.size(), {});
    for (std::size_t i = 0; i < links_.size(); ++i) {
      const BoundLink& bound = plan_->links[i];
      links_[i].link = mesh_.peers[static_cast<std::size_t>(bound.peer)].links[bound.connection].get();
    }
  }
  // Nothing throws from here on: an operation that could not begin has not happened, so it can be tried again.
  // Of the whole history: where data go one way only, nobody looks at a peer's entry, so a disagreement about such an
  // operation must show in the next one that does.
  history_ = (history_ ^ plan_->info_hash) * 0x9e3779b97f4a7c15u;
  fingerprint_ = history_ & ~kRegisteredMask;
  sequence_.store(sequence, std::memory_order_relaxed);
  past_[sequence % kPast] = history_;
  info_ = plan_->info;
  info_.sequence = sequence;
  info_.history = short_history(history_);
  recorder_.begin(info_, plan_->info_hash, queued, site);
  first_window_ = mesh_.next_window;
  mesh_.next_window += plan_->windows;
  window_ = 0;
  phase_ = Phase::enter;
  Counters::add(mesh_.counters.operations, 1);
  Counters::add(mesh_.counters.windows, plan_->windows);
}

void Execution::finish(RecordState state) {
  if (plan_ != nullptr) recorder_.end(sequence(), state);
  plan_ = nullptr;
  program_ = nullptr;
  phase_ = Phase::done;
}

void Execution::prepare_slot() {
  if (!plan_->uses_slot) return;
  const std::size_t kind = plan_->large_slot ? kLargeSlot : kSmallSlot;
  own_slot_bytes_ = plan_->large_slot ? mesh_.slot_bytes : mesh_.small_slot_bytes;
  std::byte*& slots = mesh_.own_slots[kind];
  if (slots == nullptr) {
    slots = static_cast<std::byte*>(Arena::instance().allocate_pages(2 * own_slot_bytes_));
    mesh_.own->slot_bytes[kind].store(own_slot_bytes_, std::memory_order_relaxed);
    mesh_.own->slot_offset[kind].store(Arena::instance().offset_of(slots), std::memory_order_release);
  }
  own_slots_ = slots;
}

void Execution::find_registered() {
  registered_bits_ = 0;
  if (mesh_.local.empty()) return;
  const Arena& arena = Arena::instance();
  for (std::size_t b = 0; b < 3; ++b) {
    const Plan::Registrable& candidate = plan_->registrable[b];
    std::byte* pointer = candidate.via_out ? out_ : in_;
    if (!candidate.possible || !pointer) continue;
    if (!arena.shared(pointer + candidate.low, static_cast<std::size_t>(candidate.high - candidate.low))) continue;
    registered_bits_ |= std::uint64_t{1} << b;
    own_registered_[b] = pointer + candidate.base_delta;
    base_[b] = arena.offset_of(pointer) + static_cast<std::uint64_t>(candidate.base_delta);
  }
}

std::vector<std::span<std::byte>> Execution::shown() const {
  std::vector<std::span<std::byte>> memory;
  if (plan_ == nullptr || (phase_ == Phase::enter && window_ == 0)) return memory;
  for (std::size_t b = 0; b < 3; ++b) {
    if (!registered(static_cast<std::uint8_t>(b))) continue;
    const Plan::Registrable& shown = plan_->registrable[b];
    std::byte* pointer = shown.via_out ? out_ : in_;
    memory.emplace_back(pointer + shown.low, static_cast<std::size_t>(shown.high - shown.low));
  }
  return memory;
}

// Another communicator's failure may take memory away from its peers in which this operation is: what is stored there
// since, peers do not see. Invariant: asked after each store to registered memory and before peers, or the caller, are
// told that it is there.
void Execution::check_shown() const {
  if (registered_bits_ == 0 || Arena::seclusions() == seclusions_) return;
  for (const auto memory : shown())
    if (!Arena::instance().shared(memory.data(), memory.size()))
      throw Error(ErrorKind::aborted, "memory of " + info().text() +
                                          " had to be taken away from peers, because an operation on the same "
                                          "pages failed in another communicator of this process");
}

// ---- addresses

std::uint64_t Execution::length(const Place& place, std::uint32_t window) const {
  const std::uint64_t start = window * plan_->segment_bytes;
  return place.bytes <= start ? 0 : std::min(plan_->segment_bytes, place.bytes - start);
}

// Within the slot, whose size look_at() has checked, the plan's own numbers decide.
std::byte* Execution::slot(const Place& place, std::uint32_t window) const {
  std::byte* const slot = place.rank == mesh_.rank ? own_slots_ + ((first_window_ + window) & 1) * own_slot_bytes_
                                                   : views_[static_cast<std::size_t>(place.rank)].slot;
  if (slot == nullptr)
    throw Error(ErrorKind::internal, mesh_.name(place.rank) + " shows no staging slot", {place.rank});
  return slot + place.position * plan_->stride;
}

std::byte* Execution::address(const Place& place, std::uint32_t window) const {
  const std::uint64_t start = window * plan_->segment_bytes;
  switch (place.kind) {
    case Place::Kind::user_in: return in_ + place.user + start;
    case Place::Kind::user_out: return out_ + place.user + start;
    case Place::Kind::slot: return slot(place, window);
    case Place::Kind::shared: break;
  }
  if (place.rank != mesh_.rank) return peer_memory(place, window);
  return registered(place.buffer) ? own_registered_[place.buffer] + place.user + start : slot(place, window);
}

// Whatever the peer has said of its registered memory, nothing outside its arena is touched.
std::byte* Execution::peer_memory(const Place& place, std::uint32_t window) const {
  const View& view = views_[static_cast<std::size_t>(place.rank)];
  if (((view.registered >> place.buffer) & 1) == 0) return slot(place, window);
  PeerProcess& process = *mesh_.peers[static_cast<std::size_t>(place.rank)].process;
  const std::uint64_t offset = view.base[place.buffer] + static_cast<std::uint64_t>(place.user) +
                               window * plan_->segment_bytes;
  if (!process.contains(offset, length(place, window)))
    throw Error(ErrorKind::internal, "the registered memory of " + mesh_.name(place.rank) + " lies outside its arena",
                {place.rank});
  return process.base() + offset;
}

// ---- looking at peers

namespace {

// Whether the entry record of a window may have been overwritten: that of the fourth window after it takes its place,
// and is written before the progress word tells of it.
bool far_ahead(const ControlBlock& block, std::uint64_t window) {
  return (block.progress.load(std::memory_order_acquire) >> kCountBits) >= window + kEntrySlots - 1;
}

}  // namespace

void Execution::check_fingerprint(Rank rank) const {
  const ControlBlock& block = mesh_.control(rank);
  const std::uint64_t window = window_number();
  const std::uint64_t theirs = fingerprint_of(block, window) & ~kRegisteredMask;
  if (theirs == fingerprint_) return;
  Entry entry;
  if (!read_entry(block, window, entry)) {
    // Overwritten: what it says now can be compared when this rank is there.
    if (far_ahead(block, window)) return;
    throw Error(ErrorKind::internal, "the entry record of " + mesh_.name(rank) + " is damaged", {rank});
  }
  throw_mismatch(rank, entry.info);
}

// Whether a peer's description shows that it has not run the same operations as this rank, up to its own. Nothing is
// known of operations that this rank has not entered, or long ago.
bool Execution::parted(const OpInfo& theirs) const {
  if (theirs.sequence == 0 || theirs.sequence > sequence() || theirs.sequence + kPast <= sequence()) return false;
  return theirs.history != short_history(past_[theirs.sequence % kPast]);
}

// Invariant: of two ranks of a node of which one waits for what the other will never do, the one that is in the lower
// window - or either, in the same - finds the other's entry for it, or the other finds this one's operation in its
// past. So nobody waits for its limit.
void Execution::compare_local() const {
  const std::uint64_t window = window_number();
  for (const Rank rank : mesh_.local) {
    const ControlBlock& block = mesh_.control(rank);
    const std::uint64_t theirs = block.progress.load(std::memory_order_acquire) >> kCountBits;
    if (theirs == 0) continue;
    if (theirs >= window) check_fingerprint(rank);
    Entry entry;
    if (theirs != window && read_entry(block, theirs, entry)) compare(rank, entry.info);
  }
}

void Execution::compare(Rank rank, const OpInfo& theirs) const {
  if (parted(theirs)) throw_mismatch(rank, theirs);
}

// The peer is known to be in another operation; its entry record says in which, unless it went far ahead since.
void Execution::throw_mismatch(Rank rank) const {
  check_fingerprint(rank);
  throw Error(ErrorKind::mismatch,
              "ranks disagree about the operation: " + mesh_.name(mesh_.rank) + " runs " + info().text() + ", but " +
                  mesh_.name(rank) + " runs another",
              {rank});
}

// `theirs`: where the peer's history was seen to differ. They may have parted before: its last entries tell where.
void Execution::throw_mismatch(Rank rank, OpInfo theirs) const {
  const auto remembered = [this](std::uint64_t sequence) {
    return sequence <= this->sequence() && sequence + recorder_.capacity() > this->sequence();
  };
  if (mesh_.peers[static_cast<std::size_t>(rank)].shared != nullptr) {
    const ControlBlock& block = mesh_.control(rank);
    const std::uint64_t last = block.progress.load(std::memory_order_acquire) >> kCountBits;
    Entry entry;
    for (std::uint64_t back = 0; back < kEntrySlots && back < last; ++back) {
      if (!read_entry(block, last - back, entry) || !remembered(entry.info.sequence)) continue;
      const OpInfo mine = recorder_.operation(entry.info.sequence);
      if (entry.info.sequence < theirs.sequence && entry.info.history != mine.history && !same_call(entry.info, mine))
        theirs = entry.info;
    }
  }
  const OpInfo mine = remembered(theirs.sequence) ? recorder_.operation(theirs.sequence) : info();
  const bool earlier = same_call(theirs, mine);
  const char* const runs = mine.sequence == sequence() ? " runs " : " ran ";
  std::string text =
      std::string("ranks disagree about ") +
      (earlier ? "an earlier operation; now "
               : "the operation: " + mine.beside(theirs, mesh_.name(mesh_.rank), mesh_.name(rank)) + "\n") +
      mesh_.name(mesh_.rank) + runs + mine.text() + ", but " + mesh_.name(rank) + " runs " + theirs.text();
  if (earlier) text += past_text();
  throw Error(ErrorKind::mismatch, text, {rank});
}

// What this rank ran before, for messages about a disagreement that lies there.
std::string Execution::past_text() const {
  std::string text;
  for (std::uint64_t back = 1; back <= 2 && back < sequence(); ++back)
    text += (back == 1 ? "; before it " + mesh_.name(mesh_.rank) + " ran " : ", and before that ") +
            recorder_.operation(sequence() - back).text();
  return text;
}

bool Execution::unanswered() const {
  return !links_.empty() && plan_->blind &&
         std::all_of(plan_->links.begin(), plan_->links.end(),
                     [](const BoundLink& link) { return link.receives.empty(); });
}

// Invariant: called after the peer's progress reached this window, and before any of its memory is touched in it.
void Execution::look_at(Rank rank) {
  View& view = views_[static_cast<std::size_t>(rank)];
  const std::uint64_t window = window_number();
  if (view.window == window) return;
  check_fingerprint(rank);
  view = View{};
  view.window = window;
  const Mesh::Peer& peer = mesh_.peers[static_cast<std::size_t>(rank)];
  const std::size_t kind = plan_->large_slot ? kLargeSlot : kSmallSlot;
  const std::uint64_t offset = peer.shared->slot_offset[kind].load(std::memory_order_acquire);
  const std::uint64_t bytes = peer.shared->slot_bytes[kind].load(std::memory_order_relaxed);
  if (offset != 0) {
    // All ranks have slots of one size, which the plan was made for.
    if (bytes != (plan_->large_slot ? mesh_.slot_bytes : mesh_.small_slot_bytes))
      throw Error(ErrorKind::internal,
                  "the staging slot of " + peer.name + " is said to have " + std::to_string(bytes) + " bytes", {rank});
    if (!peer.process->contains(offset, 2 * bytes))
      throw Error(ErrorKind::internal, "the staging slot of " + peer.name + " lies outside its arena", {rank});
    view.slot = peer.process->base() + offset + (window & 1) * bytes;
  }
  const std::uint64_t bits = fingerprint_of(peer.shared->control, window) & kRegisteredMask;
  if (bits == 0) return;
  Entry entry;
  if (!read_entry(peer.shared->control, window, entry)) {
    // A peer stays in a window while its registered memory may be touched there, but not for its slot, which it only
    // leaves alone. So if it is far ahead (and these bits are those of a later window), its slot is all that this rank
    // can need of it.
    if (far_ahead(peer.shared->control, window)) return;
    throw Error(ErrorKind::internal, "the entry record of " + peer.name + " is damaged", {rank});
  }
  view.registered = static_cast<std::uint8_t>(bits);
  std::copy(std::begin(entry.base), std::end(entry.base), view.base);
}

// At the end of an operation in which this rank waited for nobody. If two such ranks disagree, the one who comes later
// sees it: both have published their entry before (settle() has the fence between) they look, and neither waits for the
// other. Not where an operation repeats the one that was looked at: with a look each time 4 KiB from one rank to
// another took 630 ns instead of 420.
void Execution::look_around() {
  if (plan_->info_hash == looked_) return;
  looked_ = plan_->info_hash;
  for (const Rank rank : mesh_.local)
    if (mesh_.reached(rank, window_number(), 1)) check_fingerprint(rank);
}

bool Execution::wait_satisfied(const Wait& wait) {
  if (!mesh_.reached(wait.rank, window_number(), wait.count)) return false;
  look_at(wait.rank);
  return true;
}

bool Execution::waits_satisfied(const Wait* first, std::size_t n) {
  return std::all_of(first, first + n, [this](const Wait& wait) { return wait_satisfied(wait); });
}

bool Execution::reached_all(const std::vector<Wait>& waits, std::uint64_t window) const {
  return std::all_of(waits.begin(), waits.end(), [&](const Wait& wait) { return reached(wait, window); });
}

bool Execution::ready(const BoundInstr& instr) {
  for (std::uint32_t d = 0; d < instr.dep_n; ++d)
    if (!std::atomic_ref(done_[program_->deps[instr.dep_first + d]]).load(std::memory_order_acquire)) return false;
  return waits_satisfied(program_->waits.data() + instr.wait_first, instr.wait_n);
}

// ---- staging

void Execution::stage_in() {
  const auto copy = [this](const StageCopy& move) -> std::uint64_t {
    const std::uint64_t bytes = length(move.from, window_);
    std::byte *to = address(move.to, window_), *from = address(move.from, window_);
    if (move.round)
      round_to_wire(plan_->wire, reinterpret_cast<float*>(to), reinterpret_cast<const float*>(from),
                    bytes / sizeof(float));
    else if (bytes && to != from)
      std::memmove(to, from, bytes);
    return bytes;
  };
  std::uint64_t staged = 0;
  for (const StageCopy& move : plan_->load)
    if (move.to.kind == Place::Kind::slot || !registered(move.to.buffer)) staged += copy(move);
  if (mesh_.size == 1 && plan_->op == ReduceOp::premul_sum) {
    // The only contribution is also the result, and nothing folds it: scale it on the way through.
    for (const StageCopy& move : plan_->through) {
      void* to = address(move.to, window_);
      const void* from = address(move.from, window_);
      const std::uint8_t raw = 1;
      fold(FoldSpec{plan_->dtype, plan_->op, plan_->factor, 0}, &to, 1, &from, &raw, 1,
           length(move.from, window_) / item_size(plan_->dtype));
    }
  } else {
    for (const StageCopy& move : plan_->through)
      if (move.to.kind != Place::Kind::shared || registered(move.to.buffer)) copy(move);
  }
  Counters::add(mesh_.counters.bytes_staged_in, staged);
}

void Execution::stage_out(std::uint32_t window) {
  std::uint64_t staged = 0;
  for (const StageCopy& move : plan_->store) {
    if (move.from.kind == Place::Kind::shared && registered(move.from.buffer)) continue;
    const std::uint64_t bytes = length(move.from, window);
    if (bytes) std::memcpy(address(move.to, window), address(move.from, window), bytes);
    staged += bytes;
  }
  Counters::add(mesh_.counters.bytes_staged_out, staged);
}

// ---- the machine

void Execution::settle() {
  if (!ring_due_) return;
  ring_due_ = false;
  ring(mesh_.local_blocks);
}

Execution::Step Execution::progress_slots() {
  bool moved = false;
  for (;;) {
    bool advanced = false;
    switch (phase_) {
      case Phase::enter: advanced = enter(); break;
      case Phase::finish_previous:
        advanced = finish_window(window_ - 1);
        if (advanced) phase_ = Phase::run;
        break;
      case Phase::run: advanced = run(); break;
      case Phase::finish_last:
        advanced = finish_window(window_);
        if (advanced) phase_ = Phase::release;
        break;
      case Phase::release:
        // Peers may still read registered user memory; slots are waited for when they are used again.
        advanced = registered_bits_ == 0 || reached_all(program_->free_waits, window_number());
        if (advanced) {
          check_shown();
          phase_ = Phase::done;
          settle();
          if (plan_->blind) look_around();
        }
        break;
      case Phase::done: return Step::done;
    }
    if (!advanced) return moved ? Step::moved : Step::idle;
    moved = true;
  }
}

// Invariant: a slot is written again only after everybody who used it two windows ago has counted past that use.
bool Execution::enter() {
  Mesh::PendingFree& pending = mesh_.pending_free[plan_->large_slot][window_number() & 1];
  if (plan_->uses_slot && pending.waits) {
    if (!reached_all(*pending.waits, pending.window)) return false;
    pending = {};
  }
  stage_in();
  cursor_ = network_cursor_ = 0;
  if (window_ > 0) {
    std::fill(done_.begin(), done_.end(), 0);
    for (LinkState& state : links_) state.next_send = state.next_receive = 0;
  }
  if (!mesh_.local.empty()) {
    publish_entry(mesh_.own->control, window_number(), info(), fingerprint_, registered_bits_, base_);
    publish(1);
  }
  phase_ = window_ > 0 ? Phase::finish_previous : Phase::run;
  return true;
}

bool Execution::finish_window(std::uint32_t window) {
  if (!reached_all(program_->out_waits, first_window_ + window)) return false;
  stage_out(window);
  return true;
}

void Execution::publish(std::uint32_t count) {
  check_shown();
  publish_progress(mesh_.own->control, window_number(), count);
  ring_due_ = true;
  if (plan_->nbytes > kQuickBytes || !links_.empty()) settle();
}

bool Execution::run() {
  bool moved = !links_.empty() && post_network();
  while (cursor_ < plan_->in_order.size()) {
    const std::uint32_t index = plan_->in_order[cursor_];
    const BoundInstr& instr = plan_->instrs[index];
    if (!ready(instr)) break;
    execute(instr);
    done_[index] = 1;
    ++cursor_;
    if (!mesh_.local.empty()) publish(static_cast<std::uint32_t>(cursor_) + 1);
    moved = true;
    if (!links_.empty()) return true;  // let the sockets breathe between instructions
  }
  if (cursor_ < plan_->in_order.size() || !network_done()) return moved;
  if (plan_->uses_slot && !mesh_.local.empty())
    mesh_.pending_free[plan_->large_slot][window_number() & 1] = {window_number(), plan_->lowered(),
                                                                  &program_->free_waits};
  if (window_ + 1 < plan_->windows) {
    ++window_;
    phase_ = Phase::enter;
  } else {
    phase_ = Phase::finish_last;
  }
  return true;
}

void Execution::execute(const BoundInstr& instr) {
  for (std::uint32_t j = 0; j < instr.piece_n; ++j) {
    const PieceRefs& piece = plan_->pieces[instr.piece_first + j];
    const Place* dst = plan_->places.data() + piece.dst_first;
    const Place* src = plan_->places.data() + piece.src_first;
    const std::uint64_t bytes = length(*dst, window_);
    if (bytes == 0) continue;
    dsts_.clear();
    srcs_.clear();
    std::uint64_t written = 0, read = 0;
    for (std::uint32_t d = 0; d < instr.dst_n; ++d) {
      dsts_.push_back(address(dst[d], window_));
      if (dst[d].rank != mesh_.rank) written += bytes;
    }
    for (std::uint32_t s = 0; s < instr.src_n; ++s) {
      srcs_.push_back(address(src[s], window_));
      if (src[s].rank != mesh_.rank) read += bytes;
    }
    if (instr.plain_copy) {
      for (void* to : dsts_)
        if (to != srcs_[0]) std::memcpy(to, srcs_[0], bytes);
    } else if (instr.round) {
      fold_rounded(instr, bytes / instr.fold.item);
    } else {
      fold(instr.fold.spec, dsts_.data(), dsts_.size(), srcs_.data(), plan_->raw.data() + instr.raw_first, srcs_.size(),
           bytes / instr.fold.item);
    }
    Counters::add(mesh_.counters.bytes_written_peer, written);
    Counters::add(mesh_.counters.bytes_read_peer, read);
  }
}

// Folds dsts_ and srcs_, of f32, and rounds the result to the wire format: part by part, so that it is still in the
// caches.
void Execution::fold_rounded(const BoundInstr& instr, std::size_t items) {
  constexpr std::size_t kPart = 64 * kWireBlock;
  for (std::size_t at = 0; at < items; at += kPart) {
    const std::size_t n = std::min(kPart, items - at);
    fold(instr.fold.spec, dsts_.data(), 1, srcs_.data(), plan_->raw.data() + instr.raw_first, srcs_.size(), n);
    const auto* folded = static_cast<const float*>(dsts_[0]);
    // The first destination last: the others are rounded from it.
    for (std::size_t d = dsts_.size(); d-- > 0;) round_to_wire(plan_->wire, static_cast<float*>(dsts_[d]), folded, n);
    for (void*& dst : dsts_) dst = static_cast<float*>(dst) + n;
    for (const void*& src : srcs_) src = static_cast<const float*>(src) + n;
  }
}

}  // namespace ringleader
