// Tests checkpoints, which allow rewinds of recurrent and windowed models.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <random>

#include "models/session/session_state.h"
#include "tests/models/checks.h"
#include "tests/models/tiny_model.h"

namespace shoal::models {
namespace {

using ::testing::HasSubstr;

// The first model has layers with a window of 29 tokens. The second model has gated delta rules with convolutions. The
// third model has gated convolutions.
const std::string kWindowed = SHOAL_REFERENCE_MODELS "/gemma3.gguf";
const std::string kDelta = SHOAL_REFERENCE_MODELS "/qwen35.gguf";
const std::string kConvolutions = SHOAL_REFERENCE_MODELS "/lfm2.gguf";

SessionOptions options(int64_t every = 0, int64_t checkpoints = 8) {
  SessionOptions options;
  options.context = 320;
  options.batch = 16;
  options.dtype_k = options.dtype_v = DType::kF32;
  options.checkpoint_every = every;
  options.checkpoints = checkpoints;
  return options;
}

std::vector<int32_t> text(uint32_t seed, size_t length) {
  std::mt19937 random(seed);
  std::vector<int32_t> tokens(length);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 100);
  return tokens;
}

std::vector<float> logits_after(Session& session, const std::vector<int32_t>& tokens) {
  session.evaluate(tokens);
  const std::span<const float> logits = session.logits();
  return {logits.begin(), logits.end()};
}

class Checkpoints : public ::testing::TestWithParam<std::string> {};

TEST_P(Checkpoints, AllowRewindToCheckpointPosition) {
  const auto first = text(1, 50), second = text(2, 70), other = text(3, 9);
  for (const int devices : {1, 2, 5}) {
    SCOPED_TRACE(devices);
    LoadedModel loaded(GetParam(), devices, "", options()), plain(GetParam(), devices, "", options());
    Session& session = *loaded.session;
    session.evaluate(first);
    session.checkpoint();
    const std::vector<float> once = logits_after(session, second);
    EXPECT_FALSE(session.can_rewind(60));
    EXPECT_EQ(session.rewindable(60), 50);
    EXPECT_EQ(session.rewindable(49), 0);
    session.rewind(50);
    EXPECT_EQ(session.position(), 50);
    EXPECT_EQ(logits_after(session, second), once);
    session.rewind(50);
    plain.session->evaluate(first);
    EXPECT_EQ(logits_after(session, other), logits_after(*plain.session, other));
  }
}

TEST_P(Checkpoints, ErrorOfImpossibleRewindNamesPossiblePosition) {
  LoadedModel loaded(GetParam(), 2, "", options());
  Session& session = *loaded.session;
  session.evaluate(text(1, 40));
  session.checkpoint();
  session.evaluate(text(2, 160));
  EXPECT_THAT(message_of([&] { session.rewind(60); }), HasSubstr("cannot rewind to token 60 of 200"));
  EXPECT_THAT(message_of([&] { session.rewind(60); }),
              HasSubstr("no checkpoint; rewind to token 40 and evaluate again"));
  EXPECT_EQ(session.position(), 200);
  session.rewind(0);
  EXPECT_EQ(session.rewindable(40), 0) << "the tokens of the checkpoint were removed";
}

TEST_P(Checkpoints, AutomaticCheckpointsCoverEarlyAndLatePositions) {
  LoadedModel loaded(GetParam(), 1, "", options(32, 3));
  Session& session = *loaded.session;
  const auto places = [&] {
    std::vector<int64_t> found;
    for (int64_t at = session.position() - 1; (at = session.rewindable(at)) > 0; --at) found.push_back(at);
    std::erase_if(found, [&](int64_t at) { return at > session.position() - 64; });  // these positions are still in
                                                                                     // ring caches
    return found;
  };
  session.evaluate(text(1, 96));
  session.evaluate(text(2, 200));
  EXPECT_THAT(places(), ::testing::SizeIs(::testing::Le(3)));
  EXPECT_EQ(session.rewindable(230), 224) << "the latest checkpoint before position 230";
  EXPECT_GT(session.rewindable(150), 0) << "early checkpoints are also kept";
}

TEST_P(Checkpoints, RestoringStateDropsCheckpoints) {
  LoadedModel loaded(GetParam(), 1, "", options());
  Session& session = *loaded.session;
  session.evaluate(text(1, 40));
  session.checkpoint();
  session.evaluate(text(2, 100));
  const std::vector<std::byte> state = save_state(session);
  restore_state(session, state);
  EXPECT_EQ(session.rewindable(60), 0);
  EXPECT_GT(session.checkpoint_bytes(100), 0u);
  EXPECT_LT(session.checkpoint_bytes(100), state.size());
}

TEST_P(Checkpoints, SavedStatesRestoreOnAnyDevices) {
  const auto first = text(1, 50), second = text(2, 20);
  LoadedModel from(GetParam(), 3, "5,1,2", options());
  from.session->evaluate(first);
  const std::vector<std::byte> state = save_state(*from.session);
  const std::vector<float> expected = logits_after(*from.session, second);
  for (const int devices : {1, 2, 4}) {
    LoadedModel to(GetParam(), devices, "", options());
    to.session->evaluate(text(4, 30));
    restore_state(*to.session, state);
    EXPECT_EQ(save_state(*to.session), state);
    const std::vector<float> found = logits_after(*to.session, second);
    for (size_t i = 0; i < found.size(); ++i) ASSERT_NEAR(found[i], expected[i], 1e-4) << i;
  }
}

std::string name_of_case(const ::testing::TestParamInfo<std::string>& info) {
  constexpr std::array kNames{"windows", "delta", "convolutions", "attention"};
  return kNames.at(info.index);
}

INSTANTIATE_TEST_SUITE_P(Models, Checkpoints, ::testing::Values(kWindowed, kDelta, kConvolutions), name_of_case);

/// In these tests, queued work fails after evaluate() has returned.
class FailedWork : public ::testing::TestWithParam<std::string> {};

TEST_P(FailedWork, SessionRewindsToLastValidPosition) {
  const auto broken = [](void*, const void*, bool failed) {
    if (!failed) fail<DeviceError>("the disk is on fire");
  };
  const auto first = text(1, 50), second = text(2, 70);
  for (const int devices : {1, 2}) {
    SCOPED_TRACE(devices);
    LoadedModel plain(GetParam(), devices, "", options());
    std::vector<std::unique_ptr<Backend>> backends = plain.placement.init();
    Backend* const one = devices > 1 ? backends.front()->members()[1] : backends.front().get();
    Session session(*plain.model, plain.placement, std::move(backends), options());
    plain.session->evaluate(first);
    const std::vector<float> expected = logits_after(*plain.session, second);
    logits_after(session, first);
    session.checkpoint();
    session.evaluate(text(3, 9));
    ASSERT_TRUE(one->enqueue({broken, nullptr, nullptr}));
    EXPECT_THROW(logits_after(session, text(4, 20)), DeviceError);
    EXPECT_THAT(message_of([&] { session.logits(); }), HasSubstr("no logits yet"));
    const auto refused = HasSubstr("the evaluation from token 50 on has failed; rewind to token 50 and evaluate again");
    EXPECT_THAT(message_of([&] { session.evaluate(second); }), refused);
    EXPECT_THAT(message_of([&] { session.checkpoint(); }), refused);
    EXPECT_THAT(message_of([&] { save_state(session); }), refused);
    EXPECT_THAT(message_of([&] { session.rewind(59); }), refused);
    EXPECT_FALSE(session.can_rewind(session.position()));
    EXPECT_EQ(session.rewindable(59), 50);
    session.rewind(50);
    EXPECT_EQ(logits_after(session, second), expected);
    // save_state() waits for the queued work and throws the error of this work.
    ASSERT_TRUE(one->enqueue({broken, nullptr, nullptr}));
    EXPECT_THROW(save_state(session), DeviceError);
    EXPECT_THAT(message_of([&] { session.evaluate(second); }), HasSubstr("from token 120 on has failed; rewind to "));
    session.rewind(50);
    EXPECT_EQ(logits_after(session, second), expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, FailedWork,
                         ::testing::Values(kWindowed, kDelta, kConvolutions, tiny_model_path("q8_0")), name_of_case);

TEST(ModelsWithWholeCaches, NeedNoCheckpoints) {
  LoadedModel loaded(tiny_model_path("q8_0"), 1, "", {.context = 64});
  loaded.session->evaluate(kPrompt);
  loaded.session->checkpoint();
  EXPECT_FALSE(loaded.session->needs_checkpoints());
  EXPECT_EQ(loaded.session->checkpoint_bytes(10), 0u);
}

}  // namespace
}  // namespace shoal::models
