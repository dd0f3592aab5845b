// Wire formats: f32 values as they travel over a network. Encoding loses precision once: every format is *idempotent*,
// encode(decode(encode(x))) == encode(x) bit for bit, so a value that was decoded can be forwarded without further
// loss.
//
// Values are encoded in runs (one piece of a message at a time); a run is cut into blocks of `block_elements` from its
// start, the last block may be shorter, and each block is encoded on its own. Both ends cut alike because the pieces of
// a message are alike. Nothing is aligned. Results do not depend on the instruction set, nor on how many whole blocks a
// call covers.
//
// bf16    2 bytes. Round to nearest even; overflow gives infinity; NaN stays NaN.
// f16     2 bytes. The same; magnitudes from 65520 on become infinity.
// int8    block of 128: one byte k, then one byte q per element; value = q * 2^(k - 126). k is chosen so that the
// largest magnitude
//         has 64 <= |q| <= 127. Zeros are exact. Elements of magnitude below 2^-127 may become zero.
//         A block with an infinity or NaN has k = 255: infinities stay, every other element arrives as NaN.
// onebit  block of 128: one byte k, then one bit per element, the sign; value = +-2^(k - 127), the block's mean
// magnitude rounded to a
//         power of two. k = 0: all elements are zero, or the mean was below 2^-118. k = 255: there was an infinity or
//         NaN, and all arrive as NaN.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ringleader {

enum class WireFormat : std::uint8_t { f32 = 0, bf16 = 1, f16 = 2, int8 = 3, onebit = 4 };
inline constexpr int kWireFormatCount = 5;
inline constexpr std::size_t kWireBlock = 128;  // elements; whole blocks of every format

const char* name(WireFormat format);

// Bytes of a whole block and of a run of `elements`.
std::size_t wire_block_bytes(WireFormat format);
std::size_t encoded_bytes(WireFormat format, std::size_t elements);

// A run of `elements`, or whole blocks of one and its end. Source and destination do not overlap.
void encode(WireFormat format, void* dst, const float* src, std::size_t elements);
void decode(WireFormat format, float* dst, const void* src, std::size_t elements);
// dst = decode(encode(src)), which may be the same memory.
void round_to_wire(WireFormat format, float* dst, const float* src, std::size_t elements);

}  // namespace ringleader
