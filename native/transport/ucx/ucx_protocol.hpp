// How messages lie in UCX's: what the sending and the receiving half of a link agree on.
#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/ucx/ucx_link.hpp"

namespace ringleader {

// In a buffer for a message's first part the header is at kHeaderAt, so that the payload after it is aligned for
// kernels.
inline constexpr std::size_t kHeaderAt = (UcxWorker::kAlign - sizeof(MessageHeader) % UcxWorker::kAlign) %
                                         UcxWorker::kAlign;
inline constexpr std::size_t kPayloadAt = kHeaderAt + sizeof(MessageHeader);
inline constexpr std::size_t kFirstBytes = kPayloadAt + UcxLink::kInline;
static_assert(kPayloadAt % UcxWorker::kAlign == 0);

// Payload bytes that go with the header: all or none.
inline std::uint64_t inline_bytes(const MessageHeader& header) {
  return header.bytes <= UcxLink::kInline ? header.bytes : 0;
}

}  // namespace ringleader
