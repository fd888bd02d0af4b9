// What happens to p2p collectives when a rank does not come, comes late, or queues another collective, when one is
// aborted, and when peer access does not work; and that flags never grow old.
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

/// A form of a collective.
struct Form {
  const char* name;
  CollectiveCase (*make)(int ranks);  ///< nullptr: a product with the all_reduce and the norm behind it
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

/// A collective of a form with its memory.
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

TEST(P2pFailure, AMissingRankIsNamedOnEveryRank) {
  for (const Form& form : kForms) {
    Rig rig(4, 2, {}, {.timeout = form.timeout});
    Work work(rig, form);
    work.launch({0, 1, 3});
    EXPECT_THAT(rig.errors(),
                Each(Optional(AllOf(HasSubstr(fmt::format("[{} x] rank 2 (D2) of 4 did not arrive", form.name)),
                                    ContainsRegex(fmt::format("within [{}-9]", form.timeout.count() / 1000))))));
  }
}

TEST(P2pFailure, AllMissingRanksAreNamed) {
  const test::TimeOuts time_outs;
  const auto named = HasSubstr("rank 0 (D0), 2 (D2), 4 (D4) of 5 did not arrive");
  {
    Rig rig(5, 1, {}, kImpatient);
    Work work(rig, kForms[1]);
    work.launch({1, 3});
    EXPECT_THAT(rig.errors(), Each(Optional(named)));
    EXPECT_THAT(time_outs.messages(), ElementsAre(named));
  }
  EXPECT_EQ(open_timeouts(), 0) << "the program need not end";
}

// Packets for the rank itself have the flags of the first steps, and of no later ones.
TEST(P2pFailure, AMissingRankIsNamedInLaterSteps) {
  Rig rig(3, 1, {}, {.timeout = std::chrono::seconds(2)});
  Work work(rig, kForms[0]);
  for (int step = 0; step < 4; ++step) {
    work.launch({0, 1, 2});
    rig.synchronize_and_check();
  }
  work.launch({0, 2});
  EXPECT_THAT(rig.errors(), Each(Optional(HasSubstr(" x] rank 1 (D1) of 3 did not arrive"))));
}

// The late rank and everything queued afterwards end at once, with the first failure's message.
TEST(P2pFailure, StaysFailed) {
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

TEST(P2pFailure, DifferentCollectivesAreFoundOut) {
  const Form longer{"all_reduce", [](int ranks) { return all_reduce_case(ranks, DType::kF32, 101); }};
  for (const auto& [one, other] : {std::pair(kForms[0], longer), std::pair(kForms[0], kForms[3]),
                                   std::pair(kForms[0], kForms[5]), std::pair(kForms[5], kForms[0])}) {
    Rig rig(3, 1, {}, kPatient);
    Work work(rig, one), different(rig, other);
    work.launch({0, 1, 2});  // they agree before they do not
    work.launch({0, 1});
    different.launch({2});
    const auto named = [](const Form& form) { return ContainsRegex(std::string(form.name) + " (x|of)"); };
    EXPECT_THAT(rig.errors(), Each(Optional(AllOf(HasSubstr(" x] ranks queued different collectives"),
                                                  HasSubstr("rank 2 (D2)"), named(one), named(other)))));
  }
}

TEST(P2pFailure, BadMeshesAreRefused) {
  Rig rig(2);
  const Place place{0, rig.stream(0), "D0"};
  EXPECT_THROW(P2pCommunicator({}), InvalidArgument);
  EXPECT_THROW(P2pCommunicator(std::vector<Place>{place, place}), InvalidArgument);
  EXPECT_THROW(P2pCommunicator(std::vector<Place>(kMaxRanks + 1, place)), InvalidArgument);
}

// A kernel that is loaded at its first launch may wait for the kernels that wait for its rank.
TEST(P2pFailure, LazyLoadingIsRefusedWithSeveralRanksOnOneGpu) {
  const test::Environment lazy("CUDA_MODULE_LOADING", "LAZY");
  EXPECT_THAT([] { Rig(2); }, testing::ThrowsMessage<InvalidArgument>(HasSubstr("set CUDA_MODULE_LOADING=EAGER")));
  EXPECT_NO_THROW(Rig(1));
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
  const auto problems = testing::ElementsAre(HasSubstr("GPU 20 reports peer access to GPU 21, but"));
  EXPECT_THAT(cuda::peer_problems(std::vector<int>{20, 21, 20}), problems);
  EXPECT_TRUE(is_copied()) << "through the host now";
  environment.set("SHOAL_EMULATED_LYING_PEERS", std::nullopt);
  EXPECT_THAT(cuda::peer_problems(std::vector<int>{21, 20}), problems) << "it is tried once";
  environment.set("SHOAL_EMULATED_PEERS", "0");
  EXPECT_THAT(cuda::peer_problems(std::vector<int>{22, 23}),
              testing::ElementsAre("GPU 22 has no peer access to GPU 23", "GPU 23 has no peer access to GPU 22"));
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

  /// Sets a word of both ranks' states.
  void set_word(size_t offset, uint32_t word) {
    Bytes bytes(sizeof word);
    std::memcpy(bytes.data(), &word, sizeof word);
    for (const DeviceBytes& memory : memory_) memory.set(bytes, offset);
  }
  /// As if `steps` steps had been made.
  void set_steps(uint32_t steps) { set_word(offsetof(RankState, blocks) + offsetof(BlockState, packets), steps); }
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
  const auto begin = std::chrono::steady_clock::now();
  launch_row(0, *products[0], true, 0x4321, std::chrono::minutes(1));
  rig_.synchronize();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30)) << "it waited for the other rank";
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

TEST_F(P2pFlags, GoOnWhenNumbersWrapAround) {
  for (const uint32_t before : {0xfffeu, 0xfffffffeu}) {
    set_steps(before);
    for (int i = 0; i < 5; ++i) EXPECT_EQ(sum(static_cast<float>(i), 10.0f), static_cast<float>(i) + 10.0f);
  }
}

}  // namespace
}  // namespace shoal::collectives::p2p
