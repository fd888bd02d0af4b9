#include "devices/allocate.h"

#include <algorithm>
#include <numeric>

#include "devices/params.h"
#include "graph/error.h"

namespace shoal {
namespace {

size_t round_up(size_t bytes, size_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

using Parts = std::vector<std::unique_ptr<Buffer>>;

Parts allocate_parts(std::span<const size_t> sizes, BufferType& type, Usage usage) {
  Parts parts;
  for (size_t size : sizes) {
    parts.push_back(type.allocate(size));
    parts.back()->set_usage(usage);
  }
  return parts;
}

std::unique_ptr<Buffer> join(Parts parts) {
  if (parts.empty()) return nullptr;
  return parts.size() == 1 ? std::move(parts.front()) : make_multi_buffer(std::move(parts));
}

void unplace(Tensor& tensor) {
  tensor.buffer = nullptr;
  tensor.data = nullptr;
}

/// A view follows its base, also when the base has moved since the view was placed.
void place_view(Tensor& view) {
  const Tensor& owner = *view.view_base;
  if (owner.buffer == nullptr) return;  // check_sources reports it where it matters
  if (view.buffer == owner.buffer && view.data == owner.data + view.view_offset) return;
  Buffer::place_view(view);
}

std::span<Tensor* const> nodes_of(const GraphRange& range) {
  return range.graph->nodes().subspan(static_cast<size_t>(range.begin), static_cast<size_t>(range.end - range.begin));
}

void place_owners(const GraphRange& range, const MemoryPlan& plan, const Parts& parts) {
  size_t placed = 0;
  const auto place = [&](Tensor* tensor) {
    const auto found = plan.tensors.find(tensor);
    if (found == plan.tensors.end() || tensor->buffer != nullptr) return;
    parts[static_cast<size_t>(found->second.chunk)]->place(*tensor, found->second.offset);
    ++placed;
  };
  for (Tensor* input : range.graph->inputs()) place(input);
  for (Tensor* node : nodes_of(range)) place(node);
  check(placed == plan.tensors.size(), "the memory plan has {} tensors, {} were placed", plan.tensors.size(), placed);
}

void give_workspaces(const GraphRange& range, const MemoryPlan& plan, const Parts& parts) {
  for (Tensor* node : nodes_of(range)) {
    const auto found = plan.workspaces.find(node);
    if (found == plan.workspaces.end()) continue;
    node->workspace = parts[static_cast<size_t>(found->second.chunk)]->base() + found->second.offset;
  }
}

void place_views(const GraphRange& range) {
  for (Tensor* node : nodes_of(range)) {
    for (Tensor* source : node->src) {
      if (source != nullptr && source->is_view()) place_view(*source);
    }
    if (node->is_view()) place_view(*node);
  }
}

void check_sources(const GraphRange& range) {
  for (const Tensor* node : nodes_of(range)) {
    for (const Tensor* source : node->src) {
      if (source == nullptr || source->buffer != nullptr) continue;
      fail<InvalidArgument>(
          "[{} {}] source {} has no memory: place it first (allocate_tensors for weights, an earlier "
          "plan for nodes)",
          name_of(node->op), node->name, describe(*source));
    }
    if (node->buffer != nullptr) continue;
    fail<InvalidArgument>("[{} {}] the node has no memory: its base {} is not placed", name_of(node->op), node->name,
                          describe(*node->storage()));
  }
}

}  // namespace

size_t StaticLayout::total_bytes() const {
  return std::accumulate(chunk_sizes.begin(), chunk_sizes.end(), size_t{0});
}

StaticLayout layout_tensors(std::span<Tensor* const> tensors, const BufferType& type) {
  const size_t alignment = type.alignment();
  StaticLayout layout;
  for (const Tensor* tensor : tensors) {
    const size_t size = type.alloc_size(*tensor);
    const size_t padded = round_up(size, alignment);
    require<DeviceError>(size <= type.max_size(),
                         "[{}] {} needs {}, more than one allocation can have ({}): split it over more devices",
                         type.device().name(), describe(*tensor), format_bytes(size), format_bytes(type.max_size()));
    // A chunk whose only tensor just fits may exceed max_size by its rounding: it is not rounded then, and full.
    const bool fits = !layout.chunk_sizes.empty() && layout.chunk_sizes.back() % alignment == 0 &&
                      layout.chunk_sizes.back() <= type.max_size() &&
                      padded <= type.max_size() - layout.chunk_sizes.back();
    if (!fits) layout.chunk_sizes.push_back(0);
    layout.placements.push_back({static_cast<int>(layout.chunk_sizes.size()) - 1, layout.chunk_sizes.back(), size});
    layout.chunk_sizes.back() = std::min(layout.chunk_sizes.back() + padded, std::max(type.max_size(), size));
  }
  return layout;
}

std::unique_ptr<Buffer> BufferType::allocate_tensors(std::span<Tensor* const> tensors, Usage usage) {
  const StaticLayout layout = layout_tensors(tensors, *this);
  Parts parts = allocate_parts(layout.chunk_sizes, *this, usage);
  size_t placed = 0;
  try {
    for (; placed < tensors.size(); ++placed) {
      const Placement& placement = layout.placements[placed];
      parts[static_cast<size_t>(placement.chunk)]->place(*tensors[placed], placement.offset);
    }
  } catch (...) {
    // A tensor that was placed before the call is the one that failed and is left as it is.
    for (size_t i = 0; i < placed; ++i) unplace(*tensors[i]);
    throw;
  }
  return parts.empty() ? allocate(0) : join(std::move(parts));
}

std::unique_ptr<Buffer> allocate_tensors(std::span<Tensor* const> tensors, BufferType& type, Usage usage) {
  std::vector<Tensor*> missing;
  std::copy_if(tensors.begin(), tensors.end(), std::back_inserter(missing),
               [](const Tensor* tensor) { return tensor->buffer == nullptr && !tensor->is_view(); });
  if (missing.empty()) return nullptr;
  return type.allocate_tensors(missing, usage);
}

MemoryPlanOptions memory_options(Device& device) {
  const BufferType& type = device.buffer_type();
  MemoryPlanOptions options;
  options.alignment = type.alignment();
  options.alloc_size = [&type](const Tensor& tensor) { return type.alloc_size(tensor); };
  options.workspace_size = [&device](const Tensor& node) { return device.workspace_size(node); };
  options.max_chunk = type.max_size();
  return options;
}

std::unique_ptr<Buffer> allocate_graph(const GraphRange& range, Device& device) {
  MemoryPlanOptions options = memory_options(device);
  options.workspace_size = [&device](const Tensor& node) {
    return node.workspace != nullptr ? 0 : device.workspace_size(node);
  };
  const MemoryPlan plan = plan_memory(range, options);
  Parts parts = allocate_parts(plan.chunk_sizes, device.buffer_type(), Usage::kCompute);
  try {
    place_owners(range, plan, parts);
    give_workspaces(range, plan, parts);
    place_views(range);
    check_sources(range);
  } catch (...) {
    for (const auto& part : parts) release_graph(range, *part);
    throw;
  }
  return join(std::move(parts));
}

void release_graph(const GraphRange& range, const Buffer& memory) {
  for (const auto& part : memory.parts()) release_graph(range, *part);
  const auto inside = [&](const std::byte* address) {
    return !memory.is_multi() && address >= memory.base() && address < memory.base() + memory.size();
  };
  for (Tensor* input : range.graph->inputs()) {
    if (input->buffer == &memory) unplace(*input);
  }
  for (Tensor* node : nodes_of(range)) {
    if (node->buffer == &memory) unplace(*node);
    if (node->workspace != nullptr && inside(node->workspace)) node->workspace = nullptr;
  }
}

GraphClaim::GraphClaim(const GraphRange& range, const Device& device) : range_(range) {
  check_range(range);
  range.graph->claim(range.begin, range.end, device.name());
  life_ = range.graph->life();
}

GraphClaim::~GraphClaim() {
  if (!graph_is_gone()) range_.graph->release(range_.begin, range_.end);
}

GraphMemory::GraphMemory(const GraphRange& range, Device& device)
    : claim_(range, device), buffer_(allocate_graph(range, device)) {}

GraphMemory::~GraphMemory() {
  if (buffer_ != nullptr && !claim_.graph_is_gone()) release_graph(claim_.range(), *buffer_);
}

}  // namespace shoal
