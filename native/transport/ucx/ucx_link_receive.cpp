// The receiving half of a UCX link.
#include "transport/ucx/ucx_link.hpp"

#include <algorithm>
#include <cstring>

#include "transport/message.hpp"
#include "transport/ucx/ucx_protocol.hpp"

namespace ringleader {

namespace {

constexpr std::size_t kMessagesAhead = 4;      // receives whose headers are awaited at a time
constexpr std::size_t kFragmentsInFlight = 4;  // fragments of one message that are received at a time

}  // namespace

// Receives posted together touch different memory (the engine posts one that depends on another only after it), so
// those of several messages are in flight at a time; what is told is told in order.
bool UcxLink::receive_some() {
  bool moved = false;
  bool stalled = false;
  for (std::size_t i = 0; i < std::min(recvs_.size(), kMessagesAhead); ++i) {
    Incoming& message = recvs_[i];
    if (!message.header_posted) start(message);
    moved |= take_arrived(message);
    // A message's fragments are received only after those of its predecessors are all on their way.
    while (message.header_done && !stalled && message.posted < message.request.header.bytes) {
      stalled = message.operations.size() >= kFragmentsInFlight || !receive_fragment(message);
      moved |= !stalled;
    }
    stalled |= !message.header_done;
  }
  while (!recvs_.empty()) {
    Incoming& message = recvs_.front();
    if (!message.header_done || message.posted < message.request.header.bytes || !message.operations.empty()) break;
    std::uint32_t* const done = message.request.done;
    // Where this side answered (large: where the data may go, or that it came), the answer must be on its way.
    const bool answered = message.acknowledged || message.request.header.bytes > kInline;
    recvs_.pop_front();
    held_recvs_.waiting.push_back(done);
    if (!recvs_.empty() || (!answered && held_recvs_.waiting.size() == 1 && held_recvs_.flushing.empty()))
      held_recvs_.tell();
    moved = true;
  }
  return moved;
}

void UcxLink::start(Incoming& message) {
  message.header_posted = true;
  auto operation = std::make_unique<Operation>(api_);
  operation->buffer = worker_->take(kFirstBytes);
  Operation& posted = *operation;
  message.operations.push_back(std::move(operation));
  posted.pieces.push_back({posted.buffer.get() + kHeaderAt, kFirstBytes - kHeaderAt});
  post(posted, false, false, recv_numbers_.tag(message.number));
}

bool UcxLink::take_arrived(Incoming& message) {
  bool moved = false;
  while (!message.operations.empty() && message.operations.front()->done) {
    Operation& operation = *message.operations.front();
    if (!message.header_done)
      take_header(message, operation);
    else
      take_fragment(message, operation);
    bytes_received += operation.received;
    message.operations.pop_front();
    moved = true;
  }
  return moved;
}

void UcxLink::take_header(Incoming& message, Operation& operation) {
  MessageHeader got{};
  if (operation.status == UCS_ERR_MESSAGE_TRUNCATED ||
      (operation.status == UCS_OK && operation.received < sizeof got)) {
    // No message of this protocol: too long or too short for a header with what goes with it.
    check_header(message.request.header, got, peer_, peer_name_);
  }
  check_operation(operation);
  std::memcpy(&got, operation.buffer.get() + kHeaderAt, sizeof got);
  check_header(message.request.header, got, peer_, peer_name_);
  const std::uint64_t bytes = inline_bytes(got);
  if (operation.received != sizeof got + bytes)
    throw Error(ErrorKind::mismatch,
                peer_name_ + " sent " + std::to_string(operation.received) + " bytes where this rank expects " +
                    std::to_string(sizeof got + bytes) + ": do all ranks run the same version?",
                {peer_});
  message.header_done = true;
  store(message, operation.buffer.get() + kPayloadAt, bytes);
  message.posted = bytes;
  worker_->give(std::move(operation.buffer));
}

// False if there is no memory for it now.
bool UcxLink::receive_fragment(Incoming& message) {
  const RecvRequest& request = message.request;
  const bool encoded = request.wire != WireFormat::f32;
  auto operation = std::make_unique<Operation>(api_);
  if ((encoded || request.fold != nullptr) && !take_buffer(*operation, recv_buffers_)) return false;
  operation->bytes = encoded ? skip_next(request.pieces, request.wire, message.cut_at, kFragment)
                             : std::min<std::uint64_t>(kFragment, request.header.bytes - message.posted);
  if (operation->buffer)
    operation->pieces.push_back({operation->buffer.get(), operation->bytes});
  else
    operation->pieces = cut(request.pieces, message.cut_at, operation->bytes);
  message.posted += operation->bytes;
  Operation& posted = *operation;
  message.operations.push_back(std::move(operation));
  post(posted, false, false, recv_numbers_.tag(message.number + ++message.fragments));
  return true;
}

void UcxLink::take_fragment(Incoming& message, Operation& operation) {
  check_operation(operation);
  if (operation.received != operation.bytes)
    throw Error(ErrorKind::mismatch,
                peer_name_ + " sent " + std::to_string(operation.received) + " bytes where this rank expects " +
                    std::to_string(operation.bytes) + ": do all ranks run the same version?",
                {peer_});
  if (!operation.buffer) return;
  store(message, operation.buffer.get(), operation.bytes);
  give_buffer(operation, recv_buffers_);
}

// Decodes, stores or folds the next bytes. Invariant: they are whole items, or encoded ones that end as the sender's
// cut does, since pieces and fragments are, and so is each part.
void UcxLink::store(Incoming& message, const std::byte* data, std::size_t bytes) {
  const RecvRequest& request = message.request;
  if (bytes == 0) return;
  if (request.wire != WireFormat::f32) {
    decode_next(request, message.stored_at, reinterpret_cast<const unsigned char*>(data), bytes);
    return;
  }
  for (const ucp_dt_iov_t& part : cut(request.pieces, message.stored_at, bytes)) {
    if (request.fold != nullptr)
      request.fold(request.fold_context, part.buffer, data, part.length);
    else
      std::memcpy(part.buffer, data, part.length);
    data += part.length;
  }
}

}  // namespace ringleader
