#include "tests/support/run_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <sstream>
#include <stdexcept>

#include "base/error.h"
#include "devices/allocate.h"
#include "graph/text.h"
#include "processes/remote_device.h"
#include "tests/support/poison.h"
#include "tests/support/thread_processes.h"

namespace shoal::test {
namespace {

Results run(const RandomCase& one, Device& device, int runs) {
  TensorContext weights;
  Graph graph("random");
  parse_graph(one.graph, graph, weights);
  const auto memory = allocate_tensors(weights.tensors(), device.buffer_type(), Usage::kWeights);
  const auto backend = device.init();
  const auto plan = backend->create_plan(graph);
  Results results;
  for (int i = 0; i < runs; ++i) {
    poison(graph, *plan);
    for (Tensor* leaf : weights.tensors()) write_leaf(one, *leaf, leaf_values(one, *leaf));
    for (Tensor* input : graph.inputs()) write_leaf(one, *input, leaf_values(one, *input));
    backend->compute_async(*plan);
    backend->synchronize();
    Results now = read_results(one, graph, weights);
    const std::string changed = i > 0 ? difference(results, now, 0.0) : "";
    if (!changed.empty()) throw std::runtime_error("another run of the same plan differs: " + changed);
    results = std::move(now);
  }
  return results;
}

/// Removes line `drop` and all lines that depend on this line, and returns the remaining text.
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

/// Returns the text with an input in place of the node in line `replace`; "" if this line has no node. `text` must be a
/// result of to_string().
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

/// Replaces the requirements for outputs by hints, because several processes mirror outputs.
RandomCase without_required_outputs(RandomCase one) {
  TensorContext weights;
  Graph graph("outputs");
  parse_graph(one.graph, graph, weights);
  for (const Tensor* node : graph.nodes()) {
    const auto found = one.constraints.find(node->name);
    if (node->is_output && found != one.constraints.end()) found->second.required = false;
  }
  return one;
}

/// If no node is an output, makes the last node an output.
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
  return run(one, device, 1);
}

std::unique_ptr<meta::MetaDevice> meta_device(const RandomCase& one, std::span<Device* const> devices,
                                              const meta::RuleLookup& rules) {
  const auto members = devices.first(static_cast<size_t>(one.ranks));
  meta::MetaOptions options;
  options.rules = rules;
  options.constraints = constraints_of(one);
  const bool on_cpu = members[0]->type() == DeviceType::kCpu;
  options.member_params.assign(members.size(), on_cpu ? "threads=1" : "");
  return meta::MetaDevice::create(
      {members.begin(), members.end()}, [&one](const Tensor& tensor) { return state_of(one, tensor); }, options);
}

Results run_on_processes(const RandomCase& drawn, std::span<Device* const> devices, std::span<const int> ranks,
                         const std::vector<std::string>& hosts) {
  const RandomCase one = without_required_outputs(drawn);
  std::vector<Results> results(hosts.size());
  const auto run_one = [&](ProcessGroup& group) {
    const auto process = static_cast<size_t>(group.own());
    const auto begin = static_cast<size_t>(std::accumulate(ranks.begin(), ranks.begin() + group.own(), 0));
    std::vector<Device*> members = gather_devices(group, devices.subspan(begin, static_cast<size_t>(ranks[process])));
    members.resize(static_cast<size_t>(one.ranks));
    meta::MetaOptions options{.member_params = std::vector<std::string>(members.size(), "threads=1"),
                              .constraints = constraints_of(one),
                              .processes = &group};
    const auto device = meta::MetaDevice::create(
        std::move(members), [&one](const Tensor& tensor) { return state_of(one, tensor); }, std::move(options));
    results[process] = run(one, *device, 2);
  };
  for (const ProcessEnd& end : in_processes(hosts, run_one)) {
    if (end.failure) std::rethrow_exception(end.failure);
  }
  for (size_t process = 1; process < results.size(); ++process) {
    const std::string other = difference(results[0], results[process], 0.0);
    if (!other.empty()) throw std::runtime_error(fmt::format("process {} differs from process 0: {}", process, other));
  }
  return results[0];
}

Results run_on_meta(const RandomCase& one, std::span<Device* const> devices, const meta::RuleLookup& rules) {
  return run(one, *meta_device(one, devices, rules), 2);
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
      const bool same = next.graph == one.graph && next.layouts.size() == one.layouts.size() &&
                        next.constraints.size() == one.constraints.size();
      if (same || count_lines(next.graph) == 0 || !fails(next)) return false;
    } catch (const Error&) {
      return false;  // the changed text is not a valid graph
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
    const auto constraints = one.constraints;
    for (const auto& [name, constraint] : constraints) {
      RandomCase next = one;
      next.constraints.erase(name);
      smaller |= try_it(std::move(next));
    }
  }
  return one;
}

}  // namespace shoal::test
