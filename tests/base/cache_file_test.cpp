#include "base/cache_file.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <optional>
#include <string>

#include "base/error.h"
#include "base/user_file.h"
#include "tests/support/environment.h"
#include "tests/support/temporary.h"

namespace shoal {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

CacheFile own(const std::filesystem::path& path) {
  return {path, "VARIABLE"};
}

TEST(CacheFile, WritesWholeFilesAndCreatesFolders) {
  const test::TemporaryFolder folder;
  const std::filesystem::path path = folder.path() / "a" / "file.json";
  write_cache_file(own(path), "first");
  check_cache_file(own(path));
  EXPECT_EQ(read_cache_file(own(path)), "first");
  write_cache_file(own(path), "second");
  EXPECT_EQ(test::text_of(path), "second");
  const auto files = std::filesystem::directory_iterator(path.parent_path());
  EXPECT_EQ(std::distance(begin(files), end(files)), 1) << "the temporary file was removed";
}

TEST(CacheFile, ReplacesOnlyRegularFiles) {
  EXPECT_EQ(read_cache_file(own("/dev/null")), "");
  EXPECT_THAT(
      [] { write_cache_file(own("/dev/null"), "text"); },
      ThrowsMessage<DeviceError>(HasSubstr("/dev/null: is not a regular file; set VARIABLE to a regular file")));
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
  EXPECT_THAT([] { check_cache_file(own("/proc/nothing/file.json")); },
              ThrowsMessage<DeviceError>(
                  HasSubstr("cannot be written: No such file or directory; set VARIABLE to another file")));
}

TEST(CacheFile, DoesNotReplaceInputs) {
  const test::TemporaryFolder folder;
  const std::filesystem::path path = folder.path() / "model.gguf";
  write_cache_file(own(path), "weights");
  read_file({.path = path.string(), .what = "model file"});
  EXPECT_THAT([&] { write_cache_file(own(path), "text"); },
              ThrowsMessage<OutputRefused>(HasSubstr("is also an input file; name another file for the cache")));
  EXPECT_EQ(test::text_of(path), "weights");
}

TEST(CacheFile, RefusesToWriteWithoutHome) {
  const test::Environment cache("XDG_CACHE_HOME", std::nullopt), home("HOME", std::nullopt);
  const CacheFile none = cache_file("SHOAL_NO_SUCH_FILE", "file.json");
  EXPECT_EQ(read_cache_file(none), "");
  EXPECT_THAT([&] { write_cache_file(none, "text"); },
              ThrowsMessage<DeviceError>(HasSubstr("HOME is not set; set HOME, or set SHOAL_NO_SUCH_FILE to a file")));
}

}  // namespace
}  // namespace shoal
