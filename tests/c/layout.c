// The layout of the public structs on 64-bit systems. A new member is added at the end. All other changes break
// programs that were compiled with an earlier version.
#include "tests/c/check.h"

#define SIZE(type, bytes) _Static_assert(sizeof(type) == (bytes), #type)
#define AT(type, member, bytes) _Static_assert(offsetof(type, member) == (bytes), #type "." #member)

#if UINTPTR_MAX == UINT64_MAX
SIZE(shoal_device_props, 64);
AT(shoal_device_props, family, 24);
AT(shoal_device_props, type, 40);
AT(shoal_device_props, events, 47);
AT(shoal_device_props, memory_total, 56);
SIZE(shoal_run, 16);
SIZE(shoal_split_state, 48);
AT(shoal_split_state, axis, 8);
AT(shoal_split_state, runs, 20);
AT(shoal_split_state, run, 32);
AT(shoal_split_state, ratio, 40);
SIZE(shoal_meta_options, 48);
AT(shoal_meta_options, communicator, 24);
AT(shoal_meta_options, constraints, 32);
SIZE(shoal_scheduler_options, 24);
AT(shoal_scheduler_options, no_op_offload, 16);
SIZE(shoal_model_options, 64);
AT(shoal_model_options, ratio, 16);
AT(shoal_model_options, no_repacking, 42);
AT(shoal_model_options, user, 56);
SIZE(shoal_model_info, 80);
AT(shoal_model_info, weight_elements, 72);
SIZE(shoal_session_options, 64);
AT(shoal_session_options, type_v, 28);
AT(shoal_session_options, no_op_offload, 56);
SIZE(shoal_candidate, 8);
SIZE(shoal_logit_bias, 8);
SIZE(shoal_sampler_options, 64);
AT(shoal_sampler_options, seed, 24);
AT(shoal_sampler_options, bias_count, 56);
#endif
