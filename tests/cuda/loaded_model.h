// A test model on virtual devices of one emulated GPU. The program `shoal` loads models in the same way.
#pragma once

#include <string>

#include "collectives/factory.h"
#include "models/session/loader.h"
#include "models/session/session.h"
#include "tests/cuda/cuda_mesh.h"

namespace shoal::test {

/// Looks up a function of the plug-in by name.
inline void* plugin_function(std::string_view name) {
  static collectives::FamilyFactory own{
      collectives::class_sizes(),
      {collectives::cuda::make_cuda_communicator, collectives::cuda::describe_cuda_communicator}};
  static const FunctionEntry table[] = {{collectives::kCommunicatorFactory, &own}};
  return find_in(table, name);
}

/// The model of file `path`. Its devices share one emulated GPU with `processors` multiprocessors. `parts` is the
/// number of these devices.
class LoadedModel {
 public:
  LoadedModel(const std::string& path, int parts, int processors = 132)
      : environment_{{"SHOAL_EMULATED_GPUS", "1"},
                     {"SHOAL_EMULATED_PROCESSORS", std::to_string(processors)},
                     {"SHOAL_CUDA_DEVICES_PER_GPU", std::to_string(parts)}},
        model_(models::open_model(path)),
        placement_(*model_, std::vector<Device*>(family_.devices().begin(), family_.devices().end())) {
    models::load_weights(*model_, placement_);
  }
  int layers() const { return static_cast<int>(model_->hparams.layers); }
  models::Session session(int64_t candidates = 0) const {
    models::SessionOptions options;
    options.context = 128;
    options.candidates = candidates;
    return models::Session(*model_, placement_, placement_.init(), options);
  }

 private:
  Environment environment_;
  cuda::CudaFamily family_{plugin_function};
  std::unique_ptr<models::Model> model_;
  models::Placement placement_;
};

}  // namespace shoal::test
