// A model twice: on one device, and copied from there to several that act as one. Owns all it loads; one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "models/place/placement.h"
#include "models/session/model_plan.h"
#include "models/session/session.h"
#include "sched/compare.h"

namespace shoal::tools {

class ComparedModel {
 public:
  /// Plans, and starts the threads; loads nothing. The context must be named. The model is loaded on the
  /// first of the devices and copied to all of them together.
  ComparedModel(std::unique_ptr<models::Model> model, const std::vector<Device*>& devices,
                const models::PlacementOptions& placement, const models::SessionOptions& options,
                int64_t prompt_tokens);
  ~ComparedModel();
  ComparedModel(const ComparedModel&) = delete;
  ComparedModel& operator=(const ComparedModel&) = delete;

  /// Throws DeviceError where a device has less memory than it needs: for weights, caches and the larger graph, the
  /// first device for both sides.
  void require_memory() const;
  void load();

  /// A node, or a cache after the step, as stored on both sides.
  struct Compared {
    const Tensor& tensor;
    std::string layout;  ///< on the several devices
    std::span<const std::byte> one, many;
  };
  /// Appends the tokens, first the prompt, all of it, then one token, and shows every node that computes something, in
  /// graph order, and the caches. Gives the logits of the last token, on one device.
  std::vector<float> step(std::span<const int32_t> tokens, const std::function<void(const Compared&)>& show);

 private:
  models::DecoderGraph build(int64_t tokens) const;
  std::vector<models::DeviceUse> memory(const models::Placement& placement) const;
  void show_caches(const std::function<void(const Compared&)>& show) const;

  std::unique_ptr<models::Model> model_;
  models::Placement one_, many_;
  std::unique_ptr<Backend> one_backend_, many_backend_;
  int64_t prompt_tokens_;
  models::KvCache cache_;
  std::unique_ptr<Buffer> cache_buffer_;
  sched::LeafCopies copies_;
  int64_t position_ = 0;
};

/// The values of a tensor as f32 from its stored bytes.
std::vector<float> to_floats(const Tensor& tensor, std::span<const std::byte> bytes);

}  // namespace shoal::tools
