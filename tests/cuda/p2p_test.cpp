// Collectives of the p2p communicator on 1 to 8 ranks of one or several GPUs. The tests compare results with values
// that this file computes. The tests cover replayed graphs. They also cover algorithms, chunks and alignments that the
// common suite (tests/collectives) does not cover.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "tests/cuda/p2p_rig.h"

namespace shoal::collectives::p2p {
namespace {

constexpr DType kAdded[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kI32};
constexpr Thresholds kNeverOneShot{0, 0, 0};
constexpr Thresholds kAlwaysOneShot{1 << 30, 1 << 30, 1 << 30};

struct MeshParam {
  int ranks;
  int gpus;
};

class P2p : public testing::TestWithParam<MeshParam> {
 protected:
  int ranks() const { return GetParam().ranks; }
  static void run(Rig& rig, Case test) {
    test.queue(rig);
    rig.synchronize_and_check();
    test.verify();
  }
  void run(Case test) { run(rig_, std::move(test)); }
  void run_shifted(Case test) {
    test.shift = traits(test.dtype).block_bytes;
    run(rig_, std::move(test));
  }
  Rig rig_{GetParam().ranks, GetParam().gpus};
};

TEST_P(P2p, OneAndTwoShotAllReduceHandleAnyCount) {
  Rig one_shot(ranks(), GetParam().gpus, {.thresholds = kAlwaysOneShot});
  Rig two_shot(ranks(), GetParam().gpus, {.thresholds = kNeverOneShot});
  for (int64_t count : {1, 3, 1000, 4097, 8192, 16'384}) {
    run(one_shot, all_reduce_case(ranks(), DType::kF32, count));
    run(one_shot, all_reduce_case(ranks(), DType::kF16, count));
    run(two_shot, all_reduce_case(ranks(), DType::kF32, count));
    run(two_shot, all_reduce_case(ranks(), DType::kBF16, count));
  }
}

TEST_P(P2p, HandlesManyChunks) {
  Rig rig(ranks(), GetParam().gpus, {.max_blocks = 2});
  run(rig, all_reduce_case(ranks(), DType::kF32, 700'001));
  run(rig, all_gather_case(DType::kF32, uneven(ranks(), 100'001)));
  run(rig, reduce_scatter_case(DType::kF32, uneven(ranks(), 100'001)));
}

TEST_P(P2p, HandlesUnalignedBuffers) {
  for (DType dtype : kAdded) {
    for (int64_t count : {5, 1000, 100'000}) run_shifted(all_reduce_case(ranks(), dtype, count));
    run_shifted(reduce_scatter_case(dtype, uneven(ranks(), 1001)));
    run_shifted(all_gather_case(dtype, uneven(ranks(), 1001)));
    run_shifted(broadcast_case(ranks(), dtype, 1001, ranks() - 1));
    run_shifted(all_to_all_case(dtype, ranks(), uneven(ranks() * ranks(), 101)));
  }
}

/// The calls of one rank as a CUDA graph.
class RankGraph {
 public:
  RankGraph(Rig& rig, int rank, const std::vector<Case>& cases) : stream_(rig.stream(rank)), gpu_(rig.gpu(rank)) {
    const cuda::CurrentGpu current(gpu_);
    check_cuda(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    for (const Case& test : cases) rig.communicator().launch(rank, test.calls[rank]);
    check_cuda(cudaStreamEndCapture(stream_, &graph_));
    check_cuda(cudaGraphInstantiate(&exec_, graph_, 0));
    check_cuda(cudaGraphUpload(exec_, stream_));  // without the upload, the first launch may wait for the GPU
  }
  ~RankGraph() {
    cudaGraphExecDestroy(exec_);
    cudaGraphDestroy(graph_);
  }
  RankGraph(const RankGraph&) = delete;
  RankGraph& operator=(const RankGraph&) = delete;
  void launch() const {
    const cuda::CurrentGpu current(gpu_);
    check_cuda(cudaGraphLaunch(exec_, stream_));
  }

 private:
  cudaStream_t stream_;
  int gpu_;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t exec_ = nullptr;
};

TEST_P(P2p, CapturedCallsReplayManyTimes) {
  const auto make = [&](int seed) {
    std::vector<Case> cases;
    cases.push_back(all_reduce_case(ranks(), DType::kF32, 1000, seed));
    cases.push_back(all_gather_case(DType::kBF16, uneven(ranks(), 300), seed));
    cases.push_back(all_reduce_case(ranks(), DType::kF16, 100'000, seed));
    cases.push_back(reduce_scatter_case(DType::kI32, uneven(ranks(), 77), seed));
    cases.push_back(broadcast_case(ranks(), DType::kF32, 500, ranks() - 1, seed));
    return cases;
  };
  std::vector<Case> cases = make(0);
  for (Case& test : cases) test.prepare(rig_);
  std::vector<std::unique_ptr<RankGraph>> graphs;
  for (int rank = 0; rank < ranks(); ++rank) graphs.push_back(std::make_unique<RankGraph>(rig_, rank, cases));
  const int replays = ranks() <= 3 ? 20 : 5;
  for (int replay = 0; replay < replays; ++replay) {
    const std::vector<Case> fresh = make(replay);
    for (size_t i = 0; i < cases.size(); ++i) {
      cases[i].expected = fresh[i].expected;
      for (int rank = 0; rank < ranks(); ++rank) cases[i].sources[rank].set(fresh[i].in[rank]);
    }
    // Each graph is launched three times without a wait between the launches.
    for (int again = 0; again < 3; ++again) {
      for (const auto& graph : graphs) graph->launch();
    }
    rig_.synchronize_and_check();
    for (const Case& test : cases) ASSERT_NO_FATAL_FAILURE(test.verify());
    // A call outside of the graphs continues the same sequence of steps.
    run(all_reduce_case(ranks(), DType::kF32, 50, replay));
  }
}

// These sums depend on the order of addends and on each rounding. All ranks must get the bits of the sum that is
// computed in rank order.
TEST_P(P2p, AllReduceAddsInRankOrder) {
  for (const bool bf16_wire : {false, true}) {
    for (const Thresholds& thresholds : {kAlwaysOneShot, kNeverOneShot}) {
      Rig rig(ranks(), GetParam().gpus, {.bf16_wire = bf16_wire, .thresholds = thresholds});
      const auto on_wire = [&](float x) {
        if (!bf16_wire || ranks() == 1) return x;
        uint16_t half;
        traits(DType::kBF16).from_f32(&x, &half, 1);
        traits(DType::kBF16).to_f32(&half, &x, 1);
        return x;
      };
      for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
        constexpr int64_t kCount = 10'013;  // each thread sums several packs of 16 bytes
        std::mt19937 random(11);
        std::normal_distribution<float> normal(0.0f, 100.0f);
        Case test(CollectiveCase{.kind = Collective::kAllReduce, .dtype = dtype, .count = kCount});
        std::vector<float> sums(kCount);
        for (int rank = 0; rank < ranks(); ++rank) {
          std::vector<float> numbers(kCount);
          for (float& number : numbers) number = normal(random);
          test.in.push_back(encode(dtype, numbers));
          traits(dtype).to_f32(test.in.back().data(), numbers.data(), kCount);
          for (int64_t i = 0; i < kCount; ++i) {
            const float addend = dtype == DType::kF32 ? on_wire(numbers[i]) : numbers[i];
            sums[i] = rank == 0 ? addend : sums[i] + addend;
          }
        }
        if (dtype == DType::kF32) {
          for (float& sum : sums) sum = on_wire(sum);
        }
        test.expected.assign(ranks(), encode(dtype, sums));
        run(rig, std::move(test));
      }
    }
  }
}

std::string mesh_name(const testing::TestParamInfo<MeshParam>& info) {
  return std::to_string(info.param.ranks) + "on" + std::to_string(info.param.gpus);
}
INSTANTIATE_TEST_SUITE_P(Mesh, P2p,
                         testing::Values(MeshParam{1, 1}, MeshParam{2, 1}, MeshParam{3, 1}, MeshParam{5, 1},
                                         MeshParam{8, 1}, MeshParam{2, 2}, MeshParam{4, 2}, MeshParam{7, 7}),
                         mesh_name);

TEST(P2pIntegers, SumsWrapAround) {
  Rig rig(2);
  Case test(CollectiveCase{.kind = Collective::kAllReduce, .dtype = DType::kI32, .count = 1});
  for (const int32_t in : {INT32_MAX, 2}) {
    Bytes bytes(4), sum(4);
    const int32_t out = INT32_MIN + 1;
    std::memcpy(bytes.data(), &in, 4);
    std::memcpy(sum.data(), &out, 4);
    test.in.push_back(bytes);
    test.expected.push_back(sum);
  }
  test.queue(rig);
  rig.synchronize_and_check();
  test.verify();
}

/// Compares the sum of all_reduce and residual, and the RMSNorm of this sum, with values that are computed in double
/// precision.
class P2pNorm : public testing::TestWithParam<std::tuple<int, bool>> {
 protected:
  struct Result {
    std::vector<float> sum, normed;
  };
  /// If `in_place` is true, the sum overwrites the residual and the norm overwrites the input. `shift` is the
  /// misalignment of all buffers in bytes.
  void run(int64_t row, int64_t rows, bool has_weight, bool in_place, bool wants_sum = true, size_t shift = 0) {
    const auto [ranks, bf16_wire] = GetParam();
    Rig rig(ranks, 1, {.bf16_wire = bf16_wire});
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    const auto draw = [&](int64_t count) {
      std::vector<float> numbers(count);
      for (float& number : numbers) number = normal(random);
      return numbers;
    };
    const std::vector<float> residual = draw(row * rows), weight = draw(row);
    std::vector<std::vector<float>> ins;
    std::vector<DeviceBytes> in_memory, residual_memory, weight_memory, sum_memory, norm_memory;
    for (int rank = 0; rank < ranks; ++rank) {
      ins.push_back(draw(row * rows));
      const auto place = [&](std::vector<DeviceBytes>& where, const std::vector<float>& numbers) {
        where.emplace_back(0, numbers.size() * 4 + shift);
        where.back().set(encode(DType::kF32, numbers), shift);
      };
      place(in_memory, ins.back());
      place(residual_memory, residual);
      place(weight_memory, weight);
      place(sum_memory, std::vector<float>(row * rows));
      place(norm_memory, std::vector<float>(row * rows));
    }
    const auto floats = [&](const DeviceBytes& memory) { return reinterpret_cast<float*>(memory.data() + shift); };
    const auto bytes = [&](const DeviceBytes& memory) { return memory.get(shift, row * rows * sizeof(float)); };
    for (int rank = 0; rank < ranks; ++rank) {
      NormReduction work{.in = floats(in_memory[rank]),
                         .residual = floats(residual_memory[rank]),
                         .weight = has_weight ? floats(weight_memory[rank]) : nullptr,
                         .sum = wants_sum ? floats((in_place ? residual_memory : sum_memory)[rank]) : nullptr,
                         .normed = floats((in_place ? in_memory : norm_memory)[rank]),
                         .row = row,
                         .rows = rows,
                         .epsilon = 1e-5f};
      ASSERT_TRUE(rig.communicator().can(work));
      rig.communicator().launch(rank, work, "x");
    }
    rig.synchronize_and_check();
    const Bytes sums = wants_sum ? bytes((in_place ? residual_memory : sum_memory)[0]) : Bytes();
    const Bytes normed = bytes((in_place ? in_memory : norm_memory)[0]);
    verify(ins, residual, has_weight ? weight : std::vector<float>(row, 1.0f), row, sums, normed);
    for (int rank = 1; rank < ranks; ++rank) {
      EXPECT_TRUE(!wants_sum || bytes((in_place ? residual_memory : sum_memory)[rank]) == sums) << rank;
      EXPECT_TRUE(bytes((in_place ? in_memory : norm_memory)[rank]) == normed) << rank;
    }
  }
  static void verify(const std::vector<std::vector<float>>& ins, const std::vector<float>& residual,
                     const std::vector<float>& weight, int64_t row, const Bytes& sums, const Bytes& normed) {
    // Addends and sums are at most about 4 * sqrt(ranks). Rounding to bf16 changes a value by at most 2^-9 of its
    // magnitude.
    const double bound = std::get<1>(GetParam()) ? 0.1 : 1e-5;
    const auto* got_sum = reinterpret_cast<const float*>(sums.data());
    const auto* got = reinterpret_cast<const float*>(normed.data());
    for (size_t begin = 0; begin < residual.size(); begin += row) {
      std::vector<double> sum(residual.begin() + begin, residual.begin() + begin + row);
      double squares = 0;
      for (int64_t i = 0; i < row; ++i) {
        for (const auto& in : ins) sum[i] += in[begin + i];
        squares += sum[i] * sum[i];
      }
      const double scale = 1 / std::sqrt(squares / static_cast<double>(row) + 1e-5);
      for (int64_t i = 0; i < row; ++i) {
        if (!sums.empty()) {
          ASSERT_NEAR(got_sum[begin + i], sum[i], bound) << begin << " " << i;
        }
        ASSERT_NEAR(got[begin + i], sum[i] * scale * weight[i], bound * std::max(1.0, scale) * 4) << begin << " " << i;
      }
    }
  }
};

TEST_P(P2pNorm, ComputesTheSumAndItsNorm) {
  run(4096, 1, true, false);
  run(4096, 3, true, true);
  run(8192, 1, false, false);
  run(5124, 2, true, true);  // some threads have fewer groups of four elements than other threads
  run(4096, 1, true, true, true, 4);
  run(63, 21, true, false);  // more rows than blocks; the length of a row is odd
  run(1, 2, true, false);
  run(257, 18, true, true, false);  // the sum is not stored
}
INSTANTIATE_TEST_SUITE_P(Ranks, P2pNorm, testing::Combine(testing::Values(2, 3, 8), testing::Bool()),
                         [](const auto& info) {
                           return std::to_string(std::get<0>(info.param)) + (std::get<1>(info.param) ? "bf16" : "f32");
                         });

}  // namespace
}  // namespace shoal::collectives::p2p
