// The context that nobody asked for by a number: as large as memory allows, and no memory for what is not used.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/models/synthetic_model.h"
#include "tests/support/sanitized.h"
#include "tests/tools/child.h"

namespace shoal::tools {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

/// Trained for a context whose cache takes `bytes`: keys and values of 2 layers, 2 heads of 16 f16 numbers.
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

/// More than any machine has, in tokens that models can have.
constexpr int64_t kTooMuch = int64_t{256} * ((int64_t{1} << 30) - 1);

TEST(Context, ShrinksByItselfToWhatFits) {
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

TEST(Context, ThatIsAskedForIsNotChanged) {
  const std::string model = model_trained_for(kTooMuch);
  const Finished asked = run_of(model, {"-c", fmt::format("{}", kTooMuch / 256)});
  EXPECT_EQ(asked.code, 1);
  EXPECT_THAT(asked.err, HasSubstr("CPU0 needs 256."));
  EXPECT_EQ(std::count(asked.err.begin(), asked.err.end(), '\n'), 1) << asked.err;
  const Finished possible = run_of(model, {"-c", "5000"});
  EXPECT_EQ(json::parse(possible.out)["context"], 5000);
  EXPECT_EQ(possible.err, "");
}

TEST(Context, ThatIsAskedForWithALimitIsFitted) {
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

TEST(Context, IsTheLeastWhereTheMarginCannotBeHad) {
  const std::string model = model_trained_for(kTooMuch);
  const std::vector<std::string> margin{"--fit-target", "1000000000", "--fit-ctx", "100"};
  const Finished by_itself = run_of(model, margin);
  ASSERT_EQ(by_itself.code, 0) << by_itself.err;
  EXPECT_EQ(json::parse(by_itself.out)["context"], 100);
  EXPECT_THAT(by_itself.err, HasSubstr("shoal: context 100 instead of"));
  const Finished asked_for = run_of(model, {"--fit", "on", "--fit-target", "1000000000", "--fit-ctx", "100"});
  EXPECT_EQ(asked_for.code, 1);
  EXPECT_THAT(asked_for.err, HasSubstr("not even a context of 100 fits (--fit-ctx 100): CPU0 needs "));
  EXPECT_THAT(asked_for.err, HasSubstr("must keep 953.7 TiB free (--fit-target)"));
}

TEST(Context, TakesNoMemoryForTokensThatDoNotCome) {
  if (test::kSanitized) GTEST_SKIP() << "sanitizers have memory of their own";
  constexpr int64_t kCache = int64_t{1} << 30;
  const std::string model = model_trained_for(kCache);
  Child child({"run", "-m", model, "--prompt-tokens", "1,2,3", "-n", "2", "--output", "json", "--fit", "off"});
  EXPECT_EQ(child.wait(), 0) << child.err();
  EXPECT_EQ(json::parse(child.out())["context"], kCache / 256);
  EXPECT_LT(child.most_memory(), static_cast<size_t>(kCache / 2));
}

TEST(Context, BeyondWhatFitsIsOneLine) {
  const Finished finished = run({"run", "-m", kModel, "-p", "x", "-c", "2147483647"});
  EXPECT_EQ(finished.code, 1);
  EXPECT_EQ(std::count(finished.err.begin(), finished.err.end(), '\n'), 1) << finished.err;
}

}  // namespace
}  // namespace shoal::tools
