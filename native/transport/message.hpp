// What every transport checks of a message: that it is well posted, and that the one that came is the one expected.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "transport/link.hpp"

namespace ringleader {

// Throws Error(internal) if the header's size is not that of the pieces in this wire format.
void check_posted(const MessageHeader& header, const std::vector<Piece>& pieces, WireFormat wire);
// Throws Error(internal) if a piece to be folded is not made of whole items, or an item is larger than `alignment`.
void check_fold(const RecvRequest& request, std::size_t alignment);

// Throws Error(mismatch), with both sides' texts, if `got` is not what `expected` says.
void check_header(const MessageHeader& expected, const MessageHeader& got, Rank peer, const std::string& peer_name);

}  // namespace ringleader
