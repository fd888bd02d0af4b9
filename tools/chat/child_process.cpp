#include "tools/chat/child_process.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <memory>
#include <system_error>
#include <thread>

#include "base/error.h"
#include "tools/cli/interrupt.h"

namespace shoal::tools {
namespace {

using Clock = std::chrono::steady_clock;
using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

void require_call(bool worked, const std::string& program, int code) {
  require<DeviceError>(worked, "{} cannot be started: {}; check that it is installed and in PATH", program,
                       std::generic_category().message(code));
}

/// Creates an unnamed file for input or output of the child. With pipes instead of files, the parent and the child
/// could wait for each other forever when a pipe is full.
File memory_file(const std::string& program) {
  const int number = memfd_create("shoal", MFD_CLOEXEC);
  require_call(number >= 0, program, errno);
  return {fdopen(number, "w+"), std::fclose};
}

pid_t start(const std::vector<std::string>& arguments, int in, int out) {
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, in, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&files, out, STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&files, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  // The child gets its own process group, which Ctrl-C does not reach.
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF);
  posix_spawnattr_setpgroup(&attributes, 0);
  sigset_t usual;
  sigemptyset(&usual);
  sigaddset(&usual, SIGPIPE);
  posix_spawnattr_setsigdefault(&attributes, &usual);
  pid_t child = -1;
  const int code = posix_spawnp(&child, argv[0], &files, &attributes, argv.data(), environ);
  posix_spawn_file_actions_destroy(&files);
  posix_spawnattr_destroy(&attributes);
  require_call(code == 0, arguments.front(), code);
  return child;
}

/// Waits until the child exits, a signal arrives, or the time `longest` has passed. Then kills the process group of the
/// child: the child, if it still runs, and all processes that the child started. Returns whether the child exited in
/// time.
bool wait_for(pid_t child, std::chrono::milliseconds longest, int& status) {
  constexpr std::chrono::milliseconds kPollInterval{2};
  const Clock::time_point deadline = Clock::now() + longest;
  siginfo_t info{};
  const auto runs = [&] {
    return waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == 0;
  };
  while (runs() && !interrupted() && Clock::now() < deadline) std::this_thread::sleep_for(kPollInterval);
  const bool has_exited = !runs();
  kill(-child, SIGKILL);  // before waitpid(), while the process group id is still valid
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
  stop_if_interrupted();
  return has_exited;
}

}  // namespace

ChildAnswer ask_child(const std::vector<std::string>& arguments, std::string_view input,
                      std::chrono::milliseconds longest) {
  const std::string& program = arguments.front();
  const File in = memory_file(program), out = memory_file(program);
  const bool filled = std::fwrite(input.data(), 1, input.size(), in.get()) == input.size();
  require_call(filled && std::fflush(in.get()) == 0 && lseek(fileno(in.get()), 0, SEEK_SET) == 0, program, errno);
  int status = 0;
  if (!wait_for(start(arguments, fileno(in.get()), fileno(out.get())), longest, status)) {
    return {.end = ChildEnd::kTookTooLong, .code = 0, .out = ""};
  }
  ChildAnswer answer;
  answer.out.resize(static_cast<size_t>(lseek(fileno(out.get()), 0, SEEK_END)));
  lseek(fileno(out.get()), 0, SEEK_SET);
  answer.out.resize(std::fread(answer.out.data(), 1, answer.out.size(), out.get()));
  if (WIFSIGNALED(status)) answer.end = ChildEnd::kKilled;
  answer.code = WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
  return answer;
}

}  // namespace shoal::tools
