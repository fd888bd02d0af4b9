#include "tools/report/trace_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <thread>
#include <unordered_map>

#include "base/error.h"
#include "base/user_file.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/options.h"
#include "tools/cli/output.h"
#include "tools/cli/processes.h"
#include "tools/cli/program.h"

namespace shoal::tools {
namespace {

namespace fs = std::filesystem;

constexpr size_t kWorthWriting = size_t{1} << 20;

[[noreturn]] void fail_to_write(const std::string& path, int error) {
  fail<DeviceError>("cannot write the trace {}: {}; {}", path, std::strerror(error),
                    error == EFBIG ? "raise `ulimit -f`" : "name a file in a directory that can be written to");
}

/// What a link leads to, however many there are in between, where that is not there yet.
fs::path end_of_links(fs::path path) {
  constexpr int kMostLinks = 40;
  std::error_code error;
  for (int i = 0; i < kMostLinks && fs::is_symlink(path, error); ++i) {
    path = path.parent_path() / fs::read_symlink(path, error);
  }
  return path;
}

/// The number that a file has here as stdout or stderr, or -1.
int standard_stream(const std::string& path) {
  struct stat file{}, stream{};
  if (stat(path.c_str(), &file) != 0) return -1;
  for (const int number : {STDOUT_FILENO, STDERR_FILENO}) {
    if (fstat(number, &stream) == 0 && stream.st_dev == file.st_dev && stream.st_ino == file.st_ino) return number;
  }
  return -1;
}

/// Where the file lies that is replaced when the trace is complete; "" for what is written to as it is: pipes, devices,
/// and what is open here as /dev/stdout but has no name any more.
fs::path replaced_by(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) return end_of_links(path);
  const fs::path file = fs::canonical(path, error);
  return fs::is_regular_file(status) && !error ? file : fs::path();
}

/// What is written in place is not replaced.
void check_target(const std::string& path) {
  if (standard_stream(path) < 0) check_output(path, "trace");
}

/// Opens a named pipe once it has a reader, as open() does, but an interrupt ends the waiting. -1 with errno.
int open_in_place(const std::string& path) {
  constexpr auto kPause = std::chrono::milliseconds(20);
  std::error_code error;
  // A pipe without a name cannot get a reader.
  const bool can_wait = fs::is_fifo(path, error) && !fs::canonical(path, error).empty();
  for (bool waited = false;; waited = true) {
    const int file = open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC);
    if (file >= 0) {
      fcntl(file, F_SETFL, fcntl(file, F_GETFL) & ~O_NONBLOCK);
      return file;
    }
    if (errno != ENXIO || !can_wait) return -1;
    if (interrupted()) throw Interrupted();
    if (!waited) write_err(fmt::format("shoal: the trace waits for a reader of {}\n", escaped(path)));
    std::this_thread::sleep_for(kPause);
  }
}

/// A file that is being written, with the first failure.
class Draft {
 public:
  explicit Draft(const std::string& path) : name_(path) {
    check_target(path);
    const int stream = standard_stream(path);
    if (stream < 0) target_ = replaced_by(path);
    if (stream >= 0) {
      file_ = fcntl(stream, F_DUPFD_CLOEXEC, 0);  // behind what is printed there
    } else if (target_.empty()) {
      file_ = open_in_place(path);
    } else {
      draft_ = fmt::format("{}.{}", target_.string(), getpid());
      file_ = open(draft_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    }
    if (file_ < 0) fail_to_write(name_, errno);
  }
  ~Draft() {
    if (file_ >= 0) close(file_);
    if (!draft_.empty() && !done_) unlink(draft_.c_str());
  }
  Draft(const Draft&) = delete;
  Draft& operator=(const Draft&) = delete;

  void write(std::string_view text) {
    while (!text.empty()) {
      const ssize_t written = ::write(file_, text.data(), text.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) fail_to_write(name_, errno);
      text.remove_prefix(static_cast<size_t>(written));
    }
  }
  void finish() {
    if (close(std::exchange(file_, -1)) != 0) fail_to_write(name_, errno);
    if (!draft_.empty() && std::rename(draft_.c_str(), target_.c_str()) != 0) fail_to_write(name_, errno);
    done_ = true;
  }

 private:
  std::string name_;
  fs::path target_, draft_;  ///< "": written in place
  int file_ = -1;
  bool done_ = false;
};

std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

/// 1234567 -> "1234.567": microseconds, exactly.
void append_us(std::string& text, int64_t ns) {
  if (ns < 0) text += '-';
  const auto magnitude = static_cast<uint64_t>(ns < 0 ? -ns : ns);
  fmt::format_to(std::back_inserter(text), "{}.{:03}", magnitude / 1000, magnitude % 1000);
}

void append_event(std::string& text, const TraceEvent& event, int row) {
  fmt::format_to(std::back_inserter(text), R"(,{}{{"ph":"X","pid":1,"tid":{},"cat":"{}","name":{},"ts":)", '\n', row,
                 name_of(event.kind), quoted(event.name));
  append_us(text, event.begin_ns);
  text += R"(,"dur":)";
  append_us(text, event.end_ns - event.begin_ns);
  if (event.bytes != 0 || event.waiting_ns != 0) {
    fmt::format_to(std::back_inserter(text), R"(,"args":{{"bytes":{})", event.bytes);
    if (event.waiting_ns != 0) {
      text += R"(,"waiting_us":)";
      append_us(text, event.waiting_ns);
    }
    text += '}';
  }
  text += '}';
}

}  // namespace

void require_writable(const std::string& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) fail_to_write(path, EISDIR);
  if (fs::is_socket(path, error)) fail_to_write(path, ENXIO);
  if (!replaced_by(path).empty()) {
    const Draft draft(path);  // removed again
    return;
  }
  check_target(path);
  // A pipe that is opened and closed has come to its end for who reads it.
  if (access(path.c_str(), W_OK) != 0) fail_to_write(path, errno);
}

void write_trace(const std::string& path, std::span<const TraceEvent> events, const TraceMetadata& metadata) {
  Draft file(path);
  std::unordered_map<std::string_view, int> rows;
  nlohmann::json other = nlohmann::json::object();
  for (const auto& [name, value] : metadata) other[name] = value;
  std::string text = "{\"displayTimeUnit\":\"ns\",\"otherData\":" +
                     other.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + ",\"traceEvents\":[\n" +
                     R"({"ph":"M","pid":1,"tid":0,"name":"process_name","args":{"name":"shoal"}})";
  for (const TraceEvent& event : events) {
    const auto [row, is_new] = rows.try_emplace(event.row, static_cast<int>(rows.size()) + 1);
    if (is_new) {
      fmt::format_to(std::back_inserter(text),
                     ",\n"
                     R"({{"ph":"M","pid":1,"tid":{0},"name":"thread_name","args":{{"name":{1}}}}},)"
                     "\n"
                     R"({{"ph":"M","pid":1,"tid":{0},"name":"thread_sort_index","args":{{"sort_index":{0}}}}})",
                     row->second, quoted(event.row));
    }
    append_event(text, event, row->second);
    if (text.size() < kWorthWriting) continue;
    file.write(text);
    text.clear();
  }
  file.write(text + "\n]}\n");
  file.finish();
}

void TraceTarget::add_to(CLI::App& app, const std::string& help) {
  const auto read = [this](const std::string& flag, const std::string& text) {
    require<InvalidArgument>(!text.empty(), "{}: a file has no empty name; give one such as trace.json", flag);
    path = text;
  };
  add_parsed(app, "--trace", "FILE", read, help);
}

void TraceFlag::add_to(CLI::App& app) {
  TraceTarget::add_to(app, "Write a trace of every step, collective and copy, for https://ui.perfetto.dev");
}

namespace {

/// What the clock of process 0 is ahead of that of `process`, ns: by the quickest of several answers. Collective of the
/// two.
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

/// What the tracers of all processes have.
struct Spans {
  std::vector<TraceEvent> events;
  std::vector<int64_t> lost;  ///< of each process
};

/// In process 0 those of all processes, on its clock and with rows named as their devices are there. `origin`: when the
/// tracer was made. Collective.
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
    text += fmt::format("{} the first {} spans{} only, with no room for {} more",
                        text.empty() ? path + " has" : ", and", Tracer::kMostSpans, of, lost[process]);
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
    } catch (const Interrupted&) {  // a pipe without a reader is not waited for any longer
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
