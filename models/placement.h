// Where a model runs: one device, or a meta device over several with the default split policy. Owns the meta device;
// members belong to their families. Must outlive the buffers and backends made from it.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "meta/meta_device.h"
#include "models/model.h"

namespace shoal::models {

struct PlacementOptions {
  std::string ratio;  ///< as parse_ratio reads it; empty: even
  int threads = 0;    ///< of each CPU device; 0: its default
};

class Placement {
 public:
  /// Throws InvalidArgument for no devices, one listed twice or a ratio that does not fit.
  Placement(const Model& model, std::vector<Device*> members, const PlacementOptions& options = {});

  std::span<Device* const> members() const { return members_; }
  /// The member, or the meta device over all of them.
  Device& device() const { return meta_ ? *meta_ : *members_.front(); }
  bool is_meta() const { return meta_ != nullptr; }
  const SplitPolicy& policy() const { return policy_; }
  /// A stream of work on device() with the threads asked for.
  std::unique_ptr<Backend> init() const;

 private:
  std::vector<Device*> members_;
  SplitPolicy policy_;
  std::string params_;
  std::unique_ptr<meta::MetaDevice> meta_;
};

}  // namespace shoal::models
