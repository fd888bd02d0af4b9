#include <fmt/format.h>

#include <array>
#include <cstring>
#include <limits>
#include <list>

#include "tests/cuda/emulator/runtime.h"
#include "tests/cuda/emulator/shoal_cuda_emulator.h"
#include "tests/cuda/emulator/shoal_cuda_emulator_wgmma.h"
#include "tests/cuda/emulator/tensor_sum.h"

namespace shoal::cuda::emulator {
namespace {

constexpr uint32_t kReserved = 1024;  // bytes at the start of shared memory that do not belong to the kernel
constexpr int kDepth = 16;            // size of one product along k, in elements

[[noreturn]] void die(const std::string& message) {
  g_runner->die(*g_thread, message);
}

/// The fields of a matrix descriptor. `address`, `leading` and `stride` are in bytes.
struct Descriptor {
  uint32_t address, leading, stride, base_offset, swizzle;

  explicit Descriptor(uint64_t bits)
      : address(field(bits)),
        leading(field(bits >> 16)),
        stride(field(bits >> 32)),
        base_offset(static_cast<uint32_t>(bits >> 49 & 7)),
        swizzle(static_cast<uint32_t>(bits >> 62)) {}

  /// Returns the address of 16-byte chunk `chunk` of row `row`. The PTX manual has a figure of this layout for K-major
  /// operands.
  uint32_t address_of(uint32_t row, uint32_t chunk) const {
    const uint32_t group = address + row / 8 * stride;
    if (swizzle == 0) return group + row % 8 * 16 + chunk * leading;
    if (base_offset != 0) die("uses an operand with a base offset, which is not emulated");
    const uint32_t row_bytes = 256u >> swizzle;  // 128, 64 or 32 bytes
    const uint32_t plain = group + row % 8 * row_bytes + chunk * 16;
    return plain ^ (plain >> 7 & ((16u >> swizzle) - 1)) << 4;
  }

 private:
  static uint32_t field(uint64_t bits) { return static_cast<uint32_t>(bits & 0x3fff) * 16; }
};

using Row = std::array<uint16_t, kDepth>;

Row fetch(const Descriptor& descriptor, int row) {
  Row elements;
  for (uint32_t chunk = 0; chunk < 2; ++chunk) {
    const uint32_t address = descriptor.address_of(static_cast<uint32_t>(row), chunk);
    if (address < kReserved || address - kReserved + 16 > g_runner->size().shared_bytes) {
      die(fmt::format("multiplies shared memory at {:#x}, which is outside of the block's shared memory", address));
    }
    std::memcpy(elements.data() + chunk * 8,
                static_cast<const std::byte*>(g_runner->dynamic_shared()) + (address - kReserved), 16);
  }
  return elements;
}

/// The operands of a warpgroup: 64 rows of `a` (16 rows per warp) and all columns of `b`.
struct Operands {
  std::vector<Row> a, b;
  bool operator==(const Operands&) const = default;
};

struct Product {
  ProductOf elements;
  int columns;
  int first_row;  ///< first of the 16 rows of `a` that this warp multiplies
  Descriptor a, b;
  unsigned group;
  Operands first_seen = {};
  std::array<float*, 32> sums = {};
  /// The saved sums of all lanes while the registers of the lanes hold NaN. The vector is empty while an earlier
  /// product still holds these sums.
  std::vector<float> before = {};

  size_t sum_count() const { return static_cast<size_t>(columns) / 2; }
  Operands operands() const {
    Operands operands;
    for (int row = 0; row < 64; ++row) operands.a.push_back(fetch(a, row));
    for (int column = 0; column < columns; ++column) operands.b.push_back(fetch(b, column));
    return operands;
  }
  /// Moves the lanes' sums to `before` and sets the lanes' registers to NaN.
  void take_sums() {
    for (float* const lane : sums) {
      before.insert(before.end(), lane, lane + sum_count());
      std::fill_n(lane, sum_count(), std::numeric_limits<float>::quiet_NaN());
    }
  }
  void finish() const {
    if (operands() != first_seen)
      die("changed shared memory that a product was reading, or started a product with incomplete operands");
    const auto decode = [&](const Row& row) {
      std::array<float, kDepth> values;
      for (size_t i = 0; i < kDepth; ++i) {
        values[i] = elements == ProductOf::kHalves ? f16_to_float(row[i]) : bf16_to_float(row[i]);
      }
      return values;
    };
    std::array<std::array<float, kDepth>, 16> a_values;
    for (size_t row = 0; row < 16; ++row) a_values[row] = decode(first_seen.a[static_cast<size_t>(first_row) + row]);
    for (size_t column = 0; column < first_seen.b.size(); ++column) {
      const auto b_values = decode(first_seen.b[column]);
      for (size_t row = 0; row < 16; ++row) {
        const size_t lane = row % 8 * 4 + column % 8 / 2, i = column / 8 * 4 + row / 8 * 2 + column % 2;
        sums[lane][i] = sum_of(before[lane * sum_count() + i], a_values[row], b_values);
      }
    }
  }
};

/// The argument of one lane when a product begins.
struct Begin {
  ProductOf elements;
  float* sums;
  int sum_count;
  uint64_t a, b;
};

}  // namespace

/// The incomplete products of one warp.
struct WarpProducts {
  std::list<Product> pending;
  unsigned groups = 0;  ///< number of committed groups
  bool fenced = false;  ///< whether wgmma_fence() was called for the open group
  ~WarpProducts() {
    if (!pending.empty()) die("ends while products of its warp are in flight");
  }
};

namespace {

WarpProducts& products_of_warp(uint32_t present) {
  if (present != 0xffffffff) {
    die(fmt::format("executes a warpgroup product with only lanes {:#x} present", present));
  }
  std::shared_ptr<WarpProducts>& products = g_thread->warp->products;
  if (products == nullptr) products = std::make_shared<WarpProducts>();
  return *products;
}

void meet(void* argument, Meeting::Compute compute, const char* name, const std::source_location& where) {
  g_runner->meet_lanes(0xffffffff, argument, compute, name, where);
}

void begin(const std::array<void*, 32>& lanes, uint32_t present) {
  WarpProducts& products = products_of_warp(present);
  const int capability = generation(g_runner->gpu()).compute_capability;
  if (capability != 90) die(fmt::format("uses a warpgroup instruction, which sm_{} lacks", capability));
  if (!products.fenced) die("begins a group of products without wgmma_fence()");
  const Begin& first = *static_cast<const Begin*>(lanes[0]);
  const int warp = static_cast<int>(g_thread->index.x / 32 % 4);
  Product product{first.elements,      2 * first.sum_count, 16 * warp,
                  Descriptor(first.a), Descriptor(first.b), products.groups};
  for (size_t lane = 0; lane < 32; ++lane) {
    const Begin& own = *static_cast<const Begin*>(lanes[lane]);
    if (own.a != first.a || own.b != first.b) die("multiplies different operands than the rest of its warp");
    product.sums[lane] = own.sums;
  }
  product.first_seen = product.operands();
  const bool has_sums = std::none_of(products.pending.begin(), products.pending.end(),
                                     [&](const Product& earlier) { return earlier.sums == product.sums; });
  if (has_sums) product.take_sums();
  products.pending.push_back(std::move(product));
}

void wait(const std::array<void*, 32>& lanes, uint32_t present) {
  WarpProducts& products = products_of_warp(present);
  const unsigned pending_groups = *static_cast<const unsigned*>(lanes[0]);
  std::list<Product>& pending = products.pending;
  while (!pending.empty() && pending.front().group + pending_groups < products.groups) {
    const Product done = std::move(pending.front());
    pending.pop_front();
    done.finish();
    const auto next =
        std::find_if(pending.begin(), pending.end(), [&](const Product& later) { return later.sums == done.sums; });
    if (next != pending.end()) next->take_sums();
  }
}

}  // namespace

uint32_t shared_address(const void* shared) {
  const std::ptrdiff_t offset =
      static_cast<const std::byte*>(shared) - static_cast<const std::byte*>(g_runner->dynamic_shared());
  if (offset < 0 || static_cast<size_t>(offset) > g_runner->size().shared_bytes) {
    die("asks for the shared address of memory outside of the block's dynamic shared memory");
  }
  return kReserved + static_cast<uint32_t>(offset);
}

void fence_products(const std::source_location& where) {
  meet(
      nullptr, [](const std::array<void*, 32>&, uint32_t present) { products_of_warp(present).fenced = true; },
      "wgmma_fence", where);
}

void begin_product(ProductOf elements, float* sums, int sum_count, uint64_t a, uint64_t b,
                   const std::source_location& where) {
  Begin argument{elements, sums, sum_count, a, b};
  meet(&argument, &begin, "wgmma", where);
}

void commit_products(const std::source_location& where) {
  meet(
      nullptr,
      [](const std::array<void*, 32>&, uint32_t present) {
        WarpProducts& products = products_of_warp(present);
        ++products.groups;
        products.fenced = false;
      },
      "wgmma_commit", where);
}

void wait_for_products(unsigned pending_groups, const std::source_location& where) {
  meet(&pending_groups, &wait, "wgmma_wait", where);
}

}  // namespace shoal::cuda::emulator
