// Messages in a wire format, bit by bit: what a Link needs to send and receive them through a buffer of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "transport/link.hpp"

namespace ringleader {

// Payload bytes of a message with these pieces.
std::uint64_t payload_bytes(const std::vector<Piece>& pieces, WireFormat wire);

// A place within a message: element `at` of piece `piece`. Block boundaries count from the start of each piece.
struct WireCursor {
  std::size_t piece = 0;
  std::size_t at = 0;
};

// Encodes what comes next of the message into out[0, room): whole blocks and ends of pieces. Returns the bytes written;
// 0 only at the end of the message, provided room holds one block.
std::size_t encode_next(const SendRequest& request, WireCursor& cursor, unsigned char* out, std::size_t room);

// What encode_next would write with that much room: moves the cursor alike and returns the bytes, so that a receiver
// knows where the sender cuts.
std::size_t skip_next(const std::vector<Piece>& pieces, WireFormat wire, WireCursor& cursor, std::size_t room);

// Decodes in[0, available) into the pieces, or folds it into them: whole blocks and ends of pieces. Returns the bytes
// consumed; less than a block is left, unless the message ends.
std::size_t decode_next(const RecvRequest& request, WireCursor& cursor, const unsigned char* in, std::size_t available);

}  // namespace ringleader
