// A plug-in with two external ops, in C11:
//
//   example.lerp  x, y f32 of equal shape, args t -> x + t (y - x)
//   example.dot   x f32 [k, n], w f32 [k] -> [n]: the sum over k of x[k, n] w[k]
//
// A meta device splits every axis of lerp. It also splits the axis k of dot: each rank sums its own elements, and one
// all-reduce adds the partial sums. tests/meta/check/ops_plugin_test.cpp checks these rules with check_op().
#include <stdio.h>

#include "graph/external_op_c.h"

#ifdef WITH_CUDA  // ops.cu
void launch_lerp(const shoal_op_node* node, const shoal_op_launch* launch);
void launch_dot(const shoal_op_node* node, const shoal_op_launch* launch);
#endif

static int64_t count(const shoal_op_tensor* tensor) {
  return tensor->shape[0] * tensor->shape[1] * tensor->shape[2] * tensor->shape[3];
}

/* The first element of a part. A part ends at the first element of the next part. */
static int64_t begin_of(int32_t part, int32_t parts, int64_t elements) {
  return elements * part / parts;
}

static int32_t infer_lerp(const shoal_op_node* node, shoal_op_tensor* result, char* error, size_t error_size) {
  float t;
  for (int axis = 0; axis < SHOAL_OP_DIMS; ++axis) {
    if (node->sources[0].shape[axis] == node->sources[1].shape[axis]) continue;
    snprintf(error, error_size, "two sources of equal shape");
    return 1;
  }
  if (node->sources[0].dtype != SHOAL_OP_F32 || node->sources[1].dtype != SHOAL_OP_F32) {
    snprintf(error, error_size, "two f32 sources");
    return 1;
  }
  if (sscanf(node->args, "%f", &t) != 1) {
    snprintf(error, error_size, "args with a number, got '%s'", node->args);
    return 1;
  }
  *result = node->sources[0];
  return 0;
}

static void run_lerp(const shoal_op_node* node, const shoal_op_launch* launch) {
  const float *x = node->sources[0].data, *y = node->sources[1].data;
  float *to = node->result->data, t = 0;
  const int64_t n = count(node->result);
  sscanf(node->args, "%f", &t);
  for (int64_t i = begin_of(launch->part, launch->parts, n); i < begin_of(launch->part + 1, launch->parts, n); ++i) {
    to[i] = x[i] + t * (y[i] - x[i]);
  }
}

static int32_t infer_dot(const shoal_op_node* node, shoal_op_tensor* result, char* error, size_t error_size) {
  const shoal_op_tensor *x = &node->sources[0], *w = &node->sources[1];
  if (x->dtype != SHOAL_OP_F32 || w->dtype != SHOAL_OP_F32 || count(w) != x->shape[0] ||
      count(x) != x->shape[0] * x->shape[1]) {
    snprintf(error, error_size, "x f32 [k, n] and w f32 [k]");
    return 1;
  }
  result->dtype = SHOAL_OP_F32;
  result->shape[0] = x->shape[1];
  result->shape[1] = result->shape[2] = result->shape[3] = 1;
  return 0;
}

/* A rank without elements of k has an empty x, and its sums are 0. */
static void run_dot(const shoal_op_node* node, const shoal_op_launch* launch) {
  const float *x = node->sources[0].data, *w = node->sources[1].data;
  float* to = node->result->data;
  const int64_t k = node->sources[0].shape[0], n = count(node->result);
  for (int64_t i = begin_of(launch->part, launch->parts, n); i < begin_of(launch->part + 1, launch->parts, n); ++i) {
    double sum = 0;
    for (int64_t j = 0; j < k; ++j) sum += (double)x[i * k + j] * w[j];
    to[i] = (float)sum;
  }
}

static const shoal_op_kernel lerp_kernels[] = {
    {.size = sizeof(shoal_op_kernel), .family = "CPU", .run = run_lerp},
#ifdef WITH_CUDA
    {.size = sizeof(shoal_op_kernel), .family = "CUDA", .run = launch_lerp},
#endif
};
static const shoal_op_kernel dot_kernels[] = {
    {.size = sizeof(shoal_op_kernel), .family = "CPU", .run = run_dot},
#ifdef WITH_CUDA
    {.size = sizeof(shoal_op_kernel), .family = "CUDA", .run = launch_dot},
#endif
};

static const shoal_op ops[] = {
    {.size = sizeof(shoal_op),
     .name = "example.lerp",
     .rule = "a b c d, a b c d -> a b c d | linear 0+1",
     .min_sources = 2,
     .max_sources = 2,
     .infer = infer_lerp,
     .kernels = lerp_kernels,
     .kernel_count = sizeof lerp_kernels / sizeof lerp_kernels[0]},
    {.size = sizeof(shoal_op),
     .name = "example.dot",
     .rule = "k n, k -> n | sum k | linear 0 1",
     .min_sources = 2,
     .max_sources = 2,
     .infer = infer_dot,
     .kernels = dot_kernels,
     .kernel_count = sizeof dot_kernels / sizeof dot_kernels[0]},
};

SHOAL_OPS_EXPORT const shoal_ops* shoal_plugin_ops(void);
const shoal_ops* shoal_plugin_ops(void) {
  static const shoal_ops all = {.size = sizeof(shoal_ops),
                                .version = SHOAL_OPS_VERSION,
                                .name = "example-ops",
                                .ops = ops,
                                .op_count = sizeof ops / sizeof ops[0]};
  return &all;
}
