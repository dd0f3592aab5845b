// The network half of an execution: instructions become messages on links.
#include <utility>

#include "core/execution.hpp"
#include "reduce/reduce.hpp"
#include "transport/wire_stream.hpp"

namespace ringleader {

namespace {

void fold_incoming(const void* context, void* dst, const void* incoming, std::size_t bytes) {
  const auto& fold_context = *static_cast<const FoldContext*>(context);
  const void* srcs[2] = {dst, incoming};
  std::uint8_t raw[2] = {fold_context.dst_raw, fold_context.incoming_raw};
  if (fold_context.incoming_first) {
    std::swap(srcs[0], srcs[1]);
    std::swap(raw[0], raw[1]);
  }
  fold(fold_context.spec, &dst, 1, srcs, raw, 2, bytes / fold_context.item);
}

}  // namespace

MessageHeader Execution::header(std::size_t index, std::uint64_t bytes) const {
  return MessageHeader{kHeaderMagic, static_cast<std::uint32_t>(index), window_number(), bytes, info()};
}

std::vector<Piece> Execution::message_pieces(const BoundInstr& instr, std::uint64_t& bytes) const {
  std::vector<Piece> pieces;
  pieces.reserve(instr.piece_n);
  for (std::uint32_t j = 0; j < instr.piece_n; ++j) {
    const PieceRefs& refs = plan_->pieces[instr.piece_first + j];
    const Place& place = plan_->places[instr.op == Op::send ? refs.src_first : refs.dst_first];
    const std::uint64_t size = length(place, window_);
    if (size) pieces.push_back(Piece{address(place, window_), size});
  }
  bytes = payload_bytes(pieces, plan_->wire);
  return pieces;
}

void Execution::post_send(LinkState& state, const BoundInstr& instr, std::uint32_t index) {
  SendRequest request;
  std::uint64_t bytes = 0;
  request.pieces = message_pieces(instr, bytes);
  request.header = header(state.next_send++, bytes);
  request.wire = plan_->wire;
  request.done = &done_[index];
  state.link->post_send(std::move(request));
}

void Execution::post_receive(LinkState& state, const BoundInstr& instr, std::uint32_t index) {
  RecvRequest request;
  std::uint64_t bytes = 0;
  request.pieces = message_pieces(instr, bytes);
  request.header = header(state.next_receive++, bytes);
  request.wire = plan_->wire;
  request.round = instr.round;
  if (instr.op == Op::recv_reduce) {
    request.fold = fold_incoming;
    request.fold_context = &instr.fold;
    request.item = instr.fold.item;
  }
  request.done = &done_[index];
  state.link->post_recv(std::move(request));
}

bool Execution::post_network() {
  bool moved = false;
  for (std::size_t i = 0; i < links_.size(); ++i) {
    LinkState& state = links_[i];
    const BoundLink& bound = plan_->links[i];
    while (state.next_receive < bound.receives.size() && ready(plan_->instrs[bound.receives[state.next_receive]])) {
      const std::uint32_t index = bound.receives[state.next_receive];
      post_receive(state, plan_->instrs[index], index);
      moved = true;
    }
    while (state.next_send < bound.sends.size() && ready(plan_->instrs[bound.sends[state.next_send]])) {
      const std::uint32_t index = bound.sends[state.next_send];
      post_send(state, plan_->instrs[index], index);
      moved = true;
    }
    moved |= state.link->progress();
  }
  return moved;
}

bool Execution::network_done() {
  while (network_cursor_ < plan_->network.size() && done_[plan_->network[network_cursor_]]) ++network_cursor_;
  return network_cursor_ == plan_->network.size();
}

}  // namespace ringleader
