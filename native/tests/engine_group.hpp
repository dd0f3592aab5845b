// A group whose ranks are threads of this process, over shared memory, TCP on loopback, or both by node layout.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "core/communicator.hpp"
#include "tests/test_tcp_support.hpp"

namespace ringleader::test {

class EngineGroup {
 public:
  EngineGroup(std::vector<std::int32_t> nodes, double timeout = 30, CommOptions options = {},
              std::size_t connections = 1)
      : nodes_(std::move(nodes)) {
    const auto n = nodes_.size();
    std::vector<ConnectRequest> requests(n);
    for (std::size_t r = 0; r < n; ++r)
      ranks_.push_back(std::make_shared<Communicator>(static_cast<Rank>(r), static_cast<Rank>(n), timeout, options));
    for (std::size_t r = 0; r < n; ++r) {
      requests[r].nodes = nodes_;
      requests[r].sockets.resize(n);
      for (std::size_t p = 0; p < n; ++p) {
        requests[r].processes.push_back(nodes_[p] == nodes_[r] ? PeerProcess::self() : nullptr);
        requests[r].control_offsets.push_back(ranks_[p]->control_offset());
        requests[r].names.push_back("rank " + std::to_string(p));
      }
    }
    for (std::size_t r = 0; r < n; ++r)
      for (std::size_t p = r + 1; p < n; ++p)
        if (nodes_[p] != nodes_[r])
          for (std::size_t i = 0; i < 2 + connections; ++i) {
            const auto [a, b] = tcp_pair();
            requests[r].sockets[p].push_back(a);
            requests[p].sockets[r].push_back(b);
          }
    for (std::size_t r = 0; r < n; ++r) ranks_[r]->connect(std::move(requests[r]));
  }
  ~EngineGroup() {
    for (auto& rank : ranks_) rank->close(2);
  }

  Rank size() const { return static_cast<Rank>(ranks_.size()); }
  const std::vector<std::int32_t>& nodes() const { return nodes_; }
  std::shared_ptr<Communicator> operator[](Rank r) const { return ranks_[static_cast<std::size_t>(r)]; }

  // Runs `body(rank)` on a thread per rank; the errors by rank (null = fine).
  std::vector<std::exception_ptr> run(const std::function<void(Rank)>& body) {
    std::vector<std::exception_ptr> errors(ranks_.size());
    std::vector<std::thread> threads;
    for (Rank r = 0; r < size(); ++r)
      threads.emplace_back([&, r] {
        try {
          body(r);
        } catch (...) {
          errors[static_cast<std::size_t>(r)] = std::current_exception();
        }
      });
    for (std::thread& thread : threads) thread.join();
    return errors;
  }

 private:
  std::vector<std::int32_t> nodes_;
  std::vector<std::shared_ptr<Communicator>> ranks_;
};

inline std::string text_of(const std::exception_ptr& error) {
  if (!error) return "";
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return e.what();
  }
}

inline ErrorKind kind_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    return e.kind;
  }
}

inline void run_plan(const std::shared_ptr<Communicator>& communicator, const std::shared_ptr<const Plan>& plan,
                     void* in, void* out, double timeout = 0) {
  Call call(*communicator, plan, in, out, timeout);
  while (!call.advance(Clock::now() + std::chrono::milliseconds(100))) continue;
}

}  // namespace ringleader::test
