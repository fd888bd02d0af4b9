// Traces as files that https://ui.perfetto.dev and chrome://tracing show: the JSON trace event format, a row ("thread")
// per device with a complete event ("X") per span. Times are in microseconds.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "devices/trace.h"

namespace CLI {
class App;
}

namespace shoal::tools {

/// What was run, for "otherData": {"command", "shoal run"}, ...
using TraceMetadata = std::vector<std::pair<std::string, std::string>>;

/// Throws DeviceError if the file cannot be written, and OutputRefused (base/user_file.h) for an input. Makes no file.
void require_writable(const std::string& path);

/// Rows in the order in which they first appear. Throws what require_writable() throws.
void write_trace(const std::string& path, std::span<const TraceEvent> events, const TraceMetadata& metadata);

/// The line on spans that tracers had no room for, "" where there are none. `lost`: of each process.
std::string describe_lost(const std::string& path, std::span<const int64_t> lost);

/// --trace FILE
struct TraceFlag {
  std::string path;  ///< "": no trace

  /// Refuses an empty name.
  void add_to(CLI::App& app);

  /// Runs `body` with a tracer, nullptr where no trace is wanted, and writes what it has by then, also when the body
  /// was interrupted, or failed after something had been done. Returns what the body returns. A file that cannot be
  /// written is an error before anything is run.
  int run(TraceMetadata metadata, const std::function<int(Tracer* tracer)>& body) const;
};

}  // namespace shoal::tools
