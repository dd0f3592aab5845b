// A Link over UCX tagged messages: InfiniBand, RoCE, TCP or shared memory, whatever UCX finds.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "transport/link.hpp"
#include "transport/ucx/ucx_worker.hpp"
#include "transport/wire_stream.hpp"

namespace ringleader {

// Not thread-safe: the engine that owns it drives it, together with all links of its worker.
//
// A message is one UCX message (header and payload) up to kInline bytes, else a header and fragments of kFragment
// bytes. Both ends number these alike from the requests they were given, and a number is the tag. Payload is received
// where it belongs once the header is known to be the expected one; to be folded or decoded, and encoded, it passes
// through a bounded number of buffers. Fragments of a message in a wire format end where a block of it does
// (skip_next).
class UcxLink final : public Link {
 public:
  static constexpr std::size_t kInline = 8 * 1024;
  static constexpr std::size_t kFragment = 256 * 1024;

  // `self`, `peer`: ranks; `channel`: the same number on both sides. `address`: the peer worker's.
  // Throws Error(invalid | peer_lost) if UCX has no way there.
  UcxLink(std::shared_ptr<UcxWorker> worker, const std::string& address, Rank self, Rank peer, std::uint8_t channel,
          std::string peer_name);
  ~UcxLink() override;
  UcxLink(const UcxLink&) = delete;
  UcxLink& operator=(const UcxLink&) = delete;

  void post_send(SendRequest&& request) override;
  void post_recv(RecvRequest&& request) override;
  bool progress() override;
  int poll_fd() const override;
  short poll_events() const override;
  void close() override;

 private:
  using Operation = UcxOperation;

  template <class Request>
  struct Message {
    Request request;
    std::uint32_t number = 0;   // of its header; the fragments' follow
    bool acknowledged = false;  // its send completes only when its receive was posted
    bool header_posted = false, header_done = false;
    std::uint64_t posted = 0;     // payload bytes handed to UCX
    std::uint32_t fragments = 0;  // that they are, beyond the header's message
    WireCursor cut_at{};          // where they end in the pieces; `at` counts bytes unless there is a wire format
    WireCursor stored_at{};       // of what is received through buffers: what is in the pieces already
    std::deque<std::unique_ptr<Operation>> operations{};  // in order
  };
  using Outgoing = Message<SendRequest>;
  using Incoming = Message<RecvRequest>;
  // Completions that are told a moment later, see flush().
  struct Held {
    std::vector<std::uint32_t*> waiting, flushing;
    bool empty() const { return waiting.empty() && flushing.empty(); }
    void tell();
  };
  // How one direction numbers its messages.
  struct Numbers {
    std::uint64_t base;
    std::uint32_t next = 0, messages = 0;
    std::uint64_t unacknowledged = 0;  // bytes of small messages since the last acknowledged one
    std::uint64_t tag(std::uint64_t number) const { return base | static_cast<std::uint32_t>(number); }
  };

  template <class Request>
  Message<Request> numbered(Request&& request, Numbers& numbers);
  void connect(const std::string& address);
  bool send_some();
  void start(Outgoing& message);
  bool send_fragment(Outgoing& message);
  void hand_over(Outgoing& message, std::unique_ptr<Operation> operation, bool acknowledged, std::uint64_t tag);
  bool receive_some();
  void start(Incoming& message);
  bool receive_fragment(Incoming& message);
  bool take_arrived(Incoming& message);
  void take_header(Incoming& message, Operation& operation);
  void take_fragment(Incoming& message, Operation& operation);
  void store(Incoming& message, const std::byte* data, std::size_t bytes);
  static std::vector<ucp_dt_iov_t> cut(const std::vector<Piece>& pieces, WireCursor& cursor, std::size_t bytes);
  bool take_buffer(Operation& operation, std::size_t& buffers);
  void give_buffer(Operation& operation, std::size_t& buffers);
  bool flush();

  void post(Operation& operation, bool send, bool acknowledged, std::uint64_t tag);
  void check_operation(const Operation& operation) const;
  std::string activity() const;
  Error lost(ucs_status_t status) const;

  static void sent(void* request, ucs_status_t status, void* operation);
  static void received(void* request, ucs_status_t status, const ucp_tag_recv_info_t* info, void* operation);
  static void failed(void* link, ucp_ep_h endpoint, ucs_status_t status);

  std::shared_ptr<UcxWorker> worker_;
  const ucx::Api& api_;
  ucp_ep_h endpoint_ = nullptr;
  bool watched_ = true;  // UCX tells when the peer is gone
  ucs_status_t endpoint_status_ = UCS_OK;
  Rank peer_;
  std::string peer_name_;
  std::optional<Error> failure_;

  Numbers send_numbers_, recv_numbers_;
  std::deque<Outgoing> sends_;
  std::deque<Incoming> recvs_;
  std::size_t sends_posted_ = 0;                     // the first so many are wholly in UCX's hands
  std::size_t send_operations_ = 0;                  // in UCX's hands
  std::size_t send_buffers_ = 0, recv_buffers_ = 0;  // fragment buffers in use
  Held held_sends_, held_recvs_;
  std::unique_ptr<Operation> flush_;
  std::chrono::steady_clock::time_point held_since_{};
};

}  // namespace ringleader
