// What devices did when, for people to look at: a Tracer collects spans from the threads that run them, tools write
// them as a Chrome/Perfetto trace (tools/report/trace_file.h).
//
// A Tracer has rows, one for each stream of work: backends take theirs in Backend::set_tracer(), code that runs on the
// host's thread one called "host". A row is written by one thread at a time, without locks, and allocates only when a
// chunk of it is full. Rows may be read at any time, by any thread: what is finished then.
//
//   Tracer tracer;
//   backend.set_tracer(&tracer);
//   ... work ...
//   backend.set_tracer(nullptr);
//   for (const TraceEvent& event : tracer.events()) ...
//
// Code that does something on behalf of a stream, such as a communicator, describes it in the span that the thread
// works at: if (TraceSpan* span = current_span()) span->describe(...). Without a tracer there is none.
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
/// "compute", "collective", "wait", "copy", "host"
std::string_view name_of(TraceKind kind);

/// One span on one row.
struct TraceEvent {
  std::string row;  ///< the device, "CPU0"
  TraceKind kind = TraceKind::kCompute;
  std::string name;  ///< "nodes 0-18", "all_reduce blk.0.attn_out"
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  int64_t bytes = 0;       ///< of a collective or copy; 0 where it has no meaning
  int64_t waiting_ns = 0;  ///< of a collective: part of it in which this rank waited for others, where that is known
};

/// Now, on the clock of spans.
int64_t trace_clock();

/// A span as threads record it: plain data. Names that are too long are cut.
struct TraceSpan {
  TraceKind kind = TraceKind::kHost;
  std::array<char, 87> name{};  ///< ends with a 0; "": nothing to be shown
  int64_t begin_ns = 0, end_ns = 0;
  int64_t bytes = 0;
  int64_t waiting_ns = 0;

  /// The name is the parts, one after the other.
  void describe(TraceKind what, std::initializer_list<std::string_view> parts, int64_t size = 0);
  /// Nodes [begin, end) of a graph: "nodes 0-18", with a label "step 3: nodes 0-18".
  void describe_nodes(std::string_view label, int begin, int end);
  bool is_shown() const { return name[0] != '\0'; }
};

/// The span that the calling thread works at; nullptr: not traced.
TraceSpan* current_span();
/// Makes a span the current one of this thread while it lives.
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

/// One thread at a time adds spans, in the order of time; any thread reads.
class TraceRow {
 public:
  TraceRow(Tracer& tracer, std::string name);
  ~TraceRow();
  TraceRow(const TraceRow&) = delete;
  TraceRow& operator=(const TraceRow&) = delete;

  const std::string& name() const { return name_; }
  /// Without an effect when the tracer has no room any more, or there is no memory.
  void add(const TraceSpan& span);

 private:
  friend class Tracer;
  friend struct GiveRowBack;
  struct Chunk;

  Tracer& tracer_;
  std::string name_;
  bool in_use_ = false;  ///< guarded by the tracer's mutex
  Chunk* first_ = nullptr;
  Chunk* last_ = nullptr;         ///< writing thread only
  size_t room_ = 0;               ///< in `last_`; writing thread only
  std::atomic<size_t> count_{0};  ///< spans that can be read
};

struct GiveRowBack {
  void operator()(TraceRow* row) const;
};
/// A row while it is written to. Must go before the tracer.
using TraceRowUse = std::unique_ptr<TraceRow, GiveRowBack>;

class Tracer {
 public:
  static constexpr size_t kMostSpans = size_t{1} << 20;  ///< about 130 MB

  /// Keeps the first `most_spans`, or a few more.
  explicit Tracer(size_t most_spans = kMostSpans);

  /// The row of this name; another one ("CPU0 #2") while that is in use. Thread-safe.
  TraceRowUse row(std::string_view name);
  /// All spans so far, row by row as they were made, each row in the order of time; ns since the tracer was made.
  std::vector<TraceEvent> events() const;
  /// Spans that there was no room for.
  int64_t lost() const { return lost_.load(std::memory_order_relaxed); }

 private:
  friend class TraceRow;
  friend struct GiveRowBack;
  bool take_chunk();

  const int64_t origin_ns_;
  mutable std::mutex mutex_;  ///< of the list of rows
  std::deque<TraceRow> rows_;
  std::atomic<int64_t> chunks_left_;
  std::atomic<int64_t> lost_{0};
};

/// Puts its life on a row, or nothing without one.
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
