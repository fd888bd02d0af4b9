// The code of docs/library.md: a multilayer perceptron on two devices, and extensions of it. Each function is one
// section of the page.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <numeric>

#include "devices/allocate.h"
#include "devices/cpu/cpu_device.h"
#include "graph/external_op.h"
#include "graph/ops/ops.h"
#include "machine/catalogue.h"
#include "meta/check/check_op.h"
#include "meta/meta.h"
#include "sched/scheduler.h"
#include "tuning/propose/propose.h"
#include "tuning/sim_device.h"

using namespace shoal;
using meta::SplitState;

static void write(Tensor& tensor, const std::vector<float>& values) {
  tensor_set(tensor, values.data(), 0, tensor.bytes());
}
static std::vector<float> read(const Tensor& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.elements()));
  tensor_get(tensor, values.data(), 0, tensor.bytes());
  return values;
}
/// 0, 1, 2, ...
static std::vector<float> ramp(size_t size) {
  std::vector<float> values(size);
  std::iota(values.begin(), values.end(), 0.0f);
  return values;
}

static void mlp() {
  // SHOAL_CPU_DEVICES=2 or cpu::configure("devices=2") divides the cores among two CPU devices.
  std::vector<Device*> devices = Registry::instance().device_list("CPU0,CPU1");  // or CUDA0,CUDA1

  // y = relu(down * relu(up * x)). The first length of a shape is the innermost: `up` maps 4 elements to 6 elements.
  TensorContext weights;
  Tensor* up = weights.add("up", DType::kF32, {4, 6, 1, 1});
  Tensor* down = weights.add("down", DType::kF32, {6, 3, 1, 1});
  Graph graph("mlp");
  Tensor* x = graph.input("x", DType::kF32, {4, 1, 1, 1});
  Tensor* hidden = unary(graph, mul_mat(graph, up, x, "hidden"), UnaryKind::kRelu, "active");
  Tensor* y = graph.output(unary(graph, mul_mat(graph, down, hidden, "sum"), UnaryKind::kRelu, "y"));

  // CPU0 gets 4 of the 6 hidden elements, CPU1 gets 2. They are axis 1 of `up` and axis 0 of `down`.
  auto device = meta::MetaDevice::create(
      devices, [&](const Tensor& weight) { return SplitState::split(&weight == up ? 1 : 0, {{4, 2}}); });
  auto memory = allocate_tensors(weights.tensors(), device->buffer_type(), Usage::kWeights);
  write(*up, std::vector<float>(24, 1.0f));
  write(*down, ramp(18));

  auto backend = device->init();
  auto plan = backend->create_plan(graph);
  fmt::print("{}", meta::to_string(meta::plan_of(*plan)));
  write(*x, {1, 2, 3, 4});
  backend->compute(*plan);
  fmt::print("y = {}\n", read(*y));  // 10 * (0+..+5), 10 * (6+..+11), 10 * (12+..+17)
}

static void cache() {
  TensorContext tensors;
  Tensor* up = tensors.add("up", DType::kF32, {4, 6, 1, 1});
  Tensor* history = tensors.add("history", DType::kF32, {6, 8, 1, 1}, Role::kCache);
  auto device = meta::MetaDevice::create(
      Registry::instance().device_list("CPU0,CPU1"),
      [&](const Tensor& tensor) { return SplitState::split(&tensor == up ? 1 : 0, {{4, 2}}); });
  auto memory = allocate_tensors(tensors.tensors(), device->buffer_type(), Usage::kAny);
  memory->clear(0);
  write(*up, std::vector<float>(24, 1.0f));

  // Each run writes its hidden values into row `row` of the cache, and sums all rows. The row is an input, so one plan
  // serves all runs. Each device writes and sums its own columns.
  Graph graph("history");
  Tensor* x = graph.input("x", DType::kF32, {4, 1, 1, 1});
  Tensor* row = graph.input("row", DType::kI32, {1, 1, 1, 1});
  Tensor* written = set_rows(graph, history, mul_mat(graph, up, x), row);
  Tensor* sums = graph.output(sum_rows(graph, contiguous(graph, transpose(graph, written)), "sums"));

  auto backend = device->init();
  auto plan = backend->create_plan(graph);
  for (int32_t i = 0; i < 3; ++i) {
    write(*x, std::vector<float>(4, static_cast<float>(i)));
    tensor_set(*row, &i, 0, sizeof(i));
    backend->compute(*plan);
  }
  fmt::print("sums = {}\n", read(*sums));  // 4 * (0 + 1 + 2)
}

/// The graph and weights of the following functions.
struct Mlp {
  TensorContext weights;
  Tensor* up = weights.add("up", DType::kF32, {4, 6, 1, 1});
  Tensor* down = weights.add("down", DType::kF32, {6, 3, 1, 1});
  Graph graph{"mlp"};
  Tensor* x = graph.input("x", DType::kF32, {4, 1, 1, 1});
  Tensor* hidden = mul_mat(graph, up, x, "hidden");
  Tensor* active = unary(graph, hidden, UnaryKind::kRelu, "active");
  Tensor* y = graph.output(mul_mat(graph, down, active, "y"));

  SplitState operator()(const Tensor& weight) const { return SplitState::split(&weight == up ? 1 : 0, {{4, 2}}); }
  void fill() {
    write(*up, std::vector<float>(24, 1.0f));
    write(*down, ramp(18));
  }
};

static void scheduler(Mlp& model) {
  auto device = meta::MetaDevice::create(Registry::instance().device_list("CPU0,CPU1"), std::ref(model));
  Device& host = Registry::instance().device("CPU2");
  // `up` is on the meta device, `down` is on the host. Each product runs on the device of its weight.
  auto memory = allocate_tensors({&model.up, 1}, device->buffer_type(), Usage::kWeights);
  auto host_memory = allocate_tensors({&model.down, 1}, host.buffer_type(), Usage::kWeights);
  model.fill();

  auto meta_backend = device->init();
  auto host_backend = host.init();
  sched::Scheduler scheduler({meta_backend.get(), host_backend.get()});
  scheduler.allocate(model.graph);
  fmt::print("{}", sched::to_string(scheduler.schedule()));
  write(*model.x, {1, 2, 3, 4});
  scheduler.compute(model.graph);
  fmt::print("y = {}\n", read(*model.y));
}

static void ranges(Mlp& model) {
  auto device = meta::MetaDevice::create(Registry::instance().device_list("CPU0,CPU1"), std::ref(model));
  auto memory = allocate_tensors(model.weights.tensors(), device->buffer_type(), Usage::kWeights);
  model.fill();

  // Two plans of one graph. The second plan reads `active` with the layout of the first plan.
  auto backend = device->init();
  auto first = backend->create_plan({&model.graph, 0, 2}, {.shown = {model.active}});
  auto second = backend->create_plan({&model.graph, 2, 3});
  write(*model.x, {1, 2, 3, 4});
  backend->compute_async(*first);
  backend->synchronize();
  fmt::print("active = {}\n", read(*model.active));  // a read gathers the elements of all devices
  backend->compute_async(*second);
  backend->synchronize();
  fmt::print("y = {}\n", read(*model.y));
}

static void partial_addends() {
  TensorContext weights;
  Tensor* bias = weights.add("bias", DType::kF32, {3, 1, 1, 1});
  auto device = meta::MetaDevice::create(Registry::instance().device_list("CPU0,CPU1"),
                                         [](const Tensor&) { return SplitState::partial(); });
  auto memory = allocate_tensors(weights.tensors(), device->buffer_type(), Usage::kWeights);

  // The value of a partial tensor is the sum of one addend per device. A write of the whole tensor sets rank 0's addend
  // and clears the other addends.
  write(*bias, {1, 2, 3});
  write(meta::shard(*bias, 1), {10, 20, 30});
  fmt::print("bias = {}\n", read(*bias));
}

static void custom_rule(Mlp& model) {
  // This rule keeps the elements of axis 0 together, so the hidden values are gathered before the relu. All other ops
  // keep their rules.
  meta::MetaOptions options;
  options.rules = [](const Tensor& node) {
    return node.op == Op::kUnary ? std::optional<std::string>("(a) b c d -> (a) b c d") : meta::rule_text(node);
  };
  auto device = meta::MetaDevice::create(Registry::instance().device_list("CPU0,CPU1"), std::ref(model), options);
  auto memory = allocate_tensors(model.weights.tensors(), device->buffer_type(), Usage::kWeights);
  model.fill();
  auto backend = device->init();
  auto plan = backend->create_plan(model.graph);
  fmt::print("{}", meta::steps_text(meta::plan_of(*plan)));
  write(*model.x, {1, 2, 3, 4});
  backend->compute(*plan);
  fmt::print("y = {}\n", read(*model.y));
}

static void proposal() {
  // Two H200 of the catalogue. The search runs nothing, so the devices are simulated.
  const machine::MachineModel machine = machine::make_machine("H200x2");
  std::vector<Device*> devices;
  for (const char* name : {"H200.0", "H200.1"}) {
    devices.push_back(&sim::family().provide({name, "simulated H200", DeviceType::kGpu, size_t{140} << 30}));
  }
  TensorContext weights;
  Tensor* up = weights.add("up", DType::kF16, {8192, 32768, 1, 1});
  Tensor* down = weights.add("down", DType::kF16, {32768, 8192, 1, 1});
  Graph graph("mlp");
  Tensor* x = graph.input("x", DType::kF32, {8192, 1, 1, 1});
  Tensor* hidden = unary(graph, mul_mat(graph, up, x, "hidden"), UnaryKind::kRelu, "active");
  graph.output(mul_mat(graph, down, hidden, "y"));
  // The result is a split-state callback: MetaDevice::create(devices, proposal).
  const tuning::Proposal proposal = tuning::propose_split_states(graph, devices, machine);
  fmt::print("{}", tuning::to_string(proposal));
}

// y = max(x, 0)^2 for f32. The functions have the C interface of graph/external_op_c.h.
static int32_t infer_squared_relu(const shoal_op_node* node, shoal_op_tensor* result, char* error, size_t error_size) {
  if (node->sources[0].dtype != SHOAL_OP_F32) {
    std::snprintf(error, error_size, "an f32 source");
    return 1;
  }
  *result = node->sources[0];
  return 0;
}

/// Computes part `launch->part` of the result. The parts run on several threads.
static void run_squared_relu(const shoal_op_node* node, const shoal_op_launch* launch) {
  const shoal_op_tensor& y = *node->result;
  const auto* x = static_cast<const float*>(node->sources[0].data);
  const int64_t n = y.shape[0] * y.shape[1] * y.shape[2] * y.shape[3];
  for (int64_t i = n * launch->part / launch->parts; i < n * (launch->part + 1) / launch->parts; ++i) {
    const float positive = std::max(x[i], 0.0f);
    static_cast<float*>(y.data)[i] = positive * positive;
  }
}

static void custom_op() {
  shoal_op_kernel kernel{};
  kernel.size = sizeof(kernel);
  kernel.family = "CPU";
  kernel.run = run_squared_relu;
  shoal_op op{};
  op.size = sizeof(op);
  op.name = "squared_relu";
  op.rule = "a b c d -> a b c d";
  op.min_sources = op.max_sources = 1;
  op.infer = infer_squared_relu;
  op.kernels = &kernel;
  op.kernel_count = 1;
  register_op(op);
  // The check splits the op in many ways, and compares the results with the unsharded op. Four axes of the example have
  // at least two elements, so the check can divide each of them.
  const char* example = "input %x f32 [6, 4, 2, 3]\n%y = external(%x) {op=\"squared_relu\"}";
  fmt::print("{}\n", to_string(check_op("squared_relu", {{example}})));

  TensorContext weights;
  Graph graph("squared_relu");
  Tensor* up = weights.add("up", DType::kF32, {4, 6, 1, 1});
  Tensor* x = graph.input("x", DType::kF32, {4, 1, 1, 1});
  Tensor* y = graph.output(external(graph, "squared_relu", {mul_mat(graph, up, x, "hidden")}, "", "y"));
  auto device = meta::MetaDevice::create(Registry::instance().device_list("CPU0,CPU1"),
                                         meta::split_states({{"up", SplitState::by_ratio(1, {2, 1})}}));
  auto memory = allocate_tensors(weights.tensors(), device->buffer_type(), Usage::kWeights);
  write(*up, std::vector<float>(24, 1.0f));
  auto backend = device->init();
  auto plan = backend->create_plan(graph);
  write(*x, {1, 2, 3, 4});
  backend->compute(*plan);
  fmt::print("y = {}\n", read(*y));
}

int main() try {
  cpu::configure("devices=3,threads=1");
  mlp();
  cache();
  for (auto section : {scheduler, ranges, custom_rule}) {
    Mlp model;
    section(model);
  }
  proposal();
  custom_op();
  partial_addends();
} catch (const std::exception& error) {
  fmt::print(stderr, "guide: {}\n", error.what());
  return 1;
}
