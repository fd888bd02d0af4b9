// Like cast, set_rows and set_slice round each element of a Partial cache only once. The tests check this for every
// layout of the written rows.
#include <gtest/gtest.h>

#include "tests/meta/mesh.h"
#include "tests/support/tensors.h"

namespace shoal::meta {
namespace {

class PartialCache : public testing::TestWithParam<DType> {};

/// `write` writes %y into the cache %k. If `swapped` is true, it exchanges the two rows.
void check_rounding(DType dtype, const std::string& write, bool swapped) {
  const std::string type(name_of(dtype));
  const std::string text = "weight %w f32 [1, 1]\ncache %k " + type +
                           " [1, 2]\ninput %x f32 [1, 2]\ninput %i i32 [2]\n%y = mul_mat(%w, %x)\n"
                           "%s = " +
                           write + "\n%c = cast(%s)\n%r = cast(%y) {dtype=" + type +
                           "}\n%d = cast(%r)\noutput %c\noutput %d\n";
  for (const bool rows_are_partial : {false, true}) {
    const test::CpuMesh mesh(
        3, {{"k", Layout::partial()}, {"w", rows_are_partial ? Layout::partial() : Layout::mirrored()}});
    test::Loaded model(text, *mesh.device);
    const auto backend = mesh.device->init();
    const auto plan = backend->create_plan(model.graph);
    if (rows_are_partial) {
      // The addends are 1001 times 0.75, 1 and 1.25. bf16 has 8 significant bits and cannot represent these products
      // exactly.
      for (int rank = 0; rank < 3; ++rank)
        test::write_values(shard(*model.weights.find("w"), rank), {0.75 + 0.25 * rank});
    } else {
      test::write_values(*model.weights.find("w"), {3});
    }
    test::write_values(*model.weights.find("k"), {7, 7});
    test::write_values(*model.graph.find("x"), {1001, 1367.25});
    test::write_values(*model.graph.find("i"), {1, 0});
    backend->compute_async(*plan);
    backend->synchronize();
    const test::Values rounded = test::read_values(*model.graph.find("d"));
    const test::Values expected = swapped ? test::Values{rounded[1], rounded[0]} : rounded;
    EXPECT_EQ(test::read_values(*model.graph.find("c")), expected) << type << ", partial rows: " << rows_are_partial;
    EXPECT_EQ(test::read_values(*model.weights.find("k")), expected);
  }
}

TEST_P(PartialCache, RoundsSumOfRowsOnce) {
  check_rounding(GetParam(), "set_rows(%k, %y, %i)", true);
}

TEST_P(PartialCache, RoundsSumOfSliceOnce) {
  check_rounding(GetParam(), "set_slice(%k, %y)", false);
}

INSTANTIATE_TEST_SUITE_P(Types, PartialCache, testing::Values(DType::kF32, DType::kF16, DType::kBF16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace shoal::meta
