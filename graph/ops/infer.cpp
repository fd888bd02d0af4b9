#include "graph/ops/infer.h"

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

namespace shoal::infer {
namespace {

constexpr int64_t kMaxBytes = int64_t{1} << 56;

std::vector<std::string_view> words(std::string_view text) {
  std::vector<std::string_view> found;
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    found.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return found;
}

std::string list_names(std::initializer_list<DType> dtypes) {
  std::string text;
  for (const DType dtype : dtypes) text += fmt::format("{}{}", text.empty() ? "" : ", ", name_of(dtype));
  return text;
}

}  // namespace

void leaf(Tensor& node) {
  fail<InvalidArgument>("[none {}] a leaf cannot be added as a node", node.name);
}

bool addressable(DType dtype, const Shape& shape) {
  if (std::any_of(shape.begin(), shape.end(), [](int64_t length) { return length < 0; })) return false;
  const DTypeTraits& type = traits(dtype);
  if (shape[0] % type.block_elems != 0) return false;
  int64_t limit = kMaxBytes / static_cast<int64_t>(type.block_bytes);
  // Axes of length 0 count as 1, because the strides of the other axes must not overflow either.
  for (const int64_t length : shape) limit /= std::max<int64_t>(length, 1);
  return limit > 0;
}

std::string source_counts(int least, int most) {
  if (most < 0) return fmt::format("{} or more sources", least);
  if (least < most) return fmt::format("{} to {} sources", least, most);
  return least == 1 ? "1 source" : fmt::format("{} sources", least);
}

std::string Expect::source_name(int source) const {
  const std::vector<std::string_view> names = words(source_names_);
  if (source < static_cast<int>(names.size()) && (names.size() > 1 || node_.src.size() == 1)) {
    return std::string(names[source]);
  }
  return fmt::format("{}{}", names.empty() ? "source " : names.back(), source);
}

void Expect::raise(const std::string& expected) const {
  std::string sources;
  for (int i = 0; i < static_cast<int>(node_.src.size()); ++i) {
    if (!node_.src[i]) continue;
    sources += fmt::format("{}{}: {}", sources.empty() ? " (" : ", ", source_name(i), describe(*node_.src[i]));
  }
  if (!sources.empty()) sources += ")";
  fail<InvalidArgument>("[{} {}] expected {}{}", name_of(node_.op), node_.name, expected, sources);
}

void Expect::dtype(int source, std::initializer_list<DType> allowed) const {
  const Tensor* tensor = node_.src[source];
  if (!tensor || std::find(allowed.begin(), allowed.end(), tensor->dtype) != allowed.end()) return;
  raise(fmt::format("{} of dtype {}, got {}", source_name(source), list_names(allowed), name_of(tensor->dtype)));
}

void Expect::is_float(int source) const {
  const Tensor* tensor = node_.src[source];
  if (!tensor || traits(tensor->dtype).is_float) return;
  raise(fmt::format("{} of a float dtype, got {}", source_name(source), name_of(tensor->dtype)));
}

void Expect::float_or_quantized(int source) const {
  const Tensor* tensor = node_.src[source];
  if (!tensor || traits(tensor->dtype).is_float || traits(tensor->dtype).is_quantized) return;
  raise(fmt::format("{} of a float or quantised dtype, got {}", source_name(source), name_of(tensor->dtype)));
}

void Expect::shape(int source, const Shape& expected) const {
  const Tensor* tensor = node_.src[source];
  if (!tensor || tensor->shape == expected) return;
  raise(fmt::format("{} of shape {}, got {}", source_name(source), to_string(expected), to_string(tensor->shape)));
}

void Expect::axis(int source, int axis, int64_t length, std::string_view what) const {
  const int64_t got = node_.src[source]->shape[axis];
  if (got == length) return;
  raise(fmt::format("{} = {} on axis {} of {}, got {}", what, length, axis, source_name(source), got));
}

void Expect::select(const SelectParams& params, int axis) const {
  if (params.ranges.empty()) return;
  const int64_t length = node_.src[0]->shape[axis];
  int64_t total = 0;
  for (const IndexRange& range : params.ranges) {
    (*this)(range.begin >= 0 && range.length >= 0, "no negative indices, got {}:{}", range.begin, range.length);
    (*this)(range.length <= length - total, "index ranges with a total length of {}, got more", length);
    (*this)(range.begin <= std::numeric_limits<int64_t>::max() - range.length, "index ranges below 2^63, got {}:{}",
            range.begin, range.length);
    total += range.length;
  }
  (*this)(total == length, "index ranges with a total length of {}, got {}", length, total);
}

void Expect::valid_result(DType dtype, const Shape& shape) const {
  if (addressable(dtype, shape)) return;
  raise(fmt::format("a result that fits in memory, with lengths >= 0 and whole blocks of {} {} elements, got {}",
                    traits(dtype).block_elems, name_of(dtype), to_string(shape)));
}

}  // namespace shoal::infer
