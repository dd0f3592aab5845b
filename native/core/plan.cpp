#include "core/plan.hpp"

#include <algorithm>
#include <limits>

#include "core/geometry.hpp"
#include "core/mesh.hpp"
#include "transport/shm/control.hpp"

namespace ringleader {

namespace {

constexpr std::uint32_t kNoPosition = std::numeric_limits<std::uint32_t>::max();
constexpr std::uint64_t kLine = 64;  // positions in a slot are whole cache lines
constexpr Rank kMaskRanks = 64;      // ranks that Plan::inline_readers has bits for

std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) { return (value + unit - 1) / unit * unit; }

bool reduces(Collective collective) {
  return collective == Collective::all_reduce || collective == Collective::reduce ||
         collective == Collective::reduce_scatter || collective == Collective::barrier;
}

// Positions of one rank's staged chunks in its slot. They follow from the lowered schedule and the collective alone, so
// that every rank knows every other rank's: this is what makes slot addresses and window counts agree.
struct Positions {
  std::vector<std::uint32_t> visible[3];  // what peers (and, for shared chunks, the owner) use
  std::vector<std::uint32_t> work[3];     // the owner's own copy where it has no user memory to work in
  std::uint32_t scratch = 0;              // first scratch chunk
  std::uint32_t total = 0;

  Positions(const Lowered& lowered, Rank rank, const UserMap& user) {
    const RankLayout& layout = lowered.layouts[static_cast<std::size_t>(rank)];
    for (std::size_t b = 0; b < 3; ++b) {
      const std::size_t chunks = layout.reach[b].size();
      visible[b].assign(chunks, kNoPosition);
      work[b].assign(chunks, kNoPosition);
      for (std::size_t c = 0; c < chunks; ++c) {
        const bool has_output = user.output(static_cast<Buffer>(b), static_cast<std::int32_t>(c)).has_value();
        if (layout.reach[b][c] != Reach::private_) visible[b][c] = total++;
        if (layout.reach[b][c] != Reach::shared && layout.written[b][c] && !has_output) work[b][c] = total++;
      }
    }
    scratch = total;
    total += static_cast<std::uint32_t>(layout.scratch_chunks);
  }
};

}  // namespace

class PlanBuilder {
 public:
  PlanBuilder(Plan& plan, const PlanRequest& request) : plan_(plan), request_(request), lowered_(*request.lowered) {
    geometry_ = Geometry{lowered_.chunks, lowered_.blocks, lowered_.chunks / lowered_.blocks, request.count,
                         item_size(request.dtype)};
  }

  void build() {
    check();
    plan_.rank_ = request_.rank;
    plan_.lowered_ = request_.lowered;
    plan_.info = request_.info;
    plan_.dtype = request_.dtype;
    plan_.op = request_.op;
    plan_.factor = request_.factor;
    plan_.wire = request_.wire;
    plan_.info.wire = static_cast<std::uint8_t>(request_.wire);
    cut_windows();
    user_extents();
    for (const Instr& instr : plan_.program().instrs) bind(instr);
    if (plan_.in_order.size() + 2 > kMaxCount)
      throw Error(ErrorKind::invalid, "a program of " + std::to_string(plan_.in_order.size()) +
                                          " instructions is too long for the progress counter");
    stage();
    plan_.blind = plan_.program().waits.empty() && plan_.program().out_waits.empty();
    plan_.inlined = fits_inline();
    if (plan_.inlined) {
      find_readers();
    } else {
      find_registrable();
    }
    plan_.info.inlined = plan_.inlined;
    plan_.info.sequence = 0;
    plan_.info_hash = plan_.info.fingerprint();
  }

 private:
  void check() const {
    const Collective collective = lowered_.collective;
    if (reduces(collective) && (request_.op == ReduceOp::none || !supported(request_.dtype, request_.op)))
      throw Error(ErrorKind::invalid, std::string(name(collective)) + ": operation " + name(request_.op) +
                                          " is not offered for " + name(request_.dtype));
    const bool encoded = request_.wire != WireFormat::f32;
    if (encoded && request_.dtype != DType::f32)
      throw Error(ErrorKind::invalid,
                  std::string("wire format ") + name(request_.wire) + " is for float32, not " + name(request_.dtype));
    if (encoded != lowered_.wire)
      throw Error(ErrorKind::invalid, std::string("the schedule was lowered ") + (lowered_.wire ? "for" : "without") +
                                          " a wire format, but messages are to be sent as " + name(request_.wire));
    const auto limit = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    const auto unit = static_cast<std::uint64_t>(geometry_.item) * static_cast<std::uint64_t>(lowered_.blocks);
    if (request_.count > limit / unit)
      throw Error(ErrorKind::invalid, "count " + std::to_string(request_.count) + " overflows 63-bit sizes");
  }

  UserMap user(Rank rank) const { return UserMap{lowered_.collective, rank, lowered_.root, &geometry_}; }

  const RankLayout& layout(Rank rank) const { return lowered_.layouts[static_cast<std::size_t>(rank)]; }

  const Positions& positions(Rank rank) const { return positions_[static_cast<std::size_t>(rank)]; }

  void cut_windows() {
    for (Rank r = 0; r < lowered_.n; ++r) {
      positions_.emplace_back(lowered_, r, user(r));
      most_ = std::max<std::uint64_t>(most_, positions_.back().total);
    }
    const std::uint64_t most = most_;
    const std::uint64_t chunk = geometry_.max_chunk_bytes();
    plan_.uses_slot = positions(request_.rank).total > 0;
    // In a wire format windows are cut between blocks, so that blocks count from the start of a chunk, however it is
    // cut.
    const std::uint64_t unit = request_.wire == WireFormat::f32 ? kLine : kWireBlock * sizeof(float);
    plan_.segment_bytes = plan_.stride = std::max(unit, round_up(chunk, unit));
    if (most * plan_.stride <= request_.small_slot_bytes) return;  // also: nothing is staged anywhere
    plan_.large_slot = true;
    const std::uint64_t room = request_.slot_bytes / most / unit * unit;
    if (room == 0)
      throw Error(ErrorKind::invalid, "a staging slot of " + std::to_string(request_.slot_bytes) +
                                          " bytes cannot hold " + std::to_string(most) +
                                          " chunks; set RINGLEADER_BUFFSIZE to at least " +
                                          std::to_string(most * unit));
    const std::uint64_t windows = (chunk + room - 1) / room;
    plan_.windows = static_cast<std::uint32_t>(windows);
    plan_.segment_bytes = plan_.stride = std::min(room, round_up((chunk + windows - 1) / windows, unit));
  }

  void user_extents() {
    const UserMap own = user(request_.rank);
    const std::uint64_t total = geometry_.total_bytes(), block = geometry_.block_bytes();
    const Buffer in = lowered_.collective == Collective::all_to_all ? Buffer::input : Buffer::data;
    const Buffer out = lowered_.collective == Collective::all_to_all ? Buffer::output : Buffer::data;
    const auto extent = [&](auto&& has) {
      std::uint64_t blocks = 0;
      for (std::int32_t b = 0; b < lowered_.blocks; ++b) blocks += has(b * geometry_.per_block) ? 1 : 0;
      return blocks * block;
    };
    plan_.in_bytes = extent([&](std::int32_t c) { return own.input(in, c).has_value(); });
    plan_.out_bytes = extent([&](std::int32_t c) { return own.output(out, c).has_value(); });
    plan_.nbytes = std::max({plan_.in_bytes, plan_.out_bytes, lowered_.blocks == 1 ? total : block});
  }

  Place own_place(Buffer buffer, std::int32_t chunk) const {
    const Rank rank = request_.rank;
    const auto b = static_cast<std::size_t>(buffer), c = static_cast<std::size_t>(chunk);
    const std::uint64_t bytes = geometry_.chunk_bytes(chunk);
    if (layout(rank).reach[b][c] == Reach::shared) return shared_place(rank, buffer, chunk);
    const UserMap own = user(rank);
    if (const auto out = own.output(buffer, chunk))
      return Place{Place::Kind::user_out, static_cast<std::uint8_t>(b), rank, 0, *out, bytes};
    if (positions(rank).work[b][c] != kNoPosition)
      return Place{Place::Kind::slot, static_cast<std::uint8_t>(b), rank, positions(rank).work[b][c], 0, bytes};
    if (const auto in = own.input(buffer, chunk))
      return Place{Place::Kind::user_in, static_cast<std::uint8_t>(b), rank, 0, *in, bytes};
    throw Error(ErrorKind::internal, "chunk " + std::to_string(chunk) + " is used but lies nowhere");
  }

  Place shared_place(Rank rank, Buffer buffer, std::int32_t chunk) const {
    const auto b = static_cast<std::size_t>(buffer), c = static_cast<std::size_t>(chunk);
    return Place{Place::Kind::shared,           static_cast<std::uint8_t>(b), rank,
                 positions(rank).visible[b][c], geometry_.offset(chunk),      geometry_.chunk_bytes(chunk)};
  }

  Place place(const Operand& operand, std::int32_t j) const {
    const std::int32_t chunk = operand.chunk + j;
    if (operand.buffer == Buffer::scratch) {
      const auto within = layout(operand.rank).scratch_class[static_cast<std::size_t>(chunk)];
      return Place{Place::Kind::slot,
                   3,
                   operand.rank,
                   positions(operand.rank).scratch + static_cast<std::uint32_t>(chunk),
                   0,
                   geometry_.chunk_elements(within) * geometry_.item};
    }
    if (operand.rank == request_.rank) return own_place(operand.buffer, chunk);
    if (!operand.initial) return shared_place(operand.rank, operand.buffer, chunk);
    const auto b = static_cast<std::size_t>(operand.buffer);
    return Place{Place::Kind::slot,
                 static_cast<std::uint8_t>(b),
                 operand.rank,
                 positions(operand.rank).visible[b][static_cast<std::size_t>(chunk)],
                 0,
                 geometry_.chunk_bytes(chunk)};
  }

  void bind(const Instr& instr) {
    const RankProgram& program = plan_.program();
    const auto operand = [&](std::uint32_t i) -> const Operand& { return program.operands[i]; };
    BoundInstr bound{};
    bound.op = instr.op;
    bound.channel = instr.channel;
    bound.peer = instr.peer;
    bound.dst_n = instr.dst_n;
    bound.src_n = instr.src_n;
    bound.wait_first = instr.wait_first;
    bound.wait_n = instr.wait_n;
    bound.dep_first = instr.dep_first;
    bound.dep_n = instr.dep_n;
    bound.plain_copy = instr.op == Op::reduce && instr.src_n == 1;
    bound.round = (instr.flags & kRound) != 0;
    const bool divide = (instr.flags & kFinal) && request_.op == ReduceOp::avg;
    bound.fold = FoldContext{
        FoldSpec{request_.dtype, request_.op, request_.factor, divide ? static_cast<std::uint32_t>(lowered_.n) : 0},
        geometry_.item, (instr.flags & kIncomingFirst) != 0, static_cast<std::uint8_t>((instr.flags & kDstRaw) != 0),
        static_cast<std::uint8_t>((instr.flags & kIncomingRaw) != 0)};
    bound.raw_first = static_cast<std::uint32_t>(plan_.raw.size());
    for (std::uint32_t s = 0; s < instr.src_n; ++s) plan_.raw.push_back(operand(instr.src_first + s).raw);
    bound.piece_first = static_cast<std::uint32_t>(plan_.pieces.size());
    const std::int32_t count = instr.dst_n   ? operand(instr.dst_first).count
                               : instr.src_n ? operand(instr.src_first).count
                                             : 0;
    bound.piece_n = static_cast<std::uint32_t>(count);
    for (std::int32_t j = 0; j < count; ++j) {
      PieceRefs refs{static_cast<std::uint32_t>(plan_.places.size()), 0};
      for (std::uint32_t d = 0; d < instr.dst_n; ++d) plan_.places.push_back(place(operand(instr.dst_first + d), j));
      refs.src_first = static_cast<std::uint32_t>(plan_.places.size());
      for (std::uint32_t s = 0; s < instr.src_n; ++s) plan_.places.push_back(place(operand(instr.src_first + s), j));
      plan_.pieces.push_back(refs);
    }
    const auto index = static_cast<std::uint32_t>(plan_.instrs.size());
    plan_.instrs.push_back(bound);
    if (instr.op == Op::reduce) {
      plan_.in_order.push_back(index);
      return;
    }
    plan_.network.push_back(index);
    BoundLink& link = link_of(instr);
    (instr.op == Op::send ? link.sends : link.receives).push_back(index);
  }

  BoundLink& link_of(const Instr& instr) {
    const std::size_t connection = static_cast<std::size_t>(instr.channel) % request_.connections;
    for (BoundLink& link : plan_.links)
      if (link.peer == instr.peer && link.connection == connection) return link;
    return plan_.links.emplace_back(BoundLink{instr.peer, connection, {}, {}});
  }

  // What moves between user memory and the slot; see the table in docs/architecture.md, "Windows and memory".
  void stage() {
    const Rank rank = request_.rank;
    const UserMap own = user(rank);
    for (std::size_t b = 0; b < 3; ++b) {
      const auto buffer = static_cast<Buffer>(b);
      for (std::size_t c = 0; c < layout(rank).reach[b].size(); ++c) {
        const auto chunk = static_cast<std::int32_t>(c);
        const std::uint64_t bytes = geometry_.chunk_bytes(chunk);
        const auto in = own.input(buffer, chunk), out = own.output(buffer, chunk);
        const Place from{Place::Kind::user_in, static_cast<std::uint8_t>(b), rank, 0, in.value_or(0), bytes};
        const Place to{Place::Kind::user_out, static_cast<std::uint8_t>(b), rank, 0, out.value_or(0), bytes};
        const bool shared = layout(rank).reach[b][c] == Reach::shared;
        const bool loaded = layout(rank).loaded[b][c] && in, written = layout(rank).written[b][c];
        const auto slot = [&](std::uint32_t position) {
          return Place{Place::Kind::slot, static_cast<std::uint8_t>(b), rank, position, 0, bytes};
        };
        const bool round = !layout(rank).rounded[b].empty() && layout(rank).rounded[b][c];
        const Place visible = shared ? shared_place(rank, buffer, chunk) : slot(positions(rank).visible[b][c]);
        if (loaded && positions(rank).visible[b][c] != kNoPosition) plan_.load.push_back({from, visible, round});
        if (loaded && positions(rank).work[b][c] != kNoPosition)
          plan_.load.push_back({from, slot(positions(rank).work[b][c]), round});
        if (out && shared && written) plan_.store.push_back({visible, to, false});
        if (out && loaded) plan_.through.push_back({from, shared && written ? visible : to, round});
      }
    }
  }

  // Whether every rank needs nothing of the others but what they start with, and little of it: then it is enough that
  // each shows its part once. All ranks must come to the same answer, so it follows from what all of them know.
  bool fits_inline() {
    if (lowered_.n < 2 || lowered_.n > kMaskRanks || plan_.windows != 1 || most_ * plan_.stride > request_.inline_bytes)
      return false;
    for (Rank r = 0; r < lowered_.n; ++r) {
      const RankProgram& program = lowered_.programs[static_cast<std::size_t>(r)];
      const auto after_entry = [](const Wait& wait) { return wait.count == 1; };
      const auto own_result = [&](const Instr& instr) {
        const auto first = program.operands.begin() + instr.dst_first;
        return instr.op == Op::reduce &&
               std::all_of(first, first + instr.dst_n, [r](const Operand& dst) { return dst.rank == r; });
      };
      if (!program.out_waits.empty() || !std::all_of(program.waits.begin(), program.waits.end(), after_entry) ||
          !std::all_of(program.instrs.begin(), program.instrs.end(), own_result))
        return false;
      for (std::size_t b = 0; b < 3; ++b)
        for (std::size_t c = 0; c < layout(r).reach[b].size(); ++c)
          if (layout(r).reach[b][c] == Reach::shared && layout(r).written[b][c]) return false;
    }
    const bool one_line = most_ == 1 && geometry_.max_chunk_bytes() <= kLine - Mailbox::kHeader;
    plan_.inline_offset = static_cast<std::uint32_t>(one_line ? Mailbox::kHeader : kLine);
    return true;
  }

  // Whoever reads a rank's mailbox has waited for it.
  void find_readers() {
    for (Rank r = 0; r < lowered_.n; ++r)
      for (const Wait& wait : lowered_.programs[static_cast<std::size_t>(r)].waits)
        if (wait.rank == request_.rank) plan_.inline_readers |= std::uint64_t{1} << r;
  }

  void find_registrable() {
    const Rank rank = request_.rank;
    const UserMap own = user(rank);
    for (std::size_t b = 0; b < 3; ++b) {
      for (const bool via_out : {true, false}) {
        Plan::Registrable found{true, via_out, 0, std::numeric_limits<std::int64_t>::max(), 0};
        bool any = false;
        for (std::size_t c = 0; c < layout(rank).reach[b].size() && found.possible; ++c) {
          if (layout(rank).reach[b][c] != Reach::shared) continue;
          const auto chunk = static_cast<std::int32_t>(c);
          const auto user_offset = via_out ? own.output(static_cast<Buffer>(b), chunk)
                                           : own.input(static_cast<Buffer>(b), chunk);
          const bool usable = user_offset && (via_out || !layout(rank).written[b][c]);
          const std::int64_t delta = usable ? *user_offset - geometry_.offset(chunk) : 0;
          found.possible = usable && (!any || delta == found.base_delta);
          found.base_delta = delta;
          found.low = std::min(found.low, user_offset.value_or(0));
          found.high = std::max(found.high,
                                user_offset.value_or(0) + static_cast<std::int64_t>(geometry_.chunk_bytes(chunk)));
          any = true;
        }
        if (any && found.possible) {
          plan_.registrable[b] = found;
          break;
        }
      }
    }
  }

  Plan& plan_;
  const PlanRequest& request_;
  const Lowered& lowered_;
  Geometry geometry_;
  std::vector<Positions> positions_;
  std::uint64_t most_ = 0;  // staged chunks of the rank that has most
};

Plan::Plan(const PlanRequest& request) { PlanBuilder(*this, request).build(); }

}  // namespace ringleader
