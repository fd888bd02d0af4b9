// Runs the program as a separate process and captures its output.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/temporary.h"

namespace shoal::tools {

inline const std::string kClosed = "-";

/// The environment, files and limits of a child process.
struct ChildOptions {
  std::optional<std::string> cpu_devices = "4";       ///< value of SHOAL_CPU_DEVICES; nullopt: unset
  std::string in = "/dev/null";                       ///< file that becomes stdin
  std::string out = {}, err = {};                     ///< files that become stdout and stderr, or kClosed; "": the
                                                      ///< output is captured
  int out_pipe = -1;                                  ///< write end of a pipe, which replaces `out` as stdout; -1: no
                                                      ///< pipe
  size_t address_space = 0;                           ///< limit of the address space in bytes; 0: no limit
  bool ignores_interrupts = false;                    ///< the child starts with SIGINT ignored, like background jobs of
                                                      ///< scripts
  size_t largest_file = 0;                            ///< maximum size in bytes of each written file; 0: no limit
  std::map<std::string, std::string> variables = {};  ///< additional environment variables
};

class Child {
 public:
  explicit Child(const std::vector<std::string>& args, const ChildOptions& around = {}) {
    std::vector<char*> argv{const_cast<char*>(SHOAL_PROGRAM)};
    for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
    argv.push_back(nullptr);
    const std::string prefix = test::temporary(std::to_string(next_++));
    out_ = prefix + ".out", err_ = prefix + ".err";
    pid_ = fork();
    if (pid_ != 0) return;
    around.cpu_devices ? setenv("SHOAL_CPU_DEVICES", around.cpu_devices->c_str(), 1) : unsetenv("SHOAL_CPU_DEVICES");
    // The tests use CPU devices, even on machines with GPUs.
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    for (const auto& [name, value] : around.variables) setenv(name.c_str(), value.c_str(), 1);
    std::signal(SIGINT, around.ignores_interrupts ? SIG_IGN : SIG_DFL);
    std::signal(SIGPIPE, SIG_DFL);
    const int in = open(around.in.c_str(), O_RDONLY);
    if (dup2(in, STDIN_FILENO) != STDIN_FILENO) _exit(126);
    close(in);
    redirect(STDOUT_FILENO, around.out, out_);
    redirect(STDERR_FILENO, around.err, err_);
    if (around.out_pipe >= 0) dup2(around.out_pipe, STDOUT_FILENO);
    rlimit limit{around.address_space, around.address_space};
    if (around.address_space > 0 && setrlimit(RLIMIT_AS, &limit) != 0) _exit(126);
    rlimit file{around.largest_file, around.largest_file};
    if (around.largest_file > 0 && setrlimit(RLIMIT_FSIZE, &file) != 0) _exit(126);
    if (around.out == kClosed) close(STDOUT_FILENO);
    if (around.err == kClosed) close(STDERR_FILENO);
    execv(SHOAL_PROGRAM, argv.data());
    _exit(127);
  }
  ~Child() {
    if (!waited_) kill(pid_, SIGKILL), wait();
    std::filesystem::remove(out_);
    std::filesystem::remove(err_);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const { return pid_; }
  void send(int signal) const { kill(pid_, signal); }
  /// Returns the exit code, or 128 + n if signal n killed the child. The program itself also exits with code 128 + n
  /// after it handles signal n.
  int wait() {
    int status = 0;
    rusage used{};
    wait4(pid_, &status, 0, &used);
    most_memory_ = static_cast<size_t>(used.ru_maxrss) << 10;
    waited_ = true;
    killed_ = WIFSIGNALED(status);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  /// Whether the child is still running.
  bool runs() const {
    siginfo_t info{};
    return waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == 0;
  }
  /// Whether the child has installed a handler for this signal.
  bool catches(int signal) const {
    std::ifstream file("/proc/" + std::to_string(pid_) + "/status");
    for (std::string line; std::getline(file, line);) {
      if (!line.starts_with("SigCgt:")) continue;
      return (std::stoull(line.substr(7), nullptr, 16) >> (signal - 1) & 1) != 0;
    }
    return false;
  }
  /// Peak memory of the child in bytes. Valid after wait().
  size_t most_memory() const { return most_memory_; }
  /// Whether a signal killed the child. Valid after wait().
  bool killed() const { return killed_; }
  std::string out() const { return test::text_of(out_); }
  std::string err() const { return test::text_of(err_); }

 private:
  static void redirect(int stream, const std::string& file, const std::string& kept) {
    const std::string& path = file.empty() || file == kClosed ? kept : file;
    int opened = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (dup2(opened, stream) != stream) _exit(126);
    close(opened);
  }
  static inline int next_ = 0;
  std::string out_, err_;  ///< paths of the captured output
  pid_t pid_ = -1;
  bool waited_ = false;
  bool killed_ = false;
  size_t most_memory_ = 0;
};

/// Output and exit code of a finished run.
struct Finished {
  int code;
  std::string out, err;
  bool killed = false;
};

inline Finished run(const std::vector<std::string>& args, const ChildOptions& around = {}) {
  Child child(args, around);
  int code = child.wait();
  return {code, child.out(), child.err()};
}

/// Starts the program and waits until it has a handler for the signal. Sends the signal three seconds later, and
/// expects that the program exits within `longest`. If `far_enough` rejects the result, for example on a slow machine,
/// repeats the run with a delay of 12 seconds.
inline Finished run_interrupted(const std::vector<std::string>& args, int signal,
                                const std::function<bool(const Finished&)>& far_enough,
                                std::chrono::seconds longest = std::chrono::seconds(20)) {
  using std::chrono::milliseconds;
  for (milliseconds time(3000);; time *= 4) {
    Child child(args);
    for (int i = 0; i < 600 && child.runs() && !child.catches(signal); ++i) {
      std::this_thread::sleep_for(milliseconds(100));
    }
    if (child.runs()) std::this_thread::sleep_for(time);
    child.send(signal);
    const auto sent = std::chrono::steady_clock::now();
    const int code = child.wait();
    const auto took = std::chrono::steady_clock::now() - sent;
    const Finished finished{code, child.out(), child.err(), child.killed()};
    if (!far_enough(finished) && time < milliseconds(12'000)) continue;
    EXPECT_LT(took, longest);
    return finished;
  }
}

/// Splits a text at blanks: "a b c" -> {"a", "b", "c"}.
inline std::vector<std::string> words(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

inline const std::string kModel = SHOAL_SOURCE_DIR "/data/models/tiny-kjv-5m-q8_0.gguf";

inline const char* const kPrompt = "But the LORD is in";

/// Runs the program with --output json and returns the parsed output.
inline nlohmann::json run_json(std::vector<std::string> args) {
  args.insert(args.end(), {"--output", "json"});
  Finished finished = run(args);
  EXPECT_EQ(finished.code, 0) << finished.err;
  return nlohmann::json::parse(finished.out);
}

inline std::vector<std::string> lines(const std::string& text) {
  std::vector<std::string> out;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) out.push_back(line);
  return out;
}

}  // namespace shoal::tools
