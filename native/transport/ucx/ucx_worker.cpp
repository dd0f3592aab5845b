#include "transport/ucx/ucx_worker.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <mutex>
#include <new>

#include "base/fork.hpp"

namespace ringleader {

namespace {

// Enough to see a message through UCX's steps, few enough not to keep the other links waiting.
constexpr int kProgressRounds = 8;

// What is never torn down.
struct Abandoned {
  ucp_worker_h worker;
  ucp_context_h context;
  std::vector<std::unique_ptr<UcxOperation>> operations;
};

// Kept where a leak checker finds it: this is meant to be.
void leave_behind(Abandoned abandoned) {
  static std::mutex mutex;
  static auto* const all = new std::vector<Abandoned>;
  const std::lock_guard lock(mutex);
  all->push_back(std::move(abandoned));
}

void release(std::byte* memory) { ::operator delete[](memory, std::align_val_t{UcxWorker::kAlign}); }

}  // namespace

UcxWorker::UcxWorker(const std::vector<std::string>& candidates, const std::map<std::string, std::string>& settings)
    : api_(ucx::load(candidates)), generation_(fork_generation()) {
  try {
    open(settings);
  } catch (...) {
    close();
    throw;
  }
}

UcxWorker::~UcxWorker() { close(); }

bool UcxWorker::usable() const { return worker_ != nullptr && generation_ == fork_generation(); }

void UcxWorker::check(ucs_status_t status, const std::string& what) const {
  if (status == UCS_OK) return;
  const ErrorKind kind = status == UCS_ERR_NO_MEMORY ? ErrorKind::memory : ErrorKind::invalid;
  throw Error(kind, "UCX " + api_.version() + " (" + api_.library + "): " + what +
                        " failed: " + api_.status_string(status) +
                        "; UCX_TLS and UCX_NET_DEVICES choose its transports and devices, `ucx_info -d` lists them");
}

void UcxWorker::open(const std::map<std::string, std::string>& settings) {
  ucp_config_t* config = nullptr;
  check(api_.config_read(nullptr, nullptr, &config), "reading its settings");
  std::unique_ptr<ucp_config_t, decltype(api_.config_release)> owned(config, api_.config_release);
  for (const auto& [name, value] : settings)
    check(api_.config_modify(config, name.c_str(), value.c_str()), "setting " + name + "=" + value);
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP;
  // The version that the fields used here need, not the one of the headers: an older library must not complain.
  check(api_.init_version(1, 13, &params, config, &context_), "initialising");
  ucp_worker_params_t worker_params{};
  worker_params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker_params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  check(api_.worker_create(context_, &worker_params, &worker_), "creating a worker");
  ucp_address_t* address = nullptr;
  std::size_t bytes = 0;
  check(api_.worker_get_address(worker_, &address, &bytes), "asking for the worker's address");
  address_.assign(reinterpret_cast<const char*>(address), bytes);
  api_.worker_release_address(worker_, address);
  if (api_.worker_get_efd(worker_, &fd_) != UCS_OK) fd_ = -1;
  ready_fd_ = ::eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK);
}

// Where something is still in flight (only transports that cannot break a connection leave it so: shared memory, moved
// by processors and not by devices), UCX must not be torn down, and is not: nobody calls progress() any more, so
// nothing moves.
void UcxWorker::close() {
  if (generation_ != fork_generation()) {  // the parent's
    for (auto& operation : kept_) static_cast<void>(operation.release());
    return;
  }
  if (!kept_.empty()) {
    leave_behind({worker_, context_, std::move(kept_)});
    return;
  }
  const ucx::Quiet quiet(api_);  // about messages that came and were not asked for any more
  if (worker_ != nullptr) api_.worker_destroy(worker_);
  if (context_ != nullptr) api_.cleanup(context_);
  worker_ = nullptr;
  context_ = nullptr;
  if (ready_fd_ >= 0) ::close(ready_fd_);
  ready_fd_ = -1;
}

void UcxWorker::progress() {
  armed_ = false;
  busy_ = true;
  for (int i = 0; busy_ && i < kProgressRounds; ++i) busy_ = api_.worker_progress(worker_) != 0;
}

int UcxWorker::armed_fd() {
  if (fd_ < 0 || ready_fd_ < 0) return -1;
  // Events count only once progress has found nothing to do: it also does what no event announces.
  if (!armed_ && !busy_) armed_ = api_.worker_arm(worker_) == UCS_OK;
  return armed_ ? fd_ : ready_fd_;  // not armed: something is there already
}

UcxBuffer UcxWorker::take(std::size_t bytes) {
  taken_ += bytes;
  auto& spare = spare_[bytes];
  if (spare.empty())
    return {{static_cast<std::byte*>(::operator new[](bytes, std::align_val_t{kAlign})), release}, bytes};
  UcxBuffer buffer = std::move(spare.back());
  spare.pop_back();
  return buffer;
}

void UcxWorker::give(UcxBuffer buffer) {
  taken_ -= buffer.bytes;
  spare_[buffer.bytes].push_back(std::move(buffer));
}

}  // namespace ringleader
