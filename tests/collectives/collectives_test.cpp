// Compares the results of every collective with results computed by the test, on meshes of 1 to 16 ranks. The tests
// cover:
// - uneven and zero counts
// - all dtypes
// - calls in place and not in place
// - small messages, which use staging slots, and large messages, which ranks read from their peers' memory
// - many calls in mixed order
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <random>

#include "tests/collectives/cases.h"
#include "tests/collectives/mesh.h"
#include "tests/support/time_outs.h"

namespace shoal::collectives {
namespace {

// kSmall elements fit in a staging slot. kLarge elements of any dtype used here do not fit. Neither number is divisible
// by 3, 4, 7 or 16.
constexpr int64_t kSmall = 1013;
constexpr int64_t kLarge = 40009;
// kHuge elements of any dtype do not fit in a staging buffer of 1 MiB.
constexpr int64_t kHuge = 1600033;

/// A collective call whose data are in the memory of a mesh.
struct Case : CollectiveCase {
  Case(CollectiveCase one) : CollectiveCase(std::move(one)) {
    for (const Bytes& bytes : expected) out.emplace_back(bytes.size(), std::byte{0x5a});
  }
  std::vector<Bytes> out = {};
  std::vector<Call> calls = {};

  void add_rank(const std::vector<float>& in_values, const std::vector<float>& out_values) {
    CollectiveCase::add_rank(in_values, out_values);
    out.emplace_back(expected.back().size(), std::byte{0x5a});
  }
  void queue(Mesh& mesh, Communicator& communicator) {
    for (size_t rank = 0; rank < in.size(); ++rank)
      add_call(mesh, static_cast<int>(rank), in[rank].data(), in[rank].size());
    for (size_t rank = 0; rank < in.size(); ++rank) communicator.enqueue(static_cast<int>(rank), calls[rank]);
  }
  void add_call(Mesh& mesh, int rank, std::byte* source, size_t source_bytes) {
    std::byte* result = mesh.at(rank, out[static_cast<size_t>(rank)].data(), out[static_cast<size_t>(rank)].size());
    calls.push_back({kind, dtype, mesh.at(rank, source, source_bytes), result, count, counts, root, "x"});
  }
  void verify() const {
    for (size_t rank = 0; rank < out.size(); ++rank) {
      ASSERT_TRUE(out[rank] == expected[rank]) << name_of(kind) << " " << name_of(dtype) << " rank " << rank;
    }
  }
};

using MeshParam = std::tuple<Streams, int>;

class Collectives : public testing::TestWithParam<MeshParam> {
 protected:
  int ranks() const { return std::get<int>(GetParam()); }
  void run(Case test) {
    test.queue(mesh_, *communicator_);
    mesh_.synchronize();
    test.verify();
  }
  void run_gather_in_place(Case test) {
    for (int rank = 0; rank < ranks(); ++rank) {
      std::byte* own = test.out[rank].data() + bytes_for(test.dtype, prefix(test.counts, rank));
      std::copy(test.in[rank].begin(), test.in[rank].end(), own);
      test.add_call(mesh_, rank, own, test.in[rank].size());
    }
    for (int rank = 0; rank < ranks(); ++rank) communicator_->enqueue(rank, test.calls[rank]);
    mesh_.synchronize();
    test.verify();
  }
  static Streams streams() { return std::get<Streams>(GetParam()); }
  static bool is_missing() { return needs_plugin(streams()) && test::plugin_device() == nullptr; }
  void SetUp() override {
    if (is_missing()) GTEST_SKIP() << "SHOAL_TEST_PLUGIN names no plug-in";
  }
  Mesh mesh_{is_missing() ? 0 : ranks(), streams()};
  std::unique_ptr<Communicator> communicator_ = is_missing() ? nullptr : mesh_.communicator();
};

TEST_P(Collectives, AllReduceWorksForEveryDType) {
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kI32}) {
    for (int64_t count : {int64_t{0}, int64_t{1}, int64_t{16}, kSmall, kLarge}) {
      run(all_reduce_case(ranks(), dtype, count));
    }
  }
}

TEST_P(Collectives, AllReduceWorksInPlace) {
  for (int64_t count : {kSmall, kLarge}) {
    Case test = all_reduce_case(ranks(), DType::kF32, count);
    for (int rank = 0; rank < ranks(); ++rank) {
      test.out[rank] = test.in[rank];
      test.add_call(mesh_, rank, test.out[rank].data(), test.out[rank].size());
    }
    for (int rank = 0; rank < ranks(); ++rank) communicator_->enqueue(rank, test.calls[rank]);
    mesh_.synchronize();
    test.verify();
  }
}

TEST_P(Collectives, AllGatherWorksWithUnevenParts) {
  for (int64_t step : {0, 1, 37, 9001}) {
    run(all_gather_case(DType::kF32, uneven(ranks(), step)));
    run(all_gather_case(DType::kBF16, uneven(ranks(), step)));
  }
  run(all_gather_case(DType::kF32, std::vector<int64_t>(ranks(), 0)));
}

TEST_P(Collectives, AllGatherWorksInPlace) {
  for (int64_t step : {37, 9001}) run_gather_in_place(all_gather_case(DType::kF32, uneven(ranks(), step)));
}

TEST_P(Collectives, AllGatherWorksWithQuantisedRows) {
  std::vector<int64_t> counts = uneven(ranks(), 32);
  for (int64_t& count : counts) count = count / 32 * 32;
  run(all_gather_case(DType::kQ8_0, counts));
}

TEST_P(Collectives, ReduceScatterWorksWithUnevenParts) {
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kI32}) {
    for (int64_t step : {0, 1, 37, 9001}) run(reduce_scatter_case(dtype, uneven(ranks(), step)));
  }
}

TEST_P(Collectives, AllToAllWorksWithUnevenParts) {
  for (int64_t step : {0, 1, 400}) {
    std::vector<int64_t> counts = uneven(ranks() * ranks(), step);
    run(all_to_all_case(DType::kF32, ranks(), counts));
    run(all_to_all_case(DType::kF16, ranks(), counts));
  }
  run(all_to_all_case(DType::kF32, ranks(), std::vector<int64_t>(ranks() * ranks(), kLarge / ranks())));
}

TEST_P(Collectives, BroadcastWorksFromEveryRoot) {
  for (int root = 0; root < ranks(); ++root) {
    for (int64_t count : {int64_t{0}, kSmall, kLarge}) run(broadcast_case(ranks(), DType::kF32, count, root));
  }
}

// The test queues 100 collectives of all kinds and sizes before the first wait. No call may overwrite a staging slot
// that is still in use.
TEST_P(Collectives, ManyQueuedCallsWorkInMixedOrder) {
  std::mt19937 random(7);
  const auto up_to = [&](int64_t most) { return static_cast<int64_t>(random() % (most + 1)); };
  for (int batch = 0; batch < 20; ++batch) {
    std::vector<Case> cases;
    for (int i = 0; i < 100; ++i) {
      const int seed = static_cast<int>(random() % 1000);
      const int64_t step = i % 10 == 0 ? up_to(6000) : up_to(40);
      const int64_t count = i % 10 == 0 ? up_to(kLarge) : up_to(200);
      switch (random() % 5) {
        case 0:
          cases.push_back(all_reduce_case(ranks(), DType::kF32, count, seed));
          break;
        case 1:
          cases.push_back(all_gather_case(DType::kF32, uneven(ranks(), step), seed));
          break;
        case 2:
          cases.push_back(reduce_scatter_case(DType::kF32, uneven(ranks(), step), seed));
          break;
        case 3:
          cases.push_back(
              all_to_all_case(DType::kF32, ranks(), uneven(ranks() * ranks(), step / (ranks() * ranks())), seed));
          break;
        default:
          cases.push_back(broadcast_case(ranks(), DType::kF32, count, seed % ranks(), seed));
          break;
      }
    }
    for (Case& test : cases) test.queue(mesh_, *communicator_);
    mesh_.synchronize();
    for (Case& test : cases) ASSERT_NO_FATAL_FAILURE(test.verify());
  }
}

TEST_P(Collectives, TimeOutIsReportedToTheProgram) {
  if (ranks() == 1) GTEST_SKIP() << "a single rank cannot be late";
  const test::TimeOuts time_outs;
  Case test = all_reduce_case(ranks(), DType::kF32, 1);
  for (int rank = 0; rank < ranks(); ++rank) test.add_call(mesh_, rank, test.in[rank].data(), test.in[rank].size());
  {
    const auto impatient = mesh_.communicator({.timeout = std::chrono::seconds(3)});
    for (int rank = 0; rank < ranks() - 1; ++rank) impatient->enqueue(rank, test.calls[rank]);
    EXPECT_NE(mesh_.errors()[0], std::nullopt);
    EXPECT_THAT(time_outs.messages(),
                testing::ElementsAre(testing::HasSubstr("[all_reduce x] rank " + std::to_string(ranks() - 1))));
    EXPECT_EQ(open_timeouts(), 1);
  }
  EXPECT_EQ(open_timeouts(), 0) << "the program may continue";
}

TEST_P(Collectives, TraitsMatchTheirDescriptionBeforeAndAfterCalls) {
  std::vector<Device*> devices(static_cast<size_t>(ranks()), &Registry::instance().device("CPU0"));
  if (streams() != Streams::kThread) devices = devices_of(mesh_.backends());
  communicator_.reset();  // otherwise the new communicator would find less free GPU memory
  const CommunicatorTraits described = mesh_.factory().describe(devices);
  communicator_ = mesh_.communicator();
  EXPECT_EQ(communicator_->describe(), described);
  EXPECT_EQ(described.buffer_bytes.size(), devices.size());

  const int n = ranks();
  const auto parts_of_about = [](int parts, int64_t total) { return uneven(parts, 2 * total / (parts * (parts + 1))); };
  std::vector<int64_t> rows = parts_of_about(n, 2 * kHuge);
  for (int64_t& count : rows) count = count / 32 * 32;
  std::vector<int64_t> one_part(n, 0);
  one_part.back() = kHuge;
  std::vector<Case> cases;
  cases.push_back(all_reduce_case(n, DType::kBF16, kHuge));
  cases.push_back(all_gather_case(DType::kF32, parts_of_about(n, kHuge)));
  cases.push_back(all_gather_case(DType::kQ8_0, rows));
  cases.push_back(reduce_scatter_case(DType::kF32, parts_of_about(n, kHuge)));
  cases.push_back(reduce_scatter_case(DType::kF16, one_part));
  cases.push_back(all_to_all_case(DType::kF16, n, parts_of_about(n * n, n * kHuge)));
  cases.push_back(broadcast_case(n, DType::kF32, kHuge, n - 1));
  for (Case& test : cases) test.queue(mesh_, *communicator_);  // the pieces of all calls are queued before any wait
  mesh_.synchronize();
  for (const Case& test : cases) test.verify();
  run_gather_in_place(all_gather_case(DType::kF32, parts_of_about(n, kHuge)));
  EXPECT_EQ(communicator_->describe(), described);
}

std::string mesh_name(const testing::TestParamInfo<MeshParam>& info) {
  return std::to_string(std::get<int>(info.param));
}
INSTANTIATE_TEST_SUITE_P(Threads, Collectives,
                         testing::Combine(testing::Values(Streams::kThread), testing::Values(1, 2, 3, 4, 7, 16)),
                         mesh_name);
INSTANTIATE_TEST_SUITE_P(Cpu, Collectives, testing::Combine(testing::Values(Streams::kCpu), testing::Values(1, 2, 5)),
                         mesh_name);
INSTANTIATE_TEST_SUITE_P(CpuStaged, Collectives,
                         testing::Combine(testing::Values(Streams::kCpuStaged), testing::Values(1, 2, 5)), mesh_name);
INSTANTIATE_TEST_SUITE_P(Plugin, Collectives,
                         testing::Combine(testing::Values(Streams::kPlugin), testing::Values(1, 2, 3, 5)), mesh_name);
INSTANTIATE_TEST_SUITE_P(PluginStaged, Collectives,
                         testing::Combine(testing::Values(Streams::kPluginStaged), testing::Values(1, 2, 3)),
                         mesh_name);
INSTANTIATE_TEST_SUITE_P(PluginAndCpu, Collectives,
                         testing::Combine(testing::Values(Streams::kMixed), testing::Values(2, 5)), mesh_name);

// Each addition rounds, so the sums depend on the order of the addends. On every rank, each sum must be bit-identical
// to the sum in rank order.
TEST(Determinism, EveryRankAddsInRankOrder) {
  constexpr int kRanks = 5;
  Mesh mesh(kRanks);
  const auto communicator = mesh.communicator();
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (int64_t count : {kSmall, kLarge}) {
      std::mt19937 random(11);
      std::normal_distribution<float> normal(0.0f, 100.0f);
      Case test(CollectiveCase{.kind = Collective::kAllReduce, .dtype = dtype, .count = count});
      std::vector<float> sums(count);
      for (int rank = 0; rank < kRanks; ++rank) {
        std::vector<float> numbers(count);
        for (float& number : numbers) number = normal(random);
        test.in.push_back(encode(dtype, numbers));
        traits(dtype).to_f32(test.in.back().data(), numbers.data(), count);
        for (int64_t i = 0; i < count; ++i) sums[i] = rank == 0 ? numbers[i] : sums[i] + numbers[i];
      }
      test.expected.assign(kRanks, encode(dtype, sums));
      test.out.assign(kRanks, Bytes(test.expected[0].size()));
      test.queue(mesh, *communicator);
      mesh.synchronize();
      test.verify();
    }
  }
}

TEST(Determinism, IntegerSumsWrapAround) {
  Mesh mesh(2);
  const auto communicator = mesh.communicator();
  const int32_t in[2] = {INT32_MAX, 2};
  int32_t out[2] = {};
  std::vector<Call> calls = {};
  for (int rank = 0; rank < 2; ++rank) {
    calls.push_back({Collective::kAllReduce, DType::kI32, &in[rank], &out[rank], 1, {}, 0, "x"});
  }
  for (int rank = 0; rank < 2; ++rank) communicator->enqueue(rank, calls[rank]);
  mesh.synchronize();
  EXPECT_EQ(out[0], INT32_MIN + 1);
  EXPECT_EQ(out[1], INT32_MIN + 1);
}

}  // namespace
}  // namespace shoal::collectives
