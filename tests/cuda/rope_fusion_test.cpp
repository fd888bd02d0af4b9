// Rope and cache writes of a decoder as one launch: how many nodes run together, and that results and caches have the
// bits of the separate kernels, which run where the graph is cut between all nodes.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "devices/cuda/fusion.h"
#include "tests/cuda/cuda_mesh.h"
#include "tests/cuda/emulator/emulator.h"
#include "tests/meta/mesh.h"

namespace shoal::cuda {
namespace {

/// Six query heads, two of keys and two of values, each with its own input.
struct Decoder {
  std::string keys = "f16", values = "f16";  ///< of the caches
  int tokens = 1, columns = 64, value_columns = 64;
  std::string rope = "{dims=64, mode=halves}";
  std::string select = {};
  std::string factors = "_";
  std::vector<int> ids = {5};
  std::string more = {};  ///< nodes behind
};

const std::string kQueries = "%qr = rope(%q, %pos, FACTORS) ROPE\noutput %qr\n";
const std::string kKeys =
    "%kr = rope(%k, %pos, FACTORS) ROPE\n%kt = permute(%kr) {axes=[0,2,1,3]}\n"
    "%ks = set_rows(%kc, %kt, %ids) SELECT\n";
const std::string kValues = "%vt = permute(%v) {axes=[0,2,1,3]}\n%vs = set_rows(%vc, %vt, %ids) SELECT\n";
const std::string kAll =
    "%qr = rope(%q, %pos, FACTORS) ROPE\n%kr = rope(%k, %pos, FACTORS) ROPE\n"
    "%kt = permute(%kr) {axes=[0,2,1,3]}\n%ks = set_rows(%kc, %kt, %ids) SELECT\n" +
    kValues + "output %qr\n";

std::string text_of(const Decoder& d, std::string nodes) {
  std::string text = fmt::format(
      "input %q f32 [{0}, 6, {1}]\ninput %k f32 [{0}, 2, {1}]\ninput %v f32 [{2}, 2, {1}]\ninput %pos i32 [{1}]\n"
      "input %ids i32 [{1}]\ncache %kc {3} [{0}, 16, 2]\ncache %vc {4} [{2}, 16, 2]\n",
      d.columns, d.tokens, d.value_columns, d.keys, d.values);
  if (d.factors == "%f") text += "weight %f f32 [32]\n";
  if (d.factors == "%fi") text += "input %freq f32 [32]\n%fi = scale(%freq) {scale=0.5, bias=2}\n";
  const auto put = [&](const std::string& what, const std::string& in_place) {
    for (size_t at = 0; (at = nodes.find(what)) != std::string::npos;) nodes.replace(at, what.size(), in_place);
  };
  put("ROPE", d.rope), put("SELECT", d.select), put("FACTORS", d.factors);
  return text + nodes + d.more;
}

void set_integers(Tensor& leaf, std::vector<int> values) {
  values.resize(static_cast<size_t>(leaf.elements()));
  tensor_set(leaf, values.data(), 0, values.size() * sizeof(int));
}
std::vector<std::byte> bytes_of(const Tensor& tensor) {
  std::vector<std::byte> bytes(tensor.bytes());
  tensor_get(tensor, bytes.data(), 0, bytes.size());
  return bytes;
}

struct Outcome {
  ptrdiff_t launches = 0;
  std::vector<std::vector<std::byte>> values;  ///< outputs, then caches
};

Outcome run(const Decoder& d, const std::string& text, bool cut) {
  test::CudaMesh mesh(1);
  test::Loaded loaded(text, *mesh.devices()[0]);
  PlanOptions options;
  if (cut) {
    options.cuts.resize(loaded.graph.nodes().size() - 1);
    std::iota(options.cuts.begin(), options.cuts.end(), 1);
  }
  const auto plan = mesh.backend(0).create_plan(loaded.graph, options);
  std::vector<int> positions(static_cast<size_t>(d.tokens));
  std::iota(positions.begin(), positions.end(), 100000);
  for (Tensor* input : loaded.graph.inputs()) {
    if (input->dtype == DType::kF32) {
      loaded.fill(*input);
    } else {
      set_integers(*input, input->name == "ids" ? d.ids : positions);
    }
  }
  emulator::record_calls();
  mesh.backend(0).compute_async(*plan);
  mesh.backend(0).synchronize();
  const auto calls = emulator::take_calls();
  Outcome outcome{std::count(calls.begin(), calls.end(), "cudaLaunchKernel"), {}};
  for (const Tensor* node : loaded.graph.nodes()) {
    if (node->is_output) outcome.values.push_back(bytes_of(*node));
  }
  for (const Tensor* leaf : loaded.weights.tensors()) outcome.values.push_back(bytes_of(*leaf));
  return outcome;
}

/// `saved` launches fewer than nodes one by one, and the same bits.
void check(const Decoder& d, const std::string& nodes, int saved) {
  const std::string text = text_of(d, nodes);
  SCOPED_TRACE(text);
  const Outcome fused = run(d, text, false), alone = run(d, text, true);
  EXPECT_EQ(alone.launches - fused.launches, saved);
  EXPECT_TRUE(fused.values == alone.values);
}

TEST(CudaRopeFusion, WritesEveryCache) {
  for (const std::string keys : {"f32", "f16", "bf16", "q8_0"}) {
    for (const std::string values : {"f32", "f16", "bf16", "q8_0"}) {
      check({.keys = keys, .values = values}, kAll, 3);
    }
  }
  check({.keys = "q4_0"}, kAll, 1);
  check({.values = "q4_0"}, kAll, 2);
}

TEST(CudaRopeFusion, TurnsAllKindsOfHeads) {
  for (const std::string mode : {"neighbours", "halves"}) {
    check({.rope = "{dims=64, mode=" + mode + "}"}, kAll, 3);
    check({.rope = "{dims=40, base=500000, mode=" + mode + "}"}, kAll, 3);
    check({.rope = "{dims=40, offset=24, mode=" + mode + "}"}, kAll, 3);
    check({.rope = "{dims=40, offset=7, mode=" + mode + "}"},
          "%qr = rope(%q, %pos, _) {dims=40, offset=24, mode=" + mode + "}\noutput %qr\n" + kKeys, 2);
    check({.tokens = 3, .columns = 320, .value_columns = 96, .rope = "{dims=256, mode=" + mode + "}", .ids = {1, 2, 3}},
          kAll, 3);
  }
  check({.columns = 514, .rope = "{dims=514}"}, kAll, 1);  // a pair more than threads: only the cache writes
  check({.columns = 1026, .rope = "{dims=64}"}, kAll, 0);
  check({.rope = "{dims=64, freq_scale=0.25, ext_factor=1, original_context=4096}"}, kAll, 3);
  check({.factors = "%f"}, kAll, 3);
  check({.factors = "%fi"}, kAll, 3);
}

TEST(CudaRopeFusion, Prompts) {
  std::vector<int> ids(11);
  std::iota(ids.begin(), ids.end(), 2);
  check({.tokens = 11, .ids = ids}, kAll, 3);
}

TEST(CudaRopeFusion, LastOfEqualRowsAndRowsThatAreElsewhere) {
  check({.tokens = 5, .ids = {3, 7, 3, -1, 7}}, kAll, 3);
  check({.tokens = 6, .select = "{ranges=[10:4,40:12]}", .ids = {11, 40, 0, 51, 52, 40}}, kAll, 3);
}

TEST(CudaRopeFusion, WhateverOfThemIsThere) {
  check({}, kQueries + kKeys, 2);
  check({}, kKeys + kValues, 2);
  check({}, kValues, 0);
}

TEST(CudaRopeFusion, ValuesThatOthersReadAreWritten) {
  check({.more = "output %kr\n"}, kAll, 3);
  check({.more = "%e = unary(%kr) {kind=silu}\noutput %e\n"}, kAll, 3);
}

/// How many nodes run together where each tensor has memory of its own, but for what is changed.
template <class Change>
size_t count_with(const std::string& nodes, Change change) {
  constexpr size_t kRoom = 0x100000;
  TensorContext weights;
  Graph graph("placed");
  parse_graph(text_of({.tokens = 2, .factors = "%f"}, nodes), graph, weights);
  std::map<std::string, Tensor*> tensors;
  size_t next = kRoom;
  const auto place = [&](Tensor* tensor) {
    tensors[tensor->name] = tensor;
    tensor->data =
        tensor->is_view() ? tensor->view_base->data + tensor->view_offset : reinterpret_cast<std::byte*>(next += kRoom);
  };
  for (Tensor* leaf : graph.leaves()) place(leaf);
  for (Tensor* node : graph.nodes()) place(node);
  change(tensors);
  std::vector<Tensor*> running;
  for (Tensor* node : graph.nodes()) {
    if (!is_view(node->op)) running.push_back(node);
  }
  return fuse(running, Readers(whole(graph), {}), GpuTraits{}).nodes.size();
}

TEST(CudaRopeFusion, NothingLiesOnWhatOthersRead) {
  const auto put = [](const char* what, const char* where, size_t offset = 0) {
    return count_with(kAll, [&](auto& tensors) { tensors[what]->data = tensors[where]->data + offset; });
  };
  EXPECT_EQ(put("qr", "q"), 4u) << "in place";
  EXPECT_EQ(put("qr", "q", 256), 1u);
  EXPECT_EQ(put("qr", "k"), 1u);
  EXPECT_EQ(put("kr", "q"), 1u);
  EXPECT_EQ(put("kr", "qr", 512), 1u);
  EXPECT_EQ(put("qr", "v"), 3u);
  EXPECT_EQ(put("qr", "f"), 1u);
  EXPECT_EQ(put("qr", "pos"), 1u);
  EXPECT_EQ(put("qr", "ids"), 2u);
  EXPECT_EQ(put("vc", "kc", 64), 3u);
}

TEST(CudaRopeFusion, OnlyWhatIsOfOneKind) {
  const auto with = [](const std::string& second, const std::string& leaves = "") {
    return count_with(leaves + "%qr = rope(%q, %pos, %f) ROPE\n" + second, [](auto&) {});
  };
  EXPECT_EQ(with("%kr = rope(%k, %pos, %f) ROPE\n"), 2u);
  EXPECT_EQ(with("%kr = rope(%k, %pos, %f) {dims=64, mode=halves, base=500000}\n"), 1u);
  EXPECT_EQ(with("%kr = rope(%k, %pos, _) ROPE\n"), 1u);
  EXPECT_EQ(with("%kr = rope(%k, %ids, %f) ROPE\n"), 1u);
  EXPECT_EQ(with("%kr = rope(%o, %pos, %f) ROPE\n", "input %o f32 [64, 2, 2, 3]\n"), 1u) << "batches";
  EXPECT_EQ(with("%kr = rope(%o, %pos, %f) ROPE\n", "input %o f16 [64, 2, 2]\n"), 1u) << "not f32";
  EXPECT_EQ(with("%rr = rope(%qr, %pos, %f) ROPE\n"), 1u) << "turned twice";
  const std::string same = "%vt = permute(%qr) {axes=[0,2,1,3]}\n%qs = set_rows(%qc, %vt, %ids)\n";
  const std::string leaf = "cache %qc f16 [64, 16, 6]\n";
  EXPECT_EQ(with(same, leaf), 2u);
  EXPECT_EQ(with(same + "%qd = set_rows(%qs, %vt, %pos)\n", leaf), 2u) << "two rows of ids";
  EXPECT_EQ(with(same + "%qd = set_rows(%qe, %vt, %ids)\n", leaf + "cache %qe f16 [64, 16, 6]\n"), 2u)
      << "heads that are written are not read";
}

}  // namespace
}  // namespace shoal::cuda
