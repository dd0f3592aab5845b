// Communicator, Work, CompletionQueue. Waiting happens without the GIL, in slices after which signals are handled.
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <map>

#include "bind/bind.hpp"
#include "bind/kept.hpp"
#include "bind/plan.hpp"
#include "core/communicator.hpp"
#include "transport/ucx/ucx_worker.hpp"

namespace nb = nanobind;

namespace ringleader {

namespace {

bool wait_work(PyWork& self, double timeout) {
  const auto until = timeout > 0 && timeout < 1e9
                         ? Clock::now() +
                               std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(timeout))
                         : Clock::time_point::max();
  while (!self.over()) {
    const auto slice = Clock::now() + kSlice;
    {
      nb::gil_scoped_release released;
      if (self.message)
        self.communicator->help(*self.state, std::min(slice, until));
      else
        self.state->wait_until(std::min(slice, until));
    }
    if (self.state->done()) break;
    handle_signals();
    if (Clock::now() >= until) return false;
  }
  if (const auto error = self.error()) throw *error;
  return true;
}

CommOptions parse_options(const std::map<std::string, std::int64_t>& given) {
  CommOptions options;
  std::map<std::string, std::int64_t> rest = given;
  const auto take = [&](const char* key, std::int64_t fallback) {
    const auto found = rest.find(key);
    const std::int64_t value = found == rest.end() ? fallback : found->second;
    if (value < 0)
      throw Error(ErrorKind::invalid,
                  std::string("option ") + key + ": expected a non-negative number, got " + std::to_string(value));
    if (found != rest.end()) rest.erase(found);
    return value;
  };
  options.slot_bytes = static_cast<std::uint64_t>(take("slot_bytes", static_cast<std::int64_t>(options.slot_bytes)));
  options.ring_bytes = static_cast<std::uint64_t>(
      take("p2p_ring_bytes", static_cast<std::int64_t>(options.ring_bytes)));
  options.wait.spin_us = static_cast<std::uint32_t>(take("spin_us", options.wait.spin_us));
  options.wait.yield_us = static_cast<std::uint32_t>(take("yield_us", options.wait.yield_us));
  options.wait.slice_us = static_cast<std::uint32_t>(take("slice_us", options.wait.slice_us));
  options.inline_bytes = static_cast<std::uint64_t>(
      take("inline_bytes", static_cast<std::int64_t>(options.inline_bytes)));
  options.wait.oversubscribed = take("oversubscribed", 0) != 0;
  options.bound = take("bound", 0) != 0;
  if (!rest.empty())
    throw Error(
        ErrorKind::invalid,
        "unknown option '" + rest.begin()->first +
            "'; known: slot_bytes, p2p_ring_bytes, inline_bytes, spin_us, yield_us, slice_us, oversubscribed, bound");
  options.small_slot_bytes = std::min(options.small_slot_bytes, options.slot_bytes);
  return options;
}

OpInfo describe(Collective collective, std::uint64_t count, DType dtype, ReduceOp op, Rank root,
                std::uint64_t algorithm, const std::optional<std::vector<std::int64_t>>& shape, double factor) {
  OpInfo info;
  info.count = count;
  info.algorithm = algorithm;
  info.factor = op == ReduceOp::premul_sum ? factor : 0;
  info.root = root;
  info.collective = static_cast<std::uint8_t>(collective);
  info.dtype = static_cast<std::uint8_t>(dtype);
  info.op = static_cast<std::uint8_t>(op);
  info.ndim = shape ? static_cast<std::uint8_t>(std::min<std::size_t>(shape->size(), 254)) : 255;
  if (shape)
    for (std::size_t i = 0; i < std::min<std::size_t>(shape->size(), 6); ++i) info.shape[i] = (*shape)[i];
  return info;
}

PyPlan make_plan(const std::shared_ptr<Communicator>& communicator, LoweredPtr lowered, int collective,
                 std::uint64_t count, int dtype, int op, Rank root, std::uint64_t algorithm,
                 const std::optional<std::vector<std::int64_t>>& shape, double factor, int wire,
                 const std::string& algorithm_name) {
  if (static_cast<int>(lowered->collective) != collective)
    throw Error(ErrorKind::invalid, std::string("the schedule is for ") + name(lowered->collective) + ", not " +
                                        name(static_cast<Collective>(collective)));
  if (dtype < 0 || dtype >= kDTypeCount) throw Error(ErrorKind::invalid, "unknown dtype code " + std::to_string(dtype));
  if (wire < 0 || wire >= kWireFormatCount)
    throw Error(ErrorKind::invalid, "unknown wire format code " + std::to_string(wire));
  PlanRequest request;
  request.wire = static_cast<WireFormat>(wire);
  request.lowered = std::move(lowered);
  request.count = count;
  request.dtype = static_cast<DType>(dtype);
  request.op = static_cast<ReduceOp>(op);
  request.factor = factor;
  request.info = describe(static_cast<Collective>(collective), count, request.dtype, request.op, root, algorithm, shape,
                          factor);
  algorithm_name.copy(request.info.algorithm_name, sizeof request.info.algorithm_name - 1);
  return {communicator, communicator->make_plan(std::move(request))};
}

// The Python class.
struct PyCommunicator {
  std::shared_ptr<Communicator> native;

  PyCommunicator(Rank rank, Rank size, double timeout, const std::map<std::string, std::int64_t>& given) {
    const CommOptions options = parse_options(given);
    native = make_parents<Communicator>(rank, size, timeout, options);
  }
};

// What stands in a communicator's order for something that runs beside it.
struct Turn {
  std::shared_ptr<WorkState> part = std::make_shared<WorkState>();
  void end() { part->complete(); }
};

Turn reserve(PyCommunicator& self) {
  Turn turn;
  self.native->join({turn.part}, make_work({}));
  return turn;
}

PyWork join(PyCommunicator& self, const std::vector<PyWork*>& works, nb::handle kept, const nb::sequence& copies) {
  self.native->require_usable();
  std::vector<std::shared_ptr<WorkState>> parts;
  for (const PyWork* work : works) parts.push_back(work->state);
  return {self.native, self.native->join(std::move(parts), make_work(kept, copies))};
}

void connect(PyCommunicator& self, std::vector<std::int32_t> nodes, const nb::list& processes,
             std::vector<std::uint64_t> offsets, std::vector<std::vector<int>> sockets, std::vector<std::string> names,
             std::shared_ptr<UcxWorker> ucx, const std::vector<nb::bytes>& ucx_addresses, std::size_t ucx_channels) {
  ConnectRequest request{std::move(nodes), {}, std::move(offsets), std::move(sockets), std::move(names),
                         std::move(ucx),   {}, ucx_channels};
  for (const nb::bytes& address : ucx_addresses) request.ucx_addresses.emplace_back(address.c_str(), address.size());
  for (const nb::handle process : processes)
    request.processes.push_back(process.is_none() ? nullptr : nb::cast<std::shared_ptr<PeerProcess>>(process));
  self.native->connect(std::move(request));
}

nb::list status(PyCommunicator& self) {
  nb::list rows;
  for (Rank r = 0; r < self.native->size(); ++r) {
    const Communicator::RankStatus status = self.native->status_of(r);
    nb::dict row;
    row["rank"] = r;
    row["name"] = status.name;
    row["alive"] = status.alive;
    row["last"] = status.last;
    row["sequence"] = status.sequence;
    rows.append(row);
  }
  return rows;
}

nb::dict counters(PyCommunicator& self) {
  Mesh& mesh = self.native->mesh();
  nb::dict result;
  const auto put = [&](const char* key, const Counters::Counter& counter) {
    result[key] = counter.load(std::memory_order_relaxed);
  };
  put("operations", mesh.counters.operations);
  put("windows", mesh.counters.windows);
  put("sleeps", mesh.counters.sleeps);
  put("bytes_staged_in", mesh.counters.bytes_staged_in);
  put("bytes_staged_out", mesh.counters.bytes_staged_out);
  put("bytes_written_peer", mesh.counters.bytes_written_peer);
  put("bytes_read_peer", mesh.counters.bytes_read_peer);
  std::uint64_t sent = 0, received = 0;
  for (const Mesh::Peer& peer : mesh.peers)
    for (const auto& link : peer.links) {
      sent += link->bytes_sent;
      received += link->bytes_received;
    }
  result["bytes_sent_net"] = sent;
  result["bytes_received_net"] = received;
  put("flow_bytes", mesh.meter.bytes);
  put("flow_ns", mesh.meter.ns);
  return result;
}

nb::list links(PyCommunicator& self) {
  Mesh& mesh = self.native->mesh();
  const bool live = self.native->state() == Communicator::State::live && !self.native->forked();
  const auto of = [](const std::atomic<std::uint64_t>& counter) { return counter.load(std::memory_order_relaxed); };
  nb::list rows;
  for (Rank r = 0; r < mesh.size; ++r) {
    const Mesh::Peer& peer = mesh.peers[static_cast<std::size_t>(r)];
    nb::dict row;
    std::uint64_t sent = 0, received = 0, messages = 0, flow_bytes = 0, flow_ns = 0, retransmits = 0;
    const Lateness& late = mesh.lateness[static_cast<std::size_t>(r)];
    std::uint64_t waits = of(late.windows), waited = of(late.ns), longest = of(late.longest_ns);
    KernelTimes kernel;
    for (const auto& link : peer.links) {
      sent += link->bytes_sent;
      received += link->bytes_received;
      messages += of(link->times.messages);
      flow_bytes += of(link->times.flow_bytes);
      flow_ns += of(link->times.flow_ns);
      waits += of(link->times.waits);
      waited += of(link->times.waited_ns);
      longest = std::max(longest, of(link->times.longest_wait_ns));
      const KernelTimes times = live ? link->kernel_times() : KernelTimes{};
      if (kernel.rtt_us == 0 || (times.rtt_us != 0 && times.rtt_us < kernel.rtt_us)) kernel = times;
      retransmits += times.retransmits;
    }
    row["rank"] = r;
    row["name"] = mesh.name(r);
    row["shared"] = peer.shared != nullptr;
    row["sent"] = sent;
    row["received"] = received;
    row["messages"] = messages;
    row["flow_bytes"] = flow_bytes;
    row["flow_ns"] = flow_ns;
    row["waits"] = waits;
    row["waited_ns"] = waited;
    row["longest_wait_ns"] = longest;
    row["rtt_us"] = kernel.rtt_us;
    row["jitter_us"] = kernel.jitter_us;
    row["least_rtt_us"] = kernel.least_rtt_us;
    row["retransmits"] = retransmits;
    rows.append(row);
  }
  return rows;
}

const char* state_name(Communicator::State state) {
  switch (state) {
    case Communicator::State::fresh: return "new";
    case Communicator::State::live: return "live";
    case Communicator::State::aborted: return "aborted";
    case Communicator::State::closed: break;
  }
  return "closed";
}

void bind_work(nb::module_& m) {
  nb::class_<PyWork>(m, "Work")
      .def("poll", [](PyWork& self) { return self.over(); })
      .def("wait", &wait_work, nb::arg("timeout") = 0)
      .def("error",
           [](PyWork& self) -> nb::object {
             const auto error = self.error();
             return error ? to_python(*error) : nb::none();
           })
      .def_prop_ro("source", [](PyWork& self) { return self.state->done() ? self.state->source : -1; })
      .def_prop_ro("tag", [](PyWork& self) { return self.state->done() ? self.state->tag : 0; })
      .def_prop_ro("nbytes", [](PyWork& self) { return self.state->done() ? self.state->nbytes : 0; });
  nb::class_<Turn>(m, "Turn").def("end", &Turn::end);
  nb::class_<CompletionSink>(m, "CompletionQueue")
      .def(nb::new_([] { return make_parents<CompletionSink>(); }))
      .def(
          "watch",
          [](std::shared_ptr<CompletionSink> self, PyWork& work, std::uint64_t token) {
            work.state->watch(std::move(self), token);
          },
          nb::arg("work"), nb::arg("token"))
      .def(
          "next",
          [](CompletionSink& self, double timeout) -> std::int64_t {
            nb::gil_scoped_release released;
            const auto until = Clock::now() +
                               std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(timeout));
            const auto token = self.pop(until);
            return token ? static_cast<std::int64_t>(*token) : -1;
          },
          nb::arg("timeout"))
      .def("close", &CompletionSink::close);
}

}  // namespace

void bind_comm(nb::module_& m) {
  bind_work(m);
  nb::class_<UcxWorker>(m, "UcxWorker")
      .def(nb::new_([](const std::vector<std::string>& libraries, const std::map<std::string, std::string>& settings) {
             nb::gil_scoped_release released;
             return make_parents<UcxWorker>(libraries, settings);
           }),
           nb::arg("libraries"), nb::arg("settings"))
      .def_prop_ro("address", [](UcxWorker& self) { return nb::bytes(self.address().data(), self.address().size()); })
      .def_prop_ro("library",
                   [](UcxWorker& self) { return "UCX " + self.api().version() + " (" + self.api().library + ")"; });
  nb::class_<PyCommunicator>(m, "Communicator")
      .def(nb::init<Rank, Rank, double, const std::map<std::string, std::int64_t>&>(), nb::arg("rank"), nb::arg("size"),
           nb::arg("timeout"), nb::arg("options"))
      .def("control_offset", [](PyCommunicator& self) { return self.native->control_offset(); })
      .def("connect", &connect, nb::arg("nodes"), nb::arg("peers"), nb::arg("control_offsets"), nb::arg("sockets"),
           nb::arg("names"), nb::arg("ucx").none() = nb::none(), nb::arg("ucx_addresses") = std::vector<nb::bytes>(),
           nb::arg("ucx_channels") = 0)
      .def(
          "plan",
          [](PyCommunicator& self, std::shared_ptr<Lowered> lowered, int collective, std::uint64_t count, int dtype,
             int op, Rank root, std::uint64_t algorithm, const std::optional<std::vector<std::int64_t>>& shape,
             double factor, int wire, const std::string& algorithm_name) {
            return make_plan(self.native, std::move(lowered), collective, count, dtype, op, root, algorithm, shape,
                             factor, wire, algorithm_name);
          },
          nb::arg("lowered"), nb::arg("collective"), nb::arg("count"), nb::arg("dtype"), nb::arg("op"), nb::arg("root"),
          nb::arg("algorithm"), nb::arg("shape").none(), nb::arg("factor") = 1.0, nb::arg("wire") = 0,
          nb::arg("algorithm_name") = "")
      .def(
          "isend",
          [](PyCommunicator& self, std::uintptr_t ptr, std::size_t nbytes, Rank dst, std::int64_t tag, double timeout,
             nb::handle kept) {
            return PyWork{self.native,
                          self.native->isend(reinterpret_cast<const void*>(ptr), nbytes, dst, tag, timeout,
                                             make_work(kept), call_site(*self.native)),
                          true};
          },
          nb::arg("ptr"), nb::arg("nbytes"), nb::arg("dst"), nb::arg("tag"), nb::arg("timeout") = 0,
          nb::arg("keep").none() = nb::none())
      .def(
          "irecv",
          [](PyCommunicator& self, std::uintptr_t ptr, std::size_t nbytes, Rank src, std::int64_t tag, double timeout,
             nb::handle kept, const nb::sequence& copies, bool exact) {
            return PyWork{self.native,
                          self.native->irecv(reinterpret_cast<void*>(ptr), nbytes, src, tag, timeout,
                                             make_work(kept, copies), exact, call_site(*self.native)),
                          true};
          },
          nb::arg("ptr"), nb::arg("nbytes"), nb::arg("src"), nb::arg("tag"), nb::arg("timeout") = 0,
          nb::arg("keep").none() = nb::none(), nb::arg("copies") = nb::make_tuple(), nb::arg("exact") = false)
      .def("reserve", &reserve)
      .def("join", &join, nb::arg("works"), nb::arg("keep").none() = nb::none(), nb::arg("copies") = nb::make_tuple())
      .def(
          "abort",
          [](PyCommunicator& self, const std::string& reason) {
            self.native->abort(ErrorKind::aborted, self.native->rank(), reason);
          },
          nb::arg("reason"))
      .def(
          "close",
          [](PyCommunicator& self, double timeout) {
            nb::gil_scoped_release released;
            self.native->close(timeout);
          },
          nb::arg("timeout") = 2.0)
      .def(
          "record",
          [](PyCommunicator& self, std::uint32_t entries, const std::string& path, const std::string& host,
             const std::string& group) {
            self.native->recorder().open(entries, path, self.native->rank(), self.native->size(), host, group);
          },
          nb::arg("entries"), nb::arg("path"), nb::arg("host"), nb::arg("group"))
      .def("recorded",
           [](PyCommunicator& self) {
             const std::string copy = self.native->recorder().snapshot();
             return nb::bytes(copy.data(), copy.size());
           })
      .def("status", &status)
      .def("counters", &counters)
      .def("links", &links)
      .def_prop_ro("rank", [](PyCommunicator& self) { return self.native->rank(); })
      .def_prop_ro("size", [](PyCommunicator& self) { return self.native->size(); })
      .def_prop_ro("state", [](PyCommunicator& self) { return state_name(self.native->state()); })
      .def_prop_ro("abort_reason", [](PyCommunicator& self) { return self.native->abort_reason(); })
      .def_prop_ro("lost_ranks", [](PyCommunicator& self) { return self.native->lost_ranks(); })
      .def_prop_rw(
          "timeout", [](PyCommunicator& self) { return self.native->timeout(); },
          [](PyCommunicator& self, double seconds) { self.native->set_timeout(seconds); });
}

}  // namespace ringleader
