// Layouts as text: "mirrored", "axis 1", "axis 1 [3:{0} 2:{1}]", "split 1 [3:{0} 2:{1}]".
#include "base/error.h"
#include "meta/meta.h"

namespace shoal::meta {
namespace {

/// nullopt if the text has another form.
std::optional<SplitState> parse_state(std::string_view text, int devices) {
  if (text == "mirrored") return SplitState::mirrored();
  const bool is_of_plan = text.starts_with("split ");  // as Layout::to_string() prints it
  const std::string_view word = is_of_plan ? "split " : "axis ";
  if (!text.starts_with(word) || text.size() == word.size()) return std::nullopt;
  const int axis = text[word.size()] - '0';
  text.remove_prefix(word.size() + 1);
  if (axis < 0 || axis >= kMaxDims) return std::nullopt;
  if (text.empty() && !is_of_plan) return SplitState::even(axis);
  if (!text.starts_with(" [") || !text.ends_with("]")) return std::nullopt;
  return SplitState::split(axis, Partition::parse(devices, text.substr(2, text.size() - 3)));
}

}  // namespace

Layout parse_layout(std::string_view text, const Tensor& tensor, int devices, std::string_view what) {
  try {
    const auto state = parse_state(text, devices);
    require<InvalidArgument>(state.has_value(), "write 'mirrored', 'axis 1' or 'axis 1 [3:{{0}} 2:{{1}}]'");
    Layout layout = to_layout(*state, tensor, devices);
    return devices == 1 ? Layout::mirrored() : layout;
  } catch (const InvalidArgument& error) {
    fail<InvalidArgument>("{} the layout '{}' is invalid on {} devices: {}", what, text, devices, error.what());
  }
}

Layout layout_of_reshard(const Tensor& node, int devices) {
  const std::string what = "[reshard " + node.name + "]";
  return parse_layout(std::get<ReshardParams>(node.params).layout, node, devices, what);
}

}  // namespace shoal::meta
