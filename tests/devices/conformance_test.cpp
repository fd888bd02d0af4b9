// The conformance suites on the built-in devices. If a CTest test provides the plug-in of examples/plugin, the
// suites also run on the plug-in's device.
#include "tests/devices/conformance.h"
#include "tests/support/plugin.h"

namespace shoal::test {
namespace {

std::vector<DeviceCase> cases() {
  const auto named = [](const char* name) { return [name] { return Registry::instance().find_device(name); }; };
  return {
      {"CPU_default", named("CPU0"), "", {}},
      {"CPU_1_thread", named("CPU0"), "threads=1", {}},
      {"CPU_2_threads", named("CPU0"), "threads=2", {}},
      {"NULL",
       named("NULL0"),
       "",
       {
           {"BackendSuite.ComputesAGraph", "runs nothing"},
           {"BackendSuite.QueuedWorkRunsInOrder", "runs nothing"},
           {"BackendSuite.RunsAGraphInTwoParts", "runs nothing"},
           {"BackendSuite.PlansAGraphRepeatedly", "runs nothing"},
           {"BackendSuite.WritesCacheRowsAndReadsThemThroughViews", "runs nothing"},
           {"BackendSuite.HostTasksRunInStreamOrder", "has no thread for host tasks"},
           {"BackendSuite.KeepsFirstFailureAndSkipsLaterWork", "has no thread for host tasks"},
           {"BackendSuite.AbortCallbackDoesNotClearFailures", "has no thread for host tasks"},
           {"BackendSuite.ComputeReturnsFailuresAsStatus", "has no thread for host tasks"},
           {"BackendSuite.RunsThousandsOfSmallTasks", "has no thread for host tasks"},
           {"BackendSuite.DestructorFinishesQueuedWork", "has no thread for host tasks"},
           {"BackendSuite.CopiesToAnotherFamilyWithoutBlockingTheHost", "has no events"},
           {"BackendSuite.CopiesFromAnotherFamilyWithoutBlockingTheHost", "has no events"},
           {"BackendSuite.FailedStreamDoesNotBlockItsCopies", "has no thread for host tasks"},
           {"PlanSuite.SegmentsRunOneByOne", "runs nothing"},
           {"PlanSuite.RunsSeveralSegmentsInOneCall", "runs nothing"},
           {"PlanSuite.PlansShareAnArena", "runs nothing"},
           {"PlanSuite.ArenaMayGrowWhilePlansUseIt", "runs nothing"},
           {"PlanSuite.AbortStopsAfterAtMostOneNode", "runs nothing"},
           {"PlanSuite.PlanMovesToAGraphOfSameTopology", "makes every plan anew"},
           {"PlanSuite.PlanDoesNotMoveToOtherTopologies", "runs nothing"},
           {"PlanSuite.PlansOfRangesMoveInOrder", "makes every plan anew"},
           {"EventSuite", "has no events"},
           {"LifetimeSuite.CachedPlanIsReplacedAfterWeightsMove", "runs nothing"},
           {"LifetimeSuite.QueuedWorkReportsFreedBuffer", "has no thread for host tasks"},
       }},
  };
}

std::vector<DeviceCase> plugin_cases() {
  const Device* device = plugin_device();
  DeviceCase one{device != nullptr ? device->reg().name() : "none", plugin_device, "", {}};
  if (device != nullptr && device->reg().name() == "SIMPLE") {
    one.exclusions = {{"PlanSuite.PlanMovesToAGraphOfSameTopology", "makes every plan anew"},
                      {"PlanSuite.PlansOfRangesMoveInOrder", "makes every plan anew"}};
  }
  return {one};
}

SHOAL_INSTANTIATE_DEVICE_SUITES(Always, cases());
SHOAL_INSTANTIATE_DEVICE_SUITES(Plugin, plugin_cases());

}  // namespace
}  // namespace shoal::test
