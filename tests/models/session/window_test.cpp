// Compares sessions with ring caches and sessions that cache all rows. With a ring cache, a windowed layer stores only
// the rows that a batch needs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "models/session/session_state.h"
#include "tests/models/checks.h"
#include "tests/models/tiny_model.h"

namespace shoal::models {
namespace {

using ::testing::HasSubstr;

// The model has 7 layers. Layer 5 has no window. The other layers have a window of 29 tokens.
const std::string kWindowed = SHOAL_REFERENCE_MODELS "/gemma3.gguf";
// The model has 7 layers. Layers 1, 3 and 6 have no window. Layers 4 and 5 read the cache of layer 2, and layer 6 reads
// the cache of layer 3.
const std::string kSharedCaches = SHOAL_REFERENCE_MODELS "/gemma4-embeddings.gguf";
constexpr int64_t kContext = 320, kWindow = 29;

SessionOptions with_batch(int64_t batch) {
  SessionOptions options;
  options.context = kContext;
  options.batch = batch;
  options.dtype_k = options.dtype_v = DType::kF32;
  return options;
}

std::vector<int32_t> random_text(std::mt19937& random, int64_t length) {
  std::vector<int32_t> text(static_cast<size_t>(length));
  for (int32_t& token : text) token = static_cast<int32_t>(random() % 100);
  return text;
}

void expect_same_logits(Session& a, Session& b) {
  const std::span<const float> left = a.logits(), right = b.logits();
  ASSERT_EQ(left.size(), right.size());
  for (size_t i = 0; i < left.size(); ++i) ASSERT_NEAR(left[i], right[i], 1e-4) << i;
}

TEST(Window, CachesHoldWindowAndBatch) {
  const LoadedModel loaded(kWindowed, 1, "", with_batch(16));
  const KvCache& cache = loaded.session->cache();
  for (size_t layer = 0; layer < 7; ++layer) {
    EXPECT_EQ(cache.layers[layer].k->shape[1], layer == 5 ? kContext : 64) << layer;  // 29 + 16, rounded up to a
                                                                                      // multiple of 32
    EXPECT_EQ(cache.layers[layer].v->shape[1], cache.layers[layer].k->shape[1]) << layer;
  }
  const LoadedModel whole(kWindowed, 1, "", with_batch(kContext));
  EXPECT_FALSE(whole.session->cache().has_window(0));
}

class Windows : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, Windows, ::testing::Values(kWindowed, kSharedCaches),
                         [](const auto& info) { return info.index == 0 ? "own" : "shared"; });

TEST_P(Windows, RingCachesGiveSameLogitsAsWholeCachesAfterRewinds) {
  for (const int devices : {1, 2, 5}) {
    const LoadedModel ring(GetParam(), devices, "", with_batch(16)), whole(GetParam(), 1, "", with_batch(kContext));
    std::mt19937 random(7);
    int back = 0;
    for (int step = 0; step < 120; ++step) {
      const int64_t position = ring.session->position();
      const int64_t length = std::min<int64_t>(1 + static_cast<int64_t>(random() % 40), kContext - position);
      const int64_t target = position - static_cast<int64_t>(random() % 24);
      if (length == 0) {
        ring.session->rewind(0);
        whole.session->rewind(0);
        continue;
      }
      if (step % 3 == 0 && target > 0 && ring.session->can_rewind(target)) {
        ring.session->rewind(target);
        whole.session->rewind(target);
        ++back;
        continue;
      }
      const std::vector<int32_t> text = random_text(random, length);
      ring.session->evaluate(text);
      whole.session->evaluate(text);
      ASSERT_NO_FATAL_FAILURE(expect_same_logits(*ring.session, *whole.session)) << devices << " " << step;
    }
    EXPECT_GT(back, 10);
  }
}

TEST(Window, RewindsWithinLastBatchOrToStart) {
  const LoadedModel loaded(kWindowed, 1, "", with_batch(16));
  Session& session = *loaded.session;
  std::mt19937 random(1);
  session.evaluate(random_text(random, 200));
  EXPECT_TRUE(session.can_rewind(200 - 16));
  EXPECT_FALSE(session.can_rewind(100));
  EXPECT_THAT(message_of([&] { session.rewind(100); }),
              HasSubstr("cannot rewind to token 100 of 200: layers with a window of 29 keep tokens from 136 on"));
  EXPECT_EQ(session.position(), 200);
  session.rewind(0);
  session.evaluate(random_text(random, 20));
  session.rewind(3);  // allowed, because 20 tokens do not overwrite any row of a ring cache
}

TEST_P(Windows, StatesCanBeRestoredToCachesOfOtherSizes) {
  std::mt19937 random(3);
  const std::vector<int32_t> text = random_text(random, 150), more = random_text(random, 40);
  const LoadedModel from(GetParam(), 2, "", with_batch(16));
  from.session->evaluate(text);
  const std::vector<std::byte> state = save_state(*from.session);
  from.session->evaluate(more);
  for (const int64_t batch : {int64_t{16}, int64_t{48}, kContext}) {
    const LoadedModel to(GetParam(), 1, "", with_batch(batch));
    to.session->evaluate(more);
    restore_state(*to.session, state);
    EXPECT_EQ(to.session->position(), 150);
    EXPECT_FALSE(to.session->can_rewind(140) && to.session->cache().has_window(0));  // the state stores only the window
    to.session->evaluate(more);
    ASSERT_NO_FATAL_FAILURE(expect_same_logits(*to.session, *from.session)) << batch;
  }
  const LoadedModel whole(GetParam(), 1, "", with_batch(kContext));
  whole.session->evaluate(text);
  restore_state(*from.session, save_state(*whole.session));
  from.session->evaluate(more);
  whole.session->evaluate(more);
  expect_same_logits(*from.session, *whole.session);
}

}  // namespace
}  // namespace shoal::models
