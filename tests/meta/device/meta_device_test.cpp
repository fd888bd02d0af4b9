#include "meta/meta.h"

#include <gmock/gmock.h>

#include <cmath>
#include <cstring>

#include "base/error.h"
#include "devices/functions.h"
#include "graph/ops/ops.h"
#include "meta/device/meta_backend.h"
#include "meta/device/meta_family.h"

#include "tests/meta/layouts.h"
#include "tests/meta/mesh.h"

namespace shoal::meta {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(MetaDevice, ImplementsDeviceInterface) {
  const test::CpuMesh mesh(2);
  Device& device = *mesh.device;
  EXPECT_EQ(device.name(), "META(CPU0,CPU1)");
  EXPECT_EQ(device.description(), "2 devices as one");
  EXPECT_EQ(device.type(), DeviceType::kMeta);
  EXPECT_EQ(device.reg().name(), "META");
  EXPECT_THAT(mesh.device->members(), ElementsAre(mesh.members[0], mesh.members[1]));
  const DeviceProps props = device.props();
  EXPECT_EQ(props.name, device.name());
  EXPECT_EQ(props.description, device.description());
  EXPECT_EQ(props.type, DeviceType::kMeta);
  EXPECT_TRUE(props.caps.async);
  EXPECT_TRUE(props.caps.events);
  EXPECT_FALSE(props.caps.host_buffer);
  EXPECT_TRUE(props.caps.buffer_from_host_ptr);
  EXPECT_THAT(props.caps.peers, ElementsAre("CPU0", "CPU1"));
  EXPECT_EQ(device.buffer_type().name(), device.name());
  EXPECT_EQ(&device.buffer_type().device(), &device);
  EXPECT_FALSE(device.buffer_type().is_host());
  EXPECT_EQ(device.host_buffer_type(), nullptr);
  const auto backend = device.init();
  EXPECT_EQ(&backend->device(), &device);
  EXPECT_EQ(backend->name(), device.name());
  EXPECT_EQ(backend->members().size(), 2u);
}

TEST(MetaDevice, SumsMemoryOfMembers) {
  const test::CpuMesh mesh(3);
  EXPECT_EQ(mesh.device->memory().free, 3 * mesh.members[0]->memory().free);
  EXPECT_EQ(mesh.device->memory().total, 3 * mesh.members[0]->memory().total);
  TensorContext context;
  context.add("w", DType::kF32, {1024, 1, 1, 1});
  const size_t before = mesh.device->memory().free;
  const auto memory = allocate_tensors(context.tensors(), mesh.device->buffer_type(), Usage::kWeights);
  EXPECT_EQ(mesh.device->memory().free, before - size_t{3} * 4096) << "each of the three members stores the tensor";
  EXPECT_EQ(mesh.device->props().memory.free, mesh.device->memory().free);
}

TEST(MetaDevice, SupportsOpsThatAllMembersSupport) {
  const test::CpuMesh mesh(2);
  Graph graph;
  Tensor* x = graph.input("x", DType::kF32, {4, 1, 1, 1});
  EXPECT_TRUE(mesh.device->supports_op(*scale(graph, x, {2, 0})));
  Tensor* reduced = graph.add_node(Op::kAllReduce, CollectiveParams{}, {x});
  EXPECT_EQ(mesh.device->supports_op(*reduced), mesh.members[0]->supports_op(*reduced));
}

TEST(MetaDevice, HasNoEventsIfOneMemberHasNone) {
  const test::CpuMesh mesh(1);
  const auto meta =
      MetaDevice::create({mesh.members[0], &Registry::instance().device("NULL0")}, test::callback_for({}));
  EXPECT_EQ(meta->new_event(), nullptr);
  EXPECT_FALSE(meta->props().caps.events);
}

TEST(MetaDevice, RejectsInvalidArguments) {
  const test::CpuMesh mesh(2);
  const auto message = [](const char* text) { return ThrowsMessage<InvalidArgument>(HasSubstr(text)); };
  const auto callback = test::callback_for({});
  Device* device = mesh.members[0];
  EXPECT_THAT([&] { MetaDevice::create({}, callback); }, message("needs at least one device"));
  EXPECT_THAT([&] { MetaDevice::create({device}, nullptr); }, message("needs a split-state callback"));
  EXPECT_THAT([&] { MetaDevice::create({device, nullptr}, callback); }, message("device 1"));
  EXPECT_THAT([&] { MetaDevice::create({device, device}, callback); }, message("CPU0 is listed twice"));
  EXPECT_THAT([&] { MetaDevice::create({device}, callback, {{"threads=1", "threads=1"}, {}}); },
              message("parameters are given for 2 devices"));
}

TEST(MetaDevice, CannotBeMemberOfAnotherMetaDevice) {
  const test::CpuMesh mesh(3);
  const auto callback = test::callback_for({});
  const auto pair = MetaDevice::create({mesh.members[0], mesh.members[1]}, callback);
  const auto refused =
      ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("META(CPU0,CPU1) is a meta device"),
                                           HasSubstr("one meta device of all simple devices"), HasSubstr("scheduler")));
  EXPECT_THAT([&] { MetaDevice::create({pair.get()}, callback); }, refused);
  EXPECT_THAT([&] { MetaDevice::create({mesh.members[2], pair.get()}, callback); }, refused);
  const auto split = find_function(family(), functions::kSplitBufferType);
  const std::vector<Device*> both{mesh.members[2], pair.get()};
  const std::vector<double> shares{1, 1};
  EXPECT_THAT([&] { split(both, shares); }, refused);
}

/// The parameter `devices` names a meta device that the program has registered.
TEST(MetaDevice, RegisteredMetaDeviceCannotBeMember) {
  const test::CpuMesh mesh(2);
  struct Named final : Device {
    std::string name() const override { return "PAIR"; }
    std::string description() const override { return "a meta device of another kind"; }
    DeviceType type() const override { return DeviceType::kMeta; }
    DeviceMemory memory() const override { return {}; }
    DeviceProps props() const override { return {}; }
    BackendReg& reg() const override { return family(); }
    std::unique_ptr<Backend> init(std::string_view) override { return nullptr; }
    BufferType& buffer_type() override { return Registry::instance().device("CPU0").buffer_type(); }
    bool supports_op(const Tensor&) const override { return true; }
  };
  static Named named;  // static, because the registry keeps a pointer to the device
  if (Registry::instance().find_device("PAIR") == nullptr) Registry::instance().add_device(named);
  family();  // the family registers itself at first use
  EXPECT_THAT([&] { Registry::instance().init("META:devices=CPU0,PAIR split=1,1"); },
              ThrowsMessage<InvalidArgument>(HasSubstr("PAIR is a meta device")));
}

/// The device keeps the callback's first answer for a tensor until the memory of the tensor is freed.
TEST(MetaDevice, KeepsFirstAnswerOfCallback) {
  const test::CpuMesh mesh(2);
  int asked = 0;
  const auto device = MetaDevice::create(mesh.members, [&](const Tensor&) {
    return asked++ % 2 == 0 ? SplitState::split(1, Partition::even(2, 8)) : SplitState::mirrored();
  });
  TensorContext context;
  Tensor* w = context.add("w", DType::kF32, {4, 8, 1, 1});
  auto memory = allocate_tensors(context.tensors(), device->buffer_type(), Usage::kWeights);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(device->ask(*w), layout_of(*w)) << i;
  EXPECT_EQ(layout_of(*w).to_string(), "split 1 [4:{0} 4:{1}]");
  EXPECT_EQ(asked, 1);
  memory.reset();
  EXPECT_TRUE(device->ask(*w).is_mirrored()) << "the device calls the callback again";
  EXPECT_EQ(asked, 2);
}

TEST(MetaDevice, AddendsOfPartialWeightCanBeSetSeparately) {
  const test::CpuMesh mesh(3, {{"bias", Layout::partial()}});
  TensorContext context;
  Tensor* bias = context.add("bias", DType::kF32, {4, 1, 1, 1});
  const auto memory = allocate_tensors(context.tensors(), mesh.device->buffer_type(), Usage::kWeights);
  for (int rank = 0; rank < 3; ++rank) {
    const std::vector<float> addend(4, std::pow(10.0f, static_cast<float>(rank)));
    tensor_set(shard(*bias, rank), addend.data(), 0, 16);
  }
  EXPECT_EQ(test::read_floats(*bias), std::vector<float>(4, 111));
  EXPECT_EQ(test::read_floats(shard(*bias, 2)), std::vector<float>(4, 100));
}

struct MetaFamily : testing::Test {
  MetaFamily() { family(); }
  test::CpuMesh mesh{2};
};

TEST_F(MetaFamily, CreatesDevicesFromText) {
  const auto backend = Registry::instance().init("META:devices=CPU0,CPU1 split=3,1");
  EXPECT_EQ(backend->device().type(), DeviceType::kMeta);
  EXPECT_EQ(backend->device().name(), "META(CPU0,CPU1)");
  const auto& device = dynamic_cast<const MetaDevice&>(backend->device());
  TensorContext context;
  EXPECT_EQ(device.ask(*context.add("w", DType::kF32, {4, 8, 1, 1})).to_string(), "split 1 [6:{0} 2:{1}]");
  EXPECT_EQ(device.ask(*context.add("norm", DType::kF32, {4, 1, 1, 1})).to_string(), "mirrored");
  auto& along_rows = dynamic_cast<const MetaDevice&>(family().create_device("devices=CPU1,CPU0 split=1,1.5 axis=0"));
  EXPECT_EQ(along_rows.name(), "META(CPU1,CPU0)");
  EXPECT_EQ(along_rows.ask(*context.add("q", DType::kQ8_0, {160, 2, 1, 1})).to_string(), "split 0 [64:{0} 96:{1}]");
  EXPECT_EQ(along_rows.ask(*context.add("p", DType::kQ8_0, {32, 2, 1, 1})).to_string(), "mirrored");
  auto& even = dynamic_cast<const MetaDevice&>(family().create_device("devices=CPU0,CPU1"));
  EXPECT_EQ(even.ask(*context.add("e", DType::kF32, {4, 7, 1, 1})).to_string(), "split 1 [4:{0} 3:{1}]");
}

TEST_F(MetaFamily, ErrorsNameRemedy) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "META needs devices=NAME,NAME"},
      {"split=1,1", "META needs devices=NAME,NAME"},
      {"devices=CPU0,CPU9", "there is no device 'CPU9'; there are: CPU0, CPU1"},
      {"devices=CPU0,CPU9", "; SHOAL_CPU_DEVICES=N divides the cores among N CPU devices"},
      {"devices=CPU0,CPU0", "device CPU0 is named twice"},
      {"devices=CPU0,CPU1 split=3", "give each device a share"},
      {"devices=CPU0,CPU1 split=3,1,1", "give each device a share"},
      {"devices=CPU0,CPU1 split=0,0", "not all 0"},
      {"devices=CPU0,CPU1 split=3,-1", "bad split \"3,-1\": give one number"},
      {"devices=CPU0,CPU1 split=3,x", "such as 3,1"},
      {"devices=CPU0,CPU1 split=inf,1", "such as 3,1"},
      {"devices=CPU0,CPU1 split=nan,1", "such as 3,1"},
      {"devices=CPU0,CPU1 ratio=3,1", "the parameters are devices, split and axis"},
      {"devices=CPU0,CPU1 axis=4", "bad axis \"4\": give 0, 1, 2 or 3"},
      {"CPU0,CPU1", "CPU0,CPU1"}};
  for (const auto& [params, text] : cases) {
    EXPECT_THAT([&params = params] { Registry::instance().init(fmt::format("META:{}", params)); },
                ThrowsMessage<InvalidArgument>(HasSubstr(text)))
        << params;
  }
}

/// Two backends of a meta device and one backend of a simple device. Rank 1 of the meta device has the whole weight w.
struct MetaEvents : testing::Test {
  MetaEvents() {
    w = context.add("w", DType::kF32, {4, 2, 1, 1});
    p = context.add("p", DType::kF32, {4, 2, 1, 1});
    memory = allocate_tensors({&w, 1}, mesh.device->buffer_type(), Usage::kWeights);
    other_memory = allocate_tensors({&p, 1}, mesh.other().buffer_type(), Usage::kWeights);
    memory->clear(0);
    other_memory->clear(0);
  }
  void pause() { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }

  test::CpuMesh mesh{2, {{"w", Layout::split(1, parse_partition(2, "2:{1}"))}}};
  TensorContext context;
  Tensor *w, *p;
  std::unique_ptr<Buffer> memory, other_memory;
  const std::unique_ptr<Backend> first = mesh.device->init(), second = mesh.device->init(),
                                 simple = mesh.other().init();
  std::unique_ptr<Event> event = mesh.device->new_event();
  const std::vector<float> values{1, 2, 3, 4, 5, 6, 7, 8};
  std::vector<float> seen = std::vector<float>(8);
  test::Gate gate;
};

TEST_F(MetaEvents, SimpleBackendWaitsForAllMembers) {
  ASSERT_TRUE(first->members()[1]->enqueue(gate.task()));
  first->set_async(*w, values.data(), 0, 32);
  event->record(*first);
  event->wait(*simple);
  auto& local = const_cast<Tensor&>(shard(*w, 1));
  simple->get_async(local, seen.data(), 0, 32);
  pause();  // without event->wait, `simple` would read w during this pause
  EXPECT_FALSE(gate.open);
  gate.open = true;
  simple->synchronize();
  EXPECT_EQ(seen, values);
  first->synchronize();
}

TEST_F(MetaEvents, AllMembersWaitWithoutBlockingHost) {
  const auto theirs = mesh.other().new_event();
  ASSERT_TRUE(simple->enqueue(gate.task()));
  simple->set_async(*p, values.data(), 0, 32);
  theirs->record(*simple);
  theirs->wait(*first);  // wait returns although the gate is closed
  EXPECT_FALSE(gate.open);
  std::vector<float> too(8);
  for (const auto& [member, out] : {std::pair(0, &seen), {1, &too}}) {
    first->members()[static_cast<size_t>(member)]->get_async(*p, out->data(), 0, 32);
  }
  pause();
  gate.open = true;
  first->synchronize();
  EXPECT_EQ(seen, values);
  EXPECT_EQ(too, values);
  simple->synchronize();
}

TEST_F(MetaEvents, OrderTwoMetaBackends) {
  ASSERT_TRUE(first->members()[1]->enqueue(gate.task()));
  first->set_async(*w, values.data(), 0, 32);
  event->record(*first);
  event->wait(*second);
  second->get_async(*w, seen.data(), 0, 32);
  pause();
  gate.open = true;
  second->synchronize();
  EXPECT_EQ(seen, values);
  first->synchronize();
}

TEST_F(MetaEvents, HostWaitsForAllMembers) {
  event->synchronize();  // does not wait, because the event was never recorded
  event->wait(*simple);
  ASSERT_TRUE(first->members()[1]->enqueue(gate.task()));
  first->set_async(*w, values.data(), 0, 32);
  event->record(*first);
  std::thread opener([&] {
    pause();
    gate.open = true;
  });
  event->synchronize();
  EXPECT_TRUE(gate.open);
  EXPECT_EQ(test::read_floats(*w), values);
  opener.join();
  EXPECT_EQ(&event->device(), mesh.device.get());
  EXPECT_THAT([&] { event->record(*simple); }, ThrowsMessage<InvalidArgument>(HasSubstr("cannot be recorded on CPU2")));
}

/// A cache [dim 4, rows 6, heads 3], split by heads over two ranks. The saved block has rows [begin, begin + count) of
/// all heads.
TEST(CacheState, RowsOfAllHeadsAreSavedAndRestored) {
  const auto layout = Layout::split(2, parse_partition(2, "1:{1} 1:{0} 1:{1}"));
  const test::CpuMesh mesh(2, {{"k", layout}});
  TensorContext context, plain;
  Tensor* k = context.add("k", DType::kF16, {4, 6, 3, 1}, Role::kCache);
  Tensor* one = plain.add("k", DType::kF16, {4, 6, 3, 1}, Role::kCache);
  const auto memory = allocate_tensors({&k, 1}, mesh.device->buffer_type(), Usage::kAny);
  const auto simple = allocate_tensors({&one, 1}, mesh.other().buffer_type(), Usage::kAny);
  const auto bytes = test::leaf_data(*k, 5);
  constexpr size_t kRow = 8, kHead = 6 * kRow;
  for (size_t begin = 0; begin < 6; ++begin) {
    for (size_t count = 1; begin + count <= 6; ++count) {
      const Rows rows{begin * kRow, count * kRow, 3, kHead};
      std::vector<std::byte> state(3 * count * kRow), all(bytes.size());
      tensor_set(*k, bytes.data(), 0, bytes.size());
      memory->get_2d(*k, state.data(), count * kRow, rows);
      for (size_t head = 0; head < 3; ++head) {
        EXPECT_EQ(
            std::memcmp(state.data() + head * count * kRow, bytes.data() + head * kHead + begin * kRow, count * kRow),
            0);
      }
      // Restores the block on the same mesh and on one device. Bytes outside the block stay unchanged.
      for (Tensor* target : {k, one}) {
        target->buffer->memset(*target, 7, 0, bytes.size());
        target->buffer->set_2d(*target, state.data(), count * kRow, rows);
        tensor_get(*target, all.data(), 0, all.size());
        for (size_t i = 0; i < all.size(); ++i) {
          const size_t row = i % kHead / kRow;
          const bool inside = row >= begin && row < begin + count;
          ASSERT_EQ(all[i], inside ? bytes[i] : std::byte{7}) << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace shoal::meta
