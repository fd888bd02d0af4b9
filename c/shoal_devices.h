/* First part of the C interface: devices, buffers, tensors, graphs, backends, meta devices and the scheduler. shoal.h
 * has the rules for errors, ownership and threads. Programs include shoal.h. */
#ifndef SHOAL_DEVICES_H
#define SHOAL_DEVICES_H

#include <shoal.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Devices and plug-ins ---- */

/* Sets the number and properties of the CPU devices: "devices=2,threads=1". Call it before the first use of a CPU
 * device. cpu::configure() in devices/cpu/cpu_device.h lists all keys. */
SHOAL_API shoal_status shoal_cpu_configure(const char* params);

/* Loads one plug-in; every plug-in of a directory; or every plug-in of SHOAL_PLUGIN_PATH, of the program's directories
 * and of the directory `shoal` next to libshoal.so (docs/plugins.md). The last two functions skip unusable files. */
SHOAL_API shoal_status shoal_plugin_load(const char* file);
SHOAL_API shoal_status shoal_plugin_load_from(const char* directory);
SHOAL_API shoal_status shoal_plugin_load_all(void);
/* Unloads the plug-in of a family, such as "CUDA". All objects of its devices must have been freed. */
SHOAL_API shoal_status shoal_plugin_unload(const char* family);

SHOAL_API size_t shoal_family_count(void);
SHOAL_API const char* shoal_family_name(size_t index);

SHOAL_API size_t shoal_device_count(void);
SHOAL_API shoal_device* shoal_device_get(size_t index);
SHOAL_API shoal_device* shoal_device_by_name(const char* name);
SHOAL_API shoal_device* shoal_device_by_type(shoal_device_type type);
SHOAL_API shoal_device* shoal_device_best(void);

typedef struct shoal_device_props {
  size_t size;
  const char* name;
  const char* description;
  const char* family;
  const char* device_id; /* PCI address, or "" */
  shoal_device_type type;
  bool async, host_buffer, buffer_from_host_ptr, events;
  size_t memory_free, memory_total;
} shoal_device_props;
#define SHOAL_DEVICE_PROPS_INIT \
  { .size = sizeof(shoal_device_props) }

SHOAL_API const char* shoal_device_name(const shoal_device* device);
SHOAL_API shoal_status shoal_device_get_props(const shoal_device* device, shoal_device_props* props);
/* Build options and features, one "name = value" per line. */
SHOAL_API shoal_blob* shoal_device_features_text(const shoal_device* device);
SHOAL_API bool shoal_device_supports_op(const shoal_device* device, const shoal_tensor* node);
SHOAL_API bool shoal_device_supports_buffer_type(const shoal_device* device, const shoal_buffer_type* type);
SHOAL_API bool shoal_device_offload_op(const shoal_device* device, const shoal_tensor* node);

/* ---- Buffers ---- */

/* The default memory of a device; the memory in which its kernels read weights fastest; pinned host memory. The last
 * function returns NULL if the device has no pinned memory. */
SHOAL_API shoal_buffer_type* shoal_device_buffer_type(shoal_device* device);
SHOAL_API shoal_buffer_type* shoal_device_weights_type(shoal_device* device);
SHOAL_API shoal_buffer_type* shoal_device_host_type(shoal_device* device);

SHOAL_API const char* shoal_buffer_type_name(const shoal_buffer_type* type);
SHOAL_API shoal_device* shoal_buffer_type_device(const shoal_buffer_type* type);
SHOAL_API size_t shoal_buffer_type_alignment(const shoal_buffer_type* type);
SHOAL_API size_t shoal_buffer_type_max_size(const shoal_buffer_type* type);
SHOAL_API size_t shoal_buffer_type_alloc_size(const shoal_buffer_type* type, const shoal_tensor* tensor);
SHOAL_API bool shoal_buffer_type_is_host(const shoal_buffer_type* type);

/* Freeing a buffer removes the memory of its tensors. Free a buffer before the meta device of its type. */
SHOAL_API shoal_buffer* shoal_buffer_new(shoal_buffer_type* type, size_t bytes);
/* Wraps host memory without a copy. The memory must exist until the buffer is freed. */
SHOAL_API shoal_buffer* shoal_buffer_from_host_new(shoal_device* device, void* data, size_t bytes);
SHOAL_API void shoal_buffer_free(shoal_buffer* buffer);
SHOAL_API shoal_buffer_type* shoal_buffer_get_type(const shoal_buffer* buffer);
SHOAL_API size_t shoal_buffer_size(const shoal_buffer* buffer);
SHOAL_API void* shoal_buffer_base(const shoal_buffer* buffer);
SHOAL_API shoal_usage shoal_buffer_usage(const shoal_buffer* buffer);
SHOAL_API shoal_status shoal_buffer_set_usage(shoal_buffer* buffer, shoal_usage usage);
SHOAL_API shoal_status shoal_buffer_clear(shoal_buffer* buffer, uint8_t value);
/* Removes the memory of all tensors in the buffer. */
SHOAL_API shoal_status shoal_buffer_reset(shoal_buffer* buffer);
/* Places a tensor without memory at an aligned offset. */
SHOAL_API shoal_status shoal_buffer_place(shoal_buffer* buffer, shoal_tensor* tensor, size_t offset);

/* ---- Tensors ---- */

/* Weights and caches, which outlive the graphs that use them. */
SHOAL_API shoal_weights* shoal_weights_new(void);
SHOAL_API void shoal_weights_free(shoal_weights* weights);
/* `role` is SHOAL_ROLE_WEIGHT or SHOAL_ROLE_CACHE. shape[0] is the innermost axis; there are 1 to 4 axes. */
SHOAL_API shoal_tensor* shoal_weights_add(shoal_weights* weights, const char* name, shoal_dtype dtype, size_t axes,
                                          const int64_t* shape, shoal_role role);
SHOAL_API size_t shoal_weights_count(const shoal_weights* weights);
SHOAL_API shoal_tensor* shoal_weights_get(const shoal_weights* weights, size_t index);
SHOAL_API shoal_tensor* shoal_weights_find(const shoal_weights* weights, const char* name);
/* Allocates memory for all tensors without memory. A meta device asks its callback for their split states. It is an
 * error if no tensor needs memory. */
SHOAL_API shoal_buffer* shoal_weights_allocate(shoal_weights* weights, shoal_buffer_type* type, shoal_usage usage);

SHOAL_API const char* shoal_tensor_name(const shoal_tensor* tensor);
SHOAL_API shoal_dtype shoal_tensor_dtype(const shoal_tensor* tensor);
SHOAL_API shoal_role shoal_tensor_role(const shoal_tensor* tensor);
SHOAL_API const char* shoal_tensor_op(const shoal_tensor* tensor); /* "mul_mat"; "none" for a leaf */
/* Stores the 4 lengths. */
SHOAL_API shoal_status shoal_tensor_shape(const shoal_tensor* tensor, int64_t shape[4]);
SHOAL_API int64_t shoal_tensor_elements(const shoal_tensor* tensor);
SHOAL_API size_t shoal_tensor_bytes(const shoal_tensor* tensor);
/* Number of sources, and one source; NULL for an absent optional source. */
SHOAL_API size_t shoal_tensor_source_count(const shoal_tensor* tensor);
SHOAL_API shoal_tensor* shoal_tensor_source(const shoal_tensor* tensor, size_t index);
/* NULL if the tensor has no memory. The host may dereference the address only if the buffer is in host memory. */
SHOAL_API shoal_buffer_type* shoal_tensor_buffer_type(const shoal_tensor* tensor);
SHOAL_API void* shoal_tensor_data(const shoal_tensor* tensor);

/* Blocking access. Offsets count bytes as in a contiguous tensor, also if devices have shards of the tensor. */
SHOAL_API shoal_status shoal_tensor_set(shoal_tensor* tensor, const void* data, size_t offset, size_t bytes);
SHOAL_API shoal_status shoal_tensor_get(const shoal_tensor* tensor, void* data, size_t offset, size_t bytes);
SHOAL_API shoal_status shoal_tensor_fill(shoal_tensor* tensor, uint8_t value, size_t offset, size_t bytes);
/* Accesses `rows` rows of `bytes` bytes. Rows start `tensor_stride` bytes apart in the tensor and `host_stride` bytes
 * apart in host memory. */
SHOAL_API shoal_status shoal_tensor_set_2d(shoal_tensor* tensor, const void* data, size_t offset, size_t bytes,
                                           size_t rows, size_t tensor_stride, size_t host_stride);
SHOAL_API shoal_status shoal_tensor_get_2d(const shoal_tensor* tensor, void* data, size_t offset, size_t bytes,
                                           size_t rows, size_t tensor_stride, size_t host_stride);
/* Copies all bytes. Both tensors must have the same dtype and shape. */
SHOAL_API shoal_status shoal_tensor_copy(const shoal_tensor* from, shoal_tensor* to);

/* ---- Graphs ---- */

SHOAL_API shoal_graph* shoal_graph_new(const char* name);
/* Parses the text form of graph/text.h. Weights and caches of the text are added to `weights`. */
SHOAL_API shoal_graph* shoal_graph_parse(const char* name, const char* text, shoal_weights* weights);
SHOAL_API void shoal_graph_free(shoal_graph* graph);
SHOAL_API shoal_tensor* shoal_graph_input(shoal_graph* graph, const char* name, shoal_dtype dtype, size_t axes,
                                          const int64_t* shape);
/* Appends a node. `op` and `params` have the text form of graph/text.h: "rope", "{dims=32, mode=halves}".
 * graph/ops/ops.h describes all ops, and graph/ops/params.h their parameters. A source may be NULL if it is optional.
 * `params` and `name` may be NULL: default parameters, and a name such as "mul_mat_3". */
SHOAL_API shoal_tensor* shoal_graph_node(shoal_graph* graph, const char* op, shoal_tensor* const* sources,
                                         size_t source_count, const char* params, const char* name);
/* Keeps the value of the tensor until the caller has read it. */
SHOAL_API shoal_status shoal_graph_output(shoal_graph* graph, shoal_tensor* tensor);
/* Inputs in the order of their creation, and nodes in the order of execution. */
SHOAL_API size_t shoal_graph_input_count(const shoal_graph* graph);
SHOAL_API shoal_tensor* shoal_graph_get_input(const shoal_graph* graph, size_t index);
SHOAL_API size_t shoal_graph_node_count(const shoal_graph* graph);
SHOAL_API shoal_tensor* shoal_graph_get_node(const shoal_graph* graph, size_t index);
SHOAL_API shoal_tensor* shoal_graph_find(const shoal_graph* graph, const char* name);
SHOAL_API shoal_blob* shoal_graph_text(const shoal_graph* graph);

/* ---- External ops ---- */

/* Adds an op to shoal. The include file shoal/graph/external_op_c.h defines shoal_op, and docs/external_ops.md
 * describes it. The library copies the struct and its texts. A node of the op has the op "external" and the parameter
 * op="NAME". An op with a node in an existing graph cannot be unregistered. */
struct shoal_op;
SHOAL_API shoal_status shoal_op_register(const struct shoal_op* op);
SHOAL_API shoal_status shoal_op_unregister(const char* name);
/* Checks shape inference, the CPU kernel and the sharding rule of a registered op with example graphs, each with one
 * node of the op. The text has one line for each finding, or starts with "op 'NAME' is correct". A note follows if
 * the op has no rule. */
SHOAL_API shoal_blob* shoal_op_check_text(const char* name, const char* const* graphs, size_t graph_count);

/* ---- Backends: streams of work ---- */

/* `params` is text such as "threads=4", or NULL. A backend by name also accepts "CPU0:threads=4" and "best". */
SHOAL_API shoal_backend* shoal_backend_init(shoal_device* device, const char* params);
SHOAL_API shoal_backend* shoal_backend_init_by_name(const char* name);
SHOAL_API void shoal_backend_free(shoal_backend* backend);
SHOAL_API const char* shoal_backend_name(const shoal_backend* backend);
SHOAL_API shoal_device* shoal_backend_device(const shoal_backend* backend);
SHOAL_API shoal_status shoal_backend_set_threads(shoal_backend* backend, int threads);
/* A thread of the device calls `abort` before each node. The result true stops the run. NULL removes the callback. */
typedef bool (*shoal_abort_callback)(void* user);
SHOAL_API shoal_status shoal_backend_set_abort_callback(shoal_backend* backend, shoal_abort_callback abort, void* user);
/* Waits for queued work and returns its first failure. */
SHOAL_API shoal_status shoal_backend_synchronize(shoal_backend* backend);

/* Compiles a graph for the backend and allocates the memory of its inputs and nodes. The graph must exist while the
 * plan runs. A free of the plan removes the memory. */
SHOAL_API shoal_plan* shoal_plan_new(shoal_backend* backend, shoal_graph* graph);
SHOAL_API void shoal_plan_free(shoal_plan* plan);
SHOAL_API size_t shoal_plan_bytes(const shoal_plan* plan);
/* The plan of a meta device as text or as JSON: layouts, steps, memory. An error for other devices. */
SHOAL_API shoal_blob* shoal_plan_text(const shoal_plan* plan);
SHOAL_API shoal_blob* shoal_plan_json_text(const shoal_plan* plan);
/* The first function runs the plan and waits. The second function queues a run. */
SHOAL_API shoal_status shoal_plan_compute(shoal_plan* plan);
SHOAL_API shoal_status shoal_plan_compute_async(shoal_plan* plan);
/* Like the plan functions, with a plan that the backend caches. */
SHOAL_API shoal_status shoal_graph_compute(shoal_backend* backend, shoal_graph* graph);
SHOAL_API shoal_status shoal_graph_compute_async(shoal_backend* backend, shoal_graph* graph);

/* Access in stream order. Host memory must stay valid until shoal_backend_synchronize(). */
SHOAL_API shoal_status shoal_tensor_set_async(shoal_backend* backend, shoal_tensor* tensor, const void* data,
                                              size_t offset, size_t bytes);
SHOAL_API shoal_status shoal_tensor_get_async(shoal_backend* backend, const shoal_tensor* tensor, void* data,
                                              size_t offset, size_t bytes);
SHOAL_API shoal_status shoal_tensor_copy_async(shoal_backend* from_backend, shoal_backend* to_backend,
                                               const shoal_tensor* from, shoal_tensor* to);

/* Events order streams. shoal_event_new() fails for a device without events. */
SHOAL_API shoal_event* shoal_event_new(shoal_device* device);
SHOAL_API void shoal_event_free(shoal_event* event);
SHOAL_API shoal_status shoal_event_record(shoal_event* event, shoal_backend* backend);
SHOAL_API shoal_status shoal_event_wait(shoal_event* event, shoal_backend* backend);
SHOAL_API shoal_status shoal_event_synchronize(shoal_event* event);

/* Runs the graph on both backends, node by node, and passes each node with its value on both backends to the callback.
 * The second backend runs a copy of the graph and of its weights. inputs[i] has the bytes of input i. The result false
 * stops the comparison with SHOAL_ABORTED. The bytes are valid during the callback. */
typedef bool (*shoal_compare_callback)(const shoal_tensor* node, const void* first, const void* second, size_t bytes,
                                       void* user);
SHOAL_API shoal_status shoal_backend_compare(shoal_backend* first, shoal_backend* second, shoal_graph* graph,
                                             const void* const* inputs, shoal_compare_callback callback, void* user);

/* ---- Meta devices ---- */

/* Axes of a split state. Other numbers are errors. */
enum {
  SHOAL_AXIS_0 = 0,
  SHOAL_AXIS_1 = 1,
  SHOAL_AXIS_2 = 2,
  SHOAL_AXIS_3 = 3,
  SHOAL_AXIS_MIRRORED = 4, /* all devices have all elements */
  SHOAL_AXIS_PARTIAL = 5,  /* each device has an addend */
};
#define SHOAL_MAX_SEGMENTS 64
#define SHOAL_MAX_RUNS 1024

/* `length` elements that all devices of the bit mask `owners` store. */
typedef struct shoal_run {
  int64_t length;
  uint64_t owners;
} shoal_run;

/* The layout of a tensor on `devices` devices. The library sets all members before it calls the callback: mirrored, no
 * segments, no runs. The arrays belong to the library. A split along an axis uses segments, runs, or else the ratio:
 *   a [4, 6] weight, 3 and 3 rows on 2 devices:     axis 1, segments 1, lengths {3, 3}
 *   fused Q|K|V of 4 + 2 + 2 rows, even:            axis 1, segments 3, lengths {2, 2, 1, 1, 1, 1}
 *   2 KV heads that 4 devices share:                axis 1, runs 2, run {32, 3}, {32, 12} */
typedef struct shoal_split_state {
  size_t size;
  int32_t axis;
  uint32_t devices;
  uint32_t segments;
  uint32_t runs;
  int64_t* lengths; /* lengths[segment * devices + device], SHOAL_MAX_SEGMENTS * devices elements */
  shoal_run* run;   /* SHOAL_MAX_RUNS elements */
  double* ratio;    /* `devices` numbers, all 1 at first; used without segments and runs: divides the axis by ratio */
} shoal_split_state;

/* Returns the split state of a weight or cache when memory for it is allocated or planned. Any result except SHOAL_OK
 * makes the allocation fail with this status. The callback may call functions for tensors. */
typedef shoal_status (*shoal_split_callback)(const shoal_tensor* tensor, shoal_split_state* state, void* user);

/* Returns the layout of an input or node when a graph is planned, or when a cached plan is used. Also called for
 * weights and caches. A constraint for one of them is an error, because the split-state callback defines its layout. */
typedef int32_t shoal_constraint;
enum {
  SHOAL_CONSTRAINT_NONE = 0,     /* shoal chooses the layout; the value before the call */
  SHOAL_CONSTRAINT_REQUIRED = 1, /* the plan has this layout, or planning fails with both sides of a conflict */
  SHOAL_CONSTRAINT_HINT = 2,     /* the plan prefers this layout */
};
typedef shoal_status (*shoal_constraint_callback)(const shoal_tensor* tensor, shoal_split_state* state,
                                                  shoal_constraint* constraint, void* user);

typedef struct shoal_meta_options {
  size_t size;
  const char* member_params;             /* parameters of each member's backend, such as "threads=2"; NULL: defaults */
  double comm_timeout;                   /* seconds for which a device waits in a collective; 0: default */
  const char* communicator;              /* "auto", "host", "p2p", "nccl" or "staged"; NULL: default */
  shoal_constraint_callback constraints; /* layouts of inputs and nodes; NULL: shoal chooses all of them */
  void* constraints_user;                /* for `constraints` */
} shoal_meta_options;
#define SHOAL_META_OPTIONS_INIT \
  { .size = sizeof(shoal_meta_options) }

/* `callback` and `user` must stay valid until the device is freed. `options` may be NULL. The device supports all
 * functions for devices. Free its backends, plans and buffers before the device. */
SHOAL_API shoal_device* shoal_meta_device_new(shoal_device* const* devices, size_t device_count,
                                              shoal_split_callback callback, void* user,
                                              const shoal_meta_options* options);
/* Accepts devices of shoal_meta_device_new() and NULL. Any other device is an error. */
SHOAL_API shoal_status shoal_meta_device_free(shoal_device* device);
SHOAL_API size_t shoal_meta_device_member_count(const shoal_device* device);
SHOAL_API shoal_device* shoal_meta_device_member(const shoal_device* device, size_t rank);
/* The shard of a tensor of a meta device on one rank. Its bytes may be read and written. */
SHOAL_API shoal_tensor* shoal_tensor_shard(const shoal_tensor* tensor, size_t rank);
/* The layout of a tensor of a meta device: "split 1 [3:{0} 2:{1} 1:{2}]". */
SHOAL_API shoal_blob* shoal_tensor_layout_text(const shoal_tensor* tensor);

/* ---- The scheduler: one graph on several backends ---- */

typedef struct shoal_scheduler_options {
  size_t size;
  int32_t copies;      /* runs in flight between two backends; default 1 */
  uint32_t kept_plans; /* number of graphs whose plans are cached; default 16 */
  bool no_op_offload;  /* devices do not copy weights from host memory for large batches */
} shoal_scheduler_options;
#define SHOAL_SCHEDULER_OPTIONS_INIT \
  { .size = sizeof(shoal_scheduler_options), .copies = 1, .kept_plans = 16 }

/* Backends in order of priority. The last backend should support all ops. The backends must outlive the scheduler. */
SHOAL_API shoal_scheduler* shoal_scheduler_new(shoal_backend* const* backends, size_t backend_count,
                                               const shoal_scheduler_options* options);
SHOAL_API void shoal_scheduler_free(shoal_scheduler* scheduler);
SHOAL_API shoal_status shoal_scheduler_reserve(shoal_scheduler* scheduler, shoal_graph* graph);
/* Plans the graph and allocates its inputs and nodes. */
SHOAL_API shoal_status shoal_scheduler_allocate(shoal_scheduler* scheduler, shoal_graph* graph);
SHOAL_API shoal_status shoal_scheduler_compute(shoal_scheduler* scheduler, shoal_graph* graph);
SHOAL_API shoal_status shoal_scheduler_compute_async(shoal_scheduler* scheduler, shoal_graph* graph);
SHOAL_API shoal_status shoal_scheduler_get_async(shoal_scheduler* scheduler, const shoal_tensor* tensor, void* data,
                                                 size_t offset, size_t bytes);
SHOAL_API shoal_status shoal_scheduler_synchronize(shoal_scheduler* scheduler);
SHOAL_API shoal_status shoal_scheduler_reset(shoal_scheduler* scheduler);
/* Sets the backend of a node; NULL: the scheduler chooses. */
SHOAL_API shoal_status shoal_scheduler_set_backend(shoal_scheduler* scheduler, const shoal_tensor* node,
                                                   const shoal_backend* backend);
SHOAL_API shoal_backend* shoal_scheduler_backend_of(const shoal_scheduler* scheduler, const shoal_tensor* node);
SHOAL_API size_t shoal_scheduler_backend_count(const shoal_scheduler* scheduler);
SHOAL_API shoal_backend* shoal_scheduler_backend(const shoal_scheduler* scheduler, size_t index);
SHOAL_API shoal_buffer_type* shoal_scheduler_buffer_type(const shoal_scheduler* scheduler, size_t index);
SHOAL_API size_t shoal_scheduler_buffer_size(const shoal_scheduler* scheduler, size_t index);
/* Splits and copies of the latest graph. */
SHOAL_API size_t shoal_scheduler_splits(const shoal_scheduler* scheduler);
SHOAL_API size_t shoal_scheduler_copies(const shoal_scheduler* scheduler);
/* The schedule of a graph: backends, splits, copies. Does not allocate memory. */
SHOAL_API shoal_blob* shoal_scheduler_schedule_text(const shoal_scheduler* scheduler, const shoal_graph* graph);
/* With `ask`, the callback selects nodes to observe. Without `ask`, it receives an observed node after its computation;
 * the result false stops the run with SHOAL_ABORTED. NULL removes the callback. */
typedef bool (*shoal_eval_callback)(const shoal_tensor* node, bool ask, void* user);
SHOAL_API shoal_status shoal_scheduler_set_eval_callback(shoal_scheduler* scheduler, shoal_eval_callback callback,
                                                         void* user);

#ifdef __cplusplus
}
#endif

#endif /* SHOAL_DEVICES_H */
