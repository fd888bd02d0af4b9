// Tests of the kernel that fuses rope and cache writes of a decoder. The tests check the number of fused nodes. Results
// and caches must match an unfused run bit for bit. In the unfused run, cuts between all nodes prevent fusion.
#include <numeric>

#include "tests/cuda/cuda_mesh.h"
#include "tests/cuda/emulator/emulator.h"
#include "tests/cuda/placed_graph.h"
#include "tests/cuda/text_run.h"

namespace shoal::cuda {
namespace {

/// Six query heads, two key heads and two value heads. Queries, keys and values are three separate inputs.
struct Decoder {
  std::string keys = "f16", values = "f16";  ///< dtypes of the caches
  int tokens = 1, columns = 64, value_columns = 64;
  std::string rope = "{dims=64, mode=halves}";
  std::string select = {};
  std::string factors = "_";
  std::vector<int> ids = {5};
  std::string more = {};  ///< additional nodes
};

const std::string kQueries = "%qr = rope(%q, %pos16, FACTORS) ROPE\noutput %qr\n";
const std::string kKeys =
    "%kr = rope(%k, %pos16, FACTORS) ROPE\n%kt = permute(%kr) {axes=[0,2,1,3]}\n"
    "%ks = set_rows(%kc, %kt, %ids16) SELECT\n";
const std::string kValues = "%vt = permute(%v) {axes=[0,2,1,3]}\n%vs = set_rows(%vc, %vt, %ids16) SELECT\n";
const std::string kAll = kQueries + kKeys + kValues;

std::string text_of(const Decoder& d, std::string nodes) {
  std::string text = fmt::format(
      "input %q f32 [{0}, 6, {1}]\ninput %k f32 [{0}, 2, {1}]\ninput %v f32 [{2}, 2, {1}]\ninput %pos16 i32 [{1}]\n"
      "input %ids16 i32 [{1}]\ncache %kc {3} [{0}, 16, 2]\ncache %vc {4} [{2}, 16, 2]\n",
      d.columns, d.tokens, d.value_columns, d.keys, d.values);
  if (d.factors == "%f") text += "weight %f f32 [32]\n";
  if (d.factors == "%fi") text += "input %freq f32 [32]\n%fi = scale(%freq) {scale=0.5, bias=2}\n";
  for (const auto& [name, by] : {std::pair{"ROPE", d.rope}, {"SELECT", d.select}, {"FACTORS", d.factors}}) {
    nodes = test::replaced(nodes, name, by);
  }
  return text + nodes + d.more;
}

void set_integers(const test::Loaded& loaded, const char* name, std::vector<int> values) {
  Tensor& leaf = *loaded.graph.find(name);
  values.resize(static_cast<size_t>(leaf.elements()));
  tensor_set(leaf, values.data(), 0, values.size() * sizeof(int));
}

/// Checks that fusion saves `saved` launches and changes no bits of the results.
void check(const Decoder& d, const std::string& nodes, int saved) {
  const std::string text = text_of(d, nodes);
  SCOPED_TRACE(text);
  const auto integers = [&](const test::Loaded& loaded) {
    std::vector<int> positions(static_cast<size_t>(d.tokens));
    std::iota(positions.begin(), positions.end(), 100000);
    set_integers(loaded, "pos16", positions);
    set_integers(loaded, "ids16", d.ids);
  };
  test::CudaMesh mesh(1);
  const auto fused = test::run_text(mesh.backend(0), text, {.more_inputs = integers});
  const auto alone = test::run_text(mesh.backend(0), text, {.alone = true, .more_inputs = integers});
  EXPECT_EQ(alone.launches - fused.launches, saved);
  EXPECT_TRUE(fused.bytes == alone.bytes);
}

TEST(CudaRopeFusion, WritesCachesOfAnyDType) {
  for (const std::string keys : {"f32", "f16", "bf16", "q8_0"}) {
    for (const std::string values : {"f32", "f16", "bf16", "q8_0"}) {
      check({.keys = keys, .values = values}, kAll, 3);
    }
  }
  check({.keys = "q4_0"}, kAll, 1);
  check({.values = "q4_0"}, kAll, 2);
}

TEST(CudaRopeFusion, RotatesHeadsOfAnyModeAndSize) {
  for (const std::string mode : {"neighbours", "halves"}) {
    check({.rope = "{dims=64, mode=" + mode + "}"}, kAll, 3);
    check({.rope = "{dims=40, base=500000, mode=" + mode + "}"}, kAll, 3);
    check({.rope = "{dims=40, offset=24, mode=" + mode + "}"}, kAll, 3);
    check({.rope = "{dims=40, offset=7, mode=" + mode + "}"},
          "%qr = rope(%q, %pos16, _) {dims=40, offset=24, mode=" + mode + "}\noutput %qr\n" + kKeys, 2);
    check({.tokens = 3, .columns = 320, .value_columns = 96, .rope = "{dims=256, mode=" + mode + "}", .ids = {1, 2, 3}},
          kAll, 3);
  }
  check({.columns = 514, .rope = "{dims=514}"}, kAll, 1);  // heads with more pairs than threads are not fused
  check({.columns = 1026, .rope = "{dims=64}"}, kAll, 0);
  check({.rope = "{dims=64, freq_scale=0.25, ext_factor=1, original_context=4096}"}, kAll, 3);
  check({.factors = "%f"}, kAll, 3);
  check({.factors = "%fi"}, kAll, 3);
}

TEST(CudaRopeFusion, FusesRopeOfPrompts) {
  std::vector<int> ids(11);
  std::iota(ids.begin(), ids.end(), 2);
  check({.tokens = 11, .ids = ids}, kAll, 3);
}

TEST(CudaRopeFusion, SkipsIdsOutOfRangeAndKeepsLastRowOfEqualIds) {
  check({.tokens = 5, .ids = {3, 7, 3, -1, 7}}, kAll, 3);
  check({.tokens = 6, .select = "{ranges=[10:4,40:12]}", .ids = {11, 40, 0, 51, 52, 40}}, kAll, 3);
}

TEST(CudaRopeFusion, HandlesSubsetsOfQueriesKeysAndValues) {
  check({}, kQueries + kKeys, 2);
  check({}, kKeys + kValues, 2);
  check({}, kValues, 0);
}

TEST(CudaRopeFusion, WritesResultsThatOtherNodesRead) {
  check({.more = "output %kr\n"}, kAll, 3);
  check({.more = "%e = unary(%kr) {kind=silu}\noutput %e\n"}, kAll, 3);
}

std::string two_tokens(const std::string& nodes) {
  return text_of({.tokens = 2, .factors = "%f"}, nodes);
}

TEST(CudaRopeFusion, UnsafeOverlapPreventsFusion) {
  test::expect_fused(
      two_tokens(kAll),
      {{4, "qr=q"}, {1, "qr=q+256 qr=k kr=q kr=qr+512 qr=f qr=pos16"}, {3, "qr=v vc=kc+64"}, {2, "qr=ids16"}});
}

TEST(CudaRopeFusion, FusesOnlyMatchingNodes) {
  const auto with = [](const std::string& second, const std::string& leaves = "") {
    return test::Placed(two_tokens(leaves + "%qr = rope(%q, %pos16, %f) ROPE\n" + second)).fused();
  };
  EXPECT_EQ(with("%kr = rope(%k, %pos16, %f) ROPE\n"), 2u);
  EXPECT_EQ(with("%kr = rope(%k, %pos16, %f) {dims=64, mode=halves, base=500000}\n"), 1u);
  EXPECT_EQ(with("%kr = rope(%k, %pos16, _) ROPE\n"), 1u);
  EXPECT_EQ(with("%kr = rope(%k, %ids16, %f) ROPE\n"), 1u);
  EXPECT_EQ(with("%kr = rope(%o, %pos16, %f) ROPE\n", "input %o f32 [64, 2, 2, 3]\n"), 1u) << "%o has batches";
  EXPECT_EQ(with("%kr = rope(%o, %pos16, %f) ROPE\n", "input %o f16 [64, 2, 2]\n"), 1u) << "%o is f16";
  EXPECT_EQ(with("%rr = rope(%qr, %pos16, %f) ROPE\n"), 1u) << "rotated twice";
  const std::string same = "%vt = permute(%qr) {axes=[0,2,1,3]}\n%qs = set_rows(%qc, %vt, %ids16)\n";
  const std::string leaf = "cache %qc f16 [64, 16, 6]\n";
  EXPECT_EQ(with(same, leaf), 2u);
  EXPECT_EQ(with(same + "%qd = set_rows(%qs, %vt, %pos16)\n", leaf), 2u) << "two different tensors of ids";
  EXPECT_EQ(with(same + "%qd = set_rows(%qe, %vt, %ids16)\n", leaf + "cache %qe f16 [64, 16, 6]\n"), 2u)
      << "the launch writes rotated heads to one cache only";
}

}  // namespace
}  // namespace shoal::cuda
