#include "memory/strided.hpp"

#include <cstring>
#include <string>
#include <utility>

#include "base/types.hpp"

namespace ringleader {

StridedCopy::StridedCopy(const void* from, void* to, const std::vector<std::size_t>& shape,
                         const std::vector<std::ptrdiff_t>& strides, std::size_t itemsize,
                         std::vector<std::int32_t> order, std::vector<std::uint8_t> flip)
    : from_(static_cast<const std::byte*>(from)),
      to_(static_cast<std::byte*>(to)),
      itemsize_(itemsize),
      order_(std::move(order)),
      flip_(std::move(flip)) {
  if (shape.size() != strides.size() || (!order_.empty() && order_.size() != itemsize) ||
      (!flip_.empty() && flip_.size() != itemsize))
    throw Error(ErrorKind::invalid, "a strided copy needs a stride for each of " + std::to_string(shape.size()) +
                                        " dimensions, and an order of all or none of " + std::to_string(itemsize) +
                                        " bytes");
  for (const std::int32_t byte : order_)
    if (byte < -1 || byte >= static_cast<std::int32_t>(itemsize))
      throw Error(ErrorKind::invalid, "byte " + std::to_string(byte) + " of an element of " + std::to_string(itemsize));
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == 1) continue;
    const auto inner = static_cast<std::ptrdiff_t>(shape[i]) * strides[i];
    if (!dimensions_.empty() && dimensions_.back().stride == inner)
      dimensions_.back() = {dimensions_.back().extent * shape[i], strides[i]};
    else
      dimensions_.push_back({shape[i], strides[i]});
  }
  const bool plain = order_.empty() && flip_.empty();
  if (plain && !dimensions_.empty() && dimensions_.back().stride == static_cast<std::ptrdiff_t>(itemsize_)) {
    itemsize_ *= dimensions_.back().extent;
    dimensions_.pop_back();
  }
}

void StridedCopy::run() const {
  const std::byte* from = from_;
  if (itemsize_ > 0) run(0, to_, from);
}

void StridedCopy::run(std::size_t dimension, std::byte* to, const std::byte*& from) const {
  if (dimension + 1 < dimensions_.size()) {
    const auto [extent, stride] = dimensions_[dimension];
    for (std::size_t i = 0; i < extent; ++i, to += stride) run(dimension + 1, to, from);
    return;
  }
  if (!order_.empty() || !flip_.empty()) {
    run_innermost(to, from, [this](std::byte* at, const std::byte* element) {
      for (std::size_t j = 0; j < itemsize_; ++j) {
        const std::int32_t source = order_.empty() ? static_cast<std::int32_t>(j) : order_[j];
        if (source < 0) continue;
        at[j] = element[source];
        if (!flip_.empty()) at[j] ^= std::byte{flip_[j]};
      }
    });
    return;
  }
  // A constant size makes each of these one load and one store.
  switch (itemsize_) {
    case 1: return run_innermost(to, from, [](std::byte* at, const std::byte* element) { *at = *element; });
    case 2:
      return run_innermost(to, from, [](std::byte* at, const std::byte* element) { std::memcpy(at, element, 2); });
    case 4:
      return run_innermost(to, from, [](std::byte* at, const std::byte* element) { std::memcpy(at, element, 4); });
    case 8:
      return run_innermost(to, from, [](std::byte* at, const std::byte* element) { std::memcpy(at, element, 8); });
    case 16:
      return run_innermost(to, from, [](std::byte* at, const std::byte* element) { std::memcpy(at, element, 16); });
    default:
      return run_innermost(to, from,
                           [this](std::byte* at, const std::byte* element) { std::memcpy(at, element, itemsize_); });
  }
}

template <class Element>
void StridedCopy::run_innermost(std::byte* to, const std::byte*& from, Element element) const {
  const std::size_t extent = dimensions_.empty() ? 1 : dimensions_.back().extent;
  const std::ptrdiff_t stride = dimensions_.empty() ? 0 : dimensions_.back().stride;
  for (std::size_t i = 0; i < extent; ++i, to += stride, from += itemsize_) element(to, from);
}

}  // namespace ringleader
