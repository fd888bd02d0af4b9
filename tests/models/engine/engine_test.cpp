// The behaviour of engines. schedules_test.cpp compares the tokens of many requests.
#include "models/engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "models/engine/drafts.h"
#include "tests/models/engine/served.h"

namespace shoal::models {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

const RequestOptions kGreedy{.sampling = {.temp = 0}, .most_tokens = 20};

std::vector<int32_t> repeated(int64_t count) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i) tokens.push_back(static_cast<int32_t>(3 + i * 7 % 160));
  return tokens;
}

TEST(Engine, GivesTheTokensOfASession) {
  LoadedModel loaded(tiny_model_path("q8_0"), 1, {}, {.context = 256});
  std::vector<int32_t> expected;
  loaded.session->evaluate(kPrompt);
  for (int i = 0; i < 20; ++i) {
    const std::span<const float> logits = loaded.session->logits();
    expected.push_back(static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
    loaded.session->evaluate({&expected.back(), 1});
  }
  const Placed placed("tiny-q8_0", 1);
  const auto engine = placed.engine({.context = 256, .sequences = 4, .candidates = 16});
  const RequestId id = engine->submit(kPrompt, kGreedy);
  Answers answers;
  answers.run(*engine);
  EXPECT_EQ(answers.tokens[id], expected);
  EXPECT_EQ(answers.ends[id].finish, Finish::kTokens);
}

// llama.cpp computes whole batches of prompts while all other slots wait.
TEST(Engine, RequestsGetTokensWhileALongPromptIsComputed) {
  const Placed placed("tiny-q8_0", 1);
  const auto engine = placed.engine({.context = 1024, .batch = 512, .sequences = 2, .candidates = 16});
  engine->set_token_seconds(0);  // prompts get the least number of tokens
  RequestOptions options = kGreedy;
  options.most_tokens = 40;
  const RequestId first = engine->submit(kPrompt, options);
  engine->step();
  const RequestId second = engine->submit(repeated(400), options);
  Answers answers;
  answers.take(*engine);
  while (answers.tokens[second].empty()) {
    const size_t before = answers.tokens[first].size();
    ASSERT_TRUE(engine->step());
    answers.take(*engine);
    ASSERT_EQ(answers.tokens[first].size(), before + 1);
  }
  EXPECT_GE(answers.tokens[first].size(), 10U);
}

TEST(Engine, TargetTimeOfAStepLimitsPromptTokens) {
  const Placed placed("tiny-q8_0", 1);
  const auto engine = placed.engine({.context = 2048, .batch = 512, .sequences = 2, .candidates = 16});
  const auto steps_of_prompt = [&](double token_seconds, int32_t first_token) {
    engine->set_token_seconds(token_seconds);
    RequestOptions options = kGreedy;
    options.most_tokens = 40;
    engine->submit(kPrompt, options);
    engine->step();
    std::vector<int32_t> prompt = repeated(400);
    prompt[0] = first_token;
    const RequestId id = engine->submit(prompt, kGreedy);
    const int64_t before = engine->stats().steps;
    Answers answers;
    while (answers.tokens[id].empty()) engine->step(), answers.take(*engine);
    const int64_t steps = engine->stats().steps - before;
    answers.run(*engine);
    return steps;
  };
  EXPECT_EQ(steps_of_prompt(0, 1), 9) << "47 prompt tokens and one generated token per step";
  EXPECT_LE(steps_of_prompt(1e9, 2), 2);
}

// Other engines divide the context by the number of slots.
TEST(Engine, OneRequestMayUseTheWholeCache) {
  const Placed placed("tiny-q8_0", 1);
  const auto engine = placed.engine({.context = 256, .sequences = 8, .candidates = 16});
  EXPECT_EQ(engine->most_tokens(), 256);
  RequestOptions options = kGreedy;
  options.most_tokens = -1;
  const RequestId id = engine->submit(repeated(200), options);
  Answers answers;
  answers.run(*engine);
  EXPECT_EQ(answers.tokens[id].size(), 57U);  // the last token needs no room
  EXPECT_EQ(answers.ends[id].finish, Finish::kContext);
}

TEST(Engine, MoreRequestsThanTokensOfTheContextWait) {
  const Placed placed("tiny-q8_0", 1);
  const auto engine = placed.engine({.context = 5, .sequences = 8, .candidates = 16});
  RequestOptions options = kGreedy;
  options.most_tokens = 2;
  std::vector<RequestId> ids;
  for (int i = 0; i < 8; ++i) ids.push_back(engine->submit({1, 300 + i}, options));
  Answers answers;
  answers.run(*engine);
  for (const RequestId id : ids) EXPECT_EQ(answers.tokens[id].size(), 2U);
  EXPECT_EQ(leaks(*engine), "");
}

// Other engines end running requests when the cache is full.
TEST(Engine, RequestsWaitAndEndNormallyIfTheCacheIsFull) {
  const Placed placed("tiny-q8_0", 2, {"3,1", 1});
  const auto engine = placed.engine({.context = 128, .sequences = 4, .candidates = 16});
  RequestOptions options = kGreedy;
  options.most_tokens = 60;
  std::vector<RequestId> ids;
  for (int i = 0; i < 4; ++i) {
    std::vector<int32_t> prompt = kPrompt;
    prompt.push_back(300 + i);
    ids.push_back(engine->submit(prompt, options));
  }
  Answers answers;
  answers.run(*engine);
  for (const RequestId id : ids) {
    EXPECT_EQ(answers.tokens[id].size(), 60U);
    EXPECT_EQ(answers.ends[id].finish, Finish::kTokens);
  }
  EXPECT_GT(engine->stats().preemptions, 0);
  EXPECT_EQ(leaks(*engine), "");
}

class CachedBeginning : public ::testing::TestWithParam<const char*> {};

// vLLM and llama.cpp often find no cached beginning for models with recurrent layers.
TEST_P(CachedBeginning, IsFoundByLaterRequests) {
  const Placed placed(GetParam(), 2);
  const auto engine = placed.engine({.context = 2048, .batch = 128, .sequences = 2, .candidates = 16});
  std::vector<int32_t> first = repeated(300), second = first, third = first;
  for (int i = 0; i < 100; ++i) {
    first.push_back(5 + i % 60), second.push_back(70 + i % 60), third.push_back(130 + i % 30);
  }
  Answers answers;
  std::vector<RequestId> ids;
  for (const auto& prompt : {first, first, second, third}) {
    ids.push_back(engine->submit(prompt, kGreedy));
    answers.run(*engine);
  }
  EXPECT_EQ(answers.ends[ids[0]].cached_tokens, 0);
  EXPECT_EQ(answers.ends[ids[1]].cached_tokens, 384);  // 12 full pages; 399 tokens may come from the cache
  // The second prompt leaves the first one at token 300, where a recurrent model has no state. The model keeps the
  // state of this junction, so the third prompt can use it.
  EXPECT_EQ(answers.ends[ids[2]].cached_tokens, engine->memory().has_states() ? 0 : 288);
  EXPECT_EQ(answers.ends[ids[3]].cached_tokens, 288);
  // The whole conversation continues from the answer.
  std::vector<int32_t> more = third;
  more.insert(more.end(), answers.tokens[ids[3]].begin(), answers.tokens[ids[3]].end());
  more.insert(more.end(), {7, 8, 9});
  const RequestId last = engine->submit(more, kGreedy);
  answers.run(*engine);
  EXPECT_GE(answers.ends[last].cached_tokens, 416);
}

TEST_P(CachedBeginning, EndsAtJunctionOfFirstRequest) {
  const Placed placed(GetParam(), 2);
  const auto engine = placed.engine({.context = 2048, .batch = 128, .sequences = 2, .candidates = 16});
  std::vector<int32_t> first = repeated(300), second = first;
  for (int i = 0; i < 100; ++i) first.push_back(5 + i % 60), second.push_back(70 + i % 60);
  RequestOptions options = kGreedy;
  options.junction = 300;
  Answers answers;
  engine->submit(first, options);
  answers.run(*engine);
  const RequestId id = engine->submit(second, options);
  answers.run(*engine);
  EXPECT_EQ(answers.ends[id].cached_tokens, 288);
}

INSTANTIATE_TEST_SUITE_P(All, CachedBeginning,
                         ::testing::Values("llama", "gemma3", "gpt-oss", "qwen35", "qwen3next", "lfm2", "deepseek2"));

TEST(Engine, SaltsSeparateCachedBeginnings) {
  const Placed placed("tiny-q8_0", 1);
  const auto engine = placed.engine({.context = 512, .sequences = 2, .candidates = 16});
  RequestOptions options = kGreedy;
  Answers answers;
  std::vector<RequestId> ids;
  for (const char* salt : {"a", "b", "a"}) {
    options.salt = salt;
    ids.push_back(engine->submit(repeated(100), options));
    answers.run(*engine);
  }
  EXPECT_EQ(answers.ends[ids[1]].cached_tokens, 0);
  EXPECT_EQ(answers.ends[ids[2]].cached_tokens, 96);
}

TEST(Engine, CancelEndsARequestBeforeTheNextStep) {
  const Placed placed("tiny-q8_0", 1);
  const auto engine = placed.engine({.context = 512, .sequences = 2, .candidates = 16});
  const RequestId id = engine->submit(kPrompt, kGreedy);
  engine->step();
  engine->step();
  EXPECT_EQ(engine->take_outputs().size(), 2U);
  engine->cancel(id);
  engine->cancel(id);
  engine->cancel(id + 100);  // unknown
  EXPECT_FALSE(engine->step());
  const std::vector<Output> last = engine->take_outputs();
  ASSERT_EQ(last.size(), 1U) << "a request ends once";
  EXPECT_EQ(last[0].request, id);
  EXPECT_EQ(last[0].finish, Finish::kCancelled);
  EXPECT_EQ(leaks(*engine), "");
}

TEST(Engine, NoRequestStarvesBehindAHigherPriority) {
  const Placed placed("tiny-q8_0", 1);
  const auto engine = placed.engine({.context = 256, .sequences = 1, .candidates = 16});
  RequestOptions low = kGreedy, high = kGreedy;
  low.priority = -1, low.most_tokens = high.most_tokens = 2;
  std::vector<RequestId> before{engine->submit(kPrompt, high)};
  const RequestId starved = engine->submit(kPrompt, low);
  Answers answers;
  int64_t later = 0;
  while (!answers.ends.contains(starved)) {
    ASSERT_LT(later, 150) << "requests that arrived later go first for ever";
    engine->submit(kPrompt, high), ++later;  // there is always a request of a higher priority
    engine->step();
    engine->step();
    answers.take(*engine);
  }
  EXPECT_GE(later, 90);  // the priority counts
}

TEST(Engine, TheMaskLimitsTheTokens) {
  const Placed placed("tiny-q8_0", 1);
  const auto engine = placed.engine({.context = 256, .sequences = 2, .candidates = 16});
  RequestOptions options = kGreedy;
  for (const float temp : {0.0f, 1.0f}) {
    options.sampling.temp = temp;
    options.mask = [](std::span<const int32_t> answer, std::span<uint32_t> mask) {
      if (answer.size() % 2 == 0) mask[3] |= 1U << 5;  // token 101
      mask[4] |= 1U << 1;                              // token 129
    };
    const RequestId id = engine->submit(kPrompt, options);
    Answers answers;
    answers.run(*engine);
    ASSERT_EQ(answers.tokens[id].size(), 20U);
    for (size_t i = 0; i < 20; ++i) {
      const int32_t token = answers.tokens[id][i];
      EXPECT_TRUE(token == 129 || (token == 101 && i % 2 == 0)) << token;
    }
  }
}

TEST(Engine, AFailingMaskFailsOnlyItsRequest) {
  const Placed placed("tiny-q8_0", 1);
  const auto engine = placed.engine({.context = 256, .sequences = 3, .candidates = 16});
  const auto last_word = static_cast<size_t>(placed.model->hparams.vocab / 32);
  RequestOptions empty = kGreedy, throwing = kGreedy;
  empty.mask = [&](std::span<const int32_t> answer, std::span<uint32_t> mask) {
    if (answer.size() < 3) mask[4] = 1;
    if (last_word < mask.size()) mask[last_word] = 1U << 31;  // not a token
  };
  throwing.mask = [](std::span<const int32_t> answer, std::span<uint32_t> mask) {
    if (answer.size() == 2) throw std::runtime_error("bad grammar");
    mask[4] = 1;
  };
  const RequestId failed = engine->submit(kPrompt, empty), thrown = engine->submit(kPrompt, throwing);
  const RequestId other = engine->submit(kPrompt, kGreedy);
  Answers answers;
  answers.run(*engine);
  EXPECT_EQ(answers.ends[failed].finish, Finish::kFailed);
  EXPECT_THAT(answers.ends[failed].error, HasSubstr("the mask allows no token after 3 tokens"));
  EXPECT_EQ(answers.ends[thrown].finish, Finish::kFailed);
  EXPECT_EQ(answers.ends[thrown].error, "the mask failed after 2 tokens of the answer: bad grammar");
  EXPECT_EQ(answers.tokens[other].size(), 20U);
  EXPECT_EQ(leaks(*engine), "");
}

TEST(Engine, FirstOfEqualPromptsEndsFirstAndShortPromptsPassLongOnes) {
  const Placed placed("tiny-q8_0", 1);
  const auto engine = placed.engine({.context = 1024, .batch = 32, .sequences = 4, .candidates = 16});
  const std::vector<size_t> sizes{200, 200, 10, 200};
  std::vector<RequestId> ids;
  for (size_t i = 0; i < sizes.size(); ++i) {
    std::vector<int32_t> prompt = repeated(static_cast<int64_t>(sizes[i]));
    prompt[0] = static_cast<int32_t>(i);  // no common beginning
    ids.push_back(engine->submit(prompt, {.sampling = {.temp = 0}, .most_tokens = 1}));
  }
  std::vector<RequestId> order;
  while (engine->step()) {
    for (const Output& output : engine->take_outputs()) {
      if (output.finish) order.push_back(output.request);
    }
  }
  EXPECT_EQ(order, (std::vector<RequestId>{ids[2], ids[0], ids[1], ids[3]}));
}

TEST(Engine, RequestsAndEnginesEndWhileStepsOverlap) {
  const Placed placed("tiny-q8_0", 2, {{}, 1, SplitMode::kLayer});
  const SessionOptions options{.context = 256, .batch = 16, .sequences = 2, .candidates = 16};
  for (const bool cancels : {false, true}) {
    const auto engine = placed.engine(options);
    const RequestId id = engine->submit(repeated(200), kGreedy);
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(engine->step());
    ASSERT_TRUE(engine->runner().is_pipeline());
    if (!cancels) continue;  // ends the engine
    engine->cancel(id);
    EXPECT_FALSE(engine->step());
    EXPECT_EQ(leaks(*engine), "");
  }
}

TEST(Engine, WrongGuessesEnd) {
  const Placed placed("tiny-q8_0", 1);
  const auto engine = placed.engine({.context = 512, .sequences = 1, .drafts = 4, .candidates = 16});
  const std::vector<int32_t> prompt{3, 3, 3, 3, 4, 4, 4, 4, 3};
  RequestOptions options = kGreedy;
  options.most_tokens = 200, options.draft = 4;
  options.mask = [&](std::span<const int32_t> answer, std::span<uint32_t> mask) {
    std::vector<int32_t> tokens = prompt;
    tokens.insert(tokens.end(), answer.begin(), answer.end());
    const std::vector<int32_t> guess = draft_tokens(tokens, 1);
    mask[0] = 1u << 3 | 1u << 4;
    if (!guess.empty()) mask[0] &= ~(1u << guess[0]);
  };
  engine->submit(prompt, options);
  while (engine->step()) continue;
  EXPECT_EQ(engine->stats().generated_tokens, 200);
  EXPECT_EQ(engine->stats().accepted_tokens, 0);
  EXPECT_GT(engine->stats().drafted_tokens, 0);
  EXPECT_LT(engine->stats().drafted_tokens, 150);
}

TEST(Engine, LongPromptDoesNotStarveBehindShortPrompts) {
  const Placed placed("tiny-q8_0", 1);
  const auto engine = placed.engine({.context = 2048, .batch = 32, .sequences = 8, .candidates = 16});
  const RequestOptions one_token{.sampling = {.temp = 0}, .most_tokens = 1};
  const RequestId id = engine->submit(repeated(400), one_token);
  Answers answers;
  int32_t steps = 0;
  for (; !answers.ends.contains(id); ++steps) {
    ASSERT_LT(steps, 100);
    for (int32_t i = 0; i < 4; ++i) {
      std::vector<int32_t> prompt = repeated(10);
      prompt[0] = 4 * steps + i;  // no common beginning
      engine->submit(prompt, one_token);
    }
    engine->step();
    answers.take(*engine);
  }
  EXPECT_GT(steps, 400 / 24) << "other prompts get the other half of each step";
  EXPECT_LE(steps, 400 / 16 + 1) << "the first prompt gets half of each step";
}

TEST(Engine, LayersWithAWindowKeepOnlyThePagesOfTheWindow) {
  const Placed placed("gemma3", 2);
  const auto engine = placed.engine({.context = 2048, .batch = 64, .sequences = 1, .candidates = 16});
  const KvCache& cache = engine->runner().cache();
  ASSERT_EQ(cache.groups.size(), 2U);
  const size_t ring = cache.groups[0].window > 0 ? 0 : 1;
  const int64_t most = cache.groups[ring].window / cache.page + 2 + 64 / cache.page;
  engine->submit(repeated(900), kGreedy);
  while (engine->step()) {
    const Pool& pool = engine->memory().pages()[ring];
    ASSERT_LE(pool.size() - pool.free_units(), most);
  }
}

TEST(Engine, OtherThreadsSubmitAndCancel) {
  const Placed placed("tiny-q8_0", 1);
  const auto engine = placed.engine({.context = 512, .sequences = 4, .candidates = 16});
  std::atomic<int> left = 4;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (int n = 0; n < 10; ++n) {
        const RequestId id = engine->submit(kPrompt, kGreedy);
        if (n % 3 == i % 3) engine->cancel(id);
      }
      --left;
    });
  }
  Answers answers;
  while (left > 0) engine->step(), answers.take(*engine);
  for (std::thread& thread : threads) thread.join();
  answers.run(*engine);
  EXPECT_EQ(answers.ends.size(), 40U);
  for (const auto& [id, end] : answers.ends) {
    if (end.finish != Finish::kCancelled) {
      EXPECT_EQ(answers.tokens[id].size(), 20U);
    }
  }
  EXPECT_EQ(leaks(*engine), "");
}

TEST(Engine, ReturnsTheHighestLogitsAndTheirLogSumExp) {
  LoadedModel loaded(tiny_model_path("q8_0"), 1, {}, {.context = 256});
  loaded.session->evaluate(kPrompt);
  const std::span<const float> logits = loaded.session->logits();
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
  const Placed placed("tiny-q8_0", 1);
  const auto engine = placed.engine({.context = 256, .sequences = 2, .candidates = 16});
  RequestOptions options = kGreedy;
  options.logprobs = 3, options.most_tokens = 1;
  engine->submit(kPrompt, options);
  while (engine->step()) {
  }
  const std::vector<Output> outputs = engine->take_outputs();
  ASSERT_EQ(outputs.size(), 2U);
  ASSERT_EQ(outputs[0].best.size(), 3U);
  const std::vector<TokenLogit> best = top_logits(logits, 3);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(outputs[0].best[i].id, best[i].id);
    EXPECT_EQ(outputs[0].best[i].logit, best[i].logit);
  }
  EXPECT_NEAR(outputs[0].log_sum, std::log(sum), 1e-6);
  EXPECT_EQ(outputs[0].logit, best[0].logit);
}

TEST(Engine, StopStringsAndEndTokensEndAnAnswer) {
  const Placed placed("tiny-q8_0", 1);
  const Tokenizer tokenizer(placed.model->file);
  const auto engine = placed.engine({.context = 256, .sequences = 2, .candidates = 16}, &tokenizer);
  Answers answers;
  const RequestId whole = engine->submit(kPrompt, kGreedy);
  answers.run(*engine);
  const std::string text = answers.texts[whole];
  EXPECT_EQ(text, tokenizer.decode(answers.tokens[whole], false));
  RequestOptions options = kGreedy;
  options.stops = {text.substr(text.size() / 2, 4)};
  const RequestId stopped = engine->submit(kPrompt, options);
  answers.run(*engine);
  EXPECT_EQ(answers.texts[stopped], text.substr(0, text.find(options.stops[0])));
  EXPECT_EQ(answers.ends[stopped].finish, Finish::kStopString);
  options.stops = {};
  options.end_tokens = {answers.tokens[whole][5]};
  const RequestId ended = engine->submit(kPrompt, options);
  answers.run(*engine);
  EXPECT_LE(answers.tokens[ended].size(), 5U);
  EXPECT_EQ(answers.ends[ended].finish, Finish::kEndToken);
}

TEST(Engine, RefusesImpossibleRequests) {
  const Placed placed("tiny-q8_0", 1);
  const auto engine = placed.engine({.context = 128, .sequences = 2, .candidates = 16});
  const auto message = [&](std::vector<int32_t> prompt, RequestOptions options) {
    return [&engine, prompt = std::move(prompt), options = std::move(options)] { engine->submit(prompt, options); };
  };
  EXPECT_THAT(message({}, {}), ThrowsMessage<InvalidArgument>(HasSubstr("the prompt has no tokens")));
  EXPECT_THAT(message(repeated(129), {}), ThrowsMessage<InvalidArgument>(HasSubstr("the context holds 128 tokens")));
  EXPECT_THAT(message({5000}, {}), ThrowsMessage<InvalidArgument>(HasSubstr("token 5000 is not in a vocabulary")));
  EXPECT_THAT(message({1}, {.sampling = {.top_p = 2}}), ThrowsMessage<InvalidArgument>(HasSubstr("top_p = 2")));
  EXPECT_THAT(message({1}, {.stops = {"a"}}),
              ThrowsMessage<InvalidArgument>(HasSubstr("stop strings need a tokenizer")));
  EXPECT_THAT(message({1}, {.most_tokens = -2}), ThrowsMessage<InvalidArgument>(HasSubstr("limits of -2 tokens")));
  EXPECT_THAT(message({1}, {.draft = 2}),
              ThrowsMessage<InvalidArgument>(HasSubstr("2 guessed tokens, but the engine was made for 0 to 0")));
  EXPECT_FALSE(engine->step());
}

}  // namespace
}  // namespace shoal::models
