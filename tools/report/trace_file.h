// Trace files in the JSON trace event format, for https://ui.perfetto.dev and chrome://tracing. Each device is a row
// ("thread"), and each span is a complete event ("X"). Times are in microseconds.
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

/// Metadata of the run for "otherData": {"command", "shoal run"}, ...
using TraceMetadata = std::vector<std::pair<std::string, std::string>>;

/// Throws DeviceError if the file cannot be written, and OutputRefused (base/user_file.h) if the file is an input.
/// Creates no file.
void require_writable(const std::string& path);

/// Writes the trace. Rows are in the order of their first span. Throws the errors of require_writable().
void write_trace(const std::string& path, std::span<const TraceEvent> events, const TraceMetadata& metadata);

/// A line about spans that were dropped because tracers were full; "" if there are none. `lost`: number of dropped
/// spans in each process.
std::string describe_lost(const std::string& path, std::span<const int64_t> lost);

/// --trace FILE
struct TraceFlag {
  std::string path;  ///< "": no trace

  /// Adds the flag, which rejects an empty name.
  void add_to(CLI::App& app);

  /// Runs `body` with a tracer if --trace is given, otherwise with nullptr. Returns the result of `body`. Writes the
  /// trace, even if `body` is interrupted or fails after some spans. If the file cannot be written, throws before
  /// `body` runs.
  int run(TraceMetadata metadata, const std::function<int(Tracer* tracer)>& body) const;
};

}  // namespace shoal::tools
