// The kernels, compiled once per instruction set: isa_*.cpp sets RINGLEADER_KERNEL_TABLE and includes this file.
//
// Everything here has internal linkage and calls nothing with external linkage but memcpy: an inline function shared
// between objects built for different instruction sets may be merged by the linker into the copy that the machine
// cannot run.
//
// The loops are plain and left to the vectoriser. `#pragma GCC ivdep` states what the contract of `fold` gives: a
// destination is a source or disjoint from it, so no iteration depends on an earlier one.
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "reduce/convert.hpp"
#include "reduce/table.hpp"

#if defined(__clang__)
#define RINGLEADER_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define RINGLEADER_INDEPENDENT _Pragma("GCC ivdep")
#endif

// GCC 12 has a pattern for complex products that fuses multiplication and addition whatever -ffp-contract says.
#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 12
#define RINGLEADER_ROUNDED(product) __builtin_assoc_barrier(product)
#else
#define RINGLEADER_ROUNDED(product) (product)
#endif

namespace ringleader::kernels {
namespace {

constexpr std::size_t kBlock = 1024;  // items folded at a time through all sources: an accumulator of 8 KiB stays in L1

// An item at any address, whatever the type of the memory it lies in.
template <class T>
struct [[gnu::packed, gnu::may_alias]] Item {
  T value;
};

template <class F>
struct Complex {
  F re, im;
};
struct Bool {
  std::uint8_t byte;
};

template <class T>
struct Real {
  using type = T;
};
template <class F>
struct Real<Complex<F>> {
  using type = F;
};

// Unsigned and at least as wide as int: arithmetic wraps, and narrow types are not promoted to signed int.
template <class T>
using Wrap = std::conditional_t<sizeof(T) <= 4, std::uint32_t, std::uint64_t>;

template <class F>
using Bits = std::conditional_t<sizeof(F) == 4, std::uint32_t, std::uint64_t>;

struct Sum {
  template <class T>
  static T apply(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(static_cast<Wrap<T>>(a) + static_cast<Wrap<T>>(b));
    } else {
      return a + b;
    }
  }
  template <class F>
  static Complex<F> apply(Complex<F> a, Complex<F> b) {
    return {a.re + b.re, a.im + b.im};
  }
};

struct Prod {
  template <class T>
  static T apply(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(static_cast<Wrap<T>>(a) * static_cast<Wrap<T>>(b));
    } else {
      return a * b;
    }
  }
  template <class F>
  static Complex<F> apply(Complex<F> a, Complex<F> b) {
    return {RINGLEADER_ROUNDED(a.re * b.re) - RINGLEADER_ROUNDED(a.im * b.im),
            RINGLEADER_ROUNDED(a.re * b.im) + RINGLEADER_ROUNDED(a.im * b.re)};
  }
};

// NaN where either operand is; equal operands differ at most in the sign of zero, which the bitwise operation settles,
// so the result depends on neither order nor grouping.
struct Min {
  template <class T>
  static T apply(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      return a < b ? a : b;
    } else {
      const T equal = __builtin_bit_cast(
          T, static_cast<Bits<T>>(__builtin_bit_cast(Bits<T>, a) | __builtin_bit_cast(Bits<T>, b)));
      const T lesser = a < b ? a : b;  // b where either is NaN
      return a != a ? a : (a == b ? equal : lesser);
    }
  }
};

struct Max {
  template <class T>
  static T apply(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      return a > b ? a : b;
    } else {
      const T equal = __builtin_bit_cast(
          T, static_cast<Bits<T>>(__builtin_bit_cast(Bits<T>, a) & __builtin_bit_cast(Bits<T>, b)));
      const T greater = a > b ? a : b;
      return a != a ? a : (a == b ? equal : greater);
    }
  }
};

struct And {
  template <class T>
  static T apply(T a, T b) {
    return static_cast<T>(a & b);
  }
  static Bool apply(Bool a, Bool b) { return {static_cast<std::uint8_t>((a.byte != 0) & (b.byte != 0))}; }
};

struct Or {
  template <class T>
  static T apply(T a, T b) {
    return static_cast<T>(a | b);
  }
  static Bool apply(Bool a, Bool b) { return {static_cast<std::uint8_t>((a.byte | b.byte) != 0)}; }
};

struct Xor {
  template <class T>
  static T apply(T a, T b) {
    return static_cast<T>(a ^ b);
  }
  static Bool apply(Bool a, Bool b) { return {static_cast<std::uint8_t>((a.byte != 0) ^ (b.byte != 0))}; }
};

// What happens to the operands before, or to the result after, the operation.
enum class Mode { plain, divide, scale };

struct Params {
  double left, right;     // Mode::scale: factors of the operands; 1 leaves every value as it is
  std::uint32_t divisor;  // Mode::divide
};

template <class T>
T divide(T value, std::uint32_t divisor) {
  if constexpr (!std::is_integral_v<T>) {
    return value / static_cast<T>(divisor);
  } else if constexpr (sizeof(T) <= 4) {
    // Exact: a quotient that is no integer is at least 1/divisor > 2^-32 away from one, the rounding error is below
    // that. It fits in 32 bits with sign because the divisor is at least 2 (reduce.cpp).
    return static_cast<T>(static_cast<std::int32_t>(static_cast<double>(value) / static_cast<double>(divisor)));
  } else {
    return static_cast<T>(value / static_cast<T>(divisor));
  }
}
template <class F>
Complex<F> divide(Complex<F> value, std::uint32_t divisor) {
  return {value.re / static_cast<F>(divisor), value.im / static_cast<F>(divisor)};
}

template <class T>
T scale(T value, T factor) {
  return value * factor;
}
template <class F>
Complex<F> scale(Complex<F> value, F factor) {
  return {value.re * factor, value.im * factor};
}

template <class T, class Op, Mode mode>
T combine(T a, T b, typename Real<T>::type left, typename Real<T>::type right, std::uint32_t divisor) {
  if constexpr (mode == Mode::scale) return Op::apply(scale(a, left), scale(b, right));
  if constexpr (mode == Mode::divide) return divide(Op::apply(a, b), divisor);
  return Op::apply(a, b);
}

// out[i] = also[i] = a[i] op b[i]; `also` may be null.
template <class T, class Op, Mode mode>
void pair(void* out_, void* also_, const void* a_, const void* b_, std::size_t count, const Params& params) {
  auto* out = static_cast<Item<T>*>(out_);
  auto* also = static_cast<Item<T>*>(also_);
  const auto* a = static_cast<const Item<T>*>(a_);
  const auto* b = static_cast<const Item<T>*>(b_);
  typename Real<T>::type left{}, right{};
  if constexpr (mode == Mode::scale) {
    left = static_cast<typename Real<T>::type>(params.left);
    right = static_cast<typename Real<T>::type>(params.right);
  }
  const std::uint32_t divisor = params.divisor;
  if (also == nullptr) {
    RINGLEADER_INDEPENDENT
    for (std::size_t i = 0; i < count; ++i) {
      out[i].value = combine<T, Op, mode>(a[i].value, b[i].value, left, right, divisor);
    }
  } else {
    RINGLEADER_INDEPENDENT
    for (std::size_t i = 0; i < count; ++i) {
      const T value = combine<T, Op, mode>(a[i].value, b[i].value, left, right, divisor);
      out[i].value = value;
      also[i].value = value;
    }
  }
}

// out[i] = a[i], scaled or divided.
template <class T, Mode mode>
void single(void* out_, const void* a_, std::size_t count, const Params& params) {
  auto* out = static_cast<Item<T>*>(out_);
  const auto* a = static_cast<const Item<T>*>(a_);
  if constexpr (mode == Mode::scale) {
    const auto factor = static_cast<typename Real<T>::type>(params.left);
    RINGLEADER_INDEPENDENT
    for (std::size_t i = 0; i < count; ++i) out[i].value = scale(a[i].value, factor);
  } else if constexpr (mode == Mode::divide) {
    const std::uint32_t divisor = params.divisor;
    RINGLEADER_INDEPENDENT
    for (std::size_t i = 0; i < count; ++i) out[i].value = divide(a[i].value, divisor);
  } else {
    __builtin_memmove(out, a, count * sizeof(T));
  }
}

inline const void* at(const void* base, std::size_t bytes) { return static_cast<const char*>(base) + bytes; }
inline void* at(void* base, std::size_t bytes) { return static_cast<char*>(base) + bytes; }

// A block is written only after all sources have been read for it, save for the last source, which the first
// destination may be as the loop reads item i before it writes item i: in place is safe.
inline void replicate(void* const* dsts, std::size_t ndst, std::size_t offset, std::size_t bytes) {
  for (std::size_t j = 1; j < ndst; ++j) __builtin_memcpy(at(dsts[j], offset), at(dsts[0], offset), bytes);
}

struct Factors {
  const std::uint8_t* raw;
  double factor;
  double operator()(std::size_t source) const { return raw != nullptr && raw[source] != 0 ? factor : 1.0; }
};

// Types that accumulate in themselves.
template <class T, class Op, Mode mode = Mode::plain>
void fold_direct(const FoldSpec& spec, void* const* dsts, std::size_t ndst, const void* const* srcs,
                 const std::uint8_t* raw, std::size_t nsrc, std::size_t count) {
  constexpr Mode inner = mode == Mode::divide ? Mode::plain : mode;
  const Factors factors{raw, spec.factor};
  if (nsrc == 2 && ndst <= 2) {
    pair<T, Op, mode>(dsts[0], ndst == 2 ? dsts[1] : nullptr, srcs[0], srcs[1], count,
                      {factors(0), factors(1), spec.final_n});
    return;
  }
  alignas(64) unsigned char accumulator[kBlock * sizeof(T)];
  for (std::size_t first = 0; first < count; first += kBlock) {
    const std::size_t n = count - first < kBlock ? count - first : kBlock;
    const std::size_t offset = first * sizeof(T);
    const void* left = at(srcs[0], offset);
    if (nsrc == 1) single<T, mode>(at(dsts[0], offset), left, n, {factors(0), 1, spec.final_n});
    for (std::size_t k = 1; k < nsrc; ++k) {
      const Params params{k == 1 ? factors(0) : 1.0, factors(k), spec.final_n};
      if (k + 1 == nsrc) {
        pair<T, Op, mode>(at(dsts[0], offset), nullptr, left, at(srcs[k], offset), n, params);
      } else {
        pair<T, Op, inner>(accumulator, nullptr, left, at(srcs[k], offset), n, params);
        left = accumulator;
      }
    }
    replicate(dsts, ndst, offset, n * sizeof(T));
  }
}

}  // namespace
}  // namespace ringleader::kernels

#include "reduce/registers.hpp"

namespace ringleader::kernels {
namespace {

// Rows in the order of DType, columns in the order of ReduceOp: sum prod min max avg premul_sum band bor bxor.
#define RINGLEADER_FLOAT(fold, T)                                                                                  \
  {fold<T, Sum>, fold<T, Prod>, fold<T, Min>, fold<T, Max>, fold<T, Sum, Mode::divide>, fold<T, Sum, Mode::scale>, \
   nullptr,      nullptr,       nullptr}
// Wrapping and bitwise operations give the same bits for both signs.
#define RINGLEADER_INTEGER(T, U)      \
  {fold_direct<U, Sum>,               \
   fold_direct<U, Prod>,              \
   fold_direct<T, Min>,               \
   fold_direct<T, Max>,               \
   fold_direct<T, Sum, Mode::divide>, \
   nullptr,                           \
   fold_direct<U, And>,               \
   fold_direct<U, Or>,                \
   fold_direct<U, Xor>}
#define RINGLEADER_COMPLEX(T)         \
  {fold_direct<T, Sum>,               \
   fold_direct<T, Prod>,              \
   nullptr,                           \
   nullptr,                           \
   fold_direct<T, Sum, Mode::divide>, \
   fold_direct<T, Sum, Mode::scale>,  \
   nullptr,                           \
   nullptr,                           \
   nullptr}

}  // namespace

extern const Table RINGLEADER_KERNEL_TABLE;
const Table RINGLEADER_KERNEL_TABLE{{
    RINGLEADER_FLOAT(fold_in_f32, float),
    RINGLEADER_FLOAT(fold_direct, double),
    RINGLEADER_FLOAT(fold_in_f32, Float16),
    RINGLEADER_FLOAT(fold_in_f32, BFloat16),
    RINGLEADER_INTEGER(std::int8_t, std::uint8_t),
    RINGLEADER_INTEGER(std::int16_t, std::uint16_t),
    RINGLEADER_INTEGER(std::int32_t, std::uint32_t),
    RINGLEADER_INTEGER(std::int64_t, std::uint64_t),
    RINGLEADER_INTEGER(std::uint8_t, std::uint8_t),
    RINGLEADER_INTEGER(std::uint16_t, std::uint16_t),
    RINGLEADER_INTEGER(std::uint32_t, std::uint32_t),
    RINGLEADER_INTEGER(std::uint64_t, std::uint64_t),
    {fold_direct<Bool, Or>, fold_direct<Bool, And>, fold_direct<Bool, And>, fold_direct<Bool, Or>, nullptr, nullptr,
     fold_direct<Bool, And>, fold_direct<Bool, Or>, fold_direct<Bool, Xor>},
    RINGLEADER_COMPLEX(Complex<float>),
    RINGLEADER_COMPLEX(Complex<double>),
    {},
}};

}  // namespace ringleader::kernels
