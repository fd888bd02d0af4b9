#include "tools/report/trace_file.h"

#include <gmock/gmock.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/user_file.h"
#include "tests/support/temporary.h"
#include "tests/tools/child.h"

namespace shoal::tools {
namespace {

using nlohmann::json;
using test::temporary;
using test::TemporaryFile;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::ThrowsMessage;

struct Span {
  std::string kind, name;
  int64_t begin_ns, end_ns;
  json args;
};

int64_t to_ns(const json& us) {
  return std::llround(us.get<double>() * 1000);
}

/// The spans of each row, in file order.
std::map<std::string, std::vector<Span>> rows_of(const json& trace) {
  std::map<int, std::string> names;
  std::map<std::string, std::vector<Span>> rows;
  for (const json& event : trace.at("traceEvents")) {
    if (event.at("ph") == "M") {
      if (event.at("name") == "thread_name") names[event.at("tid")] = event.at("args").at("name");
      continue;
    }
    EXPECT_EQ(event.at("ph"), "X");
    const int64_t begin = to_ns(event.at("ts"));
    rows[names.at(event.at("tid"))].push_back({event.at("cat"), event.at("name"), begin, begin + to_ns(event.at("dur")),
                                               event.value("args", json::object())});
  }
  return rows;
}

/// Expects that spans do not overlap.
void expect_in_order(const std::string& row, const std::vector<Span>& spans) {
  for (size_t i = 0; i < spans.size(); ++i) {
    EXPECT_LE(spans[i].begin_ns, spans[i].end_ns) << row << " " << spans[i].name;
    if (i > 0) {
      EXPECT_LE(spans[i - 1].end_ns, spans[i].begin_ns) << row << " " << spans[i].name;
    }
  }
}

int64_t count(const std::vector<Span>& spans, const std::string& begin) {
  return std::count_if(spans.begin(), spans.end(), [&](const Span& span) { return span.name.starts_with(begin); });
}

TEST(TraceFile, ReportsLostSpansOfEveryProcess) {
  EXPECT_EQ(describe_lost("t.json", std::array<int64_t, 2>{}), "");
  EXPECT_EQ(describe_lost("t.json", std::array<int64_t, 1>{7}),
            "t.json has only the first 1048576 spans (7 more were dropped)");
  EXPECT_EQ(
      describe_lost("t.json", std::array<int64_t, 3>{7, 0, 9}),
      "t.json has only the first 1048576 spans of process 0 (7 more were dropped), and only the first 1048576 spans of "
      "process 2 (9 more were dropped)");
}

TEST(WriteTrace, WritesRowsSpansAndMetadata) {
  const TemporaryFile file("plain.json");
  const std::vector<TraceEvent> events{
      {"CPU0", TraceKind::kCompute, "step 0: nodes 0-18", 1500, 4001},
      {"CPU1", TraceKind::kCollective, "all_reduce \"x\"\n\xff", 2000, 1'234'567'890'123, 1024, 17},
      {"CPU0", TraceKind::kWait, "wait", 4001, 4001}};
  write_trace(file.path, events, {{"command", "shoal test"}});
  const json trace = json::parse(file.text());
  EXPECT_EQ(trace["otherData"]["command"], "shoal test");
  const auto rows = rows_of(trace);
  ASSERT_EQ(rows.size(), 2U);
  const std::vector<Span>& first = rows.at("CPU0");
  ASSERT_EQ(first.size(), 2U);
  EXPECT_EQ(first[0].kind, "compute");
  EXPECT_EQ(first[0].name, "step 0: nodes 0-18");
  EXPECT_EQ(first[0].begin_ns, 1500);
  EXPECT_EQ(first[0].end_ns, 4001);
  EXPECT_THAT(first[0].args, IsEmpty());
  const Span& second = rows.at("CPU1").at(0);
  EXPECT_EQ(second.name, "all_reduce \"x\"\n\xef\xbf\xbd");
  EXPECT_EQ(second.end_ns, 1'234'567'890'123);
  EXPECT_EQ(second.args.at("bytes"), 1024);
  EXPECT_EQ(second.args.at("waiting_us"), 0.017);
}

TEST(WriteTrace, WritesAnEmptyTrace) {
  const TemporaryFile file("empty.json");
  write_trace(file.path, {}, {});
  EXPECT_THAT(rows_of(json::parse(file.text())), IsEmpty());
}

TEST(WriteTrace, WritesManySpansCompletely) {
  const TemporaryFile file("many.json");
  const std::vector<TraceEvent> events(30'000, {"CPU0", TraceKind::kCopy, std::string(60, 'x'), 1, 2, 3});
  write_trace(file.path, events, {});
  EXPECT_EQ(rows_of(json::parse(file.text())).at("CPU0").size(), events.size());
}

TEST(WriteTrace, UnwritableFileIsAnError) {
  const std::vector<TraceEvent> events{{"CPU0", TraceKind::kCompute, "x", 1, 2}};
  EXPECT_THAT([&] { write_trace("/dev/full", events, {}); },
              ThrowsMessage<DeviceError>(HasSubstr("cannot write the trace /dev/full: No space left on device")));
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/full")) << "the device file was replaced";
  for (const std::string& path : {temporary("none/x.json"), temporary("")}) {
    EXPECT_THAT([&] { require_writable(path); },
                ThrowsMessage<DeviceError>(HasSubstr("cannot write the trace " + path + ": ")));
  }
}

TEST(WriteTrace, RequireWritableLeavesFilesUnchanged) {
  const TemporaryFile file("checked.json");
  require_writable(file.path);
  EXPECT_FALSE(file.exists());
  const std::string old = R"({"traceEvents":[]})";
  std::ofstream(file.path) << old;
  require_writable(file.path);
  EXPECT_EQ(file.text(), old);
}

TEST(TraceFlag, WritesTraceAndRethrowsFailures) {
  const TemporaryFile file("failed.json");
  const TraceFlag flag{file.path};
  EXPECT_THROW(flag.run({}, [](Tracer*) -> int { throw InvalidArgument("nothing done yet"); }), InvalidArgument);
  EXPECT_FALSE(file.exists());
  const auto body = [](Tracer* tracer) -> int {
    {
      const TraceScope scope(tracer->row("host").get(), TraceKind::kHost, {"load"});
    }
    throw InvalidArgument("broken");
  };
  EXPECT_THAT([&] { flag.run({}, body); }, ThrowsMessage<InvalidArgument>("broken"));
  EXPECT_EQ(rows_of(json::parse(file.text())).at("host").size(), 1U);
  EXPECT_EQ(TraceFlag{}.run({}, [](Tracer* tracer) { return tracer == nullptr ? 7 : 0; }), 7);
}

// --- traces of whole program runs

/// The plan for one token. In the trace, the rows of all devices must contain the steps of this plan.
json plan_of(const std::string& devices) {
  const Finished plan = run({"plan", "-m", kModel, "--devices", devices, "--output", "json"});
  EXPECT_EQ(plan.code, 0) << plan.err;
  return json::parse(plan.out);
}

TEST(TraceProgram, RejectsEmptyFileName) {
  for (const std::vector<std::string>& args : {std::vector<std::string>{"run", "-p", "In"}, {"bench"}}) {
    std::vector<std::string> all = args;
    all.insert(all.end(), {"-m", "none.gguf", "--trace", ""});
    const Finished finished = run(all);
    EXPECT_EQ(finished.code, 2) << args.front();
    EXPECT_THAT(finished.err, HasSubstr("--trace: the file name is empty"));
  }
}

TEST(TraceProgram, RunTraceHasEveryStepOfEveryRank) {
  const TemporaryFile file("run.json");
  const Finished finished = run({"run", "-m", kModel, "--prompt-tokens", "1", "-n", "6", "--ignore-eos", "--temp", "0",
                                 "--devices", "CPU0,CPU1", "--trace", file.path, "--output", "json"});
  ASSERT_EQ(finished.code, 0) << finished.err;
  const json timings = json::parse(finished.out).at("timings");
  const int64_t tokens =
      timings.at("prompt_evaluated").get<int64_t>() + timings.at("generation_evaluated").get<int64_t>();
  ASSERT_EQ(tokens, 6);
  const json trace = json::parse(file.text());
  EXPECT_EQ(trace.at("otherData").at("command"), "shoal run");
  const auto rows = rows_of(trace);
  for (const auto& [row, spans] : rows) expect_in_order(row, spans);

  const json plan = plan_of("CPU0,CPU1");
  const json counts = plan.at("collectives_per_token").at("counts");
  for (const int rank : {0, 1}) {
    const std::vector<Span>& spans = rows.at("CPU" + std::to_string(rank));
    for (const auto& [kind, per_token] : counts.items()) {
      EXPECT_EQ(count(spans, kind + " "), per_token.get<int64_t>() * tokens) << kind;
    }
    EXPECT_GT(count(spans, "all_reduce blk.0."), 0);
    const json& steps = plan.at("steps");
    for (size_t step = 0; step < steps.size(); ++step) {
      const auto nodes = steps[step].at("nodes").at(static_cast<size_t>(rank)).get<std::vector<int>>();
      if (steps[step].at("kind") != "compute" || nodes[1] - nodes[0] < 2) continue;
      const std::string name =
          "step " + std::to_string(step) + ": nodes " + std::to_string(nodes[0]) + "-" + std::to_string(nodes[1] - 1);
      EXPECT_EQ(count(spans, name), tokens) << name;
    }
    EXPECT_EQ(count(spans, "set tokens"), tokens);
    for (const Span& span : spans) {
      if (span.kind != "collective") continue;
      EXPECT_GT(span.args.at("bytes").get<int64_t>(), 0) << span.name;
      EXPECT_LE(to_ns(span.args.value("waiting_us", json(0.0))), span.end_ns - span.begin_ns) << span.name;
    }
  }
  const std::vector<Span>& host = rows.at("host");
  EXPECT_EQ(count(host, "evaluate 1 token"), tokens);
  EXPECT_EQ(count(host, "wait for "), tokens);
  EXPECT_EQ(count(host, "load weights"), 1);
}

TEST(TraceProgram, BenchTraceHasEveryRun) {
  const TemporaryFile file("bench.json");
  const Finished finished = run({"bench", "-m", kModel, "-p", "8", "-n", "3", "-r", "2", "--devices", "CPU0;CPU0,CPU1",
                                 "--trace", file.path, "-o", "jsonl"});
  ASSERT_EQ(finished.code, 0) << finished.err;
  const auto rows = rows_of(json::parse(file.text()));
  for (const auto& [row, spans] : rows) expect_in_order(row, spans);
  std::set<std::string> names;
  for (const Span& span : rows.at("bench")) names.insert(span.name);
  EXPECT_THAT(names, ElementsAre("pp8 run 1", "pp8 run 2", "pp8 warm-up", "tg3 run 1", "tg3 run 2", "tg3 warm-up"));
  EXPECT_EQ(rows.at("bench").size(), 12U) << "six spans for each of two lists of devices";
  EXPECT_GT(count(rows.at("CPU0"), "nodes 0-"), 0) << "spans of CPU0 as a single device";
  EXPECT_GT(count(rows.at("CPU0"), "step 0: nodes 0-"), 0) << "spans of CPU0 as one of two ranks";
  EXPECT_GT(count(rows.at("CPU1"), "all_reduce "), 0);
  EXPECT_EQ(rows.size(), 4U) << "consecutive sessions use the same rows";
}

TEST(TraceProgram, ChecksTheFileBeforeLoading) {
  const Finished finished = run({"run", "-m", "no-model.gguf", "-p", "x", "--trace", temporary("none/x.json")});
  EXPECT_EQ(finished.code, 1);
  EXPECT_THAT(finished.err, HasSubstr("cannot write the trace"));
  EXPECT_THAT(finished.err, HasSubstr("No such file or directory"));
  EXPECT_EQ(std::count(finished.err.begin(), finished.err.end(), '\n'), 1) << finished.err;
}

TEST(TraceProgram, FailedWriteIsAnError) {
  const Finished finished = run({"run", "-m", kModel, "--prompt-tokens", "1", "-n", "1", "--trace", "/dev/full"});
  EXPECT_EQ(finished.code, 1);
  EXPECT_THAT(finished.err, HasSubstr("cannot write the trace /dev/full: No space left on device"));
}

TEST(TraceProgram, CtrlCStillWritesTheTrace) {
  const TemporaryFile file("interrupted.json");
  setenv("SHOAL_CPU_SLOWDOWN", "100", 1);  // slow devices run fewer steps before the signal, so the trace is small
  const auto has_runs = [&](const Finished&) {
    return file.exists() && file.text().find(" run 1") != std::string::npos;
  };
  const Finished finished = run_interrupted(
      {"bench", "-m", kModel, "-p", "0", "-n", "16", "-r", "1000000", "--devices", "CPU0,CPU1", "--trace", file.path},
      SIGINT, has_runs);
  unsetenv("SHOAL_CPU_SLOWDOWN");
  EXPECT_EQ(finished.code, 130) << finished.err;
  EXPECT_FALSE(finished.killed);
  const auto rows = rows_of(json::parse(file.text()));
  EXPECT_GT(rows.at("CPU1").size(), 0U);
  for (const auto& [row, spans] : rows) expect_in_order(row, spans);
}

}  // namespace
}  // namespace shoal::tools
