// Without -c, the context is as large as the memory allows. Unused cache rows take no memory.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "machine/catalogue.h"
#include "models/session/model_plan.h"
#include "tests/devices/cpu_configuration.h"
#include "tests/models/synthetic_model.h"
#include "tests/models/tiny_model.h"
#include "tests/support/sanitized.h"
#include "tests/support/temporary.h"
#include "tests/tools/child.h"
#include "tools/startup/deployment.h"

namespace shoal::tools {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

/// Writes a model file. The trained context is so large that its cache takes `bytes`. The cache contains keys and
/// values of 2 layers, each with 2 heads of 16 f16 values.
std::string model_trained_for(int64_t bytes) {
  models::SyntheticModel model;
  model.h.context = bytes / (2 * 2 * 2 * 16 * 2);
  return model.write();
}

Finished run_of(const std::string& model, const std::vector<std::string>& more) {
  std::vector<std::string> args{"run", "-m", model, "--prompt-tokens", "1,2,3", "-n", "2", "--output", "json"};
  args.insert(args.end(), more.begin(), more.end());
  return run(args);
}

/// Bytes of the cache for the largest context that a model can have. The tests need a machine with less memory.
constexpr int64_t kTooMuch = int64_t{256} * ((int64_t{1} << 30) - 1);

TEST(Context, ShrinksToFitByDefault) {
  const std::string model = model_trained_for(kTooMuch);
  const Finished fitted = run_of(model, {});
  ASSERT_EQ(fitted.code, 0) << fitted.err;
  const int64_t context = json::parse(fitted.out)["context"];
  EXPECT_GE(context, 4096);
  EXPECT_LT(context, kTooMuch / 256);
  EXPECT_THAT(fitted.err, HasSubstr(fmt::format("shoal: context {} instead of {}: ", context, kTooMuch / 256)));
  EXPECT_EQ(std::count(fitted.err.begin(), fitted.err.end(), '\n'), 1) << fitted.err;
  const Finished off = run_of(model, {"--fit", "off"});
  EXPECT_EQ(off.code, 1);
  EXPECT_THAT(off.err, AllOf(HasSubstr("CPU0 needs 256."), Not(HasSubstr("instead of"))));
}

TEST(Context, ExplicitContextIsNotChanged) {
  const std::string model = model_trained_for(kTooMuch);
  const Finished asked = run_of(model, {"-c", fmt::format("{}", kTooMuch / 256)});
  EXPECT_EQ(asked.code, 1);
  EXPECT_THAT(asked.err, HasSubstr("CPU0 needs 256."));
  EXPECT_EQ(std::count(asked.err.begin(), asked.err.end(), '\n'), 1) << asked.err;
  const Finished possible = run_of(model, {"-c", "5000"});
  EXPECT_EQ(json::parse(possible.out)["context"], 5000);
  EXPECT_EQ(possible.err, "");
}

TEST(Context, FitLimitShrinksExplicitContext) {
  const std::string model = model_trained_for(kTooMuch);
  const std::string most = fmt::format("{}", kTooMuch / 256);
  for (const std::vector<std::string>& limit :
       {std::vector<std::string>{"--fit-ctx", "100"}, std::vector<std::string>{"--fit-target", "100"}}) {
    std::vector<std::string> args{"-c", most};
    args.insert(args.end(), limit.begin(), limit.end());
    const Finished fitted = run_of(model, args);
    ASSERT_EQ(fitted.code, 0) << fitted.err;
    EXPECT_THAT(fitted.err, HasSubstr(" instead of " + most));
  }
  const Finished refused = run_of(model, {"-c", "5000", "--fit-ctx", "100", "--fit-target", "1000000000"});
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.err, HasSubstr("not even a context of 100 fits (--fit-ctx 100): CPU0 needs "));
}

TEST(Context, UsesMinimumContextIfMarginDoesNotFit) {
  const std::string model = model_trained_for(kTooMuch);
  const std::vector<std::string> margin{"--fit-target", "1000000000", "--fit-ctx", "100"};
  const Finished by_itself = run_of(model, margin);
  ASSERT_EQ(by_itself.code, 0) << by_itself.err;
  EXPECT_EQ(json::parse(by_itself.out)["context"], 100);
  EXPECT_THAT(by_itself.err, HasSubstr("shoal: context 100 instead of"));
  const Finished asked_for = run_of(model, {"--fit", "on", "--fit-target", "1000000000", "--fit-ctx", "100"});
  EXPECT_EQ(asked_for.code, 1);
  EXPECT_THAT(asked_for.err, HasSubstr("not even a context of 100 fits (--fit-ctx 100): CPU0 needs "));
  EXPECT_THAT(asked_for.err, HasSubstr("and 953.7 TiB of margin (--fit-target)"));
}

TEST(Context, AlwaysHoldsThePrompt) {
  std::string prompt = "1";
  for (int i = 1; i < 80; ++i) prompt += ",5";
  const std::vector<std::string> args{
      "run",          "-m",        kModel, "--prompt-tokens", prompt, "-n",   "3",  "--output",
      "json",         "--fit-ctx", "20",   "--ignore-eos",    "-dev", "CPU0", "-t", "1",
      "--fit-target", "100000000"};
  const Finished finished = run(args);
  ASSERT_EQ(finished.code, 0) << finished.err;
  const json outcome = json::parse(finished.out);
  EXPECT_EQ(outcome["context"], 81);
  EXPECT_EQ(outcome["tokens"].size(), 2u);  // the last token needs no row in the cache
  EXPECT_THAT(finished.err, HasSubstr("shoal: context 81 instead of 512: "));
  std::vector<std::string> required = args;
  required.insert(required.end(), {"--fit", "on"});
  const Finished refused = run(required);
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.err, HasSubstr("not even a context of 81 fits (the prompt has 80 tokens): CPU0 needs "));
}

TEST(Context, MemoryErrorSuggestsLatentSplitOnSeveralDevices) {
  const auto err_on = [](const std::string& devices) {
    const Finished refused =
        run({"run", "-m", SHOAL_REFERENCE_MODELS "/deepseek2.gguf", "--prompt-tokens", "1,2", "-dev", devices, "-t",
             "1", "--fit", "on", "--fit-target", "100000000", "--output", "json"});
    EXPECT_EQ(refused.code, 1);
    return refused.err;
  };
  EXPECT_THAT(err_on("CPU0,CPU1"),
              HasSubstr("more devices, the latent cache by rows (--latent-split rows), a quantised"));
  EXPECT_THAT(err_on("CPU0"), HasSubstr("more devices, a quantised"));
}

TEST(Context, LatentSplitIsChosenForShrunkContext) {
  const auto request_of = [](int64_t context) {
    Request request{models::open_model(SHOAL_REFERENCE_MODELS "/deepseek2.gguf")};
    request.asked.fixed = {models::cpu_groups({2})};
    request.asked.placement.threads = 1;
    request.asked.session = {.context = context, .batch = 32};
    request.asked.load = {.use_mapping = false, .repack = false};
    return request;
  };
  const Request small = request_of(256);
  size_t most = 0;
  const tuning::Chosen chosen = tuning::Chooser(*small.model, small.asked).choose();
  for (const auto& one : chosen.plan->memory) most = std::max(most, one.use.total());
  const models::LimitedCpuDevices limited(fmt::format("memory={}", most + 1000));
  Request request = request_of(512);
  request.asked.free.context = true;
  request.asked.least_context = 4;
  request.asked.must_fit = false;
  const Deployment deployment = resolve(std::move(request));
  EXPECT_LT(deployment.plan->size.context, 512);
  EXPECT_GT(deployment.ways.mirrored, 0);
  EXPECT_EQ(deployment.ways.rows, deployment.plan->size.context / 2);
}

/// Starts up with a prompt of `prompt` tokens. The device has memory for a context of `room` tokens plus 1000 bytes.
/// Returns the error, or the context if there is no error.
std::string error_of_prompt(int64_t room, int64_t prompt, size_t margin, bool must_fit) {
  Request request{models::open_model(kModel)};
  tuning::Asked& asked = request.asked;
  asked.placement.threads = 1;
  asked.session = {.context = room, .batch = 32};
  asked.load = {.use_mapping = false, .repack = false};
  const models::Placement placement(*request.model, models::cpu_groups({1}), asked.placement);
  const models::ModelPlan plan(*request.model, placement, asked.session, asked.load);
  const models::LimitedCpuDevices limited(fmt::format("memory={}", plan.memory.front().use.total() + 1000));
  asked.fixed = {models::cpu_groups({1})};
  asked.free.context = true;
  asked.session.context = 512;
  asked.least_context = 4;
  asked.prompt = prompt;
  asked.margin.bytes = margin;
  asked.must_fit = must_fit;
  request.starts_threads = false;
  try {
    return fmt::format("context {}", resolve(std::move(request)).plan->size.context);
  } catch (const DeviceError& error) {
    return error.what();
  }
}

TEST(Context, TooLongPromptIsAnErrorBeforeLoading) {
  const std::string message =
      "the prompt has 300 tokens, but the largest context that fits is 256{}; use a prompt of at most 255 tokens, more "
      "devices, a quantised cache (-ctk q8_0 -ctv q8_0) or a smaller model";
  for (const size_t margin : {0, 1000}) EXPECT_EQ(error_of_prompt(256, 255, margin, false), "context 256");
  EXPECT_EQ(error_of_prompt(256, 300, 2000, false), fmt::format(fmt::runtime(message), ""));
  EXPECT_EQ(error_of_prompt(256, 300, 1000, true),
            fmt::format(fmt::runtime(message), ", with 1000 B left free on each device (--fit-target)"));
}

/// The shares are searched again for the context that fits. The session runs on the devices of the final placement.
TEST(Context, SearchesSharesAgainForShrunkContext) {
  test::CpuConfiguration configuration{"devices=2,threads=1"};
  test::TemporaryFolder folder;
  machine::MachineModel described = machine::make_machine("H200x2-nvlink");
  for (size_t d = 0; d < described.devices.size(); ++d) described.devices[d].name = fmt::format("CPU{}", d);
  std::ofstream(folder.path() / "machine.json") << machine::to_json(described);
  Request request{models::open_model(kModel)};
  tuning::Asked& asked = request.asked;
  asked.placement.threads = 1;
  asked.session = models::engine_options({.context = 512, .batch = 32, .candidates = 1}, 0);
  asked.load = {.use_mapping = false, .repack = false};
  const models::Placement placement(*request.model, {Registry::instance().device_list("CPU0,CPU1")}, asked.placement);
  size_t most = 0;
  models::SessionOptions small = asked.session;
  small.context = 256;
  for (const auto& use : models::ModelPlan(*request.model, placement, small, asked.load).memory) {
    most = std::max(most, use.use.total());
  }
  const models::LimitedCpuDevices limited(fmt::format("memory={}", most + 1000));
  asked.fixed = {{Registry::instance().device_list("CPU0,CPU1")}};
  asked.free.shares = asked.free.context = true;
  asked.least_context = 4;
  asked.work = {0, 16, 0};
  request.machine = folder.path() / "machine.json";
  Deployment deployment = resolve(std::move(request));
  EXPECT_LT(deployment.plan->size.context, 512);
  load(deployment);
  start_engine(deployment, nullptr);
  deployment.engine->submit({1, 2, 3}, {.most_tokens = 1});
  while (deployment.engine->step()) {
  }
  EXPECT_EQ(deployment.engine->stats().generated_tokens, 1);
}

TEST(Context, UnusedRowsTakeNoMemory) {
  if (test::kSanitized) GTEST_SKIP() << "sanitizers need additional memory";
  constexpr int64_t kCache = int64_t{1} << 30;
  const std::string model = model_trained_for(kCache);
  Child child({"run", "-m", model, "--prompt-tokens", "1,2,3", "-n", "2", "--output", "json", "--fit", "off"});
  EXPECT_EQ(child.wait(), 0) << child.err();
  EXPECT_EQ(json::parse(child.out())["context"], kCache / 256);
  EXPECT_LT(child.most_memory(), static_cast<size_t>(kCache / 2));
}

TEST(Context, TooLargeContextIsAOneLineError) {
  const Finished finished = run({"run", "-m", kModel, "-p", "x", "-c", "2147483647"});
  EXPECT_EQ(finished.code, 1);
  EXPECT_EQ(std::count(finished.err.begin(), finished.err.end(), '\n'), 1) << finished.err;
}

}  // namespace
}  // namespace shoal::tools
