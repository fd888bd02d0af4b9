#include "devices/cpu/settings.h"

#include <gmock/gmock.h>

#include <optional>

#include "base/error.h"
#include "devices/cpu/cpu_device.h"
#include "devices/device.h"
#include "tests/support/environment.h"

namespace shoal::cpu {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::ThrowsMessage;

/// Sets or removes all environment variables that the settings read. So the environment of the test program has no
/// effect.
struct Variables {
  using Value = test::Environment::Value;

  explicit Variables(const Value& threads = {}, const Value& slowdown = {}, const Value& devices = {})
      : environment{{"SHOAL_CPU_DEVICES", devices}, {"SHOAL_CPU_THREADS", threads}, {"SHOAL_CPU_SLOWDOWN", slowdown}} {}

  test::Environment environment;
};

std::string refusal_of(const std::string& params) {
  try {
    read_settings(params);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

TEST(CpuSettings, AreEmptyByDefault) {
  const Variables variables;
  const Settings settings = read_settings({});
  EXPECT_EQ(settings.devices, 0);
  EXPECT_THAT(settings.threads.numbers, IsEmpty());
  EXPECT_EQ(settings.threads.of(3, 0), 0);
  EXPECT_EQ(settings.slowdown.of(3, 1), 1);
}

TEST(CpuSettings, ParametersApplyToOneOrAllDevices) {
  const Variables variables;
  const Settings settings = read_settings("devices=3,threads=1+3+2,slowdown=2.5,memory=1M");
  EXPECT_EQ(settings.devices, 3);
  EXPECT_THAT(settings.threads.numbers, ElementsAre(1, 3, 2));
  EXPECT_EQ(settings.threads.of(1, 0), 3);
  EXPECT_EQ(settings.slowdown.of(0, 1), 2.5);
  EXPECT_EQ(settings.slowdown.of(2, 1), 2.5);
  EXPECT_EQ(settings.limits.memory, size_t{1} << 20);
}

TEST(CpuSettings, EnvironmentFillsMissingParameters) {
  const Variables variables("1,3", "1,2.5", "2");
  EXPECT_THAT(read_settings({}).threads.numbers, ElementsAre(1, 3));
  EXPECT_THAT(read_settings({}).slowdown.numbers, ElementsAre(1, 2.5));
  const Settings settings = read_settings("devices=3,threads=2,slowdown=1+1+4");
  EXPECT_EQ(settings.devices, 3);
  EXPECT_EQ(settings.threads.of(2, 0), 2);
  EXPECT_THAT(settings.slowdown.numbers, ElementsAre(1, 1, 4));
}

TEST(CpuSettings, ListLengthSetsTheNumberOfDevices) {
  {
    const Variables variables("1,3");
    EXPECT_EQ(devices_from_environment(), 2);
  }
  {
    const Variables variables(std::nullopt, "1,2,3");
    EXPECT_EQ(devices_from_environment(), 3);
  }
  {
    const Variables variables("4", "2");
    EXPECT_EQ(devices_from_environment(), 0) << "numbers for all devices";
  }
  const Variables variables("", "", "");
  EXPECT_EQ(devices_from_environment(), 0);
}

TEST(CpuSettings, ListLengthsMustAgree) {
  {
    const Variables variables("1,3", std::nullopt, "3");
    EXPECT_EQ(refusal_of(""),
              "environment variable SHOAL_CPU_THREADS has 2 numbers for 3 CPU devices: give one number "
              "or one per device");
  }
  {
    const Variables variables("1,3", "1,2,3");
    EXPECT_THAT(refusal_of(""), HasSubstr("SHOAL_CPU_SLOWDOWN has 3 numbers for 2 CPU devices"));
  }
  {
    const Variables variables("1,3");
    EXPECT_THAT(refusal_of("devices=5"), HasSubstr("SHOAL_CPU_THREADS has 2 numbers for 5 CPU devices"));
  }
  const Variables variables;
  EXPECT_THAT(refusal_of("devices=1,slowdown=2+2"), HasSubstr("'slowdown' has 2 numbers for 1 CPU device: give"));
}

TEST(CpuSettings, RejectsInvalidThreadCounts) {
  const Variables variables;
  for (const char* bad : {"x", "-1", "1025", "1.5", "", "3x", "1,3"}) {
    EXPECT_THAT(refusal_of(std::string("threads=") + bad), HasSubstr("parameter")) << bad;
  }
  EXPECT_EQ(read_settings("threads=0").threads.of(0, 7), 0) << "the number of cores";
  EXPECT_THAT(refusal_of("threads=1+0"),
              HasSubstr("parameter 'threads': number 2 must be a whole number from 1 to 1024, got '0'"));
  EXPECT_THAT(refusal_of("threads=1+"), HasSubstr("number 2 must be a whole number from 1 to 1024, got ''"));
}

TEST(CpuSettings, RejectsInvalidSlowdownFactors) {
  for (const char* bad : {"0.5", "0", "-3", "nan", "inf", "1e400", "2x", "fast", "1001", "1,0.99", "1,", ",1"}) {
    const Variables variables(std::nullopt, bad);
    EXPECT_THAT(refusal_of(""), HasSubstr("environment variable SHOAL_CPU_SLOWDOWN")) << bad;
    EXPECT_THAT(refusal_of(""), HasSubstr("must be a number from 1 to 1000")) << bad;
  }
  const Variables variables;
  EXPECT_THAT(refusal_of("slowdown=1+0.5"),
              HasSubstr("CPU: parameter 'slowdown': number 2 must be a number from 1 to 1000, got '0.5'"));
  for (const char* good : {"1", "1.0", "3.25", "1000"}) EXPECT_EQ(refusal_of(std::string("slowdown=") + good), "");
}

TEST(CpuSettings, DevicesUseTheSettings) {
  std::string plain;
  {
    const Variables variables(std::nullopt, std::nullopt, "2");
    configure({});
    plain = Registry::instance().device("CPU1").description();
  }
  {
    const Variables variables("1,3", "1,2.5");
    configure({});
    const auto devices = Registry::instance().find_family("CPU")->devices();
    ASSERT_EQ(devices.size(), 2U);
    EXPECT_EQ(default_threads(*devices[0]), 1);
    EXPECT_EQ(default_threads(*devices[1]), 3);
    EXPECT_THAT(devices[1]->description(), HasSubstr("slowed 2.5x"));
    EXPECT_NE(devices[1]->description(), plain) << "measurements are keyed by the description";
    EXPECT_EQ(devices[0]->description().find("slowed"), std::string::npos);
  }
  configure({});
}

}  // namespace
}  // namespace shoal::cpu
