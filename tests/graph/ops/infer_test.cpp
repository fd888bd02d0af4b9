// Tests of the shape inference of every op. The tests check results and error messages. Each case is a graph in text
// form. The last line of the text is the node under test, %y.
#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "base/error.h"
#include "graph/param_text.h"
#include "graph/text.h"
#include "tests/support/external_ops.h"

namespace shoal {
namespace {

struct Case {
  const char* text;
  const char* expected;  ///< describe(y), or the error message without "line n: "
};

void PrintTo(const Case& row, std::ostream* out) {
  *out << row.text;
}

Tensor* parse_last(const Case& row, Graph& graph, TensorContext& weights) {
  test::register_test_ops();
  parse_graph(row.text, graph, weights);
  return graph.nodes().back();
}

class Infers : public testing::TestWithParam<Case> {};

TEST_P(Infers, ExpectedDtypeAndShape) {
  Graph graph;
  TensorContext weights;
  const Tensor* y = parse_last(GetParam(), graph, weights);
  EXPECT_EQ(describe(*y), std::string("y ") + GetParam().expected);
}

const Case kResults[] = {
    // get_rows
    {"weight %t q8_0 [64, 10]\ninput %i i32 [3]\n%y = get_rows(%t, %i)", "f32 [64, 3]"},
    {"weight %t i32 [4, 10]\ninput %i i32 [3]\n%y = get_rows(%t, %i)", "i32 [4, 3]"},
    {"weight %t f16 [4, 10, 2, 3]\ninput %i i32 [5, 2, 3]\n%y = get_rows(%t, %i)", "f32 [4, 5, 2, 3]"},
    {"weight %t f32 [4, 5]\ninput %i i32 [3]\n%y = get_rows(%t, %i) {ranges=[10:2,40:3]}", "f32 [4, 3]"},
    {"weight %t f32 [4, 0]\ninput %i i32 [3]\n%y = get_rows(%t, %i) {ranges=[10:0]}", "f32 [4, 3]"},
    {"weight %t f32 [4, 5]\ninput %i i32 [0]\n%y = get_rows(%t, %i)", "f32 [4, 0]"},
    // set_rows
    {"cache %c f16 [8, 16, 2]\ninput %r f32 [8, 3, 2]\ninput %i i64 [3]\n%y = set_rows(%c, %r, %i)", "f16 [8, 16, 2]"},
    {"cache %c q8_0 [32, 16]\ninput %r f32 [32, 3]\ninput %i i32 [3]\n%y = set_rows(%c, %r, %i)", "q8_0 [32, 16]"},
    {"cache %c f32 [8, 16, 0]\ninput %r f32 [8, 3, 0]\ninput %i i32 [3]\n%y = set_rows(%c, %r, %i)", "f32 [8, 16, 0]"},
    {"cache %c f32 [8, 2]\ninput %r f32 [8, 3]\ninput %i i32 [3]\n%y = set_rows(%c, %r, %i) {ranges=[5:2]}",
     "f32 [8, 2]"},
    {"cache %c f32 [8, 2]\ninput %r f32 [8, 1]\ninput %i i32 [1]\n%a = set_rows(%c, %r, %i)\n%y = set_rows(%a, %r, %i)",
     "f32 [8, 2]"},
    {"cache %c f32 [8, 5, 3, 2]\ninput %r f32 [8, 4, 3, 2]\ninput %i i32 [4, 3, 2]\n%y = set_rows(%c, %r, %i)",
     "f32 [8, 5, 3, 2]"},
    {"cache %c f32 [8, 5, 3, 2]\ninput %r f32 [8, 4, 3, 2]\ninput %i i32 [4, 1, 2]\n%y = set_rows(%c, %r, %i)",
     "f32 [8, 5, 3, 2]"},
    // set_slice
    {"cache %c f16 [8, 16, 2]\ninput %x f32 [8, 3, 2]\n%y = set_slice(%c, %x) {begin=13}", "f16 [8, 16, 2]"},
    {"cache %c q8_0 [96, 4]\ninput %x f32 [32, 4]\n%y = set_slice(%c, %x) {axis=0, begin=64}", "q8_0 [96, 4]"},
    {"cache %c f32 [8, 2]\ninput %x f32 [8, 5]\n%y = set_slice(%c, %x) {begin=3, ranges=[4:2]}", "f32 [8, 2]"},
    {"cache %c f32 [8, 2]\ninput %x f32 [8, 0]\n%y = set_slice(%c, %x) {begin=2}", "f32 [8, 2]"},
    // mul_mat
    {"input %a f32 [8, 7]\ninput %b f32 [8, 5]\n%y = mul_mat(%a, %b) {dtype=f16}", "f16 [7, 5]"},
    {"weight %a q8_0 [32, 7]\ninput %b f16 [32, 5]\n%y = mul_mat(%a, %b) {dtype=bf16}", "bf16 [7, 5]"},
    {"weight %a q4_K [256, 7]\ninput %b f32 [256, 5]\n%y = mul_mat(%a, %b)", "f32 [7, 5]"},
    {"input %a f16 [8, 7, 2, 1]\ninput %b bf16 [8, 5, 6, 3]\n%y = mul_mat(%a, %b)", "f32 [7, 5, 6, 3]"},
    {"weight %a q8_0 [0, 7]\ninput %b f32 [0, 5]\n%y = mul_mat(%a, %b)", "f32 [7, 5]"},
    {"weight %a f32 [8, 0]\ninput %b f32 [8, 5]\n%y = mul_mat(%a, %b)", "f32 [0, 5]"},
    {"input %a f32 [8, 7, 0]\ninput %b f32 [8, 5, 0]\n%y = mul_mat(%a, %b)", "f32 [7, 5, 0]"},
    // mul_mat_id
    {"weight %e q4_0 [32, 6, 8]\ninput %x f32 [32, 1, 5]\ninput %i i32 [2, 5]\n%y = mul_mat_id(%e, %x, %i)",
     "f32 [6, 2, 5]"},
    {"weight %e f32 [4, 6, 3]\ninput %x f32 [4, 2, 5]\ninput %i i32 [2, 5]\n%y = mul_mat_id(%e, %x, %i) "
     "{ranges=[0:1,6:2]}",
     "f32 [6, 2, 5]"},
    // element-wise
    {"input %a f32 [4, 3]\ninput %b f32 [4]\n%y = add(%a, %b)", "f32 [4, 3]"},
    {"input %a f16 [4, 1]\ninput %b f32 [1, 3, 2]\n%y = mul(%a, %b)", "f16 [4, 3, 2]"},
    {"input %a i32 [4]\ninput %b i32 [4]\n%y = sub(%a, %b)", "i32 [4]"},
    {"input %a f32 [0, 3]\ninput %b f32 [1, 3]\n%y = div(%a, %b)", "f32 [0, 3]"},
    {"input %x bf16 [4, 3]\n%y = scale(%x) {scale=2, bias=-1}", "bf16 [4, 3]"},
    {"input %x f16 [4]\n%y = unary(%x) {kind=hard_sigmoid}", "f16 [4]"},
    {"input %x f32 [4]\n%y = clamp(%x) {min=-inf, max=2}", "f32 [4]"},
    {"input %g f32 [4, 2]\ninput %u f32 [4, 2]\n%y = glu(%g, %u) {kind=geglu_erf}", "f32 [4, 2]"},
    {"input %g f16 [8, 2]\n%y = glu(%g)", "f16 [4, 2]"},
    // along rows
    {"input %x f32 [4, 3]\n%y = rms_norm(%x) {eps=1e-6}", "f32 [4, 3]"},
    {"input %x f32 [4, 3]\n%y = rms_norm(%x) {dtype=f16}", "f16 [4, 3]"},
    {"input %x f16 [4, 3]\n%y = layer_norm(%x) {dtype=bf16}", "bf16 [4, 3]"},
    {"input %x f16 [4, 3]\n%y = layer_norm(%x) {eps=0.33333334}", "f32 [4, 3]"},
    {"input %x f32 [9, 5, 4, 2]\ninput %m f16 [9, 5, 1, 2]\ninput %s f32 [4]\n%y = soft_max(%x, %m, %s) {scale=0.125}",
     "f32 [9, 5, 4, 2]"},
    {"input %x f32 [9, 5, 0]\ninput %m f32 [9, 5]\ninput %s f32 [0]\n%y = soft_max(%x, %m, %s)", "f32 [9, 5, 0]"},
    {"input %x f32 [8, 4, 5]\ninput %p i32 [5]\ninput %f f32 [3]\n%y = rope(%x, %p, %f) {dims=6, mode=halves}",
     "f32 [8, 4, 5]"},
    {"input %x f32 [8, 0, 5]\ninput %p i32 [5]\n%y = rope(%x, %p) {dims=6, offset=2, base=500000, freq_scale=0.25, "
     "ext_factor=1, "
     "attn_factor=1.1, beta_fast=33, beta_slow=2, original_context=8192, truncate=false}",
     "f32 [8, 0, 5]"},
    {"input %x f32 [8, 4, 5]\n%y = sum_rows(%x)", "f32 [1, 4, 5]"},
    {"input %x f32 [8, 4]\n%y = argmax(%x)", "i32 [1, 4]"},
    {"input %x f32 [8, 4]\n%y = top_k(%x) {k=3}", "i32 [3, 4]"},
    // attention
    {"input %q f32 [16, 5, 8]\ncache %k f16 [16, 20, 2]\ncache %v f16 [12, 20, 2]\n%y = attention(%q, %k, %v)",
     "f32 [12, 8, 5]"},
    {"input %q f32 [32, 5, 8, 3]\ncache %k q8_0 [32, 20, 8, 3]\ncache %v bf16 [4, 20, 8, 3]\ninput %p i32 [5]\n"
     "input %m f32 [20, 5]\ninput %s f32 [8]\n%y = attention(%q, %k, %v, %p, %m, %s) {causal=true, window=4, "
     "scale=0.5, softcap=30}",
     "f32 [4, 8, 5, 3]"},
    {"input %q f32 [16, 5, 0]\ncache %k f16 [16, 20, 0]\ncache %v f16 [16, 20, 0]\n%y = attention(%q, %k, %v)",
     "f32 [16, 0, 5]"},
    {"input %q f32 [16, 5, 8]\ncache %k f16 [16, 20, 2, 3]\ncache %v f16 [12, 20, 2, 3]\ninput %p i32 [5, 3]\n"
     "%y = attention(%q, %k, %v, %p) {causal=true, parts=4}",
     "f32 [13, 8, 5, 3]"},
    {"input %q f32 [16, 5, 8]\ncache %k f16 [16, 96, 2]\ncache %v f16 [12, 96, 2]\ninput %p i32 [5]\n"
     "input %t i32 [2, 3]\ninput %s i32 [5]\n%y = attention(%q, %k, %v, %p, _, _, %t, %s) {causal=true, page=32}",
     "f32 [12, 8, 5]"},
    {"input %x f32 [13, 8, 5, 3]\ninput %l f32 [4, 8, 5]\n%y = merge_attention(%x, %l)", "f32 [12, 8, 5]"},
    {"input %x f32 [1, 8, 5, 0]\ninput %l f32 [0, 8, 5]\n%y = merge_attention(%x, %l)", "f32 [0, 8, 5]"},
    // convolutions
    {"weight %w f16 [3, 2, 5, 7]\ninput %x f32 [10, 9, 5, 2]\n"
     "%y = conv_2d(%w, %x) {stride=[2,3], pads=[1,0,2,1], dilation=[2,4]}",
     "f32 [4, 3, 7, 2]"},
    {"weight %w f32 [3, 3, 2, 8]\ninput %x f32 [3, 3, 4]\n%y = conv_2d(%w, %x) {groups=2}", "f32 [1, 1, 8]"},
    {"weight %w f32 [3, 3, 0, 8]\ninput %x f32 [3, 4, 0, 2]\n%y = conv_2d(%w, %x)", "f32 [1, 2, 8, 2]"},
    {"weight %w f32 [3, 3, 1, 0]\ninput %x f32 [3, 4, 0, 2]\n%y = conv_2d(%w, %x) {groups=0}", "f32 [1, 2, 0, 2]"},
    {"weight %w f32 [1, 1, 2, 8]\ninput %x f32 [0, 4, 2]\n%y = conv_2d(%w, %x)", "f32 [0, 4, 8]"},
    {"weight %w bf16 [3, 2, 7, 5]\ninput %x f32 [10, 9, 5, 2]\n"
     "%y = conv_transpose_2d(%w, %x) {stride=[2,3], pads=[1,0,2,1], dilation=[2,4], output_pad=[1,2]}",
     "f32 [23, 28, 7, 2]"},
    {"weight %w f32 [3, 3, 2, 8]\ninput %x f32 [3, 3, 8]\n%y = conv_transpose_2d(%w, %x) {groups=4}", "f32 [5, 5, 8]"},
    {"weight %w f32 [1, 1, 2, 8]\ninput %x f32 [0, 4, 8]\n%y = conv_transpose_2d(%w, %x)", "f32 [0, 4, 2]"},
    // ops with a state
    {"input %x f32 [8, 5]\nweight %w f32 [4, 8]\ninput %s f32 [8, 3]\ninput %p i32 [5]\n"
     "%y = causal_conv(%x, %w, %s, %p)",
     "f32 [8, 8]"},
    {"input %x f32 [8]\nweight %w f32 [1, 8]\ninput %s f32 [8, 0]\ninput %p i32 [1]\n"
     "%y = causal_conv(%x, %w, %s, %p)",
     "f32 [8]"},
    {"input %x f32 [8, 5]\nweight %w f32 [4, 8]\ninput %s f32 [8, 21]\ninput %p i32 [5]\ninput %q i32 [5]\n"
     "input %l i32 [2]\n%y = causal_conv(%x, %w, %s, %p, %q, %l)",
     "f32 [8, 11]"},
    {"input %x f32 [8, 0]\nweight %w f32 [4, 8]\ninput %s f32 [8, 3]\ninput %p i32 [0]\n"
     "%y = causal_conv(%x, %w, %s, %p)",
     "f32 [8, 3]"},
    {"input %q f32 [8, 2, 5]\ninput %k f32 [8, 2, 5]\ninput %v f32 [8, 6, 5]\ninput %a f32 [6, 5]\n"
     "input %b f32 [6, 5]\ninput %s f32 [8, 8, 6]\ninput %p i32 [5]\n"
     "%y = gated_delta(%q, %k, %v, %a, %b, %s, %p) {tiled=true}",
     "f32 [8, 13, 6]"},
    {"input %q f32 [8, 2, 5]\ninput %k f32 [8, 2, 5]\ninput %v f32 [8, 6, 5]\ninput %a f32 [6, 5]\n"
     "input %b f32 [6, 5]\ninput %s f32 [8, 40, 6]\ninput %p i32 [5]\ninput %q1 i32 [5]\ninput %l i32 [3]\n"
     "%y = gated_delta(%q, %k, %v, %a, %b, %s, %p, %q1, %l)",
     "f32 [8, 29, 6]"},
    {"input %q f32 [8, 0, 5]\ninput %k f32 [8, 0, 5]\ninput %v f32 [8, 0, 5]\ninput %a f32 [0, 5]\n"
     "input %b f32 [0, 5]\ninput %s f32 [8, 8, 0]\ninput %p i32 [5]\n"
     "%y = gated_delta(%q, %k, %v, %a, %b, %s, %p)",
     "f32 [8, 13, 0]"},
    {"input %q f32 [8, 2, 0]\ninput %k f32 [8, 2, 0]\ninput %v f32 [8, 2, 0]\ninput %a f32 [2, 0]\n"
     "input %b f32 [2, 0]\ninput %s f32 [8, 8, 2]\ninput %p i32 [0]\n"
     "%y = gated_delta(%q, %k, %v, %a, %b, %s, %p)",
     "f32 [8, 8, 2]"},
    // data movement
    {"input %x f32 [64, 2]\n%y = cast(%x) {dtype=q4_0}", "q4_0 [64, 2]"},
    {"input %x f16 [4, 2]\n%t = permute(%x) {axes=[1,0,2,3]}\n%y = contiguous(%t)", "f16 [2, 4]"},
    {"input %a f32 [4, 2]\ninput %b f32 [4, 0]\ninput %c f32 [4, 3]\n%y = concat(%a, %b, %c) {axis=1}", "f32 [4, 5]"},
    {"weight %a q8_0 [32, 2]\nweight %b q8_0 [64, 2]\n%y = concat(%a, %b)", "q8_0 [96, 2]"},
    {"input %x f32 [4, 1]\n%y = repeat(%x) {shape=[8,3,1,1]}", "f32 [8, 3]"},
    {"%y = fill() {dtype=i64, shape=[4,2,1,1], value=3}", "i64 [4, 2]"},
    // comparisons and images
    {"input %a bf16 [4, 3]\ninput %b f32 [1, 3, 2]\n%y = compare(%a, %b) {kind=ge}", "i32 [4, 3, 2]"},
    {"input %a i32 [4]\ninput %b i32 [4]\n%y = compare(%a, %b)", "i32 [4]"},
    {"input %c i32 [4, 1, 2]\ninput %a f16 [1, 3]\ninput %b f16 [1]\n%y = where(%c, %a, %b)", "f16 [4, 3, 2]"},
    {"input %c i32 [1]\ninput %a i32 [0, 3]\ninput %b i32 [1, 3]\n%y = where(%c, %a, %b)", "i32 [0, 3]"},
    {"input %x f16 [5, 3, 2]\n%y = cumsum(%x)", "f32 [5, 3, 2]"},
    {"input %x i32 [5, 3, 2]\n%y = cumsum(%x)", "i32 [5, 3, 2]"},
    {"input %x f16 [8, 5, 3, 2]\n%y = pool_2d(%x) {kind=average, kernel=[3,2], stride=[2,1], pads=[1,2,0,1], "
     "count_pads=true}",
     "f32 [5, 5, 3, 2]"},
    {"input %x f32 [5, 0, 3]\n%y = pool_2d(%x) {kernel=[2,1]}", "f32 [4, 0, 3]"},
    {"input %x bf16 [4, 1, 3]\n%y = pad(%x) {before=[1,0,2,0], after=[3,2,0,1], mode=edge, value=0.5}",
     "bf16 [8, 3, 5, 2]"},
    {"input %x f32 [3, 0]\n%y = pad(%x) {after=[0,2,0,0]}", "f32 [3, 2]"},
    {"input %x f16 [4, 5, 3, 2]\n%y = upsample(%x) {size=[9,2], mode=corners}", "f16 [9, 2, 3, 2]"},
    {"input %x f32 [4, 0, 3]\n%y = upsample(%x) {size=[8,0]}", "f32 [8, 0, 3]"},
    {"input %x f32 [6, 4]\n%y = external(%x, %x) {op=\"test.lerp\", args=\"0.5\"}", "f32 [6, 4]"},
    // views
    {"input %x f32 [6, 4]\n%y = reshape(%x) {shape=[3,2,-1,1]}", "f32 [3, 2, 4]"},
    {"input %x f32 [6, 0]\n%y = reshape(%x) {shape=[0,5,2,1]}", "f32 [0, 5, 2]"},
    {"input %x f32 [6, 0]\n%y = reshape(%x) {shape=[3,-1,1,1]}", "f32 [3, 0]"},
    {"weight %x q8_0 [64, 3]\n%y = slice(%x) {begin=32, length=32}", "q8_0 [32, 3]"},
    {"input %x f32 [6, 4]\n%y = slice(%x) {axis=1, begin=4}", "f32 [6, 0]"},
    {"input %x f32 [6, 4]\n%y = slice(%x) {begin=1, length=3, step=2}", "f32 [3, 4]"},
    {"input %x f32 [6, 4]\n%y = slice(%x) {axis=1, begin=3, length=1, step=9223372036854775807}", "f32 [6]"},
    {"weight %x q8_0 [64, 5]\n%y = slice(%x) {axis=1, length=2, step=4}", "q8_0 [64, 2]"},
    {"input %x f32 [2, 3, 4, 5]\n%y = permute(%x) {axes=[2,0,3,1]}", "f32 [4, 2, 5, 3]"},
    {"weight %x q8_0 [64, 3]\n%y = reshard(%x) {layout=\"axis 1\"}", "q8_0 [64, 3]"},
    // collectives
    {"input %x f32 [6, 4]\n%y = all_reduce(%x) {rank=3}", "f32 [6, 4]"},
    {"input %x f32 [3, 2]\n%y = all_gather(%x) {rank=1, counts=[4,6,0]}", "f32 [10]"},
    {"input %x f32 [5, 2]\n%y = reduce_scatter(%x) {rank=2, counts=[4,6,0]}", "f32 [0]"},
    {"input %x f32 [9]\n%y = all_to_all(%x) {rank=1, counts=[1,2,4,5]}", "f32 [7]"},
};
INSTANTIATE_TEST_SUITE_P(Ops, Infers, testing::ValuesIn(kResults));

TEST(InferTable, EveryOpHasARow) {
  std::set<Op> seen;
  for (const Case& row : kResults) {
    Graph graph;
    TensorContext weights;
    seen.insert(parse_last(row, graph, weights)->op);
  }
  for (int i = 1; i < kOpCount; ++i) {
    EXPECT_TRUE(seen.contains(static_cast<Op>(i))) << name_of(static_cast<Op>(i)) << ": no row in kResults";
  }
}

TEST(InferTable, EveryParameterIsPrintedAndReadBack) {
  std::set<std::pair<size_t, std::string_view>> printed;  // {index of the alternative in OpParams, parameter name}
  for (const Case& row : kResults) {
    Graph graph, back;
    TensorContext weights, of_back;
    const Tensor* y = parse_last(row, graph, weights);
    const std::string text = to_string(graph);
    parse_graph(text, back, of_back);
    EXPECT_EQ(back.nodes().back()->params, y->params) << text;
    EXPECT_EQ(to_string(back), text);
    const auto values = param_texts(y->params), defaults = param_texts(info(y->op).default_params);
    for (size_t i = 0; i < values.size(); ++i) {
      if (values[i] != defaults[i]) printed.insert({y->params.index(), values[i].first});
    }
  }
  for (int i = 1; i < kOpCount; ++i) {
    const Op op = static_cast<Op>(i);
    const OpParams& defaults = info(op).default_params;
    for (const auto& [name, text] : param_texts(defaults)) {
      EXPECT_TRUE(printed.contains({defaults.index(), name}))
          << name_of(op) << ": no row with another " << name << " than " << text;
    }
  }
}

/// Calls `act` once for each integer in `value` and each extreme value, with this integer replaced.
template <class Value, class F>
void replace_integers(Value& value, const F& act) {
  if constexpr (std::is_same_v<Value, int> || std::is_same_v<Value, int64_t>) {
    using Limits = std::numeric_limits<Value>;
    const Value old = value;
    for (const Value extreme : {Limits::min(), Limits::min() + 1, Value{-1}, Limits::max() - 1, Limits::max()}) {
      value = extreme;
      act();
    }
    value = old;
  } else if constexpr (std::is_same_v<Value, IndexRange>) {
    replace_integers(value.begin, act);
    replace_integers(value.length, act);
  } else if constexpr (requires { value.data(); } && !std::is_same_v<Value, std::string>) {
    for (auto& one : value) replace_integers(one, act);
  }
}

/// Whether all bytes of the tensor are in its storage. The numbers are exact below 2^64.
bool is_inside_storage(const Tensor& tensor) {
  const DTypeTraits& type = traits(tensor.dtype);
  const auto spread = [](int64_t count, size_t stride) {
    return static_cast<long double>(count - 1) * static_cast<long double>(stride);
  };
  long double end = static_cast<long double>(tensor.view_offset + type.block_bytes) +
                    spread(tensor.shape[0] / type.block_elems, tensor.strides[0]);
  for (int axis = 1; axis < kMaxDims; ++axis) {
    end += spread(tensor.shape[axis], tensor.strides[axis]);
  }
  return tensor.empty() || end <= static_cast<long double>(tensor.storage()->bytes());
}

TEST(InferTable, ExtremeParametersAreRefusedOrStayInsideStorage) {
  for (const Case& row : kResults) {
    Graph first;
    TensorContext leaves;
    const Tensor* y = parse_last(row, first, leaves);
    const std::string text = row.text, without = text.substr(0, text.find(" {", text.rfind('\n') + 1));
    OpParams params = y->params;
    for_each_param(params, [&](std::string_view, auto& value) {
      replace_integers(value, [&] {
        const std::string changed = without + " " + params_to_string(y->op, params);
        Graph graph;
        TensorContext weights;
        try {
          parse_graph(changed, graph, weights);
        } catch (const InvalidArgument&) {
          return;
        }
        const Tensor& result = *graph.nodes().back();
        for (const int64_t length : result.shape) EXPECT_GE(length, 0) << changed;
        EXPECT_TRUE(is_inside_storage(result)) << changed;
      });
    });
  }
}

class Refuses : public testing::TestWithParam<Case> {};

TEST_P(Refuses, BadNodesWithTheExpectedMessage) {
  Graph graph;
  TensorContext weights;
  try {
    parse_last(GetParam(), graph, weights);
    FAIL() << "no error";
  } catch (const InvalidArgument& error) {
    const std::string_view message = error.what();
    EXPECT_EQ(message.substr(message.find(": ") + 2), GetParam().expected);
  }
}

const Case kErrors[] = {
    {"weight %t f32 [4, 9]\ninput %i i64 [3]\n%y = get_rows(%t, %i)",
     "[get_rows y] expected ids of dtype i32, got i64 (table: t f32 [4, 9], ids: i i64 [3])"},
    {"weight %t f32 [4, 9, 2]\ninput %i i32 [3]\n%y = get_rows(%t, %i)",
     "[get_rows y] expected c = 2 on axis 1 of ids, got 1 (table: t f32 [4, 9, 2], ids: i i32 [3])"},
    {"weight %t f32 [4, 9]\ninput %i i32 [3]\n%y = get_rows(%t, %i) {ranges=[9223372036854775807:9]}",
     "[get_rows y] expected index ranges below 2^63, got 9223372036854775807:9 (table: t f32 [4, 9], ids: i i32 [3])"},
    {"weight %t f32 [4, 9]\ninput %i i32 [3]\n%y = get_rows(%t, %i) {ranges=[0:4,6:4]}",
     "[get_rows y] expected index ranges with a total length of 9, got 8 (table: t f32 [4, 9], ids: i i32 [3])"},
    {"weight %t f32 [4, 9]\ninput %i i32 [3]\n%y = get_rows(%t, %i) {ranges=[-1:9]}",
     "[get_rows y] expected no negative indices, got -1:9 (table: t f32 [4, 9], ids: i i32 [3])"},
    {"cache %c f32 [8, 4]\ninput %i i32 [3]\n%r = slice(%c) {axis=1, length=3}\n%y = set_rows(%c, %r, %i)",
     "[set_rows y] expected no view of the cache as rows, because this op changes the cache: copy the "
     "view first (contiguous) (cache: c f32 [8, 4], rows: r f32 [8, 3], ids: i i32 [3])"},
    {"input %c f32 [8, 4]\ninput %r f32 [8, 3]\ninput %i i32 [3]\n%y = set_rows(%c, %r, %i)",
     "[set_rows y] expected a cache that is persistent or the result of another set_rows or set_slice, got none "
     "(cache: c f32 [8, 4], rows: r f32 [8, 3], ids: i i32 [3])"},
    {"weight %c f32 [8, 4]\ninput %r f32 [8, 3]\ninput %i i32 [3]\n%y = set_rows(%c, %r, %i)",
     "[set_rows y] expected a cache, got a weight, which graphs only read: add the tensor as Role::kCache "
     "(cache: c f32 [8, 4], rows: r f32 [8, 3], ids: i i32 [3])"},
    {"cache %c f32 [8, 4]\ninput %r f32 [8, 3]\ninput %i i32 [2]\n%y = set_rows(%c, %r, %i)",
     "[set_rows y] expected ids of shape [3], got [2] (cache: c f32 [8, 4], rows: r f32 [8, 3], ids: i i32 [2])"},
    {"cache %c f32 [8, 4, 3]\ninput %r f32 [8, 2, 3]\ninput %i i32 [2, 2]\n%y = set_rows(%c, %r, %i)",
     "[set_rows y] expected ids of shape [2, 3], got [2, 2] "
     "(cache: c f32 [8, 4, 3], rows: r f32 [8, 2, 3], ids: i i32 [2, 2])"},
    {"cache %c f32 [8, 4]\ninput %x f32 [7, 2]\n%y = set_slice(%c, %x)",
     "[set_slice y] expected x of shape [8, 2], got [7, 2] (cache: c f32 [8, 4], x: x f32 [7, 2])"},
    {"cache %c f32 [8, 4]\ninput %x f32 [8, 2]\n%y = set_slice(%c, %x) {axis=4}",
     "[set_slice y] expected an axis in [0, 3], got 4 (cache: c f32 [8, 4], x: x f32 [8, 2])"},
    {"cache %c f32 [8, 4]\ninput %x f32 [8, 2]\n%y = set_slice(%c, %x) {begin=3}",
     "[set_slice y] expected an end in [0, 4], got 3 + 2 (cache: c f32 [8, 4], x: x f32 [8, 2])"},
    {"cache %c f32 [8, 4]\ninput %x f32 [8, 2]\n%y = set_slice(%c, %x) {begin=9223372036854775806, ranges=[0:4]}",
     "[set_slice y] expected an end below 2^63, got 9223372036854775806 + 2 (cache: c f32 [8, 4], x: x f32 [8, 2])"},
    {"cache %c q8_0 [96, 4]\ninput %x f32 [32, 4]\n%y = set_slice(%c, %x) {axis=0, begin=16}",
     "[set_slice y] expected begin >= 0 and whole blocks of 32 elements, got begin 16 and length 32 "
     "(cache: c q8_0 [96, 4], x: x f32 [32, 4])"},
    {"cache %c f32 [8, 4]\n%x = slice(%c) {axis=1, length=2}\n%y = set_slice(%c, %x)",
     "[set_slice y] expected no view of the cache as rows, because this op changes the cache: copy the view first "
     "(contiguous) (cache: c f32 [8, 4], x: x f32 [8, 2])"},
    {"input %x f32 [8, 4]\ninput %z f32 [8, 2]\n%y = mul_mat(%x, %z) {dtype=q8_0}",
     "[mul_mat y] expected f32, f16 or bf16 as dtype of the result, got q8_0 (a: x f32 [8, 4], b: z f32 [8, 2])"},
    {"input %x f32 [8, 4]\n%y = rms_norm(%x) {dtype=i32}",
     "[rms_norm y] expected f32, f16 or bf16 as dtype of the result, got i32 (x: x f32 [8, 4])"},
    {"weight %w q4_0 [64, 2]\ninput %x f32 [32, 3]\n%y = mul_mat(%w, %x)",
     "[mul_mat y] expected k = 64, got 32 (a: w q4_0 [64, 2], b: x f32 [32, 3])"},
    {"weight %w f32 [8, 2, 3]\ninput %x f32 [8, 3, 4]\n%y = mul_mat(%w, %x)",
     "[mul_mat y] expected axis 2 of b to be a multiple of 3, got 4 (a: w f32 [8, 2, 3], b: x f32 [8, 3, 4])"},
    {"weight %w i32 [8, 2]\ninput %x f32 [8, 3]\n%y = mul_mat(%w, %x)",
     "[mul_mat y] expected a of a float or quantised dtype, got i32 (a: w i32 [8, 2], b: x f32 [8, 3])"},
    {"weight %w f32 [32, 2]\ninput %x q8_0 [32, 3]\n%y = mul_mat(%w, %x)",
     "[mul_mat y] expected b of a float dtype, got q8_0 (a: w f32 [32, 2], b: x q8_0 [32, 3])"},
    {"weight %e f32 [4, 6, 8]\ninput %x f32 [4, 3, 5]\ninput %i i32 [2, 5]\n%y = mul_mat_id(%e, %x, %i)",
     "[mul_mat_id y] expected axis 1 of x to be 1 or 2, got 3 "
     "(experts: e f32 [4, 6, 8], x: x f32 [4, 3, 5], ids: i i32 [2, 5])"},
    {"input %a f32 [4, 3]\ninput %b f32 [2, 3]\n%y = add(%a, %b)",
     "[add y] expected equal lengths or a length of 1 on axis 0, got 4 and 2 (a: a f32 [4, 3], b: b f32 [2, 3])"},
    {"input %a i32 [4]\ninput %b i32 [4]\n%y = div(%a, %b)",
     "[div y] expected a of a float dtype, got i32 (a: a i32 [4], b: b i32 [4])"},
    {"input %x i32 [4]\n%y = scale(%x)", "[scale y] expected x of a float dtype, got i32 (x: x i32 [4])"},
    {"input %x i32 [4]\n%y = unary(%x)", "[unary y] expected x of a float dtype, got i32 (x: x i32 [4])"},
    {"input %x f32 [4]\n%y = clamp(%x) {min=2, max=1}", "[clamp y] expected min <= max, got 2 and 1 (x: x f32 [4])"},
    {"input %g f32 [5]\n%y = glu(%g)",
     "[glu y] expected an even length of axis 0 of the fused gate/up tensor, got 5 (gate: g f32 [5])"},
    {"input %g f32 [4]\ninput %u f16 [4]\n%y = glu(%g, %u)",
     "[glu y] expected up of dtype f32, got f16 (gate: g f32 [4], up: u f16 [4])"},
    {"input %x f32 [4]\n%y = rms_norm(%x) {eps=-1}", "[rms_norm y] expected eps >= 0, got -1 (x: x f32 [4])"},
    {"input %x f32 [9, 5, 4]\ninput %m f32 [9, 5, 2]\n%y = soft_max(%x, %m)",
     "[soft_max y] expected mask of shape [9, 5, 4], got [9, 5, 2] (x: x f32 [9, 5, 4], mask: m f32 [9, 5, 2])"},
    {"input %x f32 [8, 4, 5]\ninput %p i32 [4]\n%y = rope(%x, %p) {dims=8}",
     "[rope y] expected positions of shape [5], got [4] (x: x f32 [8, 4, 5], positions: p i32 [4])"},
    {"input %x f32 [8, 4, 5]\ninput %p i32 [5]\n%y = rope(%x, %p) {dims=10}",
     "[rope y] expected even dims in [0, 8], got 10 (x: x f32 [8, 4, 5], positions: p i32 [5])"},
    {"input %x f32 [8, 4, 5]\ninput %p i32 [5]\n%y = rope(%x, %p) {dims=6, offset=3}",
     "[rope y] expected an offset in [0, 2], got 3 (x: x f32 [8, 4, 5], positions: p i32 [5])"},
    {"input %x i32 [8]\n%y = argmax(%x)", "[argmax y] expected x of a float dtype, got i32 (x: x i32 [8])"},
    {"input %x f32 [8]\n%y = top_k(%x) {k=9}", "[top_k y] expected k in [0, 8], got 9 (x: x f32 [8])"},
    {"input %q f32 [16, 5, 8]\ncache %k f16 [16, 20, 3]\ncache %v f16 [16, 20, 3]\n%y = attention(%q, %k, %v)",
     "[attention y] expected a head count that is a multiple of the 3 kv heads, got 8 "
     "(q: q f32 [16, 5, 8], k: k f16 [16, 20, 3], v: v f16 [16, 20, 3])"},
    {"input %q f32 [16, 5, 8]\ncache %k f16 [16, 20, 2]\ncache %v f16 [16, 21, 2]\n%y = attention(%q, %k, %v)",
     "[attention y] expected v of shape [16, 20, 2], got [16, 21, 2] "
     "(q: q f32 [16, 5, 8], k: k f16 [16, 20, 2], v: v f16 [16, 21, 2])"},
    {"input %q f32 [16, 5, 8]\ncache %k f16 [16, 20, 2]\ncache %v f16 [16, 20, 2]\n%y = attention(%q, %k, %v) "
     "{causal=true}",
     "[attention y] expected positions for a causal or windowed attention, got none "
     "(q: q f32 [16, 5, 8], k: k f16 [16, 20, 2], v: v f16 [16, 20, 2])"},
    {"input %q f32 [16, 5, 8]\ncache %k i32 [16, 20, 2]\ncache %v f16 [16, 20, 2]\n%y = attention(%q, %k, %v)",
     "[attention y] expected k of dtype f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, iq4_nl, got i32 "
     "(q: q f32 [16, 5, 8], k: k i32 [16, 20, 2], v: v f16 [16, 20, 2])"},
    {"input %q f32 [16, 5, 8, 2]\ncache %k f16 [16, 20, 2, 3]\ncache %v f16 [16, 20, 2, 3]\n"
     "%y = attention(%q, %k, %v)",
     "[attention y] expected q with 1 batch or the 3 batches of k, got 2 "
     "(q: q f32 [16, 5, 8, 2], k: k f16 [16, 20, 2, 3], v: v f16 [16, 20, 2, 3])"},
    {"input %q f32 [16, 5, 8]\ncache %k f16 [16, 20, 2]\n%y = attention(%q, %k, %k) {parts=-1}",
     "[attention y] expected parts >= 0, got -1 (q: q f32 [16, 5, 8], k: k f16 [16, 20, 2], v: k f16 [16, 20, 2])"},
    {"input %x f32 [13, 8, 5, 3]\ninput %l f32 [2, 8, 5]\n%y = merge_attention(%x, %l)",
     "[merge_attention y] expected lse values for at least 3 parts, got 2 parts "
     "(parts: x f32 [13, 8, 5, 3], lse: l f32 [2, 8, 5])"},
    {"input %x f32 [13, 8, 5, 3]\ninput %l f32 [3, 8, 4]\n%y = merge_attention(%x, %l)",
     "[merge_attention y] expected lse of shape [3, 8, 5], got [3, 8, 4] "
     "(parts: x f32 [13, 8, 5, 3], lse: l f32 [3, 8, 4])"},
    {"weight %w f32 [3, 3, 4, 7]\ninput %x f32 [10, 9, 5]\n%y = conv_2d(%w, %x)",
     "[conv_2d y] expected x with 4 * 1 channels, got 5 (w: w f32 [3, 3, 4, 7], x: x f32 [10, 9, 5])"},
    {"weight %w f32 [3, 3, 4, 7]\ninput %x f32 [10, 9, 8]\n%y = conv_2d(%w, %x) {groups=2}",
     "[conv_2d y] expected a number of output channels that is a multiple of 2 groups, got 7 "
     "(w: w f32 [3, 3, 4, 7], x: x f32 [10, 9, 8])"},
    {"weight %w f32 [3, 3, 4, 7]\ninput %x f32 [10, 9, 4]\n%y = conv_2d(%w, %x) {groups=0}",
     "[conv_2d y] expected at least 1 group, got 0 (w: w f32 [3, 3, 4, 7], x: x f32 [10, 9, 4])"},
    {"weight %w f32 [3, 3, 4, 7]\ninput %x f32 [10, 9, 4]\n%y = conv_2d(%w, %x) {stride=[1,0]}",
     "[conv_2d y] expected strides in [1, 268435456], got 1, 0 (w: w f32 [3, 3, 4, 7], x: x f32 [10, 9, 4])"},
    {"weight %w f32 [3, 3, 4, 7]\ninput %x f32 [10, 9, 4]\n%y = conv_2d(%w, %x) {pads=[0,-1,0,0]}",
     "[conv_2d y] expected pads in [0, 268435456], got 0, -1, 0, 0 (w: w f32 [3, 3, 4, 7], x: x f32 [10, 9, 4])"},
    {"weight %w f32 [3, 3, 4, 7]\ninput %x f32 [10, 9, 4]\n%y = conv_2d(%w, %x) {pads=[0,0,1,0], dilation=[1,5]}",
     "[conv_2d y] expected a window of at most 10 elements on axis 1, got 11 "
     "(w: w f32 [3, 3, 4, 7], x: x f32 [10, 9, 4])"},
    {"weight %w q8_0 [32, 3, 4, 7]\ninput %x f32 [40, 9, 4]\n%y = conv_2d(%w, %x)",
     "[conv_2d y] expected w of a float dtype, got q8_0 (w: w q8_0 [32, 3, 4, 7], x: x f32 [40, 9, 4])"},
    {"weight %w f32 [3, 3, 4, 7]\ninput %x f16 [10, 9, 4]\n%y = conv_2d(%w, %x)",
     "[conv_2d y] expected x of dtype f32, got f16 (w: w f32 [3, 3, 4, 7], x: x f16 [10, 9, 4])"},
    {"weight %w f32 [0, 3, 4, 7]\ninput %x f32 [10, 9, 4]\n%y = conv_2d(%w, %x)",
     "[conv_2d y] expected a kernel of at least 1 x 1, got 0 x 3 (w: w f32 [0, 3, 4, 7], x: x f32 [10, 9, 4])"},
    {"weight %w f32 [3, 3, 4, 7]\ninput %x f32 [10, 9, 4]\n%y = conv_transpose_2d(%w, %x)",
     "[conv_transpose_2d y] expected x with 7 channels, got 4 (w: w f32 [3, 3, 4, 7], x: x f32 [10, 9, 4])"},
    {"weight %w f32 [3, 3, 4, 7]\ninput %x f32 [10, 9, 7]\n%y = conv_transpose_2d(%w, %x) {groups=2}",
     "[conv_transpose_2d y] expected a number of input channels that is a multiple of 2 groups, got 7 "
     "(w: w f32 [3, 3, 4, 7], x: x f32 [10, 9, 7])"},
    {"weight %w f32 [3, 3, 4, 7]\ninput %x f32 [10, 9, 7]\n"
     "%y = conv_transpose_2d(%w, %x) {stride=[2,1], output_pad=[2,0]}",
     "[conv_transpose_2d y] expected output_pad less than stride or dilation on axis 0, got 2 "
     "(w: w f32 [3, 3, 4, 7], x: x f32 [10, 9, 7])"},
    {"weight %w f32 [3, 3, 4, 7]\ninput %x f32 [2, 1, 7]\n%y = conv_transpose_2d(%w, %x) {pads=[0,0,2,2]}",
     "[conv_transpose_2d y] expected pads of at most 3 on axis 1, got 4 "
     "(w: w f32 [3, 3, 4, 7], x: x f32 [2, 1, 7])"},
    {"weight %w f32 [3, 3, 4, 7]\ninput %x f32 [0, 9, 7]\n%y = conv_transpose_2d(%w, %x)",
     "[conv_transpose_2d y] expected at least 1 element on axis 0, got 0 "
     "(w: w f32 [3, 3, 4, 7], x: x f32 [0, 9, 7])"},
    {"input %x f32 [8, 5]\nweight %w f32 [4, 8]\ninput %s f32 [8, 4]\ninput %p i32 [5]\n"
     "%y = causal_conv(%x, %w, %s, %p)",
     "[causal_conv y] expected state of shape [8, 3], got [8, 4] "
     "(x: x f32 [8, 5], weight: w f32 [4, 8], state: s f32 [8, 4], positions: p i32 [5])"},
    {"input %x f32 [8, 5]\nweight %w f32 [0, 8]\ninput %s f32 [8, 0]\ninput %p i32 [5]\n"
     "%y = causal_conv(%x, %w, %s, %p)",
     "[causal_conv y] expected at least one weight per channel, got 0 "
     "(x: x f32 [8, 5], weight: w f32 [0, 8], state: s f32 [8, 0], positions: p i32 [5])"},
    {"input %x f32 [8, 5]\nweight %w f32 [4, 8]\ninput %s f32 [8, 20]\ninput %p i32 [5]\ninput %q i32 [5]\n"
     "input %l i32 [2]\n%y = causal_conv(%x, %w, %s, %p, %q, %l)",
     "[causal_conv y] expected state of shape [8, 21], got [8, 20] "
     "(x: x f32 [8, 5], weight: w f32 [4, 8], state: s f32 [8, 20], positions: p i32 [5], sequences: q i32 [5], "
     "slots: l i32 [2])"},
    {"input %x f32 [8, 5]\nweight %w f32 [4, 8]\ninput %s f32 [8, 3]\ninput %p i32 [5]\ninput %q i32 [5]\n"
     "%y = causal_conv(%x, %w, %s, %p, %q)",
     "[causal_conv y] expected both sequences and slots, or neither "
     "(x: x f32 [8, 5], weight: w f32 [4, 8], state: s f32 [8, 3], positions: p i32 [5], sequences: q i32 [5])"},
    {"input %q f32 [16, 5, 8]\ncache %k f16 [16, 90, 2]\ninput %p i32 [5]\ninput %t i32 [2, 3]\ninput %s i32 [5]\n"
     "%y = attention(%q, %k, %k, %p, _, _, %t, %s) {page=32}",
     "[attention y] expected whole pages of 32 rows, got 90 rows "
     "(q: q f32 [16, 5, 8], k: k f16 [16, 90, 2], v: k f16 [16, 90, 2], positions: p i32 [5], table: t i32 [2, 3], "
     "sequences: s i32 [5])"},
    {"input %q f32 [16, 5, 8]\ncache %k f16 [16, 96, 2]\ninput %p i32 [5]\n"
     "%y = attention(%q, %k, %k, %p) {page=32}",
     "[attention y] expected a table and sequences if page > 0, and neither otherwise "
     "(q: q f32 [16, 5, 8], k: k f16 [16, 96, 2], v: k f16 [16, 96, 2], positions: p i32 [5])"},
    {"input %x f16 [8, 5]\nweight %w f32 [4, 8]\ninput %s f32 [8, 3]\ninput %p i32 [5]\n"
     "%y = causal_conv(%x, %w, %s, %p)",
     "[causal_conv y] expected x of dtype f32, got f16 "
     "(x: x f16 [8, 5], weight: w f32 [4, 8], state: s f32 [8, 3], positions: p i32 [5])"},
    {"input %q f32 [8, 4, 5]\ninput %k f32 [8, 4, 5]\ninput %v f32 [8, 6, 5]\ninput %a f32 [6, 5]\n"
     "input %b f32 [6, 5]\ninput %s f32 [8, 8, 6]\ninput %p i32 [5]\n"
     "%y = gated_delta(%q, %k, %v, %a, %b, %s, %p)",
     "[gated_delta y] expected a number of v heads that is a multiple of the 4 q heads, got 6 "
     "(q: q f32 [8, 4, 5], k: k f32 [8, 4, 5], v: v f32 [8, 6, 5], decay: a f32 [6, 5], beta: b f32 [6, 5], "
     "state: s f32 [8, 8, 6], positions: p i32 [5])"},
    {"input %q f32 [8, 2, 5]\ninput %k f32 [8, 2, 5]\ninput %v f32 [8, 6, 5]\ninput %a f32 [6, 5]\n"
     "input %b f32 [2, 5]\ninput %s f32 [8, 8, 6]\ninput %p i32 [5]\n"
     "%y = gated_delta(%q, %k, %v, %a, %b, %s, %p)",
     "[gated_delta y] expected beta of shape [6, 5], got [2, 5] "
     "(q: q f32 [8, 2, 5], k: k f32 [8, 2, 5], v: v f32 [8, 6, 5], decay: a f32 [6, 5], beta: b f32 [2, 5], "
     "state: s f32 [8, 8, 6], positions: p i32 [5])"},
    {"input %a i32 [4]\ninput %b f32 [4]\n%y = compare(%a, %b)",
     "[compare y] expected b of dtype i32, got f32 (a: a i32 [4], b: b f32 [4])"},
    {"input %c f32 [4]\ninput %a f32 [4]\ninput %b f32 [4]\n%y = where(%c, %a, %b)",
     "[where y] expected condition of dtype i32, got f32 (condition: c f32 [4], a: a f32 [4], b: b f32 [4])"},
    {"input %c i32 [4]\ninput %a f32 [4]\ninput %b f16 [4]\n%y = where(%c, %a, %b)",
     "[where y] expected b of dtype f32, got f16 (condition: c i32 [4], a: a f32 [4], b: b f16 [4])"},
    {"input %c i32 [4]\ninput %a f32 [1]\ninput %b f32 [3]\n%y = where(%c, %a, %b)",
     "[where y] expected length 3 or 1 on axis 0, got 4 (condition: c i32 [4], a: a f32 [1], b: b f32 [3])"},
    {"input %x i64 [4]\n%y = cumsum(%x)", "[cumsum y] expected x of a float dtype, got i64 (x: x i64 [4])"},
    {"input %x i32 [4, 4]\n%y = pool_2d(%x)", "[pool_2d y] expected x of a float dtype, got i32 (x: x i32 [4, 4])"},
    {"input %x f32 [4, 4]\n%y = pool_2d(%x) {kernel=[2,0]}",
     "[pool_2d y] expected a kernel in [1, 268435456], got 2, 0 (x: x f32 [4, 4])"},
    {"input %x f32 [4, 4]\n%y = pool_2d(%x) {stride=[-1,1]}",
     "[pool_2d y] expected strides in [1, 268435456], got -1, 1 (x: x f32 [4, 4])"},
    {"input %x f32 [4, 4]\n%y = pool_2d(%x) {kernel=[2,2], pads=[0,2,0,0]}",
     "[pool_2d y] expected pads shorter than the kernel on axis 0, got 0 and 2 (x: x f32 [4, 4])"},
    {"input %x f32 [4, 4]\n%y = pool_2d(%x) {kernel=[2,6], pads=[0,0,1,0]}",
     "[pool_2d y] expected a window of at most 5 elements on axis 1, got 6 (x: x f32 [4, 4])"},
    {"input %x f32 [0, 4]\n%y = pool_2d(%x) {kernel=[2,1], pads=[1,1,0,0]}",
     "[pool_2d y] expected at least 1 element on axis 0, got none (x: x f32 [0, 4])"},
    {"input %x f32 [4, 4]\n%y = pad(%x) {after=[0,-1,0,0]}",
     "[pad y] expected pads in [0, 268435456], got 0, -1, 0, 0 (x: x f32 [4, 4])"},
    {"input %x f32 [4, 4]\n%y = pad(%x) {before=[4,0,0,0], mode=reflect}",
     "[pad y] expected pads shorter than the 4 elements of axis 0, got 4 (x: x f32 [4, 4])"},
    {"input %x f32 [4, 0]\n%y = pad(%x) {before=[0,1,0,0], mode=edge}",
     "[pad y] expected pads shorter than the 0 elements of axis 1, got 1 (x: x f32 [4, 0])"},
    {"input %x f32 [4, 4]\n%y = upsample(%x) {size=[-2,4]}",
     "[upsample y] expected a size in [0, 268435456], got -2, 4 (x: x f32 [4, 4])"},
    {"input %x f32 [4, 0]\n%y = upsample(%x) {size=[4,4]}",
     "[upsample y] expected at least 1 element on axis 1, got none (x: x f32 [4, 0])"},
    {"input %x f32 [40]\n%y = cast(%x) {dtype=q4_0}",
     "[cast y] expected a result that fits in memory, with lengths >= 0 and whole blocks of 32 q4_0 elements, got "
     "[40] (x: x f32 [40])"},
    {"input %a f32 [4, 2]\ninput %b f32 [3, 2]\n%y = concat(%a, %b) {axis=1}",
     "[concat y] expected x1 of shape [4, 2], got [3, 2] (x0: a f32 [4, 2], x1: b f32 [3, 2])"},
    {"input %a f32 [4]\n%y = concat(%a) {axis=4}", "[concat y] expected an axis in [0, 3], got 4 (x: a f32 [4])"},
    {"input %x f32 [4]\n%y = repeat(%x) {shape=[6,1,1,1]}",
     "[repeat y] expected a multiple of 4 as length of axis 0, got 6 (x: x f32 [4])"},
    {"%y = fill() {dtype=q8_0, shape=[32,1,1,1]}", "[fill y] expected a dtype that is not quantised, got q8_0"},
    {"%y = fill() {shape=[-1,1,1,1]}",
     "[fill y] expected a result that fits in memory, with lengths >= 0 and whole blocks of 1 f32 elements, got [-1]"},
    {"input %x f32 [6, 4]\n%t = permute(%x) {axes=[1,0,2,3]}\n%y = reshape(%t) {shape=[24,1,1,1]}",
     "[reshape y] expected a contiguous tensor, got a view with gaps or permuted axes: use contiguous() first "
     "(x: t f32 [4, 6])"},
    {"input %x f32 [6, 4]\n%y = reshape(%x) {shape=[5,5,1,1]}",
     "[reshape y] expected 24 elements, got 25 in shape [5, 5] (x: x f32 [6, 4])"},
    {"input %x f32 [6, 4]\n%y = reshape(%x) {shape=[-1,-1,1,1]}",
     "[reshape y] expected lengths >= 0 and at most one -1, got -1, -1, 1, 1 (x: x f32 [6, 4])"},
    {"input %x f32 [6, 0]\n%y = reshape(%x) {shape=[-1,0,1,1]}",
     "[reshape y] expected no axis of length 0 if another axis is inferred (-1), got -1, 0, 1, 1 (x: x f32 [6, 0])"},
    {"input %x f32 [6, 4]\n%y = reshape(%x) {shape=[5,-1,1,1]}",
     "[reshape y] expected a multiple of 5 elements for the shape 5, -1, 1, 1, got 24 (x: x f32 [6, 4])"},
    {"input %x f32 [6, 4]\n%y = reshape(%x) {shape=[9223372036854775807,-1,9223372036854775807,1]}",
     "[reshape y] expected lengths >= 0 and at most one -1, got 9223372036854775807, -1, 9223372036854775807, 1 "
     "(x: x f32 [6, 4])"},
    {"input %x f32 [6, 4]\n%y = slice(%x) {axis=1, begin=3, length=2}",
     "[slice y] expected begin and length within the 4 indices of axis 1, got 3 and 2 (x: x f32 [6, 4])"},
    {"input %x f32 [6, 4]\n%y = slice(%x) {axis=1, begin=1, length=3, step=2}",
     "[slice y] expected begin and length within the 4 indices of axis 1, got 1 and 3 (x: x f32 [6, 4])"},
    {"input %x f32 [6, 4]\n%y = slice(%x) {axis=1, begin=-9223372036854775808, length=1}",
     "[slice y] expected begin and length within the 4 indices of axis 1, got -9223372036854775808 and 1 "
     "(x: x f32 [6, 4])"},
    {"input %x f32 [6, 4]\n%y = slice(%x) {axis=1, step=0}",
     "[slice y] expected a step >= 1, and step 1 on axis 0 of a quantised tensor, got 0 (x: x f32 [6, 4])"},
    {"weight %x q8_0 [128]\n%y = slice(%x) {length=64, step=2}",
     "[slice y] expected a step >= 1, and step 1 on axis 0 of a quantised tensor, got 2 (x: x q8_0 [128])"},
    {"weight %x q8_0 [64]\n%y = slice(%x) {begin=16, length=32}",
     "[slice y] expected begin and length in whole blocks of 32 elements, got 16 and 32 (x: x q8_0 [64])"},
    {"weight %x q8_0 [64, 2]\n%y = permute(%x) {axes=[1,0,2,3]}",
     "[permute y] expected axis 0 of a quantised tensor to stay in place, got axes 1, 0, 2, 3 (x: x q8_0 [64, 2])"},
    {"input %x f32 [6, 4]\n%y = permute(%x) {axes=[0,0,2,3]}",
     "[permute y] expected each of the axes 0, 1, 2, 3 once, got 0, 0, 2, 3 (x: x f32 [6, 4])"},
    {"input %x i64 [6]\n%y = all_reduce(%x)",
     "[all_reduce y] expected x of dtype f32, f16, bf16, i32, got i64 (x: x i64 [6])"},
    {"input %x f32 [6]\n%y = all_reduce(%x) {counts=[6]}",
     "[all_reduce y] expected no counts, got a list of length 1 (x: x f32 [6])"},
    {"input %x f32 [6]\n%y = all_gather(%x) {rank=1, counts=[6,5]}",
     "[all_gather y] expected 5 elements, got 6 (x: x f32 [6])"},
    {"input %x f32 [6]\n%y = all_gather(%x)", "[all_gather y] expected a rank in [0, 0), got 0 (x: x f32 [6])"},
    {"input %x f32 [6]\n%y = reduce_scatter(%x) {counts=[6,-1]}",
     "[reduce_scatter y] expected counts >= 0 that fit into memory, got -1 (x: x f32 [6])"},
    {"input %x f32 [6]\n%y = all_to_all(%x) {counts=[1,2,3]}",
     "[all_to_all y] expected n * n counts for n ranks, got 3 (x: x f32 [6])"},
    {"input %x f32 [6, 4]\n%t = permute(%x) {axes=[1,0,2,3]}\n%y = all_reduce(%t)",
     "[all_reduce y] expected a contiguous operand, got a view with gaps or permuted axes: use contiguous() first "
     "(x: t f32 [4, 6])"},
};
INSTANTIATE_TEST_SUITE_P(Ops, Refuses, testing::ValuesIn(kErrors));

}  // namespace
}  // namespace shoal
