// Meta devices of NULL devices: what each member is asked to do can be looked at, and nothing runs.
#include <gmock/gmock.h>

#include "collectives/factory.h"
#include "devices/null/null_device.h"
#include "tests/meta/mesh.h"

namespace shoal::meta {
namespace {

TEST(NullMembers, RecordTheStepsOfAPlanWithCollectives) {
  Device& other = Registry::instance().find_family("null")->create_device("");
  const auto device = MetaDevice::create({&Registry::instance().device("NULL0"), &other},
                                         test::callback_for({{"w", Layout::split(0, Partition::even(2, 4))}}),
                                         {.communicator = collectives::make_idle_communicator});
  test::Loaded loaded(
      "weight %w f32 [4, 4]\ninput %x f32 [4]\n%y = mul_mat(%w, %x)\n"
      "%z = unary(%y) {kind=tanh}\noutput %z\n",
      *device);
  const auto backend = device->init();
  const auto plan = backend->create_plan(loaded.graph);
  EXPECT_EQ(plan_of(*plan).count(Collective::kAllReduce), 1);
  backend->compute_async(*plan);
  backend->synchronize();
  for (Backend* member : backend->members()) {
    std::vector<std::string> computed;
    for (const null::Call& call : dynamic_cast<null::NullBackend&>(*member).calls()) {
      if (call.what == "compute") computed.push_back(call.tensor);
    }
    EXPECT_THAT(computed, testing::IsSupersetOf({"y", "z"}));
    EXPECT_EQ(computed.back(), "z");
  }
}

}  // namespace
}  // namespace shoal::meta
