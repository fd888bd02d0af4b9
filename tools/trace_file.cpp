#include "tools/trace_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "graph/error.h"
#include "tools/options.h"
#include "tools/program.h"

namespace shoal::tools {
namespace {

namespace fs = std::filesystem;

constexpr size_t kWorthWriting = size_t{1} << 20;

[[noreturn]] void fail_to_write(const std::string& path, int error) {
  fail<DeviceError>("cannot write the trace {}: {}; name a file in a directory that can be written to", path,
                    std::strerror(error));
}

/// Pipes and devices are written to as they are; everything else is replaced when it is complete.
bool is_replaced(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  return !fs::exists(status) || fs::is_regular_file(status);
}

/// Where a link leads.
fs::path target_of(const std::string& path) {
  std::error_code error;
  const fs::path target = fs::canonical(path, error);
  return error ? fs::path(path) : target;
}

/// A file that is being written, with the first failure.
class Draft {
 public:
  explicit Draft(const std::string& path) : name_(path), replaces_(is_replaced(path)) {
    target_ = target_of(path);
    draft_ = replaces_ ? fs::path(fmt::format("{}.{}", target_.string(), getpid())) : target_;
    file_ = open(draft_.c_str(), O_WRONLY | O_CREAT | (replaces_ ? O_TRUNC : 0) | O_CLOEXEC, 0666);
    if (file_ < 0) fail_to_write(name_, errno);
  }
  ~Draft() {
    if (file_ >= 0) close(file_);
    if (replaces_ && !done_) unlink(draft_.c_str());
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
    if (replaces_ && std::rename(draft_.c_str(), target_.c_str()) != 0) fail_to_write(name_, errno);
    done_ = true;
  }

 private:
  std::string name_;
  bool replaces_;
  fs::path target_, draft_;
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
  const Draft draft(path);  // removed again
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

void add_trace(CLI::App& app, std::string& path, const std::string& help) {
  const auto read = [&path](const std::string& flag, const std::string& text) {
    require<InvalidArgument>(!text.empty(), "{}: a file has no empty name; give one such as trace.json", flag);
    path = text;
  };
  add_parsed(app, "--trace", "FILE", read, help);
}

void TraceFlag::add_to(CLI::App& app) {
  add_trace(app, path, "Write a trace of every step, collective and copy, for https://ui.perfetto.dev");
}

int TraceFlag::run(TraceMetadata metadata, const std::function<int(Tracer* tracer)>& body) const {
  if (path.empty()) return body(nullptr);
  require_writable(path);
  Tracer tracer;
  const auto write = [&](const std::vector<TraceEvent>& events) {
    if (tracer.lost() > 0) {
      metadata.emplace_back("spans_lost", std::to_string(tracer.lost()));
      warn(fmt::format("{} has the first {} spans only; there was no room for {} more", path, Tracer::kMostSpans,
                       tracer.lost()));
    }
    write_trace(path, events, metadata);
  };
  int code = kSuccess;
  try {
    code = body(&tracer);
  } catch (...) {
    try {
      const std::vector<TraceEvent> events = tracer.events();
      if (!events.empty()) write(events);
    } catch (const std::exception& error) {
      warn(error.what());
    }
    throw;
  }
  write(tracer.events());
  return code;
}

}  // namespace shoal::tools
