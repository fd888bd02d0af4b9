// all_reduce, all_gather, reduce_scatter, all_to_all: see CollectiveParams in graph/ops/params.h.
#include <algorithm>
#include <limits>

#include "graph/ops/infer.h"
#include "graph/ops/ops.h"

namespace shoal {
namespace {

using infer::Expect;

void expect_operand(const Expect& expect, const Tensor& x) {
  expect(x.is_contiguous(), "a contiguous operand, got a view with gaps or permuted axes: use contiguous() first");
}

void expect_summable(const Expect& expect, const Tensor& x) {
  expect_operand(expect, x);
  expect.dtype(0, {DType::kF32, DType::kF16, DType::kBF16, DType::kI32});
}

/// Checks counts of `ranks` ranks (ranks^2 entries when `pairwise`).
void expect_counts(const Expect& expect, DType dtype, const CollectiveParams& params, int64_t ranks, bool pairwise) {
  const int64_t entries = static_cast<int64_t>(params.counts.size());
  expect(entries == (pairwise ? ranks * ranks : ranks), "counts of n * n entries, got {}", entries);
  expect(params.rank >= 0 && params.rank < ranks, "a rank in [0, {}), got {}", ranks, params.rank);
  int64_t room = std::numeric_limits<int64_t>::max() / 8;
  const int64_t block = traits(dtype).block_elems;
  for (const int64_t count : params.counts) {
    expect(count >= 0 && count <= room, "counts >= 0 that fit into memory, got {}", count);
    expect(count % block == 0, "counts of whole blocks of {} elements, got {}", block, count);
    room -= count;
  }
}

int64_t sum(const std::vector<int64_t>& counts) {
  int64_t total = 0;
  for (const int64_t count : counts) total += count;
  return total;
}

void expect_elements(const Expect& expect, const Tensor& x, int64_t count) {
  expect(x.elements() == count, "{} elements, got {}", count, x.elements());
}

void make_flat(Tensor& node, int64_t count) {
  node.dtype = node.src[0]->dtype;
  node.shape = {count, 1, 1, 1};
}

}  // namespace

void infer::all_reduce(Tensor& node) {
  const Expect expect(node, "x");
  const CollectiveParams& params = params_of<CollectiveParams>(node);
  expect_summable(expect, *node.src[0]);
  expect(params.rank >= 0, "a rank >= 0, got {}", params.rank);
  expect(params.counts.empty(), "no counts, got {} of them", params.counts.size());
  node.dtype = node.src[0]->dtype;
  node.shape = node.src[0]->shape;
}

void infer::all_gather(Tensor& node) {
  const Expect expect(node, "x");
  const CollectiveParams& params = params_of<CollectiveParams>(node);
  expect_operand(expect, *node.src[0]);
  expect_counts(expect, node.src[0]->dtype, params, static_cast<int64_t>(params.counts.size()), false);
  expect_elements(expect, *node.src[0], params.counts[params.rank]);
  make_flat(node, sum(params.counts));
}

void infer::reduce_scatter(Tensor& node) {
  const Expect expect(node, "x");
  const CollectiveParams& params = params_of<CollectiveParams>(node);
  expect_summable(expect, *node.src[0]);
  expect_counts(expect, node.src[0]->dtype, params, static_cast<int64_t>(params.counts.size()), false);
  expect_elements(expect, *node.src[0], sum(params.counts));
  make_flat(node, params.counts[params.rank]);
}

void infer::all_to_all(Tensor& node) {
  const Expect expect(node, "x");
  const CollectiveParams& params = params_of<CollectiveParams>(node);
  expect_operand(expect, *node.src[0]);
  int64_t ranks = 0;
  while (ranks * ranks < static_cast<int64_t>(params.counts.size())) ++ranks;
  expect_counts(expect, node.src[0]->dtype, params, ranks, true);
  int64_t sent = 0;
  int64_t received = 0;
  for (int64_t peer = 0; peer < ranks; ++peer) {
    sent += params.counts[params.rank * ranks + peer];
    received += params.counts[peer * ranks + params.rank];
  }
  expect_elements(expect, *node.src[0], sent);
  make_flat(node, received);
}

Tensor* all_reduce(Graph& g, Tensor* x, CollectiveParams params, std::string name) {
  return g.add_node(Op::kAllReduce, std::move(params), {x}, std::move(name));
}
Tensor* all_gather(Graph& g, Tensor* x, CollectiveParams params, std::string name) {
  return g.add_node(Op::kAllGather, std::move(params), {x}, std::move(name));
}
Tensor* reduce_scatter(Graph& g, Tensor* x, CollectiveParams params, std::string name) {
  return g.add_node(Op::kReduceScatter, std::move(params), {x}, std::move(name));
}
Tensor* all_to_all(Graph& g, Tensor* x, CollectiveParams params, std::string name) {
  return g.add_node(Op::kAllToAll, std::move(params), {x}, std::move(name));
}

}  // namespace shoal
