#include "devices/allocate.h"

#include <gmock/gmock.h>

#include <set>
#include <thread>

#include "base/error.h"
#include "graph/ops/ops.h"
#include "tests/support/null/null_device.h"

namespace shoal {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

Device& null_device(std::string_view params) {
  return Registry::instance().find_family("NULL")->create_device(params);
}

std::vector<Tensor*> three_tensors(TensorContext& context, int64_t floats) {
  for (const char* name : {"a", "b", "c"}) context.add(name, DType::kF32, {floats, 1, 1, 1});
  return {context.tensors().begin(), context.tensors().end()};
}

TEST(LayoutTensors, PlacesTensorsOneAfterAnother) {
  TensorContext context;
  const auto tensors = three_tensors(context, 17);  // each tensor has 68 bytes, padded to 128
  const StaticLayout layout = layout_tensors(tensors, null_device("").buffer_type());
  EXPECT_EQ(layout.chunk_sizes, (std::vector<size_t>{384}));
  EXPECT_EQ(layout.placements[2].offset, 256U);
  EXPECT_EQ(layout.placements[2].size, 68U);
  EXPECT_EQ(layout.total_bytes(), 384U);
}

TEST(LayoutTensors, UsesSeveralChunksIfOneAllocationIsTooSmall) {
  TensorContext context;
  const auto tensors = three_tensors(context, 17);
  const StaticLayout layout = layout_tensors(tensors, null_device("max_size=256").buffer_type());
  EXPECT_EQ(layout.chunk_sizes, (std::vector<size_t>{256, 128}));
  EXPECT_EQ(layout.placements[1].chunk, 0);
  EXPECT_EQ(layout.placements[2].chunk, 1);
  EXPECT_EQ(layout.placements[2].offset, 0U);
}

TEST(LayoutTensors, TensorOfMaximumSizeIsNotPadded) {
  TensorContext context;
  auto tensors = three_tensors(context, 17);
  tensors.push_back(context.add("empty", DType::kF32, {0, 1, 1, 1}));
  const StaticLayout layout = layout_tensors(tensors, null_device("max_size=68").buffer_type());
  EXPECT_EQ(layout.chunk_sizes, (std::vector<size_t>{68, 68, 68, 0}));
  EXPECT_THAT(
      [&] { layout_tensors(tensors, null_device("max_size=67").buffer_type()); },
      ThrowsMessage<DeviceError>(HasSubstr("a f32 [17] needs 68 B, but one allocation is limited to 67 B: split")));
}

TEST(AllocateTensors, UsesSeveralBuffers) {
  Device& device = null_device("max_size=128");
  TensorContext context;
  const auto tensors = three_tensors(context, 17);
  const auto buffer = allocate_tensors(tensors, device.buffer_type(), Usage::kWeights);
  ASSERT_TRUE(buffer->is_multi());
  EXPECT_EQ(buffer->parts().size(), 3U);
  EXPECT_EQ(buffer->size(), 384U);
  std::set<Buffer*> homes;
  for (Tensor* tensor : tensors) {
    EXPECT_EQ(tensor->buffer->usage(), Usage::kWeights);
    homes.insert(tensor->buffer);
  }
  EXPECT_EQ(homes.size(), 3U);
  buffer->set_usage(Usage::kCompute);
  EXPECT_EQ(tensors[2]->buffer->usage(), Usage::kCompute);
  buffer->clear(7);
  uint8_t byte = 0;
  buffer->get(*tensors[2], &byte, 67, 1);  // the multi-buffer forwards the call to the buffer of the tensor
  EXPECT_EQ(byte, 7);
  buffer->memset(*tensors[1], 8, 0, 68);
  tensor_get(*tensors[1], &byte, 67, 1);
  EXPECT_EQ(byte, 8);
  EXPECT_THROW(buffer->place(*context.add("d", DType::kF32, {1, 1, 1, 1}), 0), InvalidArgument);
}

TEST(AllocateTensors, FailureUnplacesTensorsAndFreesMemory) {
  Device& device = null_device("max_size=128,fail_alloc_after=256");
  TensorContext context;
  const auto tensors = three_tensors(context, 17);
  EXPECT_THROW(allocate_tensors(tensors, device.buffer_type(), Usage::kWeights), DeviceError);
  for (const Tensor* tensor : tensors) EXPECT_EQ(tensor->buffer, nullptr);
  const size_t free = device.memory().free;
  EXPECT_EQ(free, device.memory().total) << "memory was not released";
}

TEST(AllocateTensors, FailureKeepsBufferOfPlacedTensor) {
  BufferType& type = null_device("").buffer_type();
  TensorContext context;
  const auto tensors = three_tensors(context, 17);
  const auto first = allocate_tensors({&tensors[1], 1}, type, Usage::kAny);
  EXPECT_THROW(type.allocate_tensors(tensors, Usage::kAny), InvalidArgument);
  EXPECT_EQ(tensors[0]->buffer, nullptr);
  EXPECT_EQ(tensors[1]->buffer, first.get());
  EXPECT_EQ(tensors[2]->buffer, nullptr);
}

TEST(AllocateTensors, SkipsPlacedTensors) {
  BufferType& type = null_device("").buffer_type();
  TensorContext context;
  const auto tensors = three_tensors(context, 16);
  const auto first = allocate_tensors({tensors.data(), 2}, type, Usage::kAny);
  const auto second = allocate_tensors(tensors, type, Usage::kAny);
  EXPECT_EQ(second->size(), 64U);
  EXPECT_EQ(tensors[0]->buffer, first.get());
  EXPECT_EQ(tensors[2]->buffer, second.get());
  EXPECT_EQ(allocate_tensors(tensors, type, Usage::kAny), nullptr);
}

/// A null device on which every node needs a workspace.
class Scratchy final : public Device {
 public:
  explicit Scratchy(Device& inner) : inner_(inner) {}
  std::string name() const override { return "SCRATCHY"; }
  std::string description() const override { return inner_.description(); }
  DeviceType type() const override { return inner_.type(); }
  DeviceMemory memory() const override { return inner_.memory(); }
  DeviceProps props() const override { return inner_.props(); }
  BackendReg& reg() const override { return inner_.reg(); }
  std::unique_ptr<Backend> init(std::string_view params) override { return inner_.init(params); }
  BufferType& buffer_type() override { return inner_.buffer_type(); }
  bool supports_op(const Tensor&) const override { return true; }
  size_t workspace_size(const Tensor&) const override { return 100; }

 private:
  Device& inner_;
};

// Schedulers in several threads add aliases to weights that they share, and remove these aliases.
TEST(Alias, ThreadsMayAddAndRemoveAliases) {
  TensorContext context;
  Tensor* weight = context.add("w", DType::kF32, {16, 1, 1, 1});
  const auto memory = allocate_tensors(context.tensors(), null_device("").buffer_type(), Usage::kWeights);
  const uint64_t generation = memory->generation();
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        for (int round = 0; round < 1000; ++round) {
          TensorContext names;
          Tensor* name = names.add("name", DType::kF32, {16, 1, 1, 1});
          memory->alias(*name, *weight);
          if (round % 2 == 0) memory->unplace(*name);
        }
      });
    }
  }
  EXPECT_EQ(memory->generation(), generation) << "plans that read the weight stay valid";
  memory->unplace(*weight);
  EXPECT_NE(memory->generation(), generation);
}

TEST(AllocateGraph, PlacesNodesViewsAndWorkspaces) {
  Scratchy device(null_device(""));
  TensorContext context;
  Tensor* weight = context.add("w", DType::kF32, {16, 4, 1, 1});
  const auto weights = allocate_tensors({&weight, 1}, device.buffer_type(), Usage::kWeights);
  Graph graph;
  Tensor* x = graph.input("x", DType::kF32, {16, 1, 1, 1});
  Tensor* row = slice(graph, weight, {1, 2, 1});
  Tensor* sum = add(graph, x, row);
  Tensor* flat = reshape(graph, sum, {4, 4, 1, 1});
  Tensor* out = graph.output(scale(graph, flat, {2, 0}));
  const auto memory = allocate_graph(whole(graph), device);
  ASSERT_EQ(memory.parts.size(), 1U);
  const Buffer& buffer = *memory.parts.front();
  EXPECT_EQ(buffer.usage(), Usage::kCompute);
  EXPECT_EQ(row->buffer, weights.get());
  EXPECT_EQ(row->data, weight->data + 2 * 64);
  for (const Tensor* tensor : {x, sum, flat, out}) {
    EXPECT_EQ(tensor->buffer, &buffer) << tensor->name;
    EXPECT_GE(tensor->data, buffer.base());
    EXPECT_LE(tensor->data + tensor->bytes(), buffer.base() + buffer.size());
  }
  EXPECT_EQ(flat->data, sum->data);
  for (const Tensor* node : {sum, out}) {
    ASSERT_NE(node->workspace, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(node->workspace) % 64, 0U);
    const bool apart = node->workspace + 100 <= node->data || node->workspace >= node->data + node->bytes();
    EXPECT_TRUE(apart) << "the workspace overlaps the result";
  }
  EXPECT_EQ(flat->workspace, nullptr);
  EXPECT_TRUE(allocate_graph(whole(graph), device).parts.empty()) << "all tensors are already placed";

  release_graph(whole(graph), memory);
  for (const Tensor* tensor : {x, sum, out}) EXPECT_EQ(tensor->buffer, nullptr) << tensor->name;
  EXPECT_EQ(sum->workspace, nullptr);
  EXPECT_EQ(weight->buffer, weights.get());
  const auto again = allocate_graph(whole(graph), device);
  EXPECT_EQ(flat->data, sum->data) << "views follow their base to the new place";
  EXPECT_EQ(flat->buffer, again.parts.front().get());
}

TEST(AllocateGraph, MemoryMayOutliveTheGraph) {
  Device& device = null_device("");
  auto graph = std::make_unique<Graph>();
  graph->output(scale(*graph, graph->input("x", DType::kF32, {16, 1, 1, 1}), {2, 0}));
  auto memory = std::make_unique<GraphMemory>(whole(*graph), device);
  EXPECT_GE(memory->bytes(), 64U);
  graph.reset();
  memory.reset();  // must not access the destroyed graph
  EXPECT_EQ(device.memory().free, device.memory().total);
}

TEST(AllocateGraph, FailureReleasesAllMemory) {
  Device& device = null_device("max_size=64,fail_alloc_after=64");
  Graph graph;
  Tensor* x = graph.input("x", DType::kF32, {16, 1, 1, 1});
  Tensor* y = graph.output(scale(graph, x, {2, 0}));
  EXPECT_THROW(allocate_graph(whole(graph), device), DeviceError);
  EXPECT_EQ(x->buffer, nullptr);
  EXPECT_EQ(y->buffer, nullptr);
  EXPECT_EQ(device.memory().free, device.memory().total);
}

TEST(AllocateGraph, ErrorNamesSourceWithoutMemory) {
  Device& device = null_device("");
  TensorContext context;
  Tensor* weight = context.add("w", DType::kF32, {16, 1, 1, 1});
  Graph graph;
  Tensor* x = graph.input("x", DType::kF32, {16, 1, 1, 1});
  graph.output(add(graph, x, weight, "sum"));
  EXPECT_THAT([&] { allocate_graph(whole(graph), device); },
              ThrowsMessage<InvalidArgument>(HasSubstr("[add sum] source w f32 [16] has no memory")));
  EXPECT_EQ(x->buffer, nullptr);
  EXPECT_EQ(device.memory().free, device.memory().total);
}

}  // namespace
}  // namespace shoal
