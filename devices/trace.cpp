#include "devices/trace.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstring>
#include <new>
#include <utility>

namespace shoal {
namespace {

constexpr size_t kChunkSpans = 256;

constinit thread_local TraceSpan* working_at = nullptr;

std::string_view text_of(int number, std::array<char, 12>& memory) {
  const auto end = std::to_chars(memory.data(), memory.data() + memory.size(), number).ptr;
  return {memory.data(), end};
}

}  // namespace

std::string_view name_of(TraceKind kind) {
  constexpr std::array<std::string_view, 5> kNames{"compute", "collective", "wait", "copy", "host"};
  return kNames[static_cast<size_t>(kind)];
}

int64_t trace_clock() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

void TraceSpan::describe(TraceKind what, std::initializer_list<std::string_view> parts, int64_t size) {
  kind = what;
  bytes = size;
  size_t used = 0;
  for (const std::string_view part : parts) {
    const size_t taken = std::min(part.size(), name.size() - 1 - used);
    if (taken > 0) std::memcpy(name.data() + used, part.data(), taken);
    used += taken;
  }
  name[used] = '\0';
}

void TraceSpan::describe_nodes(std::string_view label, int begin, int end) {
  std::array<char, 12> first{}, last{};
  const std::string_view colon = label.empty() ? "" : ": ";
  if (end - begin == 1) return describe(TraceKind::kCompute, {label, colon, "node ", text_of(begin, first)});
  describe(TraceKind::kCompute, {label, colon, "nodes ", text_of(begin, first), "-", text_of(end - 1, last)});
}

TraceSpan* current_span() {
  return working_at;
}

CurrentSpan::CurrentSpan(TraceSpan& span) : before_(working_at) {
  working_at = &span;
}

CurrentSpan::~CurrentSpan() {
  working_at = before_;
}

struct TraceRow::Chunk {
  std::array<TraceSpan, kChunkSpans> spans;
  Chunk* next = nullptr;
};

TraceRow::TraceRow(Tracer& tracer, std::string name) : tracer_(tracer), name_(std::move(name)) {}

TraceRow::~TraceRow() {
  while (first_ != nullptr) delete std::exchange(first_, first_->next);
}

void TraceRow::add(const TraceSpan& span) {
  if (room_ == 0) {
    // If there is no memory, the span is lost and the traced work continues.
    Chunk* chunk = tracer_.take_chunk() ? new (std::nothrow) Chunk : nullptr;
    if (chunk == nullptr) {
      tracer_.lost_.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    (last_ == nullptr ? first_ : last_->next) = chunk;
    last_ = chunk;
    room_ = kChunkSpans;
  }
  last_->spans[kChunkSpans - room_--] = span;
  // This is a release store: a thread that sees the new count also sees the span and its chunk.
  count_.store(count_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
}

void GiveRowBack::operator()(TraceRow* row) const {
  const std::lock_guard lock(row->tracer_.mutex_);
  row->in_use_ = false;
}

Tracer::Tracer(size_t most_spans)
    : origin_ns_(trace_clock()), chunks_left_(static_cast<int64_t>((most_spans + kChunkSpans - 1) / kChunkSpans)) {}

bool Tracer::take_chunk() {
  if (chunks_left_.load(std::memory_order_relaxed) <= 0) return false;
  return chunks_left_.fetch_sub(1, std::memory_order_relaxed) > 0;
}

// Another thread may have written the row before it gave the row back. The mutex orders the accesses of the two
// threads.
TraceRowUse Tracer::row(std::string_view name) {
  const std::lock_guard lock(mutex_);
  std::string wanted(name);
  for (int number = 2;; ++number) {
    const auto found =
        std::find_if(rows_.begin(), rows_.end(), [&](const TraceRow& row) { return row.name_ == wanted; });
    TraceRow& row = found != rows_.end() ? *found : rows_.emplace_back(*this, wanted);
    if (!row.in_use_) {
      row.in_use_ = true;
      return TraceRowUse(&row);
    }
    wanted = std::string(name) + " #" + std::to_string(number);
  }
}

std::vector<TraceEvent> Tracer::events() const {
  std::vector<TraceEvent> events;
  const std::lock_guard lock(mutex_);
  for (const TraceRow& row : rows_) {
    const size_t count = row.count_.load(std::memory_order_acquire);
    const TraceRow::Chunk* chunk = count > 0 ? row.first_ : nullptr;
    for (size_t i = 0; i < count; ++i) {
      if (i > 0 && i % kChunkSpans == 0) chunk = chunk->next;
      const TraceSpan& span = chunk->spans[i % kChunkSpans];
      events.push_back({row.name_, span.kind, span.name.data(), span.begin_ns - origin_ns_, span.end_ns - origin_ns_,
                        span.bytes, span.waiting_ns});
    }
  }
  return events;
}

TraceScope::TraceScope(TraceRow* row, TraceKind kind, std::initializer_list<std::string_view> name, int64_t bytes)
    : row_(row) {
  if (row_ == nullptr) return;
  span_.describe(kind, name, bytes);
  span_.begin_ns = trace_clock();
}

TraceScope::~TraceScope() {
  if (row_ == nullptr) return;
  span_.end_ns = trace_clock();
  row_->add(span_);
}

}  // namespace shoal
