// The collectives of local graphs: see graph/collective.h.
#include <algorithm>
#include <limits>

#include "graph/ops/infer.h"
#include "graph/ops/ops.h"

namespace shoal {
namespace {

using infer::Expect;

void expect_counts(const Expect& expect, DType dtype, const CollectiveParams& params, size_t entries, int ranks) {
  expect(params.counts.size() == entries, "n * n counts for n ranks, got {}", params.counts.size());
  expect(params.rank >= 0 && params.rank < ranks, "a rank in [0, {}), got {}", ranks, params.rank);
  int64_t room = std::numeric_limits<int64_t>::max() / 8;
  const int64_t block = traits(dtype).block_elems;
  for (const int64_t count : params.counts) {
    expect(count >= 0 && count <= room, "counts >= 0 that fit into memory, got {}", count);
    expect(count % block == 0, "counts of whole blocks of {} elements, got {}", block, count);
    room -= count;
  }
}

/// Returns n, the number of ranks, if `counts` is n * n. If `counts` is not a square, n is rounded up.
int pairwise_ranks(size_t counts) {
  size_t ranks = 0;
  while (ranks * ranks < counts) ++ranks;
  return static_cast<int>(ranks);
}

}  // namespace

void infer::collective(Tensor& node) {
  const Expect expect(node, "x");
  const CollectiveParams& params = params_of<CollectiveParams>(node);
  const CollectiveInfo& kind = info(collective_of(node.op));
  const Tensor& x = *node.src[0];
  expect(x.is_contiguous(), "a contiguous operand, got a view with gaps or permuted axes: use contiguous() first");
  if (kind.sums) expect.dtype(0, kSummable);
  node.dtype = x.dtype;
  if (kind.counts(1) == 0) {
    expect(params.rank >= 0, "a rank >= 0, got {}", params.rank);
    expect(params.counts.empty(), "no counts, got a list of length {}", params.counts.size());
    node.shape = x.shape;
    return;
  }
  const size_t counts = params.counts.size();
  const Amounts amounts{kind.is_pairwise() ? pairwise_ranks(counts) : static_cast<int>(counts), 0, params.counts};
  expect_counts(expect, x.dtype, params, kind.counts(amounts.ranks), amounts.ranks);
  const int64_t read = elements_in(kind.kind, amounts, params.rank);
  expect(x.elements() == read, "{} elements, got {}", read, x.elements());
  node.shape = {elements_out(kind.kind, amounts, params.rank), 1, 1, 1};
}

Tensor* collective(Graph& g, Collective kind, Tensor* x, CollectiveParams params, std::string name) {
  return g.add_node(info(kind).node, std::move(params), {x}, std::move(name));
}

}  // namespace shoal
