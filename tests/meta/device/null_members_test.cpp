// Tests of meta devices whose members are NULL devices. A NULL device computes nothing and records its calls.
#include <gmock/gmock.h>

#include "collectives/communicator.h"
#include "tests/meta/mesh.h"
#include "tests/support/null/null_device.h"

namespace shoal::meta {
namespace {

/// A communicator that checks its calls and exchanges no data.
class IdleCommunicator final : public collectives::Communicator {
 public:
  explicit IdleCommunicator(size_t ranks) : ranks_(static_cast<int>(ranks)) {}
  std::string_view name() const override { return "idle"; }
  int size() const override { return ranks_; }
  size_t buffer_bytes(int) const override { return 0; }
  void abort(std::string_view) override {}
  void enqueue(int rank, const collectives::Call& call) override { validate(rank, call); }

 private:
  const int ranks_;
};

std::unique_ptr<collectives::Communicator> make_idle_communicator(std::span<Backend* const> ranks,
                                                                  const collectives::Options&) {
  return std::make_unique<IdleCommunicator>(ranks.size());
}

TEST(NullMembers, RecordStepsOfPlanWithCollectives) {
  Device& other = Registry::instance().find_family("null")->create_device("");
  const auto device = MetaDevice::create({&Registry::instance().device("NULL0"), &other},
                                         test::callback_for({{"w", Layout::split(0, Partition::even(2, 4))}}),
                                         {.communicator = make_idle_communicator});
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
