#include "models/placement.h"

#include "graph/error.h"

namespace shoal::models {
namespace {

std::string member_params(const Device& device, int threads) {
  return threads > 0 && device.type() == DeviceType::kCpu ? fmt::format("threads={}", threads) : std::string();
}

}  // namespace

Placement::Placement(const Model& model, std::vector<Device*> members, const PlacementOptions& options)
    : members_(std::move(members)),
      policy_(model.split_policy(parse_ratio(options.ratio, static_cast<int>(members_.size())))) {
  require<InvalidArgument>(!members_.empty(), "no device to run on; name at least one");
  if (members_.size() == 1) {
    params_ = member_params(*members_.front(), options.threads);
    return;
  }
  meta::MetaOptions meta_options;
  for (const Device* member : members_) {
    meta_options.member_params.push_back(member_params(*member, options.threads));
  }
  meta_ = meta::MetaDevice::create(members_, policy_, std::move(meta_options));
}

std::unique_ptr<Backend> Placement::init() const {
  return device().init(params_);
}

}  // namespace shoal::models
