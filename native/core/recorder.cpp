#include "core/recorder.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <chrono>
#include <memory>

#include "base/fork.hpp"

namespace ringleader {

namespace {

constexpr std::size_t kPage = 4096, kStringBytes = 32 << 10;

std::uint64_t steady_ns() {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
          .count());
}

std::int64_t real_offset() {
  const auto real = std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::system_clock::now().time_since_epoch());
  return real.count() - static_cast<std::int64_t>(steady_ns());
}

// When this library was loaded: the longer ago, the better the rate of the counter is known.
struct Origin {
  std::uint64_t at = ticks(), ns = steady_ns();
};
const Origin origin;

void put(char* to, std::size_t room, std::string_view text) {
  const std::size_t n = std::min(room - 1, text.size());
  std::memcpy(to, text.data(), n);
  to[n] = '\0';
}

}  // namespace

Recorder::Recorder(std::uint32_t entries) : generation_(fork_generation()) { map(entries, -1); }

Recorder::~Recorder() { unmap(); }

void Recorder::unmap() {
  if (header_ != nullptr) ::munmap(header_, bytes_);
  header_ = nullptr;
}

// Memory of the kernel is zero: a valid state without records.
void Recorder::map(std::uint32_t entries, int file) {
  const std::uint32_t capacity = std::bit_ceil(std::clamp(entries, kLeast, std::uint32_t{1} << 20));
  const std::size_t records = std::size_t{capacity} * sizeof(Record);
  const std::size_t bytes = kPage + 2 * records + kStringBytes;
  if (file >= 0) {
    // Given now, or a full disk would end the process at some later store.
    if (const int error = ::posix_fallocate(file, 0, static_cast<off_t>(bytes)); error != 0)
      throw Error(ErrorKind::invalid, std::strerror(error));
  }
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                        file >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, file, 0);
  if (memory == MAP_FAILED)
    throw Error(file >= 0 ? ErrorKind::invalid : ErrorKind::memory,
                std::string("no memory for the flight recorder: ") + std::strerror(errno));
  unmap();
  auto* at = static_cast<char*>(memory);
  bytes_ = bytes;
  mask_ = capacity - 1;
  header_ = reinterpret_cast<RecorderHeader*>(at);
  operations_ = reinterpret_cast<Record*>(at + kPage);
  messages_ = reinterpret_cast<Record*>(at + kPage + records);
  strings_ = at + kPage + 2 * records;
  header_->header_bytes = kPage;
  header_->record_bytes = sizeof(Record);
  header_->info_bytes = sizeof(OpInfo);
  header_->capacity = capacity;
  header_->strings_bytes = kStringBytes;
  header_->pid = ::getpid();
  header_->real_offset = real_offset();
  header_->first_ticks = origin.at;
  header_->first_ns = origin.ns;
  tick();
  header_->magic = RecorderHeader::kMagic;
}

void Recorder::open(std::uint32_t entries, const std::string& path, Rank rank, Rank size, const std::string& host,
                    const std::string& group) {
  timed_ = entries > 0;
  std::string refused;
  if (!path.empty() && timed_) {
    // A new file: what lies there under this name may be somebody else's, or a link to it.
    const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (file < 0) {
      refused = std::strerror(errno);
    } else {
      try {
        map(entries, file);
      } catch (const Error& error) {
        refused = error.what();
        ::unlink(path.c_str());
      }
      ::close(file);
    }
  }
  if (path.empty() || !timed_ || !refused.empty()) map(entries, -1);
  header_->rank = rank;
  header_->size = size;
  put(header_->host, sizeof header_->host, host);
  put(header_->group, sizeof header_->group, group);
  if (!refused.empty()) throw Error(ErrorKind::invalid, "cannot record in " + path + ": " + refused);
}

std::uint64_t Recorder::message(bool send, Rank peer, std::int64_t tag, std::uint64_t bytes, std::uint32_t site) {
  const std::uint64_t number = next_message_.fetch_add(1, std::memory_order_relaxed) + 1;
  OpInfo info;
  info.sequence = number;
  info.count = bytes;
  info.root = peer;
  info.collective = send ? kSendCode : kReceiveCode;
  info.dtype = static_cast<std::uint8_t>(DType::bytes);
  info.op = static_cast<std::uint8_t>(ReduceOp::none);
  info.ndim = 255;
  info.shape[0] = tag;
  write(messages_[number & mask_], info, 0, 0, timed_ ? ticks() : 0, site);
  header_->messages.store(number, std::memory_order_relaxed);
  return number;
}

void Recorder::end_message(std::uint64_t number, RecordState state) {
  Record& record = messages_[number & mask_];
  if (record.version.load(std::memory_order_relaxed) == number + 1) close(record, state);
}

// Strings lie one behind the other: length in four bytes, then the text. Their number is their offset plus one.
std::uint32_t Recorder::string(std::string_view text) {
  // In a forked child the memory may be the parent's file, and the mutex held for ever by one of its threads.
  if (!timed_ || generation_ != fork_generation()) return 0;
  text = text.substr(0, 1000);
  const std::lock_guard lock(mutex_);
  if (const auto found = numbers_.find(text); found != numbers_.end()) return found->second;
  const std::uint32_t used = header_->strings_used.load(std::memory_order_relaxed);
  const auto length = static_cast<std::uint32_t>(text.size());
  if (used + sizeof length + length > kStringBytes) return 0;
  std::memcpy(strings_ + used, &length, sizeof length);
  std::memcpy(strings_ + used + sizeof length, text.data(), length);
  header_->strings_used.store(used + static_cast<std::uint32_t>(sizeof length) + length, std::memory_order_release);
  return numbers_.emplace(text, used + 1).first->second;
}

void Recorder::tick() {
  header_->last_ticks.store(ticks(), std::memory_order_relaxed);
  header_->last_ns.store(steady_ns(), std::memory_order_relaxed);
}

void Recorder::fail(const std::string& cause) {
  if (generation_ != fork_generation()) return;
  const std::lock_guard lock(mutex_);
  if (header_->end.load(std::memory_order_relaxed) != 0) return;
  tick();
  put(header_->cause, sizeof header_->cause, cause);
  header_->end.store(1, std::memory_order_release);
}

void Recorder::closed() {
  if (generation_ != fork_generation()) return;
  const std::lock_guard lock(mutex_);
  tick();
  std::uint32_t live = 0;
  header_->end.compare_exchange_strong(live, 2, std::memory_order_release);
}

std::string Recorder::snapshot() {
  std::unique_lock lock(mutex_, std::defer_lock);
  if (generation_ == fork_generation()) {
    lock.lock();
    tick();
  }
  std::string copy(bytes_, '\0');
  const auto* words = reinterpret_cast<const std::atomic<std::uint64_t>*>(header_);
  for (std::size_t k = 0; k < kPage / 8; ++k) {  // its numbers change meanwhile
    const std::uint64_t word = words[k].load(std::memory_order_acquire);
    std::memcpy(copy.data() + 8 * k, &word, 8);
  }
  for (std::size_t i = 0; i < 2 * std::size_t{capacity()}; ++i) {
    const Record& record = operations_[i];  // and the messages, which follow
    const auto* from = reinterpret_cast<const std::atomic<std::uint64_t>*>(&record);
    std::uint64_t own[sizeof(Record) / 8];
    for (std::size_t k = 0; k < sizeof(Record) / 8; ++k) own[k] = from[k].load(std::memory_order_acquire);
    if (record.version.load(std::memory_order_relaxed) != own[0]) own[0] = 0;  // it changed meanwhile
    std::memcpy(copy.data() + kPage + i * sizeof(Record), own, sizeof own);
  }
  const std::size_t strings = bytes_ - kStringBytes;
  std::memcpy(copy.data() + strings, strings_, kStringBytes);
  return copy;
}

}  // namespace ringleader
