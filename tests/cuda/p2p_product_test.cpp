// Products that are fused with the following all_reduce and norm. Results must match separate kernels bit for bit.
// Results must also match in long sequences of calls, and if other ranks use separate kernels. More tests are in
// p2p_product_launch_test.cpp and p2p_failure_test.cpp.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cuda/p2p_product.h"

namespace shoal::collectives::p2p {
namespace {

using testing::Each;

constexpr DType kKnown[] = {DType::kF32,  DType::kF16,  DType::kBF16, DType::kQ4_0,
                            DType::kQ8_0, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K};

class P2pProduct : public testing::TestWithParam<std::tuple<DType, int>> {
 protected:
  DType dtype() const { return std::get<0>(GetParam()); }
  int ranks() const { return std::get<1>(GetParam()); }
  uint32_t all() const { return (1u << ranks()) - 1; }
};

// One block or several blocks compute a row. Some threads have fewer groups of four elements than other threads. With k
// = 256, 512 and 768, one step of the kernel processes several rows of the matrix.
TEST_P(P2pProduct, MatchesSeparateKernelsBitForBit) {
  for (const auto& [k, row] :
       {std::pair<int64_t, int64_t>{2304, 64}, {4608, 132}, {256, 4100}, {512, 132}, {768, 260}}) {
    SCOPED_TRACE(row);
    Rig rig(ranks());
    auto products = products_of(rig, dtype(), k, row);
    const auto apart = run(rig, products, 0);
    EXPECT_EQ(run(rig, products, all()), apart);
    EXPECT_THAT(apart, Each(apart[0]));
  }
}
TEST_P(P2pProduct, RanksMayUseDifferentKernels) {
  Rig rig(ranks());
  auto products = products_of(rig, dtype(), 512, 1028);
  const auto apart = run(rig, products, 0);
  for (const uint32_t joined : {1u, all() - 1, 2u}) EXPECT_EQ(run(rig, products, joined), apart) << joined;
}
TEST_P(P2pProduct, ReadsARecordOfItsColumn) {
  Rig rig(ranks());
  for (const int64_t k : {512, 2304}) {
    auto products = products_of(rig, dtype(), k, 260);
    const auto expected = run(rig, products, all());
    for (const auto& product : products) EXPECT_EQ(product->take_record(), traits(dtype()).is_quantized);
    EXPECT_EQ(run(rig, products, all()), expected);
    EXPECT_EQ(run(rig, products, 0), expected);
  }
}
INSTANTIATE_TEST_SUITE_P(Types, P2pProduct, testing::Combine(testing::ValuesIn(kKnown), testing::Values(2, 3)),
                         [](const auto& info) {
                           return fmt::format("{}_{}_ranks", name_of(std::get<0>(info.param)), std::get<1>(info.param));
                         });

TEST(FusedP2pProduct, HandlesManyRanksAndTheLongestRow) {
  for (const auto& [ranks, row] : {std::pair{8, 512}, {2, 8192}}) {
    Rig rig(ranks);
    auto products = products_of(rig, DType::kQ8_0, 64, row);
    EXPECT_EQ(run(rig, products, (1u << ranks) - 1), run(rig, products, 0)) << ranks;
  }
}

// The kernel divides each result row into two or four parts. One or more blocks finish these parts.
TEST(FusedP2pProduct, ResultRowMayBeFinishedByAnyNumberOfBlocks) {
  for (const int blocks : {1, 2, 3, 4}) {
    for (const int64_t row : {2052, 6148, 8192}) {
      SCOPED_TRACE(testing::Message() << blocks << " " << row);
      Rig rig(3, blocks == 4 ? 3 : 1, {.max_blocks = blocks});
      auto products = products_of(rig, DType::kQ8_0, 64, row);
      const auto apart = run(rig, products, 0);
      EXPECT_EQ(run(rig, products, 7), apart);
      EXPECT_THAT(apart, Each(apart[0]));
    }
  }
}

// Some threads have fewer groups of four elements than other threads, even within a warp. The cases cover the fused
// kernel and separate kernels, unaligned rows, and rows sent as bf16.
TEST(FusedP2pProduct, WritesTheNormAsARecord) {
  const auto expect_record = [](int64_t row, size_t shift, P2pOptions options, uint32_t joined) {
    SCOPED_TRACE(testing::Message() << row << " " << shift << " " << options.bf16_wire << " " << joined);
    Rig rig(2, 1, options);
    auto products = products_of(rig, DType::kQ8_0, 64, row, shift);
    const auto plain = run(rig, products, joined);
    for (const auto& product : products) product->want_records({row != 8192, row % 256 == 0});
    EXPECT_EQ(run(rig, products, joined), plain);
    for (const auto& product : products) {
      const auto [left, expected] = product->record(DType::kQ8_0);
      EXPECT_EQ(left == expected, row != 8192) << "two groups";
      if (row % 256 != 0) continue;
      const auto [left_of_four, expected_of_four] = product->record(DType::kQ6_K);
      EXPECT_TRUE(left_of_four == expected_of_four) << "four groups";
    }
  };
  for (const int64_t row : {64, 2880, 4352, 8192}) {
    for (const uint32_t joined : {0u, 3u}) expect_record(row, 0, {}, joined);
  }
  expect_record(2880, 1, {}, 0);
  expect_record(4352, 0, {.bf16_wire = true}, 0);
}

TEST(FusedP2pProduct, ReportsSupportedTypes) {
  uint64_t dtypes = 0;
  for (const DType dtype : kKnown) dtypes |= uint64_t{1} << static_cast<int>(dtype);
  EXPECT_EQ(product_norm_dtypes(), dtypes);
  EXPECT_EQ(Rig(2).communicator().fused_limits().products, dtypes);
  EXPECT_EQ(Rig(2, 1, {.bf16_wire = true}).communicator().fused_limits().products, 0) << "the kernels send f32";
  EXPECT_EQ(Rig(1).communicator().fused_limits().products, 0);
}

// The ranks mix all kinds of calls, so that each of the two sets of packets is used many times.
TEST(FusedP2pProduct, RunsManyConsecutiveCalls) {
  Rig rig(3);
  auto products = products_of(rig, DType::kQ8_0, 64, 260);
  const auto expected = run(rig, products, 0);
  std::vector<Case> cases;
  for (int i = 0; i < 6; ++i) cases.push_back(all_reduce_case(3, DType::kF32, i % 2 == 0 ? 1000 : 100'000, i));
  for (Case& test : cases) test.prepare(rig);
  for (const auto& product : products) product->clear();
  for (int rank = 0; rank < 3; ++rank) {
    RankProduct& own = *products[static_cast<size_t>(rank)];
    for (int i = 0; i < 18; ++i) {
      (i + rank) % 5 != 0 ? own.launch_joined(rig.communicator(), rank) : own.launch_apart(rig.communicator(), rank);
      if (i % 3 == 0) rig.communicator().launch(rank, cases[static_cast<size_t>(i / 3)].calls[rank]);
    }
  }
  rig.synchronize_and_check();
  for (size_t rank = 0; rank < 3; ++rank) EXPECT_EQ(products[rank]->results(), expected[rank]) << rank;
  for (const Case& test : cases) test.verify();
}

}  // namespace
}  // namespace shoal::collectives::p2p
