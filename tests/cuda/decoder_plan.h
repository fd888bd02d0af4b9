// Runs the decoder of the meta tests on two devices. Compares its results with the results of the same graph on a third
// device. Also records the calls of the CUDA runtime.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "tests/cuda/cuda_mesh.h"
#include "tests/cuda/emulator/emulator.h"
#include "tests/meta/llama_graph.h"
#include "tests/meta/mesh.h"

namespace shoal::test {

/// Records the calls of the CUDA runtime until `work` has returned and the backend is idle.
class Calls {
 public:
  template <class Work>
  Calls(Backend& backend, Work work) {
    cuda::emulator::record_calls();
    work();
    backend.synchronize();
    names_ = cuda::emulator::take_calls();
  }
  size_t operator[](const char* name) const {
    return static_cast<size_t>(std::count(names_.begin(), names_.end(), name));
  }

 private:
  std::vector<std::string> names_;
};

struct DecoderPlan {
  DecoderPlan(CudaMesh& mesh, const std::string& comm) {
    meta::MetaOptions options;
    options.comm = comm;
    options.comm_timeout = long_timeout();
    options.communicator = collectives::cuda::make_cuda_communicator;
    device =
        meta::MetaDevice::create({mesh.devices()[0], mesh.devices()[1]}, callback_for(llama_layouts({3, 1})), options);
    loaded = std::make_unique<Loaded>(text, *device);
    backend = device->init();
    plan = backend->create_plan(loaded->graph);
    Loaded reference(text, *mesh.devices()[2]);
    const auto one = mesh.backend(2).create_plan(reference.graph);
    reference.fill_inputs();
    mesh.backend(2).compute_async(*one);
    mesh.backend(2).synchronize();
    expected = read_floats(*reference.graph.find("logits"));
  }
  Calls run() {
    loaded->fill_inputs();
    const Calls calls(*backend, [&] { backend->compute_async(*plan); });
    const auto got = read_floats(*loaded->graph.find("logits"));
    for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[i], 1e-3) << i;
    return calls;
  }

  const std::string text = llama_graph(2);
  std::unique_ptr<meta::MetaDevice> device;
  std::unique_ptr<Loaded> loaded;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<GraphPlan> plan;
  std::vector<float> expected;
};

}  // namespace shoal::test
