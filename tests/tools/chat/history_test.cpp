// The history of `shoal chat` at a terminal: a file of its own, or none.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>

#include "tests/support/temporary.h"
#include "tests/tools/child.h"

namespace shoal::tools {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

/// What a terminal shows of a conversation without questions; it ends with code 0 within a minute.
std::string converse(const std::filesystem::path& state, const std::vector<std::string>& more = {}) {
  int terminal = -1;
  const pid_t pid = forkpty(&terminal, nullptr, nullptr, nullptr);
  if (pid == 0) {
    std::vector<std::string> args{SHOAL_PROGRAM, "chat", "-m", kModel, "-dev", "CPU0", "-n", "1"};
    args.insert(args.end(), more.begin(), more.end());
    std::vector<char*> argv;
    for (std::string& arg : args) argv.push_back(arg.data());
    argv.push_back(nullptr);
    setenv("XDG_STATE_HOME", state.c_str(), 1);
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    setenv("TERM", "vt100", 1);
    execv(SHOAL_PROGRAM, argv.data());
    _exit(127);
  }
  std::string seen;
  bool typed = false;
  pollfd wait{terminal, POLLIN, 0};
  for (char part[4096]; poll(&wait, 1, 60'000) > 0;) {
    const ssize_t count = read(terminal, part, sizeof(part));
    if (count <= 0) break;
    seen.append(part, static_cast<size_t>(count));
    if (typed || seen.find("> ") == std::string::npos) continue;
    EXPECT_EQ(write(terminal, "\x04", 1), 1);
    typed = true;
  }
  if (!typed) kill(pid, SIGKILL);
  int status = 0;
  waitpid(pid, &status, 0);
  close(terminal);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status << ": " << seen;
  return seen;
}

struct State {
  State() { std::filesystem::create_directories(file.parent_path()); }
  const test::TemporaryFolder folder;
  const std::filesystem::path file = folder.path() / "shoal/chat_history";
};

TEST(History, IsWrittenAndReplacedWhereItIsOne) {
  const State state;
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(converse(state.folder.path()), Not(HasSubstr("chat_history")));
    EXPECT_THAT(test::text_of(state.file), StartsWith("_HiStOrY_V2_"));
  }
}

TEST(History, AFileThatIsNoneIsNeitherReadNorReplaced) {
  const State state;
  std::ofstream(state.file) << "precious";
  EXPECT_THAT(converse(state.folder.path()), HasSubstr("is not a history of shoal chat, and would be lost; "));
  EXPECT_EQ(test::text_of(state.file), "precious");
}

TEST(History, AnInputIsNotReplaced) {
  const State state;
  const std::string text = "_HiStOrY_V2_\nWho?\n";
  std::ofstream(state.file) << text;
  EXPECT_THAT(converse(state.folder.path(), {"-f", state.file}), HasSubstr("this command reads it"));
  EXPECT_EQ(test::text_of(state.file), text);
}

TEST(History, APipeAFolderAndADeviceAreNoneAndNotWaitedFor) {
  const State pipe, folder, device;
  ASSERT_EQ(mkfifo(pipe.file.c_str(), 0600), 0);
  std::filesystem::create_directory(folder.file);
  std::filesystem::create_symlink("/dev/full", device.file);
  for (const State* state : {&pipe, &folder, &device}) {
    EXPECT_THAT(converse(state->folder.path()),
                HasSubstr("chat_history: is not a regular file; questions are not kept"));
  }
}

}  // namespace
}  // namespace shoal::tools
