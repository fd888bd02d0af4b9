#include "meta/device/mesh.h"

#include <algorithm>

#include "processes/remote_device.h"

namespace shoal::meta {

Mesh::Mesh(std::vector<Device*> members, ProcessGroup* group) : members_(std::move(members)), group_(group) {
  const int here = group_ != nullptr ? group_->own() : 0;
  for (size_t rank = 0; rank < members_.size(); ++rank) {
    processes_.push_back(shoal::process_of(*members_[rank], here));
    if (processes_.back() == here) own_.push_back(rank);
    spans_ |= processes_.back() != processes_.front();
  }
  for (int process = 0; group_ != nullptr && process < group_->size(); ++process) {
    if (!is_in(process)) processes_without_rank_.push_back(process);
  }
}

bool Mesh::is_in(int process) const {
  return std::find(processes_.begin(), processes_.end(), process) != processes_.end();
}

std::vector<std::string> Mesh::names() const {
  std::vector<std::string> names;
  for (const Device* member : members_) names.push_back(common_name(*member, group_));
  return names;
}

}  // namespace shoal::meta
