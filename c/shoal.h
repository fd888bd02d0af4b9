/* The C interface of shoal, version 1.0. shoal_devices.h has devices, buffers, tensors, graphs, backends, the
 * scheduler and meta devices. shoal_models.h has models and generation. This header includes both. All three headers
 * are valid C11 and C++20. docs/c_api.md contains complete programs, and a table from ggml-backend.h and llama.h to
 * these functions.
 *
 * Errors. No exception leaves a function. A function that creates or finds an object returns NULL on failure. A
 * function that acts returns a shoal_status. A query returns 0, false, NULL or -1 on failure. shoal_last_error() then
 * has one line with the function, the problem and the remedy. A NULL handle and an unknown enumerator are errors. A
 * pointer to a freed object is not detected.
 *
 * Ownership. The results of *_new, *_parse, *_load, *_init, *_init_by_name, *_allocate, *_save and *_text functions
 * belong to the caller, who calls the *_free function of their type. All *_free functions accept NULL. All other
 * results are borrowed.
 *
 * Structs whose first member is `size` may get more members in later versions. Create them with their SHOAL_..._INIT
 * macro, which sets `size` and the defaults. Members that a caller does not know have their defaults.
 *
 * The C++ headers devices/backend.h, devices/buffer.h, sched/scheduler.h, meta/meta.h and models/session/session.h
 * describe streams, memory, scheduling, sharding and sessions in more detail. */
#ifndef SHOAL_H
#define SHOAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SHOAL_API __attribute__((visibility("default")))
#define SHOAL_VERSION_MAJOR 1
#define SHOAL_VERSION_MINOR 0

/* Handles. Objects marked "any thread" may be used by any number of threads at a time. Only one thread at a time may
 * use another object. An object must be freed before the objects after "needs". */
typedef struct shoal_device shoal_device;           /* any thread; exists until its plug-in is unloaded, or until
                                                     * shoal_meta_device_free() */
typedef struct shoal_buffer_type shoal_buffer_type; /* any thread; exists as long as its device */
typedef struct shoal_buffer shoal_buffer;           /* queries: any thread; needs its device */
typedef struct shoal_weights shoal_weights;         /* owns its tensors, not their memory */
typedef struct shoal_tensor shoal_tensor;       /* exists as long as its weights or its graph; read-only while a graph
                                                 * runs */
typedef struct shoal_graph shoal_graph;         /* needs its weights; must exist while its plans run */
typedef struct shoal_backend shoal_backend;     /* a stream of work; needs its device */
typedef struct shoal_plan shoal_plan;           /* owns the memory of its graph; a run needs graph and backend */
typedef struct shoal_event shoal_event;         /* any thread; needs its device */
typedef struct shoal_scheduler shoal_scheduler; /* needs its backends */
typedef struct shoal_model shoal_model;         /* any thread; needs its devices */
typedef struct shoal_session shoal_session;     /* needs its model */
typedef struct shoal_sampler shoal_sampler;
typedef struct shoal_blob shoal_blob; /* a text or saved state; any thread */

/* Enumerations are int32_t, so that every compiler passes them in the same way. */
typedef int32_t shoal_status;
enum {
  SHOAL_OK = 0,
  SHOAL_INVALID_ARGUMENT = 1, /* the caller passed an unusable value, file or callback result */
  SHOAL_DEVICE_ERROR = 2,     /* a device or the system failed */
  SHOAL_OUT_OF_MEMORY = 3,
  SHOAL_COMM_ERROR = 4,     /* a collective failed */
  SHOAL_ABORTED = 5,        /* a callback stopped the work */
  SHOAL_TOO_SMALL = 6,      /* the caller's array is too small; the required length was stored */
  SHOAL_INTERNAL_ERROR = 7, /* a bug of shoal */
};

/* The numbers of GGUF files, as in enum ggml_type. */
typedef int32_t shoal_dtype;
enum {
  SHOAL_F32 = 0,
  SHOAL_F16 = 1,
  SHOAL_Q4_0 = 2,
  SHOAL_Q4_1 = 3,
  SHOAL_Q5_0 = 6,
  SHOAL_Q5_1 = 7,
  SHOAL_Q8_0 = 8,
  SHOAL_Q2_K = 10,
  SHOAL_Q3_K = 11,
  SHOAL_Q4_K = 12,
  SHOAL_Q5_K = 13,
  SHOAL_Q6_K = 14,
  SHOAL_IQ4_NL = 20,
  SHOAL_IQ4_XS = 23,
  SHOAL_I32 = 26,
  SHOAL_I64 = 27,
  SHOAL_BF16 = 30,
  SHOAL_MXFP4 = 39, /* shoal_dtype_by_name() returns the numbers of all other types */
};

typedef int32_t shoal_role;
enum { SHOAL_ROLE_COMPUTE = 0, SHOAL_ROLE_INPUT = 1, SHOAL_ROLE_WEIGHT = 2, SHOAL_ROLE_CACHE = 3 };

typedef int32_t shoal_usage;
enum { SHOAL_USAGE_ANY = 0, SHOAL_USAGE_WEIGHTS = 1, SHOAL_USAGE_COMPUTE = 2 };

typedef int32_t shoal_device_type;
enum {
  SHOAL_DEVICE_CPU = 0,
  SHOAL_DEVICE_GPU = 1,
  SHOAL_DEVICE_INTEGRATED_GPU = 2,
  SHOAL_DEVICE_ACCELERATOR = 3,
  SHOAL_DEVICE_META = 4,
};

/* ---- Errors, texts, versions ---- */

/* Code and text of the last call of this thread that failed; SHOAL_OK and "" before the first failure. A successful
 * call does not change them. The text is valid until the next failure of this thread. */
SHOAL_API shoal_status shoal_last_status(void);
SHOAL_API const char* shoal_last_error(void);
/* A static text such as "out of memory"; "unknown status" for another number. */
SHOAL_API const char* shoal_status_name(shoal_status status);
/* Version of the loaded library: major * 1000 + minor. */
SHOAL_API uint32_t shoal_version(void);

/* A text or saved state of any length. The data of a text ends with a zero byte, which the size does not count. */
SHOAL_API const void* shoal_blob_data(const shoal_blob* blob);
SHOAL_API size_t shoal_blob_size(const shoal_blob* blob);
SHOAL_API void shoal_blob_free(shoal_blob* blob);

/* Name of a dtype, such as "q4_K"; NULL for an unknown dtype. shoal_dtype_by_name() returns -1 for an unknown name. */
SHOAL_API const char* shoal_dtype_name(shoal_dtype dtype);
SHOAL_API shoal_dtype shoal_dtype_by_name(const char* name);
/* Bytes of `elements` consecutive elements; 0 if they are not whole blocks. */
SHOAL_API size_t shoal_dtype_bytes(shoal_dtype dtype, int64_t elements);

#ifdef __cplusplus
}
#endif

#include <shoal_devices.h>
#include <shoal_models.h>

#endif /* SHOAL_H */
