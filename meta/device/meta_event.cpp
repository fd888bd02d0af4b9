#include "meta/device/meta_event.h"

#include <vector>

#include "base/error.h"
#include "meta/device/meta_buffer.h"
#include "meta/meta.h"

namespace shoal::meta {
namespace {

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

  /// Each part waits on `backend`; one that stands for several streams holds all of them back.
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

}  // namespace

std::unique_ptr<Event> make_event(std::shared_ptr<MetaState> state) {
  std::vector<std::unique_ptr<Event>> parts;
  for (Device* member : state->mesh.members()) {
    auto part = member->new_event();
    if (part == nullptr) return nullptr;
    parts.push_back(std::move(part));
  }
  return std::make_unique<MetaEvent>(std::move(state), std::move(parts));
}

}  // namespace shoal::meta
