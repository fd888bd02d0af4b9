#include "meta/plan/joined_norm.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "tests/meta/norm_graph.h"

namespace shoal::meta {
namespace {

using collectives::FusedNorm;
using testing::HasSubstr;
using testing::ThrowsMessage;

/// Can do whatever has at most so many rows, and runs nothing.
class Willing final : public collectives::Communicator {
 public:
  explicit Willing(int64_t rows) : rows_(rows) {}
  std::string_view name() const override { return "willing"; }
  int size() const override { return 2; }
  void enqueue(int, const collectives::Call&) override {}
  void abort(std::string_view) override {}
  size_t buffer_bytes(int) const override { return 0; }
  bool can_fuse(const FusedNorm& norm) const override { return norm.rows <= rows_; }

 private:
  int64_t rows_;
};

constexpr size_t kRoom = 0x10000;  ///< for each tensor

/// A plan whose tensors all have addresses of their own, where there is no memory. Node i of a rank lies at
/// (rank + 1) * 2^32 + i * kRoom, leaves behind the nodes.
struct Placed {
  explicit Placed(const std::string& text, const PlanOptions& options = {},
                  test::Layouts layouts = test::norm_layouts(2))
      : store(2) {
    parse_graph(text, graph, weights);
    for (const Tensor* leaf : weights.tensors()) {
      const auto it = layouts.find(leaf->name);
      store.declare(*leaf, it == layouts.end() ? Layout::mirrored() : it->second);
    }
    const std::vector<Device*> devices(2, &Registry::instance().device("NULL0"));
    plan = make_plan(whole(graph), {[&](const Tensor& tensor) { return store.find(tensor); }}, devices, options);
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
  /// `result` comes to lie where `source` is, `offset` bytes on.
  Placed& put(int rank, std::string_view result, std::string_view source, size_t offset = 0) {
    local(rank, result).data = local(rank, source).data + offset;
    return *this;
  }
  /// The tensors whose all_reduce takes the norm with it.
  std::vector<std::string> joined(int64_t rows = 1000) {
    join_norms(plan, Willing(rows));
    std::vector<std::string> found;
    for (const Step& step : plan.steps) {
      if (is_joined(step)) found.push_back(step.tensor);
    }
    return found;
  }

  TensorContext weights;
  Graph graph{"blocks"};
  ShardStore store;
  Plan plan;
};

using Names = std::vector<std::string>;
const Names kBoth{"y", "y2"}, kSecond{"y2"}, kFirst{"y"}, kNone;

TEST(JoinedNorm, ThePlanShowsWhatRuns) {
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

TEST(JoinedNorm, TheCallHasWhatTheNodesHave) {
  Placed placed(test::norm_graph(3));
  placed.joined();
  const auto at = [&](std::string_view name) { return reinterpret_cast<const float*>(placed.local(1, name).data); };
  const FusedNorm first = joined_norm(placed.plan, placed.plan.steps[1], 1);
  EXPECT_EQ(first.in, at("y"));
  EXPECT_EQ(first.residual, at("x"));
  EXPECT_EQ(first.weight, at("scale"));
  EXPECT_EQ(first.sum, at("r"));
  EXPECT_EQ(first.normed, at("m"));
  EXPECT_EQ(first.row, 64);
  EXPECT_EQ(first.rows, 3);
  EXPECT_EQ(first.epsilon, std::get<NormParams>(placed.local(1, "n").params).eps);
  EXPECT_STREQ(first.what, "y");
  const FusedNorm second = joined_norm(placed.plan, placed.plan.steps[3], 1);
  EXPECT_EQ(second.in, at("y2"));
  EXPECT_EQ(second.residual, at("r"));
  EXPECT_EQ(second.weight, at("scale"));
  EXPECT_EQ(second.sum, at("r2"));
  EXPECT_EQ(second.normed, at("m2"));
}

TEST(JoinedNorm, ValuesThatOthersReadAreNotLeftOut) {
  EXPECT_EQ(Placed(test::norm_graph(1, "output %out\noutput %n")).joined(), kSecond);
  EXPECT_EQ(Placed(test::norm_graph(1, "output %out", "%also = unary(%n) {kind=silu}")).joined(), kSecond);
  EXPECT_EQ(Placed(test::norm_graph(1, "output %out\noutput %r\noutput %m\noutput %m2")).joined(), kBoth)
      << "the call writes these";
  Placed read_again(
      test::norm_graph(1, "output %out", "%v = reshape(%n) {shape=[32,2,1,1]}\n%also = unary(%v) {kind=silu}"));
  EXPECT_EQ(read_again.joined(), kSecond) << "through a view";
  Placed reduced(test::norm_graph(1, "output %out\noutput %also", "%also = unary(%y) {kind=silu}"));
  EXPECT_EQ(reduced.joined(), kSecond) << "the sum of the ranks is read twice";
}

TEST(JoinedNorm, ShownValuesAreNotLeftOut) {
  for (const auto& [name, expected] : {std::pair{"n", kSecond}, {"n2", kFirst}, {"m", kBoth}, {"r", kBoth}}) {
    Placed placed(test::norm_graph(1));
    for (RankPlan& rank : placed.plan.ranks) {
      for (Tensor* node : rank.graph->nodes()) {
        if (node->name == name) rank.shown.push_back(node);
      }
      ASSERT_EQ(rank.shown.size(), 1u);
    }
    EXPECT_EQ(placed.joined(), expected) << name;
  }
}

TEST(JoinedNorm, NothingIsJoinedOverACut) {
  for (int node = 1; node < 11; ++node) {
    Placed placed(test::norm_graph(1), {.cuts = {node}});
    // Nodes 0 h, 1 y, 2 r, 3 n, 4 m, 5 h2, 6 y2, 7 r2, 8 n2, 9 m2, 10 out. An all_reduce goes before its reader.
    const bool cuts_first = node == 3 || node == 4, cuts_second = node == 8 || node == 9;
    EXPECT_EQ(placed.joined(), cuts_first ? kSecond : cuts_second ? kFirst : kBoth) << node;
  }
}

TEST(JoinedNorm, ShapesThatTheCallDoesNotKnow) {
  EXPECT_EQ(Placed(test::norm_graph(3, "output %out", "", "[64, 3]")).joined(), kNone) << "a weight for each row";
  EXPECT_EQ(Placed(test::norm_graph(1)).joined(0), kNone) << "the communicator does not want it";
  EXPECT_EQ(Placed(test::norm_graph(1), {}, {}).joined(), kNone) << "no collectives";
}

TEST(JoinedNorm, ResultsMayTakeThePlacesOfWhatIsRead) {
  for (const char* sum : {"y", "x"}) {
    Placed placed(test::norm_graph(2));
    placed.put(0, "r", sum).put(1, "r", sum);
    EXPECT_EQ(placed.joined(), kBoth);
    Placed other(test::norm_graph(2));
    other.put(0, "m", sum).put(1, "m", sum);
    EXPECT_EQ(other.joined(), kBoth);
  }
  Placed crossed(test::norm_graph(2));
  for (int rank : {0, 1}) crossed.put(rank, "r", "y").put(rank, "m", "x");
  EXPECT_EQ(crossed.joined(), kBoth);
  Placed last(test::norm_graph(2));
  last.put(0, "m2", "r2").put(1, "m2", "r2");
  EXPECT_EQ(last.joined(), kBoth) << "nobody else reads the second sum";
  EXPECT_EQ(joined_norm(last.plan, last.plan.steps[3], 0).sum, nullptr);
  EXPECT_NE(joined_norm(last.plan, last.plan.steps[1], 0).sum, nullptr);
  Placed unused(test::norm_graph(2));
  for (int rank : {0, 1}) unused.put(rank, "n", "y", 64).put(rank, "y.all_reduce.2", "x", 8);
  EXPECT_EQ(unused.joined(), kBoth) << "nobody writes them";
}

TEST(JoinedNorm, ResultsMayNotLieElsewhereOnWhatIsRead) {
  for (int rank : {0, 1}) {  // one rank is enough to keep all from it
    for (const char* result : {"r", "m"}) {
      for (const char* source : {"x", "y"}) {
        for (size_t offset : {size_t{4}, size_t{256}, size_t{508}}) {
          Placed placed(test::norm_graph(2));
          EXPECT_EQ(placed.put(rank, result, source, offset).joined(), kSecond) << result << " on " << source;
        }
        Placed behind(test::norm_graph(2));
        EXPECT_EQ(behind.put(rank, result, source, 512).joined(), kBoth) << result << " behind " << source;
      }
      for (size_t offset : {size_t{0}, size_t{252}}) {
        Placed placed(test::norm_graph(2));
        placed.local(rank, "scale").data = placed.local(rank, result).data + offset;
        EXPECT_EQ(placed.joined(), kSecond) << result << " on the weight";
      }
    }
    Placed same(test::norm_graph(2));
    EXPECT_EQ(same.put(rank, "m", "r").joined(), kSecond) << "both results in one place, and the sum is read again";
    Placed shifted(test::norm_graph(2));
    EXPECT_EQ(shifted.put(rank, "m2", "r2", 4).joined(), kFirst);
  }
}

TEST(JoinedNorm, ACommunicatorThatCannotSaysSo) {
  Willing communicator(0);
  FusedNorm norm;
  norm.what = "y";
  EXPECT_THAT([&] { communicator.enqueue_fused(1, norm); },
              ThrowsMessage<InvalidArgument>(HasSubstr("[all_reduce_norm y] the communicator 'willing' cannot")));
}

}  // namespace
}  // namespace shoal::meta
