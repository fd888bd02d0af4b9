// Kernels for packed groups of the types with codebooks. Each lane of a vector belongs to one of 16 rows and contains
// the indices of four codebook entries. A codebook is stored as tables ("planes"). Plane e contains byte e of every
// codebook entry. One lookup reads byte e of the entries for all 64 indices. So the four bytes of a result lane are
// elements that are one entry length apart. Columns are permuted into the same order.
//
// 128 is added to each decoded weight, as quad_dot expects. If a weight is stored as w, its negative is stored as
// 256 - w.
#include "devices/cpu/kernels/coded_vbmi.h"

#include "devices/cpu/kernels/column.h"
#include "devices/cpu/kernels/packed_blocks.h"
#include "devices/cpu/kernels/packed_groups.h"
#include "devices/cpu/kernels/panel_layout.h"

namespace shoal::cpu::SHOAL_ISA {
namespace {

static_assert(kLanes == 16 && kWeightBias == 128);

/// kPlanes planes of kCount bytes each.
template <int kPlanes, int kCount>
struct Planes {
  alignas(64) uint8_t bytes[kPlanes][kCount];
};
/// Returns the planes of a codebook. kWeightBias is added to each byte.
template <class Word, int kCount>
constexpr Planes<sizeof(Word), kCount> planes_of(const quants::Grid<Word, kCount>& grid) {
  Planes<sizeof(Word), kCount> planes{};
  for (int i = 0; i < kCount; ++i) {
    for (size_t e = 0; e < sizeof(Word); ++e) {
      planes.bytes[e][i] = static_cast<uint8_t>((grid.entries[i] >> 8 * e & 255) + kWeightBias);
    }
  }
  return planes;
}
/// Returns two planes of level indices. Each index has two bits, and each byte contains the indices of four elements.
/// Plane 0 is for the first four elements of each entry, and plane 1 is for the last four elements.
template <int kCount>
constexpr Planes<2, kCount> crumbs_of(const quants::grids::Entries<kCount>& entries) {
  Planes<2, kCount> planes{};
  for (int i = 0; i < kCount; ++i) {
    planes.bytes[0][i] = static_cast<uint8_t>(entries.numbers[i]);
    planes.bytes[1][i] = static_cast<uint8_t>(entries.numbers[i] >> 8);
  }
  return planes;
}
/// Returns a table indexed by seven sign bits. Each byte of the table contains its seven index bits and the eighth
/// sign.
constexpr Planes<1, 128> even_sign_table() {
  Planes<1, 128> table{};
  for (int i = 0; i < 128; ++i) table.bytes[0][i] = static_cast<uint8_t>(i | __builtin_parity(i) << 7);
  return table;
}

namespace g = quants::grids;
constexpr auto kPlanesIQ2_XXS = planes_of(g::expand<uint64_t, 256>(g::kIQ2_XXSSet, g::kIQ2Levels));
constexpr auto kPlanesIQ3_XXS = planes_of(g::expand<uint32_t, 256>(g::kIQ3_XXSSet, g::kIQ3XXSLevels));
constexpr auto kPlanesIQ3_S = planes_of(g::expand<uint32_t, 512>(g::kIQ3_SSet, g::kIQ3SLevels));
constexpr auto kCrumbsIQ2_XS = crumbs_of(g::entries_of<512>(g::kIQ2_XSSet, g::kIQ2Levels));
constexpr auto kCrumbsIQ2_S = crumbs_of(g::entries_of<1024>(g::kIQ2_SSet, g::kIQ2Levels));
constexpr auto kEvenSigns = even_sign_table();

__m512i load_64(const void* from) {
  return _mm512_loadu_si512(from);
}
/// Returns a vector in which every lane contains the bytes `a`, `b`, `c` and `d`. The lowest byte is `a`.
__m512i four_bytes(int a, int b, int c, int d) {
  return _mm512_set1_epi32(static_cast<int>(static_cast<uint32_t>(a) | static_cast<uint32_t>(b) << 8 |
                                            static_cast<uint32_t>(c) << 16 | static_cast<uint32_t>(d) << 24));
}
/// Every lane of the result contains four bytes of the same lane of `v`. The numbers of these bytes are `a`, `b`, `c`
/// and `d`.
__m512i choose(__m512i v, int a, int b, int c, int d) {
  const __m512i lanes = _mm512_set4_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0);
  return _mm512_shuffle_epi8(v, _mm512_add_epi8(four_bytes(a, b, c, d), lanes));
}

/// Each byte of the result is table[i] for the index i of this byte. The table has 128, 256, 512 or 1024 bytes. `low`
/// contains bits 0 to 7 of each index. The masks contain bits 7, 8 and 9 of each index.
__m512i look_up_128(const uint8_t* table, __m512i low) {
  return _mm512_permutex2var_epi8(load_64(table), low, load_64(table + 64));
}
__m512i look_up_256(const uint8_t* table, __m512i low, __mmask64 bit7) {
  return _mm512_mask_blend_epi8(bit7, look_up_128(table, low), look_up_128(table + 128, low));
}
__m512i look_up_512(const uint8_t* table, __m512i low, __mmask64 bit7, __mmask64 bit8) {
  return _mm512_mask_blend_epi8(bit8, look_up_256(table, low, bit7), look_up_256(table + 256, low, bit7));
}
__m512i look_up_1024(const uint8_t* table, __m512i low, __mmask64 bit7, __mmask64 bit8, __mmask64 bit9) {
  return _mm512_mask_blend_epi8(bit9, look_up_512(table, low, bit7, bit8), look_up_512(table + 512, low, bit7, bit8));
}

Bytes negated(__m512i weights, __mmask64 negative) {
  return (Bytes)_mm512_mask_sub_epi8(weights, negative, _mm512_setzero_si512(), weights);
}
/// Each lane contains four groups of seven sign bits. Expands each group to a byte of eight signs.
__m512i even_signs(__m512i sevens) {
  const __m512i places = _mm512_set1_epi64(0x352e2720150e0700);  // first source bit of each result byte
  return look_up_128(kEvenSigns.bytes[0], _mm512_multishift_epi64_epi8(places, sevens));
}

/// A unit of a format contains 256 elements of each of 16 rows.
template <class Format>
struct CodedUnit : PackedLayout<Format> {
  using Layout = PackedLayout<Format>;
  static constexpr int kGroups = Format::kGroups;
  const std::byte* at;
  F32 factor;

  explicit CodedUnit(const std::byte* unit)
      : at(unit),
        factor(load_half(reinterpret_cast<const uint16_t*>(unit + Layout::number_at(0, 0))) *
               splat(Format::Block::kUnit)) {}
  __m512i word(int i) const { return load_64(at + Layout::word_at(0, i)); }
  /// Returns (2 s + 1) * factor. Each lane of s is a 4-bit number.
  F32 odd(__m512i s) const {
    const __m512i odd = _mm512_add_epi32(_mm512_add_epi32(s, s), _mm512_set1_epi32(1));
    return to_float((I32)odd) * factor;
  }
  F32 odd_of_nibble(__m512i words, int nibble) const {
    return odd(_mm512_and_si512(_mm512_srli_epi32(words, static_cast<unsigned>(4 * nibble)), _mm512_set1_epi32(15)));
  }
};

/// Each format has one reader. kSpan is the number of elements in a codebook entry. planes(part) returns eight vectors.
/// In formats with one scale per 32 elements, each lane of vector kSpan w + e contains four elements: byte j is element
/// 4 kSpan w + e + kSpan j. kOrder contains the order of elements for every format. scales(part) returns the scales of
/// the part.
template <class Format>
struct CodedReader;

template <>
struct CodedReader<IQ3_XXS> : CodedUnit<IQ3_XXS> {
  using CodedUnit::CodedUnit;
  static constexpr int kSpan = 4;
  void planes(int part, Bytes (&to)[8]) const {
    const __m512i signs = even_signs(word(16 + part));
    SHOAL_UNROLL
    for (int w = 0; w < 2; ++w) {
      const __m512i low = word(2 * part + w), eight = choose(signs, 2 * w, 2 * w, 2 * w + 1, 2 * w + 1);
      const __mmask64 bit7 = _mm512_movepi8_mask(low);
      SHOAL_UNROLL
      for (int e = 0; e < 4; ++e) {
        const __mmask64 negative = _mm512_test_epi8_mask(eight, four_bytes(1 << e, 16 << e, 1 << e, 16 << e));
        to[4 * w + e] = negated(look_up_256(kPlanesIQ3_XXS.bytes[e], low, bit7), negative);
      }
    }
  }
  void scales(int part, F32 (&to)[1]) const { to[0] = odd_of_nibble(word(16 + part), 7); }
};

template <>
struct CodedReader<IQ3_S> : CodedUnit<IQ3_S> {
  using CodedUnit::CodedUnit;
  static constexpr int kSpan = 4;
  void planes(int part, Bytes (&to)[8]) const {
    const __m512i signs = word(18 + part), words = word(16 + part / 4);
    const int byte = part % 4;
    const __m512i high = choose(words, byte, byte, byte, byte);
    SHOAL_UNROLL
    for (int w = 0; w < 2; ++w) {
      const __m512i low = word(2 * part + w), eight = choose(signs, 2 * w, 2 * w, 2 * w + 1, 2 * w + 1);
      const int first = 1 << (4 * w);
      const __mmask64 bit7 = _mm512_movepi8_mask(low);
      const __mmask64 bit8 = _mm512_test_epi8_mask(high, four_bytes(first, 2 * first, 4 * first, 8 * first));
      SHOAL_UNROLL
      for (int e = 0; e < 4; ++e) {
        const __mmask64 negative = _mm512_test_epi8_mask(eight, four_bytes(1 << e, 16 << e, 1 << e, 16 << e));
        to[4 * w + e] = negated(look_up_512(kPlanesIQ3_S.bytes[e], low, bit7, bit8), negative);
      }
    }
  }
  void scales(int part, F32 (&to)[1]) const { to[0] = odd_of_nibble(word(26), part); }
};

template <>
struct CodedReader<IQ2_XXS> : CodedUnit<IQ2_XXS> {
  using CodedUnit::CodedUnit;
  static constexpr int kSpan = 8;
  void planes(int part, Bytes (&to)[8]) const {
    const __m512i low = word(2 * part), signs = even_signs(word(2 * part + 1));
    const __mmask64 bit7 = _mm512_movepi8_mask(low);
    SHOAL_UNROLL
    for (int e = 0; e < 8; ++e) {
      const __mmask64 negative = _mm512_test_epi8_mask(signs, _mm512_set1_epi8(static_cast<char>(1 << e)));
      to[e] = negated(look_up_256(kPlanesIQ2_XXS.bytes[e], low, bit7), negative);
    }
  }
  void scales(int part, F32 (&to)[1]) const { to[0] = odd_of_nibble(word(2 * part + 1), 7); }
};

/// Bits 2 i and 2 i + 1 of each byte select an IQ2 level. Returns these levels. 128 is added to each level.
__m512i levels_of(__m512i crumbs, int i) {
  const __m512i bits = _mm512_and_si512(_mm512_srli_epi16(crumbs, static_cast<unsigned>(2 * i)), _mm512_set1_epi8(3));
  return _mm512_shuffle_epi8(four_bytes(8 + 128, 25 + 128, 43 + 128, 0), bits);
}
/// Reorders planes for formats with one scale per 16 elements. Vector i of `to` gets bytes 0 and 1 of each lane of
/// planes 2 i and 2 i + 1. Vector 4 + i gets bytes 2 and 3 of these planes.
void in_halves(const Bytes (&planes)[8], Bytes (&to)[8]) {
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  SHOAL_UNROLL
  for (int i = 0; i < 4; ++i) {
    const auto a = (__m512i)planes[2 * i], b = (__m512i)planes[2 * i + 1];
    // The ternary operation takes the bits of its third operand where `upper` is zero, and the bits of its second
    // operand elsewhere.
    to[i] = (Bytes)_mm512_ternarylogic_epi32(upper, _mm512_slli_epi32(b, 16), a, 0xca);
    to[4 + i] = (Bytes)_mm512_ternarylogic_epi32(upper, b, _mm512_srli_epi32(a, 16), 0xca);
  }
}
/// Computes the planes from two vectors of level indices. Each byte of these vectors contains four indices of two bits.
void crumbs_to_halves(__m512i first, __m512i second, __m512i signs, Bytes (&to)[8]) {
  Bytes planes[8];
  SHOAL_UNROLL
  for (int e = 0; e < 8; ++e) {
    const __mmask64 negative = _mm512_test_epi8_mask(signs, _mm512_set1_epi8(static_cast<char>(1 << e)));
    planes[e] = negated(levels_of(e < 4 ? first : second, e % 4), negative);
  }
  in_halves(planes, to);
}

template <>
struct CodedReader<IQ2_XS> : CodedUnit<IQ2_XS> {
  using CodedUnit::CodedUnit;
  static constexpr int kSpan = 8;
  void planes(int part, Bytes (&to)[8]) const {
    // `low` contains bytes 0 and 2 of each lane of `a` and `b`. `high` contains bytes 1 and 3 of each lane.
    const __m512i a = word(2 * part), b = word(2 * part + 1), even = _mm512_set1_epi32(0x00ff00ff);
    const __m512i low_a = choose(_mm512_and_si512(a, even), 0, 2, 1, 1),
                  low_b = choose(_mm512_and_si512(b, even), 1, 1, 0, 2);
    const __m512i low = _mm512_or_si512(low_a, low_b);
    const __m512i odd_a = _mm512_andnot_si512(even, a), odd_b = _mm512_andnot_si512(even, b);
    const __m512i high = _mm512_or_si512(choose(odd_a, 1, 3, 0, 0), choose(odd_b, 0, 0, 1, 3));
    const __mmask64 bit7 = _mm512_movepi8_mask(low), bit8 = _mm512_test_epi8_mask(high, _mm512_set1_epi8(1));
    const __m512i sevens = _mm512_and_si512(_mm512_srli_epi16(high, 1), _mm512_set1_epi8(127));
    const __m512i signs = look_up_128(kEvenSigns.bytes[0], sevens);
    crumbs_to_halves(look_up_512(kCrumbsIQ2_XS.bytes[0], low, bit7, bit8),
                     look_up_512(kCrumbsIQ2_XS.bytes[1], low, bit7, bit8), signs, to);
  }
  void scales(int part, F32 (&to)[2]) const {
    for (int i = 0; i < 2; ++i) to[i] = odd_of_nibble(word(16 + part / 4), part % 4 * 2 + i);
  }
};

template <>
struct CodedReader<IQ2_S> : CodedUnit<IQ2_S> {
  using CodedUnit::CodedUnit;
  static constexpr int kSpan = 8;
  void planes(int part, Bytes (&to)[8]) const {
    const __m512i low = word(part), signs = word(8 + part), words = word(16 + part / 4);
    const int byte = part % 4;
    const __m512i high = choose(words, byte, byte, byte, byte);
    const __mmask64 bit7 = _mm512_movepi8_mask(low);
    const __mmask64 bit8 = _mm512_test_epi8_mask(high, four_bytes(1, 4, 16, 64));
    const __mmask64 bit9 = _mm512_test_epi8_mask(high, four_bytes(2, 8, 32, 128));
    crumbs_to_halves(look_up_1024(kCrumbsIQ2_S.bytes[0], low, bit7, bit8, bit9),
                     look_up_1024(kCrumbsIQ2_S.bytes[1], low, bit7, bit8, bit9), signs, to);
  }
  void scales(int part, F32 (&to)[2]) const {
    for (int i = 0; i < 2; ++i) to[i] = odd_of_nibble(word(18 + part / 4), part % 4 * 2 + i);
  }
};

/// Byte j of each lane of vector v contains element number element[4 v + j], from 0 to 31.
struct Order {
  alignas(32) uint8_t element[32], place[32];  ///< `place` is the inverse permutation of `element`
};
template <class Format>
constexpr Order order_of() {
  constexpr int kSpan = CodedReader<Format>::kSpan;
  Order order{};
  for (int v = 0; v < 8; ++v) {
    for (int j = 0; j < 4; ++j) {
      int element = kSpan == 4 ? v / 4 * 16 + v % 4 + 4 * j : v + 8 * j;
      if (Format::kGroups == 2) element = v % 4 * 2 + j / 2 + (j % 2 + v / 4 * 2) * 8;
      order.element[4 * v + j] = static_cast<uint8_t>(element);
      order.place[element] = static_cast<uint8_t>(4 * v + j);
    }
  }
  return order;
}
template <class Format>
inline constexpr Order kOrder = order_of<Format>();

/// Permutes 32 bytes of a column into the order of the planes.
template <class Format>
void put_in_order(const int8_t* from, int8_t (&to)[32]) {
  const __m256i order = _mm256_load_si256(reinterpret_cast<const __m256i*>(kOrder<Format>.element));
  const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  _mm256_store_si256(reinterpret_cast<__m256i*>(to), _mm256_permutexvar_epi8(order, bytes));
}

/// Multiplies the weights of group `group` by the elements of a column. Each lane of the result is the sum of products
/// of one row. `values` contains the elements in the order of the planes.
template <class Format>
I32 products(const Bytes (&weights)[8], const int8_t (&values)[32], const Column& b, int64_t part, int group) {
  constexpr int kQuads = 8 / Format::kGroups;
  I32 sum = splat(Format::kGroups == 2 ? b.half_starts[2 * part + group] : b.starts[part]);
  SHOAL_UNROLL
  for (int i = group * kQuads; i < (group + 1) * kQuads; ++i) {
    sum = quad_dot(sum, weights[i], splat_quad(values + 4 * i));
  }
  return sum;
}

template <class Format>
struct Coded {
  template <int C>
  static void run(const DotArgs& args, const std::byte* unit, int64_t column, F32 (&sums)[C]) {
    constexpr int kGroups = Format::kGroups;
    using Layout = PackedLayout<Format>;
    Column b[C];
    for (int c = 0; c < C; ++c) b[c] = column_at(args.b[column + c], args.k);
    for (int64_t first = 0; first < args.k / 32; first += 8, unit += Layout::kBytes) {
      const CodedReader<Format> reader(unit);
      SHOAL_NO_UNROLL
      for (int i = 0; i < 8; ++i) {
        constexpr size_t kLines = (Layout::kBytes + 511) / 512;
        prefetch(unit + static_cast<size_t>(i) * kLines * 64, kLines * 64, kAhead);
        const int64_t part = first + i;
        Bytes weights[8];
        F32 scales[kGroups];
        reader.planes(i, weights);
        reader.scales(i, scales);
        SHOAL_UNROLL
        for (int c = 0; c < C; ++c) {
          alignas(32) int8_t values[32];
          put_in_order<Format>(b[c].values + 32 * part, values);
          SHOAL_UNROLL
          for (int g = 0; g < kGroups; ++g) {
            const F32 scaled = to_float(products<Format>(weights, values, b[c], part, g)) * scales[g];
            sums[c] = multiply_add(scaled, splat(b[c].scales[part]), sums[c]);
          }
        }
      }
    }
  }
};

template <class Format>
void dot_packed(const DotArgs& args) {
  dot_groups<Coded<Format>>(args);
}

/// Returns elements 4 * quad to 4 * quad + 3 of all rows, one row per lane.
template <class Format>
__m512i neighbours(const Bytes (&planes)[8], int quad) {
  __m512i v = _mm512_setzero_si512();
  SHOAL_UNROLL
  for (int i = 0; i < 4; ++i) {
    const int place = kOrder<Format>.place[4 * quad + i], byte = place % 4;
    const __m512i lanes = _mm512_set4_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0);
    const __m512i from = _mm512_add_epi8(_mm512_set1_epi8(static_cast<char>(byte)), lanes);
    v = _mm512_mask_shuffle_epi8(v, 0x1111111111111111u << i, (__m512i)planes[place / 4], from);
  }
  return v;
}

template <class Format>
void to_panel(const std::byte* group, int64_t k_begin, int64_t k, std::byte* panel) {
  using Packed = PackedLayout<Format>;
  using Layout = PanelLayout<Format::kGroups, false>;
  const std::byte* unit = group + k_begin / 256 * static_cast<int64_t>(Packed::kBytes);
  for (int64_t left = k; left > 0; left -= 256, unit += Packed::kBytes) {
    const CodedReader<Format> reader(unit);
    SHOAL_NO_UNROLL
    for (int part = 0; part < 8; ++part, panel += Layout::kBytes) {
      F32 scales[Format::kGroups];
      reader.scales(part, scales);
      for (int i = 0; i < Format::kGroups; ++i) store(panel + Layout::kScales + i * sizeof(F32), scales[i]);
      Bytes planes[8];
      reader.planes(part, planes);
      SHOAL_UNROLL
      for (int i = 0; i < 8; ++i) store(panel + Layout::kValues + i * sizeof(Bytes), neighbours<Format>(planes, i));
    }
  }
}

template <class Format>
constexpr CodedPacked coded_packed(DType dtype) {
  return {
      dtype, {packed_bytes<Format>, pack<Format>, unpack<Format>, dot_packed<Format>, kDotColumns}, to_panel<Format>};
}

}  // namespace

constinit const CodedPacked kCodedPacked[kCodedPackedCount] = {
    coded_packed<IQ2_XXS>(DType::kIQ2_XXS), coded_packed<IQ2_XS>(DType::kIQ2_XS), coded_packed<IQ2_S>(DType::kIQ2_S),
    coded_packed<IQ3_XXS>(DType::kIQ3_XXS), coded_packed<IQ3_S>(DType::kIQ3_S)};

}  // namespace shoal::cpu::SHOAL_ISA
