// Inside the emulator of the CUDA runtime: what its files share. A stream is an OS thread with a queue; whatever is
// asynchronous in CUDA is queued, so that programs which do not wait see it. Captured streams write their operations
// down in a graph instead.
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

/// A point that something reaches once.
class Record {
 public:
  void set();
  void wait() const;
  bool is_set() const { return set_.load(std::memory_order_acquire) != 0; }
  /// When it was set, in nanoseconds.
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

/// A capture that goes on, of one stream; guarded by Runtime::mutex.
struct Capture {
  Nodes nodes;
  std::thread::id thread;  ///< that began it
  bool broken = false;     ///< by a call that cannot be captured
};

class Stream {
 public:
  Stream(int gpu, bool blocking);
  /// Does what is queued first.
  ~Stream();

  int gpu() const { return gpu_; }
  /// Does it wait for the default stream, and that for it?
  bool blocking() const { return blocking_; }
  /// `works`: false tells that what came before is done.
  void push(Operation operation, bool works = true);
  /// Set when all that is queued now is done.
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
  /// With the lock of the queue, which is let go meanwhile.
  void run(Item item, std::unique_lock<std::mutex>& lock);
  /// What comes next and may start early, as far as it is queued.
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
  std::shared_ptr<Record> record;  ///< nullptr: never recorded
};

enum class MemoryKind { kDevice, kPool, kHost };

struct Allocation {
  size_t size;
  int gpu;
  MemoryKind kind;
};

/// Memory that is allocated in the order of streams.
struct Pool {
  size_t used = 0;
  size_t reserved = 0;   ///< `used`, and what was and is kept
  size_t threshold = 0;  ///< of cudaMemPoolAttrReleaseThreshold
  std::set<int> users;   ///< other GPUs that may use its memory
};

struct Gpu {
  size_t used = 0;  ///< the pool's, too
  Pool pool;
  std::set<int> peers;  ///< whose memory it may use
  std::unique_ptr<Stream> default_stream;
  unsigned flags = 0;  ///< of cudaSetDeviceFlags()
};

struct Runtime {
  Runtime();

  std::mutex mutex;
  std::map<uintptr_t, Allocation> memory;  ///< by address
  std::atomic<uint64_t> freed{0};          ///< allocations that are gone
  std::map<int, Gpu> gpus;
  std::map<const void*, int> dynamic_shared;  ///< what kernels were allowed, by cudaFuncSetAttribute
  std::map<const void*, int> carveouts;       ///< percent of a multiprocessor's memory, by the same
  std::set<Event*> events;
  std::set<Graph*> graphs;
  std::set<GraphExec*> execs;
  std::set<Stream*> streams;  ///< not the default ones
};
Runtime& runtime();

int gpu_count();
/// NVIDIA's technical specifications of a compute capability. A block may ask for 1 KiB less than the multiprocessor's
/// shared memory; all have 65,536 registers.
struct Generation {
  int compute_capability;
  size_t shared_bytes, threads, blocks;  ///< of a multiprocessor

  size_t shared_bytes_per_block() const { return shared_bytes - 1024; }
};
/// That of a GPU: SHOAL_EMULATED_SM.
const Generation& generation(int gpu);
/// The calling thread's.
int& current_gpu();
cudaError_t& last_error();

/// What every call does around its own work: writes itself down, fails when a test asked for it, keeps the error.
cudaError_t begin_call(const char* name);
cudaError_t end_call(const char* name, cudaError_t status);
void note_launch(const LaunchSize& size);

template <class Function>
cudaError_t api(const char* name, Function&& function) {
  const cudaError_t asked = begin_call(name);
  return end_call(name, asked != cudaSuccess ? asked : function());
}
/// The same for calls that must not be made while something is captured.
cudaError_t spoil_captures();
template <class Function>
cudaError_t api_outside_capture(const char* name, Function&& function) {
  return api(name, [&] {
    const cudaError_t status = spoil_captures();
    return status != cudaSuccess ? status : function();
  });
}

/// The stream of a handle, the default one of the current GPU for 0; nullptr: no such stream.
Stream* find_stream(cudaStream_t handle);
Stream& default_stream(int gpu);
/// Calls function(stream) for a valid handle.
template <class Function>
cudaError_t with_stream(const char* name, cudaStream_t handle, Function&& function) {
  return api(name, [&] {
    Stream* const stream = find_stream(handle);
    return stream == nullptr ? cudaErrorInvalidResourceHandle : function(*stream);
  });
}

// Graphs and events by their handles; Runtime::mutex is held.
template <class Object, class Handle>
void add(std::set<Object*>& all, std::unique_ptr<Object> object, Handle* handle) {
  all.insert(object.get());
  *handle = reinterpret_cast<Handle>(object.release());
}
/// nullptr: there is none.
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

/// Queues an operation, or adds it to the graph that the stream is part of.
cudaError_t submit(Stream& stream, Operation operation);
/// The same as a capture's next node; Runtime::mutex is held.
cudaError_t add_node(Stream& stream, Operation operation);
bool is_capturing(const Stream& stream);
/// Waits for all streams of a GPU.
void synchronize_gpu(int gpu);

/// Gives back what the GPU's pool keeps but `kept` bytes of it; by default its threshold, as when the host has waited
/// for something of the GPU.
void trim_pool(int gpu, std::optional<size_t> kept = {});

/// The allocation that an address is in.
struct Place {
  bool known = false;  ///< to CUDA: neither memory of a GPU nor pinned
  Allocation allocation{};
  size_t offset = 0;
  bool on_gpu() const {
    return known && (allocation.kind == MemoryKind::kDevice || allocation.kind == MemoryKind::kPool);
  }
  bool pinned() const { return known && !on_gpu(); }
};
Place find_place(const void* address);
/// How many of the `size` bytes from an address on are in its allocation; 0: it is in none. Quick where it was asked
/// for the same allocation before.
size_t allocated_bytes(const void* address, size_t size);
/// An integer in an environment variable.
size_t setting(const char* name, size_t otherwise);

}  // namespace shoal::cuda::emulator
