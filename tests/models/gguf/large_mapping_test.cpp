// Tests models that are larger than the memory of the machine. The weights of these models stay in the file mapping.
// The files are sparse and never read.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>

#include <cstdio>
#include <fstream>

#include "base/error.h"
#include "models/session/loader.h"
#include "tests/models/hollow_model.h"
#include "tests/models/tiny_model.h"
#include "tests/support/temporary.h"

namespace shoal::models {
namespace {

using ::testing::HasSubstr;

/// Sum of the memory and swap of this machine in bytes. A copy of the weights cannot be larger than this sum.
size_t all_memory() {
  struct sysinfo info{};
  EXPECT_EQ(sysinfo(&info), 0);
  return (static_cast<size_t>(info.totalram) + info.totalswap) * info.mem_unit;
}

int overcommit_mode() {
  return std::stoi(test::text_of("/proc/sys/vm/overcommit_memory"));
}

/// A file whose weights are 1.5 times as large as all_memory().
class LargeMapping : public ::testing::Test {
 protected:
  void SetUp() override {
    constexpr int64_t kEmbd = 8192;
    const auto ff = static_cast<int64_t>(all_memory() / 2 / sizeof(float) / kEmbd);
    HollowModel hollow(1, kEmbd, ff, 64, 8, 1024);
    hollow.dtype = all_of(DType::kF32);
    try {
      hollow.write(path_);
    } catch (const std::filesystem::filesystem_error& error) {
      GTEST_SKIP() << "no sparse file of this size is possible here: " << error.what();
    }
    ASSERT_GT(std::filesystem::file_size(path_), all_memory());
  }

  const test::TemporaryFolder folder_;
  const std::string path_ = folder_.path() / "large.gguf";
};

TEST_F(LargeMapping, WritesToMappingDoNotChangeFile) {
  if (overcommit_mode() == 2) GTEST_SKIP() << "the system reserves memory for all writable pages";
  GgufFile file(path_);
  const std::span<std::byte> bytes = file.unlock_tensors();
  ASSERT_EQ(bytes.size(), file.tensor_span().size());
  bytes.front() = bytes.back() = std::byte{7};
  EXPECT_EQ(*file.tensor_span().data(), std::byte{7});
  std::ifstream stored(path_, std::ios::binary);
  stored.seekg(-1, std::ios::end);
  EXPECT_EQ(stored.get(), 0);
}

/// Size of the data segment of this process in bytes (VmData). `ulimit -d` limits this size.
size_t data_bytes() {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("VmData:")) return std::stoull(line.substr(7)) << 10;
  }
  return 0;
}

TEST_F(LargeMapping, ErrorNamesRemedyIfSystemRefusesMapping) {
  auto model = open_model(path_);
  const auto load = [&] {
    const size_t most = data_bytes() + (size_t{1} << 30);
    const rlimit limit{most, most};
    if (setrlimit(RLIMIT_DATA, &limit) != 0) std::_Exit(2);
    try {
      load_weights(*model, Placement(*model, cpu_devices(1)));
    } catch (const DeviceError& error) {
      std::fprintf(stderr, "%s\n", error.what());
      std::_Exit(1);
    }
    std::_Exit(0);
  };
  EXPECT_EXIT(load(), ::testing::ExitedWithCode(1),
              "large.gguf: the system refuses a writable mapping for .* of weights, and CPU0 has only .* free for a "
              "copy; remove the limit .vm.overcommit_memory=2 or ulimit -d., or use a smaller model");
}

}  // namespace
}  // namespace shoal::models
