#include "meta/device/transfer.h"

#include <gtest/gtest.h>

#include "graph/graph.h"
#include "meta/check/shard_elements.h"
#include "tests/meta/layouts.h"
#include "tests/support/random_graph.h"

namespace shoal::meta {
namespace {

using test::random_layout;

/// For one byte of a range: the number of accesses by one rank, and the offset of the accessed byte in the shard.
struct Touch {
  int times = 0;
  size_t local = 0;
};

std::vector<Touch> touched(const Shards& shards, int rank, size_t offset, size_t size, Access access) {
  std::vector<Touch> bytes(size);
  for (const Rectangle& r : rectangles(shards, rank, offset, size, access)) {
    for (size_t row = 0; row < r.local.rows; ++row) {
      for (size_t i = 0; i < r.local.row_bytes; ++i) {
        Touch& touch = bytes.at(r.host_offset + row * r.host_stride + i);
        ++touch.times;
        touch.local = r.local.offset + row * r.local.stride + i;
      }
    }
  }
  return bytes;
}

void expect_exact(const Tensor& tensor, const Shards& shards, int ranks, size_t offset, size_t size) {
  const DTypeTraits& type = traits(tensor.dtype);
  std::vector<int> readers(size, 0);
  for (int rank = 0; rank < ranks; ++rank) {
    const auto written = touched(shards, rank, offset, size, Access::kWrite);
    const auto read = touched(shards, rank, offset, size, Access::kRead);
    std::vector<Touch> expected(size);
    const auto elements = shard_elements(tensor.shape, shards.layout, rank);
    for (size_t local = 0; local < elements.size(); local += static_cast<size_t>(type.block_elems)) {
      const size_t block = static_cast<size_t>(elements[local] / type.block_elems);
      const size_t local_block = local / static_cast<size_t>(type.block_elems);
      for (size_t i = 0; i < type.block_bytes; ++i) {
        const size_t byte = block * type.block_bytes + i;
        if (byte < offset || byte >= offset + size) continue;
        expected[byte - offset] = {1, local_block * type.block_bytes + i};
      }
    }
    for (size_t i = 0; i < size; ++i) {
      ASSERT_EQ(written[i].times, expected[i].times) << "byte " << offset + i << " rank " << rank;
      if (written[i].times > 0) {
        ASSERT_EQ(written[i].local, expected[i].local);
      }
      ASSERT_LE(read[i].times, written[i].times);
      if (read[i].times > 0) {
        ASSERT_EQ(read[i].local, expected[i].local);
      }
      readers[i] += read[i].times;
    }
  }
  for (size_t i = 0; i < size; ++i)
    ASSERT_EQ(readers[i], 1) << "byte " << offset + i << " of " << shards.layout.to_string();
}

TEST(Transfer, TouchesEveryByteOfEveryRangeOnce) {
  std::mt19937_64 rng(7);
  static constexpr DType kTypes[] = {DType::kF32, DType::kF16, DType::kQ8_0, DType::kQ4_0};
  for (int round = 0; round < 400; ++round) {
    const DType dtype = kTypes[rng() % 4];
    const int64_t inner = traits(dtype).block_elems * static_cast<int64_t>(1 + rng() % 4);
    const int ranks = 1 + static_cast<int>(rng() % 4);
    TensorContext context;
    Tensor* tensor =
        context.add("t", dtype, {inner, 1 + static_cast<int64_t>(rng() % 4), 1 + static_cast<int64_t>(rng() % 3), 2});
    ShardStore store(ranks);
    const Shards& shards = store.declare(*tensor, random_layout(rng, *tensor, ranks, false));
    const size_t offset = rng() % tensor->bytes();
    const size_t size = rng() % (tensor->bytes() - offset + 1);
    ASSERT_NO_FATAL_FAILURE(expect_exact(*tensor, shards, ranks, offset, size));
    ASSERT_NO_FATAL_FAILURE(expect_exact(*tensor, shards, ranks, 0, tensor->bytes()));
  }
}

TEST(Transfer, RectanglesMatchExampleInHeader) {
  TensorContext context;
  Tensor* tensor = context.add("t", DType::kF32, {8, 3, 1, 1});
  ShardStore store(2);
  const Shards& shards = store.declare(*tensor, Layout::split(0, parse_partition(2, "6:{0} 2:{1}")));
  const auto first = rectangles(shards, 0, 4, 56, Access::kWrite);
  ASSERT_EQ(first.size(), 2u);
  EXPECT_EQ(first[0].local.offset, 4u);
  EXPECT_EQ(first[0].local.row_bytes, 20u);
  EXPECT_EQ(first[0].host_offset, 0u);
  EXPECT_EQ(first[1].local.offset, 24u);
  EXPECT_EQ(first[1].local.row_bytes, 24u);
  EXPECT_EQ(first[1].host_offset, 28u);
}

}  // namespace
}  // namespace shoal::meta
