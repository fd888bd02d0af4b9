#include "base/user_file.h"

#include <fcntl.h>
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

TEST(UserFile, RefusesPipesDevicesAndFoldersWithoutBlocking) {
  const test::TemporaryFolder folder;
  const std::string pipe = folder.path() / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const auto refuses = [](const std::string& path, const std::string& message) {
    EXPECT_THAT([&] { read_file({.path = path, .what = "profile"}); },
                ThrowsMessage<InvalidArgument>(HasSubstr(path + ": " + message)));
  };
  refuses(pipe, "is not a regular file; copy the profile to a regular file");
  refuses("/dev/zero", "is not a regular file");
  refuses(folder.path(), "is a directory, not a profile; check the path and its permissions");
  refuses(folder.path() / "none", "cannot open the profile: No such file or directory; check the path");
}

TEST(UserFile, WaitsForPipeWriterAndReadsUntilEnd) {
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
      << "the pipe has no writer";
  std::thread writer([&] {
    std::ofstream file(pipe);
    file << "one " << std::flush;
    std::this_thread::sleep_for(std::chrono::milliseconds(120));
    file << "two";
  });
  EXPECT_EQ(read({}), "one two");
  writer.join();
}

TEST(UserFile, LimitsFileSize) {
  EXPECT_THAT([] { read_file({.path = "/dev/zero", .what = "prompt", .takes_streams = true, .most_bytes = 100'000}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("/dev/zero: is larger than 97.7 KiB, the limit for a prompt")));
}

TEST(CheckOutput, RefusesInputFileUnderAnyPath) {
  const test::TemporaryFolder folder;
  const std::string path = folder.path() / "input";
  std::ofstream(path) << "text";
  EXPECT_NO_THROW(check_output(path, "trace"));
  EXPECT_NO_THROW(check_output(folder.path() / "none", "trace"));
  EXPECT_EQ(read_file({.path = path, .what = "prompt"}), "text");
  const std::string symbolic = folder.path() / "symbolic", hard = folder.path() / "hard";
  std::filesystem::create_symlink("input", symbolic);
  std::filesystem::create_hard_link(path, hard);
  for (const std::string& name : {path, symbolic, hard, (folder.path() / "." / "input").string()}) {
    EXPECT_THAT(
        [&] { check_output(name, "trace"); },
        ThrowsMessage<OutputRefused>(HasSubstr(name + ": is also an input file; name another file for the trace")));
  }
  std::filesystem::remove(path);
  EXPECT_NO_THROW(check_output(hard, "trace")) << "the file that was read was removed";
}

TEST(CheckOutput, RefusesTheFileThatReceivesStdout) {
  const test::TemporaryFolder folder;
  const std::string path = folder.path() / "rows";
  const int before = dup(STDOUT_FILENO), file = open(path.c_str(), O_WRONLY | O_CREAT, 0600);
  dup2(file, STDOUT_FILENO);
  EXPECT_THAT([&] { check_output(path, "trace"); },
              ThrowsMessage<OutputRefused>(
                  HasSubstr("stdout or stderr of this command is written to this file; name another file")));
  dup2(before, STDOUT_FILENO);
  close(before), close(file);
  EXPECT_NO_THROW(check_output(path, "trace"));
}

}  // namespace
}  // namespace shoal
