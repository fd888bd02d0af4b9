#include "meta/meta_event.h"

#include <vector>

#include "graph/error.h"
#include "meta/meta_device.h"

namespace shoal::meta {
namespace {

class MetaEvent final : public Event {
 public:
  MetaEvent(MetaDevice& device, std::vector<std::unique_ptr<Event>> parts)
      : device_(device), parts_(std::move(parts)) {}

  Device& device() const override { return device_; }

  void record(Backend& backend) override {
    require<InvalidArgument>(&backend.device() == &device_, "an event of {} cannot be recorded on {}", device_.name(),
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
  MetaDevice& device_;
  FamilyUse use_{device_};
  std::vector<std::unique_ptr<Event>> parts_;
};

}  // namespace

std::unique_ptr<Event> make_event(MetaDevice& device) {
  std::vector<std::unique_ptr<Event>> parts;
  for (Device* member : device.members()) {
    auto part = member->new_event();
    if (part == nullptr) return nullptr;
    parts.push_back(std::move(part));
  }
  return std::make_unique<MetaEvent>(device, std::move(parts));
}

}  // namespace shoal::meta
