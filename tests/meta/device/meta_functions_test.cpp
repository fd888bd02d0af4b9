#include <gmock/gmock.h>

#include <utility>

#include "base/error.h"
#include "collectives/factory.h"
#include "devices/allocate.h"
#include "devices/cpu/cpu_backend.h"
#include "graph/ops/ops.h"
#include "meta/device/meta_family.h"
#include "meta/meta.h"
#include "tests/devices/cpu_configuration.h"

namespace shoal::meta {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

class MetaFunctions : public testing::Test {
 protected:
  MetaFunctions() : cpus_(Registry::instance().device_list("CPU0,CPU1,CPU2")) {}
  std::unique_ptr<MetaDevice> mirrored(std::vector<Device*> devices, MetaOptions options = {}) {
    return MetaDevice::create(std::move(devices), [](const Tensor&) { return SplitState::mirrored(); }, options);
  }
  test::CpuConfiguration configuration_{"devices=3"};
  std::vector<Device*> cpus_;
};

TEST_F(MetaFunctions, SetThreadsOfAllMembers) {
  const auto device = mirrored(cpus_);
  const auto backend = device->init("threads=1");
  Graph graph;
  graph.output(scale(graph, graph.input("x", DType::kF32, {8, 1, 1, 1}), {2.0f, 0.0f}));
  EXPECT_EQ(backend->compute(graph), Status::kSuccess);
  find_function(family(), functions::kSetThreads)(*backend, 2);
  EXPECT_EQ(backend->plans().size(), 0u);
  for (Backend* member : backend->members()) EXPECT_EQ(dynamic_cast<cpu::CpuBackend&>(*member).threads(), 2);
  EXPECT_EQ(backend->compute(graph), Status::kSuccess);
}

TEST_F(MetaFunctions, RefuseThreadCountIfNoMemberSupportsThreadCounts) {
  const auto device = mirrored({Registry::instance().find_device("NULL0")});
  const auto backend = device->init();
  EXPECT_THAT([&] { find_function(family(), functions::kSetThreads)(*backend, 2); },
              ThrowsMessage<InvalidArgument>(HasSubstr("META(NULL0) has a thread count")));
}

TEST_F(MetaFunctions, SplitBufferTypeDividesRowsByShares) {
  const auto split = find_function(family(), functions::kSplitBufferType);
  const std::vector<double> shares{1, 0, 3}, even{1, 1, 1};
  BufferType& type = split(cpus_, shares);
  EXPECT_EQ(&split(cpus_, shares), &type);
  EXPECT_NE(&split(cpus_, even), &type);
  TensorContext context;
  Tensor* weight = context.add("weight", DType::kF32, {8, 12, 1, 1});
  const auto buffer = allocate_tensors(context.tensors(), type, Usage::kWeights);
  EXPECT_EQ(shard(*weight, 0).shape[1], 3);
  EXPECT_EQ(shard(*weight, 1).shape[1], 0);
  EXPECT_EQ(shard(*weight, 2).shape[1], 9);
  EXPECT_THROW(split(cpus_, std::span(shares).first(2)), InvalidArgument);
  const std::vector<double> nothing{0, 0, 0}, negative{1, -1, 1};
  EXPECT_THROW(split(cpus_, nothing), InvalidArgument);
  EXPECT_THROW(split(cpus_, negative), InvalidArgument);
}

TEST_F(MetaFunctions, EachMemberCountsAsUserOfItsFamily) {
  const BackendReg& cpu = *Registry::instance().find_family("CPU");
  const int before = cpu.uses();
  {
    const auto device = mirrored(cpus_);
    EXPECT_EQ(cpu.uses(), before + 3);
  }
  EXPECT_EQ(cpu.uses(), before);
}

/// A device family that has a communicator. The devices of class Borrowed belong to this family.
class Offering final : public BackendReg {
 public:
  std::string name() const override { return "OFFERING"; }
  std::span<Device* const> devices() const override { return {}; }
  void* function(std::string_view name) const override {
    return name == functions::kCommunicatorFactory ? &offer : nullptr;
  }
  static inline int made = 0;
  static inline collectives::FamilyFactory offer{
      collectives::class_sizes(), [](std::span<Backend* const> ranks, const collectives::Options& options) {
        ++made;
        return collectives::make_host_communicator(ranks, options);
      }};
};

class Borrowed final : public Device {
 public:
  Borrowed(Device& inner, BackendReg& reg) : inner_(inner), reg_(reg) {}
  std::string name() const override { return "BORROWED" + inner_.name(); }
  std::string description() const override { return inner_.description(); }
  DeviceType type() const override { return inner_.type(); }
  DeviceMemory memory() const override { return inner_.memory(); }
  DeviceProps props() const override { return inner_.props(); }
  BackendReg& reg() const override { return reg_; }
  std::unique_ptr<Backend> init(std::string_view params) override { return inner_.init(params); }
  BufferType& buffer_type() override { return inner_.buffer_type(); }
  bool supports_op(const Tensor& node) const override { return inner_.supports_op(node); }

 private:
  Device& inner_;
  BackendReg& reg_;
};

TEST_F(MetaFunctions, MembersOfOneFamilyUseItsCommunicator) {
  Offering family, other;
  Borrowed first(*cpus_[0], family), second(*cpus_[1], family), third(*cpus_[2], other);
  const auto made_for = [&](std::vector<Device*> members, const MetaOptions& options = {}) {
    Offering::made = 0;
    std::vector<std::unique_ptr<Backend>> backends;
    std::vector<Backend*> ranks;
    for (Device* member : members) ranks.push_back(backends.emplace_back(member->init()).get());
    const auto factory = options.communicator ? options.communicator : collectives::communicator_for(members);
    EXPECT_EQ(factory(ranks, {})->name(), "host");
    return Offering::made;
  };
  EXPECT_EQ(made_for({&first, &second}), 1);
  EXPECT_EQ(made_for({&first, &third}), 0) << "the members belong to two families";
  EXPECT_EQ(made_for(cpus_), 0) << "the family has no communicator";
}

TEST_F(MetaFunctions, MetaDeviceUsesCommunicatorOfMemberFamily) {
  Offering family;
  Borrowed first(*cpus_[0], family), second(*cpus_[1], family);
  const auto run = [&](const MetaOptions& options) {
    const auto device = MetaDevice::create(
        {&first, &second},
        [](const Tensor& tensor) {
          return tensor.is_persistent() ? SplitState::split(0, {{4, 4}}) : SplitState::mirrored();
        },
        options);
    TensorContext weights;
    weights.add("a", DType::kF32, {8, 4, 1, 1});
    const auto memory = allocate_tensors(weights.tensors(), device->buffer_type(), Usage::kWeights);
    memory->clear(0);
    Graph graph;
    Tensor* sum = mul_mat(graph, weights.tensors()[0], graph.input("x", DType::kF32, {8, 2, 1, 1}));
    graph.output(unary(graph, sum, UnaryKind::kSilu));  // silu needs the complete sum
    const auto backend = device->init("threads=1");
    Offering::made = 0;
    EXPECT_EQ(backend->compute(graph), Status::kSuccess);
    return Offering::made;
  };
  EXPECT_EQ(run({}), 1);
  MetaOptions named;
  named.communicator = collectives::make_host_communicator;
  EXPECT_EQ(run(named), 0) << "the options name another communicator";
}

TEST_F(MetaFunctions, RefuseCommunicatorIfClassSizesDiffer) {
  Offering family;
  Borrowed first(*cpus_[0], family), second(*cpus_[1], family);
  const uint64_t sizes = std::exchange(Offering::offer.class_sizes, 1);
  EXPECT_THAT([&] { mirrored({&first, &second}); },
              ThrowsMessage<DeviceError>(HasSubstr("[family OFFERING] the class layouts of the plug-in")));
  MetaOptions named;
  named.communicator = collectives::make_host_communicator;
  EXPECT_NO_THROW(mirrored({&first, &second}, named)) << "the family's communicator is not used";
  Offering::offer.class_sizes = sizes;
  EXPECT_NO_THROW(mirrored({&first, &second}));
}

TEST_F(MetaFunctions, MetaFamilyOffersCommunicator) {
  const collectives::CommunicatorFactory factory = collectives::factory_of(family());
  ASSERT_TRUE(factory);
  const auto backend = cpus_[0]->init();
  Backend* rank = backend.get();
  EXPECT_EQ(factory({&rank, 1}, {})->name(), "host");
}

}  // namespace
}  // namespace shoal::meta
