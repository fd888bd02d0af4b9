#include "meta/meta.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <deque>

#include "base/error.h"
#include "collectives/factory.h"
#include "meta/device/meta_backend.h"
#include "meta/device/meta_family.h"
#include "meta/device/meta_plan.h"

namespace shoal::meta {
namespace {

std::string name_of(std::span<Device* const> members) {
  std::vector<std::string> names;
  for (const Device* member : members) names.push_back(member->name());
  return fmt::format("META({})", fmt::join(names, ","));
}

/// One event on each member. All these events are recorded, waited for and synchronized together.
class MetaEvent final : public Event {
 public:
  MetaEvent(std::shared_ptr<MetaState> state, std::vector<std::unique_ptr<Event>> parts)
      : state_(std::move(state)), parts_(std::move(parts)) {}

  Device& device() const override { return state_->device(); }

  void record(Backend& backend) override {
    require<InvalidArgument>(&backend.device() == &device(), "an event of {} cannot be recorded on {}", state_->name,
                             backend.name());
    for (size_t rank = 0; rank < parts_.size(); ++rank) parts_[rank]->record(*backend.members()[rank]);
  }

  /// Makes all streams of `backend` wait for the events of all members.
  void wait(Backend& backend) override {
    for (const auto& part : parts_) part->wait(backend);
  }

  void synchronize() override {
    for (const auto& part : parts_) part->synchronize();
  }

 private:
  std::shared_ptr<MetaState> state_;
  FamilyUse use_{state_->device()};
  std::vector<std::unique_ptr<Event>> parts_;
};

class MetaDeviceImpl final : public MetaDevice {
 public:
  MetaDeviceImpl(std::vector<Device*> members, SplitStateCallback callback, MetaOptions options)
      : members_(std::move(members)),
        callback_(std::move(callback)),
        options_(std::move(options)),
        state_(std::make_shared<MetaState>(*this, name_of(members_), Mesh(members_, options_.processes))) {
    for (const Device* member : members_) uses_.emplace_back(*member);
    costs_ = machine::CostModel::of(options_.machine, mesh().names());
    if (!options_.communicator) options_.communicator = collectives::communicator_for(members_);
  }
  ~MetaDeviceImpl() override { state_->owner = nullptr; }

  std::string name() const override { return state_->name; }
  std::string description() const override { return fmt::format("{} devices as one", members_.size()); }
  DeviceType type() const override { return DeviceType::kMeta; }

  DeviceMemory memory() const override {
    DeviceMemory sum;
    for (const Device* member : members_) {
      const DeviceMemory one = member->memory();
      sum.free += one.free;
      sum.total += one.total;
    }
    return sum;
  }

  DeviceProps props() const override {
    const bool events = std::all_of(members_.begin(), members_.end(), [](Device* m) { return m->props().caps.events; });
    DeviceProps props{name(), description(), type(), memory(), "", {}};
    props.caps.async = true;
    props.caps.host_buffer = host_buffer_member() != nullptr;
    props.caps.buffer_from_host_ptr = wraps_host_memory();
    props.caps.events = events;
    for (const Device* member : members_) props.caps.peers.push_back(member->name());
    return props;
  }

  BackendReg& reg() const override { return family(); }

  std::unique_ptr<Backend> init(std::string_view params) override {
    std::vector<std::unique_ptr<Backend>> backends;
    for (size_t rank = 0; rank < members_.size(); ++rank) {
      const bool own = params.empty() && rank < options_.member_params.size();
      backends.push_back(members_[rank]->init(own ? std::string_view(options_.member_params[rank]) : params));
    }
    return std::make_unique<MetaBackend>(state_, std::move(backends), options_.communicator, comm_options());
  }

  BufferType& buffer_type() override { return state_->buffer_type; }
  BufferType& weights_type() override {
    const bool same = std::all_of(members_.begin(), members_.end(),
                                  [](Device* member) { return &member->weights_type() == &member->buffer_type(); });
    return same ? state_->buffer_type : state_->weights_type;
  }

  BufferType* host_buffer_type() override {
    Device* member = host_buffer_member();
    return member != nullptr ? member->host_buffer_type() : nullptr;
  }
  std::unique_ptr<Buffer> buffer_from_host_ptr(void* data, size_t size) override {
    if (!wraps_host_memory()) return nullptr;
    require<InvalidArgument>(data != nullptr || size == 0, "[{}] cannot wrap a null pointer as memory", name());
    return std::make_unique<MetaBuffer>(state_->host_type, size, static_cast<std::byte*>(data));
  }

  bool supports_op(const Tensor& node) const override {
    return std::all_of(members_.begin(), members_.end(), [&](const Device* m) { return m->supports_op(node); });
  }
  bool offload_op(const Tensor& node) const override {
    if (options_.offload_op) return options_.offload_op(node);
    return std::all_of(members_.begin(), members_.end(), [&](const Device* m) { return m->offload_op(node); });
  }
  std::unique_ptr<Event> new_event() override {
    std::vector<std::unique_ptr<Event>> parts;
    for (Device* member : members_) {
      parts.push_back(member->new_event());
      if (parts.back() == nullptr) return nullptr;
    }
    return std::make_unique<MetaEvent>(state_, std::move(parts));
  }

  std::span<Device* const> members() const override { return members_; }
  const Mesh& mesh() const override { return state_->mesh; }
  const ShardStore& shards() const override { return state_->store; }
  void adopt(const Tensor& tensor, const ShardStore& store) override { state_->store.adopt(tensor, store); }

  Layout ask(const Tensor& tensor) const override {
    const bool is_here = find_shards(tensor) != nullptr && &tensor.buffer->type().device() == this;
    const Shards* placed = is_here ? state_->store.find(tensor) : nullptr;
    if (placed != nullptr) return placed->layout;
    Layout layout = to_layout(callback_(tensor), tensor, static_cast<int>(members_.size()));
    return members_.size() == 1 ? Layout::mirrored() : layout;
  }
  PlanContext plan_context() const override {
    return {.shards = {},
            .copied_weights = [this](const Tensor& weight) { return ask(weight); },
            .rules = options_.rules,
            .constraints = constraints(),
            .costs = costs_,
            .communicator = options_.communicator.describe(members_, comm_options()),
            .results_are_whole = mesh().spans()};
  }
  ConstraintLookup constraints() const override {
    if (!options_.constraints) return {};
    return [this](const Tensor& tensor) -> std::optional<LayoutConstraint> {
      const auto answer = options_.constraints(tensor);
      if (!answer) return std::nullopt;
      if (tensor.is_leaf() && tensor.is_persistent()) return LayoutConstraint{};  // a plan refuses this constraint
      require<InvalidArgument>(answer->factor > 0, "the hint for {} has the factor {}; give a number above 0",
                               tensor.name, answer->factor);
      Layout layout = to_layout(answer->state, tensor, static_cast<int>(members_.size()));
      if (members_.size() == 1) layout = Layout::mirrored();
      return LayoutConstraint{std::move(layout), answer->required, answer->factor};
    };
  }

 private:
  /// The first member of this process that has host buffers; nullptr if there is none.
  Device* host_buffer_member() const {
    for (const size_t rank : mesh().own()) {
      if (members_[rank]->host_buffer_type() != nullptr) return members_[rank];
    }
    return nullptr;
  }
  bool wraps_host_memory() const {
    return std::any_of(members_.begin(), members_.end(),
                       [](const Device* member) { return member->props().caps.buffer_from_host_ptr; });
  }

  collectives::Options comm_options() const {
    return {.timeout = options_.comm_timeout,
            .implementation = options_.comm,
            .processes = mesh().spans() ? options_.processes : nullptr};
  }

  std::vector<Device*> members_;
  std::deque<FamilyUse> uses_;  ///< each element keeps a member's family in use
  SplitStateCallback callback_;
  MetaOptions options_;
  machine::CostModel costs_;
  std::shared_ptr<MetaState> state_;
};

const MetaGraphPlan& as_meta(const GraphPlan& plan) {
  const auto* mine = dynamic_cast<const MetaGraphPlan*>(&plan);
  require<InvalidArgument>(mine != nullptr, "the plan was not made by a meta backend");
  return *mine;
}

}  // namespace

std::unique_ptr<MetaDevice> MetaDevice::create(std::vector<Device*> members, SplitStateCallback callback,
                                               MetaOptions options) {
  require<InvalidArgument>(!members.empty(), "a meta device needs at least one device");
  require<InvalidArgument>(callback != nullptr, "a meta device needs a split-state callback");
  for (size_t i = 0; i < members.size(); ++i) {
    require<InvalidArgument>(members[i] != nullptr, "device {} of the meta device is missing", i);
    require<InvalidArgument>(members[i]->type() != DeviceType::kMeta,
                             "{} is a meta device and cannot be a member of another meta device; make one meta device "
                             "of all simple devices, or give several meta devices to a scheduler (sched/scheduler.h)",
                             members[i]->name());
    for (size_t j = 0; j < i; ++j) {
      require<InvalidArgument>(members[i] != members[j], "{} is listed twice; name each device once",
                               members[i]->name());
    }
  }
  require<InvalidArgument>(options.rules != nullptr,
                           "a meta device needs rules; leave MetaOptions::rules at its default");
  require<InvalidArgument>(options.member_params.empty() || options.member_params.size() == members.size(),
                           "parameters are given for {} devices, but the meta device has {}",
                           options.member_params.size(), members.size());
  collectives::check_options({.timeout = options.comm_timeout, .implementation = options.comm});
  return std::make_unique<MetaDeviceImpl>(std::move(members), std::move(callback), std::move(options));
}

const Tensor& shard(const Tensor& tensor, int rank) {
  const Shards& shards = shards_of(tensor);
  require<InvalidArgument>(rank >= 0 && rank < static_cast<int>(shards.local.size()), "{} has no rank {}",
                           describe(tensor), rank);
  return *shards.local[rank];
}

Tensor& shard(Tensor& tensor, int rank) {
  return const_cast<Tensor&>(shard(std::as_const(tensor), rank));
}

const Layout& layout_of(const Tensor& tensor) {
  return shards_of(tensor).layout;
}

const Plan& plan_of(const GraphPlan& plan) {
  return as_meta(plan).plan();
}

std::vector<size_t> allocated_per_rank(const GraphPlan& plan) {
  return as_meta(plan).bytes_per_rank();
}

std::vector<size_t> allocated_per_rank(const Buffer& buffer) {
  const auto* mine = dynamic_cast<const MetaBuffer*>(&buffer);
  require<InvalidArgument>(mine != nullptr, "the buffer does not belong to a meta device");
  return mine->bytes_per_rank();
}

}  // namespace shoal::meta
