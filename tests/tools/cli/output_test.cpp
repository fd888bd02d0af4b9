// If stdout cannot be written, the program stops with an error. If stderr cannot be written, the program continues.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/tools/child.h"

namespace shoal::tools {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

/// Command lines that print something and succeed.
const std::vector<std::vector<std::string>> kCommands{
    {"run", "-m", kModel, "-p", "In the", "-n", "3"},
    {"run", "-m", kModel, "-p", "In the", "-n", "3", "--output", "json"},
    {"tokenize", "-m", kModel, "-p", "In the"},
    {"detokenize", "-m", kModel, "--ids", "1,527"},
    {"detokenize", "-m", kModel, "--ids", "1,527", "--output", "json"},
    {"devices"},
    {"plan", "-m", kModel},
    {"compare", "-m", kModel, "-dev", "CPU0,CPU1", "-p", "In"},
    {"--help"},
    {"run", "--help"},
    {"--version"},
};

/// A command that generates for a very long time. The command ends only because its output cannot be written.
const std::vector<std::string> kEndless{"run", "-m",    kModel,   "-p", "In the", "-n", "-1",
                                        "-c",  "50000", "--temp", "0",  "-t",     "1",  "--ignore-eos"};

class Pipe {
 public:
  Pipe() { EXPECT_EQ(pipe2(ends_, O_CLOEXEC), 0); }
  ~Pipe() { close_reader(), close_writer(); }
  int writer() const { return ends_[1]; }
  void close_reader() { close_end(ends_[0]); }
  void close_writer() { close_end(ends_[1]); }

  /// Writes to the pipe until it is full. Returns the number of written bytes.
  size_t fill() {
    fcntl(ends_[1], F_SETFL, O_NONBLOCK);
    size_t count = 0;
    while (write(ends_[1], "x", 1) == 1) ++count;
    fcntl(ends_[1], F_SETFL, 0);
    return count;
  }
  /// Reads until all writers have closed the pipe.
  std::string drain() {
    std::string all, part(4096, '\0');
    for (ssize_t got = 0; (got = read(ends_[0], part.data(), part.size())) > 0;) all.append(part, 0, got);
    return all;
  }

 private:
  static void close_end(int& end) {
    if (end >= 0) close(end);
    end = -1;
  }
  int ends_[2] = {-1, -1};
};

TEST(Output, FullDiskIsAnError) {
  for (const auto& command : kCommands) {
    Finished finished = run(command, {.out = "/dev/full"});
    EXPECT_EQ(finished.code, 1) << ::testing::PrintToString(command);
    EXPECT_EQ(finished.err,
              "shoal: error: cannot write to stdout: No space left on device; check the disk or pipe of "
              "stdout\n");
  }
}

TEST(Output, ClosedStdoutIsAnError) {
  for (const auto& command : kCommands) {
    Finished finished = run(command, {.out = kClosed});
    EXPECT_EQ(finished.code, 1) << ::testing::PrintToString(command);
    EXPECT_THAT(finished.err, StartsWith("shoal: error: cannot write to stdout: Bad file descriptor; "));
  }
}

TEST(Output, ClosedPipeEndsProgramQuietly) {
  for (const auto& command : kCommands) {
    Pipe pipe;
    pipe.close_reader();
    Finished finished = run(command, {.out_pipe = pipe.writer()});
    EXPECT_EQ(finished.code, 141) << ::testing::PrintToString(command);
    EXPECT_EQ(finished.err, "");
  }
}

TEST(Output, ClosedPipeStopsGeneration) {
  EXPECT_EQ(run(kEndless, {.out = "/dev/full"}).code, 1);
  Pipe pipe;
  pipe.close_reader();
  EXPECT_EQ(run(kEndless, {.out_pipe = pipe.writer()}).code, 141);
}

TEST(Output, UnwritableStderrDoesNotChangeExitCode) {
  for (const std::string& err : {kClosed, std::string("/dev/full")}) {
    EXPECT_EQ(run({"run", "-m", kModel, "-p", "x", "-n", "1", "-c", "600"}, {.err = err}).code, 0) << err;
    EXPECT_EQ(run({"run", "-m", "no-such-file", "-p", "x"}, {.err = err}).code, 1) << err;
    EXPECT_EQ(run({"run", "--bogus"}, {.err = err}).code, 2) << err;
    EXPECT_EQ(run({"devices"}, {.out = err, .err = err}).code, 1) << err;
  }
}

TEST(Output, CtrlCLosesNoOutputWithASlowReader) {
  for (const char* format : {"text", "json"}) {
    std::vector<std::string> args = words("run -p In -n 50 --temp 0 --ignore-eos --output");
    args.insert(args.end(), {format, "-m", kModel});
    Pipe pipe;
    size_t before = pipe.fill();
    Child child(args, {.out_pipe = pipe.writer()});
    pipe.close_writer();
    std::this_thread::sleep_for(std::chrono::seconds(3));  // after this time, the full pipe blocks the program
    child.send(SIGINT);
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    std::string out = pipe.drain().substr(before);
    child.wait();
    EXPECT_FALSE(child.killed());
    EXPECT_THAT(child.err(), Not(HasSubstr("error"))) << format;
    EXPECT_THAT(out, EndsWith("\n"));
    EXPECT_TRUE(format == std::string("text") || nlohmann::json::accept(out)) << out;
  }
}

}  // namespace
}  // namespace shoal::tools
