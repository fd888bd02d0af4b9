#include "devices/cache_file.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "graph/error.h"

namespace shoal {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

std::string text_of(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(CacheFile, IsWrittenWholeInFoldersThatItMakes) {
  const std::filesystem::path folder = testing::TempDir() + "shoal_cache_file";
  std::filesystem::remove_all(folder);
  const std::filesystem::path path = folder / "a" / "file.json";
  write_cache_file(path, "first", "VARIABLE");
  write_cache_file(path, "second", "VARIABLE");
  EXPECT_EQ(text_of(path), "second");
  const auto files = std::filesystem::directory_iterator(path.parent_path());
  EXPECT_EQ(std::distance(begin(files), end(files)), 1) << "no draft is left";
  std::filesystem::remove_all(folder);
}

TEST(CacheFile, WhatIsNoFileIsNotReplaced) {
  if (!std::filesystem::is_character_file("/dev/full")) GTEST_SKIP() << "there is no /dev/full";
  EXPECT_THAT([] { write_cache_file("/dev/full", "text", "VARIABLE"); },
              ThrowsMessage<DeviceError>(HasSubstr("/dev/full: cannot be written: No space left on device; name")));
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/full"));
  EXPECT_THAT([] { write_cache_file("/proc/nothing/file.json", "text", "VARIABLE"); },
              ThrowsMessage<DeviceError>(HasSubstr("name another file in VARIABLE")));
}

}  // namespace
}  // namespace shoal
