#include "base/cache_file.h"

#include <gmock/gmock.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>

#include "base/error.h"
#include "tests/support/environment.h"
#include "tests/support/temporary.h"

namespace shoal {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

CacheFile own(const std::filesystem::path& path, std::string_view beginning = "") {
  return {path, "VARIABLE", {"cache", beginning}};
}

TEST(CacheFile, IsWrittenWholeInFoldersThatItMakes) {
  const test::TemporaryFolder folder;
  const std::filesystem::path path = folder.path() / "a" / "file.json";
  write_cache_file(own(path), "first");
  write_cache_file(own(path), "second");
  EXPECT_EQ(test::text_of(path), "second");
  const auto files = std::filesystem::directory_iterator(path.parent_path());
  EXPECT_EQ(std::distance(begin(files), end(files)), 1) << "no draft is left";
}

TEST(CacheFile, WhatIsNoFileIsNotReplaced) {
  if (!std::filesystem::is_character_file("/dev/full")) GTEST_SKIP() << "there is no /dev/full";
  EXPECT_THAT([] { write_cache_file(own("/dev/full"), "text"); },
              ThrowsMessage<DeviceError>(HasSubstr("/dev/full: cannot be written: No space left on device; name")));
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/full"));
  EXPECT_THAT([] { write_cache_file(own("/proc/nothing/file.json"), "text"); },
              ThrowsMessage<DeviceError>(HasSubstr("name another file in VARIABLE")));
}

TEST(CacheFile, AnotherFileIsNotReplaced) {
  const test::TemporaryFile file("cache.json", "GGUF");
  const auto refused = ThrowsMessage<OutputRefused>(
      HasSubstr("is not a cache, and would be lost; move it away, or name another file in VARIABLE"));
  EXPECT_THAT([&] { check_cache_file(own(file.path, "{")); }, refused);
  EXPECT_THAT([&] { write_cache_file(own(file.path, "{"), "{}"); }, refused);
  EXPECT_EQ(file.text(), "GGUF");
}

TEST(CacheFile, IsInTheHomeOfTheUserWhereNoneIsSet) {
  const passwd* user = getpwuid(getuid());
  if (user == nullptr) GTEST_SKIP() << "the user has no entry";
  const test::Environment cache("XDG_CACHE_HOME", std::nullopt);
  for (const test::Environment::Value& home : {test::Environment::Value{}, test::Environment::Value{""}}) {
    const test::Environment environment("HOME", home);
    EXPECT_EQ(cache_file("SHOAL_NO_SUCH_FILE", "file.json"), std::string(user->pw_dir) + "/.cache/shoal/file.json");
  }
}

TEST(CacheFile, WithoutAHomeIsNotWritten) {
  EXPECT_EQ(read_cache_file(own("")), "");
  EXPECT_THAT([] { write_cache_file(own(""), "text"); },
              ThrowsMessage<DeviceError>(HasSubstr("HOME is not set; set it, or name a file in VARIABLE")));
}

TEST(CacheFile, APipeIsRefusedAndNotWaitedFor) {
  const test::TemporaryFolder folder;
  const std::filesystem::path pipe = folder.path() / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const auto refused = ThrowsMessage<InvalidArgument>(HasSubstr("pipe: is no regular file; name one in VARIABLE"));
  EXPECT_THAT([&] { read_cache_file(own(pipe)); }, refused);
  EXPECT_THAT([&] { check_cache_file(own(pipe)); }, refused);
  EXPECT_THAT([&] { write_cache_file(own(pipe), "text"); }, refused);
}

}  // namespace
}  // namespace shoal
