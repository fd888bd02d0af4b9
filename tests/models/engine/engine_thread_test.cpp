// Engines in their own threads, channels of outputs, masks from other threads, and log probabilities of prompts.
#include "models/engine/engine_thread.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <thread>

#include "base/error.h"
#include "models/engine/mask_feed.h"
#include "tests/models/engine/served.h"

namespace shoal::models {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

const RequestOptions kGreedy{.sampling = {.temp = 0}, .most_tokens = 12};
const SessionOptions kFourSequences{.context = 256, .sequences = 4, .candidates = 16};

/// Reads all outputs of one request.
std::vector<Output> read_all(OutputChannel& channel) {
  std::vector<Output> all;
  while (all.empty() || !all.back().finish) {
    for (Output& output : channel.wait(10s)) all.push_back(std::move(output));
  }
  return all;
}

std::vector<int32_t> tokens_of(const std::vector<Output>& outputs) {
  std::vector<int32_t> tokens;
  for (const Output& output : outputs) {
    if (output.token >= 0 && !output.is_prompt) tokens.push_back(output.token);
  }
  return tokens;
}

std::vector<int32_t> tokens_of_engine(const Placed& placed, const std::vector<int32_t>& prompt) {
  const auto engine = placed.engine(kFourSequences);
  const RequestId id = engine->submit(prompt, kGreedy);
  Answers answers;
  answers.run(*engine);
  return answers.tokens[id];
}

bool is_readable(const OutputChannel& channel) {
  pollfd entry{channel.descriptor(), POLLIN, 0};
  return poll(&entry, 1, 0) == 1;
}

TEST(OutputChannel, DescriptorIsReadableWhileThereAreOutputs) {
  OutputChannel channel;
  EXPECT_FALSE(is_readable(channel));
  channel.put({Output{.request = 1}});
  channel.put({Output{.request = 2}, Output{.request = 3}});
  EXPECT_TRUE(is_readable(channel));
  EXPECT_EQ(channel.take().size(), 3U);
  EXPECT_FALSE(is_readable(channel));
  EXPECT_TRUE(channel.wait(1ms).empty());
}

TEST(EngineThread, AnswersRequestsOfManyThreads) {
  const Placed placed("tiny-q8_0", 2, {"3,1", 1});
  const std::vector<int32_t> expected = tokens_of_engine(placed, kPrompt);
  const auto engine = placed.engine(kFourSequences);
  EngineThread served(*engine);
  std::atomic<int> right = 0;
  std::vector<std::thread> readers;
  for (int reader = 0; reader < 6; ++reader) {
    readers.emplace_back([&] {
      for (int i = 0; i < 3; ++i) {
        auto channel = std::make_shared<OutputChannel>();
        served.submit(channel, kPrompt, kGreedy);
        right += tokens_of(read_all(*channel)) == expected ? 1 : 0;
      }
    });
  }
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(right, 18);
  EXPECT_EQ(served.stats().generated_tokens, 18 * 12);
}

TEST(EngineThread, CancelEndsARequest) {
  const Placed placed("tiny-q8_0", 1);
  const auto engine = placed.engine({.context = 4096, .sequences = 4, .candidates = 16});
  EngineThread served(*engine);
  auto channel = std::make_shared<OutputChannel>();
  RequestOptions options = kGreedy;
  options.most_tokens = 4000;
  const RequestId id = served.submit(channel, kPrompt, options);
  channel->wait(10s);
  served.cancel(id);
  EXPECT_EQ(read_all(*channel).back().finish, Finish::kCancelled);
}

TEST(EngineThread, StopCancelsRequests) {
  const Placed placed("tiny-q8_0", 1);
  const auto engine = placed.engine({.context = 4096, .sequences = 4, .candidates = 16});
  auto channel = std::make_shared<OutputChannel>();
  {
    EngineThread served(*engine);
    RequestOptions options = kGreedy;
    options.most_tokens = 4000;
    served.submit(channel, kPrompt, options);
    served.stop();
    EXPECT_THROW(served.submit(channel, kPrompt, options), InvalidArgument);
  }
  EXPECT_EQ(read_all(*channel).back().finish, Finish::kCancelled);
}

TEST(EngineThread, RefusesWrongRequestsAndKeepsRunning) {
  const Placed placed("tiny-q8_0", 1);
  const auto engine = placed.engine(kFourSequences);
  EngineThread served(*engine);
  auto channel = std::make_shared<OutputChannel>();
  EXPECT_THROW(served.submit(channel, {}, kGreedy), InvalidArgument);
  served.submit(channel, kPrompt, kGreedy);
  EXPECT_EQ(tokens_of(read_all(*channel)).size(), 12U);
}

TEST(EngineThread, FailingDeviceEndsAllRequests) {
  const Placed placed("tiny-q8_0", 1);
  std::atomic<bool> fails = false;
  auto backends = placed.placement.init();
  backends[0]->set_abort_callback([&fails] { return fails.load(); });
  Engine engine(*placed.model, placed.placement, std::move(backends), engine_options(kFourSequences));
  EngineThread served(engine);
  auto first = std::make_shared<OutputChannel>(), second = std::make_shared<OutputChannel>();
  RequestOptions options = kGreedy;
  options.most_tokens = 200;
  served.submit(first, kPrompt, options);
  served.submit(second, kPrompt, options);
  first->wait(10s);
  fails = true;
  for (const auto& channel : {first, second}) {
    const Output last = read_all(*channel).back();
    EXPECT_EQ(last.finish, Finish::kFailed);
    EXPECT_THAT(last.error, HasSubstr("CPU0"));
  }
  EXPECT_THAT(served.failure(), HasSubstr("CPU0"));
  EXPECT_THROW(served.submit(first, kPrompt, options), DeviceError);
}

TEST(MaskFeed, GivesTheMaskOfEachTokenOnce) {
  MaskFeed feed;
  std::vector<uint32_t> mask(2);
  feed.put(0, {1, 2});
  feed.wait(0, mask);
  EXPECT_EQ(mask, (std::vector<uint32_t>{1, 2}));
  std::thread other([&] {
    std::this_thread::sleep_for(5ms);
    feed.put(1, {3, 4});
  });
  feed.wait(1, mask);
  EXPECT_EQ(mask, (std::vector<uint32_t>{3, 4}));
  other.join();
}

TEST(MaskFeed, ThrowsAfterFailuresAndTimeouts) {
  MaskFeed feed(1ms);
  std::vector<uint32_t> mask(2);
  EXPECT_THAT([&] { feed.wait(0, mask); }, ThrowsMessage<InvalidArgument>(HasSubstr("no mask arrived within 1 ms")));
  feed.put(0, {1, 2, 3});
  EXPECT_THAT([&] { feed.wait(0, mask); }, ThrowsMessage<InvalidArgument>(HasSubstr("3 words")));
  feed.fail("the grammar is impossible");
  EXPECT_THAT([&] { feed.wait(0, mask); }, ThrowsMessage<InvalidArgument>(HasSubstr("impossible")));
}

// A mask that arrives while the devices compute gives the same tokens as a mask that the engine computes.
TEST(EngineThread, MasksOfAnotherThreadLimitTheTokens) {
  const Placed placed("tiny-q8_0", 2);
  const auto engine = placed.engine(kFourSequences);
  EngineThread served(*engine);
  auto channel = std::make_shared<OutputChannel>(), tokens = std::make_shared<OutputChannel>();
  auto feed = std::make_shared<MaskFeed>();
  RequestOptions options = kGreedy;
  options.mask = [feed](std::span<const int32_t> answer, std::span<uint32_t> mask) { feed->wait(answer.size(), mask); };
  const auto words = static_cast<size_t>((placed.model->hparams.vocab + 31) / 32);
  const auto only = [&](size_t token) {  // a mask that allows a single token
    std::vector<uint32_t> mask(words);
    mask[token / 32] = 1U << (token % 32);
    return mask;
  };
  feed->put(0, only(100));
  served.submit(channel, kPrompt, options, tokens);
  size_t answered = 0;
  for (bool runs = true; runs;) {
    for (const Output& output : tokens->wait(10s)) {
      runs = runs && !output.finish;
      if (output.token < 0) continue;
      ++answered;
      feed->put(answered, only(100 + answered));
    }
  }
  std::vector<int32_t> expected;
  for (int32_t token = 100; token < 112; ++token) expected.push_back(token);
  EXPECT_EQ(tokens_of(read_all(*channel)), expected);
}

/// Log probabilities of the prompt's tokens after the first, from a session that evaluates one token at a time.
std::vector<double> expected_logprobs(const std::vector<int32_t>& prompt, int devices, const std::string& ratio) {
  LoadedModel loaded(tiny_model_path("q8_0"), devices, ratio, {.context = 256});
  std::vector<double> all;
  for (size_t i = 0; i + 1 < prompt.size(); ++i) {
    loaded.session->evaluate({&prompt[i], 1});
    const std::span<const float> logits = loaded.session->logits();
    all.push_back(logits[static_cast<size_t>(prompt[i + 1])] - log_sum_exp(logits));
  }
  return all;
}

struct Listing {
  int devices;
  int64_t outputs, batch;
};

class PromptList : public ::testing::TestWithParam<Listing> {};

TEST_P(PromptList, HasTheLogProbabilitiesOfAllTokens) {
  const auto& [devices, most_outputs, batch] = GetParam();
  std::vector<int32_t> prompt = kPrompt;
  for (int32_t i = 0; i < 60; ++i) prompt.push_back(3 + i * 7 % 160);
  const std::string ratio = devices == 3 ? "3,1,2" : "";
  const std::vector<double> expected = expected_logprobs(prompt, devices, ratio);
  const Placed placed("tiny-q8_0", devices, {ratio, 1});
  SessionOptions options = kFourSequences;
  options.outputs = most_outputs, options.batch = batch;
  const auto engine = placed.engine(options);
  RequestOptions request = kGreedy;
  request.logprobs = 3, request.lists_prompt = true;
  const std::vector<int32_t> answer = tokens_of_engine(placed, prompt);
  for (int round = 0; round < 2; ++round) {  // the second time, the prompt is cached
    const RequestId plain = engine->submit(kPrompt, kGreedy);
    const RequestId listed = engine->submit(prompt, request), second = engine->submit(prompt, request);
    std::map<RequestId, std::vector<Output>> outputs;
    while (engine->step()) {
      for (Output& output : engine->take_outputs()) outputs[output.request].push_back(std::move(output));
    }
    EXPECT_EQ(tokens_of(outputs[plain]).size(), 12U);
    for (const RequestId id : {listed, second}) {
      EXPECT_EQ(tokens_of(outputs[id]), answer);
      ASSERT_EQ(outputs[id].size(), prompt.size() + 12);
      for (size_t i = 0; i + 1 < prompt.size(); ++i) {
        const Output& output = outputs[id][i];
        ASSERT_TRUE(output.is_prompt);
        ASSERT_EQ(output.token, prompt[i + 1]);
        ASSERT_NEAR(output.logit - output.log_sum, expected[i], 1e-5) << "position " << i;
        ASSERT_EQ(output.best.size(), 3U);
        ASSERT_GE(output.best[0].logit, output.logit);
      }
    }
  }
  EXPECT_EQ(leaks(*engine), "");
}

INSTANTIATE_TEST_SUITE_P(All, PromptList,
                         ::testing::Values(Listing{1, 0, 512}, Listing{1, 20, 32}, Listing{2, 64, 512},
                                           Listing{3, 9, 64}));

TEST(Engine, ReportsTheComputedPartOfThePrompt) {
  const Placed placed("tiny-q8_0", 1);
  const auto engine = placed.engine({.context = 256, .batch = 16, .sequences = 2, .candidates = 16});
  std::vector<int32_t> prompt;
  for (int32_t i = 0; i < 40; ++i) prompt.push_back(3 + i * 7 % 160);
  RequestOptions options = kGreedy;
  options.reports_progress = true;
  for (const int64_t cached : {0, 32}) {
    engine->submit(prompt, options);
    std::vector<int64_t> computed;
    while (engine->step()) {
      for (const Output& output : engine->take_outputs()) {
        if (output.computed_tokens < 0) continue;
        EXPECT_EQ(output.cached_tokens, cached);
        EXPECT_EQ(output.token, -1);
        computed.push_back(output.computed_tokens);
      }
    }
    ASSERT_GE(computed.size(), 2U);
    EXPECT_EQ(computed.front(), cached);
    EXPECT_TRUE(std::is_sorted(computed.begin(), computed.end()));
    EXPECT_EQ(computed.back(), 40);
  }
}

// The second request loses its memory while it lists its prompt, one token in each step.
TEST(PromptList, ContainsEachTokenOnceAfterALossOfMemory) {
  std::vector<int32_t> prompt;
  for (int32_t i = 0; i < 90; ++i) prompt.push_back(3 + i * 7 % 160);
  const Placed placed("tiny-q8_0", 1);
  const auto engine = placed.engine({.context = 256, .batch = 16, .sequences = 2, .candidates = 16});
  RequestOptions options = kGreedy;
  options.most_tokens = 220;
  engine->submit(kPrompt, options);
  while (engine->stats().generated_tokens < 100) engine->step();
  options.most_tokens = 4, options.logprobs = 1, options.lists_prompt = true;
  const RequestId second = engine->submit(prompt, options);
  std::vector<int32_t> listed;
  size_t before_loss = 0;
  while (engine->step()) {
    for (const Output& output : engine->take_outputs()) {
      if (output.request == second && output.is_prompt) listed.push_back(output.token);
    }
    if (engine->stats().preemptions == 0) before_loss = listed.size();
  }
  EXPECT_GT(engine->stats().preemptions, 0);
  EXPECT_GT(before_loss, 10U);
  EXPECT_LT(before_loss, prompt.size() - 1);
  EXPECT_EQ(listed, std::vector<int32_t>(prompt.begin() + 1, prompt.end()));
}

}  // namespace
}  // namespace shoal::models
