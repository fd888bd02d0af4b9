// A decoder of one layer in text form, with 8 query heads and 4 KV heads. All lengths are multiples of 4, so integer
// shares that add up to 4 split the decoder without remainder. The names of caches end with the parameter `context`. So
// several contexts can share the weights and have separate caches.
#pragma once

#include <fmt/format.h>

#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "meta/layout/layout.h"

namespace shoal::test {

/// A feed-forward block with a residual sum and a norm. The axes are longer than in llama_graph().
inline constexpr const char* kFeedForward = R"(
input %x f32 [256, 4]
weight %gate f32 [256, 768]
weight %up f32 [256, 768]
weight %down f32 [768, 256]
%g = mul_mat(%gate, %x)
%u = mul_mat(%up, %x)
%h = glu(%g, %u)
%y = mul_mat(%down, %h)
%r = add(%x, %y)
%n = rms_norm(%r)
output %n
)";

inline std::string llama_graph(int64_t tokens, const std::string& tail = {}, const std::string& context = {}) {
  return fmt::format(R"(
input %ids40.tokens i32 [{0}]
input %pos16.positions i32 [{0}]
input %slots16.rows i32 [{0}]
input %ids{0}.last i32 [1]
weight %embd f32 [32, 40]
weight %attn_norm f32 [32]
weight %wq f32 [32, 64]
weight %wk f32 [32, 32]
weight %wv f32 [32, 32]
weight %wo f32 [64, 32]
weight %ffn_norm f32 [32]
weight %gate f32 [32, 48]
weight %up f32 [32, 48]
weight %down f32 [48, 32]
weight %out_norm f32 [32]
weight %head f32 [32, 40]
cache %ck{1} f16 [8, 16, 4]
cache %cv{1} f16 [8, 16, 4]
%x = get_rows(%embd, %ids40.tokens)
%n0 = rms_norm(%x)
%n = mul(%n0, %attn_norm)
%q = mul_mat(%wq, %n)
%k = mul_mat(%wk, %n)
%v = mul_mat(%wv, %n)
%q1 = reshape(%q) {{shape=[8,8,{0},1]}}
%k1 = reshape(%k) {{shape=[8,4,{0},1]}}
%v1 = reshape(%v) {{shape=[8,4,{0},1]}}
%q2 = rope(%q1, %pos16.positions, _) {{dims=8}}
%k2 = rope(%k1, %pos16.positions, _) {{dims=8}}
%q3 = permute(%q2) {{axes=[0,2,1,3]}}
%k3 = permute(%k2) {{axes=[0,2,1,3]}}
%v3 = permute(%v1) {{axes=[0,2,1,3]}}
%keys = set_rows(%ck{1}, %k3, %slots16.rows)
%values = set_rows(%cv{1}, %v3, %slots16.rows)
%heads = attention(%q3, %keys, %values, _, _, _) {{scale=0.35}}
%merged = reshape(%heads) {{shape=[64,{0},1,1]}}
%attn_out = mul_mat(%wo, %merged)
%r = add(%x, %attn_out)
%m0 = rms_norm(%r)
%m = mul(%m0, %ffn_norm)
%g = mul_mat(%gate, %m)
%u = mul_mat(%up, %m)
%h = glu(%g, %u)
%ffn_out = mul_mat(%down, %h)
%r2 = add(%r, %ffn_out)
%last = get_rows(%r2, %ids{0}.last)
%o0 = rms_norm(%last)
%o = mul(%o0, %out_norm)
%logits = mul_mat(%head, %o)
{2}
output %logits
)",
                     tokens, context, tail);
}

/// Rank r gets shares[r] of the 4 KV heads and the same share of all other split tensors.
inline std::map<std::string, meta::Layout> llama_layouts(const std::vector<int64_t>& shares) {
  const auto split = [&](int axis, int64_t unit) {
    std::vector<int64_t> lengths;
    for (int64_t share : shares) lengths.push_back(share * unit);
    return meta::Layout::split(axis, meta::Partition::from_shares(lengths));
  };
  std::map<std::string, meta::Layout> layouts{{"wq", split(1, 16)},   {"wk", split(1, 8)},    {"wv", split(1, 8)},
                                              {"wo", split(0, 16)},   {"gate", split(1, 12)}, {"up", split(1, 12)},
                                              {"down", split(0, 12)}, {"head", split(1, 10)}};
  for (const char* context : {"", "_a", "_b"}) {
    layouts.emplace(fmt::format("ck{}", context), split(2, 1));
    layouts.emplace(fmt::format("cv{}", context), split(2, 1));
  }
  return layouts;
}

}  // namespace shoal::test
