// Figures of real devices: what physics says of them, not how large they are.
#include "meta/probe.h"

#include <gmock/gmock.h>

#include "devices/cpu/cpu_device.h"
#include "graph/error.h"
#include "meta/meta_device.h"
#include "meta/probe_links.h"
#include "meta/probe_trial.h"

namespace shoal::meta {
namespace {

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
  // 512 times the work.
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

TEST(Probe, MeasuresDevicesAndWhatTheyShare) {
  cpu::configure("devices=2,threads=1");
  const std::vector<Device*> devices = Registry::instance().device_list("CPU0,CPU1");
  const MachineModel machine = probe(devices, quick());
  ASSERT_EQ(machine.devices.size(), 2u);
  for (const DeviceModel& device : machine.devices) expect_sane(device);
  EXPECT_EQ(machine.devices[1].name, "CPU1");
  EXPECT_EQ(machine.devices[0].cores, 1);
  EXPECT_EQ(machine.devices[0].identity, probe_identity(*devices[0], 0));

  ASSERT_GE(machine.domains.size(), 1u);
  if (machine.domains.size() == 1) {  // no more together than each alone, and no less than the slower one
    const Domain& domain = machine.domains[0];
    EXPECT_LE(domain.cores, 2);
    EXPECT_GT(domain.cores, 0);
    EXPECT_LE(domain.bandwidth, machine.devices[0].bandwidth + machine.devices[1].bandwidth);
    EXPECT_GT(domain.bandwidth, 0);
  }

  ASSERT_EQ(machine.collectives.size(), 2u);
  for (const CollectiveTable& table : machine.collectives) {
    EXPECT_THAT(table.members, ElementsAre("CPU0", "CPU1"));
    ASSERT_GE(table.points.size(), 3u);
    EXPECT_GT(table.points.front().seconds, 0);
    EXPECT_LT(table.points.front().bytes, table.points.back().bytes);
    EXPECT_GE(table.points.back().bytes, 1 << 20);
  }
  ASSERT_EQ(machine.runs.size(), 1u);
  EXPECT_GT(machine.runs[0].seconds, 0);
  EXPECT_GT(machine.copy_latency, 0);
  EXPECT_GT(machine.copy_bandwidth, 0);
  EXPECT_EQ(machine.algorithms.size(), 1u);
  EXPECT_EQ(parse_machine(to_json(machine), "the probe"), machine);
  cpu::configure("");
}

TEST(Probe, ToldThreadsAreUsed) {
  cpu::configure("devices=1");
  Device& device = Registry::instance().device("CPU0");
  EXPECT_EQ(probe_params(device, 3), "threads=3");
  EXPECT_EQ(probe_params(device, 0), fmt::format("threads={}", cpu::default_threads(device)));
  EXPECT_NE(probe_identity(device, 3), probe_identity(device, 2));
  EXPECT_EQ(probe_params(Registry::instance().device("NULL0"), 3), "");
  cpu::configure("");
}

TEST(Probe, SaysWhatComes) {
  cpu::configure("devices=1,threads=1");
  const std::vector<Device*> devices = Registry::instance().device_list("CPU0");
  ProbeOptions options = quick();
  std::vector<int> seen;
  int all = 0;
  options.progress = [&](int done, int total, const std::string& what) {
    EXPECT_FALSE(what.empty());
    seen.push_back(done);
    all = total;
  };
  probe(devices, options);
  ASSERT_FALSE(seen.empty());
  for (size_t i = 1; i < seen.size(); ++i) EXPECT_EQ(seen[i], seen[i - 1] + 1);
  EXPECT_EQ(seen.back() + 1, all);

  struct Stop {};
  const int uses = devices[0]->reg().uses();
  options.progress = [](int done, int, const std::string&) {
    if (done == 1) throw Stop{};
  };
  EXPECT_THROW(probe(devices, options), Stop);
  EXPECT_EQ(devices[0]->reg().uses(), uses);  // nothing is left behind
  cpu::configure("");
}

TEST(Probe, RefusesWhatCannotBeMeasured) {
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
  const auto both = MetaDevice::create(devices, [](const Tensor&) { return SplitState(); });
  EXPECT_THAT(refused({both.get()}, quick()), HasSubstr("META(CPU0,CPU1) stands for several devices"));
}

TEST(Probe, NamesADeviceThatFails) {
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
  EXPECT_THAT(text, HasSubstr("NULL"));
}

TEST(ProbeTrial, MedianIsTheMiddleOne) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({5}), 5);
  EXPECT_EQ(median({9, 1, 1, 1, 9}), 1);
}

TEST(ProbeTrial, RepeatsAtLeastThreeTimesAndWithinReason) {
  int calls = 0;
  const auto one = [&] { return static_cast<double>(++calls); };
  EXPECT_EQ(repeat_for(0, one), 2);
  EXPECT_EQ(calls, 3);
  calls = 0;
  repeat_for(1e9, one);
  EXPECT_LE(calls, 1000);
}

TEST(ProbeLinks, SetsOfFewDevicesAreAllSetsOfManySomeOfThem) {
  EXPECT_TRUE(member_sets(1).empty());
  EXPECT_THAT(member_sets(2), ElementsAre(ElementsAre(0, 1)));
  EXPECT_THAT(member_sets(3),
              ElementsAre(ElementsAre(0, 1), ElementsAre(0, 2), ElementsAre(1, 2), ElementsAre(0, 1, 2)));
  EXPECT_EQ(member_sets(4).size(), 11u);
  const auto six = member_sets(6);
  EXPECT_THAT(six, ElementsAre(ElementsAre(0, 1), ElementsAre(0, 1, 2, 3), ElementsAre(0, 1, 2, 3, 4, 5)));
}

TEST(ProbeLinks, TheFittedAlgorithmGivesTheMeasuredPoints) {
  // 2 us + 1 us for each other rank, 10 GB/s.
  const auto table = [](int ranks) {
    CollectiveTable table{std::vector<std::string>(static_cast<size_t>(ranks), "D"), Op::kAllReduce, {}};
    for (const double bytes : {0.0, 1e6}) {
      table.points.push_back({bytes, 2e-6 + 1e-6 * (ranks - 1) + 2.0 * (ranks - 1) / ranks * bytes / 10e9});
    }
    return table;
  };
  const std::vector<CollectiveTable> tables{table(2), table(4)};
  const auto fitted = fit_algorithms(tables);
  ASSERT_EQ(fitted.size(), 1u);
  EXPECT_NEAR(fitted[0].latency, 2e-6, 1e-9);
  EXPECT_NEAR(fitted[0].latency_per_rank, 1e-6, 1e-9);
  EXPECT_NEAR(fitted[0].bandwidth, 10e9, 1e6);
  EXPECT_TRUE(fit_algorithms({}).empty());
}

}  // namespace
}  // namespace shoal::meta
