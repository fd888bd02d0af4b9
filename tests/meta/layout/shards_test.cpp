#include "meta/layout/shards.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/meta/layouts.h"

namespace shoal::meta {
namespace {

TEST(ShardStore, DeclaredTensorsHaveOneLocalTensorPerRank) {
  ShardStore store(3);
  const Tensor q = weight(DType::kQ8_0, {64, 8, 1, 1});
  EXPECT_EQ(store.find(q), nullptr);
  const Shards& shards = store.declare(q, Layout::split(1, parse_partition(3, "6:{0} 2:{2}")));
  ASSERT_EQ(shards.local.size(), 3u);
  EXPECT_EQ(shards.local[0]->shape, (Shape{64, 6, 1, 1}));
  EXPECT_EQ(shards.local[1]->shape, (Shape{64, 0, 1, 1}));
  EXPECT_EQ(shards.local[2]->bytes(), 2u * 68u);
  EXPECT_EQ(shards.local[2]->name, q.name);
  EXPECT_EQ(shards.local[2]->role, Role::kWeight);
  EXPECT_TRUE(shards.local[2]->is_contiguous());
  EXPECT_EQ(store.find(q), &shards);
  EXPECT_THROW(store.declare(q, Layout::mirrored()), InvalidArgument);
  store.erase(q);
  EXPECT_EQ(store.find(q), nullptr);
  EXPECT_THROW(store.declare(q, Layout::split(1, Partition::even(2, 8))), InvalidArgument);
}

}  // namespace
}  // namespace shoal::meta
