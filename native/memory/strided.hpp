// Copies from contiguous memory into the elements of a strided array: how results reach arrays that the engine cannot
// work in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ringleader {

// Any array that can be described by extents and strides, in any byte order. What lies between its elements is never
// touched.
class StridedCopy {
 public:
  // shape, strides: the target's, outermost first, strides in bytes (negative ones too). `from` holds its elements in C
  // order, one right after another. `order`: byte j of an element of the target is byte order[j] of one of `from`, and
  // left alone where that is -1; empty: as they are. `flip`: what each byte of the target is combined with by exclusive
  // or (a sign); empty: nothing. Throws Error(invalid) for lengths that do not fit.
  StridedCopy(const void* from, void* to, const std::vector<std::size_t>& shape,
              const std::vector<std::ptrdiff_t>& strides, std::size_t itemsize, std::vector<std::int32_t> order = {},
              std::vector<std::uint8_t> flip = {});

  void run() const;

 private:
  struct Dimension {
    std::size_t extent;
    std::ptrdiff_t stride;
  };
  void run(std::size_t dimension, std::byte* to, const std::byte*& from) const;
  template <class Element>
  void run_innermost(std::byte* to, const std::byte*& from, Element element) const;

  const std::byte* from_;
  std::byte* to_;
  std::vector<Dimension> dimensions_;  // outermost first; neighbours that are one are joined
  std::size_t itemsize_;               // of what is copied at once: an element, or as many as lie side by side
  std::vector<std::int32_t> order_;
  std::vector<std::uint8_t> flip_;
};

}  // namespace ringleader
