#include "meta/device/meta_buffer.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/text.h"
#include "devices/allocate.h"
#include "meta/layout/layout.h"
#include "meta/meta.h"

namespace shoal::meta {
namespace {

// This address is never dereferenced. A round number is easy to recognise in a debugger.
constexpr uintptr_t kFakeBase = 0x1000'0000;

/// True if the shards have no memory yet and are equal to the shards that the tensor would get.
bool are_unplaced(const Shards& shards, const Tensor& tensor, const Layout& layout) {
  if (shards.layout != layout) return false;
  for (size_t rank = 0; rank < shards.local.size(); ++rank) {
    const Tensor& local = *shards.local[rank];
    const bool same = local.name == tensor.name && local.dtype == tensor.dtype && local.role == tensor.role &&
                      local.shape == layout.local_shape(tensor.shape, static_cast<int>(rank));
    if (!same || local.buffer != nullptr) return false;
  }
  return true;
}

}  // namespace

MetaState::MetaState(MetaDevice& device, std::string name, Mesh mesh)
    : name(std::move(name)),
      mesh(std::move(mesh)),
      store(static_cast<int>(this->mesh.members().size())),
      owner(&device) {}

MetaDevice& MetaState::device() const {
  if (owner == nullptr) {
    fail<InvalidArgument>("the device {} has been destroyed; destroy the device after its backends and its buffers",
                          name);
  }
  return *owner;
}

std::string MetaBufferType::name() const {
  return state_.name + (of_ == Of::kWeights ? "_Weights" : of_ == Of::kHost ? "_Mapped" : "");
}
Device& MetaBufferType::device() const {
  return state_.device();
}

size_t MetaBufferType::alignment() const {
  size_t alignment = 1;
  for (Device* member : state_.mesh.members()) {
    const auto wrapped = of_ == Of::kHost ? member->buffer_from_host_ptr(nullptr, 0) : nullptr;
    if (of_ != Of::kHost || wrapped) {
      alignment = std::max(alignment, wrapped ? wrapped->alignment() : of_member(*member).alignment());
    }
  }
  return alignment;
}

// Memory is allocated when tensors are placed. This function only refuses a size larger than the free memory of all
// members together.
std::unique_ptr<Buffer> MetaBufferType::allocate(size_t size) {
  const size_t free = device().memory().free;
  require<OutOfMemory>(size <= free, "[{}] out of memory: {} requested, {} free on {} devices together", name(),
                       format_bytes(size), format_bytes(free), state_.mesh.members().size());
  return std::make_unique<MetaBuffer>(*this, size);
}

std::unique_ptr<Buffer> MetaBufferType::allocate_tensors(std::span<Tensor* const> tensors, Usage usage) {
  auto buffer = std::make_unique<MetaBuffer>(*this, layout_tensors(tensors, *this).total_bytes());
  buffer->allocate_shards(tensors, usage);
  return buffer;
}

MetaBuffer::MetaBuffer(MetaBufferType& type, size_t size, std::byte* host)
    : Buffer(type, size), state_(type.state().shared_from_this()), host_(host), parts_(state_->mesh.members().size()) {}

MetaBuffer::~MetaBuffer() {
  close();
  drop_shards();
}

// Frees the memory on the members, and then removes the shards. The call that frees the memory waits for queued work on
// the shards.
void MetaBuffer::drop_shards() {
  for (auto& parts : parts_) parts.clear();
  shards_.clear();
  names_.clear();
  erase_declared(0);
}

// The tensors in `declared_` may no longer exist. If another buffer has declared shards for a new tensor at the same
// address, this function keeps those shards.
void MetaBuffer::erase_declared(size_t first) {
  for (size_t i = first; i < declared_.size(); ++i) {
    const auto& [tensor, shards] = declared_[i];
    if (state_->store.find(*tensor) == shards.get()) state_->store.erase(*tensor);
  }
  declared_.resize(first);
}

// A plan's tensors are bound, not declared, and stay bound until the plan is destroyed.
void MetaBuffer::do_reset() {
  if (!declared_.empty()) drop_shards();
}

std::byte* MetaBuffer::base() const {
  return host_ != nullptr ? host_ : reinterpret_cast<std::byte*>(kFakeBase);
}

void MetaBuffer::set_usage(Usage usage) {
  Buffer::set_usage(usage);
  for (const auto& parts : parts_) {
    for (const auto& part : parts) part->set_usage(usage);
  }
}

void MetaBuffer::init_tensor(Tensor& tensor) {
  if (tensor.is_view()) return make_view(tensor);
  shards_.erase(&tensor);  // removes the entry of an earlier tensor at this address
  names_.erase(&tensor);
  if (!tensor.is_persistent()) return;
  if (host_ != nullptr) return wrap_shards(tensor);
  Tensor* one = &tensor;
  allocate_shards({&one, 1}, usage());
}

void MetaBuffer::declare(const Tensor& tensor) {
  ShardStore& store = state_->store;
  const Layout layout = state_->device().ask(tensor);
  const Shards* known = find_shards(tensor) == nullptr ? store.find(tensor) : nullptr;
  const bool is_adopted = known != nullptr && are_unplaced(*known, tensor, layout);
  if (known != nullptr && !is_adopted) store.erase(tensor);  // removes an earlier tensor's shards
  if (!is_adopted) store.declare(tensor, layout);
  declared_.emplace_back(&tensor, store.share(tensor));
}

void MetaBuffer::allocate_shards(std::span<Tensor* const> tensors, Usage usage) {
  auto& own_type = static_cast<MetaBufferType&>(type());
  ShardStore& store = state_->store;
  const size_t before = declared_.size();
  try {
    for (const Tensor* tensor : tensors) declare(*tensor);
    std::vector<std::unique_ptr<Buffer>> made;
    for (size_t rank = 0; rank < parts_.size(); ++rank) {
      std::vector<Tensor*> locals;
      for (const Tensor* tensor : tensors) locals.push_back(store.find(*tensor)->local[rank]);
      made.push_back(shoal::allocate_tensors(locals, own_type.of_member(*state_->mesh.members()[rank]), usage));
    }
    for (size_t rank = 0; rank < parts_.size(); ++rank) keep(static_cast<int>(rank), std::move(made[rank]));
  } catch (...) {
    erase_declared(before);
    throw;
  }
  set_usage(usage);
  for (Tensor* tensor : tensors) {
    bind(*tensor, *store.find(*tensor));
    register_tensor(*tensor);
  }
}

void MetaBuffer::wrap_shards(Tensor& tensor) {
  const size_t before = declared_.size();
  try {
    declare(tensor);
    const Shards& shards = *state_->store.find(tensor);
    std::vector<std::unique_ptr<Buffer>> made;
    for (size_t rank = 0; rank < parts_.size(); ++rank) made.push_back(place_from_host(tensor, shards, rank));
    for (size_t rank = 0; rank < parts_.size(); ++rank) keep(static_cast<int>(rank), std::move(made[rank]));
    bind(tensor, shards);
  } catch (...) {
    erase_declared(before);
    throw;
  }
}

std::unique_ptr<Buffer> MetaBuffer::place_from_host(const Tensor& tensor, const Shards& shards, size_t rank) {
  Tensor& local = *shards.local[rank];
  Device& member = *state_->mesh.members()[rank];
  const bool is_own = state_->mesh.is_own(rank);
  const bool is_zero = shards.layout.is_partial() && rank > 0;
  std::vector<Rectangle> parts;
  if (is_own && !is_zero) parts = rectangles(shards, static_cast<int>(rank), 0, tensor.bytes(), Access::kWrite);
  // Ranks must not write the same bytes, so only rank 0 wraps cache rows that several ranks store.
  const bool is_exclusive = shards.layout.is_split() && shards.layout.partition.is_disjoint();
  const bool may_wrap = tensor.role != Role::kCache || is_exclusive || rank == 0;
  if (may_wrap && parts.size() == 1 && parts[0].local.rows == 1) {
    std::byte* data = tensor.data + parts[0].host_offset;
    auto wrapped = member.buffer_from_host_ptr(data, local.bytes());
    if (wrapped != nullptr && reinterpret_cast<uintptr_t>(data) % wrapped->alignment() == 0) {
      wrapped->set_usage(usage());
      wrapped->place(local, 0);
      return wrapped;
    }
  }
  Tensor* one = &local;
  auto own = shoal::allocate_tensors({&one, 1}, member.buffer_type(), usage());
  for (const Rectangle& r : parts) local.buffer->set_2d(local, tensor.data + r.host_offset, r.host_stride, r.local);
  if (is_own && is_zero) local.buffer->memset(local, 0, 0, local.bytes());
  return own;
}

// Applies the chain of views to the shards of the base, one view after the other. The intermediate views do not need
// shards in this buffer.
void MetaBuffer::make_view(const Tensor& view) {
  shards_.erase(&view);  // removes the entry of an earlier tensor at this address
  names_.erase(&view);
  std::vector<const Tensor*> chain;
  for (const Tensor* link = &view; is_view(link->op); link = link->src[0]) chain.push_back(link);
  const Tensor& source = *chain.back()->src[0];
  const Shards* base = find(source.is_view() ? *source.view_base : source);
  if (base == nullptr) return;
  Shards shards = *base;
  std::vector<std::shared_ptr<Graph>> graphs;
  for (size_t rank = 0; rank < shards.local.size(); ++rank) graphs.push_back(std::make_shared<Graph>());
  for (auto link = chain.rbegin(); link != chain.rend(); ++link) {
    const bool is_reshard = (*link)->op == Op::kReshard;
    auto layout = is_reshard ? layout_of_reshard(**link, static_cast<int>(shards.local.size()))
                             : view_layout(**link, shards.layout);
    if (!layout || (is_reshard && *layout != shards.layout)) return;
    for (size_t rank = 0; rank < shards.local.size(); ++rank) {
      if ((*link)->op == Op::kReshape && !shards.local[rank]->is_contiguous()) return;
      OpParams params = local_view_params(**link, shards.layout, *layout, static_cast<int>(rank));
      shards.local[rank] = graphs[rank]->add_node((*link)->op, std::move(params), {shards.local[rank]});
      place_view(*shards.local[rank]);
    }
    shards.layout = std::move(*layout);
  }
  names_[&view] = std::move(graphs);
  shards_[&view] = std::move(shards);
}

void MetaBuffer::do_alias(Tensor& tensor, const Tensor& placed) {
  Shards shards = shards_of(placed);
  const auto made = names_.find(&placed);
  auto graphs = made != names_.end() ? made->second : std::vector<std::shared_ptr<Graph>>{};
  shards_[&tensor] = std::move(shards);
  names_[&tensor] = std::move(graphs);
  tensor.buffer = this;
  tensor.data = placed.data;
}

void MetaBuffer::do_unplace(Tensor& tensor) {
  require<InvalidArgument>(state_->store.find(tensor) == nullptr,
                           "[unplace {}] the tensor owns its shards in this buffer; reset or free the buffer",
                           tensor.name);
  shards_.erase(&tensor);
  names_.erase(&tensor);
}

void MetaBuffer::bind(Tensor& tensor, Shards shards) {
  names_.erase(&tensor);  // removes the entry of an earlier tensor at this address
  shards_[&tensor] = std::move(shards);
  tensor.buffer = this;
  if (tensor.data == nullptr) tensor.data = base();
}

void MetaBuffer::keep(int rank, std::shared_ptr<Buffer> part) {
  if (part != nullptr) parts_[rank].push_back(std::move(part));
}

const Shards* MetaBuffer::find(const Tensor& tensor) const {
  const auto it = shards_.find(&tensor);
  return it == shards_.end() ? nullptr : &it->second;
}

std::vector<size_t> MetaBuffer::bytes_per_rank() const {
  std::vector<size_t> bytes;
  for (const auto& parts : parts_) {
    size_t sum = 0;
    for (const auto& part : parts) sum += part->size();
    bytes.push_back(sum);
  }
  return bytes;
}

void MetaBuffer::clear(uint8_t value) {
  for (const auto& parts : parts_) {
    for (const auto& part : parts) part->clear(value);
  }
  // A Partial tensor is the sum of its addends, so only rank 0's addend keeps `value`. `tensor` may no longer exist.
  for (const auto& [tensor, shards] : shards_) {
    if (names_.contains(tensor)) continue;
    if (shards.layout.is_partial()) zero_other_addends(shards, 0, shards.local[0]->bytes());
  }
}

bool MetaBuffer::copy_tensor(const Tensor& src, Tensor& dst) {
  if (src.buffer->is_host()) {
    do_set(dst, src.data, 0, src.bytes());
    return true;
  }
  const Shards& to = shards_of(dst);
  if (const Shards* from = find_shards(src)) {
    if (from->layout != to.layout || from->local.size() != to.local.size()) return false;
    check_addends("copy", *from);
    check_addends("copy", to);
    for (const size_t rank : state_->mesh.own()) tensor_copy(*from->local[rank], *to.local[rank]);
    return true;
  }
  if (!to.layout.is_mirrored()) return false;
  for (const size_t rank : state_->mesh.own()) tensor_copy(src, *to.local[rank]);
  return true;
}

bool MetaBuffer::copy_to(const Tensor& src, Tensor& dst) {
  const Shards& from = shards_of(src);
  if (dst.buffer->is_host()) {
    do_get(src, dst.data, 0, src.bytes());
    return true;
  }
  if (!from.layout.is_mirrored() || !state_->mesh.processes_without_rank().empty()) return false;
  tensor_copy(*from.local[state_->mesh.front()], dst);
  return true;
}

void MetaBuffer::do_set(Tensor& tensor, const void* data, size_t offset, size_t size) {
  const Shards& shards = shards_of(tensor);
  check_addends("set", shards);
  const auto* bytes = static_cast<const std::byte*>(data);
  for (const size_t rank : state_->mesh.own()) {
    Tensor& local = *shards.local[rank];
    for (const Rectangle& r : rectangles(shards, static_cast<int>(rank), offset, size, Access::kWrite)) {
      local.buffer->set_2d(local, bytes + r.host_offset, r.host_stride, r.local);
    }
  }
  if (shards.layout.is_partial()) zero_other_addends(shards, offset, size);
}

void MetaBuffer::do_fill(Tensor& tensor, size_t offset, size_t size, const ByteReader& read) {
  const Shards& shards = shards_of(tensor);
  struct Part {
    Tensor* local;
    size_t at, bytes, from;
  };
  std::vector<Part> parts;
  size_t sum = 0;
  bool is_whole = shards.layout.is_split(), is_wanted = false;
  const Mesh& mesh = state_->mesh;
  for (size_t rank = 0; shards.layout.is_split() && rank < shards.local.size(); ++rank) {
    for (const Rectangle& r : rectangles(shards, static_cast<int>(rank), offset, size, Access::kWrite)) {
      is_whole &= r.local.rows == 1;
      is_wanted |= mesh.is_own(rank);
      parts.push_back({shards.local[rank], r.local.offset, r.local.row_bytes, offset + r.host_offset});
      sum += r.local.row_bytes;
    }
  }
  is_wanted |= !shards.layout.is_split() && mesh.is_here();
  if (!is_wanted) return;
  // If ranks share bytes, or a rank needs several rows, all bytes are read once and then divided among the ranks.
  if (!is_whole || sum != size) return Buffer::do_fill(tensor, offset, size, read);
  for (const Part& part : parts) {
    const auto own = [&](size_t at, std::span<std::byte> to) { read(part.from + at - part.at, to); };
    part.local->buffer->fill(*part.local, part.at, part.bytes, own);
  }
}

void MetaBuffer::do_get(const Tensor& tensor, void* data, size_t offset, size_t size) {
  const Shards& shards = shards_of(tensor);
  check_addends("get", shards);
  const Mesh& mesh = state_->mesh;
  if (mesh.spans() || !mesh.processes_without_rank().empty() || shards.layout.is_partial()) {
    return get_everywhere(shards, data, offset, size);
  }
  auto* bytes = static_cast<std::byte*>(data);
  for (size_t rank = 0; rank < shards.local.size(); ++rank) {
    const Tensor& local = *shards.local[rank];
    for (const Rectangle& r : rectangles(shards, static_cast<int>(rank), offset, size, Access::kRead)) {
      local.buffer->get_2d(local, bytes + r.host_offset, r.host_stride, r.local);
    }
  }
}

void MetaBuffer::get_everywhere(const Shards& shards, void* data, size_t offset, size_t size) {
  const Mesh& mesh = state_->mesh;
  if (shards.layout.is_mirrored() && mesh.processes_without_rank().empty()) {
    return tensor_get(*shards.local[mesh.front()], data, offset, size);
  }
  if (shards.layout.is_partial()) {
    PartialSum sum(shards, offset, size);
    for (size_t rank = 0; rank < shards.local.size(); ++rank) {
      const std::span<std::byte> addend = sum.addend(static_cast<int>(rank));
      if (mesh.is_own(rank) && !addend.empty())
        tensor_get(*shards.local[rank], addend.data(), sum.begin(), addend.size());
      hand_out(rank, addend);
    }
    return sum.finish(data);
  }
  for (size_t rank = 0; rank < shards.local.size(); ++rank) {
    const auto parts = rectangles(shards, static_cast<int>(rank), offset, size, Access::kRead);
    size_t total = 0;
    for (const Rectangle& r : parts) total += r.local.rows * r.local.row_bytes;
    std::vector<std::byte> packed(total);
    std::byte* next = packed.data();
    for (const Rectangle& r : parts) {
      if (mesh.is_own(rank)) shards.local[rank]->buffer->get_2d(*shards.local[rank], next, r.local.row_bytes, r.local);
      next += r.local.rows * r.local.row_bytes;
    }
    hand_out(rank, packed);
    next = packed.data();
    for (const Rectangle& r : parts) {
      for (size_t row = 0; row < r.local.rows; ++row, next += r.local.row_bytes) {
        std::memcpy(static_cast<std::byte*>(data) + r.host_offset + row * r.host_stride, next, r.local.row_bytes);
      }
    }
  }
}

void MetaBuffer::hand_out(size_t rank, std::span<std::byte> bytes) const {
  const Mesh& mesh = state_->mesh;
  if (mesh.group() == nullptr) return;
  ProcessGroup& group = *mesh.group();
  const int owner = mesh.process_of(rank);
  std::vector<Message> messages;
  for (int process = 0; process < group.size(); ++process) {
    if (bytes.empty() || process == group.own() || (group.own() != owner && process != owner)) continue;
    messages.push_back({group.own() == owner, process, group.passage_tag(process), bytes.data(), bytes.size()});
  }
  group.exchange(messages, "reading from " + mesh.members()[rank]->name());
}

void MetaBuffer::do_memset(Tensor& tensor, uint8_t value, size_t offset, size_t size) {
  const Shards& shards = shards_of(tensor);
  check_addends("memset", shards);
  for (const size_t rank : state_->mesh.own()) {
    Tensor& local = *shards.local[rank];
    for (const Rectangle& r : rectangles(shards, static_cast<int>(rank), offset, size, Access::kWrite)) {
      for (size_t row = 0; row < r.local.rows; ++row) {
        local.buffer->memset(local, value, r.local.offset + row * r.local.stride, r.local.row_bytes);
      }
    }
  }
  if (shards.layout.is_partial()) zero_other_addends(shards, offset, size);
}

const Shards* find_shards(const Tensor& tensor) {
  const auto* buffer = dynamic_cast<const MetaBuffer*>(tensor.buffer);
  return buffer == nullptr ? nullptr : buffer->find(tensor);
}

const Shards& shards_of(const Tensor& tensor) {
  const auto* buffer = dynamic_cast<const MetaBuffer*>(tensor.buffer);
  if (tensor.buffer == nullptr)
    check_access("shards", tensor, 0, {});  // throws an error that says how to place the
                                            // tensor
  if (buffer == nullptr) fail<InvalidArgument>("{} is not in a buffer of a meta device", describe(tensor));
  const Shards* shards = buffer->find(tensor);
  if (shards == nullptr)
    fail<InvalidArgument>("{} has no shards yet; make a plan of its graph first", describe(tensor));
  return *shards;
}

void check_addends(std::string_view what, const Shards& shards) {
  if (!shards.layout.is_partial()) return;
  for (size_t rank = 0; rank < shards.local.size(); ++rank) {
    const Tensor& addend = *shards.local[rank];
    if (addend.buffer != nullptr || addend.empty()) continue;
    fail<InvalidArgument>(
        "[{} {}] rank {} has no addend of this partial sum, because the rank has no experts; make the tensor an "
        "output of its graph",
        what, addend.name, rank);
  }
}

void zero_other_addends(const Shards& shards, size_t offset, size_t size) {
  for (size_t rank = 1; rank < shards.local.size(); ++rank) {
    Tensor& local = *shards.local[rank];
    // A rank without experts has no memory for its addend.
    if (local.buffer != nullptr) local.buffer->memset(local, 0, offset, size);
  }
}

}  // namespace shoal::meta
