#include "transport/ucx/ucx_api.hpp"

#include <dlfcn.h>

#include <cstdlib>
#include <memory>
#include <mutex>
#include <stdexcept>

#include "base/types.hpp"

namespace ringleader::ucx {

namespace {

// Everything used here is in 1.13 (the callback interface of tags, endpoint flush and close are older).
constexpr unsigned kOldestMajor = 1, kOldestMinor = 13;

// UCX would print a backtrace for every SIGSEGV of the process (older versions do unasked); who handles those is the
// application's choice. It reads this setting while it is loaded, so the environment is the only way; a value of the
// user's stays.
void leave_signals_alone() { ::setenv("UCX_HANDLE_ERRORS", "none", 0); }

template <class Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function == nullptr) throw std::runtime_error(std::string("it has no function ") + name);
}

std::unique_ptr<Api> try_load(const std::string& path) {
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw std::runtime_error(::dlerror());
  auto api = std::make_unique<Api>();
  api->library = path;
  find(library, "ucp_get_version", api->get_version);
  api->get_version(&api->major, &api->minor, &api->release);
  if (api->major != kOldestMajor || api->minor < kOldestMinor)
    throw std::runtime_error("it is version " + api->version() + ", and 1.13 or a later 1.x is needed");
  find(library, "ucp_config_read", api->config_read);
  find(library, "ucp_config_modify", api->config_modify);
  find(library, "ucp_config_release", api->config_release);
  find(library, "ucp_init_version", api->init_version);
  find(library, "ucp_cleanup", api->cleanup);
  find(library, "ucp_worker_create", api->worker_create);
  find(library, "ucp_worker_destroy", api->worker_destroy);
  find(library, "ucp_worker_get_address", api->worker_get_address);
  find(library, "ucp_worker_release_address", api->worker_release_address);
  find(library, "ucp_worker_get_efd", api->worker_get_efd);
  find(library, "ucp_worker_arm", api->worker_arm);
  find(library, "ucp_worker_progress", api->worker_progress);
  find(library, "ucp_ep_create", api->ep_create);
  find(library, "ucp_ep_close_nbx", api->ep_close_nbx);
  find(library, "ucp_ep_flush_nbx", api->ep_flush_nbx);
  find(library, "ucp_tag_send_nbx", api->tag_send_nbx);
  find(library, "ucp_tag_send_sync_nbx", api->tag_send_sync_nbx);
  find(library, "ucp_tag_recv_nbx", api->tag_recv_nbx);
  find(library, "ucp_request_cancel", api->request_cancel);
  find(library, "ucp_request_free", api->request_free);
  find(library, "ucs_status_string", api->status_string);
  api->push_log_handler = reinterpret_cast<void (*)(Api::LogHandler)>(::dlsym(library, "ucs_log_push_handler"));
  api->pop_log_handler = reinterpret_cast<void (*)()>(::dlsym(library, "ucs_log_pop_handler"));
  return api;
}

// UCX's stack of handlers is not made for threads.
std::mutex log_mutex;
int drop_line(const char*, unsigned, const char*, int, const void*, const char*, va_list) { return 0; }

}  // namespace

Quiet::Quiet(const Api& api) : api_(api) {
  std::lock_guard lock(log_mutex);
  if (api_.push_log_handler != nullptr && api_.pop_log_handler != nullptr) api_.push_log_handler(drop_line);
}

Quiet::~Quiet() {
  std::lock_guard lock(log_mutex);
  if (api_.push_log_handler != nullptr && api_.pop_log_handler != nullptr) api_.pop_log_handler();
}

const Api& load(const std::vector<std::string>& candidates) {
  static std::mutex mutex;
  static std::unique_ptr<Api> loaded;  // for the life of the process: UCX's threads and memory hooks cannot be unloaded
  std::lock_guard lock(mutex);
  if (loaded) return *loaded;
  leave_signals_alone();
  std::string tried;
  for (const std::string& path : candidates) {
    try {
      loaded = try_load(path);
      return *loaded;
    } catch (const std::runtime_error& error) {
      tried += (tried.empty() ? "" : "; ") + path + ": " + error.what();
    }
  }
  throw Error(ErrorKind::invalid,
              "the UCX transport needs libucp, which could not be loaded (" +
                  (tried.empty() ? "nothing to try" : tried) +
                  "); install UCX 1.13 or later (the system's package, e.g. libucx0 or ucx, which InfiniBand needs; "
                  "or `pip install libucx-cu12`), or set RINGLEADER_UCX_LIBRARY to the path of libucp.so.0");
}

}  // namespace ringleader::ucx
