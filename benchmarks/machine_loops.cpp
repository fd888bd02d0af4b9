// The sums are named variables instead of array elements, because compilers keep variables in registers. Some products
// do not depend on the sum. The compiler would move such a product out of the loop, so the product is an `asm`
// statement.
#include "benchmarks/machine_loops.h"

namespace shoal::bench::SHOAL_ISA {
namespace {

#if defined(__AVX512F__)
constexpr size_t kBytes = 64;
#elif defined(__AVX2__)
constexpr size_t kBytes = 32;
#else
constexpr size_t kBytes = 16;
#endif

typedef float Floats __attribute__((vector_size(kBytes)));
typedef int32_t Ints __attribute__((vector_size(kBytes)));
typedef uint64_t Words __attribute__((vector_size(kBytes)));

/// Number of independent sums. Two arithmetic units with a latency of six cycles need this number of sums.
constexpr int kSums = 12;

template <class V>
inline void keep(const V& value) {
  asm volatile("" : : "m"(value));
}

template <class V, class Step>
inline void repeat(int64_t rounds, Step step) {
  V a{}, b{}, c{}, d{}, e{}, f{}, g{}, h{}, i{}, j{}, k{}, l{};
  for (; rounds > 0; --rounds) {
    step(a), step(b), step(c), step(d), step(e), step(f);
    step(g), step(h), step(i), step(j), step(k), step(l);
  }
  keep(a + b + c + d + e + f + g + h + i + j + k + l);
}

void f32(int64_t rounds) {
  const Floats x = Floats{} + 0.5f;
#if defined(__FMA__)
  repeat<Floats>(rounds, [x](Floats& sum) { asm("vfmadd231ps %1, %1, %0" : "+v"(sum) : "v"(x)); });
#else
  repeat<Floats>(rounds, [x](Floats& sum) { sum = sum * x + x; });
#endif
}

void int8(int64_t rounds) {
  const Ints x = Ints{} + 0x01010101;
#if defined(__AVX512VNNI__)
  repeat<Ints>(rounds, [x](Ints& sum) { asm("vpdpbusd %1, %1, %0" : "+v"(sum) : "v"(x)); });
#elif defined(__AVX2__)
  const Ints ones = Ints{} + 0x00010001;
  repeat<Ints>(rounds, [x, ones](Ints& sum) {
    Ints product;
    asm volatile("vpmaddubsw %1, %1, %0" : "=x"(product) : "x"(x));
    asm("vpmaddwd %1, %0, %0" : "+x"(product) : "x"(ones));
    sum += product;
  });
#elif defined(__SSE2__)
  repeat<Ints>(rounds, [x](Ints& sum) {
    Ints product = x;
    asm volatile("pmaddwd %1, %0" : "+x"(product) : "x"(x));
    sum += product;
  });
#else
  repeat<Ints>(rounds, [x](Ints& sum) { sum = sum * x + x; });
#endif
}

void int16(int64_t rounds) {
#if defined(__AVX512VNNI__)
  const Ints x = Ints{} + 0x00010001;
  repeat<Ints>(rounds, [x](Ints& sum) { asm("vpdpwssd %1, %1, %0" : "+v"(sum) : "v"(x)); });
#elif defined(__AVX2__)
  const Ints x = Ints{} + 0x00010001;
  repeat<Ints>(rounds, [x](Ints& sum) {
    Ints product;
    asm volatile("vpmaddwd %1, %1, %0" : "=x"(product) : "x"(x));
    sum += product;
  });
#else
  int8(rounds);  // with this instruction set, the loop of int8() multiplies 16-bit words
#endif
}

/// Number of elements that one step takes from each operand.
#if defined(__AVX2__)
constexpr size_t kByteProducts = kBytes, kWordProducts = kBytes / 2;
#elif defined(__SSE2__)
constexpr size_t kByteProducts = kBytes / 2, kWordProducts = kByteProducts;
#else
constexpr size_t kByteProducts = kBytes / 4, kWordProducts = kByteProducts;
#endif

uint64_t read(const std::byte* data, size_t bytes, int streams) {
  Words sums[kReadStep / kBytes] = {};
  const size_t part = bytes / static_cast<size_t>(streams);
  for (size_t at = 0; at < part; at += kReadStep) {
    for (int stream = 0; stream < streams; ++stream) {
      const std::byte* from = data + static_cast<size_t>(stream) * part + at;
      for (size_t i = 0; i < kReadStep / kBytes; ++i) {
        Words words;
        __builtin_memcpy(&words, from + i * kBytes, kBytes);
        sums[i] ^= words;
      }
    }
  }
  uint64_t all = 0;
  for (const Words& sum : sums) {
    for (size_t i = 0; i < kBytes / sizeof(uint64_t); ++i) all ^= sum[i];
  }
  return all;
}

}  // namespace

extern const Loops kLoops;
const Loops kLoops = {
    f32, 2.0 * kSums* kBytes / sizeof(float), int16, 2.0 * kSums* kWordProducts, int8, 2.0 * kSums* kByteProducts, read,
};

}  // namespace shoal::bench::SHOAL_ISA
