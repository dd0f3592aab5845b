// The sending half of a UCX link.
#include "transport/ucx/ucx_link.hpp"

#include <algorithm>
#include <cstring>

#include "transport/ucx/ucx_protocol.hpp"

namespace ringleader {

namespace {

constexpr std::size_t kSendsInFlight = 16;  // UCX messages of a link at a time

// The whole payload, as it travels; returns its bytes.
std::size_t copy_payload(const SendRequest& request, std::byte* out) {
  WireCursor cursor;
  if (request.wire != WireFormat::f32)
    return encode_next(request, cursor, reinterpret_cast<unsigned char*>(out), UcxLink::kInline);
  std::size_t bytes = 0;
  for (const Piece& piece : request.pieces) {
    if (piece.bytes > 0) std::memcpy(out + bytes, piece.data, piece.bytes);
    bytes += piece.bytes;
  }
  return bytes;
}

}  // namespace

bool UcxLink::send_some() {
  bool moved = false;
  while (sends_posted_ < sends_.size() && send_operations_ < kSendsInFlight) {
    Outgoing& message = sends_[sends_posted_];
    if (!message.header_posted) start(message);
    while (message.posted < message.request.header.bytes && send_operations_ < kSendsInFlight && send_fragment(message))
      moved = true;
    if (message.posted < message.request.header.bytes) break;
    ++sends_posted_;
    moved = true;
  }
  while (!sends_.empty()) {
    Outgoing& message = sends_.front();
    auto& operations = message.operations;
    while (!operations.empty() && operations.front()->done) {
      Operation& operation = *operations.front();
      check_operation(operation);
      bytes_sent += operation.bytes;
      if (operation.buffer.bytes == kFragment)
        give_buffer(operation, send_buffers_);
      else if (operation.buffer)
        worker_->give(std::move(operation.buffer));
      operations.pop_front();
      --send_operations_;
      moved = true;
    }
    if (sends_posted_ == 0 || !operations.empty()) break;
    std::uint32_t* const done = message.request.done;
    sends_.pop_front();
    --sends_posted_;
    held_sends_.waiting.push_back(done);
    // A later message will be waited for, so this one need not.
    if (!sends_.empty()) held_sends_.tell();
    moved = true;
  }
  return moved;
}

void UcxLink::start(Outgoing& message) {
  auto operation = std::make_unique<Operation>(api_);
  operation->buffer = worker_->take(kFirstBytes);
  std::byte* at = operation->buffer.get() + kHeaderAt;
  std::memcpy(at, &message.request.header, sizeof(MessageHeader));
  std::size_t bytes = sizeof(MessageHeader);
  if (inline_bytes(message.request.header) > 0) bytes += copy_payload(message.request, at + bytes);
  operation->bytes = bytes;
  operation->pieces.push_back({at, bytes});
  message.posted = inline_bytes(message.request.header);
  message.header_posted = true;
  hand_over(message, std::move(operation), message.acknowledged, send_numbers_.tag(message.number));
}

bool UcxLink::send_fragment(Outgoing& message) {
  const SendRequest& request = message.request;
  auto operation = std::make_unique<Operation>(api_);
  if (request.wire == WireFormat::f32) {
    operation->bytes = std::min<std::uint64_t>(kFragment, request.header.bytes - message.posted);
    operation->pieces = cut(request.pieces, message.cut_at, operation->bytes);
  } else {
    if (!take_buffer(*operation, send_buffers_)) return false;
    std::byte* const out = operation->buffer.get();
    operation->bytes = encode_next(request, message.cut_at, reinterpret_cast<unsigned char*>(out), kFragment);
    operation->pieces.push_back({out, operation->bytes});
  }
  message.posted += operation->bytes;
  hand_over(message, std::move(operation), false, send_numbers_.tag(message.number + ++message.fragments));
  return true;
}

void UcxLink::hand_over(Outgoing& message, std::unique_ptr<Operation> operation, bool acknowledged, std::uint64_t tag) {
  Operation& posted = *operation;
  message.operations.push_back(std::move(operation));
  ++send_operations_;
  post(posted, true, acknowledged, tag);
}

}  // namespace ringleader
