#include "tools/report/comparison.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "tools/cli/threads.h"
#include "tools/report/compared_model.h"

namespace shoal::tools {
namespace {

bool is_finite(std::span<const float> values) {
  return std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); });
}

}  // namespace

double normalised_error(std::span<const float> a, std::span<const float> b) {
  check(a.size() == b.size(), "{} values against {}", a.size(), b.size());
  double squares = 0.0, differences = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    double difference = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    squares += static_cast<double>(a[i]) * static_cast<double>(a[i]);
    differences += difference * difference;
  }
  if (differences == 0.0) return 0.0;
  double error = differences / squares;
  return std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
}

std::vector<NodeError> compare_nodes(std::unique_ptr<models::Model> model, const std::vector<Device*>& devices,
                                     const models::PlacementOptions& placement, models::SessionOptions session,
                                     std::span<const int32_t> tokens) {
  int64_t needed = static_cast<int64_t>(tokens.size()) + 1;
  if (session.context == 0) session.context = needed;
  require<InvalidArgument>(needed <= session.context,
                           "{} tokens of the prompt and one more do not fit into a context of {}; use -c {} or more",
                           tokens.size(), session.context, needed);
  require_threads(threads_needed({devices.data(), 1}, placement.threads) + threads_needed(devices, placement.threads));
  ComparedModel compared(std::move(model), devices, placement, session, needed - 1);
  compared.require_memory();
  compared.load();
  std::vector<NodeError> errors;
  const auto step = [&](const char* name, std::span<const int32_t> batch) {
    return compared.step(batch, [&](const ComparedModel::Compared& both) {
      const Tensor& tensor = both.tensor;
      const std::vector<float> expected = to_floats(tensor, both.one);
      const std::string_view op = tensor.is_leaf() ? "cache" : name_of(tensor.op);
      errors.push_back({name, tensor.name, std::string(op), both.layout,
                        normalised_error(expected, to_floats(tensor, both.many)), is_finite(expected)});
    });
  };
  const std::vector<float> logits = step("prompt", tokens);
  const auto next = static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  step("token", {&next, 1});
  return errors;
}

}  // namespace shoal::tools
