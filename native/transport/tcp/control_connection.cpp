#include "transport/tcp/control_connection.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "transport/tcp/socket.hpp"

namespace ringleader {

namespace {

// Little-endian on the wire, no padding; `reason_bytes` bytes of text follow.
struct Frame {
  std::uint32_t magic;
  std::uint8_t version;
  std::uint8_t type;
  std::uint16_t reason_bytes;
  std::int32_t kind;
  std::int32_t rank;
};
static_assert(sizeof(Frame) == 16);
constexpr std::uint32_t kMagic = 0x524c4331;  // "RLC1"
constexpr std::uint8_t kVersion = 1;
// In the place of the text: presence has an OpInfo, an answer 32-bit ranks, and a later abort the number of its first
// operation, then text.
constexpr std::uint8_t kAbort = 1, kGoodbye = 2, kPresence = 3, kLaterAbort = 4, kInquiry = 5, kAnswer = 6;

std::size_t utf8_length(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead < 0xE0) return 2;
  if (lead >= 0xE0 && lead < 0xF0) return 3;
  return lead >= 0xF0 && lead < 0xF5 ? 4 : 0;
}

// The text reaches Python as a str and perhaps a terminal: no control characters, and whole UTF-8 sequences only.
std::string printable(const std::string& text) {
  std::string result;
  for (std::size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const std::size_t n = utf8_length(lead);
    bool good = n > 0 && i + n <= text.size() && (lead >= 0x20 || lead == '\n') && lead != 0x7F;
    for (std::size_t k = 1; good && k < n; ++k) good = (static_cast<unsigned char>(text[i + k]) & 0xC0) == 0x80;
    if (good && n >= 3) {  // not an overlong form, a surrogate, or above U+10FFFF
      const auto second = static_cast<unsigned char>(text[i + 1]);
      good = !(lead == 0xE0 && second < 0xA0) && !(lead == 0xED && second > 0x9F) && !(lead == 0xF0 && second < 0x90) &&
             !(lead == 0xF4 && second > 0x8F);
    }
    if (good) {
      result.append(text, i, n);
      i += n;
    } else {
      result += '?';
      ++i;
    }
  }
  return result;
}

}  // namespace

ControlConnection::ControlConnection(int fd, Rank peer, std::string peer_name)
    : socket_(fd), peer_(peer), peer_name_(std::move(peer_name)) {
  tcp::prepare_control(socket_.fd());
}

ControlConnection::~ControlConnection() { close(); }

void ControlConnection::close() {
  const std::lock_guard lock(mutex_);
  socket_.close();
}

void ControlConnection::send_abort(ErrorKind kind, Rank cause, const std::string& reason, std::uint64_t from) {
  const std::lock_guard lock(mutex_);
  if (abort_sent_) return;
  abort_sent_ = true;
  const std::string number(reinterpret_cast<const char*>(&from), from == 0 ? 0 : sizeof from);
  send_frame(from == 0 ? kAbort : kLaterAbort, kind, cause, (number + reason).substr(0, kMaxReason));
}

void ControlConnection::send_goodbye() {
  const std::lock_guard lock(mutex_);
  if (goodbye_sent_) return;
  goodbye_sent_ = true;
  send_frame(kGoodbye, ErrorKind::closed, -1, {});
}

void ControlConnection::send_presence(const OpInfo& info) {
  const std::lock_guard lock(mutex_);
  if (!out_.empty()) return;
  send_frame(kPresence, ErrorKind::invalid, -1, std::string(reinterpret_cast<const char*>(&info), sizeof info));
}

void ControlConnection::send_inquiry() {
  const std::lock_guard lock(mutex_);
  if (out_.empty()) send_frame(kInquiry, ErrorKind::invalid, -1, {});
}

void ControlConnection::send_answer(const std::vector<Rank>& ranks) {
  const std::lock_guard lock(mutex_);
  if (!out_.empty()) return;
  const std::size_t n = std::min(ranks.size(), kMaxReason / sizeof(Rank));
  send_frame(kAnswer, ErrorKind::invalid, -1,
             std::string(reinterpret_cast<const char*>(ranks.data()), n * sizeof(Rank)));
}

void ControlConnection::send_frame(std::uint8_t type, ErrorKind kind, Rank cause, const std::string& reason) {
  const Frame frame{kMagic, kVersion, type, static_cast<std::uint16_t>(reason.size()), static_cast<std::int32_t>(kind),
                    cause};
  out_.append(reinterpret_cast<const char*>(&frame), sizeof frame);
  out_ += reason;
  flush();
}

// Errors are not reported here: receiving meets them too, after whatever the peer sent before.
void ControlConnection::flush() {
  if (!socket_.open() || out_.empty()) return;
  const ssize_t n = send(socket_.fd(), out_.data(), out_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (n > 0) {
    out_.erase(0, static_cast<std::size_t>(n));
  } else if (n < 0 && !tcp::would_block(errno)) {
    out_.clear();
  }
}

ControlConnection::Event ControlConnection::poll() {
  const std::lock_guard lock(mutex_);
  Event event;
  if (parse(event)) return event;
  if (!socket_.open()) return event;
  flush();
  // No whole frame is pending here, so `in_` stays below twice the largest one.
  char buffer[sizeof(Frame) + kMaxReason];
  const ssize_t n = recv(socket_.fd(), buffer, sizeof buffer, MSG_DONTWAIT);
  if (n > 0) {
    in_.append(buffer, static_cast<std::size_t>(n));
    parse(event);
    return event;
  }
  if (n < 0 && tcp::would_block(errno)) return event;
  return end(tcp::lost(peer_, peer_name_, "waiting for its messages", n == 0 ? 0 : errno).what());
}

ControlConnection::Event ControlConnection::end(const std::string& reason) {
  socket_.close();
  in_.clear();
  out_.clear();
  Event event;
  if (goodbye_seen_) return event;
  event.type = Event::Type::lost;
  event.rank = peer_;
  event.reason = reason;
  return event;
}

// Takes one frame off `in_`; false if there is no whole one.
bool ControlConnection::parse(Event& event) {
  if (in_.size() < sizeof(Frame)) return false;
  Frame frame;
  std::memcpy(&frame, in_.data(), sizeof frame);
  const bool known = frame.type == kAbort || frame.type == kGoodbye || frame.type == kInquiry ||
                     (frame.type == kPresence && frame.reason_bytes == sizeof(OpInfo)) ||
                     (frame.type == kLaterAbort && frame.reason_bytes >= sizeof event.from) ||
                     (frame.type == kAnswer && frame.reason_bytes % sizeof(Rank) == 0);
  const bool kind_known = frame.kind >= 0 && frame.kind <= static_cast<std::int32_t>(ErrorKind::internal);
  if (frame.magic != kMagic || frame.version != kVersion || !known || !kind_known || frame.reason_bytes > kMaxReason) {
    event = end(peer_name_ + " sent a control message that this version does not understand (type " +
                std::to_string(frame.type) + ", version " + std::to_string(frame.version) +
                "): do all ranks run the same version?");
    return true;
  }
  if (in_.size() < sizeof frame + frame.reason_bytes) return false;
  if (frame.type == kAbort || frame.type == kLaterAbort) {
    event.type = Event::Type::abort;
    event.kind = static_cast<ErrorKind>(frame.kind);
    event.rank = frame.rank;
    const std::size_t number = frame.type == kAbort ? 0 : sizeof event.from;
    std::memcpy(&event.from, in_.data() + sizeof frame, number);
    event.reason = printable(in_.substr(sizeof frame + number, frame.reason_bytes - number));
  } else if (frame.type == kInquiry) {
    event.type = Event::Type::inquiry;
    event.rank = peer_;
  } else if (frame.type == kAnswer) {
    event.type = Event::Type::answer;
    event.rank = peer_;
    event.ranks.resize(frame.reason_bytes / sizeof(Rank));
    if (!event.ranks.empty()) std::memcpy(event.ranks.data(), in_.data() + sizeof frame, frame.reason_bytes);
  } else if (frame.type == kPresence) {
    event.type = Event::Type::presence;
    event.rank = peer_;
    std::memcpy(&event.info, in_.data() + sizeof frame, sizeof event.info);
  } else {
    event.type = Event::Type::goodbye;
    event.rank = peer_;
    goodbye_seen_ = true;
  }
  in_.erase(0, sizeof frame + frame.reason_bytes);
  return true;
}

int ControlConnection::poll_fd() const {
  const std::lock_guard lock(mutex_);
  return socket_.fd();
}

short ControlConnection::poll_events() const {
  const std::lock_guard lock(mutex_);
  return static_cast<short>(POLLIN | (out_.empty() ? 0 : POLLOUT));
}

}  // namespace ringleader
