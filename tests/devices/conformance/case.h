// Parameters and helpers of the conformance suites.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <numeric>
#include <ostream>
#include <string>
#include <vector>

#include "base/error.h"
#include "devices/allocate.h"
#include "devices/device.h"
#include "graph/graph.h"
#include "graph/ops/ops.h"

namespace shoal::test {

struct Exclusion {
  std::string test;  ///< such as "BackendSuite.ComputesAGraph"; the name of a suite excludes all tests of the suite
  std::string reason;
};

struct DeviceCase {
  std::string name;                 ///< suffix of the test names
  std::function<Device*()> device;  ///< returns nullptr if the machine does not have the device
  std::string params;               ///< parameters for Device::init()
  std::vector<Exclusion> exclusions;
};

inline void PrintTo(const DeviceCase& device_case, std::ostream* out) {
  *out << device_case.name;
}
inline std::string case_name(const testing::TestParamInfo<DeviceCase>& info) {
  return info.param.name;
}

/// Values 0, 1, 2, ... times `factor`. No two values are equal.
inline std::vector<float> ramp(int64_t count, float factor = 1.0f) {
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) * factor;
  return values;
}

inline void set_floats(Tensor& tensor, const std::vector<float>& values) {
  tensor_set(tensor, values.data(), 0, values.size() * sizeof(float));
}

inline std::vector<float> get_floats(const Tensor& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.elements()));
  tensor_get(tensor, values.data(), 0, values.size() * sizeof(float));
  return values;
}

class DeviceFixture : public testing::TestWithParam<DeviceCase> {
 protected:
  void SetUp() override {
    const testing::TestInfo& test = *testing::UnitTest::GetInstance()->current_test_info();
    std::string suite = test.test_suite_name();
    suite = suite.substr(suite.find('/') + 1);
    const std::string name = suite + "." + std::string(test.name()).substr(0, std::string(test.name()).find('/'));
    for (const Exclusion& exclusion : GetParam().exclusions) {
      if (exclusion.test == name || exclusion.test == suite) GTEST_SKIP() << "excluded: " << exclusion.reason;
    }
    device_ = GetParam().device();
    if (device_ == nullptr) GTEST_SKIP() << "there is no device " << GetParam().name << " on this machine";
  }

  Device& device() { return *device_; }
  std::unique_ptr<Backend> new_backend() { return device_->init(GetParam().params); }
  /// Adds a tensor with memory on the device. The memory is freed at the end of the test.
  Tensor& placed(std::string name, Shape shape, DType dtype = DType::kF32) {
    Tensor* tensor = weights_.add(std::move(name), dtype, shape);
    buffers_.push_back(allocate_tensors({&tensor, 1}, device_->buffer_type(), Usage::kWeights));
    return *tensor;
  }

  Device* device_ = nullptr;
  TensorContext weights_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
};

}  // namespace shoal::test
