// The conformance suites on the devices that are always there, and on the plug-in of examples/plugin where a test has
// it.
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
           {"BackendSuite.PartsOfAGraphOneAfterTheOther", "runs nothing"},
           {"BackendSuite.AGraphCanBePlannedAgain", "runs nothing"},
           {"BackendSuite.WritesIntoACacheThroughViews", "runs nothing"},
           {"BackendSuite.HostTasksRunInStreamOrder", "has no thread for host tasks"},
           {"BackendSuite.TheFirstFailureIsKeptAndLaterWorkSkipped", "has no thread for host tasks"},
           {"BackendSuite.AnAbortCallbackTakesNoFailure", "has no thread for host tasks"},
           {"BackendSuite.ComputeGivesFailuresAsStatus", "has no thread for host tasks"},
           {"BackendSuite.ThousandsOfSmallTasks", "has no thread for host tasks"},
           {"BackendSuite.ABackendFinishesItsWorkBeforeItGoes", "has no thread for host tasks"},
           {"BackendSuite.CopiesToAnotherFamilyWithoutTheHost", "has no events"},
           {"BackendSuite.CopiesFromAnotherFamilyWithoutTheHost", "has no events"},
           {"BackendSuite.AStreamThatFailedDoesNotHoldUpItsCopies", "has no thread for host tasks"},
           {"PlanSuite.SegmentsRunOneByOne", "runs nothing"},
           {"PlanSuite.SegmentsOfAllSizesAtOnce", "runs nothing"},
           {"PlanSuite.PlansTakeTurnsInAnArena", "runs nothing"},
           {"PlanSuite.AnArenaMayGrowUnderItsPlans", "runs nothing"},
           {"PlanSuite.AGraphIsStoppedWithinANode", "runs nothing"},
           {"PlanSuite.APlanMovesToAGraphOfItsTopology", "makes every plan anew"},
           {"PlanSuite.APlanStaysWhereTheTopologyIsAnother", "runs nothing"},
           {"PlanSuite.RangesMoveOneAfterTheOther", "makes every plan anew"},
           {"EventSuite", "has no events"},
           {"LifetimeSuite.APlanThatIsKeptIsMadeAnewForWeightsPlacedAnew", "runs nothing"},
           {"LifetimeSuite.QueuedWorkSaysThatItsBufferHasGone", "has no thread for host tasks"},
       }},
  };
}

std::vector<DeviceCase> plugin_cases() {
  const Device* device = plugin_device();
  DeviceCase one{device != nullptr ? device->reg().name() : "none", plugin_device, "", {}};
  if (device != nullptr && device->reg().name() == "SIMPLE") {
    one.exclusions = {{"PlanSuite.APlanMovesToAGraphOfItsTopology", "makes every plan anew"},
                      {"PlanSuite.RangesMoveOneAfterTheOther", "makes every plan anew"}};
  }
  return {one};
}

SHOAL_INSTANTIATE_DEVICE_SUITES(Always, cases());
SHOAL_INSTANTIATE_DEVICE_SUITES(Plugin, plugin_cases());

}  // namespace
}  // namespace shoal::test
