#include "tests/support/property.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <limits>

#include "devices/cpu/cpu_device.h"
#include "tests/support/plugin.h"
#include "tests/support/run_case.h"

namespace shoal::test {
namespace {

constexpr unsigned kSecondsForACase = 300;
constexpr std::array kDeadly{SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGALRM};

class EnoughDevices : public testing::Environment {
 public:
  void SetUp() override {
    cpu::configure("devices=20,threads=1");
    if (!plugin_is_named()) return;
    ASSERT_NE(plugin_device(), nullptr) << "the plug-in has no device";
  }
};
[[maybe_unused]] const auto* const kEnvironment = testing::AddGlobalTestEnvironment(new EnoughDevices);

int64_t from_environment(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoll(text);
}

std::string run_again(uint64_t seed) {
  const auto* test = testing::UnitTest::GetInstance()->current_test_info();
  return fmt::format("run it again: SHOAL_PROPERTY_SEED={} --gtest_filter='{}.*'", seed, test->test_suite_name());
}

/// Prints the current case if its check ends the program.
class LastWords {
 public:
  LastWords() {
    struct sigaction action = {};
    action.sa_handler = print;
    for (size_t i = 0; i < kDeadly.size(); ++i) sigaction(kDeadly[i], &action, &before_[i]);
  }
  ~LastWords() {
    alarm(0);
    for (size_t i = 0; i < kDeadly.size(); ++i) sigaction(kDeadly[i], &before_[i], nullptr);
  }
  LastWords(const LastWords&) = delete;
  LastWords& operator=(const LastWords&) = delete;

  static void are(std::string words) {
    words_ = std::move(words);
    alarm(kSecondsForACase);
  }

 private:
  /// Prints the case and restores the previous signal handlers. After this handler returns, the signal occurs again.
  static void print(int signal) {
    (void)!write(STDERR_FILENO, words_.data(), words_.size());
    for (size_t i = 0; i < kDeadly.size(); ++i) sigaction(kDeadly[i], &before_[i], nullptr);
    if (signal == SIGALRM) raise(SIGALRM);
  }

  static inline std::string words_;
  static inline std::array<struct sigaction, kDeadly.size()> before_;
};

void check_seed(const Property& property, uint64_t seed) {
  const RandomCase one = property.draw(seed);
  LastWords::are(fmt::format("\nThe program ended in case {}\n{}{}\n", seed, to_string(one), run_again(seed)));
  const std::string what = property.check(one);
  if (what.empty()) return;
  const RandomCase small = shrink(one, [&](const RandomCase& next) { return !property.check(next).empty(); });
  ADD_FAILURE() << "case " << seed << " differs: " << what << "\nshrunk: " << property.check(small) << "\n"
                << to_string(small) << run_again(seed);
}

}  // namespace

void check_property(const Property& property, int part, int parts) {
  const LastWords words;
  const int64_t only = from_environment("SHOAL_PROPERTY_SEED", -1);
  if (only >= 0) {
    if (only % parts == part) check_seed(property, static_cast<uint64_t>(only));
    return;
  }
  const auto asked = static_cast<double>(from_environment("SHOAL_PROPERTY_CASES", property.cases));
  const auto cases = static_cast<int64_t>(asked * property.share);
  const int64_t most_ranks = from_environment("SHOAL_PROPERTY_RANKS", std::numeric_limits<int>::max());
  for (int64_t seed = part; seed < cases && !testing::Test::HasFailure(); seed += parts) {
    const auto number = static_cast<uint64_t>(seed);
    if (property.draw(number).ranks <= most_ranks) check_seed(property, number);
  }
}

}  // namespace shoal::test
