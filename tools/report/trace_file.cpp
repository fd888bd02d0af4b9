#include "tools/report/trace_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <unordered_map>

#include "base/error.h"
#include "base/user_file.h"
#include "tools/cli/options.h"
#include "tools/cli/processes.h"
#include "tools/cli/program.h"

namespace shoal::tools {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail_to_write(const std::string& path) {
  fail<DeviceError>("cannot write the trace {}: {}; {}", path, std::strerror(errno),
                    errno == EFBIG ? "raise `ulimit -f`" : "name a file in a writable directory");
}

std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

double to_us(int64_t ns) {
  return static_cast<double>(ns) / 1000;
}

std::string line_of(const TraceEvent& event, int row) {
  std::string args;
  if (event.waiting_ns != 0) args = fmt::format(R"(,"waiting_us":{:.3f})", to_us(event.waiting_ns));
  if (event.bytes != 0 || !args.empty()) args = fmt::format(R"(,"args":{{"bytes":{}{}}})", event.bytes, args);
  return fmt::format(
      ",\n"
      R"({{"ph":"X","pid":1,"tid":{},"cat":"{}","name":{},"ts":{:.3f},"dur":{:.3f}{}}})",
      row, name_of(event.kind), quoted(event.name), to_us(event.begin_ns), to_us(event.end_ns - event.begin_ns), args);
}

}  // namespace

void require_writable(const std::string& path) {
  check_output(path, "trace");
  std::error_code error;
  const fs::path there = fs::exists(path, error) ? fs::path(path) : fs::absolute(path).parent_path();
  errno = EISDIR;
  if (fs::is_directory(path, error) || access(there.c_str(), W_OK) != 0) fail_to_write(path);
}

void write_trace(const std::string& path, std::span<const TraceEvent> events, const TraceMetadata& metadata) {
  check_output(path, "trace");
  // With O_NONBLOCK, opening a pipe without a reader fails. F_SETFL below removes the flag, so that writes wait for a
  // slow reader.
  const int number = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NONBLOCK | O_CLOEXEC, 0666);
  if (number < 0) fail_to_write(path);
  fcntl(number, F_SETFL, 0);
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(fdopen(number, "w"), std::fclose);
  const auto write = [&file](std::string_view text) { std::fwrite(text.data(), 1, text.size(), file.get()); };
  std::unordered_map<std::string_view, int> rows;
  nlohmann::json other = nlohmann::json::object();
  for (const auto& [name, value] : metadata) other[name] = value;
  write("{\"displayTimeUnit\":\"ns\",\"otherData\":" +
        other.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + ",\"traceEvents\":[\n" +
        R"({"ph":"M","pid":1,"tid":0,"name":"process_name","args":{"name":"shoal"}})");
  for (const TraceEvent& event : events) {
    const auto [row, is_new] = rows.try_emplace(event.row, static_cast<int>(rows.size()) + 1);
    if (is_new) {
      write(
          fmt::format(",\n"
                      R"({{"ph":"M","pid":1,"tid":{0},"name":"thread_name","args":{{"name":{1}}}}},)"
                      "\n"
                      R"({{"ph":"M","pid":1,"tid":{0},"name":"thread_sort_index","args":{{"sort_index":{0}}}}})",
                      row->second, quoted(event.row)));
    }
    write(line_of(event, row->second));
  }
  write("\n]}\n");
  errno = EIO;
  if (std::fflush(file.get()) != 0 || std::ferror(file.get()) != 0) fail_to_write(path);
}

void TraceFlag::add_to(CLI::App& app) {
  const auto read = [this](const std::string& flag, const std::string& text) {
    require<InvalidArgument>(!text.empty(), "{}: the file name is empty; give a name such as trace.json", flag);
    path = text;
  };
  add_parsed(app, "--trace", "FILE", read,
             "File for a trace of every step, collective and copy; open it with https://ui.perfetto.dev");
}

namespace {

/// Nanoseconds by which the clock of process 0 is ahead of the clock of `process`. The result comes from the fastest of
/// several round trips. Process 0 and `process` must both call this function.
int64_t clock_difference(ProcessGroup& group, int process) {
  constexpr int kQuestions = 32;
  const bool asks = group.own() == 0;
  const int peer = asks ? process : 0;
  int64_t quickest = std::numeric_limits<int64_t>::max(), difference = 0;
  for (int i = 0; i < kQuestions; ++i) {
    int64_t time = trace_clock();
    const int64_t asked = time;
    const std::span bytes(reinterpret_cast<std::byte*>(&time), sizeof(time));
    if (asks) group.send(peer, group.passage_tag(peer), bytes, "clocks");
    group.receive(peer, group.passage_tag(peer), bytes, "clocks");
    if (!asks) {
      time = trace_clock();
      group.send(peer, group.passage_tag(peer), bytes, "clocks");
    }
    const int64_t now = trace_clock();
    if (asks && now - asked < quickest) quickest = now - asked, difference = asked + (now - asked) / 2 - time;
  }
  return difference;
}

/// The spans of the tracers of all processes.
struct Spans {
  std::vector<TraceEvent> events;
  std::vector<int64_t> lost;  ///< number of dropped spans of each process
};

/// In process 0, returns the spans of all processes, with the clock and the device names of process 0. `origin`:
/// creation time of the tracer. Collective.
Spans of_every_tracer(const Tracer& tracer, int64_t origin) {
  std::vector<TraceEvent> events = tracer.events();
  ProcessGroup* const group = processes();
  if (group == nullptr) return {std::move(events), {tracer.lost()}};
  nlohmann::json own = nlohmann::json::array();
  for (const TraceEvent& event : events) {
    if (is_leader()) break;
    own.push_back({event.row, static_cast<int>(event.kind), event.name, event.begin_ns + origin, event.end_ns + origin,
                   event.bytes, event.waiting_ns});
  }
  int64_t difference = 0;
  std::vector<int64_t> differences(static_cast<size_t>(group->size()), 0);
  for (int process = 1; process < group->size(); ++process) {
    if (!is_leader() && process != group->own()) continue;
    difference = clock_difference(*group, process);
    differences[static_cast<size_t>(process)] = difference;
  }
  const nlohmann::json told{{"spans", std::move(own)}, {"lost", tracer.lost()}};
  const std::vector<std::string> all = group->gather(told.dump(), "traces");
  std::vector<int64_t> lost{tracer.lost()};
  for (int process = 1; is_leader() && process < group->size(); ++process) {
    const int64_t shift = differences[static_cast<size_t>(process)] - origin;
    const nlohmann::json its = nlohmann::json::parse(all[static_cast<size_t>(process)]);
    lost.push_back(its["lost"]);
    for (const nlohmann::json& one : its["spans"]) {
      events.push_back({fmt::format("{}:{}", process, one[0].get<std::string>()),
                        static_cast<TraceKind>(one[1].get<int>()), one[2], one[3].get<int64_t>() + shift,
                        one[4].get<int64_t>() + shift, one[5], one[6]});
    }
  }
  return {std::move(events), std::move(lost)};
}

}  // namespace

std::string describe_lost(const std::string& path, std::span<const int64_t> lost) {
  std::string text;
  for (size_t process = 0; process < lost.size(); ++process) {
    if (lost[process] == 0) continue;
    const std::string of = lost.size() == 1 ? "" : fmt::format(" of process {}", process);
    text += fmt::format("{} only the first {} spans{} ({} more were dropped)", text.empty() ? path + " has" : ", and",
                        Tracer::kMostSpans, of, lost[process]);
  }
  return text;
}

int TraceFlag::run(TraceMetadata metadata, const std::function<int(Tracer* tracer)>& body) const {
  if (path.empty()) return body(nullptr);
  if (is_leader()) require_writable(path);
  const int64_t origin = trace_clock();
  Tracer tracer;
  const auto write = [&](const Spans& spans) {
    if (const std::string text = describe_lost(path, spans.lost); !text.empty()) {
      const int64_t all = std::accumulate(spans.lost.begin(), spans.lost.end(), int64_t{0});
      metadata.emplace_back("spans_lost", std::to_string(all));
      warn(text);
    }
    write_trace(path, spans.events, metadata);
  };
  int code = kSuccess;
  try {
    code = body(&tracer);
  } catch (...) {
    try {
      const Spans own{tracer.events(), {tracer.lost()}};
      if (!own.events.empty() && is_leader()) write(own);
    } catch (const std::exception& error) {
      warn(error.what());
    }
    throw;
  }
  const Spans spans = of_every_tracer(tracer, origin);
  if (is_leader()) write(spans);
  return code;
}

}  // namespace shoal::tools
