// One kernel chooses the experts of a token. The tests compare the ids and weights of the chosen experts with an
// unfused run on the same device and with a run on the CPU. The tests also check how many launches fusion saves.
#include "devices/cuda/ops/fused.h"

#include <cmath>

#include "tests/cuda/cuda_mesh.h"
#include "tests/cuda/emulator/emulator.h"
#include "tests/cuda/placed_graph.h"
#include "tests/cuda/text_run.h"

namespace shoal::cuda {
namespace {

/// The chain of nodes that models/arch/experts.cpp builds.
struct Route {
  std::string name;
  int experts = 8, used = 2, tokens = 1;
  std::string gating, normalising;
  bool biased = false, scaled = false;
  int saved = 0;  ///< number of launches that fusion saves
  std::string more = "";
  bool special = false;  ///< whether some logits are equal, infinite or NaN

  std::string text() const {
    const auto shape = [&](int a, int b) { return fmt::format(" {{shape=[{},{},{},1]}}\n", a, b, tokens); };
    std::string text = fmt::format("input %x f32 [{}, {}]\n", experts, tokens), all = "x";
    const auto add = [&](const std::string& line) { text += line + "\n"; };
    if (biased) text += fmt::format("weight %bias f32 [{}]\n", experts);
    if (gating == "soft_max") add("%p = soft_max(%x)"), all = "p";
    if (gating == "sigmoid") add("%p = unary(%x) {kind=sigmoid}"), all = "p";
    if (gating == "softplus") add("%q = unary(%x) {kind=softplus}\n%p = unary(%q) {kind=sqrt}"), all = "p";
    std::string by = all;
    if (biased) add(fmt::format("%preferred = add(%{}, %bias)", all)), by = "preferred";
    add(fmt::format("%ids = top_k(%{}) {{k={}}}", by, used));
    text += fmt::format("%rows = reshape(%{})", all) + shape(1, experts);
    add("%best = get_rows(%rows, %ids)");
    text += fmt::format("%columns = reshape(%best) {{shape=[{},{},1,1]}}\n", used, tokens);
    std::string last = "columns";
    if (normalising == "soft_max") add("%n = soft_max(%columns)"), last = "n";
    if (normalising == "sum") add("%total = sum_rows(%columns)\n%n = div(%columns, %total)"), last = "n";
    if (normalising == "clamped") {
      add("%total = sum_rows(%columns)\n%least = clamp(%total) {min=0.3, max=1e30}\n%n = div(%columns, %least)");
      last = "n";
    }
    if (scaled) add(fmt::format("%scaled = scale(%{}) {{scale=2.5}}", last)), last = "scaled";
    text += fmt::format("%weights = reshape(%{})", last) + shape(1, used);
    return text + more + "output %weights\noutput %ids\n";
  }
};
std::ostream& operator<<(std::ostream& out, const Route& one) {
  return out << one.name;
}

void make_special(const test::Loaded& loaded) {
  Tensor& x = *loaded.graph.inputs()[0];
  std::vector<float> values = test::read_floats(x);
  for (size_t i = 0; i < values.size(); ++i) {
    if (i % 3 == 0) values[i] = 0.75f;
    if (i % 7 == 1) values[i] = i % 2 ? 0.0f : -0.0f;
    if (i % 11 == 5) values[i] = std::nanf("");
    if (i % 13 == 6) values[i] = -INFINITY;
  }
  tensor_set(x, values.data(), 0, x.bytes());
}

void expect_same(const test::Outcome& found, const test::Outcome& expected, const char* of) {
  EXPECT_EQ(found.get<int32_t>("ids"), expected.get<int32_t>("ids")) << of;
  const auto weights = found.get<float>("weights"), right = expected.get<float>("weights");
  ASSERT_EQ(weights.size(), right.size());
  for (size_t i = 0; i < weights.size(); ++i) {
    const float a = weights[i], b = right[i];
    EXPECT_TRUE(std::isnan(a) ? std::isnan(b) : std::abs(a - b) <= 1e-6f * std::max(1.0f, std::abs(b)))
        << of << " " << i << ": " << a << ", expected " << b;
  }
}

class CudaRouter : public testing::TestWithParam<Route> {};

TEST_P(CudaRouter, FusedResultsMatchUnfusedResults) {
  const Route& one = GetParam();
  const std::string text = one.text();
  test::TextOptions options;
  if (one.special) options.more_inputs = make_special;
  test::CudaMesh mesh(1);
  const test::Outcome fused = test::run_text(mesh.backend(0), text, options);
  options.alone = true;
  const test::Outcome alone = test::run_text(mesh.backend(0), text, options);
  EXPECT_EQ(alone.launches - fused.launches, one.saved);
  expect_same(fused, alone, "single nodes");
  if (one.special) return;  // infinite sums may give NaN weights on only one of the devices
  const test::CpuMesh cpus(1);
  expect_same(fused, test::run_text(*cpus.other().init(""), text), "CPU");
}

std::vector<Route> routes() {
  return {
      // Shapes of 30B-A3B, Qwen3.5, Mixtral, gpt-oss and DeepSeek V3.
      {"soft_max_128", 128, 8, 1, "soft_max", "sum", false, false, 4},
      {"soft_max_512", 512, 10, 1, "soft_max", "sum", false, false, 4},
      {"soft_max_8", 8, 2, 1, "soft_max", "sum", false, false, 4},
      {"soft_max_of_chosen_32", 32, 4, 1, "", "soft_max", false, false, 2},
      {"sigmoid_256_biased", 256, 8, 1, "sigmoid", "clamped", true, true, 7},
      {"softplus_biased", 96, 6, 1, "softplus", "clamped", true, true, 8},
      {"soft_max_not_normalised", 60, 4, 1, "soft_max", "", false, false, 2},
      {"soft_max_scaled", 64, 6, 1, "soft_max", "", false, true, 3},
      {"logits_biased", 20, 3, 1, "", "soft_max", true, true, 4},
      {"prompt", 128, 8, 9, "soft_max", "sum", false, false, 4},
      {"prompt_sigmoid", 30, 5, 7, "sigmoid", "clamped", true, true, 7},
      {"special", 50, 30, 5, "", "", false, false, 1, "", true},
      {"special_soft_max", 130, 32, 3, "", "soft_max", false, false, 2, "", true},
      {"special_sigmoid", 40, 12, 1, "sigmoid", "sum", false, false, 4, "", true},
      // In each of the next six graphs, an output or a node outside of the chain needs a value that the fused kernel
      // does not write.
      {"probabilities_read", 128, 8, 1, "soft_max", "sum", false, false, 3, "%e = unary(%p) {kind=silu}\noutput %e\n"},
      {"probabilities_are_output", 128, 8, 1, "soft_max", "sum", false, false, 3, "output %p\n"},
      {"best_read", 128, 8, 1, "soft_max", "sum", false, false, 2, "%e = unary(%best) {kind=silu}\noutput %e\n"},
      {"total_is_output", 128, 8, 1, "sigmoid", "clamped", false, false, 2, "output %total\n"},
      {"normalised_are_output", 128, 8, 1, "soft_max", "sum", false, true, 4, "output %n\n"},
      {"preferences_read", 64, 8, 1, "sigmoid", "", true, false, 1, "%e = unary(%preferred) {kind=abs}\noutput %e\n"},
      {"too_many_experts", 513, 8, 1, "soft_max", "sum", false, false, 0},
      {"too_many_used", 64, 33, 1, "soft_max", "sum", false, false, 0},
  };
}
INSTANTIATE_TEST_SUITE_P(Routes, CudaRouter, testing::ValuesIn(routes()),
                         [](const auto& info) { return info.param.name; });

/// A warp reads all operands of its token before it writes, so the results of a single token may overwrite their
/// operands. The fused kernel never writes %p.
TEST(CudaRouterMemory, UnsafeMemoryOverlapPreventsFusionOfChain) {
  const auto expect = [](int tokens, const std::vector<test::Places>& table) {
    const Route route{"", 8, 2, tokens, "sigmoid", "clamped", true, true};
    test::expect_counts(route.text(), table, [](test::Placed& placed) {
      return count_router(placed.running, Readers(whole(placed.graph), {}));
    });
  };
  expect(1, {{8, "ids=x scaled=x"}, {0, "scaled=ids"}});
  expect(2, {{8, "scaled=p"}, {0, "ids=x scaled=x ids=bias scaled=bias"}});
}

}  // namespace
}  // namespace shoal::cuda
