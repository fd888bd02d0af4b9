// Networks that are not language models: the outermost level of the U-Net of Stable Diffusion 1.5, the decoder of its
// VAE, and whisper's encoder and decoder. PyTorch exported them to ONNX, and scripts/onnx_to_shoal.py converted them to
// graph text. The references are the outputs of PyTorch in float64 (scripts/reference/make_nets.py). Meta devices split
// the output channels of convolutions, the input channels of the next convolution, heads and the hidden units of MLPs.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/models/nets/net.h"
#include "tests/models/tiny_model.h"
#include "tests/support/tensors.h"

namespace shoal::models {
namespace {

constexpr double kTolerance = 1e-9;  // NMSE

void expect_reference(const std::string& name, const Net& net) {
  const GgufFile file(fmt::format("{}/tests/models/nets/{}.gguf", SHOAL_SOURCE_DIR, name));
  ASSERT_EQ(file.tensors().size(), 1u);
  const GgufTensor& reference = file.tensors()[0];
  const std::vector<float> found = net.read(reference.name);
  const size_t step = file.get_positive("reference.step"), count = static_cast<size_t>(reference.shape[0]);
  ASSERT_EQ(count, (found.size() + step - 1) / step);
  test::Values got, expected;
  for (size_t i = 0; i < count; ++i) {
    got.push_back(found[i * step]);
    expected.push_back(reinterpret_cast<const float*>(reference.data)[i]);
  }
  const double nmse = test::compare(got, expected).nmse;
  ::testing::Test::RecordProperty("nmse", fmt::format("{:.1e}", nmse));
  EXPECT_LE(nmse, kTolerance);
}

struct NetCase {
  std::string name;
  std::vector<int64_t> shares;
};
class Nets : public ::testing::TestWithParam<NetCase> {};

TEST_P(Nets, MatchPyTorch) {
  const auto& [name, shares] = GetParam();
  const NetFiles files(SHOAL_REFERENCE_NETS, name);
  const std::vector<Device*> devices = cpu_devices(static_cast<int>(shares.size()));
  const auto meta = meta::MetaDevice::create(devices, files.callback(shares));
  Net net(files, *meta);
  net.run();
  expect_reference(name, net);
  if (devices.size() == 1) return;
  size_t whole = 0;
  for (const Tensor* tensor : net.weights.tensors()) whole += tensor->bytes();
  const std::vector<size_t> bytes = meta::allocated_per_rank(*net.memory);
  EXPECT_LT(*std::min_element(bytes.begin(), bytes.end()), whole * 3 / 4) << "the weights are split";
}

std::vector<NetCase> net_cases() {
  std::vector<NetCase> all;
  for (const char* name : {"unet", "vae_decoder", "whisper_encoder", "whisper_decoder"}) {
    for (const auto& shares : std::vector<std::vector<int64_t>>{{1}, {1, 1}, {3, 1}, {5, 0, 2}, {1, 1, 1, 1}}) {
      all.push_back({name, shares});
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Published, Nets, ::testing::ValuesIn(net_cases()), [](const auto& info) {
  return fmt::format("{}_{}", info.param.name, fmt::join(info.param.shares, "_"));
});

}  // namespace
}  // namespace shoal::models
