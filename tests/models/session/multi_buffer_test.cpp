// Tests models on devices with a small allocation limit. Weights and caches then need several buffers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "base/error.h"
#include "tests/models/tiny_model.h"

namespace shoal::models {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

struct Loaded {
  explicit Loaded(int devices)
      : model(open_model(tiny_model_path("q8_0"))), placement(*model, cpu_devices(devices), {{}, 1}) {
    load_weights(*model, placement, {}, {.use_mapping = false});
  }
  ~Loaded() { unload_weights(*model); }

  std::vector<float> logits() {
    Session session(*model, placement, placement.init(), {.context = 512, .batch = 8});
    const std::vector<int32_t> prompt{1, 527, 261, 345, 340, 290, 261, 743, 959, 967, 270};
    session.evaluate(prompt);
    const std::vector<int32_t> next{261};
    session.evaluate(next);
    const std::span<const float> logits = session.logits();
    return {logits.begin(), logits.end()};
  }

  std::unique_ptr<Model> model;
  Placement placement;
};

constexpr size_t kLimit = size_t{1} << 20;

std::vector<std::byte> bytes_of(const Tensor& tensor) {
  std::vector<std::byte> bytes(tensor.bytes());
  tensor_get(tensor, bytes.data(), 0, bytes.size());
  return bytes;
}

/// Expected bytes of a tensor after clear(5).
std::vector<std::byte> filled(const Tensor& tensor) {
  return std::vector<std::byte>(tensor.bytes(), std::byte{5});
}

TEST(MultiBuffers, LogitsEqualLogitsWithOneBuffer) {
  for (int devices : {1, 2, 3}) {
    std::vector<float> expected;
    {
      Loaded loaded(devices);
      EXPECT_FALSE(loaded.model->buffers.front()->is_multi());
      expected = loaded.logits();
    }
    const LimitedCpuDevices limited("max_size=1M");
    Loaded loaded(devices);
    EXPECT_EQ(loaded.logits(), expected) << devices;
  }
}

TEST(MultiBuffers, PartsStayWithinAllocationLimit) {
  const LimitedCpuDevices limited("max_size=1M");
  Loaded loaded(1);
  Buffer& buffer = *loaded.model->buffers.front();
  ASSERT_TRUE(buffer.is_multi());
  ASSERT_GE(buffer.parts().size(), 6u);  // the weights have 5.6 MB
  size_t sum = 0;
  std::set<const Buffer*> parts, used;
  for (const auto& part : buffer.parts()) {
    EXPECT_LE(part->size(), kLimit);
    EXPECT_EQ(part->usage(), Usage::kWeights);
    sum += part->size();
    parts.insert(part.get());
  }
  EXPECT_EQ(buffer.size(), sum);
  EXPECT_GE(sum, loaded.model->file.tensor_bytes());
  for (const Tensor* tensor : loaded.model->weights.tensors()) {
    EXPECT_TRUE(parts.contains(tensor->buffer)) << tensor->name;
    used.insert(tensor->buffer);
  }
  EXPECT_EQ(used, parts);
}

TEST(MultiBuffers, SettingUsageClearingAndResettingApplyToAllParts) {
  const LimitedCpuDevices limited("max_size=1M");
  Loaded loaded(1);
  Buffer& buffer = *loaded.model->buffers.front();
  buffer.set_usage(Usage::kCompute);
  std::vector<uint64_t> generations;
  for (const auto& part : buffer.parts()) {
    EXPECT_EQ(part->usage(), Usage::kCompute);
    generations.push_back(part->generation());
  }
  buffer.clear(5);
  for (const Tensor* tensor : loaded.model->weights.tensors()) EXPECT_EQ(bytes_of(*tensor), filled(*tensor));
  // The multi-buffer gives access to tensors of any part.
  Tensor& last = *loaded.model->weights.tensors().back();
  ASSERT_NE(last.buffer, buffer.parts().front().get());
  buffer.memset(last, 9, 1, 2);
  EXPECT_EQ(bytes_of(last)[0], std::byte{5});
  EXPECT_EQ(bytes_of(last)[2], std::byte{9});
  buffer.reset();
  for (size_t i = 0; i < generations.size(); ++i) EXPECT_NE(buffer.parts()[i]->generation(), generations[i]) << i;
}

TEST(MultiBuffers, OperationsOnMetaBufferApplyToBuffersOfAllMembers) {
  const LimitedCpuDevices limited("max_size=1M");
  Loaded loaded(2);
  Buffer& buffer = *loaded.model->buffers.front();
  std::vector<std::set<const Buffer*>> parts(2);
  const auto locals = [&](auto&& use) {
    for (const Tensor* tensor : loaded.model->weights.tensors()) {
      for (int rank : {0, 1}) use(rank, meta::shard(*tensor, rank));
    }
  };
  locals([&](int rank, const Tensor& local) {
    EXPECT_EQ(&local.buffer->type().device(), loaded.placement.members()[rank]);
    EXPECT_LE(local.buffer->size(), kLimit);
    EXPECT_EQ(local.buffer->usage(), Usage::kWeights);
    parts[rank].insert(local.buffer);
  });
  for (int rank : {0, 1}) {
    EXPECT_GE(parts[rank].size(), 3u);
    const size_t sum = std::accumulate(parts[rank].begin(), parts[rank].end(), size_t{0},
                                       [](size_t s, auto* p) { return s + p->size(); });
    EXPECT_EQ(meta::allocated_per_rank(buffer)[rank], sum);
  }
  buffer.set_usage(Usage::kCompute);
  buffer.clear(5);
  locals([&](int, const Tensor& local) {
    EXPECT_EQ(local.buffer->usage(), Usage::kCompute);
    EXPECT_EQ(bytes_of(local), filled(local)) << local.name;
  });
  const uint64_t generation = buffer.generation();
  buffer.reset();
  EXPECT_NE(buffer.generation(), generation);
  EXPECT_THAT(meta::allocated_per_rank(buffer), Each(0u)) << "the members' parts are freed";
}

TEST(MultiBuffers, ErrorNamesTensorAboveAllocationLimit) {
  const LimitedCpuDevices limited("max_size=100K");
  auto model = open_model(tiny_model_path("q8_0"));
  for (int devices : {1, 2}) {
    Placement placement(*model, cpu_devices(devices));
    try {
      load_weights(*model, placement, {}, {.use_mapping = false});
      ADD_FAILURE() << "load_weights() did not throw";
    } catch (const DeviceError& error) {
      EXPECT_THAT(error.what(), HasSubstr("one allocation is limited to 100.0 KiB"));
    }
    EXPECT_FALSE(model->is_loaded());
    for (const Tensor* tensor : model->weights.tensors()) EXPECT_EQ(tensor->buffer, nullptr);
  }
  // The mapping is not an allocation, so the limit does not apply.
  load_weights(*model, Placement(*model, cpu_devices(1)));
  unload_weights(*model);
}

}  // namespace
}  // namespace shoal::models
