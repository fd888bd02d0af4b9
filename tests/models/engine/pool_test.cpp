#include "models/engine/pool.h"

#include <gtest/gtest.h>

#include "models/engine/prefix_tree.h"
#include "models/engine/step_times.h"

namespace shoal::models {
namespace {

TEST(Pool, TakesUnitsWithoutContentsFirstAndThenTheOldest) {
  Pool pool(3);
  PrefixNode a, b;
  for (int32_t unit = 0; unit < 3; ++unit) EXPECT_EQ(pool.take().unit, unit);
  EXPECT_EQ(pool.free_units(), 0);
  pool.label(0, &a);
  pool.label(1, &b);
  pool.drop(1);
  pool.drop(0);
  pool.drop(2);
  EXPECT_EQ(pool.free_units(), 3);
  pool.hold(1);  // its contents are used again
  pool.drop(1);
  const Pool::Taken first = pool.take(), second = pool.take(), third = pool.take();
  EXPECT_EQ(first.unit, 2);
  EXPECT_EQ(first.lost, nullptr);
  EXPECT_EQ(second.unit, 0);
  EXPECT_EQ(second.lost, &a);
  EXPECT_EQ(third.unit, 1);
  EXPECT_EQ(third.lost, &b);
  EXPECT_EQ(pool.label_of(1), nullptr);
}

TEST(Pool, AUnitThatLosesItsLabelIsTakenFirst) {
  Pool pool(2);
  PrefixNode a, b;
  for (PrefixNode* node : {&a, &b}) pool.label(pool.take().unit, node);
  pool.drop(0);
  pool.drop(1);
  pool.label(1, nullptr);
  EXPECT_EQ(pool.take().unit, 1);
}

TEST(PrefixTree, FindsOnlyEqualTokensWithTheSameSaltAndForgetsUnusedNodes) {
  PrefixTree tree(1);
  const std::vector<int32_t> first{1, 2}, second{3, 4};
  PrefixNode& node = tree.add(tree.root("a"), first);
  PrefixNode& child = tree.add(node, second);
  EXPECT_EQ(&tree.add(node, second), &child);
  EXPECT_EQ(tree.find(tree.root("a"), first), &node);
  EXPECT_EQ(tree.find(tree.root("a"), second), nullptr);
  EXPECT_EQ(tree.find(tree.root("b"), first), nullptr);
  child.pages[0] = 7;
  tree.prune(node);  // has a child
  tree.prune(child);
  EXPECT_EQ(tree.nodes(), 2);
  child.pages[0] = -1;
  EXPECT_EQ(tree.roots(), 2);
  tree.prune(child);  // also removes the parent and the root "a"
  EXPECT_EQ(tree.nodes(), 0);
  EXPECT_EQ(tree.roots(), 1);
  EXPECT_EQ(tree.find(tree.root("a"), first), nullptr);
}

TEST(PrefixTree, DestroysLongChains) {
  PrefixTree tree(1);
  PrefixNode* node = &tree.root("");
  for (int32_t i = 0; i < 200'000; ++i) node = &tree.add(*node, std::vector<int32_t>{i});
  EXPECT_EQ(tree.nodes(), 200'000);
}

TEST(StepTimes, OneSlowStepDoesNotCountForever) {
  StepTimes times;
  EXPECT_EQ(times.seconds(8), 0);
  times.add(32, 0.3);
  EXPECT_DOUBLE_EQ(times.seconds(64), 0.6) << "at most proportional";
  EXPECT_DOUBLE_EQ(times.seconds(8), 0.3) << "a fixed cost";
  times.add(64, 10);
  EXPECT_DOUBLE_EQ(times.seconds(64), 0.6) << "32 tokens twice";
  EXPECT_LE(times.seconds(48), 0.45);
  times.add(8, 0.1);
  EXPECT_DOUBLE_EQ(times.seconds(20), 0.2);
  for (int i = 0; i < 100; ++i) times.add(32, 0.02);
  EXPECT_NEAR(times.seconds(64), 0.04, 1e-6);
  EXPECT_TRUE(times.knows(64));
  EXPECT_FALSE(times.knows(48));
}

}  // namespace
}  // namespace shoal::models
