#include "tests/support/run_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <sstream>
#include <stdexcept>

#include "devices/allocate.h"
#include "graph/error.h"
#include "graph/text.h"
#include "meta/meta_buffer.h"
#include "meta/meta_device.h"
#include "tests/support/poison.h"
#include "tests/support/shard_math.h"

namespace shoal::test {
namespace {

/// Infinite unless both are finite or the same.
double distance(double a, double b) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return 0;
  return std::isfinite(a) && std::isfinite(b) ? std::abs(a - b) : INFINITY;
}

void fill(Tensor& leaf, uint64_t seed) {
  const auto bytes = leaf_data(leaf, seed);
  tensor_set(leaf, bytes.data(), 0, bytes.size());
}

/// Rank's addend of a value: asymmetric shares, so that a sum with one addend missing or counted twice shows.
double addend(double value, bool integer, int ranks, int rank) {
  if (integer) return rank == 0 ? value + 1000 * (ranks - 1) : -1000;
  return rank == 0 ? 0.6 * value : 0.4 / (ranks - 1) * value;
}

void fill_partial(Tensor& leaf, uint64_t seed, int ranks) {
  const Values values = decode(leaf.dtype, leaf_data(leaf, seed), leaf.elements());
  for (int rank = 0; rank < ranks; ++rank) {
    Values addends(values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      addends[i] = addend(values[i], leaf.dtype == DType::kI32, ranks, rank);
    }
    write_values(const_cast<Tensor&>(meta::shard(leaf, rank)), addends);
  }
}

void fill_leaves(const RandomCase& one, const Graph& graph, const TensorContext& weights, int ranks) {
  for (Tensor* leaf : weights.tensors()) {
    const auto layout = one.layouts.find(leaf->name);
    const bool partial = ranks > 1 && layout != one.layouts.end() && layout->second.is_partial();
    if (partial)
      fill_partial(*leaf, one.seed, ranks);
    else
      fill(*leaf, one.seed);
  }
  for (Tensor* input : graph.inputs()) fill(*input, one.seed);
}

std::vector<std::byte> bytes_of(const Tensor& tensor) {
  std::vector<std::byte> bytes(tensor.bytes());
  tensor_get(tensor, bytes.data(), 0, bytes.size());
  return bytes;
}

int ranks_of(const Tensor& tensor) {
  return static_cast<int>(meta::shards_of(tensor).local.size());
}

std::string disagreement_of_copies(const Tensor& tensor) {
  const auto first = bytes_of(meta::shard(tensor, 0));
  for (int rank = 1; rank < ranks_of(tensor); ++rank) {
    const auto mine = bytes_of(meta::shard(tensor, rank));
    const auto [a, b] = std::mismatch(first.begin(), first.end(), mine.begin(), mine.end());
    if (a == first.end() && b == mine.end()) continue;
    return fmt::format("%{}, mirrored: rank {} differs from rank 0 at byte {}", tensor.name, rank, a - first.begin());
  }
  return {};
}

/// Every element of the tensor against the first owner's.
std::string disagreement_of_owners(const Tensor& tensor, const meta::Layout& layout, double tolerance) {
  Values known(static_cast<size_t>(tensor.elements()));
  std::vector<int> holder(known.size(), -1);
  double largest = 0;
  for (int rank = 0; rank < ranks_of(tensor); ++rank) {
    const Values mine = read_values(meta::shard(tensor, rank));
    const auto elements = shard_elements(tensor.shape, layout, rank);
    for (size_t i = 0; i < mine.size(); ++i) {
      const auto element = static_cast<size_t>(elements[i]);
      if (holder[element] < 0) known[element] = mine[i], holder[element] = rank;
      if (std::isfinite(mine[i])) largest = std::max(largest, std::abs(mine[i]));
    }
    for (size_t i = 0; i < mine.size(); ++i) {
      const auto element = static_cast<size_t>(elements[i]);
      const double error = distance(known[element], mine[i]);
      if (error <= tolerance * (largest + 0.1)) continue;
      return fmt::format("%{}, {}: element {} is {} on rank {} and {} on rank {}", tensor.name, layout.to_string(),
                         element, known[element], holder[element], mine[i], rank);
    }
  }
  return {};
}

/// Outputs, and caches as they are now. Throws std::runtime_error when ranks disagree about one of them.
Results read_results(const RandomCase& one, const Graph& graph, const TensorContext& weights, bool on_meta) {
  Results results;
  const auto add = [&](const Tensor& tensor) {
    const std::string wrong = on_meta ? disagreement(tensor, one.tolerance) : "";
    if (!wrong.empty()) throw std::runtime_error(wrong);
    results[tensor.name] = {read_values(tensor), tensor.dtype == DType::kI32 || tensor.dtype == DType::kI64};
  };
  for (const Tensor* node : graph.nodes()) {
    if (node->is_output) add(*node);
  }
  for (const Tensor* leaf : weights.tensors()) {
    if (leaf->role == Role::kCache) add(*leaf);
  }
  return results;
}

/// `ranks` == 0: on a device that is no meta device.
Results run(const RandomCase& one, Device& device, int runs, int ranks) {
  TensorContext weights;
  Graph graph("random");
  parse_graph(one.graph, graph, weights);
  const auto memory = allocate_tensors(weights.tensors(), device.buffer_type(), Usage::kWeights);
  const auto backend = device.init();
  const auto plan = backend->create_plan(graph);
  Results results;
  for (int i = 0; i < runs; ++i) {
    poison(graph, *plan);
    fill_leaves(one, graph, weights, ranks);
    backend->compute_async(*plan);
    backend->synchronize();
    Results now = read_results(one, graph, weights, ranks > 0);
    const std::string changed = i > 0 ? difference(results, now, 0.0) : "";
    if (!changed.empty()) throw std::runtime_error("another run of the same plan differs: " + changed);
    results = std::move(now);
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

/// The case with an input in the place of the node in this line; "" when there is none. Needs the text of to_string().
std::string with_input(const std::string& text, size_t replace) {
  std::istringstream lines(text);
  std::string line, kept, name;
  for (size_t i = 0; std::getline(lines, line); ++i) {
    const size_t type = line.find('#');
    if (i == replace && line.starts_with("%") && type != std::string::npos) {
      name = line.substr(0, line.find(' '));
      line = "input " + name + line.substr(type + 1);
    }
    if (name.empty() || line != "output " + name) kept += line + "\n";
  }
  return name.empty() ? "" : kept;
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
  return run(one, device, 1, 0);
}

Results run_on_meta(const RandomCase& one, std::span<Device* const> devices, const meta::RuleLookup& rules) {
  const auto callback = [&](const Tensor& tensor) -> meta::SplitState {
    const auto it = one.layouts.find(tensor.name);
    if (it == one.layouts.end() || it->second.is_mirrored()) return meta::SplitState::mirrored();
    if (it->second.is_partial()) return meta::SplitState::partial();
    const auto segments = one.segments.find(tensor.name);
    if (segments != one.segments.end()) return meta::SplitState::split(it->second.axis, segments->second);
    return meta::SplitState::split(it->second.axis, it->second.partition);
  };
  const auto members = devices.first(static_cast<size_t>(one.ranks));
  meta::MetaOptions options;
  options.rules = rules;
  const bool on_cpu = members[0]->type() == DeviceType::kCpu;
  options.member_params.assign(members.size(), on_cpu ? "threads=1" : "");
  const auto device = meta::MetaDevice::create({members.begin(), members.end()}, callback, options);
  return run(one, *device, 2, one.ranks);
}

std::string disagreement(const Tensor& tensor, double tolerance) {
  const meta::Layout& layout = meta::layout_of(tensor);
  if (layout.is_mirrored()) return disagreement_of_copies(tensor);
  return layout.is_split() ? disagreement_of_owners(tensor, layout, tolerance) : "";
}

std::string difference(const Results& expected, const Results& actual, double tolerance) {
  std::string worst;
  double most = 0.0;
  for (const auto& [name, result] : expected) {
    const auto it = actual.find(name);
    if (it == actual.end()) return fmt::format("%{} is missing", name);
    const Values &want = result.values, &got = it->second.values;
    if (got.size() != want.size()) return fmt::format("%{} has {} values, not {}", name, got.size(), want.size());
    double largest = 0;
    for (const double value : want) largest = std::isfinite(value) ? std::max(largest, std::abs(value)) : largest;
    const double allowed = result.integers ? 0.0 : tolerance * (largest + 0.1);
    for (size_t i = 0; i < want.size(); ++i) {
      const double error = distance(want[i], got[i]);
      const double excess = error > 0 ? error / allowed : 0;
      if (error <= allowed || excess <= most) continue;
      most = excess;
      worst = fmt::format("%{}[{}]: expected {}, got {} ({:.3g} x tolerance)", name, i, want[i], got[i], excess);
    }
  }
  return worst;
}

std::string check_case(const RandomCase& one, std::span<Device* const> devices, const meta::RuleLookup& rules) {
  try {
    const Results expected = run_on_one(one, *devices[0]);
    return difference(expected, run_on_meta(one, devices, rules), one.tolerance);
  } catch (const std::exception& error) {
    return error.what();
  }
}

RandomCase shrink(RandomCase one, const std::function<bool(const RandomCase&)>& fails) {
  TensorContext weights;
  Graph graph("random");
  parse_graph(one.graph, graph, weights);
  one.graph = to_string(graph);
  const auto stop = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  const auto try_it = [&](RandomCase next) {
    if (std::chrono::steady_clock::now() > stop) return false;
    try {
      next.graph = with_outputs(next.graph);
      const bool same = next.graph == one.graph && next.layouts.size() == one.layouts.size();
      if (same || count_lines(next.graph) == 0 || !fails(next)) return false;
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
    for (size_t line = count_lines(one.graph); line-- > 0;) {
      RandomCase next = one;
      next.graph = with_input(one.graph, line);
      if (!next.graph.empty()) smaller |= try_it(std::move(next));
    }
    const auto layouts = one.layouts;
    for (const auto& [name, layout] : layouts) {
      RandomCase next = one;
      next.layouts.erase(name);
      next.segments.erase(name);
      smaller |= try_it(std::move(next));
    }
  }
  return one;
}

}  // namespace shoal::test
