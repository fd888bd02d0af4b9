#include "tools/chat/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <system_error>
#include <utility>

#include "base/error.h"

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

/// Reads until the end, or until a limit is broken.
ChildEnd read_answer(int from, const ChildLimits& limits, std::string& out) {
  const Clock::time_point deadline = Clock::now() + limits.time;
  std::array<char, 1 << 16> part;
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return ChildEnd::kTookTooLong;
    pollfd wait{from, POLLIN, 0};
    if (poll(&wait, 1, static_cast<int>(left)) <= 0) continue;  // interrupted, or the time is over
    const ssize_t count = read(from, part.data(), part.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return ChildEnd::kExited;
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
  const pid_t child = start(arguments, in.get(), to.get());
  to.reset();
  ChildAnswer answer;
  try {
    answer.end = read_answer(from.get(), limits, answer.out);
  } catch (...) {
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    throw;
  }
  // One that has closed its output has nothing more to say.
  if (answer.end != ChildEnd::kExited) kill(child, SIGKILL);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
  if (answer.end != ChildEnd::kExited) return answer;
  if (WIFSIGNALED(status)) answer.end = ChildEnd::kKilled;
  answer.code = WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
  return answer;
}

}  // namespace shoal::tools
