// The loops of element-wise ops. Each call processes a part of a row.
#include "devices/cpu/kernels/functions.h"
#include "devices/cpu/kernels/part.h"
#include "devices/cpu/kernels/rows.h"

namespace shoal::cpu::SHOAL_ISA {
namespace {

// --- functions of one element ---

F32 one_if(I32 mask) {
  return bits_as<F32>(mask & bits_as<I32>(splat(1.0f)));
}
inline F32 neg(F32 x) {
  return -x;
}
inline F32 sgn(F32 x) {
  return one_if(x > F32{}) - one_if(x < F32{});
}
inline F32 step(F32 x) {
  return one_if(x > F32{});
}
inline F32 elu(F32 x) {
  return x > F32{} ? x : expm1_of(x);
}
inline F32 relu(F32 x) {
  return x > F32{} ? x : F32{};
}
/// The result is 0.5 x (1 + tanh(u)) == x sigmoid(2 u) with u = sqrt(2 / pi) (x + 0.044715 x^3).
inline F32 gelu(F32 x) {
  const F32 cube = splat(0.044715f) * x * x;
  return gated(x, splat(1.5957691216057308f) * multiply_add(cube, x, x));
}
inline F32 gelu_quick(F32 x) {
  return gated(x, splat(1.702f) * x);
}
inline F32 silu(F32 x) {
  return gated(x, x);
}
inline F32 hard_sigmoid(F32 x) {
  return at_most(at_least((x + splat(3.0f)) / splat(6.0f), 0.0f), 1.0f);
}
inline F32 hard_swish(F32 x) {
  return x * hard_sigmoid(x);
}
/// With t = e^-|x|, and u = 1 + t after rounding:
///   ln(1 + e^x) = max(x, 0) + ln(1 + t)
///   ln(1 + t) = ln u + (t - (u - 1)) / u, with an error far below the last place
/// When u is 1, only the last term remains.
inline F32 softplus(F32 x) {
  const F32 t = exp_of(-magnitude_of(x));
  const F32 u = splat(1.0f) + t;
  return relu(x) + (log_of(u) + (t - (u - splat(1.0f))) / u);
}
inline F32 sqr(F32 x) {
  return x * x;
}

template <F32 (*f)(F32)>
void each(const float* x, float* to, int64_t n) {
  for_each(
      to, n, [](F32 v) { return f(v); }, x);
}

void square_roots(const float* x, float* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = __builtin_sqrtf(x[i]);
}

template <F32 (*f)(F32)>
void gate(const float* x, const float* up, float* to, int64_t n) {
  for_each(
      to, n, [](F32 v, F32 w) { return f(v) * w; }, x, up);
}

// --- functions of two elements ---

struct Add {
  static F32 apply(F32 a, F32 b) { return a + b; }
};
struct Sub {
  static F32 apply(F32 a, F32 b) { return a - b; }
};
struct Mul {
  static F32 apply(F32 a, F32 b) { return a * b; }
};
struct Div {
  static F32 apply(F32 a, F32 b) { return a / b; }
};

template <class Op>
void combine(const float* a, bool a_steps, const float* b, bool b_steps, float* to, int64_t n) {
  if (a_steps && b_steps) {
    for_each(
        to, n, [](F32 x, F32 y) { return Op::apply(x, y); }, a, b);
  } else if (a_steps) {
    const F32 right = splat(*b);
    for_each(
        to, n, [=](F32 x) { return Op::apply(x, right); }, a);
  } else if (b_steps) {
    const F32 left = splat(*a);
    for_each(
        to, n, [=](F32 y) { return Op::apply(left, y); }, b);
  } else {
    const F32 result = Op::apply(splat(*a), splat(*b));
    for_each(to, n, [=] { return result; });
  }
}

// --- comparisons ---

struct Equal {
  static I32 apply(auto a, auto b) { return a == b; }
};
struct NotEqual {
  static I32 apply(auto a, auto b) { return a != b; }
};
struct Less {
  static I32 apply(auto a, auto b) { return a < b; }
};
struct LessEqual {
  static I32 apply(auto a, auto b) { return a <= b; }
};

/// V is the type of the elements: F32 or I32. Both are loaded and stored as floats, which does not change their bits.
template <class V, class Op>
void compare(const void* a, const void* b, void* to, int64_t n) {
  const auto one_if_true = [](F32 x, F32 y) {
    return bits_as<F32>(Op::apply(bits_as<V>(x), bits_as<V>(y)) & splat(int32_t{1}));
  };
  for_each(static_cast<float*>(to), n, one_if_true, static_cast<const float*>(a), static_cast<const float*>(b));
}
template <class V, class Op>
void compare_swapped(const void* a, const void* b, void* to, int64_t n) {
  compare<V, Op>(b, a, to, n);
}

template <class T>
void select(const int32_t* __restrict condition, const T* __restrict a, const T* __restrict b, T* __restrict to,
            int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = condition[i] != 0 ? a[i] : b[i];
}

// --- the loops of activations.def ---

namespace loops {
constexpr UnaryKernel sqrt = square_roots, sin = sines, cos = cosines;
constexpr UnaryKernel abs = each<SHOAL_ISA::magnitude_of>;
constexpr UnaryKernel neg = each<SHOAL_ISA::neg>;
constexpr UnaryKernel sgn = each<SHOAL_ISA::sgn>;
constexpr UnaryKernel step = each<SHOAL_ISA::step>;
constexpr UnaryKernel tanh = each<SHOAL_ISA::tanh_of>;
constexpr UnaryKernel elu = each<SHOAL_ISA::elu>;
constexpr UnaryKernel relu = each<SHOAL_ISA::relu>;
constexpr UnaryKernel sigmoid = each<SHOAL_ISA::sigmoid_of>;
constexpr UnaryKernel gelu = each<SHOAL_ISA::gelu>;
constexpr UnaryKernel gelu_erf = each<SHOAL_ISA::gelu_erf_of>;
constexpr UnaryKernel gelu_quick = each<SHOAL_ISA::gelu_quick>;
constexpr UnaryKernel silu = each<SHOAL_ISA::silu>;
constexpr UnaryKernel hard_swish = each<SHOAL_ISA::hard_swish>;
constexpr UnaryKernel hard_sigmoid = each<SHOAL_ISA::hard_sigmoid>;
constexpr UnaryKernel exp = each<SHOAL_ISA::exp_of>;
constexpr UnaryKernel log = each<SHOAL_ISA::log_of>;
constexpr UnaryKernel sqr = each<SHOAL_ISA::sqr>;
constexpr UnaryKernel softplus = each<SHOAL_ISA::softplus>;
constexpr GluKernel swiglu = gate<SHOAL_ISA::silu>;
constexpr GluKernel geglu = gate<SHOAL_ISA::gelu>;
constexpr GluKernel geglu_erf = gate<SHOAL_ISA::gelu_erf_of>;
constexpr GluKernel geglu_quick = gate<SHOAL_ISA::gelu_quick>;
constexpr GluKernel reglu = gate<SHOAL_ISA::relu>;
}  // namespace loops

}  // namespace

constinit const UnaryKernel kUnaryKernels[] = {
#define SHOAL_UNARY(id, name) loops::name,
#include "graph/activations.def"
};
constinit const GluKernel kGluKernels[] = {
#define SHOAL_GLU(id, name) loops::name,
#include "graph/activations.def"
};
constinit const BinaryKernel kBinaryKernels[4] = {combine<Add>, combine<Sub>, combine<Mul>, combine<Div>};

#define SHOAL_COMPARISONS(V)                                                                                    \
  {                                                                                                             \
    compare<V, Equal>, compare<V, NotEqual>, compare<V, Less>, compare<V, LessEqual>, compare_swapped<V, Less>, \
        compare_swapped<V, LessEqual>                                                                           \
  }
constinit const CompareKernel kCompareFloats[6] = SHOAL_COMPARISONS(F32);
constinit const CompareKernel kCompareIntegers[6] = SHOAL_COMPARISONS(I32);
#undef SHOAL_COMPARISONS

void select_halves(const int32_t* condition, const uint16_t* a, const uint16_t* b, uint16_t* to, int64_t n) {
  select(condition, a, b, to, n);
}
void select_words(const int32_t* condition, const uint32_t* a, const uint32_t* b, uint32_t* to, int64_t n) {
  select(condition, a, b, to, n);
}

void scale_row(const float* x, float scale, float bias, float* to, int64_t n) {
  for_each(
      to, n, [=](F32 v) { return multiply_add(v, splat(scale), splat(bias)); }, x);
}

void clamp_row(const float* x, float low, float high, float* to, int64_t n) {
  for_each(
      to, n, [=](F32 v) { return at_most(at_least(v, low), high); }, x);
}

}  // namespace shoal::cpu::SHOAL_ISA
