#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <tuple>

#include "bind/bind.hpp"
#include "memory/arena.hpp"
#include "memory/cores.hpp"
#include "memory/peer.hpp"
#include "memory/space.hpp"
#include "memory/strided.hpp"
#include "memory/time_slice.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace ringleader {

namespace {

Identity to_identity(const nb::bytes& bytes) {
  Identity identity;
  if (bytes.size() != identity.size()) {
    throw Error(ErrorKind::invalid, "identity has " + std::to_string(bytes.size()) + " bytes, expected " +
                                        std::to_string(identity.size()) + " as given by arena_info()");
  }
  std::memcpy(identity.data(), bytes.data(), identity.size());
  return identity;
}

nb::bytes to_bytes(const Identity& identity) { return nb::bytes(identity.data(), identity.size()); }

std::tuple<int, std::size_t, nb::bytes> arena_info() {
  const Arena& arena = Arena::instance();
  return {arena.fd(), arena.size(), to_bytes(arena.identity())};
}

std::uintptr_t arena_alloc(std::size_t nbytes, std::size_t align) {
  const nb::gil_scoped_release unlocked;  // reserving gigabytes takes seconds
  return reinterpret_cast<std::uintptr_t>(Arena::instance().allocate(nbytes, align));
}

std::uintptr_t arena_adopt(std::uintptr_t ptr, std::size_t nbytes) {
  const nb::gil_scoped_release unlocked;
  return reinterpret_cast<std::uintptr_t>(Arena::instance().adopt(reinterpret_cast<void*>(ptr), nbytes));
}

void arena_free(std::uintptr_t ptr) {
  const nb::gil_scoped_release unlocked;
  Arena::release(reinterpret_cast<void*>(ptr));
}

std::size_t arena_used() {
  const Arena* arena = Arena::current();
  return arena == nullptr ? 0 : arena->used();
}

bool arena_contains(std::uintptr_t ptr, std::size_t nbytes) {
  const Arena* arena = Arena::current();
  return arena != nullptr && arena->contains(reinterpret_cast<const void*>(ptr), nbytes);
}

std::shared_ptr<PeerProcess> attach(const nb::bytes& identity, int arena_fd, std::size_t arena_size, int live_fd,
                                    int pid) {
  Identity named;
  try {
    named = to_identity(identity);
  } catch (...) {  // the descriptors are ours from the call on
    ::close(arena_fd);
    ::close(live_fd);
    throw;
  }
  return PeerProcess::attach(named, arena_fd, arena_size, live_fd, pid);
}

}  // namespace

void bind_memory(nb::module_& m) {
  m.def("arena_info", &arena_info);
  m.def("arena_expect", &expect_local_ranks, "ranks"_a);
  m.def("arena_bytes", &arena_bytes, "machine_bytes"_a, "room"_a, "ranks"_a);
  m.def("arena_alloc", &arena_alloc, "nbytes"_a, "align"_a = 64);
  m.def("arena_adopt", &arena_adopt, "ptr"_a, "nbytes"_a);
  m.def("arena_free", &arena_free, "ptr"_a);
  m.def("arena_used", &arena_used);
  m.def("arena_contains", &arena_contains, "ptr"_a, "nbytes"_a);
  m.def("usable_cores", [] { return usable_cores(); });
  m.def(
      "time_slice_refusal", [](std::uint32_t microseconds) { return TimeSlice::refusal(microseconds); },
      "microseconds"_a, nb::call_guard<nb::gil_scoped_release>());
  m.def("quota_cores", [] { return quota_cores(); });
  nb::class_<StridedCopy>(m, "StridedCopy")
      .def(
          "__init__",
          [](StridedCopy* self, std::uintptr_t from_ptr, std::uintptr_t to_ptr, const std::vector<std::size_t>& shape,
             const std::vector<std::ptrdiff_t>& strides, std::size_t itemsize, std::vector<std::int32_t> order,
             std::vector<std::uint8_t> flip) {
            new (self) StridedCopy(reinterpret_cast<const void*>(from_ptr), reinterpret_cast<void*>(to_ptr), shape,
                                   strides, itemsize, std::move(order), std::move(flip));
          },
          "from_ptr"_a, "to_ptr"_a, "shape"_a, "strides"_a, "itemsize"_a, "order"_a = std::vector<std::int32_t>(),
          "flip"_a = std::vector<std::uint8_t>())
      .def("__call__", [](const StridedCopy& self) { self.run(); }, nb::call_guard<nb::gil_scoped_release>());
  nb::class_<PeerProcess>(m, "PeerProcess")
      .def(nb::new_(&attach), "identity"_a, "arena_fd"_a, "arena_size"_a, "live_fd"_a, "pid"_a)
      .def_static(
          "find", [](const nb::bytes& identity) { return PeerProcess::find(to_identity(identity)); }, "identity"_a)
      .def_prop_ro("identity", [](const PeerProcess& peer) { return to_bytes(peer.identity()); })
      .def_prop_ro("alive", &PeerProcess::alive);
}

}  // namespace ringleader
