// Tests of NCCL on a mesh of one rank. Every version of NCCL supports such a mesh on every GPU. The communicator must
// find the library and make calls that the library accepts. The communicator must be recordable, and it must end after
// a failure. test_cuda uses the stand-in. test_cuda_gpu uses the library that SHOAL_NCCL_LIBRARY names, or the NCCL
// library of the system.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "collectives/nccl/nccl_api.h"
#include "collectives/nccl/nccl_communicator.h"
#include "devices/cuda/kernels/platform.h"
#include "tests/cuda/cuda_mesh.h"
#include "tests/cuda/p2p_rig.h"

namespace shoal::collectives {
namespace {

using p2p::Case;
using std::chrono::milliseconds;
using test::CudaMesh;
using test::Environment;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr milliseconds kShort{300};

class NcclOneRank : public testing::Test {
 public:
  // Members that Case::prepare() requires.
  int size() const { return 1; }
  int gpu(int) const { return mesh_.gpu(0); }

 protected:
  void SetUp() override {
#ifdef SHOAL_NCCL_STANDINS
    environment_.emplace("SHOAL_NCCL_LIBRARY", SHOAL_NCCL_STANDINS "libnccl-standin.so");
#else
    try {
      nccl::api();
    } catch (const DeviceError& error) {
      GTEST_SKIP() << error.what();
    }
#endif
    ASSERT_GT(mesh_.size(), 0) << mesh_.family().reason();
  }

  shoal::cuda::CudaBackend& backend() const {
    return static_cast<shoal::cuda::CudaBackend&>(mesh_.backend(0));
  }
  std::unique_ptr<Communicator> communicator(milliseconds timeout = test::long_timeout()) const {
    Options options;
    options.timeout = timeout;
    return nccl::make_nccl_communicator(std::span(mesh_.backends()).first(1), options);
  }
  void run(Communicator& communicator, Case test) {
    SCOPED_TRACE(fmt::format("{} of {}", name_of(test.kind), test.count));
    test.prepare(*this);
    communicator.enqueue(0, test.calls[0]);
    ASSERT_NO_THROW(backend().synchronize());
    test.verify();
  }

  std::optional<Environment> environment_;
  CudaMesh mesh_{1};
};

TEST_F(NcclOneRank, RunsEveryCollective) {
  const auto nccl = communicator();
  EXPECT_EQ(nccl->name(), "nccl");
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kI32}) {
    for (const int64_t count : {0, 1, 1013, 1 << 20}) run(*nccl, all_reduce_case(1, dtype, count));
    run(*nccl, reduce_scatter_case(dtype, {41}));
  }
  for (const DType dtype : {DType::kF32, DType::kQ8_0}) {
    run(*nccl, all_gather_case(dtype, {64}));
    run(*nccl, broadcast_case(1, dtype, 96, 0));
  }
  run(*nccl, all_to_all_case(DType::kF16, 1, {11}));
}

TEST_F(NcclOneRank, IsRecordedAndReplayed) {
  const auto nccl = communicator();
  Case test = all_reduce_case(1, DType::kF32, 1013);
  run(*nccl, all_reduce_case(1, DType::kF32, 1013));
  test.prepare(*this);
  ASSERT_TRUE(backend().start_recording());
  nccl->enqueue(0, test.calls[0]);
  nccl->enqueue(0, test.calls[0]);
  auto recording = backend().stop_recording();
  ASSERT_NE(recording, nullptr);
  for (int seed = 1; seed < 4; ++seed) {
    const Case other = all_reduce_case(1, DType::kF32, 1013, seed);
    test.sources[0].set(other.in[0]);
    test.expected = other.expected;
    backend().replay_async(*recording);
    ASSERT_NO_THROW(backend().synchronize());
    test.verify();
  }
  recording.reset();  // NCCL waits for the destruction of the recording before it destroys the rank
}

TEST_F(NcclOneRank, DoesNotConnectDuringRecordings) {
  const auto nccl = communicator();
  Case test = all_reduce_case(1, DType::kF32, 10);
  test.prepare(*this);
  ASSERT_TRUE(backend().start_recording());
  nccl->enqueue(0, test.calls[0]);
  EXPECT_EQ(backend().stop_recording(), nullptr);
}

TEST_F(NcclOneRank, AbortEndsTheCommunicator) {
  auto nccl = communicator();
  Case test = all_reduce_case(1, DType::kF32, 10);
  run(*nccl, all_reduce_case(1, DType::kF32, 10));
  nccl->abort("stopped by the user");
  test.prepare(*this);
  nccl->enqueue(0, test.calls[0]);
  EXPECT_THAT([&] { backend().synchronize(); },
              ThrowsMessage<CommError>(HasSubstr("[nccl communicator] aborted: stopped by the user")));
  nccl.reset();
  run(*communicator(), all_reduce_case(1, DType::kF32, 10));  // a new communicator works
}

/// Blocks the stream until the host sets the flag, but for at most a minute.
__global__ void hold_stream(const uint32_t* flag) {
  const uint64_t end = shoal::cuda::now_ns() + 60'000'000'000;
  while (shoal::cuda::load_acquire(flag) == 0 && shoal::cuda::now_ns() < end) shoal::cuda::spin_pause();
}

TEST_F(NcclOneRank, AbortsCollectivesThatTimeOut) {
  uint32_t* flag = nullptr;
  ASSERT_EQ(cudaHostAlloc(reinterpret_cast<void**>(&flag), sizeof(uint32_t), cudaHostAllocPortable), cudaSuccess);
  *flag = 0;
  {
    const auto nccl = communicator(kShort);
    Case test = all_reduce_case(1, DType::kF32, 10);
    run(*nccl, all_reduce_case(1, DType::kF32, 10));
    test.prepare(*this);
    // Releases the stream when the watch reports that the time-out has expired.
    backend().launcher().add_watch(flag, {[&](std::chrono::nanoseconds stuck) {
                                            if (stuck > kShort) __atomic_store_n(flag, 1, __ATOMIC_RELEASE);
                                          },
                                          nullptr});
    const auto hold = [](void* object, const void*, const shoal::cuda::LaunchContext& context, bool) {
      shoal::cuda::launch(context.stream, hold_stream, dim3(1), dim3(1), 0, static_cast<const uint32_t*>(object));
    };
    backend().push_launch({hold, flag, nullptr});
    nccl->enqueue(0, test.calls[0]);
    EXPECT_THAT([&] { backend().synchronize(); },
                ThrowsMessage<CommError>(HasSubstr("[all_reduce x] rank 0 (CUDA0) could not finish within")));
    backend().launcher().remove_watch(flag);
  }
  run(*communicator(), all_reduce_case(1, DType::kF32, 10));
  EXPECT_EQ(cudaFreeHost(flag), cudaSuccess);
}

}  // namespace
}  // namespace shoal::collectives
