// Small copies to the GPU that go as one.
#include <gmock/gmock.h>

#include <numeric>
#include <vector>

#include "devices/allocate.h"
#include "graph/graph.h"
#include "tests/cuda/cuda_mesh.h"
#include "tests/cuda/emulator/emulator.h"

namespace shoal::cuda {
namespace {

using testing::ElementsAre;

/// Tensors of the GPU that lie side by side, and pinned memory with room for what they get, in the same order.
class JoinedSetsTest : public testing::Test {
 protected:
  void make(const std::vector<int64_t>& lengths) {
    for (size_t i = 0; i < lengths.size(); ++i) {
      made_.push_back(tensors_.add("t" + std::to_string(i), DType::kI32, {lengths[i], 1, 1, 1}));
    }
    memory_ = allocate_tensors(made_, device_.buffer_type(), Usage::kAny);
    host_ = device_.host_buffer_type()->allocate(4096);
    values_ = reinterpret_cast<int32_t*>(host_->base());
  }
  /// The first `count` elements, from value `at` on.
  void set(size_t tensor, int64_t at, int64_t count = 1, int64_t first = 0) {
    backend_.set_async(*made_[tensor], values_ + at, static_cast<size_t>(first) * sizeof(int32_t),
                       static_cast<size_t>(count) * sizeof(int32_t));
  }
  std::vector<int32_t> get(size_t tensor) {
    std::vector<int32_t> values(static_cast<size_t>(made_[tensor]->elements()));
    tensor_get(*made_[tensor], values.data(), 0, values.size() * sizeof(int32_t));
    return values;
  }
  /// Copies that were made for what is queued.
  std::vector<std::string> copies() {
    backend_.synchronize();
    std::vector<std::string> calls = emulator::take_calls();
    std::erase_if(calls, [](const std::string& call) { return !call.starts_with("cudaMemcpy"); });
    return calls;
  }

  struct Set {
    size_t tensor;
    int at, count;
  };
  /// Queues the sets; each tensor gets its values.
  void expect_copies(const std::vector<Set>& sets, const std::vector<std::string>& expected) {
    std::iota(values_, values_ + 64, 0);
    emulator::record_calls();
    for (const Set& one : sets) set(one.tensor, one.at, one.count);
    EXPECT_EQ(copies(), expected);
    for (const Set& one : sets) {
      std::vector<int32_t> values(static_cast<size_t>(one.count));
      std::iota(values.begin(), values.end(), one.at);
      EXPECT_EQ(get(one.tensor), values) << one.tensor;
    }
  }

  test::CudaMesh mesh_{1};
  Device& device_ = *mesh_.devices().front();
  Backend& backend_ = mesh_.backend(0);
  TensorContext tensors_;
  std::vector<Tensor*> made_;
  std::unique_ptr<Buffer> memory_, host_;
  int32_t* values_ = nullptr;
};

TEST_F(JoinedSetsTest, EquallyLongPiecesEquallyFarApartAreOneCopy) {
  make({2, 2, 2, 2, 1});
  const char *const one = "cudaMemcpyAsync", *const joined = "cudaMemcpy2DAsync";
  expect_copies({{0, 0, 2}, {1, 20, 2}, {2, 40, 2}}, {joined});
  // With the pitch of the device only; backwards; of another length.
  expect_copies({{0, 0, 2}, {2, 10, 2}, {1, 20, 2}, {4, 30, 1}}, {joined, one, one});
  expect_copies({{0, 0, 2}, {1, 20, 2}, {3, 40, 2}}, {joined, one});  // unequally far apart on the GPU
  expect_copies({{0, 0, 2}, {1, 20, 2}, {2, 30, 2}}, {joined, one});  // and on the host
  expect_copies({{0, 10, 2}, {1, 11, 2}}, {one, one});                // one on another
}

TEST_F(JoinedSetsTest, TheLatestValueOfAPlaceStays) {
  make({2, 1});
  std::iota(values_, values_ + 64, 0);
  set(0, 1), set(0, 2), set(0, 3, 1, 1), set(0, 4, 2);
  set(1, 9);
  backend_.synchronize();
  EXPECT_THAT(get(0), ElementsAre(4, 5));
  EXPECT_THAT(get(1), ElementsAre(9));
}

TEST_F(JoinedSetsTest, MemoryThatIsNotPinnedIsCopiedPieceByPiece) {
  make({1, 1});
  const std::vector<int32_t> pageable{1, 2};
  emulator::record_calls();
  for (size_t i = 0; i < 2; ++i) backend_.set_async(*made_[i], &pageable[i], 0, sizeof(int32_t));
  EXPECT_THAT(copies(), ElementsAre("cudaMemcpyAsync", "cudaMemcpyAsync"));
  for (int i = 0; i < 2; ++i) EXPECT_THAT(get(static_cast<size_t>(i)), ElementsAre(1 + i));
}

/// Pieces of memory that is pinned but for one of them, 80 bytes apart.
TEST_F(JoinedSetsTest, OnePieceThatIsNotPinnedIsEnough) {
  make({1, 1, 1});
  for (const int pageable : {0, 1, 2}) {
    std::vector<int32_t> own(3 * 20, -1);
    const auto at = [&](int i) { return own.data() + i * 20; };
    for (const int i : {0, 1, 2}) {
      *at(i) = pageable * 10 + i;
      if (i == pageable) continue;
      ASSERT_EQ(cudaHostRegister(at(i), 20 * sizeof(int32_t), 0), cudaSuccess);
    }
    emulator::record_calls();
    for (const int i : {0, 1, 2}) backend_.set_async(*made_[static_cast<size_t>(i)], at(i), 0, sizeof(int32_t));
    EXPECT_THAT(copies(), ElementsAre("cudaMemcpyAsync", "cudaMemcpyAsync", "cudaMemcpyAsync")) << pageable;
    for (const int i : {0, 1, 2}) {
      EXPECT_THAT(get(static_cast<size_t>(i)), ElementsAre(pageable * 10 + i));
      if (i == pageable) continue;
      EXPECT_EQ(cudaHostUnregister(at(i)), cudaSuccess);
    }
  }
}

// Which one copy cannot cross.
TEST_F(JoinedSetsTest, PiecesOfSeveralAllocationsAreCopiedAllTheSame) {
  make({1, 1});
  std::vector<int32_t> own{1, -1, -1, -1, 2, -1, -1, -1};
  for (const size_t i : {0, 4}) ASSERT_EQ(cudaHostRegister(&own[i], 16, 0), cudaSuccess);
  emulator::record_calls();
  for (const size_t i : {0, 1}) backend_.set_async(*made_[i], &own[i * 4], 0, sizeof(int32_t));
  EXPECT_THAT(copies(), ElementsAre("cudaMemcpy2DAsync", "cudaMemcpyAsync", "cudaMemcpyAsync"));
  for (const int i : {0, 1}) EXPECT_THAT(get(static_cast<size_t>(i)), ElementsAre(1 + i));
  for (const size_t i : {0, 4}) EXPECT_EQ(cudaHostUnregister(&own[i]), cudaSuccess);
}

TEST_F(JoinedSetsTest, AFailureNamesTheFirstTensor) {
  make({1, 1});
  emulator::fail_call("cudaMemcpy2DAsync", 1, cudaErrorUnknown);
  set(0, 0), set(1, 1);
  EXPECT_THAT([&] { backend_.synchronize(); }, testing::ThrowsMessage<DeviceError>(testing::HasSubstr("write t0")));
  emulator::clear_faults();
}

TEST_F(JoinedSetsTest, ABufferThatHasGoneIsAnError) {
  make({1, 1});
  set(0, 0), set(1, 1);
  memory_.reset();
  EXPECT_THROW(backend_.synchronize(), InvalidArgument);
}

}  // namespace
}  // namespace shoal::cuda
