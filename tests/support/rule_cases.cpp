#include "tests/support/rule_cases.h"

#include <fmt/format.h>

#include <initializer_list>

#include "graph/text.h"

namespace shoal::test {
namespace {

// One graph per case. The first lines declare leaves, and the last line is the node.
constexpr std::string_view kCases[] = {
    // Cases of get_rows: one batch, several batches, ranges of rows, an integer table and a quantised table.
    "input %t f32 [4, 7]\ninput %i i32 [5]\n%y = get_rows(%t, %i)",
    "input %t f16 [3, 5, 2, 3]\ninput %i i32 [4, 2, 3]\n%y = get_rows(%t, %i)",
    "input %t f32 [3, 6]\ninput %i i32 [9]\n%y = get_rows(%t, %i) {ranges=[2:3,8:1,10:2]}",
    "input %t i32 [3, 6]\ninput %i i32 [9]\n%y = get_rows(%t, %i)",
    "input %t q8_0 [96, 5]\ninput %i i32 [4]\n%y = get_rows(%t, %i)",

    // Cases of set_rows: f32, f16 and quantised caches, and i32 and i64 ids. In the last case, the cache contains two
    // ranges of rows.
    "cache %c f32 [4, 7, 3, 2]\ninput %x f32 [4, 3, 3, 2]\ninput %i i32 [3]\n%y = set_rows(%c, %x, %i)",
    "cache %c f16 [3, 5, 2]\ninput %x f32 [3, 4, 2]\ninput %i i64 [4]\n%y = set_rows(%c, %x, %i)",
    "cache %c q8_0 [96, 5, 2]\ninput %x f32 [96, 3, 2]\ninput %i i32 [3]\n%y = set_rows(%c, %x, %i)",
    "cache %c f32 [3, 6, 2]\ninput %x f32 [3, 4, 2]\ninput %i i32 [4]\n%y = set_rows(%c, %x, %i) {ranges=[1:4,7:2]}",
    "cache %c f32 [3, 5, 3, 2]\ninput %x f32 [3, 4, 3, 2]\ninput %i i32 [4, 3, 2]\n%y = set_rows(%c, %x, %i)",
    "cache %c f16 [3, 5, 3, 2]\ninput %x f32 [3, 4, 3, 2]\ninput %i i64 [4, 1, 2]\n%y = set_rows(%c, %x, %i)",
    "cache %c f32 [3, 5, 3]\ninput %x f32 [3, 4, 3]\ninput %i i32 [4, 3]\n%y = set_rows(%c, %x, %i)",

    // Cases of set_slice on every axis. The caches of the last cases contain ranges or quantised rows.
    "cache %c f32 [7, 3, 2, 3]\ninput %x f32 [4, 3, 2, 3]\n%y = set_slice(%c, %x) {axis=0, begin=2}",
    "cache %c f16 [3, 7, 2, 3]\ninput %x f32 [3, 4, 2, 3]\n%y = set_slice(%c, %x) {begin=1}",
    "cache %c f32 [3, 2, 7, 3]\ninput %x f32 [3, 2, 4, 3]\n%y = set_slice(%c, %x) {axis=2}",
    "cache %c f32 [3, 2, 3, 7]\ninput %x f32 [3, 2, 3, 5]\n%y = set_slice(%c, %x) {axis=3, begin=2}",
    "cache %c f32 [3, 6, 2]\ninput %x f32 [3, 5, 2]\n%y = set_slice(%c, %x) {begin=3, ranges=[1:4,7:2]}",
    "cache %c q8_0 [128, 3, 2]\ninput %x f32 [64, 3, 2]\n%y = set_slice(%c, %x) {axis=0, begin=32}",

    // Cases of mul_mat: one batch, several batches, one matrix for several batches, quantised matrices and empty axes.
    "input %a f32 [5, 7]\ninput %b f32 [5, 3]\n%y = mul_mat(%a, %b)",
    "input %a f32 [3, 5, 3, 2]\ninput %b f16 [3, 2, 3, 2]\n%y = mul_mat(%a, %b)",
    "input %a bf16 [3, 5, 3, 2]\ninput %b f32 [3, 2, 6, 6]\n%y = mul_mat(%a, %b)",
    "input %a f32 [3, 5]\ninput %b f32 [3, 2, 3, 2]\n%y = mul_mat(%a, %b)",
    "input %a q4_0 [96, 5]\ninput %b f32 [96, 3]\n%y = mul_mat(%a, %b)",
    "input %a q4_K [768, 3]\ninput %b f32 [768, 2]\n%y = mul_mat(%a, %b)",
    "input %a f32 [0, 5]\ninput %b f32 [0, 3]\n%y = mul_mat(%a, %b)",
    "input %a f32 [3, 5, 2]\ninput %b f32 [3, 3, 0]\n%y = mul_mat(%a, %b)",
    "input %a f32 [3, 5, 3, 2]\ninput %b f32 [3, 2, 6, 2]\n%y = mul_mat(%a, %b) {dtype=f16}",
    "input %a q4_0 [96, 5]\ninput %b f32 [96, 3]\n%y = mul_mat(%a, %b) {dtype=bf16}",

    // Cases of mul_mat_id: a separate row of x for each expert of a token, one row of x for all experts of a token,
    // ranges of experts, and quantised experts.
    "input %e f32 [3, 5, 4]\ninput %x f32 [3, 2, 6]\ninput %i i32 [2, 6]\n%y = mul_mat_id(%e, %x, %i)",
    "input %e f32 [3, 5, 4]\ninput %x f32 [3, 1, 6]\ninput %i i32 [2, 6]\n%y = mul_mat_id(%e, %x, %i)",
    "input %e f32 [3, 5, 4]\ninput %x f32 [3, 2, 6]\ninput %i i32 [2, 6]\n%y = mul_mat_id(%e, %x, %i) "
    "{ranges=[1:3,6:1]}",
    "input %e q8_0 [96, 3, 4]\ninput %x f32 [96, 2, 3]\ninput %i i32 [2, 3]\n%y = mul_mat_id(%e, %x, %i)",

    // Ops that compute each row separately.
    "input %x f32 [5, 3, 2, 4]\n%y = rms_norm(%x)",
    "input %x f32 [5, 3, 2, 4]\n%y = layer_norm(%x)",
    "input %x f32 [5, 3, 2, 4]\n%y = rms_norm(%x) {dtype=f16}",
    "input %x bf16 [5, 3, 2, 4]\n%y = layer_norm(%x) {dtype=bf16}",
    "input %x f32 [5, 3, 2, 4]\n%y = soft_max(%x, _, _) {scale=0.5}",
    "input %x f32 [5, 3, 2, 4]\ninput %m f32 [5, 3]\n%y = soft_max(%x, %m, _)",
    "input %x f32 [5, 3, 2, 4]\ninput %m f16 [5, 3, 2, 4]\ninput %s f32 [2]\n%y = soft_max(%x, %m, %s)",
    "input %x f32 [8, 3, 5, 2]\ninput %p i32 [5]\n%y = rope(%x, %p, _) {dims=8}",
    "input %x f32 [8, 3, 5, 2]\ninput %p i32 [5]\ninput %f f32 [3]\n%y = rope(%x, %p, %f) {dims=6, mode=halves}",
    "input %x f32 [8, 3, 5, 2]\ninput %p i32 [5]\n%y = rope(%x, %p, _) {dims=4, offset=3}",
    "input %x f32 [5, 3, 2, 4]\n%y = sum_rows(%x)",
    "input %x f32 [5, 3, 2, 4]\n%y = argmax(%x)",
    "input %x f32 [7, 3, 2, 4]\n%y = top_k(%x) {k=3}",

    // Images: windows and new elements on some axes or on no axis.
    "input %x f32 [5, 4, 3, 2]\n%y = pool_2d(%x) {kind=max, kernel=[3,2], stride=[2,1], pads=[1,1,0,1]}",
    "input %x f16 [6, 5, 3, 2]\n%y = pool_2d(%x) {kind=average, kernel=[2,3], stride=[2,2], pads=[0,0,1,1]}",
    "input %x f32 [5, 4, 3, 2]\n%y = pool_2d(%x) {kind=average, kernel=[3,1], pads=[1,1,0,0], count_pads=true}",
    "input %x f32 [4, 5, 3, 2]\n%y = pool_2d(%x) {kind=max, kernel=[1,5]}",
    "input %x f32 [5, 4, 3, 2]\n%y = pad(%x) {before=[1,2,0,0], after=[2,0,0,0]}",
    "input %x f16 [5, 4, 3, 2]\n%y = pad(%x) {before=[0,0,1,0], after=[0,0,0,2], value=0.5}",
    "input %x bf16 [5, 4, 3, 2]\n%y = pad(%x) {before=[2,0,0,0], after=[1,3,0,0], mode=reflect}",
    "input %x f32 [5, 4, 3, 2]\n%y = pad(%x) {after=[0,0,4,0], mode=edge}",
    "input %x f32 [5, 4, 3, 2]\n%y = pad(%x) {value=3}",
    "input %x f16 [5, 4, 3, 2]\n%y = upsample(%x) {size=[10,6], mode=nearest}",
    "input %x f32 [5, 4, 3, 2]\n%y = upsample(%x) {size=[7,8], mode=bilinear}",
    "input %x f32 [5, 4, 3, 2]\n%y = upsample(%x) {size=[3,9], mode=corners}",
    "input %x f32 [5, 3, 2, 4]\n%y = cumsum(%x)",
    "input %x i32 [5, 3, 2, 4]\n%y = cumsum(%x)",

    // Cases of attention with 1, 2, 3 or all query heads per KV head. Some cases have causal masking, a window, a mask
    // or sinks.
    "input %q f32 [4, 3, 3, 2]\ninput %k f32 [4, 5, 3, 2]\ninput %v f32 [6, 5, 3, 2]\n"
    "%y = attention(%q, %k, %v, _, _, _) {scale=0.5}",
    "input %q f32 [4, 3, 8, 2]\ninput %k f16 [4, 5, 4, 2]\ninput %v f16 [4, 5, 4, 2]\ninput %p i32 [3]\n"
    "%y = attention(%q, %k, %v, %p, _, _) {causal=true, softcap=2}",
    "input %q f32 [4, 3, 9, 2]\ninput %k f32 [4, 5, 3, 2]\ninput %v f32 [4, 5, 3, 2]\ninput %p i32 [3]\n"
    "input %m f32 [5, 3]\ninput %s f32 [9]\n%y = attention(%q, %k, %v, %p, %m, %s) {causal=true, window=3}",
    "input %q f32 [32, 3, 4]\ninput %k q8_0 [32, 5, 1]\ninput %v q8_0 [64, 5, 1]\ninput %m f16 [5, 3]\n"
    "%y = attention(%q, %k, %v, _, %m, _)",
    "input %q f32 [4, 3, 4, 2]\ninput %k f32 [4, 5, 2, 2]\ninput %v f32 [4, 5, 2, 2]\ninput %m f32 [5, 3, 4, 2]\n"
    "%y = attention(%q, %k, %v, _, %m, _)",
    "input %q f32 [4, 3, 4, 2]\ninput %k f32 [4, 5, 4, 2]\ninput %v f32 [4, 5, 4, 2]\ninput %m f16 [5, 3, 4]\n"
    "%y = attention(%q, %k, %v, _, %m, _)",
    "input %q f32 [4, 3, 4]\ninput %k f32 [4, 5, 2, 3]\ninput %v f32 [4, 5, 2, 3]\ninput %m f32 [5, 3, 1, 3]\n"
    "%y = attention(%q, %k, %v, _, %m, _) {parts=3}",

    // Cases of attention over several parts of a sequence. The parts share the queries, or each part has separate
    // queries. The same applies to the positions. The last cases merge the results of the parts.
    "input %q f32 [4, 3, 4]\ninput %k f32 [4, 5, 2, 3]\ninput %v f32 [6, 5, 2, 3]\ninput %p i32 [3, 3]\n"
    "%y = attention(%q, %k, %v, %p, _, _) {causal=true, parts=3}",
    "input %q f32 [4, 3, 2, 3]\ninput %k f32 [4, 5, 2, 3]\ninput %v f32 [6, 5, 2, 3]\ninput %p i32 [3]\n"
    "%y = attention(%q, %k, %v, %p, _, _) {causal=true}",
    "input %q f32 [4, 3, 4]\ninput %k f16 [4, 5, 1, 3]\ninput %v f16 [6, 5, 1, 3]\ninput %s f32 [4]\n"
    "%y = attention(%q, %k, %v, _, _, %s) {parts=7}",
    "input %x f32 [5, 4, 3, 6]\ninput %l f32 [6, 4, 3]\n%y = merge_attention(%x, %l)",
    "input %x f32 [2, 4, 3, 1]\ninput %l f32 [2, 4, 3]\n%y = merge_attention(%x, %l)",

    // Cases of attention to pages of several sequences. The pages are whole, or their rows are divided into parts.
    "input %q f32 [4, 5, 4, 2]\ninput %k f32 [4, 6, 2, 2]\ninput %v f32 [3, 6, 2, 2]\ninput %p i32 [5]\n"
    "input %s f32 [4]\ninput %w i32 [2, 3]\ninput %y i32 [5]\n"
    "%r = attention(%q, %k, %v, %p, _, %s, %w, %y) {causal=true, window=3, page=2}",
    "input %q f32 [4, 5, 3]\ninput %k f16 [4, 6, 3, 3]\ninput %v f16 [5, 6, 3, 3]\ninput %p i32 [5, 3]\n"
    "input %w i32 [3, 2]\ninput %y i32 [5]\n"
    "%r = attention(%q, %k, %v, %p, _, _, %w, %y) {causal=true, parts=3, page=1}",

    // Convolutions: one group, pixels that are independent, a depthwise convolution with 1 or 2 results per channel,
    // and groups that must be whole.
    "input %w f32 [3, 2, 5, 7]\ninput %x f32 [4, 5, 5, 3]\n%y = conv_2d(%w, %x) {stride=[2,1], pads=[1,1,0,1]}",
    "input %w f16 [1, 1, 5, 7]\ninput %x f32 [4, 5, 5, 3]\n%y = conv_2d(%w, %x)",
    "input %w f32 [3, 1, 1, 7]\ninput %x f32 [4, 3, 7, 2]\n%y = conv_2d(%w, %x) {dilation=[1,2], groups=7}",
    "input %w bf16 [2, 3, 1, 10]\ninput %x f32 [4, 3, 5, 2]\n%y = conv_2d(%w, %x) {pads=[0,0,1,1], groups=5}",
    "input %w f32 [2, 2, 3, 4]\ninput %x f32 [3, 3, 6, 3]\n%y = conv_2d(%w, %x) {groups=2}",
    "input %w f32 [3, 2, 7, 5]\ninput %x f32 [4, 3, 5, 3]\n"
    "%y = conv_transpose_2d(%w, %x) {stride=[2,1], pads=[1,0,0,1], output_pad=[1,0]}",
    "input %w bf16 [1, 1, 7, 5]\ninput %x f32 [4, 5, 5, 3]\n%y = conv_transpose_2d(%w, %x)",
    "input %w f32 [3, 1, 1, 7]\ninput %x f32 [4, 3, 7, 2]\n%y = conv_transpose_2d(%w, %x) {stride=[2,1], groups=7}",
    "input %w f32 [2, 2, 2, 5]\ninput %x f32 [3, 3, 5, 3]\n%y = conv_transpose_2d(%w, %x) {groups=5}",

    // Ops with a state. A key head serves 1, 2 or 3 heads. Heads with the same key head are adjacent or, if tiled,
    // interleaved. Batches contain one or several sequences.
    "input %x f32 [5, 4]\ninput %w f32 [3, 5]\ninput %s f32 [5, 2]\ninput %p i32 [4]\n"
    "%y = causal_conv(%x, %w, %s, %p)",
    "input %x f32 [5, 4]\ninput %w f32 [3, 5]\ninput %s f32 [5, 8]\ninput %p i32 [4]\ninput %t i32 [4]\n"
    "input %l i32 [3]\n%y = causal_conv(%x, %w, %s, %p, %t, %l)",
    "input %q f32 [3, 3, 4]\ninput %k f32 [3, 3, 4]\ninput %v f32 [3, 3, 4]\ninput %a f32 [3, 4]\n"
    "input %b f32 [3, 4]\ninput %s f32 [3, 3, 3]\ninput %p i32 [4]\n"
    "%y = gated_delta(%q, %k, %v, %a, %b, %s, %p)",
    "input %q f32 [3, 4, 3]\ninput %k f32 [3, 4, 3]\ninput %v f32 [3, 8, 3]\ninput %a f32 [8, 3]\n"
    "input %b f32 [8, 3]\ninput %s f32 [3, 3, 8]\ninput %p i32 [3]\n"
    "%y = gated_delta(%q, %k, %v, %a, %b, %s, %p)",
    "input %q f32 [3, 3, 2]\ninput %k f32 [3, 3, 2]\ninput %v f32 [3, 9, 2]\ninput %a f32 [9, 2]\n"
    "input %b f32 [9, 2]\ninput %s f32 [3, 3, 9]\ninput %p i32 [2]\n"
    "%y = gated_delta(%q, %k, %v, %a, %b, %s, %p) {tiled=true}",
    "input %q f32 [3, 4, 5]\ninput %k f32 [3, 4, 5]\ninput %v f32 [3, 8, 5]\ninput %a f32 [8, 5]\n"
    "input %b f32 [8, 5]\ninput %s f32 [3, 12, 8]\ninput %p i32 [5]\ninput %t i32 [5]\ninput %l i32 [2]\n"
    "%y = gated_delta(%q, %k, %v, %a, %b, %s, %p, %t, %l)",

    // Ops that move data.
    "input %x f32 [5, 3, 2, 4]\n%y = cast(%x) {dtype=f16}",
    "input %x f16 [5, 3, 2, 4]\n%y = cast(%x) {dtype=f16}",
    "input %x bf16 [5, 3, 2, 4]\n%y = cast(%x)",
    "input %x i32 [5, 3, 2, 4]\n%y = cast(%x)",
    "input %x f32 [96, 3, 2]\n%y = cast(%x) {dtype=q8_0}",
    "input %x q4_1 [96, 3, 2]\n%y = cast(%x)",
    "input %x f32 [5, 3, 2, 4]\n%y = contiguous(%x)",
    "input %x q8_0 [96, 3, 2, 2]\n%y = contiguous(%x)",
    "input %x f32 [5, 3, 2, 4]\n%y = repeat(%x) {shape=[10,9,2,4]}",
    "input %x f32 [3, 1, 2, 4]\n%y = repeat(%x) {shape=[3,5,4,8]}",
    "input %x f32 [3, 2]\n%y = repeat(%x) {shape=[3,0,1,1]}",
};

/// Adds cases of every element-wise op with every form of broadcasting.
void add_element_wise(std::vector<std::string>& cases) {
  for (const char* op : {"add", "sub", "mul", "div"}) {
    for (const char* b : {"f32 [5, 3, 2, 4]", "f32 [5]", "f16 [1, 3, 2]", "bf16 [5, 1, 1, 4]"}) {
      cases.push_back(fmt::format("input %a f32 [5, 3, 2, 4]\ninput %b {}\n%y = {}(%a, %b)", b, op));
      cases.push_back(fmt::format("input %a {}\ninput %b f32 [5, 3, 2, 4]\n%y = {}(%a, %b)", b, op));
    }
  }
  for (const char* op : {"add", "sub", "mul"}) {
    cases.push_back(fmt::format("input %a i32 [5, 3, 2, 4]\ninput %b i32 [5, 3]\n%y = {}(%a, %b)", op));
  }
  cases.push_back("input %a f32 [5, 3, 2, 4]\ninput %b f32 [5]\n%y = compare(%a, %b) {kind=lt}");
  cases.push_back("input %a i32 [1, 3, 2]\ninput %b i32 [5, 3, 2, 4]\n%y = compare(%a, %b) {kind=eq}");
  cases.push_back("input %c i32 [5, 3]\ninput %a f32 [5, 1, 2, 4]\ninput %b f32 [5, 3, 2, 4]\n%y = where(%c, %a, %b)");
  cases.push_back("input %c i32 [5, 3, 2, 4]\ninput %a i32 [1, 3, 2]\ninput %b i32 [5, 3]\n%y = where(%c, %a, %b)");
  cases.push_back("input %c i32 [5, 3, 2]\ninput %a bf16 [5, 3, 2, 4]\ninput %b bf16 [5]\n%y = where(%c, %a, %b)");
  for (const char* rest : {"scale(%x) {scale=2}", "scale(%x) {scale=2, bias=0.5}", "clamp(%x) {min=-0.5, max=0.25}"}) {
    cases.push_back(fmt::format("input %x f32 [5, 3, 2, 4]\n%y = {}", rest));
  }
}

/// Adds at least one case for each enumerator of the enumerations that are op parameters. The text of a case contains
/// the name of the enumerator.
void add_kinds(std::vector<std::string>& cases) {
  for (int kind = 0; kind < static_cast<int>(UnaryKind::kCount); ++kind) {
    const UnaryParams params{static_cast<UnaryKind>(kind)};
    cases.push_back(fmt::format("input %x f32 [5, 3, 2, 4]\n%y = unary(%x) {}", params_to_string(Op::kUnary, params)));
  }
  for (int kind = 0; kind < static_cast<int>(CompareKind::kCount); ++kind) {
    const std::string params = params_to_string(Op::kCompare, CompareParams{static_cast<CompareKind>(kind)});
    cases.push_back(fmt::format("input %a i32 [5, 3]\ninput %b i32 [5, 3]\n%y = compare(%a, %b) {}", params));
  }
  for (int kind = 0; kind < static_cast<int>(GluKind::kCount); ++kind) {
    const std::string params = params_to_string(Op::kGlu, GluParams{static_cast<GluKind>(kind)});
    cases.push_back(fmt::format("input %x f32 [10, 3, 2, 4]\n%y = glu(%x, _) {}", params));
    cases.push_back(fmt::format("input %x f32 [5, 3, 2, 4]\ninput %u f32 [5, 3, 2, 4]\n%y = glu(%x, %u) {}", params));
  }
}

}  // namespace

std::vector<std::string> rule_cases() {
  std::vector<std::string> cases(std::begin(kCases), std::end(kCases));
  add_element_wise(cases);
  add_kinds(cases);
  return cases;
}

std::vector<AllowedMiss> allowed_misses() {
  return {
      {Op::kAttention, "factor e", "kernels process whole heads, and dividing heads saves nothing"},
      {Op::kCausalConv, "linear 0+2",
       "the stored state is whole, but a Partial result would be summed after storing it"},
      {Op::kGatedDelta, "linear 2+5",
       "the stored state is whole, but a Partial result would be summed after storing it"},
      {Op::kSetRows, "linear 0+1", "a Partial cache is written addend by addend; the planner does that itself"},
      {Op::kSetSlice, "linear 0+1", "a Partial cache is written addend by addend; the planner does that itself"},
      {Op::kMulMat, "linear 0", "a product of dtype f16 or bf16 would round every addend"},
      {Op::kMulMat, "linear 1", "a product of dtype f16 or bf16 would round every addend"},
      {Op::kCast, "linear 0", "casts to shorter types would round every addend; integer sums stay integers"},
  };
}

}  // namespace shoal::test
