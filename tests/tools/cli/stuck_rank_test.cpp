// If a device misses a collective, the program exits with one message at most two seconds after the time-out.
#include <gmock/gmock.h>
#include <sys/ptrace.h>

#include <filesystem>

#include "tests/support/environment.h"
#include "tests/tools/child.h"

namespace shoal::tools {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;

constexpr auto kTimeOut = 1s, kMore = 2s;

std::vector<std::string> command(const std::string& more) {
  std::string prompt = "In";
  for (int i = 0; i < 300; ++i) prompt += " the beginning";
  std::vector<std::string> args{"run", "-m", kModel, "-p", prompt, "--devices", "CPU0,CPU1", "-t", "1", "-c", "16384"};
  for (const std::string& word : words(more)) args.push_back(word);
  return args;
}

auto names_the_rank_that_did_not_arrive() {
  return AllOf(HasSubstr("shoal: error: [all_"), HasSubstr("rank 1 of 2 did not arrive within 1.000 s"),
               EndsWith("or raise the time-out (SHOAL_COMM_TIMEOUT, in seconds)\n"));
}

/// A matcher for the message about a stuck rank that has already joined every collective.
auto names_the_rank_that_did_not_finish() {
  return AllOf(HasSubstr("shoal: error: [META(CPU0,CPU1)] "),
               HasSubstr("rank 1 of 2 did not finish within 1.000 s after the other ranks"),
               EndsWith("or raise the time-out (SHOAL_COMM_TIMEOUT, in seconds)\n"));
}

TEST(StuckRank, ProgramEndsAfterTimeoutOfSlowDevice) {
  const ChildOptions two{.cpu_devices = "2"};
  const test::Environment timeout("SHOAL_COMM_TIMEOUT", "1");
  auto begin = Clock::now();
  ASSERT_EQ(run(command("-n 1 -ub 2048"), two).code, 0);
  const auto healthy = Clock::now() - begin;
  const test::Environment slowdown("SHOAL_CPU_SLOWDOWN", "1,1000");
  begin = Clock::now();
  const Finished stalled = run(command("-n 3 -ub 2048"), two);
  // Without the time-out, the slow device would need hundreds of times as long for the prompt as a healthy device.
  EXPECT_LT(Clock::now() - begin, kTimeOut + kMore + 2 * healthy);
  EXPECT_EQ(stalled.code, 1);
  EXPECT_THAT(stalled.err, names_the_rank_that_did_not_arrive());
}

/// Path in /proc of the child's thread with this name.
std::filesystem::path thread_of(const Child& child, const std::string& name) {
  for (const auto& task : std::filesystem::directory_iterator("/proc/" + std::to_string(child.pid()) + "/task")) {
    std::ifstream file(task.path() / "comm");
    std::string comm;
    if (std::getline(file, comm) && comm == name) return task.path();
  }
  return {};
}

/// Stops a thread of a child permanently. Returns the id of the thread, or 0 if stopping is not permitted.
pid_t stop_thread(const Child& child, const std::string& name) {
  const std::filesystem::path found = thread_of(child, name);
  if (found.empty()) return 0;
  const pid_t thread = std::stoi(found.filename());
  const bool stopped =
      ptrace(PTRACE_SEIZE, thread, nullptr, nullptr) == 0 && ptrace(PTRACE_INTERRUPT, thread, nullptr, nullptr) == 0;
  return stopped ? thread : 0;
}

/// Waits until the program and this thread of the program have ended. Kills the program after a minute.
void wait_for_end_of(pid_t thread, const Child& child) {
  const auto begin = Clock::now();
  for (int status = 0;;) {
    const pid_t found = waitpid(thread, &status, __WALL | WNOHANG);
    if (found < 0 || (found == thread && (WIFEXITED(status) || WIFSIGNALED(status)))) return;
    if (Clock::now() - begin > 1min) child.send(SIGKILL);
    std::this_thread::sleep_for(1ms);
  }
}

TEST(StuckRank, ProgramExitsDespiteAStoppedThread) {
  const test::Environment timeout("SHOAL_COMM_TIMEOUT", "1");
  Child child(command("-n -1 --ignore-eos"), {.cpu_devices = "2"});
  while (child.runs() && child.out().empty()) std::this_thread::sleep_for(10ms);
  ASSERT_TRUE(child.runs()) << child.err();
  const pid_t thread = stop_thread(child, "CPU1");
  if (thread == 0) GTEST_SKIP() << "this machine does not allow stopping threads of another process";
  const auto begin = Clock::now();
  wait_for_end_of(thread, child);
  EXPECT_EQ(child.wait(), 1);
  EXPECT_LT(Clock::now() - begin, kTimeOut + kMore);
  EXPECT_THAT(child.err(), AnyOf(names_the_rank_that_did_not_arrive(), names_the_rank_that_did_not_finish()));
}

}  // namespace
}  // namespace shoal::tools
