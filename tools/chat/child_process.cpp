#include "tools/chat/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "tools/cli/interrupt.h"

namespace shoal::tools {
namespace {

using Clock = std::chrono::steady_clock;

class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  ~Descriptor() { reset(); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return value_; }
  void reset() {
    if (value_ >= 0) close(std::exchange(value_, -1));
  }

 private:
  int value_;
};

void require_call(bool worked, const std::string& program, int code) {
  require<DeviceError>(worked, "{} cannot be started: {}; check that it is installed and in PATH", program,
                       std::generic_category().message(code));
}

/// A file without a name: however long the input is, this program does not wait until it is read.
void fill(int file, std::string_view input, const std::string& program) {
  for (size_t done = 0; done < input.size();) {
    const ssize_t count = write(file, input.data() + done, input.size() - done);
    if (count < 0 && errno == EINTR) continue;
    require_call(count > 0, program, errno);
    done += static_cast<size_t>(count);
  }
  require_call(lseek(file, 0, SEEK_SET) == 0, program, errno);
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
  // A process group of its own, which Ctrl-C does not reach.
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

/// The child and the processes that it has started, which are gone when this object is.
class Group {
 public:
  explicit Group(pid_t leader) : leader_(leader) {}
  ~Group() { end(); }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  bool has_exited() const {
    siginfo_t info{};
    return waitid(P_PID, static_cast<id_t>(leader_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0;
  }
  /// Kills all and returns the child's status.
  int end() {
    if (leader_ < 0) return 0;
    int status = 0;
    kill(-leader_, SIGKILL);  // before the wait, so that the number is still theirs
    while (waitpid(leader_, &status, 0) < 0 && errno == EINTR) continue;
    leader_ = -1;
    return status;
  }

 private:
  pid_t leader_;
};

/// Waits so long at most, and no longer than until it is time to look for interrupts.
int milliseconds_to(Clock::time_point deadline, int most) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, most));
}

/// Reads to the end of the output and waits until the child has exited, or a limit is broken. Throws Interrupted.
ChildEnd follow(const Group& group, int from, const ChildLimits& limits, std::string& out) {
  constexpr int kReadMs = 50, kExitMs = 2;
  const Clock::time_point deadline = Clock::now() + limits.time;
  std::vector<char> part(size_t{1} << 16);
  for (bool reads = true;;) {
    stop_if_interrupted();
    if (!reads && group.has_exited()) return ChildEnd::kExited;
    if (Clock::now() >= deadline) return ChildEnd::kTookTooLong;
    pollfd wait{reads ? from : -1, POLLIN, 0};
    if (poll(&wait, 1, milliseconds_to(deadline, reads ? kReadMs : kExitMs)) <= 0) continue;
    const ssize_t count = read(from, part.data(), part.size());
    if (count < 0 && errno == EINTR) continue;
    reads = count > 0;
    if (!reads) continue;
    out.append(part.data(), static_cast<size_t>(count));
    if (out.size() > limits.output) return ChildEnd::kSaidTooMuch;
  }
}

}  // namespace

ChildAnswer ask_child(const std::vector<std::string>& arguments, std::string_view input, const ChildLimits& limits) {
  const std::string& program = arguments.front();
  const Descriptor in(memfd_create("input", MFD_CLOEXEC));
  require_call(in.get() >= 0, program, errno);
  fill(in.get(), input, program);
  int ends[2];
  require_call(pipe2(ends, O_CLOEXEC) == 0, program, errno);
  const Descriptor from(ends[0]);
  Descriptor to(ends[1]);
  Group group(start(arguments, in.get(), to.get()));
  to.reset();
  ChildAnswer answer;
  answer.end = follow(group, from.get(), limits, answer.out);
  const int status = group.end();
  if (answer.end != ChildEnd::kExited) return answer;
  if (WIFSIGNALED(status)) answer.end = ChildEnd::kKilled;
  answer.code = WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
  return answer;
}

}  // namespace shoal::tools
