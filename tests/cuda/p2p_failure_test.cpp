// What happens to p2p collectives when a rank does not come, comes late, or queues another collective, when one is
// aborted, and when peer access does not work; and that flags never grow old.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "tests/cuda/device_memory.h"
#include "tests/cuda/p2p_product.h"
#include "tests/support/environment.h"
#include "tests/support/time_outs.h"

namespace shoal::collectives::p2p {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Optional;

const Options kImpatient{.timeout = milliseconds(300)};
const Options kPatient{.timeout = std::chrono::seconds(600)};

class Stopwatch {
 public:
  milliseconds elapsed() const {
    return std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - start_);
  }

 private:
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// One of each form, with something of each rank.
std::vector<Case> all_forms(int ranks) {
  std::vector<Case> cases;
  cases.push_back(all_reduce_case(ranks, DType::kF32, 100));
  cases.push_back(all_reduce_case(ranks, DType::kF32, 300'000));
  cases.push_back(reduce_scatter_case(DType::kF32, std::vector<int64_t>(ranks, 50)));
  cases.push_back(all_gather_case(DType::kF32, std::vector<int64_t>(ranks, 50)));
  cases.push_back(broadcast_case(ranks, DType::kF32, 50, 0));
  return cases;
}

TEST(P2pFailure, AMissingRankIsNamedOnEveryRank) {
  for (Case& test : all_forms(4)) {
    SCOPED_TRACE(name_of(test.kind));
    Rig rig(4, 2, {}, kImpatient);
    test.prepare(rig);
    const Stopwatch stopwatch;
    for (int rank : {0, 1, 3}) rig.communicator().launch(rank, test.call(rank));
    EXPECT_THAT(rig.errors(), Each(Optional(AllOf(HasSubstr("rank 2 (D2) of 4 did not arrive within 0."),
                                                  HasSubstr(name_of(test.kind)), HasSubstr(" x]")))));
    EXPECT_GE(stopwatch.elapsed(), kImpatient.timeout);
    EXPECT_LT(stopwatch.elapsed(), milliseconds(10'000));
  }
}

TEST(P2pFailure, AllMissingRanksAreNamed) {
  const test::TimeOuts time_outs;
  const auto named = HasSubstr("rank 0 (D0), 2 (D2), 4 (D4) of 5 did not arrive");
  {
    Rig rig(5, 1, {}, kImpatient);
    Case test = all_reduce_case(5, DType::kF32, 100'000);
    test.prepare(rig);
    for (int rank : {1, 3}) rig.communicator().launch(rank, test.call(rank));
    EXPECT_THAT(rig.errors(), Each(Optional(named)));
    EXPECT_THAT(time_outs.messages(), ElementsAre(named));
  }
  EXPECT_EQ(open_timeouts(), 0) << "the program need not end";
}

// Packets for the rank itself have the flags of the first steps, and of no later ones.
TEST(P2pFailure, AMissingRankIsNamedInLaterSteps) {
  Rig rig(3, 1, {}, {.timeout = std::chrono::seconds(2)});
  Case test = all_reduce_case(3, DType::kF32, 100);
  test.prepare(rig);
  for (int step = 0; step < 4; ++step) {
    for (int rank = 0; rank < 3; ++rank) rig.communicator().launch(rank, test.call(rank));
    rig.synchronize_and_check();
  }
  for (int rank : {0, 2}) rig.communicator().launch(rank, test.call(rank));
  EXPECT_THAT(rig.errors(), Each(Optional(HasSubstr(" x] rank 1 (D1) of 3 did not arrive"))));
}

// The late rank and everything queued afterwards end soon, with the first failure's message.
TEST(P2pFailure, StaysFailed) {
  Rig rig(3, 1, {}, kImpatient);
  Case test = all_reduce_case(3, DType::kF32, 100);
  test.prepare(rig);
  for (int rank : {0, 2}) rig.communicator().launch(rank, test.call(rank));
  const auto first = rig.errors();
  ASSERT_THAT(first, Each(Optional(HasSubstr("rank 1 (D1) of 3 did not arrive"))));
  Case other = all_gather_case(DType::kF32, {1, 2, 3});
  other.prepare(rig);
  const Stopwatch stopwatch;
  rig.communicator().launch(1, test.call(1));
  for (int again = 0; again < 20; ++again) {
    for (int rank = 0; rank < 3; ++rank) rig.communicator().launch(rank, other.call(rank));
  }
  EXPECT_EQ(rig.errors(), first);
  EXPECT_LT(stopwatch.elapsed(), 10 * kImpatient.timeout);
  rig.communicator().abort("too late to matter");
  EXPECT_EQ(rig.errors(), first);
}

TEST(P2pFailure, AbortEndsAWait) {
  for (Case& test : all_forms(3)) {
    SCOPED_TRACE(name_of(test.kind));
    Rig rig(3, 1, {}, kPatient);
    test.prepare(rig);
    for (int rank : {0, 1}) rig.communicator().launch(rank, test.call(rank));
    std::this_thread::sleep_for(milliseconds(20));
    EXPECT_EQ(cudaStreamQuery(rig.stream(0)), cudaErrorNotReady);
    cudaGetLastError();
    EXPECT_NO_THROW(rig.communicator().check(0));
    const Stopwatch stopwatch;
    rig.communicator().abort("enough");
    EXPECT_THAT(rig.errors(), Each(Optional(HasSubstr("aborted: enough"))));
    EXPECT_LT(stopwatch.elapsed(), milliseconds(10'000));
  }
}

TEST(P2pFailure, DifferentCountsAreFoundOut) {
  Rig rig(3, 1, {}, kPatient);
  Case test = all_reduce_case(3, DType::kF32, 100), other = all_reduce_case(3, DType::kF32, 101);
  test.prepare(rig);
  other.prepare(rig);
  for (int rank : {0, 1}) rig.communicator().launch(rank, test.call(rank));
  rig.communicator().launch(2, other.call(2));
  EXPECT_THAT(
      rig.errors(),
      Each(Optional(AllOf(HasSubstr("different collectives"), HasSubstr("rank 2 (D2)"), HasSubstr("all_reduce")))));
}

TEST(P2pFailure, DifferentKindsAreFoundOut) {
  Rig rig(2, 1, {}, kPatient);
  Case test = all_reduce_case(2, DType::kF32, 100), other = all_gather_case(DType::kF32, {5, 5});
  test.prepare(rig);
  other.prepare(rig);
  // They agree before they do not.
  for (int rank : {0, 1}) rig.communicator().launch(rank, test.call(rank));
  rig.communicator().launch(0, test.call(0));
  rig.communicator().launch(1, other.call(1));
  EXPECT_THAT(
      rig.errors(),
      Each(Optional(AllOf(HasSubstr("different collectives"), HasSubstr("all_reduce"), HasSubstr("all_gather")))));
}

TEST(P2pFailure, BadMeshesAreRefused) {
  Rig rig(2);
  const Place place{0, rig.stream(0), "D0"};
  EXPECT_THROW(P2pCommunicator({}), InvalidArgument);
  EXPECT_THROW(P2pCommunicator(std::vector<Place>{place, place}), InvalidArgument);
  EXPECT_THROW(P2pCommunicator(std::vector<Place>(kMaxRanks + 1, place)), InvalidArgument);
}

#ifdef SHOAL_CUDA_EMULATED
// Pairs that no other test uses, since answers are kept.
TEST(P2pPeers, LiesAreFoundOut) {
  test::Environment environment{{"SHOAL_EMULATED_GPUS", "24"}, {"SHOAL_EMULATED_LYING_PEERS", "20>21"}};
  const auto is_copied = [] {
    std::vector<std::unique_ptr<test::CudaArray<int>>> memory;
    for (const int gpu : {20, 21}) {
      const cuda::CurrentGpu current(gpu);
      memory.push_back(std::make_unique<test::CudaArray<int>>(std::vector<int>{gpu, gpu}));
    }
    EXPECT_EQ(cudaMemcpyPeerAsync(memory[1]->data(), 21, memory[0]->data(), 20, 8, nullptr), cudaSuccess);
    return memory[1]->get() == std::vector<int>{20, 20};
  };
  for (const auto& [gpu, peer] : {std::pair{20, 21}, std::pair{21, 20}})
    check_cuda(cuda::turn_on_peer_access(gpu, peer));
  EXPECT_FALSE(is_copied());
  EXPECT_EQ(verify_peer(21, 20), "");
  EXPECT_TRUE(is_copied()) << "through the host now";
  EXPECT_THAT(verify_peer(20, 21), HasSubstr("GPU 20 reports peer access to GPU 21, but"));
  EXPECT_THAT(verify_peers(std::vector<int>{20, 21, 20}), testing::SizeIs(1));
  environment.set("SHOAL_EMULATED_LYING_PEERS", std::nullopt);
  EXPECT_NE(verify_peer(20, 21), "") << "it is tried once";
  environment.set("SHOAL_EMULATED_PEERS", "0");
  EXPECT_EQ(verify_peer(22, 23), "GPU 22 has no peer access to GPU 23");
}
#endif

/// Two ranks of kernels without a communicator, whose memory can be looked into.
class P2pFlags : public testing::Test {
 protected:
  static constexpr Layout kLayout{2, 1};
  P2pFlags() {
    for (int rank = 0; rank < 2; ++rank) {
      memory_.emplace_back(0, kLayout.bytes());
      memory_[rank].set(Bytes(kLayout.bytes(), std::byte{0}));
      data_.emplace_back(0, 8);
    }
    void* host = nullptr;
    check_cuda(cudaHostAlloc(&host, sizeof(HostWords), cudaHostAllocMapped));
    host_ = new (host) HostWords{};
  }
  ~P2pFlags() override { cudaFreeHost(host_); }

  /// As if `steps` steps had been made.
  void set_steps(uint32_t steps) {
    for (const DeviceBytes& memory : memory_) {
      Bytes bytes(sizeof steps);
      std::memcpy(bytes.data(), &steps, sizeof steps);
      memory.set(bytes, offsetof(RankState, blocks) + offsetof(BlockState, packets));
    }
  }
  /// One rank's side of an all_reduce of one element.
  void launch(int rank, uint32_t signature = 0xabcd, std::chrono::nanoseconds timeout = std::chrono::minutes(1)) {
    void* const data = data_[rank].data();
    all_reduce_one_shot({rig_.stream(rank), {}}, mesh(rank, signature, timeout), {Element::kF32, data, data}, 1);
  }
  Mesh mesh(int rank, uint32_t signature, std::chrono::nanoseconds timeout) {
    Mesh mesh{};
    for (int peer = 0; peer < 2; ++peer) mesh.memory[peer] = reinterpret_cast<uint8_t*>(memory_[peer].data());
    mesh.host = host_;
    mesh.timeout_ns = static_cast<uint64_t>(timeout.count());
    mesh.layout = kLayout;
    mesh.rank = rank;
    mesh.signature = signature;
    return mesh;
  }
  /// An all_reduce of one element; its result on rank 0.
  float sum(float a, float b) {
    data_[0].set(encode(DType::kF32, {a}));
    data_[1].set(encode(DType::kF32, {b}));
    for (int rank = 0; rank < 2; ++rank) launch(rank);
    rig_.synchronize();
    float result = 0;
    const Bytes bytes = data_[0].get(0, sizeof result);
    std::memcpy(&result, bytes.data(), sizeof result);
    return result;
  }
  /// One rank's side of a row, with its product in front or without.
  void launch_row(int rank, RankProduct& own, bool joined, uint32_t signature, std::chrono::nanoseconds timeout) {
    const Mesh mesh = this->mesh(rank, signature, timeout);
    if (!joined) return all_reduce_norm(own.context(), mesh, own.reduction());
    ASSERT_TRUE(product_norm(own.context(), mesh, own.reduction(), own.product()));
  }
  /// A row of four elements by one kernel, on both ranks.
  void launch_products() {
    const auto products = products_of(rig_, DType::kF16, 64, 4);
    for (int rank = 0; rank < 2; ++rank) {
      launch_row(rank, *products[static_cast<size_t>(rank)], true, 0xabcd, std::chrono::minutes(1));
    }
    rig_.synchronize();
  }
  /// The flags of all packets that a rank sent to the other one, or to `to`, in steps of a parity.
  std::vector<uint32_t> flags(uint32_t parity, int from = 1) { return flags(parity, from, 1 - from); }
  std::vector<uint32_t> flags(uint32_t parity, int from, int to) {
    const Bytes bytes = memory_[to].get(kLayout.packets(parity, 0, from), kPackets * kPacketBytes);
    std::vector<uint32_t> flags(kPackets * 2);
    for (size_t i = 0; i < flags.size(); ++i) std::memcpy(&flags[i], bytes.data() + i * 8 + 4, 4);
    return flags;
  }

  Rig rig_{2};
  std::vector<DeviceBytes> memory_, data_;
  HostWords* host_ = nullptr;
};

TEST_F(P2pFlags, AreRefreshedBeforeTheirNumbersComeAgain) {
  constexpr uint32_t kSignature = 0xabcdu << 16;
  set_steps(kRefreshSteps - 1);
  EXPECT_EQ(sum(1, 2), 3);  // sends two packets of parity 1: 16 bytes of elements
  EXPECT_THAT(flags(1), testing::Contains(kSignature | (kRefreshSteps - 1)).Times(4));
  EXPECT_EQ(sum(3, 4), 7);
  EXPECT_THAT(flags(0), Each(kSignature | kRefreshSteps));
  EXPECT_EQ(sum(5, 6), 11);
  EXPECT_THAT(flags(1), Each(kSignature | (kRefreshSteps + 1)));
  EXPECT_EQ(sum(7, 8), 15);
  EXPECT_THAT(flags(0), testing::Contains(kSignature | (kRefreshSteps + 2)).Times(4));
}

// Kernels that send to their own rank, too, do not find flags there that are as old as that either, whichever kernels
// refresh them.
TEST_F(P2pFlags, OfTheOwnPacketsAreRefreshed) {
  constexpr uint32_t kSignature = 0xabcdu << 16;
  for (const bool by_products : {true, false}) {
    SCOPED_TRACE(by_products);
    set_steps(kRefreshSteps - 1);
    for (int i = 0; i < 3; ++i) by_products ? launch_products() : void(sum(1, 2));
    for (const auto& [from, to] : {std::pair{0, 0}, {1, 1}, {0, 1}}) {
      EXPECT_THAT(flags(0, from, to), Each(kSignature | kRefreshSteps));
      EXPECT_THAT(flags(1, from, to), Each(kSignature | (kRefreshSteps + 1)));
    }
    set_steps(2 * kRefreshSteps - 1);
    launch_products();
    EXPECT_THAT(flags(1, 0, 0), testing::Contains(kSignature | (2 * kRefreshSteps - 1)).Times(4)) << "two packets";
  }
}

TEST_F(P2pFlags, OfARankThatHasFailedAreSentNoMore) {
  launch(0, 0xabcd, std::chrono::milliseconds(1));  // rank 1 does not come
  rig_.synchronize();
  EXPECT_EQ(host_->records[0].failure, Failure::kTimeOut);
  EXPECT_THAT(flags(0, 0), testing::Contains(0xabcdu << 16));
  __atomic_store_n(&host_->abort, 0, __ATOMIC_RELEASE);  // so that only the rank itself knows
  launch(0, 0x1234, std::chrono::milliseconds(1));
  rig_.synchronize();
  EXPECT_THAT(flags(0, 0), testing::Not(testing::Contains(0x1234u << 16)));
  const auto products = products_of(rig_, DType::kF16, 64, 4);
  const Stopwatch stopwatch;
  launch_row(0, *products[0], true, 0x4321, std::chrono::minutes(1));
  rig_.synchronize();
  EXPECT_LT(stopwatch.elapsed(), milliseconds(30'000)) << "it waited for the other rank";
  EXPECT_THAT(flags(0, 0), testing::Not(testing::Contains(0x4321u << 16)));
}

// Of a warp some threads have received all that they wait for, and others have not: none goes on to the record, in
// which they would wait for each other. Rank 1 has a part of the row only.
TEST_F(P2pFlags, WarpsGiveUpTogether) {
  const auto rows = products_of(rig_, DType::kF16, 64, 64), parts = products_of(rig_, DType::kF16, 64, 4);
  rows[0]->want_records({true, false});
  for (const bool joined : {true, false}) {
    SCOPED_TRACE(joined);
    for (const DeviceBytes& memory : memory_) memory.set(Bytes(kLayout.bytes(), std::byte{0}));
    set_steps(2);  // all packets of the first two are filled
    *host_ = {};
    launch_row(0, *rows[0], joined, 0xabcd, kImpatient.timeout);
    launch_row(1, *parts[1], joined, 0xabcd, kImpatient.timeout);
    rig_.synchronize();
    EXPECT_EQ(host_->records[0].failure, Failure::kTimeOut);
    EXPECT_EQ(host_->records[0].missing, 2u);
  }
}

// The count of a rank's blocks chooses the one that receives the row, and says nothing about the others' packets: here
// the first of eight does it.
TEST_F(P2pFlags, OfTheOwnBlocksAreWaitedFor) {
  const auto products = products_of(rig_, DType::kF16, 64, 128);
  const auto results = [&](uint32_t finished) {
    Bytes bytes(sizeof finished);
    std::memcpy(bytes.data(), &finished, sizeof finished);
    for (const DeviceBytes& memory : memory_) memory.set(bytes, offsetof(RankState, finished));
    for (int rank = 0; rank < 2; ++rank) {
      RankProduct& own = *products[static_cast<size_t>(rank)];
      own.clear();
      launch_row(rank, own, true, 0xabcd, std::chrono::minutes(1));
    }
    rig_.synchronize();
    return std::pair(products[0]->results(), products[1]->results());
  };
  const auto expected = results(0);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(results(7), expected);
}

TEST_F(P2pFlags, GoOnWhenNumbersWrapAround) {
  for (const uint32_t before : {0xfffeu, 0xfffffffeu}) {
    set_steps(before);
    for (int i = 0; i < 5; ++i) EXPECT_EQ(sum(static_cast<float>(i), 10.0f), static_cast<float>(i) + 10.0f);
  }
}

}  // namespace
}  // namespace shoal::collectives::p2p
