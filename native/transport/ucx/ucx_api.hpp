// The functions of libucp, found when they are first needed: nothing of UCX is linked, and a machine without it misses
// only this transport.
#pragma once

#include <ucp/api/ucp.h>

#include <cstdarg>
#include <string>
#include <vector>

namespace ringleader::ucx {

struct Api {
  std::string library;  // what was loaded
  unsigned major = 0, minor = 0, release = 0;
  decltype(&::ucp_get_version) get_version = nullptr;
  decltype(&::ucp_config_read) config_read = nullptr;
  decltype(&::ucp_config_modify) config_modify = nullptr;
  decltype(&::ucp_config_release) config_release = nullptr;
  decltype(&::ucp_init_version) init_version = nullptr;
  decltype(&::ucp_cleanup) cleanup = nullptr;
  decltype(&::ucp_worker_create) worker_create = nullptr;
  decltype(&::ucp_worker_destroy) worker_destroy = nullptr;
  decltype(&::ucp_worker_get_address) worker_get_address = nullptr;
  decltype(&::ucp_worker_release_address) worker_release_address = nullptr;
  decltype(&::ucp_worker_get_efd) worker_get_efd = nullptr;
  decltype(&::ucp_worker_arm) worker_arm = nullptr;
  decltype(&::ucp_worker_progress) worker_progress = nullptr;
  decltype(&::ucp_ep_create) ep_create = nullptr;
  decltype(&::ucp_ep_close_nbx) ep_close_nbx = nullptr;
  decltype(&::ucp_ep_flush_nbx) ep_flush_nbx = nullptr;
  decltype(&::ucp_tag_send_nbx) tag_send_nbx = nullptr;
  decltype(&::ucp_tag_send_sync_nbx) tag_send_sync_nbx = nullptr;
  decltype(&::ucp_tag_recv_nbx) tag_recv_nbx = nullptr;
  decltype(&::ucp_request_cancel) request_cancel = nullptr;
  decltype(&::ucp_request_free) request_free = nullptr;
  decltype(&::ucs_status_string) status_string = nullptr;
  // Not of the public interface, so they may be missing. A handler returns 0 to have a line dropped.
  using LogHandler = int (*)(const char*, unsigned, const char*, int, const void*, const char*, va_list);
  void (*push_log_handler)(LogHandler) = nullptr;
  void (*pop_log_handler)() = nullptr;

  std::string version() const {
    return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(release);
  }
};

// Loads the first of `candidates` (paths, or names that the dynamic linker searches) that can be; once per process,
// later calls return the same. Throws Error(invalid) naming every candidate, why it failed, and how to get UCX.
const Api& load(const std::vector<std::string>& candidates);

// UCX logs nothing while one of these lives: for what it complains of though it is meant to be so.
class Quiet {
 public:
  explicit Quiet(const Api& api);
  ~Quiet();
  Quiet(const Quiet&) = delete;
  Quiet& operator=(const Quiet&) = delete;

 private:
  const Api& api_;
};

}  // namespace ringleader::ucx
