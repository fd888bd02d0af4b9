// Random schedules of requests: arrivals, lengths, cancellations, priorities, shared beginnings, guessed tokens, and
// caches that are too small for all requests. Each request must get exactly the tokens that it gets alone. No page and
// no state may be in use at the end.
//
//   SHOAL_SCHEDULES=N   number of schedules in all tests together (default: 220)
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "tests/models/engine/served.h"

namespace shoal::models {
namespace {

enum class Split : uint8_t {
  kTensors,
  kLatentRows,  ///< like kTensors, but a latent cache is divided by rows
  kLayers,
};

struct Mesh {
  const char* model;
  int devices;
  const char* ratio;
  Split split = Split::kTensors;
};

std::ostream& operator<<(std::ostream& out, const Mesh& mesh) {
  return out << mesh.model << " on " << mesh.devices << " " << mesh.ratio
             << (mesh.split == Split::kLayers ? " layers" : "");
}

constexpr Mesh kMeshes[] = {
    {"llama", 1, ""},
    {"llama", 3, "3,1,2"},
    {"gemma3", 1, ""},
    {"gemma3", 2, ""},
    {"gemma4", 2, "2,1"},
    {"gpt-oss", 1, ""},
    {"gpt-oss", 3, "1,2,1"},
    {"qwen35", 1, ""},
    {"qwen35", 2, "3,1"},
    {"qwen35moe", 4, ""},
    {"qwen3next", 2, ""},
    {"lfm2", 1, ""},
    {"lfm2", 2, "1,3"},
    {"deepseek2", 1, ""},
    {"deepseek2", 2, "", Split::kLatentRows},
    {"deepseek2", 3, "1,2,1", Split::kLatentRows},
    {"qwen3moe", 2, "2,1"},
    {"mixtral", 4, "1,1,0,2"},
    {"tiny-q8_0", 1, ""},
    {"tiny-q4_k_m", 2, "3,1"},
    {"llama", 2, "", Split::kLayers},
    {"qwen35", 3, "2,1,1", Split::kLayers},
};

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  int64_t in(int64_t least, int64_t most) { return std::uniform_int_distribution<int64_t>(least, most)(engine_); }
  bool one_in(int64_t sides) { return in(1, sides) == 1; }

 private:
  std::mt19937_64 engine_;
};

struct Wanted {
  std::vector<int32_t> prompt;
  RequestOptions options;
  int64_t arrival = 0;     ///< number of the step
  int64_t cancel_at = -1;  ///< number of the step; -1: never
};

std::vector<Wanted> draw_requests(Random& random, int64_t vocab, int64_t most) {
  std::vector<std::vector<int32_t>> beginnings;
  for (int i = 0; i < 3; ++i) {
    std::vector<int32_t>& tokens = beginnings.emplace_back();
    for (int64_t n = random.in(1, most * 2 / 3); n > 0; --n) {
      tokens.push_back(static_cast<int32_t>(random.in(0, vocab - 1)));
    }
  }
  std::vector<Wanted> wanted;
  for (int64_t i = random.in(2, 9); i > 0; --i) {
    Wanted one;
    const auto& beginning = beginnings[static_cast<size_t>(random.in(0, 2))];
    const int64_t shared = random.one_in(3) ? 0 : random.in(1, static_cast<int64_t>(beginning.size()));
    one.prompt.assign(beginning.begin(), beginning.begin() + shared);
    for (int64_t n = random.in(shared == 0 ? 1 : 0, 20); n > 0; --n) {
      one.prompt.push_back(static_cast<int32_t>(random.in(0, vocab - 1)));
    }
    const auto size = static_cast<int64_t>(one.prompt.size());
    one.options.most_tokens = std::min(random.in(1, 30), most - size);
    one.options.sampling = {.temp = random.one_in(2) ? 0.0f : 1.0f,
                            .top_k = static_cast<int>(random.in(0, 50)),
                            .seed = static_cast<uint64_t>(random.in(0, 1000))};
    if (random.one_in(4)) one.options.sampling.repeat_penalty = 1.3f;
    if (random.one_in(3)) {
      // Answers of few different tokens repeat themselves, so some guesses are right.
      one.options.draft = random.in(1, 6);
      one.options.sampling.biases = {{3, 100.0f}, {4, 100.0f}};
    }
    if (random.one_in(3)) one.options.priority = static_cast<int>(random.in(-1, 1));
    if (random.one_in(5)) one.options.salt = "other";
    if (random.one_in(3)) one.options.junction = random.in(0, size);
    one.arrival = random.in(0, 30);
    if (random.one_in(6)) one.cancel_at = one.arrival + random.in(0, 20);
    wanted.push_back(std::move(one));
  }
  return wanted;
}

/// Bytes of compute memory on each backend.
std::vector<size_t> compute_memory(Engine& engine) {
  std::vector<size_t> bytes;
  const sched::Scheduler& scheduler = engine.runner().scheduler();
  for (int i = 0; i < scheduler.backends(); ++i) bytes.push_back(scheduler.buffer_size(i));
  return bytes;
}

class Schedules : public ::testing::TestWithParam<Mesh> {};

TEST_P(Schedules, GiveEachRequestTheTokensThatItGetsAlone) {
  const Mesh& mesh = GetParam();
  PlacementOptions where{mesh.ratio, 1};
  if (mesh.split == Split::kLatentRows) where.latent = LatentSplit::kRows;
  if (mesh.split == Split::kLayers) where.mode = SplitMode::kLayer;
  const Placed placed(mesh.model, mesh.devices, where);
  const int64_t vocab = placed.model->hparams.vocab, context = 384;
  const auto alone = placed.engine({.context = context, .sequences = 1});
  const char* wished = std::getenv("SHOAL_SCHEDULES");
  const int64_t all = wished != nullptr ? std::atoi(wished) : 220;
  const int64_t schedules = std::max<int64_t>(1, all / static_cast<int64_t>(std::size(kMeshes)));
  int64_t preemptions = 0, cached = 0, accepted = 0;
  for (int64_t seed = 0; seed < schedules; ++seed) {
    Random random(static_cast<uint64_t>(seed));
    SessionOptions options{.context = random.in(64, 224), .sequences = random.in(1, 6), .drafts = 6};
    options.batch = random.in(options.sequences, 80);
    options.candidates = random.one_in(3) ? 0 : random.in(1, 64);
    const std::vector<Wanted> wanted = draw_requests(random, vocab, std::min<int64_t>(options.context, 200) - 1);
    SCOPED_TRACE(fmt::format("seed {}: {} requests, context {}, {} sequences, batch {}", seed, wanted.size(),
                             options.context, options.sequences, options.batch));
    std::vector<std::vector<int32_t>> expected;
    for (const Wanted& one : wanted) {
      RequestOptions plain = one.options;
      plain.draft = 0;
      plain.salt = fmt::format("{}.{}", seed, expected.size());  // nothing is shared
      Answers answers;
      const RequestId id = alone->submit(one.prompt, plain);
      answers.run(*alone);
      expected.push_back(answers.tokens[id]);
      ASSERT_EQ(static_cast<int64_t>(expected.back().size()), one.options.most_tokens);
    }
    const auto engine = placed.engine(options);
    const std::vector<size_t> reserved = compute_memory(*engine);
    engine->set_token_seconds(random.one_in(2) ? 1 : 0);
    std::vector<RequestId> ids(wanted.size(), 0);
    Answers answers;
    size_t submitted = 0;
    for (int64_t step = 0; submitted < wanted.size() || answers.ends.size() < wanted.size(); ++step) {
      ASSERT_LT(step, 5000) << "the requests do not end";
      for (size_t i = 0; i < wanted.size(); ++i) {
        if (wanted[i].arrival == step) ids[i] = engine->submit(wanted[i].prompt, wanted[i].options), ++submitted;
        if (wanted[i].cancel_at == step) engine->cancel(ids[i]);
      }
      engine->step();
      answers.take(*engine);
    }
    for (size_t i = 0; i < wanted.size(); ++i) {
      std::vector<int32_t> found = answers.tokens[ids[i]], tokens = expected[i];
      if (answers.ends[ids[i]].finish == Finish::kCancelled) tokens.resize(found.size());
      ASSERT_EQ(found, tokens) << "request " << i << " with a prompt of " << wanted[i].prompt.size();
    }
    EXPECT_EQ(leaks(*engine), "");
    EXPECT_EQ(engine->runner().is_pipeline(), mesh.split == Split::kLayers);
    // A smaller batch may leave larger gaps between its tensors.
    const std::vector<size_t> used = compute_memory(*engine);
    for (size_t i = 0; i < used.size(); ++i) EXPECT_LE(used[i], reserved[i] + reserved[i] / 64) << "device " << i;
    preemptions += engine->stats().preemptions;
    cached += engine->stats().cached_tokens;
    accepted += engine->stats().accepted_tokens;
  }
  // The schedules contain each feature.
  if (schedules >= 10) {
    EXPECT_GT(preemptions, 0);
    EXPECT_GT(cached, 0);
    EXPECT_GT(accepted, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(All, Schedules, ::testing::ValuesIn(kMeshes));

}  // namespace
}  // namespace shoal::models
