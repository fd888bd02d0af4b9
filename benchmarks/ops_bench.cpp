// Times every op that takes a significant part of a model's time, on any device. Each op is verified first and runs in
// a plan. The times are per op. Counters:
//
// - GB/s that the op reads and writes, and GFLOP/s.
// - For devices with CPU cores: %bw is GB/s in percent of the cores' read bandwidth, and %peak is GFLOP/s in percent of
//   the cores' peak arithmetic rate (benchmarks/machine.h). The larger percentage shows how close an op is to a limit.
//
// The peak rate depends on the weights: 8-bit arithmetic for quantised weights, 16-bit arithmetic for prompts with f16
// and bf16 weights, and otherwise f32 arithmetic. As in a model, weights and KV caches come from memory. Other operands
// may be in the caches, so %bw may be over 100.
//
//   ops_bench --device=CPU0:threads=2 --benchmark_filter='mul_mat/q4_0/.*/n:1$'
//   ops_bench --weights=CPU0            stores matrices in this buffer type; models use CPU0_Packed
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "benchmarks/machine.h"
#include "benchmarks/ops_bench/subject.h"
#include "devices/cpu/cpu_backend.h"
#include "devices/cpu/isa.h"
#include "devices/functions.h"
#include "meta/device/meta_family.h"

namespace shoal::bench {
namespace {

/// Number of threads of all CPU devices in the backend.
int threads_of(const Backend& backend) {
  if (const auto* cpu = dynamic_cast<const cpu::CpuBackend*>(&backend)) return cpu->threads();
  int threads = 0;
  for (const Backend* member : backend.members()) threads += threads_of(*member);
  return threads;
}

/// Returns the device's buffer type `name`. If `name` is empty, returns the buffer type that models use for weights.
BufferType& weights_type(Device& device, const std::string& name) {
  if (name.empty()) return device.weights_type();
  std::vector<BufferType*> types{&device.buffer_type()};
  const auto add = [&](BufferType* type) {
    if (std::find(types.begin(), types.end(), type) == types.end()) types.push_back(type);
  };
  add(&device.weights_type());
  if (const auto extra = find_function(device.reg(), functions::kExtraBufferTypes)) {
    for (BufferType* type : extra(device)) add(type);
  }
  std::string known;
  for (BufferType* type : types) {
    if (type->name() == name) return *type;
    known += " " + type->name();
  }
  fail<InvalidArgument>("{} has no buffer type '{}'; its types:{}", device.name(), name, known);
}

void measure(Target& target, int threads) {
  target.bandwidth = read_bandwidth(threads);
  target.f32_peak = f32_peak(threads);
  target.int16_peak = int16_peak(threads);
  target.int8_peak = int8_peak(threads);
  benchmark::AddCustomContext("level", std::string(cpu::level_in_use()));
  benchmark::AddCustomContext("limits with the device's threads",
                              fmt::format("{} threads: {:.1f} GB/s, {:.0f} f32 GFLOP/s, {:.0f} int16 GOP/s, "
                                          "{:.0f} int8 GOP/s",
                                          measured_threads(threads), target.bandwidth / 1e9, target.f32_peak / 1e9,
                                          target.int16_peak / 1e9, target.int8_peak / 1e9));
}

void run(const std::string& device, const std::string& weights, size_t working_set) {
  meta::family();
  Target target;
  target.backend = Registry::instance().init(device);
  target.weights = &weights_type(target.backend->device(), weights);
  target.working_set = working_set;
  benchmark::AddCustomContext("device", device);
  benchmark::AddCustomContext("weights in", target.weights->name());
  if (const int threads = threads_of(*target.backend); threads > 0) measure(target, threads);
  for (const auto add : {add_products, add_attention, add_states, add_images, add_rows, add_elementwise}) add(target);
  benchmark::RunSpecifiedBenchmarks();
  target.current.reset();
}

}  // namespace
}  // namespace shoal::bench

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  CLI::App app("Times the ops of a device. Also accepts the flags of Google Benchmark");
  std::string device = "CPU0", weights, working_set;
  app.add_option("--device", device, "Device and parameters, such as CPU0, CPU0:threads=2 or META:devices=CPU0,CPU1");
  app.add_option("--weights", weights, "Buffer type of matrices and tables; default: the type that models use");
  app.add_option("--working_set", working_set, "Bytes of weights to read before a weight is read again, such as 64M");
  CLI11_PARSE(app, argc, argv);
  try {
    shoal::bench::run(device, weights,
                      working_set.empty() ? shoal::bench::beyond_caches() : shoal::parse_bytes(working_set));
  } catch (const std::exception& error) {
    fmt::print(stderr, "ops_bench: {}\n", error.what());
    return 1;
  }
  return 0;
}
