// Internals of the emulated CUDA runtime, shared by its files. A stream is an OS thread with a queue. Every call that
// may be asynchronous in CUDA adds an operation to this queue, so tests detect missing waits. If the stream is
// captured, the call adds the operation to a graph.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "tests/cuda/emulator/sequence.h"
#include "tests/cuda/emulator/workers.h"

namespace shoal::cuda::emulator {

/// A flag that is set once, such as a recorded event.
class Record {
 public:
  void set();
  void wait() const;
  bool is_set() const { return set_.load(std::memory_order_acquire) != 0; }
  /// Time of set(), in nanoseconds.
  uint64_t time() const { return time_; }

 private:
  std::atomic<int> set_{0};
  uint64_t time_ = 0;
};

using Nodes = std::vector<Operation>;
struct Graph {
  Nodes nodes;
};
struct GraphExec {
  std::shared_ptr<const Nodes> nodes;
};

/// A running capture of one stream; guarded by Runtime::mutex.
struct Capture {
  Nodes nodes;
  std::thread::id thread;  ///< the thread that began the capture
  bool broken = false;     ///< whether the stream received a call that cannot be captured
};

class Stream {
 public:
  Stream(int gpu, bool blocking);
  /// Finishes the queued work before destruction.
  ~Stream();

  int gpu() const { return gpu_; }
  /// Whether the stream and the default stream wait for each other.
  bool blocking() const { return blocking_; }
  /// `works` is false for an operation that does not make the stream busy, such as kEventRecord.
  void push(Operation operation, bool works = true);
  /// Returns a record that is set when all queued work is done.
  std::shared_ptr<Record> record();
  void wait_for(std::shared_ptr<Record> record);
  void synchronize();
  bool idle();

  std::unique_ptr<Capture> capture;  ///< guarded by Runtime::mutex

 private:
  struct Item {
    Operation operation;
    bool works;
  };

  void serve();
  /// `lock` is the lock of the queue, which the caller holds. The function releases the lock while the operation runs.
  void run(Item item, std::unique_lock<std::mutex>& lock);
  /// Returns the queued operations that directly follow `operation` and may start early.
  std::vector<const Operation*> early_ones(std::unique_lock<std::mutex>& lock, const Operation& operation);

  const int gpu_;
  const bool blocking_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> queue_;
  bool busy_ = false;
  bool ends_ = false;
  Workers workers_;
  Sequence sequence_{workers_};
  std::thread thread_;
};

/// Guarded by Runtime::mutex.
struct Event {
  int gpu = 0;
  std::shared_ptr<Record> record;  ///< nullptr before the first record
};

enum class MemoryKind { kDevice, kPool, kHost };

struct Allocation {
  size_t size;
  int gpu;
  MemoryKind kind;
};

/// Memory that is allocated in stream order.
struct Pool {
  size_t used = 0;
  size_t reserved = 0;   ///< `used` plus freed memory that the pool keeps
  size_t threshold = 0;  ///< cudaMemPoolAttrReleaseThreshold
  std::set<int> users;   ///< other GPUs that may access the pool's memory
};

struct Gpu {
  size_t used = 0;  ///< includes the pool's memory
  Pool pool;
  std::set<int> peers;  ///< GPUs whose memory this GPU may access
  std::unique_ptr<Stream> default_stream;
  unsigned flags = 0;  ///< flags of cudaSetDeviceFlags()
};

struct Runtime {
  Runtime();

  std::mutex mutex;
  std::map<uintptr_t, Allocation> memory;  ///< the key is the start address
  std::atomic<uint64_t> freed{0};          ///< number of freed allocations
  std::map<int, Gpu> gpus;
  std::map<const void*, int> dynamic_shared;  ///< bytes of each kernel, set by cudaFuncSetAttribute()
  std::map<const void*, int> carveouts;       ///< carveout per kernel in percent, set by cudaFuncSetAttribute()
  std::set<Event*> events;
  std::set<Graph*> graphs;
  std::set<GraphExec*> execs;
  std::set<Stream*> streams;  ///< all streams except the default streams
};
Runtime& runtime();

int gpu_count();
/// A row of NVIDIA's table "Technical Specifications per Compute Capability". A block may use all shared memory of a
/// multiprocessor except 1 KiB. All generations have 65,536 registers.
struct Generation {
  int compute_capability;
  size_t shared_bytes, threads, blocks;  ///< limits per multiprocessor

  size_t shared_bytes_per_block() const { return shared_bytes - 1024; }
};
/// The generation of a GPU (SHOAL_EMULATED_SM).
const Generation& generation(int gpu);
/// Each thread has its own current GPU and its own last error.
int& current_gpu();
cudaError_t& last_error();

/// Every call of the API starts with begin_call() and ends with end_call(). These functions record the call, inject
/// faults and store the last error.
cudaError_t begin_call(const char* name);
cudaError_t end_call(const char* name, cudaError_t status);
void note_launch(const LaunchSize& size);

template <class Function>
cudaError_t api(const char* name, Function&& function) {
  const cudaError_t asked = begin_call(name);
  return end_call(name, asked != cudaSuccess ? asked : function());
}
/// Breaks the running captures that the calling thread began. Returns an error if such a capture exists.
/// api_outside_capture() is for calls that are not allowed during a capture.
cudaError_t spoil_captures();
template <class Function>
cudaError_t api_outside_capture(const char* name, Function&& function) {
  return api(name, [&] {
    const cudaError_t status = spoil_captures();
    return status != cudaSuccess ? status : function();
  });
}

/// Returns the stream of a handle, or nullptr for an unknown handle. Handle 0 is the default stream of the current GPU.
Stream* find_stream(cudaStream_t handle);
Stream& default_stream(int gpu);
/// Calls function(stream) if the handle is valid.
template <class Function>
cudaError_t with_stream(const char* name, cudaStream_t handle, Function&& function) {
  return api(name, [&] {
    Stream* const stream = find_stream(handle);
    return stream == nullptr ? cudaErrorInvalidResourceHandle : function(*stream);
  });
}

// Functions on sets of graphs or events. A handle identifies an object. The caller of add() and find() holds
// Runtime::mutex.
template <class Object, class Handle>
void add(std::set<Object*>& all, std::unique_ptr<Object> object, Handle* handle) {
  all.insert(object.get());
  *handle = reinterpret_cast<Handle>(object.release());
}
/// Returns nullptr for an unknown handle.
template <class Object, class Handle>
Object* find(const std::set<Object*>& all, Handle handle) {
  const auto found = all.find(reinterpret_cast<Object*>(handle));
  return found == all.end() ? nullptr : *found;
}
template <class Object, class Handle>
cudaError_t destroy(std::set<Object*>& all, Handle handle, cudaError_t otherwise) {
  const std::lock_guard lock(runtime().mutex);
  const std::unique_ptr<Object> object(find(all, handle));
  return all.erase(object.get()) == 0 ? otherwise : cudaSuccess;
}

/// Queues an operation, or adds it to the running capture of the stream.
cudaError_t submit(Stream& stream, Operation operation);
/// Adds a node to the running capture. The caller holds Runtime::mutex.
cudaError_t add_node(Stream& stream, Operation operation);
bool is_capturing(const Stream& stream);
/// Waits for all streams of a GPU.
void synchronize_gpu(int gpu);

/// Frees unused memory of the GPU's pool until the pool reserves at most `kept` bytes. If `kept` is absent, the limit
/// is the pool's threshold. The runtime calls this function without `kept` after the host has waited for the GPU.
void trim_pool(int gpu, std::optional<size_t> kept = {});

/// The allocation that contains an address.
struct Place {
  bool known = false;  ///< false for pageable memory
  Allocation allocation{};
  size_t offset = 0;
  bool on_gpu() const {
    return known && (allocation.kind == MemoryKind::kDevice || allocation.kind == MemoryKind::kPool);
  }
  bool pinned() const { return known && !on_gpu(); }
};
Place find_place(const void* address);
/// Number of bytes in [address, address + size) that belong to the allocation of `address`; 0 if there is no
/// allocation. Repeated calls for one allocation are fast.
size_t allocated_bytes(const void* address, size_t size);
/// The value of an integer environment variable, or `otherwise` if the variable is not set.
size_t setting(const char* name, size_t otherwise);

}  // namespace shoal::cuda::emulator
