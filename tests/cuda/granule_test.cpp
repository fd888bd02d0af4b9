// Tests of devices/cuda/granule.h. Kernels read rows of quantised weights as whole vectors, even if a tensor ends
// inside of a vector. Therefore, buffers end with a whole vector. On the emulator, only asynchronous copies may read
// beyond the end of a tensor.
#include <gmock/gmock.h>

#include <cstring>

#include "devices/cuda/granule.h"
#include "devices/cuda/kernels/platform.h"
#include "tests/cuda/cuda_mesh.h"
#include "tests/cuda/device_memory.h"
#include "tests/cuda/emulator/emulator.h"
#include "tests/cuda/products.h"

namespace shoal::cuda {
namespace {

using test::CudaArray;
using test::CudaMesh;
using test::CudaStream;

__global__ void copy_vector(const std::byte* in, uint8_t* out) {
  __shared__ uint4 value;
  copy_async_16(&value, in);
  copy_async_commit();
  copy_async_wait<0>();
  std::memcpy(out, &value, 16);
}

void run_copy(const std::byte* in, uint8_t* out) {
  const CudaStream stream;
  launch(stream, copy_vector, dim3(1), dim3(1), 0, in, out);
  stream.synchronize();
}

TEST(Granule, CopiesMayReadPartlyAllocatedVectors) {
  const CudaArray<std::byte> in(std::vector<std::byte>(33, std::byte{7}));
  const CudaArray<uint8_t> out(16);
  emulator::take_copies_over_edges();
  run_copy(in.data() + 16, out.data());
  EXPECT_EQ(emulator::take_copies_over_edges(), 0u);
  EXPECT_THAT(out.get(), testing::Each(7));
  run_copy(in.data() + 32, out.data());
  EXPECT_EQ(emulator::take_copies_over_edges(), 1u);
  const std::vector<uint8_t> got = out.get();
  EXPECT_EQ(got[0], 7);
  for (size_t i = 1; i < got.size(); ++i) EXPECT_EQ(got[i], 0xFF) << "undefined byte " << i;
}

TEST(GranuleDeathTest, CopiesOutsideOfAllocationsAbort) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const CudaArray<uint8_t> out(16);
  const auto read = [&](size_t at) {
    const CudaArray<std::byte> in(std::vector<std::byte>(32, std::byte{7}));
    run_copy(in.data() + at, out.data());
  };
  EXPECT_DEATH(read(32), "copies 16 bytes from .*, none of which is in a CUDA allocation");
}

class RowsAtAnEdge : public ::testing::TestWithParam<DType> {};

/// Each weight has five rows with an odd number of blocks. The last byte of the weight is at the beginning or in the
/// middle of a vector.
TEST_P(RowsAtAnEdge, ProductsReadPartialLastVectorAsWholeVector) {
  const int64_t k = traits(GetParam()).block_elems * (traits(GetParam()).block_elems == 256 ? 3 : 13);
  for (const int64_t columns : {1, 3, 20}) {
    SCOPED_TRACE(columns);
    ASSERT_NE(bytes_for(GetParam(), 5 * k) % kGranule, 0u);
    emulator::take_copies_over_edges();
    const auto build = test::product(GetParam(), {k, 5, 1, 1}, {k, columns, 1, 1});
    test::check_case({Op::kMulMat, "rows at an edge", build, {1e-4}}, 5);
    EXPECT_GT(emulator::take_copies_over_edges(), 0u);
  }
}

/// Returns the quantised types whose block size is not a multiple of kGranule (16 bytes).
std::vector<DType> types_with_rows_at_odd_places() {
  std::vector<DType> types = test::weight_types();
  std::erase_if(types, [](DType t) { return !traits(t).is_quantized || traits(t).block_bytes % kGranule == 0; });
  return types;
}

INSTANTIATE_TEST_SUITE_P(Blocks, RowsAtAnEdge, ::testing::ValuesIn(types_with_rows_at_odd_places()),
                         [](const auto& info) { return std::string(traits(info.param).name); });

TEST(Granule, BuffersEndWithWholeVectors) {
  CudaMesh mesh(1, 2);
  for (Device* device : mesh.devices()) {
    for (BufferType* type : {&device->buffer_type(), device->host_buffer_type()}) {
      ASSERT_NE(type, nullptr);
      for (const size_t size : {1, 34, 48}) {
        const auto buffer = type->allocate(size);
        const size_t whole = whole_granules(size);
        EXPECT_EQ(buffer->size(), size);
        EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->base()) % kGranule, 0u);
        EXPECT_EQ(cudaMemset(buffer->base(), 0, whole), cudaSuccess) << type->name() << ", " << size << " bytes";
        EXPECT_EQ(cudaMemset(buffer->base(), 0, whole + 1), cudaErrorInvalidValue);
        EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess) << "the destructor of the buffer does not wait for the memset";
        cudaGetLastError();
      }
    }
    EXPECT_FALSE(device->props().caps.buffer_from_host_ptr) << "memory of the caller need not end with a whole vector";
  }
}

TEST(Granule, BuffersOfRetriedAllocationsEndWithWholeVectors) {
  CudaMesh mesh(1);
  emulator::fail_call("cudaMallocAsync", 1, cudaErrorMemoryAllocation);
  const auto buffer = mesh.devices()[0]->buffer_type().allocate(34);
  EXPECT_EQ(cudaMemset(buffer->base(), 0, whole_granules(34)), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  emulator::clear_faults();
}

}  // namespace
}  // namespace shoal::cuda
