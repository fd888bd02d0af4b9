// The C interface of external ops: ops that a program or a plug-in adds to shoal (graph/external_op.h). This header is
// valid C11 and C++20, and includes no other header of shoal.
//
// An external op computes one contiguous result from 0 to 16 sources. The op has a name, shape inference, an optional
// sharding rule (grammar: meta/rules/rule.h) and one kernel per family of devices. A kernel never changes its sources.
// Without a rule, a meta device gathers the sources, and every rank computes the whole result.
//
//   static int32_t infer(const shoal_op_node* node, shoal_op_tensor* result, char* error, size_t error_size) {
//     *result = node->sources[0];  // dtype and shape of the result
//     return 0;
//   }
//   static void run(const shoal_op_node* node, const shoal_op_launch* launch) { ... }
//   static const shoal_op_kernel kernels[] = {{.size = sizeof(shoal_op_kernel), .family = "CPU", .run = run}};
//   static const shoal_op gain = {.size = sizeof(shoal_op), .name = "gain", .rule = "a b c d, a -> a b c d",
//                                 .min_sources = 2, .max_sources = 2, .infer = infer,
//                                 .kernels = kernels, .kernel_count = 1};
//
// Versions: the first member of a struct that may grow is its size in bytes. New members are added at the end. shoal
// treats members behind the given size as 0. Functions must not read members behind `size`. shoal_op_tensor never
// grows.
//
// Functions must not throw C++ exceptions. All functions may be called by several threads at the same time.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
  SHOAL_OP_DIMS = 4,
  SHOAL_OP_MAX_SOURCES = 16,
  SHOAL_OPS_VERSION = 1, /* version of this interface */
};

/* Dtypes have their numbers in GGUF files. These numbers are the dtypes that a result may have. */
enum shoal_op_dtype {
  SHOAL_OP_F32 = 0,
  SHOAL_OP_F16 = 1,
  SHOAL_OP_I32 = 26,
  SHOAL_OP_I64 = 27,
  SHOAL_OP_BF16 = 30,
};

/* shape[0] is the innermost axis. strides[0] is the number of bytes of an element (of a block in quantised dtypes), and
   strides[i] the number of bytes from one index of axis i to the next. */
typedef struct shoal_op_tensor {
  int32_t dtype;
  int64_t shape[SHOAL_OP_DIMS];
  int64_t strides[SHOAL_OP_DIMS];
  void* data; /* NULL if the tensor has no memory yet; device memory for kernels of GPUs */
} shoal_op_tensor;

typedef struct shoal_op_node {
  size_t size;
  const char* op;
  const char* name;               /* name of the node, for messages */
  const char* args;               /* text of the node, whose format the op defines; "" if there is none */
  const shoal_op_tensor* sources; /* contiguous, unless shoal_op::strided is set; lengths may be 0 */
  int32_t source_count;
  const shoal_op_tensor* result; /* contiguous; NULL during shape inference */
} shoal_op_node;

typedef struct shoal_op_launch {
  size_t size;
  int32_t part, parts; /* this call computes part `part` of `parts` parts of the result; on GPUs 0 of 1 */
  void* workspace;     /* memory of the node, shared by all parts, aligned to 64 bytes; NULL if the kernel has none */
  void* stream;        /* the cudaStream_t of a CUDA device; NULL on CPU devices */
} shoal_op_launch;

typedef struct shoal_op_kernel {
  size_t size;
  const char* family; /* name of the family of devices: "CPU", "CUDA", or the family of a plug-in */
  /* Computes the result. A CPU kernel computes one part, and must write every element of the result in exactly one
     part. The value of an element must not depend on the number of parts. A part never waits for another part. A CUDA
     kernel queues its work on the stream and returns. It neither waits nor allocates, because the stream may be
     captured into a CUDA graph. Kernels are not called for empty results. */
  void (*run)(const shoal_op_node* node, const shoal_op_launch* launch);
  /* Bytes of workspace for at most `parts` parts. NULL: no workspace. */
  size_t (*workspace)(const shoal_op_node* node, int32_t parts);
  /* Whether the kernel can compute the node: 1 or 0. NULL: always. */
  int32_t (*supports)(const shoal_op_node* node);
} shoal_op_kernel;

typedef struct shoal_op {
  size_t size;
  const char* name; /* [A-Za-z0-9_.-]+, unique in the process */
  const char* rule; /* sharding rule; NULL: the op has no rule, unless make_rule is set */
  int32_t min_sources, max_sources;
  int32_t strided; /* 1: the kernels read sources with any strides. 0: shoal copies sources that are not contiguous */
  /* Sets dtype and shape of `result`, whose lengths are 1 before the call. Returns 0, or 1 after writing the expected
     property of the sources to `error`: "sources of equal shape". A meta device also calls this function with the shapes
     of shards. */
  int32_t (*infer)(const shoal_op_node* node, shoal_op_tensor* result, char* error, size_t error_size);
  /* Writes the rule of a node to `rule`, for ops whose rule depends on shapes or args. Returns 0, or 1 if the node has
     no rule. The rule may depend only on dtypes, shapes and args. NULL: the rule is the member `rule`. */
  int32_t (*make_rule)(const shoal_op_node* node, char* rule, size_t rule_size);
  const shoal_op_kernel* kernels; /* one kernel per family */
  size_t kernel_count;
} shoal_op;

/* A plug-in with external ops exports the function shoal_plugin_ops(). The plug-in may also provide devices
   (devices/plugin.h). All pointers stay valid while the plug-in is loaded. */
typedef struct shoal_ops {
  size_t size;
  uint32_t version;    /* SHOAL_OPS_VERSION */
  const char* name;    /* name of the plug-in, for Registry::unload(); unique among plug-ins and families */
  const shoal_op* ops; /* elements are ops[0].size bytes apart */
  size_t op_count;
} shoal_ops;

#ifdef __cplusplus
#define SHOAL_OPS_EXPORT extern "C" __attribute__((visibility("default")))
#else
#define SHOAL_OPS_EXPORT __attribute__((visibility("default")))
#endif

/* SHOAL_OPS_EXPORT const shoal_ops* shoal_plugin_ops(void) { ... } */
typedef const shoal_ops* (*shoal_plugin_ops_function)(void);

#ifdef __cplusplus
}
#endif
