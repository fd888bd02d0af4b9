// Two feed-forward blocks in text form. Each block is followed by a residual sum and a norm. A plan adds an all_reduce
// before the sum. Tests of joined nodes (meta/plan/joined_norm.h) use these blocks. In the second block, the sum and
// the product have their sources in the opposite order.
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

#include "tests/meta/mesh.h"

namespace shoal::test {

/// `more` contains the nodes between the two blocks.
inline std::string norm_graph(int64_t tokens, const std::string& outputs = "output %out", const std::string& more = {},
                              const std::string& norm_weight = "[64]") {
  return fmt::format(R"(
input %x f32 [64, {0}]
weight %up f32 [64, 96]
weight %down f32 [96, 64]
weight %scale f32 {3}
weight %head f32 [64, 40]
%h = mul_mat(%up, %x)
%y = mul_mat(%down, %h)
%r = add(%x, %y)
%n = rms_norm(%r)
%m = mul(%n, %scale)
{2}
%h2 = mul_mat(%up, %m)
%y2 = mul_mat(%down, %h2)
%r2 = add(%y2, %r)
%n2 = rms_norm(%r2)
%m2 = mul(%scale, %n2)
%out = mul_mat(%head, %m2)
{1}
)",
                     tokens, outputs, more, norm_weight);
}

inline Layouts norm_layouts(int ranks) {
  std::vector<int64_t> shares(static_cast<size_t>(ranks), 32);
  shares[0] = 96 - 32 * (ranks - 1);
  const auto split = [&](int axis) { return meta::Layout::split(axis, meta::Partition::from_shares(shares)); };
  return {{"up", split(1)}, {"down", split(0)}};
}

}  // namespace shoal::test
