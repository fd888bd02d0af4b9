#include "meta/meta_backend.h"

#include <exception>

#include "graph/error.h"
#include "meta/meta_plan.h"

namespace shoal::meta {
namespace {

void check_range(const Tensor& tensor, size_t offset, size_t size) {
  const size_t bytes = tensor.bytes();
  if (offset <= bytes && size <= bytes - offset) return;
  fail<InvalidArgument>("bytes [{}, {} + {}) are outside {} of {} bytes", offset, offset, size, describe(tensor),
                        bytes);
}

}  // namespace

MetaBackend::MetaBackend(MetaDevice& device, MetaBufferType& type, std::vector<std::unique_ptr<Backend>> members,
                         collectives::Options comm_options)
    : device_(device), type_(type), members_(std::move(members)), comm_options_(comm_options) {
  for (const auto& member : members_) streams_.push_back(member.get());
}

MetaBackend::~MetaBackend() {
  // Queued collectives use the communicator: let every member finish before it goes. Failures have no reader left.
  for (Backend* member : streams_) {
    try {
      member->synchronize();
    } catch (...) {
    }
  }
  plans().clear();
}

std::string MetaBackend::name() const {
  return device_.name();
}

void MetaBackend::set_async(Tensor& tensor, const void* data, size_t offset, size_t size) {
  const Shards& shards = shards_of(tensor);
  if (shards.layout.is_partial()) return Backend::set_async(tensor, data, offset, size);
  check_range(tensor, offset, size);
  const auto* bytes = static_cast<const std::byte*>(data);
  for (size_t rank = 0; rank < streams_.size(); ++rank) {
    for (const Rectangle& r : rectangles(shards, static_cast<int>(rank), offset, size, Access::kWrite)) {
      streams_[rank]->set_2d_async(*shards.local[rank], bytes + r.host_offset, r.host_stride, r.local);
    }
  }
}

void MetaBackend::get_async(const Tensor& tensor, void* data, size_t offset, size_t size) {
  const Shards& shards = shards_of(tensor);
  if (shards.layout.is_partial()) return Backend::get_async(tensor, data, offset, size);
  check_range(tensor, offset, size);
  auto* bytes = static_cast<std::byte*>(data);
  for (size_t rank = 0; rank < streams_.size(); ++rank) {
    for (const Rectangle& r : rectangles(shards, static_cast<int>(rank), offset, size, Access::kRead)) {
      streams_[rank]->get_2d_async(*shards.local[rank], bytes + r.host_offset, r.host_stride, r.local);
    }
  }
}

void MetaBackend::hold() {
  for (Backend* member : streams_) member->hold();
}

void MetaBackend::release() {
  for (Backend* member : streams_) member->release();
}

// Every member is waited for, whatever fails. A rank's own failure makes the others' collectives fail too: the one
// that is not about a collective is the cause.
void MetaBackend::synchronize() {
  std::exception_ptr cause, consequence;
  for (Backend* member : streams_) {
    try {
      member->synchronize();
    } catch (const CommError&) {
      if (consequence == nullptr) consequence = std::current_exception();
    } catch (...) {
      if (cause == nullptr) cause = std::current_exception();
    }
  }
  if (cause == nullptr && consequence == nullptr) return;
  communicator_.reset();
  std::rethrow_exception(cause != nullptr ? cause : consequence);
}

std::unique_ptr<GraphPlan> MetaBackend::create_plan(const GraphRange& range) {
  Plan plan = make_plan(
      range, [](const Tensor& tensor) { return find_shards(tensor); }, device_.members());
  return std::make_unique<MetaGraphPlan>(*this, range, std::move(plan));
}

void MetaBackend::compute_async(GraphPlan& plan) {
  auto* mine = dynamic_cast<MetaGraphPlan*>(&plan);
  // Names are made for the message alone: a run allocates nothing.
  if (mine == nullptr || &mine->backend() != this) {
    fail<InvalidArgument>("the plan was made by another backend, of {}, not by this one of {}", plan.backend().name(),
                          name());
  }
  mine->run();
}

collectives::Communicator& MetaBackend::communicator() {
  if (communicator_ == nullptr) communicator_ = collectives::make_host_communicator(streams_, comm_options_);
  return *communicator_;
}

}  // namespace shoal::meta
