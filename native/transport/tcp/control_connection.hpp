// The control connection to one peer: tells of aborts, of leaving and of waiting, and its end tells that the peer died.
#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "base/types.hpp"
#include "transport/link.hpp"
#include "transport/tcp/socket.hpp"

namespace ringleader {

// Thread-safe. Nothing blocks: what the socket does not take at once is sent by later poll() calls.
class ControlConnection {
 public:
  struct Event {
    enum class Type : std::uint8_t { none, abort, goodbye, presence, inquiry, answer, lost };
    Type type = Type::none;
    ErrorKind kind = ErrorKind::aborted;  // abort: its kind
    Rank rank = -1;                       // abort: who caused it, -1 unknown; as the peer says, not range-checked
    std::string reason;                   // abort: why; lost: what happened to the connection
    std::uint64_t from = 0;               // abort: the first operation that it ends, see set_abort()
    OpInfo info;                          // presence: the operation in which the peer waits
    std::vector<Rank> ranks;              // answer: for whom the peer waits; as it says
  };

  // Bytes of an abort's reason that travel; longer ones are cut.
  static constexpr std::size_t kMaxReason = 4096;

  // Takes over `fd`, a connected, authenticated stream socket.
  ControlConnection(int fd, Rank peer, std::string peer_name);
  ~ControlConnection();
  ControlConnection(const ControlConnection&) = delete;
  ControlConnection& operator=(const ControlConnection&) = delete;

  // Only the first abort and the first goodbye are sent.
  void send_abort(ErrorKind kind, Rank cause, const std::string& reason, std::uint64_t from = 0);
  void send_goodbye();
  // Tells the peer that this rank has entered an operation and waits in it. Dropped while the socket is full: it is
  // advice.
  void send_presence(const OpInfo& info);
  // Asks the peer whom it waits for; only a rank that waits in an operation answers. Both are advice too.
  void send_inquiry();
  void send_answer(const std::vector<Rank>& ranks);

  // The next thing the peer told, if any: call until `none` before sleeping. `lost` comes once, after everything the
  // peer sent before; not after its goodbye, when closing is no news.
  Event poll();

  // For sleeping; -1 once the connection has ended.
  int poll_fd() const;
  short poll_events() const;
  void close();

 private:
  void flush();
  void send_frame(std::uint8_t type, ErrorKind kind, Rank cause, const std::string& reason);
  bool parse(Event& event);
  Event end(const std::string& reason);

  mutable std::mutex mutex_;
  tcp::Socket socket_;
  Rank peer_;
  std::string peer_name_;
  bool abort_sent_ = false, goodbye_sent_ = false, goodbye_seen_ = false;
  std::string in_, out_;  // not yet parsed; not yet taken by the socket (at most one abort and one goodbye)
};

}  // namespace ringleader
