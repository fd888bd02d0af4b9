#include "tools/cli/child_process.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <memory>
#include <optional>
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

/// `is_apart`: whether the child gets its own process group, which Ctrl-C does not reach, and no standard error.
pid_t start(const std::vector<std::string>& arguments, int in, int out, bool is_apart) {
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, in, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&files, out, STDOUT_FILENO);
  if (is_apart) posix_spawn_file_actions_addopen(&files, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes,
                           static_cast<short>(POSIX_SPAWN_SETSIGDEF | (is_apart ? POSIX_SPAWN_SETPGROUP : 0)));
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

bool runs(pid_t child) {
  siginfo_t info{};
  return waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == 0;
}

/// Returns the status of a child that has exited or will exit soon.
int status_of(pid_t child) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
  return status;
}

/// Waits until the child exits, a signal arrives, or the time `longest` has passed. Then kills the process group of the
/// child: the child, if it still runs, and all processes that the child started. Returns whether the child exited in
/// time.
bool wait_for(pid_t child, std::chrono::milliseconds longest, int& status) {
  constexpr std::chrono::milliseconds kPollInterval{2};
  const Clock::time_point deadline = Clock::now() + longest;
  while (runs(child) && !interrupted() && Clock::now() < deadline) std::this_thread::sleep_for(kPollInterval);
  const bool has_exited = !runs(child);
  kill(-child, SIGKILL);  // before waitpid(), while the process group id is still valid
  status = status_of(child);
  stop_if_interrupted();
  return has_exited;
}

ChildAnswer answer_of(std::FILE* out, int status) {
  ChildAnswer answer;
  answer.out.resize(static_cast<size_t>(lseek(fileno(out), 0, SEEK_END)));
  lseek(fileno(out), 0, SEEK_SET);
  answer.out.resize(std::fread(answer.out.data(), 1, answer.out.size(), out));
  if (WIFSIGNALED(status)) answer.end = ChildEnd::kKilled;
  answer.code = WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
  return answer;
}

/// Records signals like catch_interrupts(), but only during the lifetime of the object.
class CaughtInterrupts {
 public:
  CaughtInterrupts() {
    for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], nullptr, &before_[i]);
    catch_interrupts();
  }
  ~CaughtInterrupts() {
    for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &before_[i], nullptr);
  }
  CaughtInterrupts(const CaughtInterrupts&) = delete;
  CaughtInterrupts& operator=(const CaughtInterrupts&) = delete;

 private:
  static constexpr std::array kSignals{SIGINT, SIGTERM};
  std::array<struct sigaction, kSignals.size()> before_{};
};

}  // namespace

ChildAnswer ask_child(const std::vector<std::string>& arguments, std::string_view input,
                      std::chrono::milliseconds longest) {
  const std::string& program = arguments.front();
  const File in = memory_file(program), out = memory_file(program);
  const bool filled = std::fwrite(input.data(), 1, input.size(), in.get()) == input.size();
  require_call(filled && std::fflush(in.get()) == 0 && lseek(fileno(in.get()), 0, SEEK_SET) == 0, program, errno);
  int status = 0;
  if (!wait_for(start(arguments, fileno(in.get()), fileno(out.get()), true), longest, status)) {
    return {.end = ChildEnd::kTookTooLong, .code = 0, .out = ""};
  }
  return answer_of(out.get(), status);
}

ChildAnswer ask_long(const std::vector<std::string>& arguments) {
  constexpr std::chrono::milliseconds kPollInterval{5};
  constexpr std::chrono::seconds kGrace{1};
  const std::string& program = arguments.front();
  const File in = memory_file(program), out = memory_file(program);
  const CaughtInterrupts caught;
  const pid_t child = start(arguments, fileno(in.get()), fileno(out.get()), false);
  std::optional<Clock::time_point> stopped;
  bool is_told = false;
  while (runs(child)) {
    std::this_thread::sleep_for(kPollInterval);
    if (interrupted() && !stopped) stopped = Clock::now();
    if (!stopped || is_told || Clock::now() - *stopped < kGrace) continue;
    kill(child, SIGINT);
    is_told = true;
  }
  const int status = status_of(child);
  stop_if_interrupted();
  return answer_of(out.get(), status);
}

}  // namespace shoal::tools
