// A product with experts must read only the weights of the selected experts. During the product, the test makes all
// other weights unreadable.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>

#include "devices/allocate.h"
#include "devices/cpu/isa.h"
#include "graph/ops/ops.h"
#include "tests/support/dtypes.h"

namespace shoal::cpu {
namespace {

constexpr int64_t kRowLength = 1024, kExperts = 6;
constexpr std::array<int32_t, 4> kChosen{1, 4, 4, 1};  // two experts per token, for two tokens

/// Makes all whole pages of a range of memory unreadable. The destructor makes the pages readable again.
class Hidden {
 public:
  Hidden(std::byte* begin, size_t bytes) {
    const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE)), first = reinterpret_cast<uintptr_t>(begin);
    begin_ = reinterpret_cast<void*>((first + page - 1) / page * page);
    bytes_ = (first + bytes) / page * page - reinterpret_cast<uintptr_t>(begin_);
    EXPECT_GE(bytes_, page);
    EXPECT_EQ(mprotect(begin_, bytes_, PROT_NONE), 0);
  }
  ~Hidden() { mprotect(begin_, bytes_, PROT_READ | PROT_WRITE); }
  Hidden(const Hidden&) = delete;
  Hidden& operator=(const Hidden&) = delete;

 private:
  void* begin_;
  size_t bytes_;
};

class Experts : public testing::TestWithParam<DType> {};

TEST_P(Experts, UnusedExpertsAreNotRead) {
  Device& device = Registry::instance().device("CPU0");
  const auto backend = Registry::instance().init("CPU0:threads=2");
  for (BufferType* type : {&device.weights_type(), &device.buffer_type()}) {
    Graph graph;
    TensorContext weights;
    Tensor* experts = weights.add("experts", GetParam(), {kRowLength, 8 * kernels().panel_rows, kExperts, 1});
    const auto memory = allocate_tensors(weights.tensors(), *type, Usage::kWeights);
    const std::vector<std::byte> zeros(experts->bytes());
    tensor_set(*experts, zeros.data(), 0, zeros.size());
    Tensor* x = graph.input("x", DType::kF32, {kRowLength, 1, 2, 1});
    Tensor* ids = graph.input("ids", DType::kI32, {2, 2, 1, 1});
    Tensor* result = graph.output(mul_mat_id(graph, experts, x, ids));
    const auto plan = backend->create_plan(graph);
    const std::vector<float> ones(2 * kRowLength, 1.0f);
    tensor_set(*x, ones.data(), 0, x->bytes());
    tensor_set(*ids, kChosen.data(), 0, ids->bytes());
    {
      const size_t each = type->alloc_size(*experts) / kExperts;
      auto* begin = static_cast<std::byte*>(experts->data);
      const Hidden first(begin, each), between(begin + 2 * each, 2 * each), last(begin + 5 * each, each);
      backend->compute_async(*plan);
      backend->synchronize();
    }
    std::vector<float> values(static_cast<size_t>(result->elements()), 1.0f);
    tensor_get(*result, values.data(), 0, result->bytes());
    EXPECT_EQ(values, std::vector<float>(values.size(), 0.0f));
  }
}

INSTANTIATE_TEST_SUITE_P(OfType, Experts, testing::ValuesIn(test::weight_types()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace shoal::cpu
