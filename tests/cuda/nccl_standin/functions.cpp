// The functions of NCCL's API. world.cpp implements the communication.
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string_view>

#include "tests/cuda/nccl_standin/standin.h"
#include "tests/cuda/nccl_standin/world.h"

using namespace shoal::nccl_standin;  // NOLINT: definitions of NCCL's functions
using shoal::collectives::nccl::Comm;
using shoal::collectives::nccl::Config;
using shoal::collectives::nccl::RedOp;
using shoal::collectives::nccl::UniqueId;
using shoal::cuda::emulator::Exported;

namespace {

#ifndef SHOAL_STANDIN_VERSION
#define SHOAL_STANDIN_VERSION 22800
#endif
constexpr int kVersion = SHOAL_STANDIN_VERSION;

/// All ranks and World objects of this process. The registry keeps ended ranks, so that no handle is used twice.
struct Registry {
  std::mutex mutex;
  std::map<Comm*, std::shared_ptr<Comm>> ranks;
  std::vector<std::shared_ptr<Comm>> ended;
  std::map<std::string, std::weak_ptr<World>> worlds;
  int ids = 0;
};
Registry& registry() {
  static Registry& registry = *new Registry;
  return registry;
}

/// Calls function(rank) for the rank of a handle. If a test has injected an error, returns this error instead.
template <class Function>
Result with_rank(const char* name, Comm* handle, Function function) {
  std::shared_ptr<Comm> rank;
  {
    const std::lock_guard lock(registry().mutex);
    const auto found = registry().ranks.find(handle);
    if (found != registry().ranks.end()) rank = found->second;
  }
  if (rank == nullptr) {
    shoal_nccl_standin()->report(std::string(name) + " for an unknown rank");
    return Result::kInvalidArgument;
  }
  const Result asked = shoal_nccl_standin()->begin(name, rank->rank);
  return asked != Result::kSuccess ? asked : function(rank);
}

/// Returns the emulated runtime of the program or plug-in that contains `address`.
const Exported* runtime_of(void* address) {
  Dl_info info{};
  void* object = dladdr(address, &info) != 0 ? dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD) : nullptr;
  void* found = dlsym(object != nullptr ? object : RTLD_DEFAULT, "shoal_emulated_cuda");
  if (object != nullptr) dlclose(object);
  return found != nullptr ? reinterpret_cast<decltype(&shoal_emulated_cuda)>(found)() : nullptr;
}

/// A launch that the calling thread has added to its open group.
struct Entry {
  std::shared_ptr<Comm> rank;
  cudaStream_t stream;
  std::vector<Operation> operations;
};
struct Group {
  int depth = 0;
  std::vector<Entry> entries;
};
thread_local Group t_group;

Result launch(const Entry& entry) {
  entry.rank->start([entry] { return entry.rank->queue(entry.stream, entry.operations); });
  return Result::kInProgress;
}

Result add(const char* name, const std::shared_ptr<Comm>& rank, cudaStream_t stream, const Operation& operation) {
  if (rank->in_progress) {
    shoal_nccl_standin()->report(std::string(name) + " before the previous call completed");
    return Result::kInvalidUsage;
  }
  auto entry = std::find_if(t_group.entries.begin(), t_group.entries.end(),
                            [&](const Entry& known) { return known.rank == rank && known.stream == stream; });
  if (t_group.depth > 0 && entry == t_group.entries.end()) shoal_nccl_standin()->record(rank->rank, "ncclGroupStart");
  std::string text = name + (" count=" + std::to_string(operation.count)) +
                     " type=" + std::to_string(static_cast<int>(operation.type));
  if (operation.kind == Kind::kBroadcast || operation.kind == Kind::kReduce) {
    text += " root=" + std::to_string(operation.root);
  }
  if (operation.kind == Kind::kSend || operation.kind == Kind::kRecv) text += " peer=" + std::to_string(operation.root);
  shoal_nccl_standin()->record(rank->rank, text);
  if (t_group.depth == 0) return launch({rank, stream, {operation}});
  if (entry == t_group.entries.end()) entry = t_group.entries.insert(entry, {rank, stream, {}});
  entry->operations.push_back(operation);
  return Result::kSuccess;
}

Result call(const char* name, Comm* handle, cudaStream_t stream, const Operation& operation) {
  return with_rank(name, handle, [&](const auto& rank) { return add(name, rank, stream, operation); });
}

/// Whether two ranks use the same GPU.
bool is_shared(const std::vector<int>& gpus) {
  return std::set<int>(gpus.begin(), gpus.end()).size() < gpus.size();
}

Result connect(const std::shared_ptr<Comm>& rank, int gpu) {
  const Result result = rank->meet_all(gpu);
  return result == Result::kSuccess && is_shared(rank->world->gpus) ? Result::kInvalidUsage : result;
}

}  // namespace

namespace shoal::nccl_standin {

std::shared_ptr<World> world_of(const std::string& id, int ranks) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  auto world = all.worlds[id].lock();
  if (world == nullptr) all.worlds[id] = world = std::make_shared<World>(id, ranks);
  return world;
}

}  // namespace shoal::nccl_standin

shoal::nccl_standin::Control* shoal_nccl_standin() {
  static Control& control = *new Control;  // never freed, because threads of a stalled rank may run until the process
                                           // ends
  return &control;
}

#define SHOAL_NCCL extern "C" __attribute__((visibility("default")))

SHOAL_NCCL Result ncclGetVersion(int* version) {
  *version = kVersion;
  return shoal_nccl_standin()->begin("ncclGetVersion", -1);
}

SHOAL_NCCL const char* ncclGetErrorString(Result result) {
  static constexpr const char* kTexts[] = {"no error",
                                           "unhandled cuda error",
                                           "unhandled system error",
                                           "internal error",
                                           "invalid argument",
                                           "invalid usage",
                                           "remote process exited or there was a network error",
                                           "NCCL operation in progress"};
  const auto index = static_cast<size_t>(result);
  return index < std::size(kTexts) ? kTexts[index] : "unknown result code";
}

SHOAL_NCCL Result ncclGetUniqueId(UniqueId* id) {
  const Result asked = shoal_nccl_standin()->begin("ncclGetUniqueId", -1);
  if (asked != Result::kSuccess) return asked;
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  *id = {};
  const std::string text = "/dev/shm/shoal-nccl-standin-" + std::to_string(getpid()) + "-" + std::to_string(++all.ids);
  std::memcpy(id->bytes, text.data(), text.size());
  return Result::kSuccess;
}

SHOAL_NCCL Result ncclCommInitRankConfig(Comm** comm, int ranks, UniqueId id, int number, Config* config) {
  const Result asked = shoal_nccl_standin()->begin("ncclCommInitRankConfig", number);
  if (asked != Result::kSuccess) return asked;
  const Exported* cuda = runtime_of(__builtin_return_address(0));
  if (cuda == nullptr || number < 0 || number >= ranks || config->size != sizeof(Config) ||
      config->magic != 0xcafebeef || config->blocking != 0) {
    return Result::kInvalidArgument;
  }
  int gpu = -1;
  if (cuda->get_device(&gpu) != cudaSuccess) return Result::kUnhandledCudaError;
  const auto rank = std::make_shared<Comm>(world_of(std::string(id.bytes, strnlen(id.bytes, sizeof(id.bytes))), ranks),
                                           number, *cuda);
  {
    const std::lock_guard lock(registry().mutex);
    registry().ranks[rank.get()] = rank;
  }
  shoal_nccl_standin()->count_live_ranks(1);
  *comm = rank.get();
  rank->start([rank = rank.get(), gpu] { return connect(rank->shared_from_this(), gpu); });
  return Result::kInProgress;
}

SHOAL_NCCL Result ncclCommFinalize(Comm* comm) {
  return with_rank("ncclCommFinalize", comm, [](const auto& rank) {
    rank->start([rank = rank.get()] { return rank->finalize(); });
    return Result::kInProgress;
  });
}

SHOAL_NCCL Result ncclCommAbort(Comm* comm) {
  return with_rank("ncclCommAbort", comm, [](const auto& rank) {
    rank->end();
    const std::lock_guard lock(registry().mutex);
    registry().ranks.erase(rank.get());
    shoal_nccl_standin()->count_live_ranks(-1);
    registry().ended.push_back(rank);
    return Result::kSuccess;
  });
}

SHOAL_NCCL Result ncclCommGetAsyncError(Comm* comm, Result* state) {
  return with_rank("ncclCommGetAsyncError", comm, [&](const auto& rank) {
    *state = shoal_nccl_standin()->async_error(rank->rank);
    const std::lock_guard lock(rank->world->mutex);
    rank->world->look();
    if (*state == Result::kSuccess && rank->world->is_lost) *state = Result::kRemoteError;
    if (*state == Result::kSuccess) *state = rank->in_progress ? Result::kInProgress : rank->error.load();
    return Result::kSuccess;
  });
}

SHOAL_NCCL Result ncclAllReduce(const void* in, void* out, size_t count, DataType type, RedOp, Comm* comm,
                                cudaStream_t stream) {
  return call("ncclAllReduce", comm, stream, {Kind::kAllReduce, in, out, count, type});
}
SHOAL_NCCL Result ncclBroadcast(const void* in, void* out, size_t count, DataType type, int root, Comm* comm,
                                cudaStream_t stream) {
  return call("ncclBroadcast", comm, stream, {Kind::kBroadcast, in, out, count, type, root});
}
SHOAL_NCCL Result ncclReduce(const void* in, void* out, size_t count, DataType type, RedOp, int root, Comm* comm,
                             cudaStream_t stream) {
  return call("ncclReduce", comm, stream, {Kind::kReduce, in, out, count, type, root});
}
SHOAL_NCCL Result ncclAllGather(const void* in, void* out, size_t count, DataType type, Comm* comm,
                                cudaStream_t stream) {
  return call("ncclAllGather", comm, stream, {Kind::kAllGather, in, out, count, type});
}
#ifndef SHOAL_STANDIN_INCOMPLETE
SHOAL_NCCL Result ncclReduceScatter(const void* in, void* out, size_t count, DataType type, RedOp, Comm* comm,
                                    cudaStream_t stream) {
  return call("ncclReduceScatter", comm, stream, {Kind::kReduceScatter, in, out, count, type});
}
#endif
SHOAL_NCCL Result ncclSend(const void* in, size_t count, DataType type, int peer, Comm* comm, cudaStream_t stream) {
  return call("ncclSend", comm, stream, {Kind::kSend, in, nullptr, count, type, peer});
}
SHOAL_NCCL Result ncclRecv(void* out, size_t count, DataType type, int peer, Comm* comm, cudaStream_t stream) {
  return call("ncclRecv", comm, stream, {Kind::kRecv, nullptr, out, count, type, peer});
}

SHOAL_NCCL Result ncclGroupStart() {
  const Result asked = shoal_nccl_standin()->begin("ncclGroupStart", -1);
  if (asked == Result::kSuccess) ++t_group.depth;
  return asked;
}
SHOAL_NCCL Result ncclGroupEnd() {
  const Result asked = shoal_nccl_standin()->begin("ncclGroupEnd", -1);
  if (t_group.depth == 0) {
    shoal_nccl_standin()->report("ncclGroupEnd without ncclGroupStart");
    return Result::kInvalidUsage;
  }
  if (--t_group.depth > 0) return asked;
  const std::vector<Entry> entries = std::exchange(t_group.entries, {});
  if (asked != Result::kSuccess) return asked;
  Result result = Result::kSuccess;
  for (const Entry& entry : entries) {
    shoal_nccl_standin()->record(entry.rank->rank, "ncclGroupEnd");
    result = launch(entry);
  }
  return result;
}
