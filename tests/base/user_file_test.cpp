#include "base/user_file.h"

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <stdexcept>
#include <thread>

#include "tests/support/temporary.h"

namespace shoal {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr OutputKind kKind{"trace", "{", "\"traceEvents\""};

std::string make(const test::TemporaryFolder& folder, const char* name, const std::string& text) {
  std::string path = folder.path() / name;
  std::ofstream(path) << text;
  return path;
}

void expect_refused(const std::string& path, const std::string& message, bool force = false) {
  EXPECT_THAT([&] { check_output(path, kKind, "name another file", force); },
              ThrowsMessage<OutputRefused>(HasSubstr(path + ": " + message)));
}

TEST(UserFile, OpeningWaitsForNothing) {
  const test::TemporaryFolder folder;
  const std::string pipe = folder.path() / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const auto refuses = [](const std::string& path, const std::string& message) {
    EXPECT_THAT([&] { read_file({.path = path, .what = "profile"}); },
                ThrowsMessage<InvalidArgument>(HasSubstr(path + ": " + message)));
  };
  refuses(pipe, "is not a regular file; copy the profile to one");
  refuses("/dev/zero", "is not a regular file");
  refuses(folder.path(), "is a directory, not a profile; check the path and its permissions");
  refuses(folder.path() / "none", "cannot open the profile: No such file or directory; check the path");
}

TEST(UserFile, AStreamIsAwaitedAndReadToItsEnd) {
  const test::TemporaryFolder folder;
  const std::string pipe = folder.path() / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const auto read = [&](std::function<void()> poll) {
    return read_file({.path = pipe, .what = "prompt", .takes_streams = true, .poll = std::move(poll)});
  };
  int polls = 0;
  EXPECT_THROW(read([&] {
                 if (++polls == 3) throw std::runtime_error("stop");
               }),
               std::runtime_error)
      << "without a writer";
  std::thread writer([&] {
    std::ofstream file(pipe);
    file << "one " << std::flush;
    std::this_thread::sleep_for(std::chrono::milliseconds(120));
    file << "two";
  });
  EXPECT_EQ(read({}), "one two");
  writer.join();
}

TEST(UserFile, HasALargestSize) {
  EXPECT_THAT([] { read_file({.path = "/dev/zero", .what = "prompt", .takes_streams = true, .most_bytes = 100'000}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("/dev/zero: has more than 97.7 KiB, too much for a prompt")));
}

TEST(CheckOutput, AllowsWhatIsNotThereEmptyOrOfItsKind) {
  const test::TemporaryFolder folder;
  EXPECT_NO_THROW(check_output(folder.path() / "none", kKind, ""));
  EXPECT_NO_THROW(check_output(make(folder, "empty", ""), kKind, ""));
  EXPECT_NO_THROW(check_output(make(folder, "own", " {\"a\": 1, \"traceEvents\":[]}"), kKind, ""));
  EXPECT_NO_THROW(check_output("/dev/null", kKind, ""));
}

TEST(CheckOutput, RefusesOtherFilesUnlessForced) {
  const test::TemporaryFolder folder;
  for (const char* text : {"GGUF", "\n", "{}", "[\"traceEvents\"]"}) {
    const std::string path = make(folder, "file", text);
    expect_refused(path, "is not a trace, and would be lost; name another file");
    EXPECT_NO_THROW(check_output(path, kKind, "", true));
    EXPECT_EQ(test::text_of(path), text);
  }
}

TEST(CheckOutput, RefusesInputsByAnyName) {
  const test::TemporaryFolder folder;
  const std::string path = make(folder, "input", "{\"traceEvents\": []}");
  EXPECT_NO_THROW(check_output(path, kKind, ""));
  EXPECT_EQ(read_file({.path = path, .what = "prompt"}), "{\"traceEvents\": []}");
  const std::string symbolic = folder.path() / "symbolic", hard = folder.path() / "hard";
  std::filesystem::create_symlink("input", symbolic);
  std::filesystem::create_hard_link(path, hard);
  for (const std::string& name : {path, symbolic, hard, (folder.path() / "." / "input").string()}) {
    expect_refused(name, "this command reads it; name another file for the trace");
    expect_refused(name, "this command reads it", true);
  }
  std::filesystem::remove(path);
  EXPECT_NO_THROW(check_output(hard, kKind, "")) << "the file that was read is gone";
}

TEST(CheckOutput, AFileOfTheProgramItselfIsNoInput) {
  const test::TemporaryFolder folder;
  const std::string path = make(folder, "kept", "{\"traceEvents\": []}");
  read_file({.path = path, .what = "cache", .is_kept = true});
  EXPECT_NO_THROW(check_output(path, kKind, ""));
}

}  // namespace
}  // namespace shoal
