#include "meta/plan/joined_norm.h"

#include <gmock/gmock.h>

#include <array>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "graph/memory_plan.h"
#include "tests/meta/norm_graph.h"

namespace shoal::meta {
namespace {

using collectives::FusedNorm;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr size_t kRoom = 0x10000;  ///< bytes reserved for each tensor

struct PlacedOptions {
  std::vector<int> cuts = {};
  const char* shown = nullptr;  ///< name of a node in PlanOptions::shown
  test::Layouts layouts = test::norm_layouts(2);
  int64_t rows = 1000;  ///< maximum number of rows that the communicator fuses
  std::vector<DType> products = {};
};

/// A plan whose tensors have fake addresses and no memory. Node i of a rank is at address (rank + 1) * 2^32 + i *
/// kRoom. The addresses of leaves follow the addresses of nodes.
struct Placed {
  explicit Placed(const std::string& text, const PlacedOptions& options = {}) : store(2) {
    parse_graph(text, graph, weights);
    for (const Tensor* leaf : weights.tensors()) {
      const auto it = options.layouts.find(leaf->name);
      store.declare(*leaf, it == options.layouts.end() ? Layout::mirrored() : it->second);
    }
    const std::vector<Device*> devices(2, &Registry::instance().device("NULL0"));
    PlanContext context{[&](const Tensor& tensor) { return store.find(tensor); }};
    context.communicator.fused = {8192, options.rows, 1 << 20};
    for (const DType weights : options.products) {
      context.communicator.fused.products |= uint64_t{1} << static_cast<int>(weights);
    }
    PlanOptions plan_options{.cuts = options.cuts};
    if (options.shown != nullptr) plan_options.shown.push_back(graph.find(options.shown));
    plan = make_plan(whole(graph), context, devices, plan_options);
    for (size_t rank = 0; rank < 2; ++rank) {
      plan.devices[rank] = fmt::format("dev{}", rank);
      size_t next = (rank + 1) << 32;
      const auto give = [&](Tensor* tensor) { tensor->data = reinterpret_cast<std::byte*>(next += kRoom); };
      for (Tensor* node : plan.ranks[rank].graph->nodes()) {
        if (!is_view(node->op)) give(node);
      }
      for (Tensor* leaf : plan.ranks[rank].graph->leaves()) give(leaf);
      for (Tensor* node : plan.ranks[rank].graph->nodes()) {
        if (is_view(node->op)) node->data = node->view_base->data + node->view_offset;
      }
    }
  }
  Tensor& local(int rank, std::string_view name) {
    Graph& own = *plan.ranks[static_cast<size_t>(rank)].graph;
    for (Tensor* node : own.nodes()) {
      if (node->name == name) return *node;
    }
    for (Tensor* leaf : own.leaves()) {
      if (leaf->name == name) return *leaf;
    }
    throw std::runtime_error("no " + std::string(name));
  }
  /// Moves `result` to the address of `source` plus `offset` bytes.
  Placed& put(int rank, std::string_view result, std::string_view source, size_t offset = 0) {
    local(rank, result).data = local(rank, source).data + offset;
    return *this;
  }
  /// The tensors whose all_reduce is joined with the norm.
  std::vector<std::string> joined() const {
    std::vector<std::string> found;
    for (const Step& step : plan.steps) {
      if (is_joined(step)) found.push_back(step.tensor);
    }
    return found;
  }
  /// The tensors whose all_reduce is also joined with the product on rank 0 or rank 1.
  std::vector<std::string> with_product() const {
    std::vector<std::string> found;
    for (size_t step = 0; step < plan.steps.size(); ++step) {
      if (!is_joined(plan.steps[step])) continue;
      if (call(step, 0).product || call(step, 1).product) found.push_back(plan.steps[step].tensor);
    }
    return found;
  }
  FusedNorm call(size_t step, size_t rank) const {
    return joined_norm(*plan.ranks[rank].graph, plan.steps[step].ranges[rank], plan.steps[step].tensor.c_str());
  }
  /// Returns true if joined_norm() accepts the current addresses for every joined all_reduce.
  bool can_run() const {
    try {
      for (size_t step = 0; step < plan.steps.size(); ++step) {
        for (size_t rank = 0; rank < 2 && is_joined(plan.steps[step]); ++rank) call(step, rank);
      }
      return true;
    } catch (const InternalError&) {
      return false;
    }
  }

  TensorContext weights;
  Graph graph{"blocks"};
  ShardStore store;
  Plan plan;
};

using Names = std::vector<std::string>;
const Names kBoth{"y", "y2"}, kSecond{"y2"}, kFirst{"y"}, kNone;

TEST(JoinedNorm, PrintedPlanNamesJoinedNodes) {
  Placed placed(test::norm_graph(3));
  EXPECT_EQ(placed.joined(), kBoth);
  EXPECT_EQ(steps_text(placed.plan), R"(steps (nodes of the local graphs)
     0  compute         dev0: 0-1, dev1: 0-1
     1  all_reduce      y  f32 x 192  768 bytes  with add, rms_norm, mul
     2  compute         dev0: 6-7, dev1: 6-7
     3  all_reduce      y2  f32 x 192  768 bytes  with add, rms_norm, mul
     4  compute         dev0: 12, dev1: 12
)");
  const auto json = nlohmann::json::parse(to_json(placed.plan));
  EXPECT_EQ(json["steps"][3]["with"], (Names{"add", "rms_norm", "mul"}));
  EXPECT_FALSE(json["steps"][2].contains("with"));
  EXPECT_THAT(local_text(placed.plan, 1), HasSubstr("step 2 compute\n     6  "));
}

TEST(JoinedNorm, CallHasAddressesAndShapesOfItsNodes) {
  Placed placed(test::norm_graph(3));
  const auto at = [&](std::string_view name) { return reinterpret_cast<const float*>(placed.local(1, name).data); };
  const FusedNorm first = placed.call(1, 1);
  EXPECT_EQ(first.in, at("y"));
  EXPECT_EQ(first.residual, at("x"));
  EXPECT_EQ(first.weight, at("scale"));
  EXPECT_EQ(first.sum, at("r"));
  EXPECT_EQ(first.normed, at("m"));
  EXPECT_EQ(first.row, 64);
  EXPECT_EQ(first.rows, 3);
  EXPECT_EQ(first.epsilon, std::get<NormParams>(placed.local(1, "n").params).eps);
  EXPECT_STREQ(first.what, "y");
  const FusedNorm second = placed.call(3, 1);
  EXPECT_EQ(second.in, at("y2"));
  EXPECT_EQ(second.residual, at("r"));
  EXPECT_EQ(second.weight, at("scale"));
  EXPECT_EQ(second.sum, at("r2"));
  EXPECT_EQ(second.normed, at("m2"));
}

TEST(JoinedNorm, CallMayBeginWithProductOfOneRow) {
  Placed placed(test::norm_graph(1), {.products = {DType::kF32}});
  EXPECT_EQ(placed.with_product(), kBoth);
  EXPECT_EQ(steps_text(placed.plan), R"(steps (nodes of the local graphs)
     0  compute         dev0: 0, dev1: 0
     1  all_reduce      y  f32 x 64  256 bytes  with mul_mat, add, rms_norm, mul
     2  compute         dev0: 6, dev1: 6
     3  all_reduce      y2  f32 x 64  256 bytes  with mul_mat, add, rms_norm, mul
     4  compute         dev0: 12, dev1: 12
)");
  EXPECT_EQ(placed.call(1, 1).product, &placed.local(1, "y"));
  EXPECT_EQ(placed.call(3, 0).product, &placed.local(0, "y2"));
  EXPECT_EQ(placed.call(3, 0).residual, reinterpret_cast<const float*>(placed.local(0, "r").data));
  const RankPlan& rank = placed.plan.ranks[1];
  ASSERT_EQ(rank.fused.size(), 2u);
  EXPECT_EQ(rank.fused[0].begin, placed.local(1, "y").id) << "sources of the product stay until the call ends";
}

TEST(JoinedNorm, UnsupportedProductsAreNotJoined) {
  const auto with_product = [](const std::string& text, PlacedOptions options = {}) {
    options.products = {DType::kF32};
    return Placed(text, options).with_product();
  };
  EXPECT_EQ(with_product(test::norm_graph(2)), kNone) << "a product of several rows";
  EXPECT_EQ(Placed(test::norm_graph(1), {.products = {DType::kF16, DType::kQ4_K}}).with_product(), kNone)
      << "weight types that the communicator does not support";
  EXPECT_EQ(Placed(test::norm_graph(1)).with_product(), kNone);
  EXPECT_EQ(with_product(test::norm_graph(1), {.rows = 0}), kNone) << "the communicator fuses nothing";
  EXPECT_EQ(with_product(test::norm_graph(1), {.cuts = {1}}), kSecond)
      << "a cut before the product: the step has no other node";
  EXPECT_EQ(with_product(test::norm_graph(1), {.cuts = {2}}), kSecond) << "a cut after the product";
  const auto with_late = [&](const std::string& late) {
    std::string text = test::norm_graph(1);
    const std::string product = "%y = mul_mat(%down, %h)\n";
    return text.replace(text.find(product), product.size(), product + late);
  };
  EXPECT_EQ(with_product(with_late("%v = unary(%x) {kind=silu}\noutput %v\n")), kSecond)
      << "another node runs between the product and the all_reduce";
  EXPECT_EQ(with_product(with_late("%v = reshape(%x) {shape=[32,2,1,1]}\n")), kBoth) << "a view runs no kernel";
}

TEST(JoinedNorm, ProductsWithOtherReadersAreNotJoined) {
  const auto with_product = [](const std::string& text, PlacedOptions options = {}) {
    options.products = {DType::kF32};
    return Placed(text, options).with_product();
  };
  EXPECT_EQ(with_product(test::norm_graph(1, "output %out\noutput %y")), kSecond) << "an output";
  EXPECT_EQ(with_product(test::norm_graph(1), {.shown = "y"}), kSecond);
  const auto product_as = [](const std::string& nodes) {
    const std::string product = "%y = mul_mat(%down, %h)\n";
    std::string text = test::norm_graph(1);
    return text.replace(text.find(product), product.size(), nodes);
  };
  EXPECT_EQ(with_product(product_as("%d = scale(%down) {scale=2, bias=0}\n%y = mul_mat(%d, %h)\n")), kSecond)
      << "a computed matrix";
  EXPECT_EQ(with_product(product_as("%g = cast(%h) {dtype=f16}\n%y = mul_mat(%down, %g)\n")), kSecond)
      << "a column of f16";
  // One rank computes no part of the product. In the second graph, another node runs between the first product and its
  // all_reduce, so this product is not joined with the all_reduce.
  const auto split = [](int axis, int64_t first) {
    return Layout::split(axis, Partition::from_shares(std::vector<int64_t>{first, 96 - first}));
  };
  for (const int64_t first : {0, 96}) {
    const PlacedOptions options{.layouts = {{"up", split(1, first)}, {"down", split(0, first)}}};
    EXPECT_EQ(with_product(test::norm_graph(1), options), kBoth);
    EXPECT_EQ(with_product(product_as("%y = mul_mat(%down, %h)\n%v = unary(%h) {kind=silu}\noutput %v\n"), options),
              kSecond)
        << first;
  }
}

/// A joined call may also compute the product. In the memory plan, the input column of this product does not overlap
/// the results of the call.
TEST(JoinedNorm, ColumnOfProductDoesNotOverlapResultsOfCall) {
  Placed placed(test::norm_graph(1), {.products = {DType::kF32}});
  for (RankPlan& rank : placed.plan.ranks) {
    MemoryPlanOptions options;
    options.alignment = 4;
    options.fused = rank.fused;
    const MemoryPlan memory = plan_memory(whole(*rank.graph), options);
    for (const auto& [name, column] : {std::pair{"m", "h"}, {"r", "h"}, {"m2", "h2"}, {"r2", "h2"}}) {
      const auto place = [&](const char* tensor) {
        for (const Tensor* node : rank.graph->nodes()) {
          if (node->name == tensor) return memory.tensors.at(node);
        }
        throw std::runtime_error(tensor);
      };
      const MemoryPlace result = place(name), source = place(column);
      EXPECT_TRUE(result.offset + result.size <= source.offset || source.offset + source.size <= result.offset)
          << name << " overlaps the column of the product";
    }
  }
}

TEST(JoinedNorm, ValuesWithOtherReadersAreComputed) {
  EXPECT_EQ(Placed(test::norm_graph(1, "output %out\noutput %n")).joined(), kSecond);
  EXPECT_EQ(Placed(test::norm_graph(1, "output %out", "%also = unary(%n) {kind=silu}")).joined(), kSecond);
  EXPECT_EQ(Placed(test::norm_graph(1, "output %out\noutput %r\noutput %m\noutput %m2")).joined(), kBoth)
      << "the call writes these values";
  Placed read_again(
      test::norm_graph(1, "output %out", "%v = reshape(%n) {shape=[32,2,1,1]}\n%also = unary(%v) {kind=silu}"));
  EXPECT_EQ(read_again.joined(), kSecond) << "read through a view";
  Placed reduced(test::norm_graph(1, "output %out\noutput %also", "%also = unary(%y) {kind=silu}"));
  EXPECT_EQ(reduced.joined(), kSecond) << "the sum of the ranks is read twice";
}

TEST(JoinedNorm, ValuesReadBetweenSegmentsAreComputed) {
  for (const auto& [name, expected] : {std::pair{"n", kSecond}, {"n2", kFirst}, {"m", kBoth}, {"r", kBoth}}) {
    EXPECT_EQ(Placed(test::norm_graph(1), {.shown = name}).joined(), expected) << name;
  }
}

TEST(JoinedNorm, NodesAreNotJoinedAcrossCut) {
  for (int node = 1; node < 11; ++node) {
    Placed placed(test::norm_graph(1), {.cuts = {node}});
    // The nodes are 0 h, 1 y, 2 r, 3 n, 4 m, 5 h2, 6 y2, 7 r2, 8 n2, 9 m2 and 10 out. The plan adds an all_reduce of y
    // just before r, and an all_reduce of y2 just before r2.
    const bool cuts_first = node == 3 || node == 4, cuts_second = node == 8 || node == 9;
    EXPECT_EQ(placed.joined(), cuts_first ? kSecond : cuts_second ? kFirst : kBoth) << node;
  }
}

TEST(JoinedNorm, UnsupportedShapesAreNotJoined) {
  EXPECT_EQ(Placed(test::norm_graph(3, "output %out", "", "[64, 3]")).joined(), kNone) << "a weight for each row";
  EXPECT_EQ(Placed(test::norm_graph(3), {.rows = 2}).joined(), kNone) << "the communicator fuses fewer rows";
  EXPECT_EQ(Placed(test::norm_graph(3), {.rows = 3}).joined(), kBoth);
  EXPECT_EQ(Placed(test::norm_graph(1), {.rows = 0}).joined(), kNone) << "the communicator fuses nothing";
  EXPECT_EQ(Placed(test::norm_graph(1), {.layouts = {}}).joined(), kNone) << "no collectives";
}

// A joined call may read the factor before earlier work has finished. So the factor must be a weight that no node
// writes.
TEST(JoinedNorm, ComputedOrOverwrittenFactorPreventsJoining) {
  const auto with = [](std::string_view from, std::string_view to) {
    std::string text = test::norm_graph(1);
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos);
    return Placed(text.replace(at, from.size(), to)).joined();
  };
  EXPECT_EQ(with("%h = ", "%h = "), kBoth);
  EXPECT_EQ(
      with("%h = mul_mat(%up, %x)\n%y = mul_mat(%down, %h)\n%r = add(%x, %y)\n%n = rms_norm(%r)\n%m = mul(%n, %scale)",
           "%half = scale(%scale) {scale=0.5, bias=0}\n%h = mul_mat(%up, %x)\n%y = mul_mat(%down, %h)\n"
           "%r = add(%x, %y)\n%n = rms_norm(%r)\n%m = mul(%n, %half)"),
      kSecond);
  EXPECT_EQ(with("weight %scale", "input %scale"), kNone);
}

TEST(JoinedNorm, ResultsMayReuseMemoryOfSources) {
  for (const char* sum : {"y", "x"}) {
    Placed placed(test::norm_graph(2));
    EXPECT_TRUE(placed.put(0, "r", sum).put(1, "r", sum).can_run());
    Placed other(test::norm_graph(2));
    EXPECT_TRUE(other.put(0, "m", sum).put(1, "m", sum).can_run());
  }
  Placed crossed(test::norm_graph(2));
  for (int rank : {0, 1}) crossed.put(rank, "r", "y").put(rank, "m", "x");
  EXPECT_TRUE(crossed.can_run());
  Placed last(test::norm_graph(2));
  EXPECT_TRUE(last.put(0, "m2", "r2").put(1, "m2", "r2").can_run()) << "nothing else reads the second sum";
  EXPECT_EQ(last.call(3, 0).sum, nullptr);
  EXPECT_NE(last.call(1, 0).sum, nullptr);
  Placed unused(test::norm_graph(2));
  for (int rank : {0, 1}) unused.put(rank, "n", "y", 64).put(rank, "y.all_reduce.2", "x", 8);
  EXPECT_TRUE(unused.can_run()) << "the call does not write these values";
}

TEST(JoinedNorm, RefusesResultsThatPartlyOverlapSources) {
  for (int rank : {0, 1}) {
    for (const char* result : {"r", "m"}) {
      for (const char* source : {"x", "y"}) {
        for (size_t offset : {size_t{4}, size_t{256}, size_t{508}}) {
          Placed placed(test::norm_graph(2));
          EXPECT_FALSE(placed.put(rank, result, source, offset).can_run()) << result << " overlaps " << source;
        }
        Placed behind(test::norm_graph(2));
        EXPECT_TRUE(behind.put(rank, result, source, 512).can_run()) << result << " after " << source;
      }
      for (size_t offset : {size_t{0}, size_t{252}}) {
        Placed placed(test::norm_graph(2));
        placed.local(rank, "scale").data = placed.local(rank, result).data + offset;
        EXPECT_FALSE(placed.can_run()) << result << " overlaps the weight";
      }
    }
    Placed shifted(test::norm_graph(2));
    EXPECT_FALSE(shifted.put(rank, "m2", "r2", 4).can_run());
  }
}

/// The memory plan allows all joined calls, for several numbers of rows and several alignments.
TEST(JoinedNorm, PlannedMemoryAllowsAllCalls) {
  for (int64_t rows : {1, 2, 3, 7, 64}) {
    for (size_t alignment : {size_t{1}, size_t{64}, size_t{4096}}) {
      Placed placed(test::norm_graph(rows));
      for (RankPlan& rank : placed.plan.ranks) {
        ASSERT_EQ(rank.fused.size(), 2u);
        MemoryPlanOptions options;
        options.alignment = alignment;
        options.fused = rank.fused;
        const MemoryPlan memory = plan_memory(whole(*rank.graph), options);
        for (const auto& [tensor, place] : memory.tensors) {
          const_cast<Tensor*>(tensor)->data = reinterpret_cast<std::byte*>((size_t{1} << 40) + place.offset);
        }
        for (Tensor* node : rank.graph->nodes()) {
          if (is_view(node->op)) node->data = node->view_base->data + node->view_offset;
        }
      }
      EXPECT_TRUE(placed.can_run()) << rows << " rows, alignment " << alignment;
    }
  }
}

TEST(JoinedNorm, CommunicatorWithoutKernelRefusesCall) {
  const auto backend = Registry::instance().init("CPU0");
  const auto communicator = collectives::make_host_communicator(std::array{backend.get()});
  FusedNorm norm;
  norm.what = "y";
  EXPECT_THAT([&] { communicator->enqueue_fused(0, norm); },
              ThrowsMessage<InvalidArgument>(
                  HasSubstr("[all_reduce_norm y] the communicator 'host' does not support this call")));
}

}  // namespace
}  // namespace shoal::meta
