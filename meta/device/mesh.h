// Mesh: the ranks of a meta device and their processes. Without a process group, all ranks belong to this process.
//
//   processes 0 and 1 with two devices each: ranks 0 1 | 2 3; in process 1 own() is {2, 3} and front() is 2
#pragma once

#include <string>
#include <vector>

#include "devices/device.h"
#include "processes/process_group.h"

namespace shoal::meta {

class Mesh {
 public:
  Mesh(std::vector<Device*> members, ProcessGroup* group);

  std::span<Device* const> members() const { return members_; }
  ProcessGroup* group() const { return group_; }
  bool is_own(size_t rank) const { return group_ == nullptr || processes_[rank] == group_->own(); }
  int process_of(size_t rank) const { return processes_[rank]; }
  /// The ranks of this process.
  const std::vector<size_t>& own() const { return own_; }
  bool is_here() const { return !own_.empty(); }
  /// The first rank of this process.
  size_t front() const { return own_.front(); }
  /// True if the ranks belong to several processes.
  bool spans() const { return spans_; }
  /// True if at least one rank belongs to the process.
  bool is_in(int process) const;
  /// Processes of the group that have no rank.
  const std::vector<int>& processes_without_rank() const { return processes_without_rank_; }
  /// Names of the devices of all ranks. Every process gets the same names.
  std::vector<std::string> names() const;

 private:
  std::vector<Device*> members_;
  ProcessGroup* group_;
  std::vector<int> processes_;
  std::vector<size_t> own_;
  std::vector<int> processes_without_rank_;
  bool spans_ = false;
};

}  // namespace shoal::meta
