// What devices did when, for people to look at: a Tracer collects spans from the threads that run them, tools write
// them as a Chrome/Perfetto trace (tools/trace_file.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace shoal {

enum class TraceKind : uint8_t { kCompute, kCollective, kWait, kCopy, kHost };
std::string_view name_of(TraceKind kind);

/// One span on one row.
struct TraceEvent {
  std::string row;  ///< the device, "CPU0"
  TraceKind kind = TraceKind::kCompute;
  std::string name;  ///< "nodes 0-18", "all_reduce blk.0.attn_out"
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  int64_t bytes = 0;  ///< of a collective or copy; 0 where it has no meaning
};

}  // namespace shoal
