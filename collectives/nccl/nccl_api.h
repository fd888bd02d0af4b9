// The NCCL library is loaded at first use. The declarations below follow NCCL's ABI, which is stable over NCCL 2. The
// build of shoal therefore needs no NCCL header, and only NCCL collectives need the library.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>
#include <type_traits>

namespace shoal::collectives::nccl {

struct Comm;  ///< the struct ncclComm of NCCL
struct UniqueId {
  char bytes[128];
};

enum class Result : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};
enum class DataType : int { kInt8 = 0, kInt32 = 2, kFloat16 = 6, kFloat32 = 7, kBFloat16 = 9 };
enum class RedOp : int { kSum = 0 };

/// ncclConfig_t of NCCL 2.18. Later versions accept this layout, which they identify by `size` and `version`.
struct Config {
  size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = 21800;
  int blocking = 0;  ///< 0: calls return immediately; comm_get_async_error reports progress
  int cga_cluster_size = kUndefined;
  int min_ctas = kUndefined;
  int max_ctas = kUndefined;
  const char* net_name = nullptr;
  int split_share = kUndefined;
  static constexpr int kUndefined = -2147483647 - 1;
};

inline constexpr int kLeastVersion = 21800;

/// Expands F(member of Api, name in NCCL, type) for each function.
#define SHOAL_NCCL_FUNCTIONS(F)                                                                                    \
  F(get_version, "ncclGetVersion", Result(int*))                                                                   \
  F(get_error_string, "ncclGetErrorString", const char*(Result))                                                   \
  F(get_unique_id, "ncclGetUniqueId", Result(UniqueId*))                                                           \
  F(comm_init_rank_config, "ncclCommInitRankConfig", Result(Comm**, int, UniqueId, int, Config*))                  \
  F(comm_finalize, "ncclCommFinalize", Result(Comm*))                                                              \
  F(comm_abort, "ncclCommAbort", Result(Comm*))                                                                    \
  F(comm_get_async_error, "ncclCommGetAsyncError", Result(Comm*, Result*))                                         \
  F(all_reduce, "ncclAllReduce", Result(const void*, void*, size_t, DataType, RedOp, Comm*, cudaStream_t))         \
  F(broadcast, "ncclBroadcast", Result(const void*, void*, size_t, DataType, int, Comm*, cudaStream_t))            \
  F(reduce, "ncclReduce", Result(const void*, void*, size_t, DataType, RedOp, int, Comm*, cudaStream_t))           \
  F(all_gather, "ncclAllGather", Result(const void*, void*, size_t, DataType, Comm*, cudaStream_t))                \
  F(reduce_scatter, "ncclReduceScatter", Result(const void*, void*, size_t, DataType, RedOp, Comm*, cudaStream_t)) \
  F(send, "ncclSend", Result(const void*, size_t, DataType, int, Comm*, cudaStream_t))                             \
  F(recv, "ncclRecv", Result(void*, size_t, DataType, int, Comm*, cudaStream_t))                                   \
  F(group_start, "ncclGroupStart", Result())                                                                       \
  F(group_end, "ncclGroupEnd", Result())

struct Api {
  std::string file;
  int version = 0;
#define SHOAL_MEMBER(member, name, ...) std::add_pointer_t<__VA_ARGS__> member = nullptr;
  SHOAL_NCCL_FUNCTIONS(SHOAL_MEMBER)
#undef SHOAL_MEMBER
};

/// Returns the functions of the NCCL library. SHOAL_NCCL_LIBRARY names this library. The default is libnccl.so.2 in the
/// system's library path. api() loads each library only once. If the library is missing or outdated, or if it lacks a
/// function, api() throws a DeviceError that names the problem and the remedy. Thread-safe.
const Api& api();

/// Returns the version as text, for example "2.28.9".
std::string version_text(int version);

}  // namespace shoal::collectives::nccl
