#include "transport/message.hpp"

#include <cstring>

#include "transport/wire_stream.hpp"

namespace ringleader {

namespace {

std::string position(const MessageHeader& header) {
  return "window " + std::to_string(header.window) + ", message " + std::to_string(header.index) + ", " +
         std::to_string(header.bytes) + " bytes";
}

// What differs between the message that had to come and the one that came.
std::string difference(const MessageHeader& expected, const MessageHeader& got, const std::string& peer_name) {
  if (got.magic != expected.magic) {
    return peer_name + " sent something that is not a message of this protocol version (it starts with " +
           std::to_string(got.magic) + ", expected " + std::to_string(expected.magic) +
           "): do all ranks run the same version?";
  }
  if (std::memcmp(&got.info, &expected.info, sizeof got.info) != 0) {
    OpInfo same_past = got.info;
    same_past.history = expected.info.history;
    const bool earlier = std::memcmp(&same_past, &expected.info, sizeof same_past) == 0;
    return std::string("ranks disagree about ") +
           (earlier ? "an earlier operation; now "
                    : "the operation: " + expected.info.beside(got.info, "this rank", peer_name) + "\n") +
           "this rank runs " + expected.info.text() + "; " + peer_name + " runs " + got.info.text();
  }
  return "ranks disagree about a message of " + expected.info.text() + ": this rank expects " + position(expected) +
         "; " + peer_name + " sent " + position(got);
}

}  // namespace

void check_posted(const MessageHeader& header, const std::vector<Piece>& pieces, WireFormat wire) {
  const std::uint64_t total = payload_bytes(pieces, wire);
  if (header.bytes != total) {
    throw Error(ErrorKind::internal, "message header says " + std::to_string(header.bytes) +
                                         " bytes but its pieces hold " + std::to_string(total));
  }
}

void check_fold(const RecvRequest& request, std::size_t alignment) {
  if (request.fold == nullptr) return;
  for (const Piece& piece : request.pieces) {
    if (request.item == 0 || request.item > alignment || piece.bytes % request.item != 0) {
      throw Error(ErrorKind::internal, "a piece of " + std::to_string(piece.bytes) +
                                           " bytes cannot be folded in items of " + std::to_string(request.item) +
                                           " bytes");
    }
  }
}

void check_header(const MessageHeader& expected, const MessageHeader& got, Rank peer, const std::string& peer_name) {
  if (std::memcmp(&got, &expected, sizeof got) != 0)
    throw Error(ErrorKind::mismatch, difference(expected, got, peer_name), {peer});
}

}  // namespace ringleader
