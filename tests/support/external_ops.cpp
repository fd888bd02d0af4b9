#include "tests/support/external_ops.h"

#include <cstdio>
#include <cstdlib>

namespace shoal::test {
namespace {

int32_t refuse(char* error, size_t error_size, const char* expected) {
  std::snprintf(error, error_size, "%s", expected);
  return 1;
}

int32_t infer_lerp(const shoal_op_node* node, shoal_op_tensor* result, char* error, size_t error_size) {
  const shoal_op_tensor &x = node->sources[0], &y = node->sources[1];
  for (int axis = 0; axis < SHOAL_OP_DIMS; ++axis) {
    if (x.shape[axis] != y.shape[axis]) return refuse(error, error_size, "two sources of equal shape");
  }
  *result = x;
  return 0;
}

void run_lerp(const shoal_op_node* node, const shoal_op_launch* launch) {
  const auto t = static_cast<float>(std::atof(node->args));
  const float *x = floats(node->sources[0]), *y = floats(node->sources[1]);
  const auto [begin, end] = share(*launch, count(*node->result));
  for (int64_t i = begin; i < end; ++i) floats(*node->result)[i] = x[i] + t * (y[i] - x[i]);
}

int32_t infer_dot(const shoal_op_node* node, shoal_op_tensor* result, char* error, size_t error_size) {
  const shoal_op_tensor &x = node->sources[0], &w = node->sources[1];
  if (x.shape[0] != w.shape[0]) return refuse(error, error_size, "k elements in both sources");
  *result = {SHOAL_OP_F32, {x.shape[1], 1, 1, 1}, {}, nullptr};
  return 0;
}

/// The workspace has one partial sum per column.
size_t dot_workspace(const shoal_op_node* node, int32_t) {
  return static_cast<size_t>(node->sources[0].shape[1]) * sizeof(double);
}

void run_dot(const shoal_op_node* node, const shoal_op_launch* launch) {
  const int64_t k = node->sources[0].shape[0];
  auto* sums = static_cast<double*>(launch->workspace);
  const auto [begin, end] = share(*launch, count(*node->result));
  for (int64_t n = begin; n < end; ++n) {
    sums[n] = 0;
    for (int64_t i = 0; i < k; ++i) sums[n] += floats(node->sources[0])[n * k + i] * floats(node->sources[1])[i];
    floats(*node->result)[n] = static_cast<float>(sums[n]);
  }
}

void run_reverse(const shoal_op_node* node, const shoal_op_launch* launch) {
  const int64_t length = node->result->shape[0];
  const auto [begin, end] = share(*launch, count(*node->result));
  for (int64_t i = begin; i < end; ++i) {
    const int64_t row = i / length * length;
    floats(*node->result)[i] = floats(node->sources[0])[row + length - 1 - (i - row)];
  }
}

}  // namespace

int32_t infer_like_first(const shoal_op_node* node, shoal_op_tensor* result, char*, size_t) {
  *result = node->sources[0];
  return 0;
}

int64_t count(const shoal_op_tensor& tensor) {
  return tensor.shape[0] * tensor.shape[1] * tensor.shape[2] * tensor.shape[3];
}
float* floats(const shoal_op_tensor& tensor) {
  return static_cast<float*>(tensor.data);
}
Share share(const shoal_op_launch& launch, int64_t elements) {
  return {elements * launch.part / launch.parts, elements * (launch.part + 1) / launch.parts};
}

void register_test_ops() {
  static const bool once = [] {
    OpOfTest lerp("test.lerp", "a b c d, a b c d -> a b c d | linear 0+1", 2, infer_lerp, run_lerp);
    OpOfTest dot("test.dot", "k n, k -> n | sum k | linear 0 1", 2, infer_dot, run_dot);
    OpOfTest reverse("test.reverse", nullptr, 1, infer_like_first, run_reverse);
    dot.kernel.workspace = dot_workspace;
    for (const OpOfTest* one : {&lerp, &dot, &reverse}) register_op(one->op);
    return true;
  }();
  static_cast<void>(once);
}

}  // namespace shoal::test
