// With SHOAL_EMULATED_WEAK, a word that a block stores becomes visible to other blocks after a delay. The kernels of
// these tests read their own words with plain loads, which return the values that other blocks see.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <vector>

#include "devices/cuda/kernels/platform.h"
#include "tests/cuda/device_memory.h"
#include "tests/support/environment.h"

namespace shoal::cuda {
namespace {

using test::CudaArray;
using test::CudaStream;
using test::Environment;
using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::Gt;
using testing::Lt;

constexpr int kPairs = 32;

__device__ uint64_t others_see(const uint64_t* address) {
  return *static_cast<const volatile uint64_t*>(address);
}
__device__ uint32_t others_see(const uint32_t* address) {
  return *static_cast<const volatile uint32_t*>(address);
}

/// Counts the visible words before and after a pause. Also counts the visible words that follow an invisible word.
__global__ void send_pairs(uint64_t* words, int* arrived, int* out_of_order) {
  for (int i = 0; i < kPairs; ++i) store_pair(words + 2 * i, 1, 1);
  for (int pauses = 0; pauses < 2; ++pauses) {
    if (pauses == 1) spin_pause();
    arrived[pauses] = out_of_order[pauses] = 0;
    for (int i = 0; i < 2 * kPairs; ++i) {
      if (others_see(words + i) == 0) continue;
      out_of_order[pauses] += i != arrived[pauses];
      ++arrived[pauses];
    }
  }
}

TEST(WeakMemory, WordsOfPairsArriveOutOfOrder) {
  for (const bool weak : {false, true}) {
    const Environment mode("SHOAL_EMULATED_WEAK", weak ? "1" : "0");
    const CudaStream stream;
    const CudaArray<uint64_t> words(std::vector<uint64_t>(2 * kPairs, 0));
    const CudaArray<int> arrived(size_t{2}), out_of_order(size_t{2});
    launch(stream, send_pairs, dim3(1), dim3(1), 0, words.data(), arrived.data(), out_of_order.data());
    stream.synchronize();
    if (weak) {
      EXPECT_THAT(arrived.get(), ElementsAre(0, AllOf(Gt(0), Lt(2 * kPairs))));
      EXPECT_GT(out_of_order.get()[1], 0);
    } else {
      EXPECT_THAT(arrived.get(), Each(2 * kPairs));
    }
    EXPECT_THAT(words.get(), Each(1u)) << "all words are visible when the kernel has ended";
  }
}

/// Stores two pairs, then a flag, then a third pair. Checks visibility after each pause until the flag and the third
/// pair are visible.
__global__ void release_between(uint64_t* words, uint32_t* flag, int* early, int* overtaken) {
  store_pair(words, 1, 1);
  store_pair(words + 2, 1, 1);
  store_release(flag, 1);
  store_pair(words + 4, 1, 1);
  for (bool all = false; !all;) {
    spin_pause();
    int before = 0;
    for (int i = 0; i < 4; ++i) before += others_see(words + i) != 0;
    const bool released = others_see(flag) != 0;
    const bool after = others_see(words + 4) != 0 || others_see(words + 5) != 0;
    *early += released && before < 4;
    *overtaken += after && !released;
    all = released && others_see(words + 4) != 0 && others_see(words + 5) != 0;
  }
}

TEST(WeakMemory, ReleaseFollowsEarlierStores) {
  const Environment mode("SHOAL_EMULATED_WEAK", "1");
  const CudaStream stream;
  const CudaArray<int> early(std::vector<int>(1, 0)), overtaken(std::vector<int>(1, 0));
  for (int i = 0; i < 20; ++i) {
    const CudaArray<uint64_t> words(std::vector<uint64_t>(6, 0));
    const CudaArray<uint32_t> flag(std::vector<uint32_t>(1, 0));
    launch(stream, release_between, dim3(1), dim3(1), 0, words.data(), flag.data(), early.data(), overtaken.data());
    stream.synchronize();
  }
  EXPECT_EQ(early.get()[0], 0);
  EXPECT_GT(overtaken.get()[0], 0) << "later stores never overtook the release";
}

/// Both blocks increment `arrived`, wait for each other and set their flags. Then each block polls the flag of the
/// other block for a limited time.
__global__ void look_for_each_other(uint32_t* arrived, uint32_t* flags, bool fence, uint32_t* seen) {
  atomicAdd(arrived, 1u);
  while (load_acquire(arrived) < 2) spin_pause();
  const uint32_t own = blockIdx.x;
  store_release(&flags[own], 1);
  if (fence) __threadfence_system();
  const uint64_t end = now_ns() + 200'000'000;
  while (seen[own] == 0 && now_ns() < end) seen[own] = load_acquire(&flags[1 - own]);
  if (load_acquire(&flags[own]) == 0) seen[own] = 100;
}

TEST(WeakMemory, LoadsMayPassEarlierStores) {
  const Environment mode("SHOAL_EMULATED_WEAK", "1");
  for (const bool fence : {false, true}) {
    const CudaStream stream;
    const CudaArray<uint32_t> arrived(std::vector<uint32_t>(1, 0)), flags(std::vector<uint32_t>(2, 0)),
        seen(std::vector<uint32_t>(2, 0));
    launch(stream, look_for_each_other, dim3(2), dim3(1), 0, arrived.data(), flags.data(), fence, seen.data());
    stream.synchronize();
    const std::vector<uint32_t> found = seen.get();
    if (fence) {
      EXPECT_GE(found[0] + found[1], 1u) << "the fence must make the store visible first";
    } else {
      EXPECT_LE(found[0] + found[1], 1u) << "only the flag of an ended block may be seen";
    }
    EXPECT_LT(found[0] + found[1], 100u) << "a block must see its own words";
  }
}

#ifdef __SANITIZE_THREAD__
enum class Order { kRight, kNoRelease, kNoAcquire, kNoFenceBefore, kNoFenceBehind };

/// The second block writes a word, then signals the first block, which reads the word. The signal is a flag, or a
/// counter with a fence before the increment and a fence after the poll. `order` can omit the release, the acquire or
/// one fence.
__global__ void tell(Order order, bool by_counter, uint32_t* word, uint32_t* flag, uint32_t* seen) {
  if (blockIdx.x == 1) {
    *word = 7;
    if (by_counter) {
      if (order != Order::kNoFenceBefore) __threadfence();
      atomicAdd(flag, 1u);
    } else if (order == Order::kNoRelease) {
      atomicExch(flag, 1u);
    } else {
      store_release(flag, 1);
    }
  } else {
    while ((by_counter || order == Order::kNoAcquire ? atomicAdd(flag, 0u) : load_acquire(flag)) == 0) spin_pause();
    if (by_counter && order != Order::kNoFenceBehind) __threadfence();
    *seen = *word;
  }
}

uint32_t told(Order order, bool by_counter) {
  const CudaStream stream;
  const CudaArray<uint32_t> words(std::vector<uint32_t>(12, 0));  // the thread sanitizer remembers only few accesses
                                                                  // per 8 bytes
  launch(stream, tell, dim3(2), dim3(1), 0, order, by_counter, words.data(), words.data() + 4, words.data() + 8);
  stream.synchronize();
  return words.get()[8];
}

TEST(EmulatorThreadSanitizerDeathTest, DetectsUnorderedAccessesOfBlocks) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const bool by_counter : {false, true}) {
    EXPECT_EQ(told(Order::kRight, by_counter), 7u);
    for (const Order missing : by_counter ? std::vector{Order::kNoFenceBefore, Order::kNoFenceBehind}
                                          : std::vector{Order::kNoRelease, Order::kNoAcquire}) {
      EXPECT_EXIT(std::exit(told(missing, by_counter) == 7 ? 0 : 1), testing::ExitedWithCode(66), "data race")
          << static_cast<int>(missing);
    }
  }
}
#endif

}  // namespace
}  // namespace shoal::cuda
