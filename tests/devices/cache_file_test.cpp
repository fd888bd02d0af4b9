#include "devices/cache_file.h"

#include <gmock/gmock.h>

#include <filesystem>

#include "graph/error.h"
#include "tests/support/temporary.h"

namespace shoal {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(CacheFile, IsWrittenWholeInFoldersThatItMakes) {
  const test::TemporaryFolder folder;
  const std::filesystem::path path = folder.path() / "a" / "file.json";
  write_cache_file(path, "first", "VARIABLE");
  write_cache_file(path, "second", "VARIABLE");
  EXPECT_EQ(test::text_of(path), "second");
  const auto files = std::filesystem::directory_iterator(path.parent_path());
  EXPECT_EQ(std::distance(begin(files), end(files)), 1) << "no draft is left";
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
