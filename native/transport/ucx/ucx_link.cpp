#include "transport/ucx/ucx_link.hpp"

#include <poll.h>

#include <algorithm>
#include <chrono>

#include "transport/message.hpp"
#include "transport/ucx/ucx_protocol.hpp"

namespace ringleader {

namespace {

constexpr std::size_t kBufferMemory = 32 << 20;  // of all links; beyond it a link has one fragment buffer each way
// Small messages are copied by the receiving UCX before they are asked for. Every so many messages or bytes, the sender
// waits until the receiver has caught up, so that what lies there is bounded, and fits into the buffers of a TCP
// connection.
constexpr std::uint32_t kAcknowledgeEvery = 64;
constexpr std::uint64_t kAcknowledgeBytes = 32 * 1024;
constexpr auto kFlushLimit = std::chrono::milliseconds(1);
constexpr auto kCloseLimit = std::chrono::milliseconds(200);

// UCX messages that a payload is sent in, the first, which carries the header, not counted.
std::uint64_t fragments(const std::vector<Piece>& pieces, WireFormat wire, std::uint64_t bytes) {
  if (bytes <= UcxLink::kInline) return 0;
  if (wire == WireFormat::f32) return (bytes + UcxLink::kFragment - 1) / UcxLink::kFragment;
  WireCursor cursor;
  std::uint64_t count = 0;
  while (skip_next(pieces, wire, cursor, UcxLink::kFragment) > 0) ++count;
  return count;
}

}  // namespace

// ---------------------------------------------------------------- set-up and end

UcxLink::UcxLink(std::shared_ptr<UcxWorker> worker, const std::string& address, Rank self, Rank peer,
                 std::uint8_t channel, std::string peer_name)
    : worker_(std::move(worker)),
      api_(worker_->api()),
      peer_(peer),
      peer_name_(std::move(peer_name)),
      // Sender, channel, number: all links of a worker receive from one stock of messages.
      send_numbers_{static_cast<std::uint64_t>(self) << 40 | static_cast<std::uint64_t>(channel) << 32},
      recv_numbers_{static_cast<std::uint64_t>(peer) << 40 | static_cast<std::uint64_t>(channel) << 32} {
  connect(address);
}

UcxLink::~UcxLink() { close(); }

void UcxLink::connect(const std::string& address) {
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = failed;
  params.err_handler.arg = this;
  ucs_status_t status;
  {
    const ucx::Quiet quiet(api_);
    status = api_.ep_create(worker_->handle(), &params, &endpoint_);
  }
  if (status == UCS_ERR_UNREACHABLE || status == UCS_ERR_UNSUPPORTED) {
    // UCX's shared memory cannot tell that a peer died; then only the control connection does.
    watched_ = false;
    params.err_mode = UCP_ERR_HANDLING_MODE_NONE;
    status = api_.ep_create(worker_->handle(), &params, &endpoint_);
  }
  if (status != UCS_OK)
    throw Error(status == UCS_ERR_UNREACHABLE ? ErrorKind::invalid : ErrorKind::peer_lost,
                "UCX " + api_.version() + " cannot reach " + peer_name_ + ": " + api_.status_string(status) +
                    "; do UCX_TLS and UCX_NET_DEVICES (RINGLEADER_IB_HCA) name networks that both hosts share?",
                {peer_});
}

// Afterwards UCX writes to none of the buffers given to this link, or only until the worker is gone, which the last
// link to be closed releases.
void UcxLink::close() {
  if (!failure_) failure_.emplace(ErrorKind::closed, "connection to " + peer_name_ + " was closed by this rank");
  if (!worker_) return;
  std::vector<std::unique_ptr<Operation>> open;
  const auto collect = [&](auto& messages) {
    for (auto& message : messages)
      for (auto& operation : message.operations) open.push_back(std::move(operation));
    messages.clear();
  };
  collect(recvs_);
  const std::size_t receives = open.size();
  collect(sends_);
  if (flush_) open.push_back(std::move(flush_));
  if (!worker_->usable()) {
    for (auto& operation : open) static_cast<void>(operation.release());
    static_cast<void>(new std::shared_ptr<UcxWorker>(std::move(worker_)));  // the parent's
    return;
  }
  for (std::size_t i = 0; i < receives; ++i)
    if (!open[i]->done) api_.request_cancel(worker_->handle(), open[i]->request);
  auto closing = std::make_unique<Operation>(api_);
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.flags = watched_ ? UCP_EP_CLOSE_FLAG_FORCE : 0;
  param.cb.send = sent;
  param.user_data = closing.get();
  ucs_status_ptr_t request = api_.ep_close_nbx(endpoint_, &param);
  closing->done = !UCS_PTR_IS_PTR(request);
  open.push_back(std::move(closing));
  const auto until = std::chrono::steady_clock::now() + kCloseLimit;
  const auto all_done = [&] { return std::all_of(open.begin(), open.end(), [](const auto& o) { return o->done; }); };
  while (!all_done() && std::chrono::steady_clock::now() < until) worker_->progress();
  for (auto& operation : open)
    if (!operation->done) worker_->keep(std::move(operation));
  worker_.reset();
}

int UcxLink::poll_fd() const {
  if (!worker_) return -1;
  return held_recvs_.empty() && held_sends_.empty() ? worker_->armed_fd() : worker_->ready_fd();
}

short UcxLink::poll_events() const {
  const bool waits = !recvs_.empty() || !sends_.empty() || !held_recvs_.empty() || !held_sends_.empty();
  return waits ? POLLIN : 0;
}

// ---------------------------------------------------------------- posting

template <class Request>
UcxLink::Message<Request> UcxLink::numbered(Request&& request, Numbers& numbers) {
  Message<Request> message{std::move(request)};
  const std::uint64_t count = fragments(message.request.pieces, message.request.wire, message.request.header.bytes);
  message.number = numbers.next;
  numbers.unacknowledged += sizeof(MessageHeader) + inline_bytes(message.request.header);
  message.acknowledged = ++numbers.messages % kAcknowledgeEvery == 0 || numbers.unacknowledged > kAcknowledgeBytes;
  if (message.acknowledged) numbers.unacknowledged = 0;
  numbers.next += static_cast<std::uint32_t>(1 + count);
  return message;
}

void UcxLink::post_send(SendRequest&& request) {
  check_posted(request.header, request.pieces, request.wire);
  sends_.push_back(numbered(std::move(request), send_numbers_));
}

void UcxLink::post_recv(RecvRequest&& request) {
  check_posted(request.header, request.pieces, request.wire);
  check_fold(request, UcxWorker::kAlign);
  if (request.fold != nullptr && request.header.bytes > kInline && kFragment % request.item != 0)
    throw Error(ErrorKind::internal, "items of " + std::to_string(request.item) +
                                         " bytes cannot be folded from fragments of " + std::to_string(kFragment));
  recvs_.push_back(numbered(std::move(request), recv_numbers_));
}

bool UcxLink::progress() {
  if (failure_) throw *failure_;
  try {
    worker_->progress();
    bool moved = receive_some();
    moved |= send_some();
    moved |= flush();
    // Only once nothing more comes of what had arrived before.
    if (!moved && endpoint_status_ != UCS_OK && !(sends_.empty() && recvs_.empty())) throw lost(endpoint_status_);
    return moved;
  } catch (const Error& error) {
    failure_ = error;
    throw;
  }
}

// ---------------------------------------------------------------- telling

void UcxLink::Held::tell() {
  for (auto* list : {&flushing, &waiting}) {
    for (std::uint32_t* done : *list)
      if (done != nullptr) *done = 1;
    list->clear();
  }
}

// UCX reports a small send when it has taken the bytes over, not when they have left; what is left over leaves in later
// calls of progress(), which a rank whose operation is complete does not make. So the last messages of a queue count as
// complete only when UCX has flushed, or after kFlushLimit of trying: over TCP a flush needs an answer of the peer,
// which may be elsewhere by then. If the peer is gone, nothing needs to leave any more.
bool UcxLink::flush() {
  bool moved = false;
  if (flush_ && flush_->done) {
    flush_.reset();
    for (Held* held : {&held_sends_, &held_recvs_}) {
      for (std::uint32_t* done : held->flushing)
        if (done != nullptr) *done = 1;
      held->flushing.clear();
    }
    held_since_ = {};
    moved = true;
  }
  if (held_sends_.empty() && held_recvs_.empty()) return moved;
  if (!flush_ && endpoint_status_ == UCS_OK) {
    auto operation = std::make_unique<Operation>(api_);
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    param.cb.send = sent;
    param.user_data = operation.get();
    ucs_status_ptr_t request = api_.ep_flush_nbx(endpoint_, &param);
    if (UCS_PTR_IS_PTR(request)) {
      operation->request = request;
      flush_ = std::move(operation);
      held_sends_.flushing.swap(held_sends_.waiting);
      held_recvs_.flushing.swap(held_recvs_.waiting);
    }
  }
  const auto now = std::chrono::steady_clock::now();
  if (held_since_ == std::chrono::steady_clock::time_point{}) held_since_ = now;
  if (flush_ && endpoint_status_ == UCS_OK && now - held_since_ < kFlushLimit) return moved;
  held_sends_.tell();
  held_recvs_.tell();
  held_since_ = {};
  return true;
}

// ---------------------------------------------------------------- UCX's side

// Sends or receives operation.pieces.
void UcxLink::post(Operation& operation, bool send, bool acknowledged, std::uint64_t tag) {
  const bool one = operation.pieces.size() == 1;
  void* const data = one ? operation.pieces[0].buffer : operation.pieces.data();
  const std::size_t count = one ? operation.pieces[0].length : operation.pieces.size();
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_DATATYPE |
                       UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.datatype = one ? ucp_dt_make_contig(1) : static_cast<ucp_datatype_t>(UCP_DATATYPE_IOV);
  param.memory_type = UCS_MEMORY_TYPE_HOST;
  param.user_data = &operation;
  ucs_status_ptr_t request;
  if (send) {
    param.cb.send = sent;
    request = acknowledged ? api_.tag_send_sync_nbx(endpoint_, data, count, tag, &param)
                           : api_.tag_send_nbx(endpoint_, data, count, tag, &param);
  } else {
    // Always by callback: older versions do not tell the length of what was there already.
    param.op_attr_mask |= UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
    param.cb.recv = received;
    request = api_.tag_recv_nbx(worker_->handle(), data, count, tag, ~ucp_tag_t{0}, &param);
  }
  if (UCS_PTR_IS_PTR(request)) {
    if (!operation.done) operation.request = request;
    return;
  }
  operation.status = UCS_PTR_STATUS(request);
  operation.done = true;
}

// False if there is no memory for it now; a link can always have one buffer each way.
bool UcxLink::take_buffer(Operation& operation, std::size_t& buffers) {
  if (buffers > 0 && worker_->taken() >= kBufferMemory) return false;
  operation.buffer = worker_->take(kFragment);
  ++buffers;
  return true;
}

void UcxLink::give_buffer(Operation& operation, std::size_t& buffers) {
  worker_->give(std::move(operation.buffer));
  --buffers;
}

// The pieces of the next `bytes` bytes, from `cursor` on, which moves past them.
std::vector<ucp_dt_iov_t> UcxLink::cut(const std::vector<Piece>& pieces, WireCursor& cursor, std::size_t bytes) {
  std::vector<ucp_dt_iov_t> result;
  while (bytes > 0) {
    const Piece& piece = pieces[cursor.piece];
    const std::size_t n = std::min(bytes, piece.bytes - cursor.at);
    if (n > 0) result.push_back({static_cast<char*>(piece.data) + cursor.at, n});
    bytes -= n;
    cursor.at += n;
    if (cursor.at == piece.bytes) cursor = {cursor.piece + 1, 0};
  }
  return result;
}

// The callbacks come from worker_progress and request_cancel, of receives also from post().
void UcxLink::sent(void* request, ucs_status_t status, void* operation) {
  static_cast<Operation*>(operation)->finish(request, status, 0);
}

void UcxLink::received(void* request, ucs_status_t status, const ucp_tag_recv_info_t* info, void* operation) {
  static_cast<Operation*>(operation)->finish(request, status, status == UCS_OK ? info->length : 0);
}

void UcxLink::failed(void* link, ucp_ep_h, ucs_status_t status) {
  static_cast<UcxLink*>(link)->endpoint_status_ = status;
}

void UcxLink::check_operation(const Operation& operation) const {
  if (operation.status == UCS_OK) return;
  throw lost(endpoint_status_ != UCS_OK ? endpoint_status_ : operation.status);
}

std::string UcxLink::activity() const {
  if (!recvs_.empty()) return recvs_.front().request.header.info.text();
  return sends_.empty() ? "no operation" : sends_.front().request.header.info.text();
}

Error UcxLink::lost(ucs_status_t status) const {
  return Error(
      ErrorKind::peer_lost,
      "connection to " + peer_name_ + " was lost during " + activity() + ": UCX reports: " + api_.status_string(status),
      {peer_});
}

}  // namespace ringleader
