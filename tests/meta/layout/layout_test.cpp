#include "meta/layout/layout.h"

#include <gmock/gmock.h>

#include <numeric>
#include <random>

#include "base/error.h"
#include "tests/meta/layouts.h"

namespace shoal::meta {
namespace {

using Indices = std::vector<int64_t>;

int64_t count(const Shape& shape) {
  return shape[0] * shape[1] * shape[2] * shape[3];
}

bool owns(const Partition& partition, int64_t index, int device) {
  for (const OwnedRun& run : partition.owned_by(device)) {
    if (index >= run.begin && index < run.begin + run.length) return true;
  }
  return false;
}

/// Flat indices of the elements that a device owns, in the order of the device's shard.
Indices held(const Layout& layout, const Shape& shape, int device) {
  Indices indices;
  for (int64_t flat = 0; flat < count(shape); ++flat) {
    int64_t rest = flat, coordinate = 0;
    for (int a = 0; a < kMaxDims; ++a) {
      if (a == layout.axis) coordinate = rest % shape[a];
      rest /= shape[a];
    }
    if (!layout.is_split() || owns(layout.partition, coordinate, device)) indices.push_back(flat);
  }
  return indices;
}

/// The owners of every element. The tests use these lists to compare layouts of different shapes.
std::vector<Owners> owners_of(const Layout& layout, const Shape& shape, int devices) {
  std::vector<Owners> owners(count(shape));
  for (int d = 0; d < devices; ++d) {
    for (int64_t flat : held(layout, shape, d)) owners[flat].push_back(d);
  }
  return owners;
}

/// Decides by brute force whether the owners depend only on the coordinate of one axis of `to`.
bool is_expressible(const std::vector<Owners>& owners, const Shape& to) {
  int64_t inner = 1;
  for (int b = 0; b < kMaxDims; ++b) {
    std::vector<const Owners*> by_coordinate(to[b], nullptr);
    bool fits = true;
    for (int64_t flat = 0; flat < static_cast<int64_t>(owners.size()) && fits; ++flat) {
      const Owners*& seen = by_coordinate[flat / inner % to[b]];
      if (seen && *seen != owners[flat]) fits = false;
      seen = &owners[flat];
    }
    if (fits) return true;
    inner *= to[b];
  }
  return false;
}

std::vector<Shape> shapes_with(int64_t elements) {
  std::vector<Shape> shapes;
  for (int64_t a = 1; a <= elements; ++a) {
    for (int64_t b = 1; a * b <= elements; ++b) {
      for (int64_t c = 1; a * b * c <= elements; ++c) {
        if (elements % (a * b * c) == 0) shapes.push_back({a, b, c, elements / (a * b * c)});
      }
    }
  }
  return shapes;
}

std::vector<Partition> partitions_of(int64_t length, std::mt19937& random) {
  std::vector<Partition> partitions{
      Partition::even(1, length),       Partition::even(2, length),
      Partition::even(3, length),       Partition::from_shares(std::vector<int64_t>{0, length, 0}),
      Partition(2, {{length, {0, 1}}}),
  };
  if (length % 2 == 0) partitions.push_back(Partition::even(2, length / 2).tile(2));
  for (int devices : {2, 3, 16}) {
    std::vector<Run> runs;
    for (int64_t left = length; left > 0;) {
      const int64_t take = 1 + random() % left;
      runs.push_back({take, {static_cast<int>(random() % devices), static_cast<int>(random() % devices)}});
      left -= take;
    }
    partitions.emplace_back(devices, runs);
  }
  return partitions;
}

TEST(Layout, ReshapeFindsALayoutIfAndOnlyIfOneExists) {
  std::mt19937 random(11);
  int expressible = 0, refused = 0;
  for (int64_t elements : {1, 2, 6, 8, 12, 24}) {
    const std::vector<Shape> shapes = shapes_with(elements);
    for (size_t i = 0; i < shapes.size(); i += elements > 12 ? 3 : 1) {
      const Shape& from = shapes[i];
      for (int axis = 0; axis < kMaxDims; ++axis) {
        for (const Partition& partition : partitions_of(from[axis], random)) {
          const Layout layout = Layout::split(axis, partition);
          const std::vector<Owners> owners = owners_of(layout, from, partition.devices());
          for (const Shape& to : shapes) {
            const auto result = reshape_layout(layout, from, to);
            const std::string what =
                fmt::format("{} of {} to {}", layout.to_string(), shoal::to_string(from), shoal::to_string(to));
            ASSERT_EQ(result.has_value(), is_expressible(owners, to)) << what;
            ++(result ? expressible : refused);
            if (!result) continue;
            ASSERT_NO_THROW(check_layout(*result, DType::kF32, to, partition.devices(), what)) << what;
            ASSERT_EQ(owners_of(*result, to, partition.devices()), owners) << what << result->to_string();
            for (int d = 0; d < partition.devices(); ++d) {
              ASSERT_EQ(held(layout, from, d), held(*result, to, d)) << what;
              ASSERT_EQ(count(result->local_shape(to, d)), count(layout.local_shape(from, d))) << what;
            }
            if (to == from) {
              ASSERT_EQ(*result, layout) << what;
            }
          }
        }
      }
    }
  }
  EXPECT_GT(expressible, 10000);
  EXPECT_GT(refused, 10000);
}

TEST(Layout, ReshapeMatchesExamples) {
  const auto split = [](int axis, const char* text) { return Layout::split(axis, parse_partition(2, text)); };
  EXPECT_EQ(reshape_layout(split(1, "6:{0} 2:{1}"), {32, 8, 1, 1}, {256, 1, 1, 1}), split(0, "192:{0} 64:{1}"));
  EXPECT_EQ(reshape_layout(split(0, "100:{0} 156:{1}"), {256, 1, 1, 1}, {32, 8, 1, 1}), std::nullopt);
  EXPECT_EQ(reshape_layout(split(0, "192:{0} 64:{1}"), {256, 5, 1, 1}, {32, 8, 5, 1}), split(1, "6:{0} 2:{1}"));
  // All elements are on one device. The split axis becomes the axis of heads, not the axis of elements.
  EXPECT_EQ(reshape_layout(split(0, "256:{0}"), {256, 5, 1, 1}, {32, 8, 5, 1}), split(1, "8:{0}"));
  // Merging an inner axis with an outer axis gives an interleaved partition.
  EXPECT_EQ(reshape_layout(split(0, "3:{0} 1:{1}"), {4, 3, 1, 1}, {12, 1, 1, 1})->to_string(),
            "split 0 [(3:{0} 1:{1}) x 3]");
  EXPECT_EQ(reshape_layout(Layout::partial(), {4, 3, 1, 1}, {12, 1, 1, 1}), Layout::partial());
  EXPECT_EQ(reshape_layout(Layout::mirrored(), {4, 3, 1, 1}, {12, 1, 1, 1}), Layout::mirrored());
}

TEST(Layout, ReshapeOfLongAxesIsFast) {
  const Layout heads = Layout::split(0, Partition::even(64, 8192));
  const auto result = reshape_layout(heads, {8192, 4096, 1, 1}, {128, 64, 4096, 1});
  ASSERT_TRUE(result);
  EXPECT_EQ(*result, Layout::split(1, Partition::even(64, 64)));
}

TEST(Layout, ReshapeOfEmptyTensorGivesEmptyShards) {
  const Layout split = Layout::split(1, Partition(2, {}));
  const auto result = reshape_layout(split, {4, 0, 3, 1}, {12, 0, 1, 1});
  ASSERT_TRUE(result);
  for (int d = 0; d < 2; ++d) EXPECT_EQ(count(result->local_shape({12, 0, 1, 1}, d)), 0);
}

TEST(Layout, SliceKeepsElementsOnTheirDevices) {
  std::mt19937 random(5);
  const Shape shape{3, 8, 2, 1};
  for (int axis = 0; axis < kMaxDims; ++axis) {
    for (const Partition& partition : partitions_of(shape[axis], random)) {
      const Layout layout = Layout::split(axis, partition);
      for (int on = 0; on < kMaxDims; ++on) {
        for (int64_t begin = 0; begin <= shape[on]; ++begin) {
          for (int64_t length = 0; begin + length <= shape[on]; ++length) {
            const Layout result = slice_layout(layout, {on, begin, length}).value();
            for (int d = 0; d < partition.devices(); ++d) {
              const SliceParams local = local_slice(layout, {on, begin, length}, d);
              Shape sliced = shape;
              sliced[on] = length;
              Shape expected = layout.local_shape(shape, d);
              expected[on] = local.length;
              ASSERT_EQ(result.local_shape(sliced, d), expected);
              if (on != axis) continue;
              // The local range contains exactly the owned elements of the global range.
              int64_t before = 0;
              for (int64_t i = 0; i < begin; ++i) before += owns(partition, i, d);
              ASSERT_EQ(local.begin, before);
            }
          }
        }
      }
    }
  }
}

/// The indices that a device owns, in the order of its shard.
std::vector<int64_t> shard_of(const Partition& partition, int device) {
  std::vector<int64_t> indices;
  for (int64_t i = 0; i < partition.length(); ++i) {
    if (owns(partition, i, device)) indices.push_back(i);
  }
  return indices;
}

/// Compares slices with a step with lists of indices. If a device's part is not a slice of its shard, no layout exists.
TEST(Layout, SliceWithStepSelectsTheOwnedIndices) {
  std::mt19937 random(6);
  int exact = 0, rejected = 0;
  for (const int64_t length : {1, 7, 12}) {
    for (const Partition& partition : partitions_of(length, random)) {
      for (int64_t step = 2; step <= 4; ++step) {
        for (int64_t begin = 0; begin < length; ++begin) {
          const int64_t most = (length - begin - 1) / step + 1;
          const SliceParams slice{1, begin, std::max<int64_t>(most - begin % 2, 0), step};
          const auto layout = slice_layout(Layout::split(1, partition), slice);
          bool expressible = true;
          for (int d = 0; d < partition.devices(); ++d) {
            const std::vector<int64_t> shard = shard_of(partition, d);
            std::vector<int64_t> places;  // of the selected indices in the shard
            for (int64_t i = 0; i < static_cast<int64_t>(shard.size()); ++i) {
              const int64_t behind = shard[static_cast<size_t>(i)] - begin;
              if (behind >= 0 && behind % step == 0 && behind / step < slice.length) places.push_back(i);
            }
            for (size_t i = 1; i < places.size(); ++i) expressible &= places[i] - places[i - 1] == step;
            if (!layout) continue;
            const SliceParams local = local_slice(Layout::split(1, partition), slice, d);
            ASSERT_EQ(layout->partition.local_length(d), static_cast<int64_t>(places.size()));
            ASSERT_EQ(local.length, static_cast<int64_t>(places.size()));
            ASSERT_EQ(local.step, step);
            ASSERT_TRUE(places.empty() || local.begin == places[0]);
          }
          ASSERT_EQ(layout.has_value(), expressible) << partition.to_string() << " from " << begin << " by " << step;
          (layout ? exact : rejected) += 1;
          for (int64_t i = 0; layout && i < slice.length; ++i) {
            for (int d = 0; d < partition.devices(); ++d) {
              ASSERT_EQ(owns(layout->partition, i, d), owns(partition, begin + i * step, d));
            }
          }
        }
      }
    }
  }
  EXPECT_GT(exact, 20);
  EXPECT_GT(rejected, 10);
}

TEST(Layout, PermuteMovesSplitAxis) {
  std::array<int, 4> axes{0, 1, 2, 3};
  do {
    for (int axis = 0; axis < kMaxDims; ++axis) {
      const Layout layout = Layout::split(axis, Partition::even(2, 5));
      const Layout result = permute_layout(layout, axes);
      EXPECT_EQ(axes[result.axis], axis);
      EXPECT_EQ(result.partition, layout.partition);
    }
    EXPECT_EQ(permute_layout(Layout::partial(), axes), Layout::partial());
  } while (std::next_permutation(axes.begin(), axes.end()));
}

TEST(Layout, LocalShapeAndTextMatchExamples) {
  const Layout layout = Layout::split(1, parse_partition(3, "6:{0} 2:{1}"));
  EXPECT_EQ(layout.local_shape({256, 8, 1, 1}, 1), (Shape{256, 2, 1, 1}));
  EXPECT_EQ(layout.local_shape({256, 8, 1, 1}, 2), (Shape{256, 0, 1, 1}));
  EXPECT_EQ(layout.to_string(), "split 1 [6:{0} 2:{1}]");
  EXPECT_EQ(Layout::mirrored().to_string(), "mirrored");
  EXPECT_EQ(Layout::partial().to_string(), "partial");
}

TEST(Layout, ErrorsNameTensorAndLengths) {
  const auto message = [](const Layout& layout, DType dtype, Shape shape) -> std::string {
    try {
      check_layout(layout, dtype, shape, 2, "blk.0.attn_q");
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "";
  };
  const Layout rows = Layout::split(1, parse_partition(2, "192:{0} 58:{1}"));
  EXPECT_THAT(message(rows, DType::kF32, {256, 256, 1, 1}),
              testing::AllOf(testing::HasSubstr("blk.0.attn_q"), testing::HasSubstr("250, expected 256")));
  const Layout cut = Layout::split(0, parse_partition(2, "48:{0} 16:{1}"));
  EXPECT_THAT(message(cut, DType::kQ8_0, {64, 2, 1, 1}), testing::HasSubstr("cut at 48"));
  EXPECT_EQ(message(cut, DType::kF32, {64, 2, 1, 1}), "");
  EXPECT_EQ(message(Layout::split(0, parse_partition(2, "32:{0} 32:{1}")), DType::kQ8_0, {64, 2, 1, 1}), "");
  EXPECT_NE(message(Layout::split(0, Partition::even(3, 64)), DType::kF32, {64, 2, 1, 1}), "");
  EXPECT_NE(message(Layout::split(4, Partition::even(2, 1)), DType::kF32, {64, 2, 1, 1}), "");
}

}  // namespace
}  // namespace shoal::meta
