// From drafts to instructions: multi-source and multi-destination fusion, network sequences, and the record of what
// each instruction did to memory.
#include <algorithm>

#include "core/lower_emit.hpp"
#include "core/lower_emit_detail.hpp"

namespace ringleader::lowering {

namespace {
Operand operand(Place place, std::int32_t count, bool raw = false, bool initial = false) {
  return {place.rank,  place.buffer, static_cast<std::uint8_t>(raw), static_cast<std::uint8_t>(initial),
          place.chunk, count};
}
bool names(const Operand& operand, Place place, std::int32_t count) {
  return operand.rank == place.rank && operand.buffer == place.buffer && operand.chunk == place.chunk &&
         operand.count == count;
}
Place shifted(Place place, std::int32_t i) { return {place.rank, place.buffer, place.chunk + i}; }
}  // namespace

void Emitter::record_write(LocId id, Rank owner, Event event, std::int32_t held, Rank lowest) {
  Location& location = memory_[id];
  location.writer = event;
  memory_.forget_readers(id);
  location.contributions = held;
  location.lowest = lowest;
  location.written = true;
  location.remote = location.remote || owner != event.rank;
}

void Emitter::tell_wire(const Draft& draft, std::int32_t i, Event event) {
  wire_sources_.clear();
  for (const Source& source : draft.sources) wire_sources_.push_back({id(source.place, i), source.initial});
  if (wire_sources_.size() == 1)
    wire_->copy(wire_sources_[0], id(draft.dst, i));
  else
    wire_->fold(wire_sources_, id(draft.dst, i), event);
}

void Emitter::record(const Draft& draft, Event event) {
  for (std::int32_t i = 0; i < draft.count; ++i) {
    if (wire_) tell_wire(draft, i, event);
    std::int32_t held = 0;
    Rank lowest = state_.n;
    for (const Source& source : draft.sources) {
      const LocId from = id(source.place, i);
      const auto [part, part_lowest] = contributions(from, source.initial, source.place.rank);
      held += part;
      lowest = std::min(lowest, part_lowest);
      Location& location = memory_[from];
      location.loaded = location.loaded || source.initial || location.writer.rank == kNobody;
      if (source.initial) {
        std::vector<Event>& readers = snapshot_reads_[source.place.rank];
        if (readers.empty() || !(readers.back() == event)) readers.push_back(event);
      } else if (!source.own) {
        location.remote = location.remote || source.place.rank != event.rank;
        memory_.add_reader(from, event);
      }
    }
    record_write(id(draft.dst, i), draft.dst.rank, event, held, lowest);
  }
}

void Emitter::emit_in_order(const Draft& draft, const Needs& needs) {
  const Event event = builder_.append(Op::reduce, draft.final ? kFinal : std::uint8_t{0}, 0, -1, needs);
  builder_.add_dst(draft.executor, operand(draft.dst, draft.count));
  for (const Source& source : draft.sources)
    builder_.add_src(draft.executor, operand(source.place, draft.count, source.raw, source.initial));
  record(draft, event);
}

void Emitter::emit_in_order(const Draft& draft) {
  builder_.begin(needs_, draft.executor, true);
  for (std::int32_t i = 0; i < draft.count; ++i)
    each_conflict(draft, i, [&](Event event) { builder_.add(needs_, event); });
  emit_in_order(draft, needs_);
}

// Multi-destination fusion. A copy of exactly what this executor's earlier in-order instruction produced becomes a
// further destination of it, provided that instruction had already passed everything the copy conflicts with: then
// nobody can see the difference, and the result is written while it is in registers.
bool Emitter::fuse(const Draft& draft) {
  if (draft.sources.size() != 1) return false;
  const Source& source = draft.sources[0];
  if (source.own || source.initial || source.place.rank != draft.executor) return false;
  const Event producer = memory_[id(source.place, 0)].writer;
  if (producer.rank != draft.executor || (producer.code & kNetwork)) return false;
  for (std::int32_t i = 1; i < draft.count; ++i)
    if (!(memory_[id(source.place, i)].writer == producer)) return false;
  if (!fits(draft, producer)) return false;
  builder_.add_fused(producer, operand(draft.dst, draft.count));
  for (std::int32_t i = 0; i < draft.count; ++i) {
    const Location from = memory_[id(source.place, i)];
    if (wire_) wire_->copy({id(source.place, i), false}, id(draft.dst, i));
    record_write(id(draft.dst, i), draft.dst.rank, producer, from.contributions, from.lowest);
  }
  return true;
}

bool Emitter::fits(const Draft& draft, Event producer) const {
  const Instr& instr = builder_.instr(producer);
  const std::vector<Operand>& operands = builder_.program(producer.rank).operands;
  if (!names(operands[instr.dst_first], draft.sources[0].place, draft.count)) return false;
  // The producer may itself read the new destination: it reads all before it writes all, chunk by chunk, so only the
  // same chunk of the range may be read. (Ranges that overlap but are shifted would read what was just written.)
  for (std::uint32_t i = 0; i < instr.src_n && draft.count > 1; ++i) {
    const Operand& read = operands[instr.src_first + i];
    if (read.rank == draft.dst.rank && read.buffer == draft.dst.buffer && read.chunk != draft.dst.chunk &&
        read.chunk < draft.dst.chunk + draft.count && draft.dst.chunk < read.chunk + read.count)
      return false;
  }
  bool passed = true;
  for (std::int32_t i = 0; i < draft.count && passed; ++i) {
    const LocId to = id(draft.dst, i);
    if (memory_[to].writer == producer) return false;
    builder_.each_write_conflict(draft.executor, draft.dst.rank, to, [&](Event event) {
      passed = passed && (event == producer || builder_.passed(producer, event));
    });
  }
  return passed;
}

// A message from source to dst: emitted at both ends at once, so their order agrees on every link.
void Emitter::emit_message(const Source& source, Place dst, std::int32_t count, std::uint8_t flags, bool reduce) {
  Draft message;
  message.count = count;
  message.dst = dst;
  if (reduce) {
    const bool reducing = is_reducing(state_.collective);
    if (reducing && memory_[id(dst, 0)].contributions == 1) flags |= kDstRaw;
    if (reducing && memory_[id(source.place, 0)].contributions == 1) flags |= kIncomingRaw;
    message.sources.push_back({dst, source.transfer, 0, true, false, false, false});
  }
  builder_.begin(send_needs_, source.place.rank, false);
  builder_.begin(recv_needs_, dst.rank, false);
  for (std::int32_t i = 0; i < count; ++i) {
    builder_.each_read_conflict(source.place.rank, source.place.rank, id(source.place, i), false,
                                [&](Event event) { builder_.add(send_needs_, event); });
    builder_.each_write_conflict(dst.rank, dst.rank, id(dst, i),
                                 [&](Event event) { builder_.add(recv_needs_, event); });
  }
  const Event sent = builder_.append(Op::send, 0, source.channel, dst.rank, send_needs_);
  builder_.add_src(source.place.rank, operand(source.place, count));
  const Op op = reduce ? Op::recv_reduce : Op::recv;
  const Event received = builder_.append(op, flags, source.channel, source.place.rank, recv_needs_);
  builder_.add_dst(dst.rank, operand(dst, count));
  for (std::int32_t i = 0; i < count; ++i) {
    const LocId from = id(source.place, i), to = id(dst, i);
    Location& location = memory_[from];
    location.loaded = location.loaded || location.writer.rank == kNobody;
    memory_.add_reader(from, sent);
    std::int32_t held = location.contributions;
    Rank lowest = location.lowest;
    if (reduce) {
      Location& into = memory_[to];
      into.loaded = into.loaded || into.writer.rank == kNobody;
      held += into.contributions;
      lowest = std::min(lowest, into.lowest);
      if (wire_) wire_->message_fold(from, to, (flags & kIncomingFirst) != 0, received);
    } else if (wire_) {
      wire_->message(from, to);
    }
    record_write(to, dst.rank, received, held, lowest);
  }
}

// A reduction with sources from the network. The fold is from the left, so what stands before and at the
// destination's own content comes first, and each later message is folded in as it arrives.
void Emitter::emit_network(const Draft& from) {
  Draft draft = from;
  std::size_t next = emit_prefix(draft);
  while (next < draft.sources.size()) {
    const bool last_one = next + 1 == draft.sources.size();
    if (draft.sources[next].network) {
      emit_message(draft.sources[next], draft.dst, draft.count, draft.final && last_one ? kFinal : std::uint8_t{0},
                   true);
      ++next;
      continue;
    }
    Draft local;  // a run of sources from this node: one in-order instruction onto what is there
    local.executor = draft.executor;
    local.count = draft.count;
    local.dst = draft.dst;
    const bool own_raw = is_reducing(state_.collective) && memory_[id(draft.dst, 0)].contributions == 1;
    local.sources.push_back({draft.dst, draft.sources[next].transfer, 0, true, false, false, own_raw});
    while (next < draft.sources.size() && !draft.sources[next].network) local.sources.push_back(draft.sources[next++]);
    local.final = draft.final && next == draft.sources.size();
    emit_in_order(local);
  }
}

// Emits the sources up to the destination's own content (the first one where it has none), with any from this node that
// follow. Returns how many sources that were.
std::size_t Emitter::emit_prefix(Draft& draft) {
  std::vector<Source>& sources = draft.sources;
  const auto own = std::find_if(sources.begin(), sources.end(), [](const Source& s) { return s.own; });
  const bool has_own = own != sources.end();
  std::size_t end = has_own ? static_cast<std::size_t>(own - sources.begin()) + 1 : 1;
  if (!has_own && sources[0].network) {
    emit_message(sources[0], draft.dst, draft.count, 0, false);
    return 1;
  }
  if (end == 2 && sources[0].network) {
    const std::uint8_t final = draft.final && sources.size() == 2 ? kFinal : std::uint8_t{0};
    emit_message(sources[0], draft.dst, draft.count, kIncomingFirst | final, true);
    return 2;
  }
  while (end < sources.size() && !sources[end].network) ++end;
  if (has_own && end == 1) return 1;  // the own content is the first operand, and is where it should be
  // In front of the own content there is more than one message could bring: collect in scratch, fold in one go.
  Draft local;
  local.executor = draft.executor;
  local.count = draft.count;
  local.dst = draft.dst;
  for (std::size_t k = 0; k < end; ++k) {
    Source source = sources[k];
    if (source.network) {
      Place scratch{draft.dst.rank, Buffer::scratch, 0};
      for (std::int32_t i = 0; i < draft.count; ++i) {
        const std::int32_t chunk = memory_.grow_scratch(draft.dst.rank);
        if (i == 0) scratch.chunk = chunk;
        memory_.set_scratch_class(shifted(scratch, i), memory_.chunk_class(shifted(source.place, i)));
      }
      emit_message(source, scratch, draft.count, 0, false);
      source.place = scratch;
      source.network = false;
    }
    local.sources.push_back(source);
  }
  if (local.sources.size() == 1) local.sources[0].raw = false;  // a copy: the fold that follows scales it
  local.final = draft.final && end == sources.size();
  emit_in_order(local);
  return end;
}

}  // namespace ringleader::lowering
