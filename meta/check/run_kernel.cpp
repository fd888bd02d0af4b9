#include "meta/check/run_kernel.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "graph/external_op.h"

namespace shoal::meta {
namespace {

constexpr size_t kAlignment = 64, kGuardBytes = 64;

/// Memory between two guards.
class Guarded {
 public:
  Guarded(size_t bytes, std::byte fill) : bytes_(bytes), memory_(bytes + 2 * kGuardBytes + kAlignment, fill) {
    const auto address = reinterpret_cast<uintptr_t>(memory_.data());
    begin_ = kGuardBytes + (kAlignment - address % kAlignment) % kAlignment;
    std::fill_n(get() - kGuardBytes, kGuardBytes, kGuard);
    std::fill_n(get() + bytes, kGuardBytes, kGuard);
  }
  std::byte* get() { return memory_.data() + begin_; }
  std::vector<std::byte> bytes() { return {get(), get() + bytes_}; }
  bool is_sound() {
    const auto is_guard = [](std::byte byte) { return byte == kGuard; };
    return std::all_of(get() - kGuardBytes, get(), is_guard) &&
           std::all_of(get() + bytes_, get() + bytes_ + kGuardBytes, is_guard);
  }

 private:
  static constexpr std::byte kGuard{0xa5};
  size_t bytes_, begin_ = 0;
  std::vector<std::byte> memory_;
};

template <class T>
std::vector<std::byte> encode_as(const Values& values) {
  const std::vector<T> numbers(values.begin(), values.end());
  const auto* bytes = reinterpret_cast<const std::byte*>(numbers.data());
  return {bytes, bytes + numbers.size() * sizeof(T)};
}

template <class T>
Values decode_as(const std::vector<std::byte>& bytes, int64_t elements) {
  std::vector<T> numbers(static_cast<size_t>(elements));
  if (elements > 0) std::memcpy(numbers.data(), bytes.data(), numbers.size() * sizeof(T));
  return {numbers.begin(), numbers.end()};
}

/// A copy of the node whose sources have memory.
struct Placed {
  Placed(const Tensor& of, const TensorValues& leaves) : node(of) {
    sources.reserve(of.src.size());
    memory.reserve(of.src.size());
    for (size_t i = 0; i < of.src.size(); ++i) {
      stored.push_back(encode(of.src[i]->dtype, leaves.at(of.src[i])));
      memory.emplace_back(stored.back().size(), std::byte{0});
      std::copy(stored.back().begin(), stored.back().end(), memory.back().get());
      sources.push_back(*of.src[i]);
      sources.back().data = memory.back().get();
      node.src[i] = &sources.back();
    }
  }
  bool is_unchanged(size_t i) { return memory[i].is_sound() && memory[i].bytes() == stored[i]; }

  Tensor node;
  std::vector<Tensor> sources;
  std::vector<std::vector<std::byte>> stored;
  std::vector<Guarded> memory;
};

/// Number of parts that write each element. A part writes an element if the element does not keep the fill bytes.
std::vector<int> writers(const Tensor& node, const TensorValues& leaves, int parts) {
  const size_t size = traits(node.dtype).block_bytes;
  std::vector<int> count(static_cast<size_t>(node.elements()), 0);
  for (int part = 0; part < parts; ++part) {
    const auto zeros = run_kernel(node, leaves, {parts, part, std::byte{0}});
    const auto ones = run_kernel(node, leaves, {parts, part, std::byte{0xff}});
    for (size_t i = 0; i < count.size(); ++i) {
      count[i] += std::memcmp(zeros.data() + i * size, ones.data() + i * size, size) == 0;
    }
  }
  return count;
}

}  // namespace

std::vector<std::byte> encode(DType dtype, const Values& values) {
  if (dtype == DType::kI32) return encode_as<int32_t>(values);
  if (dtype == DType::kI64) return encode_as<int64_t>(values);
  const DTypeTraits& type = traits(dtype);
  require<InvalidArgument>(type.from_f32 != nullptr, "shoal cannot encode {}: use another dtype", type.name);
  const std::vector<float> floats(values.begin(), values.end());
  std::vector<std::byte> bytes(bytes_for(dtype, static_cast<int64_t>(values.size())));
  type.from_f32(floats.data(), bytes.data(), static_cast<int64_t>(values.size()));
  return bytes;
}

Values decode(DType dtype, const std::vector<std::byte>& bytes, int64_t elements) {
  if (dtype == DType::kI32) return decode_as<int32_t>(bytes, elements);
  if (dtype == DType::kI64) return decode_as<int64_t>(bytes, elements);
  std::vector<float> floats(static_cast<size_t>(elements));
  traits(dtype).to_f32(bytes.data(), floats.data(), elements);
  return {floats.begin(), floats.end()};
}

std::vector<std::byte> run_kernel(const Tensor& node, const TensorValues& leaves, const KernelRun& run) {
  if (node.empty()) return {};
  const ExternalKernel* kernel = kernel_of(node, "CPU");
  require<InvalidArgument>(kernel != nullptr, "{}", external_remedy(node, "CPU"));
  Placed placed(node, leaves);
  Guarded result(node.bytes(), run.fill);
  placed.node.data = result.get();
  const ExternalCall call(placed.node);
  const auto workspace_bytes = kernel->functions.workspace;
  Guarded workspace(workspace_bytes != nullptr ? workspace_bytes(call.node(), run.parts) : 0, run.fill);
  for (int part = 0; part < run.parts; ++part) {
    if (run.only && *run.only != part) continue;
    const shoal_op_launch launch{sizeof(shoal_op_launch), part, run.parts,
                                 workspace_bytes != nullptr ? workspace.get() : nullptr, nullptr};
    kernel->functions.run(call.node(), &launch);
  }
  for (size_t i = 0; i < placed.sources.size(); ++i) {
    require<InvalidArgument>(placed.is_unchanged(i), "the CPU kernel changes source {}", i);
  }
  require<InvalidArgument>(result.is_sound(), "the CPU kernel writes outside the result");
  require<InvalidArgument>(workspace.is_sound(), "the CPU kernel writes outside its workspace");
  return result.bytes();
}

std::string check_parts(const Tensor& node, const TensorValues& leaves) {
  if (node.empty()) return {};
  const auto alone = run_kernel(node, leaves, {});
  const size_t size = traits(node.dtype).block_bytes;
  for (const int parts : {1, 2, 3, 7}) {
    const auto all = run_kernel(node, leaves, {parts, {}, std::byte{0x5a}});
    const std::vector<int> count = writers(node, leaves, parts);
    for (size_t i = 0; i < count.size(); ++i) {
      const std::string place = place_of(static_cast<int64_t>(i), node.shape);
      if (count[i] != 1) return fmt::format("with {} parts, {} parts write element {}", parts, count[i], place);
      if (std::memcmp(all.data() + i * size, alone.data() + i * size, size) == 0) continue;
      const Values got = decode(node.dtype, all, node.elements()),
                   expected = decode(node.dtype, alone, node.elements());
      return fmt::format("element {} is {} with {} parts and {} with one part", place, got[i], parts, expected[i]);
    }
  }
  return {};
}

}  // namespace shoal::meta
