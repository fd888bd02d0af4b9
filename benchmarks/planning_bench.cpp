// Times the planning of a graph on 1 to 8 devices with even shares. The graph has about 1,200 nodes: Llama 2 7B with
// biases, 40 layers, one token. Plans are verified first. The benchmarks time the whole planning and its parts:
// propagation, lowering, and the memory plans of all ranks. These benchmarks allocate no memory and compile nothing.
// `create_plan` times all work of a backend, including allocation and compilation, for a smaller model. Counters:
// number of nodes in the graph, and number of nodes in all local graphs.
//
//   planning_bench --benchmark_filter=make_plan/ranks:8
#include <benchmark/benchmark.h>
#include <fmt/core.h>

#include <optional>
#include <string>
#include <vector>

#include "devices/allocate.h"
#include "devices/cpu/cpu_device.h"
#include "graph/topology.h"
#include "meta/meta.h"
#include "meta/plan/lower.h"
#include "meta/plan/plan.h"
#include "models/arch/architecture.h"
#include "models/place/split_policy.h"

namespace shoal::models {
namespace {

constexpr int kLayers = 40;

/// If `small` is true, returns a small model, whose weights fit into memory. Otherwise, returns a large model, which is
/// only planned and needs no memory.
Hparams hparams(bool small) {
  Hparams h;
  h.architecture = "llama";
  h.layers = kLayers;
  h.context = 4096;
  h.embd = 4096;
  h.ff = 11008;
  h.heads = h.kv_heads = 32;
  h.head_dim_k = h.head_dim_v = 128;
  h.vocab = 32000;
  h.norm_eps = 1e-5f;
  h.rope.dims = 128;
  if (!small) return h;
  h.embd = 256;
  h.ff = 512;
  h.heads = h.kv_heads = 8;
  h.head_dim_k = h.head_dim_v = h.rope.dims = 32;
  h.vocab = 1024;
  return h;
}

/// A model whose tensors have no memory, the layouts of these tensors on a mesh, and the graph of one token.
class Planned {
 public:
  explicit Planned(int ranks, bool small = false) : store(ranks) {
    cpu::configure(fmt::format("devices={},threads=1", ranks));
    for (int rank = 0; rank < ranks; ++rank) {
      devices.push_back(&Registry::instance().device(fmt::format("CPU{}", rank)));
    }
    const Hparams h = hparams(small);
    const std::vector<TensorSpec> specs = find_architecture("llama", {}).tensors(h);
    std::vector<ModelTensor> tensors;
    for (const TensorSpec& spec : specs) {
      const DType dtype = spec.elementwise ? DType::kF32 : DType::kQ8_0;
      if (spec.name == "rope_freqs.weight") continue;
      weights.add(spec.name, dtype, spec.shape);
      tensors.push_back({&spec, dtype});
    }
    declare_cache(cache, h, {512});
    const SplitPolicy policy(h, tensors, std::vector<double>(static_cast<size_t>(ranks), 1.0 / ranks));
    for (const TensorContext* context : {&weights, &cache.context}) {
      for (const Tensor* tensor : context->tensors()) {
        store.declare(*tensor,
                      ranks == 1 ? meta::Layout::mirrored() : meta::to_layout(policy(*tensor), *tensor, ranks));
      }
    }
    decoder = find_architecture("llama", {}).build(h, weights, cache, {1, 1});
  }

  Graph& graph() { return *decoder.graph; }
  int ranks() const { return static_cast<int>(devices.size()); }
  meta::ShardLookup lookup() const {
    return [this](const Tensor& tensor) { return store.find(tensor); };
  }
  meta::LeafLayout leaves() const {
    return [this](const Tensor& tensor) {
      const meta::Shards* shards = store.find(tensor);
      return shards != nullptr ? shards->layout : meta::Layout::mirrored();
    };
  }
  meta::Plan plan() { return meta::make_plan(whole(graph()), {lookup()}, devices); }

  /// Returns an empty string if the plan is as expected, otherwise the difference.
  std::string verify() {
    const meta::Plan made = plan();
    if (graph().nodes().size() < 1200) return fmt::format("the graph has only {} nodes", graph().nodes().size());
    const int sums = ranks() == 1 ? 0 : 2 * kLayers;
    if (made.count(Collective::kAllReduce) != sums)
      return fmt::format("{} all-reduces", made.count(Collective::kAllReduce));
    if (static_cast<int>(made.steps.size()) != 2 * sums + 1) return fmt::format("{} steps", made.steps.size());
    for (const meta::RankPlan& rank : made.ranks) {
      if (rank.memory.compute == 0 || rank.memory.compute > (1u << 20)) return "a memory plan has a wrong size";
      local_nodes += static_cast<double>(rank.graph->nodes().size());
    }
    return {};
  }

  std::vector<Device*> devices;
  TensorContext weights;
  KvCache cache;
  meta::ShardStore store;
  DecoderGraph decoder;
  double local_nodes = 0;
};

/// Runs `work` with a verified plan, then sets the counters.
template <class Work>
void time_part(benchmark::State& state, Work&& work) {
  Planned planned(static_cast<int>(state.range(0)));
  if (const std::string problem = planned.verify(); !problem.empty()) return state.SkipWithError(problem.c_str());
  work(state, planned);
  state.counters["nodes"] = static_cast<double>(planned.graph().nodes().size());
  state.counters["local_nodes"] = planned.local_nodes;
}

void make_plan(benchmark::State& state) {
  time_part(state, [](benchmark::State& run, Planned& planned) {
    std::optional<meta::Plan> plan;
    for (auto _ : run) {
      plan = planned.plan();
      run.PauseTiming();
      plan.reset();
      run.ResumeTiming();
    }
  });
}

void propagate(benchmark::State& state) {
  time_part(state, [](benchmark::State& run, Planned& planned) {
    const auto leaves = planned.leaves();
    for (auto _ : run) benchmark::DoNotOptimize(meta::propagate(whole(planned.graph()), planned.ranks(), leaves));
  });
}

void lower(benchmark::State& state) {
  time_part(state, [](benchmark::State& run, Planned& planned) {
    const auto leaves = planned.leaves();
    const meta::PlanContext context{planned.lookup()};
    const auto propagation = meta::propagate(whole(planned.graph()), planned.ranks(), leaves);
    for (auto _ : run) {
      meta::Plan plan;
      meta::lower(whole(planned.graph()), planned.ranks(), propagation, leaves, context, {}, plan);
      benchmark::DoNotOptimize(plan);
    }
  });
}

void plan_chunks(benchmark::State& state) {
  time_part(state, [](benchmark::State& run, Planned& planned) {
    const meta::Plan plan = planned.plan();
    std::vector<MemoryPlanOptions> options;
    for (Device* device : planned.devices) options.push_back(memory_options(*device));
    for (auto _ : run) {
      for (size_t rank = 0; rank < plan.ranks.size(); ++rank) {
        benchmark::DoNotOptimize(shoal::plan_chunks(whole(*plan.ranks[rank].graph), options[rank]));
      }
    }
  });
}

/// Times the planning, the allocation of the graph's memory, and the compilation by the member backends.
void create_plan(benchmark::State& state) {
  const auto ranks = static_cast<int>(state.range(0));
  Planned planned(ranks, true);
  if (const std::string problem = planned.verify(); !problem.empty()) return state.SkipWithError(problem.c_str());
  const auto device = meta::MetaDevice::create(planned.devices, [&](const Tensor& tensor) {
    const meta::Layout& layout = planned.store.find(tensor)->layout;
    return layout.is_split() ? meta::SplitState::split(layout.axis, layout.partition) : meta::SplitState::mirrored();
  });
  std::vector<std::unique_ptr<Buffer>> memory;
  for (const TensorContext* context : {&planned.weights, &planned.cache.context}) {
    memory.push_back(allocate_tensors(context->tensors(), device->buffer_type(), Usage::kWeights));
  }
  const auto backend = device->init();
  for (auto _ : state) {
    const auto plan = backend->create_plan(planned.graph());
    benchmark::DoNotOptimize(plan->allocated_bytes());
  }
}

void topology(benchmark::State& state) {
  time_part(state, [](benchmark::State& run, Planned& planned) {
    for (auto _ : run) benchmark::DoNotOptimize(Topology(planned.graph()));
  });
}

void ranks(benchmark::internal::Benchmark* benchmark) {
  benchmark->Unit(benchmark::kMillisecond)->ArgName("ranks")->RangeMultiplier(2)->Range(1, 8);
}

BENCHMARK(make_plan)->Apply(ranks);
BENCHMARK(propagate)->Apply(ranks);
BENCHMARK(lower)->Apply(ranks);
BENCHMARK(plan_chunks)->Apply(ranks);
BENCHMARK(create_plan)->Apply(ranks);
BENCHMARK(topology)->Unit(benchmark::kMillisecond)->ArgName("ranks")->Arg(1);

}  // namespace
}  // namespace shoal::models
