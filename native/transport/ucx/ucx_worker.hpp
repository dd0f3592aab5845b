// One UCX context and worker: what the UCX links of a communicator share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/types.hpp"
#include "transport/ucx/ucx_api.hpp"

namespace ringleader {

// Aligned memory of a worker.
struct UcxBuffer {
  std::unique_ptr<std::byte[], void (*)(std::byte*)> memory{nullptr, nullptr};
  std::size_t bytes = 0;
  std::byte* get() const { return memory.get(); }
  explicit operator bool() const { return memory != nullptr; }
};

// Memory that UCX may write to or read from until `done`.
struct UcxOperation {
  explicit UcxOperation(const ucx::Api& functions) : api(functions) {}
  void finish(void* finished, ucs_status_t result, std::size_t came) {
    received = came;
    status = result;
    done = true;
    request = nullptr;
    api.request_free(finished);
  }

  const ucx::Api& api;
  std::vector<ucp_dt_iov_t> pieces;
  UcxBuffer buffer;
  std::size_t bytes = 0;     // of payload that it moves
  std::size_t received = 0;  // bytes that came
  void* request = nullptr;   // UCX's; null once done
  ucs_status_t status = UCS_OK;
  bool done = false;
};

// Not thread-safe: the thread that drives the communicator uses it.
class UcxWorker {
 public:
  static constexpr std::size_t kAlign = 64;

  // `candidates`: see ucx::load. `settings`: names of UCX's settings without "UCX_", which override its environment.
  // Throws Error(invalid | memory | internal) with what UCX said.
  UcxWorker(const std::vector<std::string>& candidates, const std::map<std::string, std::string>& settings);
  ~UcxWorker();
  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;

  const ucx::Api& api() const { return api_; }
  ucp_worker_h handle() const { return worker_; }
  const std::string& address() const { return address_; }  // what peers need to reach it
  bool usable() const;  // false in a forked child: UCX's state there is a copy that must not be touched

  void progress();
  // A descriptor that is or becomes readable when progress() has something to do; -1 if these transports have none.
  int armed_fd();
  int ready_fd() const { return ready_fd_; }  // always readable

  // Buffers of a few sizes, kept for reuse.
  UcxBuffer take(std::size_t bytes);
  void give(UcxBuffer buffer);
  std::size_t taken() const { return taken_; }  // bytes handed out

  // Keeps what UCX may still touch until the worker is gone.
  void keep(std::unique_ptr<UcxOperation> operation) { kept_.push_back(std::move(operation)); }

 private:
  void open(const std::map<std::string, std::string>& settings);
  void close();
  void check(ucs_status_t status, const std::string& what) const;

  const ucx::Api& api_;
  std::uint64_t generation_;  // of forks
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  std::string address_;
  int fd_ = -1;        // UCX's
  int ready_fd_ = -1;  // always readable
  bool armed_ = false;
  bool busy_ = true;  // the last progress() did something
  std::map<std::size_t, std::vector<UcxBuffer>> spare_;
  std::size_t taken_ = 0;
  std::vector<std::unique_ptr<UcxOperation>> kept_;
};

}  // namespace ringleader
