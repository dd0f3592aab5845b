// Two UCX workers in one process, and a link between them.
#pragma once

#include <dlfcn.h>
#include <doctest/doctest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "transport/ucx/ucx_link.hpp"

namespace ringleader::test {

// Where to look for libucp in the tests: RINGLEADER_UCX_LIBRARY or the system.
inline std::vector<std::string> ucx_libraries() {
  const char* given = std::getenv("RINGLEADER_UCX_LIBRARY");
  return {given != nullptr ? given : "libucp.so.0"};
}

// True if libucp is here; else says so once per test case.
inline bool have_ucx() {
  try {
    ucx::load(ucx_libraries());
    return true;
  } catch (const Error& error) {
    MESSAGE("skipped: " << std::string(error.what()));
    return false;
  }
}

inline std::shared_ptr<UcxWorker> ucx_worker(const std::string& transports) {
  return std::make_shared<UcxWorker>(ucx_libraries(), std::map<std::string, std::string>{{"TLS", transports}});
}

struct UcxPair {
  explicit UcxPair(const std::string& transports, std::uint8_t channel = 0)
      : worker_a(ucx_worker(transports)),
        worker_b(ucx_worker(transports)),
        a(worker_a, worker_b->address(), 0, 1, channel, "rank 1 (host b)"),
        b(worker_b, worker_a->address(), 1, 0, channel, "rank 0 (host a)") {}
  void step() {
    a.progress();
    b.progress();
  }
  std::shared_ptr<UcxWorker> worker_a, worker_b;
  UcxLink a, b;
};

}  // namespace ringleader::test
