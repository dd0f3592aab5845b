#include "transport/wire_stream.hpp"

#include <algorithm>

namespace ringleader {

namespace {

constexpr std::size_t kItem = sizeof(float);

// How many of `left` elements are in `room` encoded bytes: all, or whole blocks.
std::size_t elements_in(WireFormat wire, std::size_t left, std::size_t room) {
  if (encoded_bytes(wire, left) <= room) return left;
  return room / wire_block_bytes(wire) * kWireBlock;
}

// Moves on to the next piece that has elements left; false at the end of the message.
bool settle(const std::vector<Piece>& pieces, WireCursor& cursor) {
  while (cursor.piece < pieces.size() && cursor.at == pieces[cursor.piece].bytes / kItem)
    cursor = {cursor.piece + 1, 0};
  return cursor.piece < pieces.size();
}

void fold_decoded(const RecvRequest& request, float* dst, const unsigned char* in, std::size_t elements) {
  constexpr std::size_t kAtOnce = 16 * kWireBlock;  // stays in the first-level cache
  alignas(64) float decoded[kAtOnce];
  while (elements > 0) {
    const std::size_t n = std::min(kAtOnce, elements);
    decode(request.wire, decoded, in, n);
    request.fold(request.fold_context, dst, decoded, n * kItem);
    if (request.round) round_to_wire(request.wire, dst, dst, n);
    in += encoded_bytes(request.wire, n);
    dst += n;
    elements -= n;
  }
}

}  // namespace

std::uint64_t payload_bytes(const std::vector<Piece>& pieces, WireFormat wire) {
  std::uint64_t bytes = 0;
  for (const Piece& piece : pieces)
    bytes += wire == WireFormat::f32 ? piece.bytes : encoded_bytes(wire, piece.bytes / kItem);
  return bytes;
}

std::size_t encode_next(const SendRequest& request, WireCursor& cursor, unsigned char* out, std::size_t room) {
  std::size_t written = 0;
  while (settle(request.pieces, cursor)) {
    const Piece& piece = request.pieces[cursor.piece];
    const std::size_t n = elements_in(request.wire, piece.bytes / kItem - cursor.at, room - written);
    if (n == 0) break;
    encode(request.wire, out + written, static_cast<const float*>(piece.data) + cursor.at, n);
    written += encoded_bytes(request.wire, n);
    cursor.at += n;
  }
  return written;
}

std::size_t skip_next(const std::vector<Piece>& pieces, WireFormat wire, WireCursor& cursor, std::size_t room) {
  std::size_t skipped = 0;
  while (settle(pieces, cursor)) {
    const std::size_t n = elements_in(wire, pieces[cursor.piece].bytes / kItem - cursor.at, room - skipped);
    if (n == 0) break;
    skipped += encoded_bytes(wire, n);
    cursor.at += n;
  }
  return skipped;
}

std::size_t decode_next(const RecvRequest& request, WireCursor& cursor, const unsigned char* in,
                        std::size_t available) {
  std::size_t consumed = 0;
  while (settle(request.pieces, cursor)) {
    const Piece& piece = request.pieces[cursor.piece];
    const std::size_t n = elements_in(request.wire, piece.bytes / kItem - cursor.at, available - consumed);
    if (n == 0) break;
    float* dst = static_cast<float*>(piece.data) + cursor.at;
    if (request.fold == nullptr)
      decode(request.wire, dst, in + consumed, n);
    else
      fold_decoded(request, dst, in + consumed, n);
    consumed += encoded_bytes(request.wire, n);
    cursor.at += n;
  }
  return consumed;
}

}  // namespace ringleader
