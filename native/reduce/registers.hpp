// Folds of what accumulates in f32: f32, and 16-bit floats, which are rounded once. Part of kernels.hpp: internal
// linkage only, see there.
//
// With AVX2 and AVX-512 all sources of a group of items are folded in registers: nothing but the sources is read and
// nothing but the destinations is written, each once. Elsewhere folds go block by block through buffers, left to the
// vectoriser.
//
// AVX512_BF16 is not used: its conversions take subnormals for zero, and results must not depend on the machine.
#pragma once

namespace ringleader::kernels {
namespace {

#if defined(__AVX2__)

// ---- vectors: the same names for both instruction sets

#if defined(__AVX512F__)
using Floats = __m512;
using Halves = __m512i;  // 16-bit floats, as many as two Floats hold

inline Floats every(float value) { return _mm512_set1_ps(value); }
inline Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
inline Floats multiply(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
inline Floats quotient(Floats a, Floats b) { return _mm512_div_ps(a, b); }
inline Floats load_floats(const void* from) { return _mm512_loadu_ps(from); }
inline void store_floats(void* to, Floats value) { _mm512_storeu_ps(to, value); }
inline Halves load_halves(const void* from) { return _mm512_loadu_si512(from); }
inline void store_halves(void* to, Halves value) { _mm512_storeu_si512(to, value); }

// Min and Max of kernels.hpp; the sum makes a quiet NaN, as rounding does there.
inline Floats least(Floats a, Floats b) {
  const Floats lesser = _mm512_mask_or_ps(_mm512_min_ps(a, b), _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ), a, b);
  return _mm512_mask_add_ps(lesser, _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q), a, b);
}
inline Floats greatest(Floats a, Floats b) {
  const Floats greater = _mm512_mask_and_ps(_mm512_max_ps(a, b), _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ), a, b);
  return _mm512_mask_add_ps(greater, _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q), a, b);
}
#else
using Floats = __m256;
using Halves = __m256i;

inline Floats every(float value) { return _mm256_set1_ps(value); }
inline Floats add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
inline Floats multiply(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
inline Floats quotient(Floats a, Floats b) { return _mm256_div_ps(a, b); }
inline Floats load_floats(const void* from) { return _mm256_loadu_ps(static_cast<const float*>(from)); }
inline void store_floats(void* to, Floats value) { _mm256_storeu_ps(static_cast<float*>(to), value); }
inline Halves load_halves(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i_u*>(from)); }
inline void store_halves(void* to, Halves value) { _mm256_storeu_si256(static_cast<__m256i_u*>(to), value); }

inline Floats least(Floats a, Floats b) {
  const Floats equal = _mm256_cmp_ps(a, b, _CMP_EQ_OQ), unordered = _mm256_cmp_ps(a, b, _CMP_UNORD_Q);
  const Floats lesser = _mm256_blendv_ps(_mm256_min_ps(a, b), _mm256_or_ps(a, b), equal);
  return _mm256_blendv_ps(lesser, _mm256_add_ps(a, b), unordered);
}
inline Floats greatest(Floats a, Floats b) {
  const Floats equal = _mm256_cmp_ps(a, b, _CMP_EQ_OQ), unordered = _mm256_cmp_ps(a, b, _CMP_UNORD_Q);
  const Floats greater = _mm256_blendv_ps(_mm256_max_ps(a, b), _mm256_and_ps(a, b), equal);
  return _mm256_blendv_ps(greater, _mm256_add_ps(a, b), unordered);
}
#endif

template <class Op>
Floats operate(Floats a, Floats b) {
  if constexpr (std::is_same_v<Op, Sum>) return add(a, b);
  if constexpr (std::is_same_v<Op, Prod>) return multiply(a, b);
  if constexpr (std::is_same_v<Op, Min>) return least(a, b);
  if constexpr (std::is_same_v<Op, Max>) return greatest(a, b);
}

// The items of one Halves as f32, in an order of the format's choosing.
struct Widened {
  Floats first, second;
};

// ---- the formats

// widen: a group of kBytes bytes to f32; narrow, store: back.
template <class T>
struct Packing;

template <>
struct Packing<float> {
  static constexpr std::size_t kItem = 4, kBytes = 2 * sizeof(Floats);
  using Packed = Widened;
  static Widened widen(const void* from) { return {load_floats(from), load_floats(at(from, sizeof(Floats)))}; }
  static Packed narrow(Widened value) { return value; }
  static void store(void* to, Packed value) {
    store_floats(to, value.first);
    store_floats(at(to, sizeof(Floats)), value.second);
  }
};

struct PackedHalves {
  static constexpr std::size_t kItem = 2, kBytes = sizeof(Halves);
  using Packed = Halves;
  static void store(void* to, Packed value) { store_halves(to, value); }
};

template <>
struct Packing<Float16> : PackedHalves {
#if defined(__AVX512F__)
  static Widened widen(const void* from) {
    const auto* half = static_cast<const __m256i_u*>(from);
    return {_mm512_cvtph_ps(_mm256_loadu_si256(half)), _mm512_cvtph_ps(_mm256_loadu_si256(half + 1))};
  }
  static Halves narrow(Widened value) {
    constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtps_ph(value.first, kNearest)),
                              _mm512_cvtps_ph(value.second, kNearest), 1);
  }
#else
  static Widened widen(const void* from) {
    const auto* half = static_cast<const __m128i_u*>(from);
    return {_mm256_cvtph_ps(_mm_loadu_si128(half)), _mm256_cvtph_ps(_mm_loadu_si128(half + 1))};
  }
  static Halves narrow(Widened value) {
    constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm256_cvtps_ph(value.first, kNearest)),
                                   _mm256_cvtps_ph(value.second, kNearest), 1);
  }
#endif
};

// Even items are `first`, odd items `second`, so that widening is a shift and a mask, and no item changes its place in
// its pair.
//
// Narrowing works on 16-bit lanes: `upper` is what rounding down would give, `lower` what it would cut off; one unit
// more where lower > 0x8000, or = 0x8000 with upper odd. Invariant: a NaN has no bits in `lower` and so stays as it is,
// because it is one of the sources' (made quiet by arithmetic) or the processor's own; `fold_in_f32` sees to the
// factor.
template <>
struct Packing<BFloat16> : PackedHalves {
#if defined(__AVX512F__)
  static Widened widen(const void* from) {
    const Halves pair = load_halves(from);
    const __m512i odd = _mm512_and_si512(pair, _mm512_set1_epi32(static_cast<int>(0xffff0000U)));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(pair, 16)), _mm512_castsi512_ps(odd)};
  }
  static Halves narrow(Widened value) {
    const __m512i even = _mm512_castps_si512(value.first), odd = _mm512_castps_si512(value.second);
    const __m512i swap = _mm512_broadcast_i32x4(_mm_setr_epi8(2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13));
    const __m512i upper = _mm512_mask_shuffle_epi8(odd, 0x3333333333333333U, even, swap);
    const __m512i lower = _mm512_mask_shuffle_epi8(even, 0xccccccccccccccccU, odd, swap);
    const __m512i last = _mm512_and_si512(upper, _mm512_set1_epi16(1));
    const __m512i most = _mm512_sub_epi16(_mm512_set1_epi16(static_cast<short>(0x8000)), last);
    return _mm512_mask_add_epi16(upper, _mm512_cmpgt_epu16_mask(lower, most), upper, _mm512_set1_epi16(1));
  }
#else
  static Widened widen(const void* from) {
    const Halves pair = load_halves(from);
    const __m256i odd = _mm256_and_si256(pair, _mm256_set1_epi32(static_cast<int>(0xffff0000U)));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(pair, 16)), _mm256_castsi256_ps(odd)};
  }
  static Halves narrow(Widened value) {
    const __m256i even = _mm256_castps_si256(value.first), odd = _mm256_castps_si256(value.second);
    const __m256i upper = _mm256_blend_epi16(_mm256_srli_epi32(even, 16), odd, 0xaa);
    const __m256i lower = _mm256_blend_epi16(even, _mm256_slli_epi32(odd, 16), 0xaa);
    const __m256i last = _mm256_and_si256(upper, _mm256_set1_epi16(1));
    // Signed: lower - 0x8000 + last > 0; saturating, as 0x7fff + 1 must stay above 0.
    const __m256i excess = _mm256_adds_epi16(_mm256_xor_si256(lower, _mm256_set1_epi16(static_cast<short>(0x8000))),
                                             last);
    return _mm256_sub_epi16(upper, _mm256_cmpgt_epi16(excess, _mm256_setzero_si256()));
  }
#endif
};

// ---- the fold

// What a fold needs besides operands; constants of the calling loop.
struct GroupParams {
  const std::uint8_t* raw;
  float factor, divisor;
};

// always_inline: the constants of all this must stay in registers from one step of the loop to the next.
#define RINGLEADER_INLINE [[gnu::always_inline]] inline

template <Mode mode>
RINGLEADER_INLINE Widened scaled(Widened value, std::size_t k, const GroupParams& params) {
  if constexpr (mode != Mode::scale) return value;
  const Floats factor = every(params.raw != nullptr && params.raw[k] != 0 ? params.factor : 1.0F);
  return {multiply(value.first, factor), multiply(value.second, factor)};
}

template <Mode mode>
RINGLEADER_INLINE Widened finished(Widened value, const GroupParams& params) {
  if constexpr (mode != Mode::divide) return value;
  const Floats divisor = every(params.divisor);
  return {quotient(value.first, divisor), quotient(value.second, divisor)};
}

template <class Op>
RINGLEADER_INLINE Widened operate(Widened a, Widened b) {
  return {operate<Op>(a.first, b.first), operate<Op>(a.second, b.second)};
}

// `groups` consecutive groups from byte `offset` on. All of them are read before the first is written: in place is
// safe.
template <class T, class Op, Mode mode, std::size_t groups>
RINGLEADER_INLINE void fold_groups(void* const* dsts, std::size_t ndst, const void* const* srcs, std::size_t nsrc,
                                   std::size_t offset, const GroupParams& params) {
  constexpr std::size_t kBytes = Packing<T>::kBytes;
  Widened value[groups];
  for (std::size_t g = 0; g < groups; ++g) {
    value[g] = scaled<mode>(Packing<T>::widen(at(srcs[0], offset + g * kBytes)), 0, params);
  }
  for (std::size_t k = 1; k < nsrc; ++k) {
    for (std::size_t g = 0; g < groups; ++g) {
      const Widened right = Packing<T>::widen(at(srcs[k], offset + g * kBytes));
      value[g] = operate<Op>(value[g], scaled<mode>(right, k, params));
    }
  }
  typename Packing<T>::Packed out[groups];
  for (std::size_t g = 0; g < groups; ++g) out[g] = Packing<T>::narrow(finished<mode>(value[g], params));
  for (std::size_t j = 0; j < ndst; ++j) {
    for (std::size_t g = 0; g < groups; ++g) Packing<T>::store(at(dsts[j], offset + g * kBytes), out[g]);
  }
}

// `bytes` of a group's memory, to and from a whole one.
inline void fetch_part(unsigned char* part, const void* from, std::size_t bytes) {
#if defined(__AVX512F__)
  for (; bytes > 64; bytes -= 64, part += 64, from = at(from, 64)) _mm512_store_si512(part, _mm512_loadu_si512(from));
  _mm512_store_si512(part, _mm512_maskz_loadu_epi8(~std::uint64_t{0} >> (64 - bytes), from));
#else
  __builtin_memcpy(part, from, bytes);
#endif
}
inline void deliver_part(void* to, const unsigned char* part, std::size_t bytes) {
#if defined(__AVX512F__)
  for (; bytes > 64; bytes -= 64, part += 64, to = at(to, 64)) _mm512_storeu_si512(to, _mm512_load_si512(part));
  _mm512_mask_storeu_epi8(to, ~std::uint64_t{0} >> (64 - bytes), _mm512_load_si512(part));
#else
  __builtin_memcpy(to, part, bytes);
#endif
}

// Less than a group, and not nothing: by way of a whole one.
template <class T, class Op, Mode mode>
void fold_rest(void* const* dsts, std::size_t ndst, const void* const* srcs, std::size_t nsrc, std::size_t offset,
               std::size_t bytes, const GroupParams& params) {
  alignas(64) unsigned char part[Packing<T>::kBytes] = {};
  fetch_part(part, at(srcs[0], offset), bytes);
  Widened value = scaled<mode>(Packing<T>::widen(part), 0, params);
  for (std::size_t k = 1; k < nsrc; ++k) {
    fetch_part(part, at(srcs[k], offset), bytes);
    value = operate<Op>(value, scaled<mode>(Packing<T>::widen(part), k, params));
  }
  Packing<T>::store(part, Packing<T>::narrow(finished<mode>(value, params)));
  for (std::size_t j = 0; j < ndst; ++j) deliver_part(at(dsts[j], offset), part, bytes);
}

// nsrc_, ndst_: as the arguments, or 0 where they are not known.
template <class T, class Op, Mode mode, std::size_t nsrc_, std::size_t ndst_>
void fold_all(void* const* dsts, std::size_t ndst, const void* const* srcs, std::size_t nsrc, std::size_t count,
              const GroupParams& params) {
  constexpr std::size_t kGroups = 2, kBytes = Packing<T>::kBytes;
  const std::size_t bytes = count * Packing<T>::kItem;
  const std::size_t sources = nsrc_ != 0 ? nsrc_ : nsrc, destinations = ndst_ != 0 ? ndst_ : ndst;
  std::size_t offset = 0;
  for (; offset + kGroups * kBytes <= bytes; offset += kGroups * kBytes) {
    fold_groups<T, Op, mode, kGroups>(dsts, destinations, srcs, sources, offset, params);
  }
  if (offset + kBytes <= bytes) {
    fold_groups<T, Op, mode, 1>(dsts, destinations, srcs, sources, offset, params);
    offset += kBytes;
  }
  if (offset < bytes) fold_rest<T, Op, mode>(dsts, destinations, srcs, sources, offset, bytes - offset, params);
}

template <class T, class Op, Mode mode = Mode::plain>
void fold_in_f32(const FoldSpec& spec, void* const* dsts, std::size_t ndst, const void* const* srcs,
                 const std::uint8_t* raw, std::size_t nsrc, std::size_t count) {
  // Two sources in f32 are one simple loop.
  if constexpr (std::is_same_v<T, float>) {
    if (nsrc <= 2 && ndst <= 2) return fold_direct<T, Op, mode>(spec, dsts, ndst, srcs, raw, nsrc, count);
  }
  const auto factor = static_cast<float>(spec.factor);
  const GroupParams params{raw, factor == factor ? factor : __builtin_nanf(""), static_cast<float>(spec.final_n)};
  if (nsrc == 2 && ndst == 1) return fold_all<T, Op, mode, 2, 1>(dsts, ndst, srcs, nsrc, count, params);
  if (nsrc == 2 && ndst == 2) return fold_all<T, Op, mode, 2, 2>(dsts, ndst, srcs, nsrc, count, params);
  fold_all<T, Op, mode, 0, 0>(dsts, ndst, srcs, nsrc, count, params);
}

#undef RINGLEADER_INLINE

#else

template <class Half, class Op, Mode mode>
void fold_half(const FoldSpec& spec, void* const* dsts, std::size_t ndst, const void* const* srcs,
               const std::uint8_t* raw, std::size_t nsrc, std::size_t count) {
  constexpr Mode inner = mode == Mode::divide ? Mode::plain : mode;
  const Factors factors{raw, spec.factor};
  alignas(64) float left[kBlock];
  alignas(64) float right[kBlock];
  for (std::size_t first = 0; first < count; first += kBlock) {
    const std::size_t n = count - first < kBlock ? count - first : kBlock;
    const std::size_t offset = first * 2;
    Half::load(left, at(srcs[0], offset), n);
    if (nsrc == 1) single<float, mode>(left, left, n, {factors(0), 1, spec.final_n});
    for (std::size_t k = 1; k < nsrc; ++k) {
      const Params params{k == 1 ? factors(0) : 1.0, factors(k), spec.final_n};
      Half::load(right, at(srcs[k], offset), n);
      if (k + 1 == nsrc) {
        pair<float, Op, mode>(left, nullptr, left, right, n, params);
      } else {
        pair<float, Op, inner>(left, nullptr, left, right, n, params);
      }
    }
    Half::store(at(dsts[0], offset), left, n);
    replicate(dsts, ndst, offset, n * 2);
  }
}

template <class T, class Op, Mode mode = Mode::plain>
void fold_in_f32(const FoldSpec& spec, void* const* dsts, std::size_t ndst, const void* const* srcs,
                 const std::uint8_t* raw, std::size_t nsrc, std::size_t count) {
  if constexpr (std::is_same_v<T, float>) {
    fold_direct<T, Op, mode>(spec, dsts, ndst, srcs, raw, nsrc, count);
  } else {
    fold_half<T, Op, mode>(spec, dsts, ndst, srcs, raw, nsrc, count);
  }
}

#endif

}  // namespace
}  // namespace ringleader::kernels
