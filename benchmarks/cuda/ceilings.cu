// Measures two upper limits of this GPU: the rate of copies within its memory, and the rate of bf16 matrix products in
// cuBLAS. scripts/gpu_check compares the rates of `shoal bench` with these limits.
//
//   cuda_ceilings [FILE OF libcublas.so.13]
//
// Without the argument, SHOAL_CUBLAS_LIBRARY names the file. If this variable is not set, the dynamic loader searches
// for the library. The program prints one JSON object. If a limit cannot be measured, its value is null, and a second
// key gives the reason.
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <library_types.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

constexpr int kRuns = 15;
constexpr size_t kMostCopied = size_t{4} << 30;   // maximum number of copied bytes
constexpr size_t kLeastCopied = size_t{2} << 30;  // minimum number; a smaller copy would measure the cache
constexpr int kMatrix = 8192;

void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(status));
}

class Memory {
 public:
  explicit Memory(size_t bytes) { check(cudaMalloc(&memory_, bytes), "allocate"); }
  ~Memory() { cudaFree(memory_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  void* get() const { return memory_; }

 private:
  void* memory_ = nullptr;
};

/// Median seconds of `work` on the default stream.
double median_seconds(const std::function<void()>& work) {
  cudaEvent_t begin{}, end{};
  check(cudaEventCreate(&begin), "create an event");
  check(cudaEventCreate(&end), "create an event");
  std::vector<float> times;
  for (int run = 0; run < kRuns + 3; ++run) {
    check(cudaEventRecord(begin), "record");
    work();
    check(cudaEventRecord(end), "record");
    check(cudaEventSynchronize(end), "wait");
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin, end), "read the time");
    if (run >= 3) times.push_back(milliseconds);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  std::nth_element(times.begin(), times.begin() + kRuns / 2, times.end());
  return times[kRuns / 2] / 1e3;
}

/// Writes numbers with the magnitude of activations. If all numbers were zero, the GPU would use less power and run at
/// higher clock rates.
__global__ void fill(__nv_bfloat16* values, size_t count, uint32_t seed) {
  const size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
  for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    uint32_t bits = static_cast<uint32_t>(i) * 2654435761u + seed;
    bits = (bits ^ (bits >> 15)) * 2246822519u;
    bits = (bits ^ (bits >> 13)) * 3266489917u;
    bits ^= bits >> 16;
    values[i] = __float2bfloat16(static_cast<float>(bits) * (2.0f / 4294967296.0f) - 1.0f);
  }
}

void fill_all(const Memory& memory, size_t bytes, uint32_t seed) {
  fill<<<1024, 256>>>(static_cast<__nv_bfloat16*>(memory.get()), bytes / sizeof(__nv_bfloat16), seed);
  check(cudaGetLastError(), "fill");
}

size_t copied_bytes() {
  size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "read the free memory");
  const size_t bytes = std::min(kMostCopied, free / 5 * 2 / 256 * 256);
  if (bytes < kLeastCopied) throw std::runtime_error("less than 5 GiB of GPU memory are free");
  return bytes;
}

std::string measure_copy() {
  const size_t bytes = copied_bytes();
  const Memory from(bytes), to(bytes);
  fill_all(from, bytes, 1);
  const double seconds =
      median_seconds([&] { check(cudaMemcpyAsync(to.get(), from.get(), bytes, cudaMemcpyDeviceToDevice), "copy"); });
  char text[200];
  std::snprintf(text, sizeof(text), R"({"bytes": %zu, "seconds": %.9f, "bytes_per_second": %.6g})", bytes, seconds,
                2.0 * static_cast<double>(bytes) / seconds);
  return text;
}

/// Loads cuBLAS at run time and provides the functions that this program needs. The constants are copies from
/// cublas_api.h, so the build does not need the cuBLAS headers.
class Cublas {
 public:
  explicit Cublas(const std::string& file) : library_(dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (library_ == nullptr) throw std::runtime_error(dlerror());
    using Create = int (*)(void**);
    const auto create = reinterpret_cast<Create>(dlsym(library_, "cublasCreate_v2"));
    multiply_ = reinterpret_cast<Multiply>(dlsym(library_, "cublasGemmEx"));
    if (create == nullptr || multiply_ == nullptr) throw std::runtime_error(file + ": no cuBLAS; use libcublas.so.13");
    check_cublas(create(&handle_), "cublasCreate");
  }

  /// C = A^T B for n x n matrices in bf16. Sums are f32.
  void multiply(int n, const void* a, const void* b, void* c) const {
    const float one = 1.0f, zero = 0.0f;
    check_cublas(multiply_(handle_, kTransposed, kAsIs, n, n, n, &one, a, CUDA_R_16BF, n, b, CUDA_R_16BF, n, &zero, c,
                           CUDA_R_16BF, n, kCompute32f, kDefaultAlgorithm),
                 "cublasGemmEx");
  }

 private:
  using Multiply = int (*)(void*, int, int, int, int, int, const void*, const void*, cudaDataType, int, const void*,
                           cudaDataType, int, const void*, void*, cudaDataType, int, int, int);
  static constexpr int kAsIs = 0, kTransposed = 1, kCompute32f = 68, kDefaultAlgorithm = -1;

  static void check_cublas(int status, const char* what) {
    if (status != 0) throw std::runtime_error(std::string(what) + " failed with status " + std::to_string(status));
  }

  void* library_;  // never closed, because cuBLAS cannot be unloaded
  Multiply multiply_ = nullptr;
  void* handle_ = nullptr;
};

/// Checks one element of the matrix product.
void verify_product(const Memory& a, const Memory& b, const Memory& c) {
  std::vector<__nv_bfloat16> row(kMatrix), column(kMatrix);
  __nv_bfloat16 found{};
  check(cudaMemcpy(row.data(), a.get(), kMatrix * sizeof(row[0]), cudaMemcpyDeviceToHost), "copy");
  check(cudaMemcpy(column.data(), b.get(), kMatrix * sizeof(row[0]), cudaMemcpyDeviceToHost), "copy");
  check(cudaMemcpy(&found, c.get(), sizeof(found), cudaMemcpyDeviceToHost), "copy");
  double sum = 0.0, size = 0.0;
  for (int i = 0; i < kMatrix; ++i) {
    const double product = static_cast<double>(__bfloat162float(row[i])) * __bfloat162float(column[i]);
    sum += product;
    size += std::abs(product);
  }
  if (!(std::abs(sum - __bfloat162float(found)) <= 0.01 * std::abs(sum) + 1e-5 * size)) {
    throw std::runtime_error("the product is wrong: " + std::to_string(__bfloat162float(found)) + " instead of " +
                             std::to_string(sum));
  }
}

std::string measure_product(const std::string& file) {
  const Cublas cublas(file);
  const size_t bytes = static_cast<size_t>(kMatrix) * kMatrix * sizeof(__nv_bfloat16);
  const Memory a(bytes), b(bytes), c(bytes);
  fill_all(a, bytes, 2);
  fill_all(b, bytes, 3);
  const double seconds = median_seconds([&] { cublas.multiply(kMatrix, a.get(), b.get(), c.get()); });
  verify_product(a, b, c);
  char text[200];
  std::snprintf(text, sizeof(text), R"({"size": %d, "seconds": %.9f, "flops_per_second": %.6g})", kMatrix, seconds,
                2.0 * kMatrix * kMatrix * kMatrix / seconds);
  return text;
}

/// The text as a JSON string.
std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out + "\"";
}

/// Prints `"name": result`, or `"name": null, "no_name": reason`. Returns whether the measurement succeeded.
bool print_part(const char* name, const std::function<std::string()>& measure) {
  try {
    std::printf("\"%s\": %s", name, measure().c_str());
    return true;
  } catch (const std::exception& error) {
    std::printf("\"%s\": null, \"no_%s\": %s", name, name, quoted(error.what()).c_str());
    return false;
  }
}

std::string cublas_file(int argc, char** argv) {
  if (argc > 1) return argv[1];
  const char* named = std::getenv("SHOAL_CUBLAS_LIBRARY");
  return named != nullptr && *named != '\0' ? named : "libcublas.so.13";
}

}  // namespace

int main(int argc, char** argv) {
  std::printf("{");
  const bool copied = print_part("copy", measure_copy);
  std::printf(", ");
  print_part("bf16", [&] { return measure_product(cublas_file(argc, argv)); });
  std::printf("}\n");
  return copied ? 0 : 1;
}
