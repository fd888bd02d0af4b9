// CUDA for the compiler of the host. devices/cuda/kernels/platform.h includes this file if SHOAL_CUDA_EMULATED is
// defined. The toolkit's headers define types, streams and conversions. block.h and warp.h define threads, barriers and
// warps. Other files of this folder define the other intrinsics. docs/cuda_emulator.md lists the differences from a
// GPU.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <math.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <source_location>
#include <tuple>
#include <type_traits>
#include <utility>

// A __shared__ variable can be thread_local, because each running block has its own OS thread.
#undef __shared__
#define __shared__ static thread_local
#undef __launch_bounds__
#define __launch_bounds__(...)

#include "tests/cuda/emulator/atomics.h"
#include "tests/cuda/emulator/block.h"
#include "tests/cuda/emulator/fast_math.h"
#include "tests/cuda/emulator/integers.h"
#include "tests/cuda/emulator/warp.h"
#include "tests/cuda/emulator/weak_memory.h"

#define threadIdx (::shoal::cuda::emulator::g_thread->index)
#define blockIdx (::shoal::cuda::emulator::block_index())
#define blockDim (::shoal::cuda::emulator::launch_size().block)
#define gridDim (::shoal::cuda::emulator::launch_size().grid)

/// Shared memory whose size is a parameter of the launch: `SHOAL_DYNAMIC_SHARED(float, values);` declares float*
/// values.
#define SHOAL_DYNAMIC_SHARED(type, name) \
  type* const name = static_cast<type*>(::shoal::cuda::emulator::g_runner->dynamic_shared())

namespace shoal::cuda {
namespace emulator {

inline uint3 block_index() {
  return g_runner->block_index();
}
inline const LaunchSize& launch_size() {
  return g_runner->size();
}

/// The stream and the source line of a launch.
struct LaunchPlace {
  cudaStream_t stream;
  std::source_location where;
  bool may_be_early = true;
  /// Constructs an object from any type that converts to a stream.
  template <class Stream>
  requires std::is_convertible_v<const Stream&, cudaStream_t>
  // NOLINTNEXTLINE(google-explicit-constructor)
  LaunchPlace(const Stream& on, std::source_location at = std::source_location::current()) : stream(on), where(at) {}
  /// Constructs an object from a LaunchContext.
  template <class Context>
  requires requires(const Context& context) { context.gpu; }
  // NOLINTNEXTLINE(google-explicit-constructor)
  LaunchPlace(const Context& on, std::source_location at = std::source_location::current())
      : stream(on.stream), where(at), may_be_early(!on.gpu.off.early) {}
};

/// Queues a kernel on a stream, or adds the kernel to the capture of the stream. cudaGetLastError() returns the error
/// of a failed launch.
void launch_kernel(cudaStream_t stream, const LaunchSize& size, const void* function, std::function<void()> kernel);

uint64_t now_ns();
/// Aborts if the address is misaligned. A GPU stops the kernel at a misaligned address.
void check_aligned(const void* address, size_t alignment);
void copy_16(void* shared, const void* global, bool valid);
void commit_copies();
void wait_for_copies(unsigned pending_groups);

}  // namespace emulator

inline uint32_t load_acquire(const uint32_t* address) {
  return emulator::load_acquire(address);
}
inline void store_release(uint32_t* address, uint32_t value) {
  emulator::store_release(address, value);
}
inline void store_pair(void* address, uint64_t first, uint64_t second) {
  emulator::check_aligned(address, 16);
  emulator::store_word(static_cast<uint64_t*>(address), first);
  emulator::store_word(static_cast<uint64_t*>(address) + 1, second);
}
inline void load_pair(const void* address, uint64_t& first, uint64_t& second) {
  emulator::check_aligned(address, 16);
  first = emulator::load_word(static_cast<const uint64_t*>(address));
  second = emulator::load_word(static_cast<const uint64_t*>(address) + 1);
}
inline void spin_pause() {
  emulator::g_runner->spin();
}
inline uint64_t now_ns() {
  return emulator::now_ns();
}

template <class T>
T kept(T value) {
  static_assert(sizeof(T) == 4 || std::is_pointer_v<T>);
  return value;
}
inline int dot_unsigned(uint32_t a, int b, int sum) {
  for (int i = 0; i < 4; ++i) sum += emulator::part<uint8_t>(a, i) * emulator::part<int8_t>(b, i);
  return sum;
}
class SharedPlace {
 public:
  explicit SharedPlace(void* shared) : at_(static_cast<char*>(shared)) {}
  SharedPlace operator+(int bytes) const { return SharedPlace(at_ + bytes); }
  void* address() const { return at_; }

 private:
  char* at_;
};

inline void copy_async_16(SharedPlace shared, const void* global) {
  emulator::copy_16(shared.address(), global, true);
}
inline void copy_async_16(void* shared, const void* global) {
  copy_async_16(SharedPlace(shared), global);
}
inline void copy_async_16(void* shared, const void* global, bool valid) {
  emulator::copy_16(shared, global, valid);
}
inline void copy_async_commit() {
  emulator::commit_copies();
}
template <int kPending>
inline void copy_async_wait() {
  static_assert(kPending >= 0);
  emulator::wait_for_copies(kPending);
}

inline void wait_for_previous(const std::source_location& where = std::source_location::current()) {
  emulator::g_runner->wait_for_previous(where);
}
inline void let_next_start() {
  emulator::g_runner->let_next_start();
}

void prepare_kernel(const void* kernel, size_t shared_bytes);
inline constexpr size_t kPlainSharedBytes = 32 * 1024;

enum class Start : bool { kAfterPrevious, kEarly };

template <class... Parameters, class... Arguments>
void launch_at(Start start, emulator::LaunchPlace place, void (*kernel)(Parameters...), dim3 grid, dim3 block,
               size_t shared_bytes, Arguments&&... arguments) {
  static_assert((!std::is_reference_v<Parameters> && ...), "parameters of kernels are passed by value");
  static_assert((std::is_trivially_copyable_v<Parameters> && ...), "parameters of kernels are copied as bytes");
  static_assert((sizeof(Parameters) + ... + 0) <= 4096, "GPUs take at most 4096 bytes of parameters");
  const auto* const function = reinterpret_cast<const void*>(kernel);
  if (start == Start::kEarly || shared_bytes > kPlainSharedBytes) prepare_kernel(function, shared_bytes);
  emulator::launch_kernel(
      place.stream, emulator::LaunchSize{grid, block, shared_bytes, place.where, start == Start::kEarly}, function,
      [kernel, values = std::tuple<Parameters...>(std::forward<Arguments>(arguments)...)] {
        std::apply(kernel, values);
      });
}
template <class... Parameters, class... Arguments>
void launch(emulator::LaunchPlace place, void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
            Arguments&&... arguments) {
  launch_at(Start::kAfterPrevious, place, kernel, grid, block, shared_bytes, std::forward<Arguments>(arguments)...);
}
template <class... Parameters, class... Arguments>
void launch_early(emulator::LaunchPlace place, void (*kernel)(Parameters...), dim3 grid, dim3 block,
                  size_t shared_bytes, Arguments&&... arguments) {
  const Start start = place.may_be_early ? Start::kEarly : Start::kAfterPrevious;
  launch_at(start, place, kernel, grid, block, shared_bytes, std::forward<Arguments>(arguments)...);
}

}  // namespace shoal::cuda
