// Timelines of the work of devices. A Tracer collects spans from the threads that run the work. Tools write the spans
// as a Chrome/Perfetto trace (tools/report/trace_file.h). A Tracer has one row per stream of work. Backends get rows
// through Backend::set_tracer(). Code on the host's thread uses a row named "host". One thread at a time writes a row.
// Writing needs no lock and allocates only when a chunk of the row is full. Any thread may read rows at any time and
// sees the finished spans.
//
//   Tracer tracer;
//   backend.set_tracer(&tracer);
//   ... work ...
//   backend.set_tracer(nullptr);
//   for (const TraceEvent& event : tracer.events()) ...
//
// Code that works for a stream, such as a communicator, describes its work in the thread's current span:
//
//   if (TraceSpan* span = current_span()) span->describe(...);
//
// Without a tracer, the thread has no current span.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace shoal {

enum class TraceKind : uint8_t { kCompute, kCollective, kWait, kCopy, kHost };
/// Returns "compute", "collective", "wait", "copy" or "host".
std::string_view name_of(TraceKind kind);

/// A finished span on one row.
struct TraceEvent {
  std::string row;  ///< name of the row, usually of a device such as "CPU0"
  TraceKind kind = TraceKind::kCompute;
  std::string name;  ///< for example "nodes 0-18" or "all_reduce blk.0.attn_out"
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  int64_t bytes = 0;       ///< bytes of a collective or copy; 0 for other kinds
  int64_t waiting_ns = 0;  ///< time for which this rank waited for other ranks in a collective, if known
};

/// The current time in ns, on the clock that spans use.
int64_t trace_clock();

/// Plain data in which a thread records a span. Long names are truncated.
struct TraceSpan {
  TraceKind kind = TraceKind::kHost;
  std::array<char, 87> name{};  ///< null-terminated; traces omit a span with an empty name
  int64_t begin_ns = 0, end_ns = 0;
  int64_t bytes = 0;
  int64_t waiting_ns = 0;

  /// Sets the kind and the number of bytes. The name is the concatenation of the parts.
  void describe(TraceKind what, std::initializer_list<std::string_view> parts, int64_t size = 0);
  /// Describes nodes [begin, end) of a graph. The name is "nodes 0-18", or "step 3: nodes 0-18" with the label "step
  /// 3".
  void describe_nodes(std::string_view label, int begin, int end);
  bool is_shown() const { return name[0] != '\0'; }
};

/// The calling thread's current span; nullptr if the thread is not traced.
TraceSpan* current_span();
/// Makes a span the current span of the calling thread during the lifetime of this object.
class CurrentSpan {
 public:
  explicit CurrentSpan(TraceSpan& span);
  ~CurrentSpan();
  CurrentSpan(const CurrentSpan&) = delete;
  CurrentSpan& operator=(const CurrentSpan&) = delete;

 private:
  TraceSpan* before_;
};

class Tracer;

/// A row of spans in order of time. One thread at a time adds spans. Any thread may read.
class TraceRow {
 public:
  TraceRow(Tracer& tracer, std::string name);
  ~TraceRow();
  TraceRow(const TraceRow&) = delete;
  TraceRow& operator=(const TraceRow&) = delete;

  const std::string& name() const { return name_; }
  /// Adds a span. If the tracer is full or memory is short, counts the span as lost instead.
  void add(const TraceSpan& span);

 private:
  friend class Tracer;
  friend struct GiveRowBack;
  struct Chunk;

  Tracer& tracer_;
  std::string name_;
  bool in_use_ = false;  ///< guarded by the tracer's mutex
  Chunk* first_ = nullptr;
  Chunk* last_ = nullptr;         ///< used only by the writing thread
  size_t room_ = 0;               ///< number of free spans in `last_`; used only by the writing thread
  std::atomic<size_t> count_{0};  ///< number of readable spans
};

struct GiveRowBack {
  void operator()(TraceRow* row) const;
};
/// A row that one thread currently writes. The destructor gives the row back to the tracer. So this object must be
/// destroyed before the tracer.
using TraceRowUse = std::unique_ptr<TraceRow, GiveRowBack>;

class Tracer {
 public:
  static constexpr size_t kMostSpans = size_t{1} << 20;  ///< this many spans need about 130 MB

  /// Stores at most `most_spans` spans. Later spans are lost. `most_spans` is rounded up to a whole number of chunks.
  explicit Tracer(size_t most_spans = kMostSpans);

  /// Returns the row with this name, such as "CPU0". If that row is in use, returns the row "CPU0 #2", and so on.
  /// Thread-safe.
  TraceRowUse row(std::string_view name);
  /// All spans so far, grouped by row. The rows are in order of creation. The spans of a row are in order of time.
  /// Times are in ns since the tracer was made.
  std::vector<TraceEvent> events() const;
  /// Number of spans that were lost because the tracer was full or memory was short.
  int64_t lost() const { return lost_.load(std::memory_order_relaxed); }

 private:
  friend class TraceRow;
  friend struct GiveRowBack;
  bool take_chunk();

  const int64_t origin_ns_;
  mutable std::mutex mutex_;  ///< guards the list of rows
  std::deque<TraceRow> rows_;
  std::atomic<int64_t> chunks_left_;
  std::atomic<int64_t> lost_{0};
};

/// Adds a span to a row. The span covers the lifetime of this object. Does nothing without a row.
class TraceScope {
 public:
  TraceScope(TraceRow* row, TraceKind kind, std::initializer_list<std::string_view> name, int64_t bytes = 0);
  ~TraceScope();
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;

 private:
  TraceRow* row_;
  TraceSpan span_;
};

}  // namespace shoal
