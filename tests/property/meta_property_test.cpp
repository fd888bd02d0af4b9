// Random graphs x random split states x 1-16 ranks: the meta device gives what one device gives.
//
// SHOAL_PROPERTY_CASES=N   cases in all (default 2000)
// SHOAL_PROPERTY_SEED=S    just this case, as a failure prints it
#include <gtest/gtest.h>

#include <cstdlib>

#include "devices/cpu/cpu_device.h"
#include "tests/support/run_case.h"

namespace shoal::test {
namespace {

constexpr int kShards = 20;  // so that ctest can run parts at the same time

int64_t from_environment(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoll(text);
}

class Sixteen : public testing::Environment {
 public:
  void SetUp() override { cpu::configure("devices=16,threads=1"); }
};
[[maybe_unused]] const auto* const kEnvironment = testing::AddGlobalTestEnvironment(new Sixteen);

std::vector<Device*> devices() {
  std::vector<Device*> found;
  for (int i = 0; i < 16; ++i) found.push_back(&Registry::instance().device("CPU" + std::to_string(i)));
  return found;
}

void run_seed(uint64_t seed, std::span<Device* const> members) {
  const RandomCase one = random_case(seed);
  const std::string what = check_case(one, members);
  if (what.empty()) return;
  const RandomCase small = shrink(one, [&](const RandomCase& next) { return !check_case(next, members).empty(); });
  ADD_FAILURE() << "case " << seed << " differs: " << what << "\nshrunk: " << check_case(small, members) << "\n"
                << to_string(small) << "run it again: SHOAL_PROPERTY_SEED=" << seed;
}

class MetaProperty : public testing::TestWithParam<int> {};

TEST_P(MetaProperty, EqualsOneDevice) {
  const auto members = devices();
  const int64_t only = from_environment("SHOAL_PROPERTY_SEED", -1);
  if (only >= 0) {
    if (only % kShards == GetParam()) run_seed(static_cast<uint64_t>(only), members);
    return;
  }
  const int64_t cases = from_environment("SHOAL_PROPERTY_CASES", 2000);
  for (int64_t seed = GetParam(); seed < cases && !HasFailure(); seed += kShards) {
    run_seed(static_cast<uint64_t>(seed), members);
  }
}

INSTANTIATE_TEST_SUITE_P(Random, MetaProperty, testing::Range(0, kShards));

TEST(RandomCases, CoverEveryOp) {
  std::string all;
  for (uint64_t seed = 0; seed < 300; ++seed) all += random_case(seed).graph;
  for (const char* op : {"get_rows", "set_rows",   "mul_mat(", "mul_mat_id", "add",     "sub",      "mul(",
                         "div",      "scale",      "unary",    "clamp",      "glu",     "rms_norm", "layer_norm",
                         "soft_max", "rope",       "sum_rows", "argmax",     "top_k",   "argsort",  "attention",
                         "cast",     "contiguous", "concat",   "repeat",     "reshape", "slice",    "permute"}) {
    EXPECT_NE(all.find(op), std::string::npos) << op;
  }
}

}  // namespace
}  // namespace shoal::test
