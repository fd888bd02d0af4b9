// Failures of p2p collectives: a rank is missing or late, ranks queue different collectives, a collective is aborted,
// or peer access does not work. The tests of P2pFlags check that a rank never mistakes old flags for new flags.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "devices/cuda/peer_access.h"
#include "tests/cuda/device_memory.h"
#include "tests/cuda/p2p_product.h"
#include "tests/support/environment.h"
#include "tests/support/time_outs.h"

namespace shoal::collectives::p2p {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::ContainsRegex;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Optional;

const Options kImpatient{.timeout = milliseconds(300)};
const Options kPatient{.timeout = std::chrono::seconds(600)};

/// A collective that fails in the tests.
struct Form {
  const char* name;
  CollectiveCase (*make)(int ranks);  ///< nullptr stands for a product fused with the following all_reduce and norm
  milliseconds timeout{300};
};
const Form kForms[] = {
    {"all_reduce", [](int ranks) { return all_reduce_case(ranks, DType::kF32, 100); }},
    {"all_reduce", [](int ranks) { return all_reduce_case(ranks, DType::kF32, 300'000); }},
    {"reduce_scatter", [](int ranks) { return reduce_scatter_case(DType::kF32, std::vector<int64_t>(ranks, 50)); }},
    {"all_gather", [](int ranks) { return all_gather_case(DType::kF32, std::vector<int64_t>(ranks, 50)); }},
    {"broadcast", [](int ranks) { return broadcast_case(ranks, DType::kF32, 50, 0); }},
    {"all_reduce_norm", nullptr, milliseconds(2000)},
};

/// One collective with its memory.
class Work {
 public:
  Work(Rig& rig, const Form& form) : rig_(rig) {
    if (form.make == nullptr) {
      products_ = products_of(rig, DType::kF16, 64, 512);
    } else {
      case_.emplace(form.make(rig.size()));
      case_->prepare(rig);
    }
  }
  void launch(const std::vector<int>& ranks) {
    for (const int rank : ranks) {
      case_ ? rig_.communicator().launch(rank, case_->calls[rank])
            : products_[static_cast<size_t>(rank)]->launch_joined(rig_.communicator(), rank);
    }
  }

 private:
  Rig& rig_;
  std::optional<Case> case_;
  std::vector<std::unique_ptr<RankProduct>> products_;
};

TEST(P2pFailure, NamesTheMissingRankOnEveryRank) {
  for (const Form& form : kForms) {
    Rig rig(4, 2, {}, {.timeout = form.timeout});
    Work work(rig, form);
    work.launch({0, 1, 3});
    EXPECT_THAT(rig.errors(),
                Each(Optional(AllOf(HasSubstr(fmt::format("[{} x] rank 2 (D2) of 4 did not arrive", form.name)),
                                    ContainsRegex(fmt::format("within [{}-9]", form.timeout.count() / 1000))))));
  }
}

TEST(P2pFailure, NamesAllMissingRanks) {
  const test::TimeOuts time_outs;
  const auto named = HasSubstr("rank 0 (D0), 2 (D2), 4 (D4) of 5 did not arrive");
  {
    Rig rig(5, 1, {}, kImpatient);
    Work work(rig, kForms[1]);
    work.launch({1, 3});
    EXPECT_THAT(rig.errors(), Each(Optional(named)));
    EXPECT_THAT(time_outs.messages(), ElementsAre(named));
  }
  EXPECT_EQ(open_timeouts(), 0) << "no time-out may remain open";
}

// In later steps, a rank sends no packets to itself, so the flags of these packets are old. The error must name only
// rank 1.
TEST(P2pFailure, NamesTheMissingRankInLaterSteps) {
  Rig rig(3, 1, {}, {.timeout = std::chrono::seconds(2)});
  Work work(rig, kForms[0]);
  for (int step = 0; step < 4; ++step) {
    work.launch({0, 1, 2});
    rig.synchronize_and_check();
  }
  work.launch({0, 2});
  EXPECT_THAT(rig.errors(), Each(Optional(HasSubstr(" x] rank 1 (D1) of 3 did not arrive"))));
}

// The late rank and all later work must end immediately with the message of the first failure.
TEST(P2pFailure, CommunicatorStaysFailed) {
  for (const Form& form : kForms) {
    SCOPED_TRACE(form.name);
    Rig rig(3, 1, {}, {.timeout = form.timeout});
    Work work(rig, form);
    work.launch({0, 2});
    const auto first = rig.errors();
    ASSERT_THAT(first, Each(Optional(HasSubstr("rank 1 (D1) of 3 did not arrive"))));
    Work other(rig, kForms[3]);
    work.launch({1});
    work.launch({0, 1, 2});
    other.launch({0, 1, 2});
    EXPECT_EQ(rig.errors(), first);
    rig.communicator().abort("too late to matter");
    EXPECT_EQ(rig.errors(), first);
  }
}

TEST(P2pFailure, EndsLaterWorkAtOnce) {
  Rig rig(3, 1, {}, kImpatient);
  Work work(rig, kForms[0]);
  work.launch({0, 2});
  rig.synchronize();
  const auto begin = std::chrono::steady_clock::now();
  work.launch({1});
  for (int again = 0; again < 20; ++again) work.launch({0, 1, 2});
  rig.synchronize();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 10 * kImpatient.timeout);
}

TEST(P2pFailure, AbortEndsAWait) {
  for (const Form& form : kForms) {
    SCOPED_TRACE(form.name);
    Rig rig(3, 1, {}, kPatient);
    Work work(rig, form);
    work.launch({0, 1});
    std::this_thread::sleep_for(milliseconds(20));
    EXPECT_EQ(cudaStreamQuery(rig.stream(0)), cudaErrorNotReady);
    cudaGetLastError();
    EXPECT_NO_THROW(rig.communicator().check(0));
    rig.communicator().abort("enough");
    EXPECT_THAT(rig.errors(), Each(Optional(HasSubstr("aborted: enough"))));
  }
}

TEST(P2pFailure, DetectsDifferentCollectives) {
  const Form longer{"all_reduce", [](int ranks) { return all_reduce_case(ranks, DType::kF32, 101); }};
  for (const auto& [one, other] : {std::pair(kForms[0], longer), std::pair(kForms[0], kForms[3]),
                                   std::pair(kForms[0], kForms[5]), std::pair(kForms[5], kForms[0])}) {
    Rig rig(3, 1, {}, kPatient);
    Work work(rig, one), different(rig, other);
    work.launch({0, 1, 2});  // first, all ranks queue the same collective
    work.launch({0, 1});
    different.launch({2});
    const auto named = [](const Form& form) { return ContainsRegex(std::string(form.name) + "( x|;)"); };
    EXPECT_THAT(rig.errors(), Each(Optional(AllOf(HasSubstr(" x] ranks queued different collectives"),
                                                  HasSubstr("rank 2 (D2)"), named(one), named(other)))));
  }
}

TEST(P2pFailure, RefusesInvalidMeshes) {
  Rig rig(2);
  const Place place{0, rig.stream(0), "D0"};
  EXPECT_THROW(P2pCommunicator({}), InvalidArgument);
  EXPECT_THROW(P2pCommunicator(std::vector<Place>{place, place}), InvalidArgument);
  EXPECT_THROW(P2pCommunicator(std::vector<Place>(kMaxRanks + 1, place)), InvalidArgument);
}

// CUDA may load a kernel at its first launch, and this load may wait for running kernels. If the running kernels wait
// for the rank of the new kernel, the load and the running kernels wait forever.
TEST(P2pFailure, RefusesLazyLoadingIfRanksShareAGpu) {
  const test::Environment lazy("CUDA_MODULE_LOADING", "LAZY");
  EXPECT_THAT([] { Rig(2); }, testing::ThrowsMessage<InvalidArgument>(HasSubstr("set CUDA_MODULE_LOADING=EAGER")));
  EXPECT_NO_THROW(Rig(1));
}

#ifdef SHOAL_CUDA_EMULATED
// This test uses pairs of GPUs that no other test uses, because the plug-in checks each pair only once.
TEST(P2pPeers, DetectsBrokenPeerAccess) {
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
  const auto problems = testing::ElementsAre(HasSubstr("GPU 20 reports peer access to GPU 21, but"));
  EXPECT_THAT(cuda::peer_problems(std::vector<int>{20, 21, 20}), problems);
  EXPECT_TRUE(is_copied()) << "copies must now go through the host";
  environment.set("SHOAL_EMULATED_LYING_PEERS", std::nullopt);
  EXPECT_THAT(cuda::peer_problems(std::vector<int>{21, 20}), problems) << "the result of the first test is cached";
  environment.set("SHOAL_EMULATED_PEERS", "0");
  EXPECT_THAT(cuda::peer_problems(std::vector<int>{22, 23}),
              testing::ElementsAre("GPU 22 has no peer access to GPU 23", "GPU 23 has no peer access to GPU 22"));
}
#endif

/// Runs the kernels of two ranks without a communicator, so that tests can inspect the memory of both ranks.
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

  /// Sets a word in the states of both ranks.
  void set_word(size_t offset, uint32_t word) {
    Bytes bytes(sizeof word);
    std::memcpy(bytes.data(), &word, sizeof word);
    for (const DeviceBytes& memory : memory_) memory.set(bytes, offset);
  }
  /// Sets the states of both ranks as if `steps` steps had completed.
  void set_steps(uint32_t steps) { set_word(offsetof(RankState, blocks) + offsetof(BlockState, packets), steps); }
  /// Launches an all_reduce of one element on one rank.
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
  /// Runs an all_reduce of one element and returns the result of rank 0.
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
  /// Launches the all_reduce and norm of a row on one rank. If `joined` is true, the kernel also computes the product.
  void launch_row(int rank, RankProduct& own, bool joined, uint32_t signature, std::chrono::nanoseconds timeout) {
    const Mesh mesh = this->mesh(rank, signature, timeout);
    if (!joined) return all_reduce_norm(own.context(), mesh, own.reduction());
    ASSERT_TRUE(product_norm(own.context(), mesh, own.reduction(), own.product()));
  }
  /// Runs the fused kernel for a row of four elements on both ranks.
  void launch_products() {
    const auto products = products_of(rig_, DType::kF16, 64, 4);
    for (int rank = 0; rank < 2; ++rank) {
      launch_row(rank, *products[static_cast<size_t>(rank)], true, 0xabcd, std::chrono::minutes(1));
    }
    rig_.synchronize();
  }
  /// Returns the flags of all packets that rank `from` sent to rank `to` in steps with this parity. By default, `to` is
  /// the other rank.
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

TEST_F(P2pFlags, FlagsAreRefreshedBeforeStepNumbersRepeat) {
  constexpr uint32_t kSignature = 0xabcdu << 16;
  set_steps(kRefreshSteps - 1);
  EXPECT_EQ(sum(1, 2), 3);  // sends two packets of parity 1, each with 8 bytes of elements
  EXPECT_THAT(flags(1), testing::Contains(kSignature | (kRefreshSteps - 1)).Times(4));
  EXPECT_EQ(sum(3, 4), 7);
  EXPECT_THAT(flags(0), Each(kSignature | kRefreshSteps));
  EXPECT_EQ(sum(5, 6), 11);
  EXPECT_THAT(flags(1), Each(kSignature | (kRefreshSteps + 1)));
  EXPECT_EQ(sum(7, 8), 15);
  EXPECT_THAT(flags(0), testing::Contains(kSignature | (kRefreshSteps + 2)).Times(4));
}

// Fused products also send packets to their own rank. Fused products and plain all_reduces must refresh the flags in
// these packets.
TEST_F(P2pFlags, RankRefreshesFlagsOfPacketsToItself) {
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

TEST_F(P2pFlags, FailedRankSendsNoFlags) {
  launch(0, 0xabcd, std::chrono::milliseconds(1));  // rank 1 is missing
  rig_.synchronize();
  EXPECT_EQ(host_->records[0].failure, Failure::kTimeOut);
  EXPECT_THAT(flags(0, 0), testing::Contains(0xabcdu << 16));
  __atomic_store_n(&host_->abort, 0, __ATOMIC_RELEASE);  // now only rank 0 knows about the failure
  launch(0, 0x1234, std::chrono::milliseconds(1));
  rig_.synchronize();
  EXPECT_THAT(flags(0, 0), testing::Not(testing::Contains(0x1234u << 16)));
  const auto products = products_of(rig_, DType::kF16, 64, 4);
  const auto begin = std::chrono::steady_clock::now();
  launch_row(0, *products[0], true, 0x4321, std::chrono::minutes(1));
  rig_.synchronize();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30))
      << "the failed rank waited for the other rank";
  EXPECT_THAT(flags(0, 0), testing::Not(testing::Contains(0x4321u << 16)));
}

// Rank 1 sends only the first elements of the row. Therefore, only some threads of a warp receive all their packets.
// The whole warp must stop before it writes the record (the 8-bit copy of the norm), because the threads of a warp wait
// for each other when they write.
TEST_F(P2pFlags, TimeOutStopsAllThreadsOfAWarp) {
  const auto rows = products_of(rig_, DType::kF16, 64, 64), parts = products_of(rig_, DType::kF16, 64, 4);
  rows[0]->want_records({true, false});
  for (const bool joined : {true, false}) {
    SCOPED_TRACE(joined);
    for (const DeviceBytes& memory : memory_) memory.set(Bytes(kLayout.bytes(), std::byte{0}));
    set_steps(2);  // in the first two steps, ranks fill all packets
    *host_ = {};
    launch_row(0, *rows[0], joined, 0xabcd, kImpatient.timeout);
    launch_row(1, *parts[1], joined, 0xabcd, kImpatient.timeout);
    rig_.synchronize();
    EXPECT_EQ(host_->records[0].failure, Failure::kTimeOut);
    EXPECT_EQ(host_->records[0].missing, 2u);
  }
}

// Each rank counts its finished blocks. The count decides which block receives the row, but does not prove that the
// packets of the other blocks have arrived. In this test, the first of eight blocks receives the row.
TEST_F(P2pFlags, RankWaitsForPacketsOfItsOwnBlocks) {
  const auto products = products_of(rig_, DType::kF16, 64, 128);
  const auto results = [&](uint32_t finished) {
    set_word(offsetof(RankState, finished), finished);
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

TEST_F(P2pFlags, SumsStayCorrectWhenStepNumbersWrapAround) {
  for (const uint32_t before : {0xfffeu, 0xfffffffeu}) {
    set_steps(before);
    for (int i = 0; i < 5; ++i) EXPECT_EQ(sum(static_cast<float>(i), 10.0f), static_cast<float>(i) + 10.0f);
  }
}

}  // namespace
}  // namespace shoal::collectives::p2p
