#include "tests/support/run_case.h"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <sstream>

#include "devices/allocate.h"
#include "graph/error.h"
#include "graph/text.h"
#include "meta/meta_device.h"

namespace shoal::test {
namespace {

std::vector<float> read(const Tensor& tensor) {
  std::vector<std::byte> bytes(tensor.bytes());
  tensor_get(tensor, bytes.data(), 0, bytes.size());
  std::vector<float> values(static_cast<size_t>(tensor.elements()));
  traits(tensor.dtype).to_f32(bytes.data(), values.data(), tensor.elements());
  return values;
}

void fill(Tensor& leaf, uint64_t seed) {
  const auto bytes = leaf_data(leaf, seed);
  tensor_set(leaf, bytes.data(), 0, bytes.size());
}

/// Writes shares of the leaf's values as the ranks' addends.
void fill_partial(Tensor& leaf, uint64_t seed, int ranks) {
  const auto bytes = leaf_data(leaf, seed);
  const auto* values = reinterpret_cast<const float*>(bytes.data());
  for (int rank = 0; rank < ranks; ++rank) {
    const float share = ranks == 1 ? 1.0f : (rank == 0 ? 0.6f : 0.4f / static_cast<float>(ranks - 1));
    std::vector<float> addend(values, values + leaf.elements());
    for (float& value : addend) value *= share;
    auto& local = const_cast<Tensor&>(meta::shard(leaf, rank));
    tensor_set(local, addend.data(), 0, local.bytes());
  }
}

Results run(const RandomCase& one, Device& device, int runs, int ranks) {
  TensorContext weights;
  Graph graph("random");
  parse_graph(one.graph, graph, weights);
  const auto memory = allocate_tensors(weights.tensors(), device.buffer_type(), Usage::kWeights);
  const auto backend = device.init();
  const auto plan = backend->create_plan(graph);
  Results results;
  for (int i = 0; i < runs; ++i) {
    for (Tensor* leaf : weights.tensors()) {
      const auto layout = one.layouts.find(leaf->name);
      const bool partial = ranks > 1 && layout != one.layouts.end() && layout->second.is_partial();
      if (partial && leaf->dtype == DType::kF32)
        fill_partial(*leaf, one.seed, ranks);
      else
        fill(*leaf, one.seed);
    }
    for (Tensor* input : graph.inputs()) fill(*input, one.seed);
    backend->compute_async(*plan);
    backend->synchronize();
    for (Tensor* node : graph.nodes()) {
      if (node->is_output) results[node->name] = read(*node);
    }
    for (Tensor* leaf : weights.tensors()) {
      if (leaf->role == Role::kCache) results[leaf->name] = read(*leaf);
    }
  }
  return results;
}

/// The case without statement `drop` and everything that uses what it defines.
std::string without_line(const std::string& text, size_t drop) {
  std::istringstream lines(text);
  std::vector<std::string> gone;
  std::string line, kept;
  for (size_t i = 0; std::getline(lines, line); ++i) {
    const size_t mark = line.find('%');
    const std::string name = mark == std::string::npos ? "" : line.substr(mark, line.find_first_of(" =", mark) - mark);
    bool remove = i == drop;
    for (const std::string& other : gone) {
      for (size_t at = line.find(other); at != std::string::npos; at = line.find(other, at + 1)) {
        const size_t end = at + other.size();
        remove |= end == line.size() || std::string_view(" ,)=").find(line[end]) != std::string_view::npos;
      }
    }
    if (!remove)
      kept += line + "\n";
    else if (!line.starts_with("output") && !name.empty())
      gone.push_back(name);
  }
  return kept;
}

size_t count_lines(const std::string& text) {
  return static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
}

/// A node without users becomes the output.
std::string with_outputs(std::string text) {
  TensorContext weights;
  Graph graph("shrunk");
  parse_graph(text, graph, weights);
  bool any = false;
  for (const Tensor* node : graph.nodes()) any |= node->is_output;
  if (!any && !graph.nodes().empty()) text += fmt::format("output %{}\n", graph.nodes().back()->name);
  return text;
}

}  // namespace

Results run_on_one(const RandomCase& one, Device& device) {
  return run(one, device, 1, 1);
}

Results run_on_meta(const RandomCase& one, std::span<Device* const> devices, const meta::RuleLookup& rules) {
  const auto callback = [&](const Tensor& tensor) -> meta::SplitState {
    const auto it = one.layouts.find(tensor.name);
    if (it == one.layouts.end() || it->second.is_mirrored()) return meta::SplitState::mirrored();
    if (it->second.is_partial()) return meta::SplitState::partial();
    return meta::SplitState::split(it->second.axis, it->second.partition);
  };
  const auto members = devices.first(static_cast<size_t>(one.ranks));
  meta::MetaOptions options;
  options.rules = rules;
  options.member_params.assign(members.size(), "threads=1");
  const auto device = meta::MetaDevice::create({members.begin(), members.end()}, callback, options);
  return run(one, *device, 2, one.ranks);
}

std::string difference(const Results& expected, const Results& actual, double tolerance) {
  std::string worst;
  double most = 1.0;
  for (const auto& [name, values] : expected) {
    const auto it = actual.find(name);
    if (it == actual.end() || it->second.size() != values.size()) return fmt::format("%{} is missing", name);
    double largest = 0;
    for (float value : values) largest = std::max(largest, std::abs(static_cast<double>(value)));
    for (size_t i = 0; i < values.size(); ++i) {
      const double error = std::abs(static_cast<double>(values[i]) - static_cast<double>(it->second[i]));
      const double excess = error / (tolerance * (largest + 0.1));
      if (excess <= most) continue;
      most = std::isfinite(error) ? excess : INFINITY;
      worst =
          fmt::format("%{}[{}]: expected {}, got {} ({:.3g} x tolerance)", name, i, values[i], it->second[i], excess);
    }
    for (size_t i = 0; i < values.size(); ++i) {
      if (std::isfinite(values[i]) && !std::isfinite(it->second[i]))
        return fmt::format("%{}[{}] is not finite", name, i);
    }
  }
  return worst;
}

std::string check_case(const RandomCase& one, std::span<Device* const> devices, const meta::RuleLookup& rules) {
  try {
    const Results expected = run_on_one(one, *devices[0]);
    return difference(expected, run_on_meta(one, devices, rules), one.low_precision ? 4e-2 : 1e-4);
  } catch (const std::exception& error) {
    return error.what();
  }
}

RandomCase shrink(RandomCase one, const std::function<bool(const RandomCase&)>& fails) {
  const auto stop = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  const auto try_it = [&](RandomCase next) {
    if (std::chrono::steady_clock::now() > stop) return false;
    try {
      next.graph = with_outputs(next.graph);
      if (count_lines(next.graph) == 0 || !fails(next)) return false;
    } catch (const Error&) {
      return false;  // what is left is no graph
    }
    one = std::move(next);
    return true;
  };
  for (bool smaller = true; smaller;) {
    smaller = false;
    for (size_t line = count_lines(one.graph); line-- > 0;) {
      RandomCase next = one;
      next.graph = without_line(one.graph, line);
      if (count_lines(next.graph) < count_lines(one.graph)) smaller |= try_it(std::move(next));
    }
    const auto layouts = one.layouts;
    for (const auto& [name, layout] : layouts) {
      RandomCase next = one;
      next.layouts.erase(name);
      smaller |= try_it(std::move(next));
    }
  }
  return one;
}

}  // namespace shoal::test
