// Runs the program as users do, as a process of its own, and keeps what it prints.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace shoal::tools {

class Child {
 public:
  /// Starts the program with four CPU devices.
  explicit Child(const std::vector<std::string>& args) {
    std::vector<char*> argv{const_cast<char*>(SHOAL_PROGRAM)};
    for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
    argv.push_back(nullptr);
    pid_ = fork();
    if (pid_ != 0) return;
    setenv("SHOAL_CPU_DEVICES", "4", 1);
    if (!std::freopen(path("out").c_str(), "w", stdout) || !std::freopen(path("err").c_str(), "w", stderr)) _exit(126);
    execv(SHOAL_PROGRAM, argv.data());
    _exit(127);
  }
  ~Child() {
    if (!waited_) kill(pid_, SIGKILL), wait();
    std::filesystem::remove(path("out"));
    std::filesystem::remove(path("err"));
  }

  void interrupt() const { kill(pid_, SIGINT); }
  /// Exit code; 128 + n when signal n ended it.
  int wait() {
    int status = 0;
    waitpid(pid_, &status, 0);
    waited_ = true;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  std::string out() const { return read("out"); }
  std::string err() const { return read("err"); }

 private:
  std::string path(const char* stream) const {
    // The child sees its own number, the parent the child's: the same.
    return ::testing::TempDir() + "shoal_" + std::to_string(pid_ == 0 ? getpid() : pid_) + "." + stream;
  }
  std::string read(const char* stream) const {
    std::ifstream file(path(stream));
    return {std::istreambuf_iterator<char>(file), {}};
  }

  pid_t pid_ = -1;
  bool waited_ = false;
};

/// What a finished run printed and returned.
struct Finished {
  int code;
  std::string out, err;
};

inline Finished run(const std::vector<std::string>& args) {
  Child child(args);
  int code = child.wait();
  return {code, child.out(), child.err()};
}

/// "a b c" -> {"a", "b", "c"}.
inline std::vector<std::string> words(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

inline const std::string kModel = SHOAL_SOURCE_DIR "/data/models/tiny-kjv-5m-q8_0.gguf";

}  // namespace shoal::tools
