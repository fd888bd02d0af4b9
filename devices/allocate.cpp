#include "devices/allocate.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/text.h"

namespace shoal {
namespace {

size_t round_up(size_t bytes, size_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

using Parts = std::vector<std::unique_ptr<Buffer>>;
using SharedParts = std::vector<std::shared_ptr<Buffer>>;

std::unique_ptr<Buffer> allocate_part(size_t size, BufferType& type, Usage usage) {
  auto part = type.allocate(size);
  part->set_usage(usage);
  return part;
}

std::unique_ptr<Buffer> join(Parts parts) {
  return parts.size() == 1 ? std::move(parts.front()) : make_multi_buffer(std::move(parts));
}

void check_present(std::span<Tensor* const> tensors) {
  const auto missing = std::find(tensors.begin(), tensors.end(), nullptr);
  require<InvalidArgument>(missing == tensors.end(), "tensor {} of the {} tensors to place is nullptr",
                           missing - tensors.begin(), tensors.size());
}

void unplace(Tensor& tensor) {
  tensor.placement.leave();
  tensor.buffer = nullptr;
  tensor.data = nullptr;
}

/// Places a view in the memory of its base. Does nothing if the view already has the correct address.
void place_view(Tensor& view) {
  const Tensor& owner = *view.view_base;
  if (owner.buffer == nullptr) return;  // check_sources reports the unplaced base if a node needs the view
  if (view.buffer == owner.buffer && view.data == owner.data + view.view_offset) return;
  Buffer::place_view(view);
}

void place_owners(const GraphRange& range, const MemoryPlan& plan, const SharedParts& parts) {
  for (const auto& [tensor, place] : plan.tensors) {
    const auto owners = tensor->is_leaf() ? range.graph->inputs() : range.graph->nodes();
    parts[static_cast<size_t>(place.chunk)]->place(*owners[static_cast<size_t>(tensor->id)], place.offset);
  }
}

void give_workspaces(const GraphRange& range, const MemoryPlan& plan, const SharedParts& parts) {
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

std::vector<PlacedInput> placed_inputs(const GraphRange& range, const MemoryPlan& plan, const std::vector<int>& cuts) {
  std::vector<PlacedInput> inputs;
  for (const auto& [tensor, place] : plan.tensors) {
    if (!tensor->is_leaf()) continue;
    // `cut` is the index of the first cut at or after `first_step`. If an empty segment and the next segment begin at
    // the same step, `cut` is the index of the empty segment's cut.
    const auto cut = std::lower_bound(cuts.begin(), cuts.end(), place.first_step) - cuts.begin();
    inputs.push_back({tensor->id, place.first_step <= range.begin ? 0 : static_cast<int>(cut) + 1});
  }
  std::ranges::sort(inputs, {}, &PlacedInput::number);
  return inputs;
}

bool is_stored_in(const GraphBuffers& memory, const Buffer* buffer) {
  return std::any_of(memory.parts.begin(), memory.parts.end(), [&](const auto& part) { return part.get() == buffer; });
}
bool is_stored_in(const GraphBuffers& memory, const std::byte* address) {
  return address != nullptr && std::any_of(memory.parts.begin(), memory.parts.end(), [&](const auto& part) {
           return address >= part->base() && address < part->base() + part->size();
         });
}

void check_sources(const GraphRange& range) {
  for (const Tensor* node : nodes_of(range)) {
    for (const Tensor* source : node->src) {
      if (source == nullptr || source->buffer != nullptr) continue;
      fail<InvalidArgument>(
          "[{} {}] source {} has no memory: place the source first (allocate_tensors for weights, an earlier "
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

const PlacedInput* find_placed(std::span<const PlacedInput> inputs, int number) {
  const auto found = std::ranges::lower_bound(inputs, number, {}, &PlacedInput::number);
  return found != inputs.end() && found->number == number ? &*found : nullptr;
}

StaticLayout layout_tensors(std::span<Tensor* const> tensors, const BufferType& type) {
  check_present(tensors);
  const size_t alignment = type.alignment();
  StaticLayout layout;
  for (const Tensor* tensor : tensors) {
    const size_t size = type.alloc_size(*tensor);
    const size_t padded = round_up(size, alignment);
    require<DeviceError>(size <= type.max_size(),
                         "[{}] {} needs {}, but one allocation is limited to {}: split the tensor over more devices",
                         type.device().name(), describe(*tensor), format_bytes(size), format_bytes(type.max_size()));
    // If the rounded size of a single tensor exceeds max_size(), the size of the chunk is max_size(). No further tensor
    // is placed in this chunk.
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
  Parts parts;
  for (size_t size : layout.chunk_sizes) parts.push_back(allocate_part(size, *this, usage));
  size_t placed = 0;
  try {
    for (; placed < tensors.size(); ++placed) {
      const MemoryPlace& placement = layout.placements[placed];
      parts[static_cast<size_t>(placement.chunk)]->place(*tensors[placed], placement.offset);
    }
  } catch (...) {
    // The tensor that caused the failure is not unplaced, because it may have been placed before the call.
    for (size_t i = 0; i < placed; ++i) unplace(*tensors[i]);
    throw;
  }
  return parts.empty() ? allocate(0) : join(std::move(parts));
}

std::unique_ptr<Buffer> allocate_tensors(std::span<Tensor* const> tensors, BufferType& type, Usage usage) {
  check_present(tensors);
  std::vector<Tensor*> missing;
  std::copy_if(tensors.begin(), tensors.end(), std::back_inserter(missing),
               [](const Tensor* tensor) { return tensor->buffer == nullptr && !tensor->is_view(); });
  if (missing.empty()) return nullptr;
  return type.allocate_tensors(missing, usage);
}

MemoryPlanOptions memory_options(Device& device) {
  return memory_options(device, device.buffer_type());
}

MemoryPlanOptions memory_options(Device& device, const BufferType& type) {
  MemoryPlanOptions options;
  options.alignment = type.alignment();
  options.alloc_size = [&type](const Tensor& tensor) { return type.alloc_size(tensor); };
  options.workspace_size = [&device](const Tensor& node) { return device.workspace_size(node); };
  options.max_chunk = type.max_size();
  return options;
}

ComputeArena::ComputeArena(Backend& backend, BufferType* type)
    : type_(type != nullptr ? type : &backend.device().buffer_type()) {
  require<InvalidArgument>(
      type == nullptr || (backend.members().empty() && backend.device().supports_buffer_type(*type)),
      "[{}] cannot compute in memory of {}; use a buffer type of this device", backend.name(), type_->name());
  for (Backend* member : backend.members()) members_.emplace_back(*member);
}

std::vector<std::shared_ptr<Buffer>> ComputeArena::take(std::span<const size_t> sizes) {
  buffers_.resize(std::max(buffers_.size(), sizes.size()));
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (buffers_[i] != nullptr && buffers_[i]->size() >= sizes[i]) continue;
    buffers_[i].reset();  // frees the old buffer before the arena allocates more memory
    buffers_[i] = allocate_part(sizes[i], *type_, Usage::kCompute);
  }
  return {buffers_.begin(), buffers_.begin() + static_cast<ptrdiff_t>(sizes.size())};
}

ComputeArena& ComputeArena::member(size_t rank) {
  require<InvalidArgument>(rank < members_.size(),
                           "the arena of {} has no member {}: create the arena for the backend of the plan",
                           type_->device().name(), rank);
  return members_[rank];
}

std::vector<size_t> ComputeArena::bytes_per_member() const {
  std::vector<size_t> bytes;
  for (const ComputeArena& member : members_) bytes.push_back(member.bytes());
  if (!members_.empty()) return bytes;
  size_t own = 0;
  for (const auto& buffer : buffers_) own += buffer != nullptr ? buffer->size() : 0;
  return {own};
}

size_t ComputeArena::bytes() const {
  const std::vector<size_t> parts = bytes_per_member();
  return std::accumulate(parts.begin(), parts.end(), size_t{0});
}

GraphBuffers allocate_graph(const GraphRange& range, Device& device, const PlanOptions& plan_options) {
  MemoryPlanOptions options =
      memory_options(device, plan_options.arena != nullptr ? plan_options.arena->type() : device.buffer_type());
  options.cuts = plan_options.cuts;
  options.shown = plan_options.shown;
  options.late = plan_options.late;
  options.fused = plan_options.fused;
  options.workspace_size = [&device](const Tensor& node) {
    return node.workspace != nullptr ? 0 : device.workspace_size(node);
  };
  const MemoryPlan plan = plan_memory(range, options);
  GraphBuffers memory{{}, plan.total_bytes(), placed_inputs(range, plan, options.cuts)};
  if (plan_options.arena != nullptr) {
    memory.parts = plan_options.arena->take(plan.chunk_sizes);
  } else {
    for (size_t size : plan.chunk_sizes) {
      memory.parts.push_back(allocate_part(size, device.buffer_type(), Usage::kCompute));
    }
  }
  try {
    place_owners(range, plan, memory.parts);
    give_workspaces(range, plan, memory.parts);
    place_views(range);
    check_sources(range);
  } catch (...) {
    release_graph(range, memory);
    throw;
  }
  return memory;
}

void release_graph(const GraphRange& range, const GraphBuffers& memory) {
  for (const PlacedInput& placed : memory.inputs) {
    Tensor& input = *range.graph->inputs()[static_cast<size_t>(placed.number)];
    if (is_stored_in(memory, input.buffer)) unplace(input);
  }
  for (Tensor* node : nodes_of(range)) {
    if (is_stored_in(memory, node->buffer)) unplace(*node);
    if (is_stored_in(memory, node->workspace)) node->workspace = nullptr;
  }
}

GraphClaim::GraphClaim(const GraphRange& range, const Device& device) : range_(range) {
  check_range(range);
  range.graph->claim(range.begin, range.end, device.name());
  life_ = range.graph->life();
}

GraphClaim::~GraphClaim() {
  if (!graph_is_destroyed()) range_.graph->release(range_.begin, range_.end);
}

GraphMemory::GraphMemory(const GraphRange& range, Device& device, const PlanOptions& options)
    : device_(device),
      claim_(std::make_unique<GraphClaim>(range, device)),
      buffers_(allocate_graph(range, device, options)),
      input_count_(static_cast<int>(range.graph->inputs().size())) {
  const auto place_of = [&](const Tensor& tensor) {
    const bool ours = is_stored_in(buffers_, tensor.buffer) && !tensor.is_view();
    return Place{ours ? tensor.buffer : nullptr, ours ? tensor.data : nullptr,
                 is_stored_in(buffers_, tensor.workspace) ? tensor.workspace : nullptr};
  };
  for (const PlacedInput& placed : buffers_.inputs) {
    inputs_.push_back(place_of(*range.graph->inputs()[static_cast<size_t>(placed.number)]));
  }
  for (const Tensor* node : nodes_of(range)) nodes_.push_back(place_of(*node));
}

GraphMemory::~GraphMemory() {
  if (!claim_->graph_is_destroyed()) release_graph(claim_->range(), buffers_);
}

int GraphMemory::writable_from(const Tensor& input) const {
  const bool is_input = input.is_leaf() && input.id >= 0 && input.id < input_count_;
  require<InvalidArgument>(is_input, "{} is not an input of the plan's graph", describe(input));
  const PlacedInput* placed = find_placed(buffers_.inputs, input.id);
  return placed != nullptr ? placed->segment : 0;
}

bool GraphMemory::can_move_to(const Graph& graph) const {
  const GraphRange& range = claim_->range();
  const auto is_ours = [&](const Tensor& owner) {
    if (owner.is_leaf()) return !owner.is_persistent() && find_placed(buffers_.inputs, owner.id) != nullptr;
    const bool inside = owner.id >= range.begin && owner.id < range.end;
    return inside && nodes_[static_cast<size_t>(owner.id - range.begin)].buffer != nullptr;
  };
  // Tensors that this object would place must have no memory. All other tensors must have memory.
  const auto is_ready = [&](const Tensor& tensor) {
    const Tensor& owner = *tensor.storage();
    return (owner.buffer == nullptr) == is_ours(owner);
  };
  for (const PlacedInput& placed : buffers_.inputs) {
    if (graph.inputs()[static_cast<size_t>(placed.number)]->buffer != nullptr) return false;
  }
  const auto nodes = graph.nodes().subspan(static_cast<size_t>(range.begin), nodes_.size());
  return std::all_of(nodes.begin(), nodes.end(), [&](const Tensor* node) {
    return is_ready(*node) && std::all_of(node->src.begin(), node->src.end(),
                                          [&](const Tensor* source) { return source == nullptr || is_ready(*source); });
  });
}

void GraphMemory::move_to(Graph& graph) {
  const GraphRange to{&graph, claim_->range().begin, claim_->range().end};
  auto claim = std::make_unique<GraphClaim>(to, device_);
  if (!claim_->graph_is_destroyed()) release_graph(claim_->range(), buffers_);
  claim_ = std::move(claim);
  const auto put = [](Tensor& tensor, const Place& place) {
    if (place.buffer != nullptr) tensor.buffer = place.buffer, tensor.data = place.data;
    if (place.workspace != nullptr) tensor.workspace = place.workspace;
  };
  for (size_t i = 0; i < inputs_.size(); ++i) {
    put(*graph.inputs()[static_cast<size_t>(buffers_.inputs[i].number)], inputs_[i]);
  }
  for (size_t i = 0; i < nodes_.size(); ++i) put(*nodes_of(to)[i], nodes_[i]);
  place_views(to);
  check_sources(to);
}

}  // namespace shoal
