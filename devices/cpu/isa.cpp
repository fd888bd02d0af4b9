#include "devices/cpu/isa.h"

#include <fmt/ranges.h>

#include <array>
#include <cstdlib>

#include "base/error.h"
#include "devices/cpu/kernels/coded_vbmi.h"

namespace shoal::cpu {

// Each level defines its kernels in kernels/table.cpp.
namespace baseline {
extern const Kernels kKernels;
}
#ifdef SHOAL_X86
namespace avx2 {
extern const Kernels kKernels;
}
namespace avx512 {
extern const Kernels kKernels;
}
#endif

namespace {

struct Level {
  std::string_view name;
  const Kernels& (*kernels)();
  bool (*usable)();
};

bool always() {
  return true;
}

#ifdef SHOAL_X86
// These checks match the compiler flags of each level in cmake/library.cmake. f16c is not checked because Clang 14 does
// not accept this name. Every processor with AVX2 has f16c.
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
}

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vnni");
}

/// The kernels of the level avx512. If the processor has VBMI, the result also contains kernels for packed rows of the
/// types in avx512vbmi::kCodedPacked.
const Kernels& avx512_kernels() {
  static const Kernels kernels = [] {
    Kernels all = avx512::kKernels;
    if (!__builtin_cpu_supports("avx512vbmi")) return all;
    for (const CodedPacked& one : avx512vbmi::kCodedPacked) {
      WeightKernels& weights = all.weights[static_cast<size_t>(one.dtype)];
      weights.packed = one.packed;
      weights.panels.from_packed = one.panel_from_packed;
    }
    return all;
  }();
  return kernels;
}
#endif

template <const Kernels& kKernels>
const Kernels& kernels_at() {
  return kKernels;
}

constexpr std::array kLevels = std::to_array<Level>({
    {"baseline", kernels_at<baseline::kKernels>, always},
#ifdef SHOAL_X86
    {"avx2", kernels_at<avx2::kKernels>, has_avx2},
    {"avx512", avx512_kernels, has_avx512},
#endif
});

}  // namespace

std::string_view level_in_use() {
  const Kernels* chosen = &kernels();
  for (const Level& level : kLevels) {
    if (level.usable() && &level.kernels() == chosen) return level.name;
  }
  check(false, "the kernels in use belong to no instruction-set level");
  return "";
}

std::vector<std::string_view> built_levels() {
  std::vector<std::string_view> names;
  names.reserve(std::size(kLevels));
  for (const Level& level : kLevels) names.push_back(level.name);
  return names;
}

std::vector<std::string_view> usable_levels() {
  std::vector<std::string_view> names;
  for (const Level& level : kLevels) {
    if (level.usable()) names.push_back(level.name);
  }
  return names;
}

const Kernels& kernels_of(std::string_view name) {
  const Kernels* best = nullptr;
  for (const Level& level : kLevels) {
    if ((name.empty() || name == level.name) && level.usable()) best = &level.kernels();
  }
  require<InvalidArgument>(best, "[SHOAL_CPU_ISA] expected one of {}, got '{}'; unset the variable for the best level",
                           fmt::join(usable_levels(), ", "), name);
  return *best;
}

const Kernels& kernels() {
  static const Kernels& chosen = [&]() -> const Kernels& {
    const char* name = std::getenv("SHOAL_CPU_ISA");
    return kernels_of(name ? name : "");
  }();
  return chosen;
}

}  // namespace shoal::cpu
