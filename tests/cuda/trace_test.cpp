// Traces of CUDA devices: spans of a stream, and spans of the ranks of a meta device.
#include "devices/trace.h"

#include <gtest/gtest.h>

#include <map>

#include "graph/ops/ops.h"
#include "tests/cuda/cuda_mesh.h"
#include "tests/cuda/device_memory.h"

namespace shoal {
namespace {

std::map<std::string, std::vector<TraceEvent>> rows_of(const Tracer& tracer) {
  std::map<std::string, std::vector<TraceEvent>> rows;
  for (const TraceEvent& event : tracer.events()) rows[event.row].push_back(event);
  for (const auto& [row, events] : rows) {
    for (size_t i = 0; i < events.size(); ++i) {
      EXPECT_LE(events[i].begin_ns, events[i].end_ns) << events[i].name;
      if (i > 0) {
        EXPECT_LE(events[i - 1].end_ns, events[i].begin_ns) << events[i].name;
      }
    }
  }
  return rows;
}

TEST(CudaTrace, RecordsSpansOfAStreamInHostTime) {
  const test::CudaMesh mesh(1);
  Backend& backend = mesh.backend(0);
  Graph graph;
  Tensor* x = graph.input("x", DType::kF32, {32, 4, 1, 1});
  Tensor* y = graph.output(scale(graph, scale(graph, x, {2, 0}), {3, 0}, "y"));
  const auto plan = backend.create_plan(graph);
  std::vector<float> values(128, 1.0F);
  const auto run = [&] {
    backend.set_async(*x, values.data(), 0, x->bytes());
    backend.compute_async(*plan);
    backend.get_async(*y, values.data(), 0, y->bytes());
    backend.enqueue({[](void*, const void*, bool) {
                       if (TraceSpan* span = current_span()) span->describe(TraceKind::kHost, {"task"});
                     },
                     nullptr, nullptr});
    backend.synchronize();
  };
  Tracer tracer;
  run();
  EXPECT_TRUE(tracer.events().empty());
  backend.set_tracer(&tracer);
  const int64_t begin = trace_clock();
  run();
  run();  // this run uses a CUDA graph
  const int64_t took = trace_clock() - begin;
  backend.set_tracer(nullptr);
  run();
  const auto rows = rows_of(tracer);
  ASSERT_EQ(rows.size(), 1U);
  const std::vector<TraceEvent>& events = rows.at(backend.name());
  std::string names;
  for (const TraceEvent& event : events) names += event.name + ", ";
  EXPECT_EQ(names, "set x, nodes 0-1, get y, task, set x, nodes 0-1, get y, task, ");
  EXPECT_EQ(events[0].bytes, 512);
  EXPECT_EQ(events[1].kind, TraceKind::kCompute);
  EXPECT_LE(events.back().end_ns - events.front().begin_ns, took + 1'000'000'000);
}

TEST(CudaTrace, RecordsAllRunsOfALongQueue) {
  Tracer tracer;
  const test::CudaMesh mesh(1);
  Backend& backend = mesh.backend(0);
  Graph graph;
  Tensor* x = graph.input("x", DType::kF32, {4, 1, 1, 1});
  graph.output(scale(graph, x, {2, 0}));
  const auto plan = backend.create_plan(graph);
  backend.set_tracer(&tracer);
  for (int i = 0; i < 5000; ++i) backend.compute_async(*plan);
  backend.synchronize();
  EXPECT_EQ(rows_of(tracer).at(backend.name()).size(), 5000U);
}

TEST(CudaTrace, RecordsCollectivesOnEveryRank) {
  for (const char* implementation : {"p2p", "staged"}) {
    Tracer tracer;
    test::CudaMesh mesh(1, 2);
    const auto communicator = mesh.communicator(implementation);
    const std::vector<float> ones(256, 1.0F);
    const test::CudaArray<float> first(ones), second(ones);
    std::vector<collectives::Call> calls;
    for (const auto* value : {&first, &second}) {
      calls.push_back({Collective::kAllReduce, DType::kF32, value->data(), value->data(), 256, {}, 0, "sum"});
    }
    for (Backend* backend : mesh.backends()) backend->set_tracer(&tracer);
    for (int i = 0; i < 3; ++i) {
      for (int rank = 0; rank < 2; ++rank) communicator->enqueue(rank, calls[static_cast<size_t>(rank)]);
    }
    for (Backend* backend : mesh.backends()) backend->synchronize();
    EXPECT_EQ(first.get()[0], 8.0F);
    const auto rows = rows_of(tracer);
    for (Backend* backend : mesh.backends()) {
      int count = 0;
      for (const TraceEvent& event : rows.at(backend->name())) {
        if (event.name != "all_reduce sum") continue;
        ++count;
        EXPECT_EQ(event.kind, TraceKind::kCollective);
        EXPECT_EQ(event.bytes, 1024);
      }
      EXPECT_EQ(count, 3) << implementation;
    }
  }
}

}  // namespace
}  // namespace shoal
