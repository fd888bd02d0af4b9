// Tests of commands that read from pipes, and of output files that exceed the file size limit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "tests/support/sanitized.h"
#include "tests/support/temporary.h"
#include "tests/tools/child.h"

namespace shoal::tools {
namespace {

using ::testing::HasSubstr;

void expect_one_line(const Finished& finished, int code, const std::string& message) {
  EXPECT_EQ(finished.code, code) << finished.err;
  EXPECT_THAT(finished.err, HasSubstr(message));
  EXPECT_EQ(std::count(finished.err.begin(), finished.err.end(), '\n'), 1) << finished.err;
}

/// Runs the program. Kills the program if it still runs after 30 seconds.
Finished run_briefly(const std::vector<std::string>& args, const ChildOptions& around = {}) {
  Child child(args, around);
  for (int i = 0; i < 300 && child.runs(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  child.send(SIGKILL);
  const int code = child.wait();
  return {code, child.out(), child.err(), child.killed()};
}

struct NamedPipe : test::TemporaryFile {
  explicit NamedPipe(const std::string& name) : TemporaryFile(name) { EXPECT_EQ(mkfifo(path.c_str(), 0600), 0); }
};

/// Writes the text as soon as the child opens the pipe. Writes nothing if the child exits without opening the pipe.
void write_to(const NamedPipe& pipe, const std::string& text, const Child& child) {
  int file = -1;
  while (child.runs() && (file = open(pipe.path.c_str(), O_WRONLY | O_NONBLOCK)) < 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(write(file, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  close(file);
}

TEST(Files, RejectsPipeAsMachineFile) {
  const NamedPipe pipe("machine.json");
  const ChildOptions around{.variables = {{"SHOAL_MACHINE_FILE", pipe.path}}};
  const std::string message = pipe.path + ": is not a regular file; set SHOAL_MACHINE_FILE to a regular file";
  EXPECT_EQ(run_briefly({"plan", "-m", kModel}, around).code, 0) << "the pipe counts as a missing file";
  expect_one_line(run_briefly({"probe", "--quick", "--force", "--devices", "CPU0"}, around), 1, message);
}

TEST(Files, RejectsPipeAsProfile) {
  const NamedPipe pipe("profile.json");
  expect_one_line(run_briefly({"plan", "-m", kModel, "-ts", "@" + pipe.path}), 1, "is not a regular file");
}

TEST(Files, RejectsPipeAsPlugin) {
  const NamedPipe pipe("libshoal-pipe.so");
  expect_one_line(run_briefly({"run", "-m", kModel, "-p", "x", "--plugin", pipe.path, "-dev", "CPU0"}), 1,
                  "libshoal-pipe.so] the file is a pipe, not a shared object");
}

TEST(Files, ReadsMachineOnceFromPipe) {
  const NamedPipe pipe("described.json");
  const std::string description = R"({"version": 1, "devices": [{"name": "BOX.0", "memory": 7000000000,
    "bandwidth": 1e10, "rates": {"default": 1e12}}]})";
  Child child({"plan", "-m", kModel, "--machine", pipe.path, "--output", "json"});
  write_to(pipe, description, child);
  ASSERT_EQ(child.wait(), 0) << child.err();
  const auto plan = nlohmann::json::parse(child.out());
  EXPECT_EQ(plan["memory"][0]["device"], "BOX.0");
  EXPECT_FALSE(plan["prediction"].is_null());
}

TEST(Files, TraceBeyondFileSizeLimitIsAnError) {
  if (test::kSanitized) GTEST_SKIP() << "sanitizers also write files";
  const test::TemporaryFile trace("trace.json");
  Child child({"run", "-m", kModel, "-p", "In the", "-n", "30", "--temp", "0", "--trace", trace.path},
              {.largest_file = 10 << 10});
  EXPECT_EQ(child.wait(), 1);
  EXPECT_FALSE(child.killed());
  EXPECT_THAT(child.err(),
              HasSubstr("shoal: error: cannot write the trace " + trace.path + ": File too large; raise `ulimit -f`"));
}

}  // namespace
}  // namespace shoal::tools
