// Tests the loading of weights. With any placement, every byte reaches its devices. If a load is stopped or fails, the
// model stays unloaded.
#include "models/session/loader.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "tests/models/checks.h"
#include "tests/models/model_parts.h"
#include "tests/models/synthetic_model.h"
#include "tests/models/tiny_model.h"

namespace shoal::models {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

/// Names of the tensors whose bytes on the devices differ from the file.
std::vector<std::string> wrong_tensors(const Model& model) {
  std::vector<std::string> wrong;
  for (const Tensor* tensor : model.weights.tensors()) {
    const GgufTensor& source = model.file.tensor(tensor->name);
    std::vector<std::byte> bytes(source.bytes), expected(source.bytes);
    tensor_get(*tensor, bytes.data(), 0, bytes.size());
    model.file.read(source, 0, expected);
    if (bytes != expected) wrong.push_back(tensor->name);
  }
  return wrong;
}

TEST(Loader, EveryByteReachesDevices) {
  SyntheticModel large;  // some tensors need several pieces, and their last group of 16 rows is not full
  large.h.vocab = 9001, large.h.ff = 5000, large.h.experts = 3, large.h.experts_used = 1;
  for (DType dtype : {DType::kF32, DType::kF16}) {
    large.dtype = dtype;
    const std::string path = large.write();
    for (const char* ratio : {"1", "1,1", "5,0,2", "1,2,3,4,5"}) {
      auto model = open_model(path);
      const int devices = static_cast<int>(std::count(ratio, ratio + std::strlen(ratio), ',')) + 1;
      Placement placement(*model, cpu_devices(devices), {ratio, 1});
      load_weights(*model, placement, {}, {.use_mapping = false});
      EXPECT_EQ(wrong_tensors(*model), std::vector<std::string>()) << ratio;
      unload_weights(*model);
    }
  }
}

TEST(Loader, EveryByteReachesDevicesThatRepack) {
  for (const char* type : {"q8_0", "q4_k_m"}) {
    for (const char* ratio : {"1", "1,1", "1,3", "3,0,2"}) {  // some matrices are divided by columns, others by rows
      auto model = open_model(tiny_model_path(type));
      const int devices = static_cast<int>(std::count(ratio, ratio + std::strlen(ratio), ',')) + 1;
      Placement placement(*model, cpu_devices(devices), {ratio, 1});
      load_weights(*model, placement, {}, {.use_mapping = false, .repack = true});
      EXPECT_EQ(wrong_tensors(*model), std::vector<std::string>()) << type << " " << ratio;
      unload_weights(*model);
    }
  }
}

std::string bytes_of_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Names of the tensors that are not in the file mapping.
std::vector<std::string> tensors_elsewhere(const Model& model) {
  std::vector<std::string> out;
  for (const Tensor* tensor : model.weights.tensors()) {
    if (tensor->data != model.file.tensor(tensor->name).data) out.push_back(tensor->name);
  }
  return out;
}

TEST(MappedWeights, OneDeviceUsesMapping) {
  const std::string path = SyntheticModel().write();
  auto model = open_model(path);
  Device& device = *cpu_devices(1).front();
  ASSERT_TRUE(can_use_mapping(*model, device));
  load_weights(*model, Placement(*model, cpu_devices(1)), {}, {.repack = false});
  EXPECT_EQ(tensors_elsewhere(*model), std::vector<std::string>());
  EXPECT_EQ(wrong_tensors(*model), std::vector<std::string>());
  EXPECT_EQ(model->buffers.front()->size(), model->file.tensor_span().size());
  EXPECT_EQ(model->buffers.front()->usage(), Usage::kWeights);
  for (const Tensor* tensor : model->weights.tensors()) EXPECT_EQ(tensor->buffer, model->buffers.front().get());
  // The mapping survives the removal of the file.
  std::filesystem::remove(path);
  EXPECT_EQ(wrong_tensors(*model), std::vector<std::string>());
  unload_weights(*model);
}

TEST(MappedWeights, WeightsAreCopiedIfDeviceOrOptionsPreventMapping) {
  auto model = open_model(SyntheticModel().write());
  Placement two(*model, cpu_devices(2), {{}, 1});
  EXPECT_FALSE(can_use_mapping(*model, two.device()));
  Device& null = Registry::instance().device("NULL0");
  EXPECT_FALSE(can_use_mapping(*model, null));
  load_weights(*model, Placement(*model, std::vector<Device*>{&null}));
  EXPECT_EQ(tensors_elsewhere(*model).size(), model->weights.tensors().size());
  unload_weights(*model);
  for (Tensor* tensor : model->weights.tensors()) tensor->buffer = nullptr, tensor->data = nullptr;
  load_weights(*model, Placement(*model, cpu_devices(1)), {}, {.use_mapping = false});
  EXPECT_EQ(tensors_elsewhere(*model).size(), model->weights.tensors().size());
  EXPECT_EQ(wrong_tensors(*model), std::vector<std::string>());
  unload_weights(*model);
}

TEST(MappedWeights, WritesChangeTensorButNotFile) {
  const std::string path = SyntheticModel().write(), before = bytes_of_file(path);
  auto model = open_model(path), other = open_model(path);
  load_weights(*model, Placement(*model, cpu_devices(1)));
  load_weights(*other, Placement(*other, cpu_devices(1)));
  Tensor& tensor = *model->weights.tensors()[3];
  const std::vector<float> values(tensor.elements(), 1.5f);
  tensor_set(tensor, values.data(), 0, tensor.bytes());
  EXPECT_EQ(wrong_tensors(*model), std::vector<std::string>{tensor.name});
  std::vector<float> got(tensor.elements());
  tensor_get(tensor, got.data(), 0, tensor.bytes());
  EXPECT_EQ(got, values);
  model->buffers.front()->clear(7);
  for (const Tensor* cleared : model->weights.tensors()) {
    std::vector<std::byte> bytes(cleared->bytes());
    tensor_get(*cleared, bytes.data(), 0, bytes.size());
    EXPECT_EQ(bytes, std::vector<std::byte>(bytes.size(), std::byte{7})) << cleared->name;
  }
  EXPECT_EQ(bytes_of_file(path), before);
  EXPECT_EQ(wrong_tensors(*other), std::vector<std::string>());
  // The writable bytes do not include the metadata of the file.
  EXPECT_EQ(model->file.get<std::string>("general.architecture"), "llama");
  EXPECT_EQ(model->file.tensors().size(), other->file.tensors().size());
  unload_weights(*model);
  unload_weights(*other);
}

/// Logits of the last token of the prompt.
std::vector<float> logits_of(const Model& model, const Placement& placement) {
  Session session(model, placement, placement.init(), {});
  session.evaluate(kPrompt);
  const auto last = session.logits();
  return {last.begin(), last.end()};
}

TEST(ModelInParts, LogitsEqualLogitsOfWholeFileForAnyPlacement) {
  const std::string whole = tiny_model_path("q4_k_m");
  const GgufFile file(whole);
  const size_t tensors = file.tensors().size();
  const test::TemporaryFolder folder;
  for (const std::vector<size_t>& sizes :
       {std::vector<size_t>{0, 5, tensors - 5}, {tensors / 2, tensors - tensors / 2}}) {
    const std::string parts = write_parts(file, (folder.path() / "tiny").string(), sizes).front();
    for (const auto& [devices, options] :
         std::vector<std::pair<int, LoadOptions>>{{1, {.repack = false}}, {1, {.use_mapping = false}}, {3, {}}}) {
      std::vector<std::vector<float>> logits;
      for (const std::string& path : {whole, parts}) {
        auto model = open_model(path);
        Placement placement(*model, cpu_devices(devices), {{}, 1});
        size_t loaded = 0;
        load_weights(*model, placement, [&](size_t done, size_t) { loaded = done; }, options);
        EXPECT_EQ(loaded, file.tensor_bytes());
        EXPECT_EQ(wrong_tensors(*model), std::vector<std::string>());
        const bool mapped = devices == 1 && options.use_mapping;
        EXPECT_EQ(tensors_elsewhere(*model).size(), mapped ? 0 : tensors);
        logits.push_back(logits_of(*model, placement));
        unload_weights(*model);
      }
      EXPECT_EQ(logits[0], logits[1]);
    }
  }
}

/// Number of bytes that this process has read from files, as counted by the system.
size_t bytes_read() {
  std::ifstream in("/proc/self/io");
  std::string name;
  size_t value = 0;
  while (in >> name >> value) {
    if (name == "rchar:") return value;
  }
  return 0;
}

TEST(Loader, ReadsEachByteOnceForAnyDevices) {
  if (bytes_read() == 0) GTEST_SKIP() << "the system does not count the bytes read";
  const GgufFile file(tiny_model_path("q4_k_m"));
  const size_t all_else = file.tensor("token_embd.weight").bytes - 1;
  const test::TemporaryFolder folder;
  const size_t tensors = file.tensors().size();
  const std::string parts =
      write_parts(file, (folder.path() / "tiny").string(), {tensors / 2, tensors - tensors / 2}).front();
  for (const std::string& path : {file.path(), parts}) {
    for (const int devices : {1, 2, 8}) {  // with several devices, norms and other tensors are mirrored
      for (const bool repack : {false, true}) {
        auto model = open_model(path);
        Placement placement(*model, cpu_devices(devices), {{}, 1});
        const size_t before = bytes_read();
        load_weights(*model, placement, {}, {.use_mapping = false, .repack = repack});
        const size_t read = bytes_read() - before;
        EXPECT_GE(read, file.tensor_bytes());
        // The count also includes reads of system memory statistics. These reads are smaller than one mirrored matrix.
        EXPECT_LT(read, file.tensor_bytes() + all_else) << devices << " devices, repack " << repack;
        unload_weights(*model);
      }
    }
  }
}

/// A CPU device that requires a given alignment of host memory.
class PickyDevice final : public Device {
 public:
  explicit PickyDevice(size_t alignment) : cpu_(*cpu_devices(1).front()), type_(*this, alignment) {}
  std::string name() const override { return "PICKY"; }
  std::string description() const override { return "a CPU with configurable host memory"; }
  DeviceType type() const override { return cpu_.type(); }
  DeviceMemory memory() const override { return cpu_.memory(); }
  DeviceProps props() const override { return cpu_.props(); }
  BackendReg& reg() const override { return cpu_.reg(); }
  std::unique_ptr<Backend> init(std::string_view params) override { return cpu_.init(params); }
  BufferType& buffer_type() override { return cpu_.buffer_type(); }
  bool supports_op(const Tensor& node) const override { return cpu_.supports_op(node); }
  std::unique_ptr<Buffer> buffer_from_host_ptr(void* data, size_t) override {
    return std::make_unique<Wrapped>(type_, static_cast<std::byte*>(data));
  }

 private:
  class Type final : public BufferType {
   public:
    Type(Device& device, size_t alignment) : device_(device), alignment_(alignment) {}
    std::string name() const override { return "PICKY"; }
    Device& device() const override { return device_; }
    size_t alignment() const override { return alignment_; }
    std::unique_ptr<Buffer> allocate(size_t) override { return nullptr; }

   private:
    Device& device_;
    size_t alignment_;
  };
  class Wrapped final : public Buffer {
   public:
    Wrapped(BufferType& type, std::byte* data) : Buffer(type, SIZE_MAX / 2), data_(data) {}
    std::byte* base() const override { return data_; }
    void clear(uint8_t) override {}
    void do_set(Tensor&, const void*, size_t, size_t) override {}
    void do_get(const Tensor& tensor, void* data, size_t offset, size_t size) override {
      std::memcpy(data, tensor.data + offset, size);
    }
    void do_memset(Tensor&, uint8_t, size_t, size_t) override {}

   private:
    std::byte* data_;
  };
  Device& cpu_;
  Type type_;
};

TEST(MappedWeights, WeightsAreCopiedIfMappingIsMisaligned) {
  const std::string path = SyntheticModel().write();
  for (size_t alignment : {size_t{32}, size_t{1} << 20}) {
    auto model = open_model(path);
    PickyDevice device(alignment);
    const bool mapped = alignment == 32;
    EXPECT_EQ(can_use_mapping(*model, device), mapped);
    load_weights(*model, Placement(*model, std::vector<Device*>{&device}));
    EXPECT_EQ(tensors_elsewhere(*model).empty(), mapped);
    EXPECT_EQ(wrong_tensors(*model), std::vector<std::string>());
    unload_weights(*model);
  }
}

TEST(MappedWeights, LogitsEqualLogitsOfCopiedWeights) {
  const std::vector<int32_t> prompt{1, 527, 261, 345, 340, 290};
  std::vector<float> expected;
  for (bool use_mapping : {false, true}) {
    auto model = open_model(tiny_model_path("q4_k_m"));
    Placement placement(*model, cpu_devices(1), {{}, 1});
    load_weights(*model, placement, {}, {.use_mapping = use_mapping, .repack = false});
    EXPECT_EQ(tensors_elsewhere(*model).empty(), use_mapping);
    {
      Session session(*model, placement, placement.init(), {.context = 64});
      session.evaluate(prompt);
      const std::span<const float> logits = session.logits();
      if (!use_mapping) expected.assign(logits.begin(), logits.end());
      EXPECT_EQ(std::vector<float>(logits.begin(), logits.end()), expected);
    }
    unload_weights(*model);
  }
}

TEST(Loader, ReportsProgressAndRefusesSecondLoad) {
  // The second file also contains tensors that are ignored.
  for (const auto& [devices, path] : {std::pair(1, tiny_model_path("q8_0")),
                                      {1, std::string(SHOAL_REFERENCE_MODELS "/qwen35.ollama.gguf")},
                                      {3, tiny_model_path("q8_0")}}) {
    auto model = open_model(path);
    Placement placement(*model, cpu_devices(devices), {{}, 1});
    size_t last = 0, total = 0;
    load_weights(*model, placement, [&](size_t done, size_t all) {
      EXPECT_GT(done, last);
      last = done, total = all;
    });
    EXPECT_EQ(last, total);
    EXPECT_EQ(total, model->weight_bytes());
    EXPECT_EQ(total < model->file.tensor_bytes(), !model->ignored_prefixes.empty());
    EXPECT_THAT(message_of([&] { load_weights(*model, placement); }), HasSubstr("is already loaded"));
    unload_weights(*model);
  }
}

TEST(Loader, StoppedLoadLeavesModelUnloaded) {
  auto model = open_model(tiny_model_path("q8_0"));
  Placement placement(*model, cpu_devices(2), {{}, 1});
  struct Stop {};
  EXPECT_THROW(load_weights(*model, placement, [](size_t, size_t) { throw Stop(); }), Stop);
  EXPECT_FALSE(model->is_loaded());
  load_weights(*model, placement);
  EXPECT_TRUE(model->is_loaded());
  unload_weights(*model);
}

TEST(Loader, ReportsTruncatedFile) {
  struct Case {
    int devices;
    bool use_mapping;
  };
  for (const auto [devices, use_mapping] : {Case{1, true}, {1, false}, {3, true}}) {
    const LoadOptions options{use_mapping};
    const std::string path = SyntheticModel().write();
    const size_t size = std::filesystem::file_size(path);
    auto model = open_model(path);
    Placement placement(*model, cpu_devices(devices), {{}, 1});
    for (size_t missing : {size_t{1}, size_t{40000}}) {
      std::filesystem::resize_file(path, size - missing);
      const std::string message = message_of([&] { load_weights(*model, placement, {}, options); });
      EXPECT_THAT(message, StartsWith(fmt::format("{}: the file ends at byte {}, but had {} bytes when it was opened; "
                                                  "another program writes to the file",
                                                  path, size - missing, size)));
      EXPECT_EQ(message.find('\n'), std::string::npos);
      EXPECT_FALSE(model->is_loaded());
    }
    // After the file is restored, loading works again.
    std::filesystem::remove(path);
    EXPECT_EQ(SyntheticModel().write(), path);
    model = open_model(path);
    Placement again(*model, cpu_devices(devices), {{}, 1});
    load_weights(*model, again, {}, options);
    EXPECT_EQ(wrong_tensors(*model), std::vector<std::string>());
    unload_weights(*model);
  }
}

TEST(Loader, RefusesReadsBeyondTensor) {
  auto model = open_model(tiny_model_path("q8_0"));
  const GgufTensor& norm = model->file.tensor("output_norm.weight");
  std::vector<std::byte> bytes(norm.bytes + 1);
  const auto read = [&](size_t offset, size_t size) {
    return message_of([&] { model->file.read(norm, offset, {bytes.data(), size}); });
  };
  EXPECT_EQ(read(4, norm.bytes - 4), "nothing was thrown");
  EXPECT_TRUE(std::equal(norm.data + 4, norm.data + norm.bytes, bytes.begin()));
  EXPECT_EQ(read(norm.bytes, 0), "nothing was thrown");
  EXPECT_THAT(read(0, norm.bytes + 1),
              EndsWith("tensor 'output_norm.weight' has 1024 bytes, but 1025 bytes from offset 0 on were requested"));
  EXPECT_THAT(read(4, norm.bytes), HasSubstr("but 1024 bytes from offset 4 on were requested"));
  EXPECT_THAT(read(SIZE_MAX, 1), HasSubstr("but 1 bytes from offset"));
  model->file.fetch(norm, 4, norm.bytes - 4);
  EXPECT_THAT(message_of([&] { model->file.fetch(norm, 4, norm.bytes); }),
              HasSubstr("but 1024 bytes from offset 4 on were requested"));
}

}  // namespace
}  // namespace shoal::models
