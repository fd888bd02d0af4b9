#include "models/session/session.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>

#include "base/error.h"
#include "tests/models/checks.h"
#include "tests/models/synthetic_model.h"
#include "tests/models/tiny_model.h"

namespace shoal::models {
namespace {

using ::testing::HasSubstr;

std::vector<float> evaluate(Session& session, std::span<const int32_t> tokens, int64_t outputs = 1) {
  session.evaluate(tokens, outputs);
  std::span<const float> logits = session.logits();
  return {logits.begin(), logits.end()};
}

class SessionDevices : public ::testing::TestWithParam<int> {};

TEST_P(SessionDevices, BatchesGiveSameLogitsAsSingleTokens) {
  LoadedModel loaded(tiny_model_path("f16"), GetParam(), {}, {.batch = 4});
  std::vector<float> batched = evaluate(*loaded.session, kPrompt);
  EXPECT_EQ(loaded.session->position(), 11);
  loaded.session->rewind(0);
  std::vector<float> last;
  for (int32_t token : kPrompt) last = evaluate(*loaded.session, {&token, 1});
  EXPECT_LT(worst(batched, last), 1e-2);
}

TEST_P(SessionDevices, ReturnsLogitsOfSeveralTokens) {
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

TEST_P(SessionDevices, RewindsToAnyToken) {
  LoadedModel loaded(tiny_model_path("f16"), GetParam());
  std::vector<float> first = evaluate(*loaded.session, kPrompt);
  evaluate(*loaded.session, std::vector<int32_t>{7, 8, 9});
  loaded.session->rewind(10);
  EXPECT_LT(worst(first, evaluate(*loaded.session, {&kPrompt[10], 1})), 1e-2);
}

TEST_P(SessionDevices, CachesOfEveryTypeGiveSimilarLogits) {
  std::vector<float> exact;
  for (DType dtype : {DType::kF32, DType::kF16, DType::kQ8_0}) {
    LoadedModel loaded(tiny_model_path("f16"), GetParam(), {}, {.batch = 4, .dtype_k = dtype, .dtype_v = dtype});
    std::vector<float> logits = evaluate(*loaded.session, kPrompt);
    if (exact.empty()) exact = logits;
    EXPECT_LT(worst(exact, logits), dtype == DType::kQ8_0 ? 0.3 : 0.02) << name_of(dtype);
    // Each of the 6 layers has keys and values of shape [32, 512, 4].
    if (GetParam() == 1) {
      EXPECT_EQ(loaded.session->cache_buffers().front()->size(), 12 * bytes_for(dtype, 32 * 512 * 4));
    }
  }
}

TEST_P(SessionDevices, TwoSessionsShareWeights) {
  LoadedModel loaded(tiny_model_path("q8_0"), GetParam());
  Session other(*loaded.model, loaded.placement, loaded.placement.init(), {.context = 64});
  std::vector<float> first = evaluate(*loaded.session, kPrompt);
  EXPECT_EQ(first, evaluate(other, kPrompt));
  int32_t next = 261;
  std::vector<float> second = evaluate(*loaded.session, {&next, 1});
  EXPECT_EQ(second, evaluate(other, {&next, 1}));
}

/// Returns `count` tokens. Each seed gives different tokens.
std::vector<int32_t> text_of(int64_t count, int64_t seed) {
  std::vector<int32_t> tokens(count);
  for (int64_t i = 0; i < count; ++i) tokens[i] = static_cast<int32_t>(259 + (i * 37 + seed * 101) % 700);
  return tokens;
}

TEST_P(SessionDevices, PromptsOfEveryLengthGiveSameLogitsAsSingleTokens) {
  // When a prompt is evaluated, products round f16 weights and input columns to 14 bits. Logits are at most 20.
  constexpr double kRounding = 2e-2;
  LoadedModel single(tiny_model_path("f16"), GetParam()), padded(tiny_model_path("f16"), GetParam(), {}, {.batch = 12});
  const std::vector<int32_t> text = text_of(28, 1);
  std::vector<std::vector<float>> expected;
  for (int32_t token : text) expected.push_back(evaluate(*single.session, {&token, 1}));
  for (size_t length = 1; length + 2 <= text.size(); ++length) {
    // Tokens must not attend to rows that a longer prompt left in the cache.
    padded.session->rewind(0);
    EXPECT_LT(worst(expected[length - 1], evaluate(*padded.session, {text.data(), length})), kRounding) << length;
    // Padding tokens must not affect later tokens.
    EXPECT_LT(worst(expected[length], evaluate(*padded.session, {&text[length], 1})), kRounding) << length;
    EXPECT_LT(worst(expected[length + 1], evaluate(*padded.session, {&text[length + 1], 1})), kRounding) << length;
  }
}

TEST_P(SessionDevices, FillsContextToLastRow) {
  LoadedModel single(tiny_model_path("f16"), GetParam()), full(tiny_model_path("f16"), GetParam(), {}, {.context = 23});
  const std::vector<int32_t> text = text_of(23, 2);
  std::vector<float> expected;
  for (int32_t token : text) expected = evaluate(*single.session, {&token, 1});
  evaluate(*full.session, {text.data(), 18});
  EXPECT_LT(worst(expected, evaluate(*full.session, {text.data() + 18, 5})), 1e-2);  // 5 tokens in a graph for 8 tokens
}

TEST_P(SessionDevices, PromptsAndGenerationAlternateWithoutReplanning) {
  LoadedModel loaded(tiny_model_path("q8_0"), GetParam(), {}, {.batch = 128});
  Session& session = *loaded.session;
  std::vector<std::vector<float>> first;
  for (int round = 0; round < 3; ++round) {
    std::vector<std::vector<float>> logits;
    for (int64_t length : {175, 20}) {
      session.rewind(0);
      logits.push_back(evaluate(session, text_of(length, length)));
      for (int32_t token : {300, 301}) logits.push_back(evaluate(session, {&token, 1}));
    }
    if (round == 0) first = logits;
    EXPECT_EQ(logits, first) << round;
    // The session has four graphs: for 128, 64 and 32 tokens and for single tokens. The prompt of 175 tokens uses the
    // first two graphs (128 + 47 tokens). The prompt of 20 tokens uses the third graph.
    EXPECT_EQ(session.compilations(), 4) << round;
    EXPECT_EQ(session.kept_graphs(), 4u) << round;
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, SessionDevices, ::testing::Values(1, 2, 3));

TEST(Session, KeepsPlansOfFourLatestPromptShapes) {
  LoadedModel loaded(tiny_model_path("q8_0"), 2);
  Session& session = *loaded.session;
  const auto compilations_for = [&](int64_t tokens) {
    const int64_t before = session.compilations();
    session.rewind(0);
    evaluate(session, text_of(tokens, 1));
    return session.compilations() - before;
  };
  for (int64_t tokens : {1, 64, 32, 16, 8}) EXPECT_EQ(compilations_for(tokens), 1) << tokens;
  EXPECT_EQ(compilations_for(33 + 31), 0);
  EXPECT_EQ(compilations_for(4), 1);
  EXPECT_EQ(session.kept_graphs(), 5u);
  EXPECT_EQ(compilations_for(32), 1);  // shape 32 was evicted as least recently used; this call evicts shape 16
  for (int64_t tokens : {64, 8, 4, 1}) EXPECT_EQ(compilations_for(tokens), 0) << tokens;
  EXPECT_EQ(compilations_for(16), 1);
  EXPECT_EQ(session.kept_graphs(), 5u);
}

TEST(Session, BatchShapeIncludesNumberOfOutputs) {
  LoadedModel loaded(tiny_model_path("q8_0"), 1);
  // A batch with 5 outputs uses the shape for 8 outputs, so there are four shapes.
  for (int64_t outputs : {1, 2, 4, 8, 5, 1}) {
    loaded.session->rewind(0);
    EXPECT_EQ(evaluate(*loaded.session, text_of(8, 1), outputs).size(), 1024u * outputs);
  }
  EXPECT_EQ(loaded.session->compilations(), 4);
}

TEST(Session, DividesPromptsIntoFewShapes) {
  using Batches = std::vector<Batch>;
  EXPECT_EQ(divide_into_batches(1, 1, 512), (Batches{{1, {1, 1}}}));
  EXPECT_EQ(divide_into_batches(20, 1, 512), (Batches{{20, {32, 1}}}));
  EXPECT_EQ(divide_into_batches(5, 5, 512), (Batches{{5, {8, 8}}}));
  EXPECT_EQ(divide_into_batches(512, 1, 512), (Batches{{512, {512, 1}}}));
  EXPECT_EQ(divide_into_batches(257, 1, 512), (Batches{{256, {256, 1}}, {1, {1, 1}}}));
  EXPECT_EQ(divide_into_batches(257, 2, 512), (Batches{{257, {512, 2}}}));  // one batch for both outputs
  EXPECT_EQ(divide_into_batches(480, 1, 512), (Batches{{480, {512, 1}}}));
  EXPECT_EQ(divide_into_batches(700, 1, 512), (Batches{{512, {512, 1}}, {128, {128, 1}}, {60, {64, 1}}}));
  EXPECT_EQ(divide_into_batches(21, 3, 12), (Batches{{12, {12, 1}}, {9, {12, 4}}}));
  for (int64_t most : {1, 2, 3, 12, 100, 512}) {
    for (int64_t count = 1; count <= 1100; ++count) {
      for (int64_t outputs : {int64_t{1}, std::min<int64_t>(5, (count - 1) % most + 1)}) {
        const Batches batches = divide_into_batches(count, outputs, most);
        int64_t tokens = 0, room = 0;
        for (const Batch& batch : batches) {
          const bool last = &batch == &batches.back();
          tokens += batch.tokens, room += batch.shape.tokens;
          ASSERT_TRUE(batch.shape.tokens == most || std::has_single_bit<uint64_t>(batch.shape.tokens));
          ASSERT_LE(batch.shape.tokens, most);
          if (!last) {
            ASSERT_EQ(batch, (Batch{batch.shape.tokens, {batch.shape.tokens, 1}}));
          }
        }
        const Batch& last = batches.back();
        ASSERT_EQ(tokens, count);
        ASSERT_LE(outputs, last.shape.outputs);
        ASSERT_LE(outputs, last.tokens);
        ASSERT_LE(last.shape.outputs, last.shape.tokens);
        ASSERT_LE(static_cast<int64_t>(batches.size()), (count + most - 1) / most + 1);
        // The number of padding tokens is at most max(33, most / 4). 33 padding tokens cost about as much time as an
        // additional run.
        if (outputs == 1) {
          ASSERT_LE(room - count, std::max<int64_t>(33, most / 4)) << count << " " << most;
        }
      }
    }
  }
}

struct Heads {
  int devices;
  const char* ratio;
};

/// Compares the candidates of one session with the best logits of another session.
void expect_best(Session& devices, Session& host, std::span<const int32_t> tokens, int64_t outputs, int64_t k) {
  const std::vector<float> logits = evaluate(host, tokens, outputs);
  const size_t vocab = logits.size() / static_cast<size_t>(outputs);
  devices.evaluate(tokens, outputs);
  std::vector<TokenLogit> expected;
  for (size_t begin = 0; begin < logits.size(); begin += vocab) {
    const auto best = top_logits(std::span(logits).subspan(begin, vocab), static_cast<int>(k));
    expected.insert(expected.end(), best.begin(), best.end());
  }
  const std::span<const TokenLogit> found = devices.candidates();
  EXPECT_EQ(std::vector<TokenLogit>(found.begin(), found.end()), expected);
}

TEST(SessionCandidates, AreBestLogitsOnAnyDevices) {
  for (const bool tied : {false, true}) {
    SyntheticModel synthetic;
    synthetic.h.vocab = tied ? 20000 : 2000, synthetic.tied = tied;  // a tied head must be large to be divided; a small
                                                                     // tied head is mirrored
    const std::string path = synthetic.write();
    for (const Heads& heads : {Heads{1, ""}, {2, ""}, {2, "3,1"}, {3, ""}, {3, "5,0,2"}, {3, "1,0,60"}}) {
      for (const int64_t k : {1, 40, 5000}) {
        SCOPED_TRACE(fmt::format("tied {}, {} devices {}, {} candidates", tied, heads.devices, heads.ratio, k));
        LoadedModel host(path, heads.devices, heads.ratio, {.batch = 4});
        LoadedModel devices(path, heads.devices, heads.ratio, {.batch = 4, .candidates = k});
        expect_best(*devices.session, *host.session, kPrompt, 3, k);
        expect_best(*devices.session, *host.session, std::vector<int32_t>{5}, 1, k);
        expect_best(*devices.session, *host.session, std::vector<int32_t>{9}, 1, k);
      }
    }
  }
}

TEST(SessionCandidates, GiveSameTokensAsLogits) {
  const auto generate = [](const Heads& heads, const SamplerParams& params, int64_t candidates) {
    LoadedModel loaded(tiny_model_path("q8_0"), heads.devices, heads.ratio, {.candidates = candidates});
    Session& session = *loaded.session;
    Sampler sampler(params);
    std::vector<int32_t> tokens;
    session.evaluate(kPrompt);
    for (int i = 0; i < 40; ++i) {
      tokens.push_back(session.selects() ? sampler.sample_best(session.candidates())
                                         : sampler.sample(session.logits()));
      sampler.accept(tokens.back());
      session.evaluate({&tokens.back(), 1});
    }
    return tokens;
  };
  for (const Heads& heads : {Heads{1, ""}, {2, ""}, {3, ""}, {2, "3,1"}, {3, "5,0,2"}}) {
    for (const SamplerParams& params :
         {SamplerParams{.temp = 0},
          {.temp = 1.2f, .seed = 7},
          {.temp = 0, .repeat_penalty = 1.3f, .frequency_penalty = 0.5f, .biases = {{7, -3.0f}}},
          {.temp = 1.2f, .seed = 7, .presence_penalty = 2, .penalty_last_n = 20}}) {
      ASSERT_GT(candidates_needed(params), 0);
      EXPECT_EQ(generate(heads, params, candidates_needed(params)), generate(heads, params, 0))
          << heads.devices << " devices " << heads.ratio << " temp " << params.temp;
    }
  }
}

TEST(SessionCandidates, ReplaceLogits) {
  LoadedModel devices(tiny_model_path("q8_0"), 2, {}, {.candidates = 3}), host(tiny_model_path("q8_0"), 2);
  EXPECT_TRUE(devices.session->selects());
  EXPECT_FALSE(host.session->selects());
  EXPECT_THAT(message_of([&] { devices.session->candidates(); }), HasSubstr("no candidates yet"));
  for (LoadedModel* loaded : {&devices, &host}) loaded->session->evaluate(kPrompt);
  EXPECT_THAT(message_of([&] { devices.session->logits(); }), HasSubstr("select 3 candidates and return no logits"));
  EXPECT_THAT(message_of([&] { host.session->candidates(); }), HasSubstr("the devices return logits"));
  EXPECT_EQ(devices.session->candidates().size(), 3u);
  EXPECT_THAT(message_of([&] { session_size(host.model->hparams, {.candidates = -1}); }),
              HasSubstr("-1 candidates are not possible"));
}

TEST(Session, DraftAndTargetModelsRunConcurrently) {
  SessionOptions options{.context = 64, .batch = 32};
  // Computes the expected logits. Each model runs alone.
  const std::vector<int32_t> prompt = text_of(19, 3), guesses = text_of(5, 4);
  const auto draft_says = [&](Session& draft) {
    std::vector<std::vector<float>> logits;
    for (int32_t token : guesses) logits.push_back(evaluate(draft, {&token, 1}));
    return logits;
  };
  std::vector<std::vector<float>> draft_alone;
  std::vector<float> target_alone;
  {
    LoadedModel draft(tiny_model_path("q4_k_m"), 2, {}, options);
    evaluate(*draft.session, prompt);
    draft_alone = draft_says(*draft.session);
  }
  {
    LoadedModel target(tiny_model_path("q8_0"), 2, {}, options);
    evaluate(*target.session, prompt);
    target_alone = evaluate(*target.session, guesses, 5);
  }
  LoadedModel draft(tiny_model_path("q4_k_m"), 2, {}, options), target(tiny_model_path("q8_0"), 2, {}, options);
  ASSERT_EQ(draft.placement.members()[0], target.placement.members()[0]);
  ASSERT_EQ(draft.placement.members()[1], target.placement.members()[1]);
  draft.session->evaluate(prompt);  // work of both models is queued at the same time
  target.session->evaluate(prompt);
  for (int round = 0; round < 4; ++round) {
    EXPECT_EQ(draft_says(*draft.session), draft_alone) << round;
    EXPECT_EQ(evaluate(*target.session, guesses, 5), target_alone) << round;
    draft.session->rewind(19);
    target.session->rewind(19);
    EXPECT_EQ(draft.session->compilations(), 2) << round;
    EXPECT_EQ(target.session->compilations(), 2) << round;
  }
}

TEST(Session, ErrorsNameInvalidValues) {
  LoadedModel loaded(tiny_model_path("q8_0"), 1, {}, {.context = 16, .batch = 8});
  Session& session = *loaded.session;
  EXPECT_THAT(message_of([&] { session.logits(); }), HasSubstr("no logits yet"));
  EXPECT_THAT(message_of([&] { session.evaluate({}); }), HasSubstr("no tokens"));
  EXPECT_THAT(message_of([&] { session.evaluate(std::vector<int32_t>{1024}); }),
              HasSubstr("token 1024 is not in a vocabulary of 1024 tokens"));
  EXPECT_THAT(message_of([&] { session.evaluate(std::vector<int32_t>{-1}); }), HasSubstr("token -1"));
  EXPECT_THAT(message_of([&] { session.evaluate(std::vector<int32_t>(17, 5)); }),
              HasSubstr("17 tokens do not fit: 0 of the context's 16 tokens are used"));
  EXPECT_THAT(message_of([&] { session.evaluate(std::vector<int32_t>(11, 5), 4); }),
              HasSubstr("4 outputs were requested, but the last batch has 3 tokens"));
  session.evaluate(std::vector<int32_t>(16, 5));
  EXPECT_THAT(message_of([&] { session.evaluate(std::vector<int32_t>{5}); }), HasSubstr("do not fit: 16 of"));
  EXPECT_THAT(message_of([&] { session.rewind(17); }), HasSubstr("cannot rewind to token 17 of 16"));
  session.rewind(15);
  session.evaluate(std::vector<int32_t>{5});
  EXPECT_THAT(message_of([&] { session_size(loaded.model->hparams, {.context = -1}); }), HasSubstr("context of -1"));
  EXPECT_THAT(message_of([&] { session_size(loaded.model->hparams, {.batch = 0}); }), HasSubstr("batch of 0"));
}

}  // namespace
}  // namespace shoal::models
