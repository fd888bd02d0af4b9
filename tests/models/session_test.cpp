#include "models/session.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "graph/error.h"
#include "tests/models/tiny_model.h"

namespace shoal::models {
namespace {

using ::testing::HasSubstr;

const std::vector<int32_t> kPrompt{1, 527, 261, 345, 340, 290, 261, 743, 959, 967, 270};

std::vector<float> evaluate(Session& session, std::span<const int32_t> tokens, int64_t outputs = 1) {
  session.evaluate(tokens, outputs);
  std::span<const float> logits = session.logits();
  return {logits.begin(), logits.end()};
}

double worst(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double worst = 0.0;
  for (size_t i = 0; i < a.size(); ++i) worst = std::max<double>(worst, std::abs(a[i] - b[i]));
  return worst;
}

std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "nothing was thrown";
}

class SessionOn : public ::testing::TestWithParam<int> {};

TEST_P(SessionOn, BatchesAndSingleTokensGiveTheSameLogits) {
  LoadedModel loaded(tiny_model_path("f16"), GetParam(), {}, {.batch = 4});
  std::vector<float> batched = evaluate(*loaded.session, kPrompt);
  EXPECT_EQ(loaded.session->position(), 11);
  loaded.session->rewind(0);
  std::vector<float> last;
  for (int32_t token : kPrompt) last = evaluate(*loaded.session, {&token, 1});
  EXPECT_LT(worst(batched, last), 1e-2);
}

TEST_P(SessionOn, GivesTheLogitsOfSeveralTokens) {
  LoadedModel loaded(tiny_model_path("f16"), GetParam());
  std::vector<float> all = evaluate(*loaded.session, kPrompt, 3);
  size_t vocab = loaded.model->hparams.vocab;
  ASSERT_EQ(all.size(), 3 * vocab);
  for (int back = 0; back < 3; ++back) {
    loaded.session->rewind(0);
    std::vector<float> one = evaluate(*loaded.session, {kPrompt.data(), kPrompt.size() - back});
    std::vector<float> row(all.end() - (back + 1) * vocab, all.end() - back * vocab);
    EXPECT_LT(worst(row, one), 1e-2) << back;
  }
}

TEST_P(SessionOn, RewindsToAnyToken) {
  LoadedModel loaded(tiny_model_path("f16"), GetParam());
  std::vector<float> first = evaluate(*loaded.session, kPrompt);
  evaluate(*loaded.session, std::vector<int32_t>{7, 8, 9});
  loaded.session->rewind(10);
  EXPECT_LT(worst(first, evaluate(*loaded.session, {&kPrompt[10], 1})), 1e-2);
}

TEST_P(SessionOn, CachesOfEveryTypeAgree) {
  std::vector<float> exact;
  for (DType dtype : {DType::kF32, DType::kF16, DType::kQ8_0}) {
    LoadedModel loaded(tiny_model_path("f16"), GetParam(), {}, {.batch = 4, .dtype_k = dtype, .dtype_v = dtype});
    std::vector<float> logits = evaluate(*loaded.session, kPrompt);
    if (exact.empty()) exact = logits;
    EXPECT_LT(worst(exact, logits), dtype == DType::kQ8_0 ? 0.3 : 0.02) << name_of(dtype);
    // 6 layers of keys and values: [32, 512, 4] each.
    if (GetParam() == 1) {
      EXPECT_EQ(loaded.session->cache_buffer().size(), 12 * bytes_for(dtype, 32 * 512 * 4));
    }
  }
}

TEST_P(SessionOn, TwoSessionsShareOneSetOfWeights) {
  LoadedModel loaded(tiny_model_path("q8_0"), GetParam());
  Session other(*loaded.model, loaded.placement.device(), loaded.placement.init(), {.context = 64});
  std::vector<float> first = evaluate(*loaded.session, kPrompt);
  EXPECT_EQ(first, evaluate(other, kPrompt));
  int32_t next = 261;
  std::vector<float> second = evaluate(*loaded.session, {&next, 1});
  EXPECT_EQ(second, evaluate(other, {&next, 1}));
}

INSTANTIATE_TEST_SUITE_P(Devices, SessionOn, ::testing::Values(1, 2, 3));

TEST(Session, PromptAndGenerationAlternateWithoutRebuilding) {
  LoadedModel loaded(tiny_model_path("q8_0"), 2);
  evaluate(*loaded.session, kPrompt);
  evaluate(*loaded.session, {&kPrompt[3], 1});
  std::vector<const GraphPlan*> plans = loaded.session->plans();
  ASSERT_EQ(plans.size(), 2u);
  for (int round = 0; round < 3; ++round) {
    evaluate(*loaded.session, kPrompt);
    evaluate(*loaded.session, {&kPrompt[3], 1});
  }
  EXPECT_EQ(loaded.session->plans(), plans);
}

TEST(Session, SaysWhatDoesNotFit) {
  LoadedModel loaded(tiny_model_path("q8_0"), 1, {}, {.context = 16, .batch = 8});
  Session& session = *loaded.session;
  EXPECT_THAT(message_of([&] { session.logits(); }), HasSubstr("no logits yet"));
  EXPECT_THAT(message_of([&] { session.evaluate({}); }), HasSubstr("no tokens"));
  EXPECT_THAT(message_of([&] { session.evaluate(std::vector<int32_t>{1024}); }),
              HasSubstr("token 1024 is not in the vocabulary of 1024"));
  EXPECT_THAT(message_of([&] { session.evaluate(std::vector<int32_t>{-1}); }), HasSubstr("token -1"));
  EXPECT_THAT(message_of([&] { session.evaluate(std::vector<int32_t>(17, 5)); }),
              HasSubstr("17 tokens do not fit: 0 of the context of 16 are used"));
  EXPECT_THAT(message_of([&] { session.evaluate(std::vector<int32_t>(11, 5), 4); }),
              HasSubstr("4 outputs asked of a last batch of 3 tokens"));
  session.evaluate(std::vector<int32_t>(16, 5));
  EXPECT_THAT(message_of([&] { session.evaluate(std::vector<int32_t>{5}); }), HasSubstr("do not fit: 16 of"));
  EXPECT_THAT(message_of([&] { session.rewind(17); }), HasSubstr("cannot go back to token 17 of 16"));
  session.rewind(15);
  session.evaluate(std::vector<int32_t>{5});
  EXPECT_THAT(message_of([&] { session_size(loaded.model->hparams, {.context = -1}); }), HasSubstr("context of -1"));
  EXPECT_THAT(message_of([&] { session_size(loaded.model->hparams, {.batch = 0}); }), HasSubstr("batch of 0"));
}

TEST(Loader, ReportsProgressAndRefusesASecondTime) {
  for (int devices : {1, 3}) {
    auto model = open_model(tiny_model_path("q8_0"));
    Placement placement(*model, cpu_devices(devices), {{}, 1});
    size_t last = 0, total = 0;
    load_weights(*model, placement.device(), [&](size_t done, size_t all) {
      EXPECT_GT(done, last);
      last = done, total = all;
    });
    EXPECT_EQ(last, total);
    EXPECT_GE(total, model->file.tensor_bytes());
    EXPECT_THAT(message_of([&] { load_weights(*model, placement.device()); }), HasSubstr("is loaded already"));
    model->buffer.reset();
  }
}

TEST(Loader, LeavesTheModelUnloadedWhenItIsStopped) {
  auto model = open_model(tiny_model_path("q8_0"));
  Placement placement(*model, cpu_devices(2), {{}, 1});
  struct Stop {};
  EXPECT_THROW(load_weights(*model, placement.device(), [](size_t, size_t) { throw Stop(); }), Stop);
  EXPECT_EQ(model->buffer, nullptr);
  load_weights(*model, placement.device());
  EXPECT_NE(model->buffer, nullptr);
  model->buffer.reset();
}

}  // namespace
}  // namespace shoal::models
