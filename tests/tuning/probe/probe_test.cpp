// Measures real devices. The tests check relations between measurements instead of exact values.
#include "tuning/probe/probe.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "base/error.h"
#include "devices/cpu/cpu_device.h"
#include "devices/cpu/topology.h"
#include "meta/meta.h"
#include "tuning/probe/other_programs.h"
#include "tuning/probe/probe_device.h"
#include "tuning/probe/probe_links.h"
#include "tuning/probe/probe_trial.h"

namespace shoal::probe {
namespace {

using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <class E>
std::string message_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const E& error) {
    return error.what();
  }
  return "nothing thrown";
}

ProbeOptions quick() {
  ProbeOptions options;
  options.quick = true;
  options.dtypes = {DType::kQ8_0};
  options.others = [] { return 0.0; };  // the probe ignores programs that run at the same time as the tests
  return options;
}

void expect_sane(const ProductModel& product) {
  for (const auto* points : {&product.streamed, &product.cached}) {
    for (size_t i = 0; i < points->size(); ++i) {
      EXPECT_GT((*points)[i].seconds, 0);
      if (i > 0) {
        EXPECT_GT((*points)[i].columns, (*points)[i - 1].columns);
      }
    }
  }
  ASSERT_FALSE(product.streamed.empty());
  // A product with 512 columns is 512 times the work of a product with one column.
  EXPECT_GT(product.streamed.back().seconds, 2 * product.streamed.front().seconds);
}

void expect_sane(const DeviceModel& device) {
  EXPECT_GT(device.bandwidth, 0) << device.name;
  EXPECT_GE(device.cache_bytes, 0);
  EXPECT_GT(device.activation_bandwidth, 0);
  EXPECT_GT(device.attention_rate, 0);
  EXPECT_GT(device.attention_bandwidth, 0);
  EXPECT_GE(device.op_seconds, 0);
  EXPECT_LT(device.op_seconds, 1);
  EXPECT_GE(device.step_seconds, 0);
  EXPECT_GE(device.run_seconds, 0);
  EXPECT_GT(device.memory, 0u);
  ASSERT_EQ(device.products.size(), 1u);
  expect_sane(device.products.at("q8_0"));
}

/// Bytes of weights that a product with one column reads per second.
double read_rate(const DeviceModel& device) {
  const DTypeTraits& t = traits(DType::kQ8_0);
  return static_cast<double>(t.block_bytes) / t.block_elems / device.products.at("q8_0").streamed[0].seconds;
}

TEST(Probe, FillsWeightsOfEveryTypeWithFiniteNumbers) {
  Device& device = *Registry::instance().device_list("CPU0").front();
  for (const DType dtype : machine::weight_dtypes()) {
    TrialLeaves leaves(device);
    const Tensor& weights = *leaves.add(dtype, {256, 16, 1, 1}, Role::kWeight);
    leaves.place();
    std::vector<std::byte> bytes(weights.bytes());
    tensor_get(weights, bytes.data(), 0, bytes.size());
    std::vector<float> values(256 * 16);
    traits(dtype).to_f32(bytes.data(), values.data(), static_cast<int64_t>(values.size()));
    EXPECT_TRUE(std::ranges::all_of(values, [](float value) { return std::isfinite(value); })) << name_of(dtype);
    EXPECT_TRUE(std::ranges::any_of(values, [](float value) { return value != 0; })) << name_of(dtype);
  }
}

TEST(Probe, MeasuresDevicesDomainsAndCollectives) {
  cpu::configure("devices=2,threads=1");
  const std::vector<Device*> devices = Registry::instance().device_list("CPU0,CPU1");
  ProbeOptions options = quick();
  std::vector<int> seen;
  int all = 0;
  options.progress = [&](int done, int total, const std::string& what) {
    EXPECT_FALSE(what.empty());
    seen.push_back(done);
    all = total;
  };
  const MachineModel machine = probe(devices, options);
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end(), std::less_equal<>()));
  ASSERT_FALSE(seen.empty());
  EXPECT_EQ(seen.back() + 1, all);

  ASSERT_EQ(machine.devices.size(), 2u);
  for (const DeviceModel& device : machine.devices) expect_sane(device);
  EXPECT_EQ(machine.devices[1].name, "CPU1");
  EXPECT_EQ(machine.devices[0].cores, 1);
  EXPECT_EQ(machine.devices[0].identity, probe_identity(*devices[0], 0));

  ASSERT_GE(machine.domains.size(), 1u);
  if (machine.domains.size() == 1) {  // the read rate of the domain is at most the sum of the devices' rates
    const Domain& domain = machine.domains[0];
    EXPECT_LE(domain.cores, 2);
    EXPECT_GT(domain.cores, 0);
    double alone = 0;
    for (const DeviceModel& device : machine.devices) alone += read_rate(device);
    EXPECT_LE(domain.bandwidth, 1.000001 * alone);
    EXPECT_GT(domain.bandwidth, 0);
  }

  ASSERT_EQ(machine.collectives.size(), 1u);
  for (const CollectiveTable& table : machine.collectives) {
    EXPECT_THAT(table.members, ElementsAre("CPU0", "CPU1"));
    ASSERT_GE(table.points.size(), 3u);
    EXPECT_GT(table.points.front().seconds, 0);
    EXPECT_LT(table.points.front().bytes, table.points.back().bytes);
    EXPECT_GE(table.points.back().bytes, 1 << 20);
  }
  EXPECT_GT(machine.copy_latency, 0);
  EXPECT_GT(machine.copy_bandwidth, 0);
  EXPECT_EQ(machine::parse_machine(to_json(machine), "the probe"), machine);
  cpu::configure("");
}

TEST(Probe, UsesRequestedThreads) {
  cpu::configure("devices=1");
  Device& device = Registry::instance().device("CPU0");
  EXPECT_EQ(probe_params(device, 3), "threads=3");
  EXPECT_EQ(probe_params(device, 0), fmt::format("threads={}", cpu::default_threads(device)));
  EXPECT_NE(probe_identity(device, 3), probe_identity(device, 2));
  EXPECT_EQ(probe_params(Registry::instance().device("NULL0"), 3), "");
  cpu::configure("");
}

TEST(Probe, CallbacksCanStopProbe) {
  cpu::configure("devices=1,threads=1");
  const std::vector<Device*> devices = Registry::instance().device_list("CPU0");
  ProbeOptions options = quick();
  struct Stop {};
  const int uses = devices[0]->reg().uses();
  options.progress = [](int done, int, const std::string&) {
    if (done == 1) throw Stop{};
  };
  EXPECT_THROW(probe(devices, options), Stop);
  EXPECT_EQ(devices[0]->reg().uses(), uses);  // the probe has released everything that it allocated

  // The probe also polls within its first part, which consists of many measurement series.
  int parts = 0, polls = 0;
  options.progress = [&](int, int, const std::string&) { ++parts; };
  options.poll = [&] {
    if (++polls == 20) throw Stop{};
  };
  EXPECT_THROW(probe(devices, options), Stop);
  EXPECT_EQ(parts, 1);
  EXPECT_EQ(polls, 20);
  EXPECT_EQ(devices[0]->reg().uses(), uses);
  poll();
  EXPECT_EQ(polls, 20) << "poll is no longer called";
  cpu::configure("");
}

TEST(Probe, RejectsInvalidDevicesAndDtypes) {
  cpu::configure("devices=2,threads=1");
  const std::vector<Device*> devices = Registry::instance().device_list("CPU0,CPU1");
  const auto refused = [&](std::vector<Device*> list, const ProbeOptions& options) {
    return message_of<InvalidArgument>([&] { probe(list, options); });
  };
  EXPECT_THAT(refused({}, quick()), HasSubstr("expected at least one device, got none"));
  EXPECT_THAT(refused({devices[0], devices[0]}, quick()), HasSubstr("CPU0 is listed twice"));
  ProbeOptions integers = quick();
  integers.dtypes = {DType::kI32};
  EXPECT_THAT(refused(devices, integers), HasSubstr("weights cannot be of type i32"));
  const auto both = meta::MetaDevice::create(devices, [](const Tensor&) { return meta::SplitState(); });
  EXPECT_THAT(refused({both.get()}, quick()), HasSubstr("META(CPU0,CPU1) is a meta device"));
}

TEST(Probe, ErrorNamesFailedDevice) {
  cpu::configure("devices=1,threads=1,max_size=64K");
  const auto failed = [](Device& device) {
    return message_of<DeviceError>([&] {
      Device* one = &device;
      probe({&one, 1}, quick());
    });
  };
  EXPECT_THAT(failed(Registry::instance().device("CPU0")), HasSubstr("CPU0"));
  cpu::configure("");
  BackendReg& family = *Registry::instance().find_family("NULL");
  const std::string text = failed(family.create_device("fail_alloc_after=1M"));
  EXPECT_THAT(text, ContainsRegex("^\\[NULL.*\\] out of memory: .* free: release memory on the device, or omit"));
}

TEST(Probe, ChecksMemoryBeforeMeasuring) {
  cpu::configure("devices=1,threads=1,memory=7M");
  Device& small = Registry::instance().device("CPU0");
  const std::vector<Device*> devices{&Registry::instance().device("NULL0"), &small};
  ProbeOptions options = quick();
  options.progress = [](int, int, const std::string& what) { FAIL() << what; };
  EXPECT_EQ(message_of<OutOfMemory>([&] { probe(devices, options); }),
            "[CPU0] cannot be measured: 8.2 MiB are needed, but 7.0 MiB are free: release memory on the device, or "
            "omit the device");
  cpu::configure("");
}

TEST(Probe, ErrorNamesDevicesThatFailTogether) {
  cpu::configure("devices=2,threads=1");
  const std::vector<Device*> devices = Registry::instance().device_list("CPU0,CPU1");
  ProbeOptions options = quick();
  options.progress = [](int, int, const std::string& what) {
    if (what.find("collectives") != std::string::npos) setenv("SHOAL_COMM", "nothing-like-it", 1);
  };
  const std::string text = message_of<InvalidArgument>([&] { probe(devices, options); });
  unsetenv("SHOAL_COMM");
  EXPECT_THAT(text, HasSubstr("[CPU0,CPU1] cannot be measured: "));
  EXPECT_THAT(text, HasSubstr("SHOAL_COMM"));
  cpu::configure("");
}

TEST(Probe, ReportsLoadOfOtherPrograms) {
  cpu::configure("devices=1,threads=1,memory=96M");
  Device* device = &Registry::instance().device("CPU0");
  ProbeOptions options = quick();
  double used = 0;
  options.others = [&] { return std::exchange(used, 1e6); };
  const MachineModel machine = probe({&device, 1}, options);
  EXPECT_THAT(machine.disturbance, ContainsRegex("^other programs kept [0-9.]+ cores busy$"));
  EXPECT_EQ(machine::parse_machine(to_json(machine), "the probe"), machine);
  expect_sane(machine.devices[0]);
  EXPECT_EQ(probe({&device, 1}, quick()).disturbance, "");
  const double before = other_programs();
  EXPECT_GE(other_programs(), before - 0.1) << "monotonic up to the system's clock ticks";
  cpu::configure("");
}

TEST(Probe, DevicesWithEqualIdentitiesShareMeasurements) {
  cpu::configure("devices=3,threads=1,memory=96M,slowdown=1+1+5");
  const std::vector<Device*> devices = Registry::instance().device_list("CPU0,CPU1,CPU2");
  const MachineModel machine = probe(devices, quick());
  EXPECT_EQ(machine.devices[0].products, machine.devices[1].products);
  EXPECT_EQ(machine.devices[0].op_seconds, machine.devices[1].op_seconds);
  EXPECT_EQ(machine.devices[1].name, "CPU1");
  EXPECT_NE(machine.devices[0].identity, machine.devices[2].identity);
  const auto seconds = [&](size_t i) { return machine.devices[i].products.at("q8_0").streamed.back().seconds; };
  EXPECT_GT(seconds(2), 2 * seconds(0));
  cpu::configure("");
}

TEST(ProbeDevice, FindsSmallestWorkingSetBeyondCaches) {
  const std::vector<ReadRate> rates{{1e6, 30e9}, {2e6, 31e9}, {4e6, 22e9}, {8e6, 10.5e9}, {16e6, 10.2e9}, {32e6, 10e9}};
  EXPECT_EQ(least_beyond_caches(rates), 8'000'000u);
  const std::vector<ReadRate> falling{{1e6, 30e9}, {2e6, 20e9}, {4e6, 10e9}, {8e6, 10e9}};
  EXPECT_EQ(least_beyond_caches(falling), 4'000'000u);
  const std::vector<ReadRate> uneven{{1e6, 10e9}, {2e6, 12e9}, {4e6, 10e9}, {8e6, 10e9}};
  EXPECT_EQ(least_beyond_caches(uneven), 4'000'000u) << "the working set of 2 MB is still in caches";
  const std::vector<ReadRate> disturbed{{1e6, 30e9}, {2e6, 10e9}, {4e6, 10e9}, {8e6, 5e9}};
  EXPECT_EQ(memory_rate(disturbed), 10e9);
  EXPECT_EQ(least_beyond_caches(disturbed), 2'000'000u);
  const std::vector<ReadRate> flat{{1e6, 10e9}, {2e6, 10e9}};
  EXPECT_EQ(least_beyond_caches(flat), 1'000'000u);
  EXPECT_EQ(least_beyond_caches(std::vector<ReadRate>{{1e6, 10e9}}), 1'000'000u);
}

TEST(ProbeDevice, WorkingSetExceedsKnownCaches) {
  cpu::configure("devices=1");
  Device& all = Registry::instance().device("CPU0");
  const size_t known = most_cache(all);
  EXPECT_EQ(beyond_caches(all), 4 * known);
  EXPECT_LT(known, size_t{8} << 30);
  const std::vector<int> cores = cpu::cores_of(all);
  EXPECT_LE(cpu::cache_bytes(std::span(cores).first(1)), known);
  EXPECT_EQ(cpu::cache_bytes({}), 0u);
  EXPECT_EQ(cpu::cache_bytes(cores), known);
  cpu::configure("");
}

TEST(ProbeTrial, MedianIsMiddleValue) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({5}), 5);
  EXPECT_EQ(median({9, 1, 1, 1, 9}), 1);
}

TEST(ProbeTrial, PollsBeforeEverySample) {
  int polls = 0, samples = 0;
  const std::function<void()> outer = [&] { ++polls; }, none;
  const PollScope polled(outer);
  const auto sample = [&] {
    EXPECT_EQ(++samples, polls);
    return 1.0;
  };
  repeat_for(0, sample);
  EXPECT_EQ(samples, 3);
  {
    const PollScope inner(none);
    poll();
  }
  EXPECT_EQ(polls, 3);
  poll();
  EXPECT_EQ(polls, 4);
}

TEST(ProbeTrial, RepeatsThreeToOneThousandTimes) {
  int calls = 0;
  const auto one = [&] { return static_cast<double>(++calls); };
  EXPECT_EQ(repeat_for(0, one), 2);
  EXPECT_EQ(calls, 3);
  calls = 0;
  repeat_for(1e9, one);
  EXPECT_LE(calls, 1000);
}

/// A machine of devices with these identities. Each device has its own domain.
MachineModel devices_of(const std::vector<std::string>& identities) {
  MachineModel machine;
  for (size_t i = 0; i < identities.size(); ++i) {
    DeviceModel& device = machine.devices.emplace_back();
    device.name = "D" + std::to_string(i);
    device.identity = identities[i];
    device.domain = static_cast<int>(i);
  }
  return machine;
}

MachineModel alike(size_t count) {
  return devices_of(std::vector<std::string>(count, "alike"));
}

TEST(ProbeLinks, MeasuresAllSetsIfDevicesAreFew) {
  EXPECT_TRUE(member_sets(alike(1)).empty());
  EXPECT_THAT(member_sets(alike(2)), ElementsAre(ElementsAre(0, 1)));
  EXPECT_THAT(member_sets(alike(3)),
              ElementsAre(ElementsAre(0, 1), ElementsAre(0, 2), ElementsAre(1, 2), ElementsAre(0, 1, 2)));
  EXPECT_EQ(member_sets(alike(4)).size(), 11u);
  const auto six = member_sets(alike(6));
  EXPECT_THAT(six, ElementsAre(ElementsAre(0, 1), ElementsAre(0, 1, 2, 3), ElementsAre(0, 1, 2, 3, 4, 5)));
}

TEST(ProbeLinks, MeasuresSetsOfEqualDevicesAndMixedSets) {
  std::vector<std::string> identities(9, "gpu");
  identities[0] = "host";
  EXPECT_THAT(
      member_sets(devices_of(identities)),
      ElementsAre(ElementsAre(1, 2), ElementsAre(1, 2, 3, 4), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8), ElementsAre(0, 1),
                  ElementsAre(0, 1, 2), ElementsAre(0, 1, 2, 3, 4), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8)));
  EXPECT_THAT(member_sets(devices_of({"host", "a", "a", "b", "b"})),
              ElementsAre(ElementsAre(1, 2), ElementsAre(3, 4), ElementsAre(0, 1, 3), ElementsAre(0, 1, 2, 3, 4)));
}

TEST(ProbeLinks, MeasuresCopiesOfRepresentativePairs) {
  using ::testing::Pair;
  EXPECT_TRUE(copy_pairs(alike(1)).empty());
  MachineModel machine = alike(4);
  EXPECT_THAT(copy_pairs(machine), ElementsAre(Pair(0, 1)));
  machine.devices[3].type = DeviceType::kGpu;
  EXPECT_THAT(copy_pairs(machine), ElementsAre(Pair(0, 3)));
  machine.devices[2].type = DeviceType::kGpu;
  EXPECT_THAT(copy_pairs(machine), ElementsAre(Pair(2, 3), Pair(0, 2)));
  for (DeviceModel& device : machine.devices) device.type = DeviceType::kGpu;
  EXPECT_THAT(copy_pairs(machine), ElementsAre(Pair(0, 1)));
}

}  // namespace
}  // namespace shoal::probe
