// Tests of plans of meta devices on virtual CUDA devices of one GPU. These plans run an all_reduce, a residual sum and
// a norm in one kernel (meta/plan/joined_norm.h). The tests compare values with the results of single nodes. They also
// check that unsupported nodes are not fused.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/error.h"
#include "collectives/cuda/cuda_communicator.h"
#include "collectives/p2p/p2p_communicator.h"
#include "devices/cuda/cuda_family.h"
#include "meta/plan/joined_norm.h"
#include "tests/cuda/cuda_mesh.h"
#include "tests/cuda/emulator/emulator.h"
#include "tests/cuda/text_run.h"
#include "tests/meta/norm_graph.h"

namespace shoal::cuda {
namespace {

using collectives::Call;
using collectives::Communicator;
using collectives::FusedNorm;

/// Counts of the unfused and fused calls of all ranks.
struct Queued {
  int calls = 0, fused = 0;
  std::vector<std::pair<uint32_t, uint32_t>> forms;  ///< forms of the column records (column_record.h) that each fused
                                                     ///< call reads and writes
};

/// The fused calls that the communicator offers.
enum class Fuse { kNothing, kNorms, kAll };

/// Counts the calls of a communicator of CUDA devices.
class Counted final : public Communicator {
 public:
  Counted(std::unique_ptr<Communicator> inner, Queued& queued, Fuse fuse)
      : inner_(std::move(inner)), queued_(queued), fuse_(fuse) {}
  std::string_view name() const override { return inner_->name(); }
  int size() const override { return inner_->size(); }
  void enqueue(int rank, const Call& call) override {
    ++queued_.calls;
    inner_->enqueue(rank, call);
  }
  collectives::FusedLimits fused_limits() const override {
    if (fuse_ == Fuse::kNothing) return {};
    collectives::FusedLimits limits = inner_->fused_limits();
    if (fuse_ == Fuse::kNorms) limits.products = 0;
    return limits;
  }
  void enqueue_fused(int rank, const FusedNorm& norm) override {
    ++queued_.fused;
    queued_.forms.emplace_back(norm.column_forms, norm.normed_forms);
    inner_->enqueue_fused(rank, norm);
  }
  bool can_be_recorded() const override { return inner_->can_be_recorded(); }
  void abort(std::string_view reason) override { inner_->abort(reason); }
  size_t buffer_bytes(int rank) const override { return inner_->buffer_bytes(rank); }

 private:
  const std::unique_ptr<Communicator> inner_;
  Queued& queued_;
  const Fuse fuse_;
};

const std::string kAll = "output %r\noutput %m\noutput %r2\noutput %m2\noutput %out";

/// The plan of a graph on a meta device. With NCCL, each device has its own GPU. With other communicators, all devices
/// share one GPU.
class Planned {
 public:
  Planned(int ranks, const std::string& text, Fuse fuse = Fuse::kAll, const std::string& comm = "auto")
      : Planned(ranks, test::norm_layouts(ranks), text, fuse, comm) {}
  Planned(int ranks, const test::Layouts& layouts, const std::string& text, Fuse fuse = Fuse::kAll,
          const std::string& comm = "auto")
      : environment_{{"SHOAL_EMULATED_PROCESSORS", "132"},
                     {"SHOAL_EMULATED_GPUS", std::to_string(comm == "nccl" ? ranks : 1)},
                     {"SHOAL_CUDA_DEVICES_PER_GPU", std::to_string(comm == "nccl" ? 1 : ranks)},
                     {"SHOAL_NCCL_LIBRARY", std::string(SHOAL_NCCL_STANDINS) + "libnccl-standin.so"}} {
    meta::MetaOptions options;
    options.comm = comm;
    options.communicator = [this, fuse](std::span<Backend* const> backends, const collectives::Options& wanted) {
      return std::make_unique<Counted>(collectives::cuda::make_cuda_communicator(backends, wanted), queued, fuse);
    };
    const auto all = family_.devices();
    device_ = meta::MetaDevice::create({all.begin(), all.end()}, test::callback_for(layouts), std::move(options));
    backend = device_->init();
    loaded.emplace(text, *device_);
    plan = backend->create_plan(loaded->graph);
  }
  int joined() const {
    const auto& steps = meta::plan_of(*plan).steps;
    return static_cast<int>(std::count_if(steps.begin(), steps.end(), meta::is_joined));
  }
  void run() {
    backend->compute_async(*plan);
    backend->synchronize();
  }
  /// Runs the graph on inputs from `seed` and returns all outputs.
  std::vector<std::vector<float>> outputs(uint64_t seed = 1) {
    loaded->seed = seed;
    loaded->fill_inputs();
    run();
    std::vector<std::vector<float>> values;
    for (const Tensor* node : loaded->graph.nodes()) {
      if (node->is_output) values.push_back(test::read_floats(*node));
    }
    return values;
  }

  Queued queued;

 private:
  test::Environment environment_;
  CudaFamily family_;
  std::unique_ptr<meta::MetaDevice> device_;

 public:
  std::unique_ptr<Backend> backend;
  std::optional<test::Loaded> loaded;
  std::unique_ptr<GraphPlan> plan;
};

void expect_close(const std::vector<std::vector<float>>& found, const std::vector<std::vector<float>>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t n = 0; n < found.size(); ++n)
    test::expect_close(found[n], expected[n], 2e-6F, fmt::format("output {}", n));
}

class CudaMetaFusion : public testing::TestWithParam<std::tuple<int, int64_t>> {};

TEST_P(CudaMetaFusion, FusedResultsMatchUnfusedResultsOnAllRanks) {
  const auto [ranks, tokens] = GetParam();
  const std::string text = test::norm_graph(tokens, kAll);
  Planned fusing(ranks, text), plain(ranks, text, Fuse::kNothing);
  EXPECT_EQ(fusing.joined(), 2);
  EXPECT_EQ(plain.joined(), 0);
  for (int i = 1; i <= 4; ++i) {  // the plan is launched, then recorded, then replayed twice
    const auto found = fusing.outputs(static_cast<uint64_t>(i));
    ASSERT_EQ(found.size(), 5u);
    expect_close(found, plain.outputs(static_cast<uint64_t>(i)));
    EXPECT_EQ(fusing.queued.fused, std::min(i, 2) * 2 * ranks);
    EXPECT_EQ(fusing.queued.calls, 0);
    EXPECT_EQ(plain.queued.calls, std::min(i, 2) * 2 * ranks);
    for (const Tensor* node : fusing.loaded->graph.nodes()) {
      if (!node->is_output) continue;
      ASSERT_TRUE(meta::layout_of(*node).is_mirrored());
      const auto first = test::read_floats(meta::shard(*node, 0));
      for (int rank = 1; rank < ranks; ++rank)
        EXPECT_EQ(test::read_floats(meta::shard(*node, rank)), first) << node->name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, CudaMetaFusion,
                         testing::Combine(testing::Values(2, 3), testing::Values<int64_t>(1, 5, 8)),
                         [](const auto& info) {
                           return fmt::format("{}_ranks_{}_tokens", std::get<0>(info.param), std::get<1>(info.param));
                         });

meta::Layout split(int axis, std::vector<int64_t> shares) {
  return meta::Layout::split(axis, meta::Partition::from_shares(shares));
}

// A record (8-bit copy of a column) passes from attention in one plan to the product of a fused call. Another record
// passes from the norm of the call to the next plan. Every run writes new bytes into the memory of the records.
TEST(FusedMetaCollectives, PassQuantisedColumnRecordsToProducts) {
  const std::string text = R"(
input %x f32 [128, 1]
input %q f32 [32, 1, 4]
cache %k f16 [32, 8, 4]
cache %v f16 [32, 8, 4]
weight %wo q8_0 [128, 128]
weight %up q4_0 [128, 192]
weight %down q8_0 [192, 128]
weight %scale f32 [128]
weight %head q8_0 [128, 40]
%heads = attention(%q, %k, %v, _, _, _) {scale=0.2}
%merged = reshape(%heads) {shape=[128,1,1,1]}
%y = mul_mat(%wo, %merged)
%r = add(%x, %y)
%n = rms_norm(%r)
%m = mul(%n, %scale)
%h = mul_mat(%up, %m)
%y2 = mul_mat(%down, %h)
%r2 = add(%y2, %r)
%n2 = rms_norm(%r2)
%m2 = mul(%scale, %n2)
%out = mul_mat(%head, %m2)
output %out
)";
  const test::Layouts layouts{{"k", split(2, {2, 2})},
                              {"v", split(2, {2, 2})},
                              {"wo", split(0, {64, 64})},
                              {"up", split(1, {128, 64})},
                              {"down", split(0, {128, 64})}};
  Planned all(2, layouts, text), norms(2, layouts, text, Fuse::kNorms), plain(2, layouts, text, Fuse::kNothing);
  for (uint64_t i = 1; i <= 4; ++i) {  // the plan is launched, then recorded, then replayed twice
    const auto found = all.outputs(i);
    EXPECT_EQ(found, norms.outputs(i));
    expect_close(found, plain.outputs(i));
  }
  using testing::Pair;
  const auto both_ranks = [](const auto& calls) { return std::vector(calls.forms.begin(), calls.forms.begin() + 4); };
  EXPECT_THAT(both_ranks(all.queued), testing::ElementsAre(Pair(1, 1), Pair(1, 1), Pair(0, 1), Pair(0, 1)));
  EXPECT_THAT(both_ranks(norms.queued), testing::Each(Pair(0, 1)));
}

// An unfused call writes no record. Therefore, the next product must not read a record. The record would contain an
// older column.
TEST(FusedMetaCollectives, UnfusedCallsWriteNoRecords) {
  const std::string text = R"(
input %x f32 [128, 1]
weight %up q4_0 [128, 192]
weight %down q8_0 [192, 128]
weight %head q8_0 [128, 40]
%h = mul_mat(%up, %x)
%y = mul_mat(%down, %h)
%out = mul_mat(%head, %y)
output %out
)";
  const test::Layouts layouts{{"up", split(1, {128, 64})}, {"down", split(0, {128, 64})}, {"head", split(1, {24, 16})}};
  Planned two(2, layouts, text), one(1, test::Layouts{}, text);
  EXPECT_EQ(two.joined(), 0);
  const auto found = two.outputs()[0], expected = one.outputs()[0];
  EXPECT_EQ(two.queued.calls, 2);
  const float largest = *std::max_element(expected.begin(), expected.end());
  for (size_t i = 0; i < found.size(); ++i)
    EXPECT_NEAR(found[i], expected[i], 0.01F * largest) << i;  // the kernel rounds elements of columns to 8 bits
}

TEST(FusedMetaCollectives, CallsAreFusedOnlyWithPeerMemory) {
  const std::string text = test::norm_graph(2, kAll);
  Planned peers(2, text, Fuse::kAll, "p2p");
  EXPECT_EQ(peers.joined(), 2);
  const auto expected = peers.outputs();
  for (const char* comm : {"staged", "nccl"}) {
    SCOPED_TRACE(comm);
    Planned other(2, text, Fuse::kAll, comm);
    EXPECT_EQ(other.joined(), 0);
    expect_close(other.outputs(), expected);
    EXPECT_EQ(other.queued.fused, 0);
    EXPECT_EQ(other.queued.calls, 4);
  }
}

TEST(FusedMetaCollectives, LongOrManyRowsAreNotFused) {
  for (int64_t tokens : {8, 9}) {  // if ranks share a GPU, a kernel has 8 blocks, and each block computes one row
    EXPECT_EQ(Planned(2, test::norm_graph(tokens)).joined(), tokens == 8 ? 2 : 0) << tokens;
  }
  for (int ranks : {1, 2, 3}) {
    const Planned planned(ranks, test::norm_graph(1));
    const auto communicator = collectives::cuda::make_cuda_communicator(planned.backend->members());
    const auto can = [&](int64_t row, int64_t rows) { return communicator->fused_limits().allow(row, rows); };
    EXPECT_EQ(can(4096, 1), ranks > 1);
    EXPECT_EQ(can(4096, 8), ranks > 1);
    EXPECT_FALSE(can(4096, 9));
    EXPECT_EQ(can(8192, 4), ranks > 1);
    EXPECT_EQ(can(8192, 5), ranks == 2);
    EXPECT_EQ(can(8192, 8), ranks == 2);  // a message of 256 KiB
    EXPECT_FALSE(can(8193, 1)) << "shared memory cannot hold a longer row";
    EXPECT_FALSE(can(0, 1));
  }
}

TEST(FusedMetaCollectives, FailedRankEndsTheRun) {
  Planned planned(2, test::norm_graph(1));
  planned.loaded->fill_inputs();
  const auto fail_now = [](void*, const void*, bool) { throw DeviceError("broken"); };
  ASSERT_TRUE(planned.backend->members()[1]->enqueue({fail_now, nullptr, nullptr}));
  EXPECT_THROW(planned.run(), Error);
  planned.run();  // the next run succeeds
  for (float value : test::read_floats(*planned.loaded->graph.nodes().back())) EXPECT_TRUE(std::isfinite(value));
}

}  // namespace
}  // namespace shoal::cuda
