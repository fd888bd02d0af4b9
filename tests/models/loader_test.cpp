// Loading: every byte arrives, whatever the devices; a load that is stopped or fails leaves the model as it was.
#include "models/loader.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "graph/error.h"
#include "tests/models/synthetic_model.h"
#include "tests/models/tiny_model.h"

namespace shoal::models {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "nothing was thrown";
}

/// The bytes of a tensor of the file differ from those on the devices.
std::vector<std::string> wrong_tensors(const Model& model) {
  std::vector<std::string> wrong;
  for (const Tensor* tensor : model.weights.tensors()) {
    const GgufTensor& source = model.file.tensor(tensor->name);
    std::vector<std::byte> bytes(source.bytes);
    tensor_get(*tensor, bytes.data(), 0, bytes.size());
    if (!std::equal(bytes.begin(), bytes.end(), source.data)) wrong.push_back(tensor->name);
  }
  return wrong;
}

TEST(Loader, EveryByteArrives) {
  SyntheticModel large;  // tensors of several pieces, whose ends are inside rows
  large.h.vocab = 9001, large.h.ff = 5000, large.h.experts = 3, large.h.experts_used = 1;
  for (DType dtype : {DType::kF32, DType::kF16}) {
    large.dtype = dtype;
    const std::string path = large.write();
    for (const char* ratio : {"1", "1,1", "5,0,2", "1,2,3,4,5"}) {
      auto model = open_model(path);
      const int devices = static_cast<int>(std::count(ratio, ratio + std::strlen(ratio), ',')) + 1;
      Placement placement(*model, cpu_devices(devices), {ratio, 1});
      load_weights(*model, placement.device());
      EXPECT_EQ(wrong_tensors(*model), std::vector<std::string>()) << ratio;
      model->buffer.reset();
    }
  }
}

TEST(Loader, ReportsProgressAndRefusesASecondTime) {
  for (int devices : {1, 3}) {
    auto model = open_model(tiny_model_path("q8_0"));
    Placement placement(*model, cpu_devices(devices), {{}, 1});
    size_t last = 0, total = 0;
    load_weights(*model, placement.device(), [&](size_t done, size_t all) {
      EXPECT_GT(done, last);
      last = done, total = all;
    });
    EXPECT_EQ(last, total);
    EXPECT_EQ(total, model->file.tensor_bytes());
    EXPECT_THAT(message_of([&] { load_weights(*model, placement.device()); }), HasSubstr("is loaded already"));
    model->buffer.reset();
  }
}

TEST(Loader, LeavesTheModelUnloadedWhenItIsStopped) {
  auto model = open_model(tiny_model_path("q8_0"));
  Placement placement(*model, cpu_devices(2), {{}, 1});
  struct Stop {};
  EXPECT_THROW(load_weights(*model, placement.device(), [](size_t, size_t) { throw Stop(); }), Stop);
  EXPECT_EQ(model->buffer, nullptr);
  load_weights(*model, placement.device());
  EXPECT_NE(model->buffer, nullptr);
  model->buffer.reset();
}

TEST(Loader, SaysThatTheFileHasBecomeShorter) {
  for (int devices : {1, 3}) {
    const std::string path = SyntheticModel().write();
    const size_t size = std::filesystem::file_size(path);
    auto model = open_model(path);
    Placement placement(*model, cpu_devices(devices), {{}, 1});
    for (size_t missing : {size_t{1}, size_t{40000}}) {
      std::filesystem::resize_file(path, size - missing);
      const std::string message = message_of([&] { load_weights(*model, placement.device()); });
      EXPECT_THAT(message, StartsWith(fmt::format("{}: the file ends at byte {}, it had {} when it was opened; another "
                                                  "program writes to it",
                                                  path, size - missing, size)));
      EXPECT_EQ(message.find('\n'), std::string::npos);
      EXPECT_EQ(model->buffer, nullptr);
    }
    // It goes on once the file is whole again.
    std::filesystem::remove(path);
    EXPECT_EQ(SyntheticModel().write(), path);
    model = open_model(path);
    Placement again(*model, cpu_devices(devices), {{}, 1});
    load_weights(*model, again.device());
    EXPECT_EQ(wrong_tensors(*model), std::vector<std::string>());
    model->buffer.reset();
  }
}

TEST(Loader, ReadsOnlyWhatATensorHas) {
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
              EndsWith("tensor 'output_norm.weight' has 1024 bytes, asked for 1025 from 0 on"));
  EXPECT_THAT(read(4, norm.bytes), HasSubstr("asked for 1024 from 4 on"));
  EXPECT_THAT(read(SIZE_MAX, 1), HasSubstr("asked for 1 from"));
}

}  // namespace
}  // namespace shoal::models
