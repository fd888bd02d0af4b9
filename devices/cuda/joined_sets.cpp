#include "devices/cuda/joined_sets.h"

#include "devices/cuda/cuda_buffer.h"

namespace shoal::cuda {
namespace {

/// Larger pieces are copied one by one; and most bytes from one piece to the next.
constexpr size_t kMostJoined = 4096, kMostPitch = 64 * 1024;

}  // namespace

bool JoinedSets::can_begin_with(const SetWork& work) {
  return work.rows.rows == 1 && work.rows.row_bytes <= kMostJoined && work.tensor->is_contiguous();
}

JoinedSets::JoinedSets(const SetWork& first)
    : memory_(first.memory),
      first_(first.tensor),
      from_(static_cast<const std::byte*>(first.data)),
      to_(first.tensor->data + first.rows.offset),
      bytes_(first.rows.row_bytes) {}

bool JoinedSets::add(const SetWork& work) {
  if (!can_begin_with(work) || work.rows.row_bytes != bytes_ || work.memory != memory_) return false;
  const auto distance = [&](const std::byte* next, const std::byte* first, size_t pitch) -> size_t {
    const auto begin = reinterpret_cast<uintptr_t>(first) + (count_ - 1) * pitch;
    const auto step = reinterpret_cast<uintptr_t>(next) - begin;
    return bytes_ <= step && step <= kMostPitch ? step : 0;
  };
  const size_t from = distance(static_cast<const std::byte*>(work.data), from_, from_pitch_);
  const size_t to = distance(work.tensor->data + work.rows.offset, to_, to_pitch_);
  const bool goes_on = from != 0 && to != 0 && (count_ == 1 || (from == from_pitch_ && to == to_pitch_));
  if (!goes_on) return false;
  from_pitch_ = from, to_pitch_ = to;
  ++count_;
  return true;
}

cudaError_t JoinedSets::copy(cudaStream_t stream) const {
  bool is_pinned = count_ > 1;
  for (size_t i = 0; i < count_ && is_pinned; ++i) is_pinned = !is_pageable(from_ + i * from_pitch_);
  if (is_pinned) {
    const cudaError_t status =
        cudaMemcpy2DAsync(to_, to_pitch_, from_, from_pitch_, bytes_, count_, cudaMemcpyHostToDevice, stream);
    if (status != cudaErrorInvalidValue) return status;
    cudaGetLastError();  // they are of several allocations, which one copy cannot cross
  }
  cudaError_t status = cudaSuccess;  // a little goes into the driver's queue
  for (size_t i = 0; i < count_ && status == cudaSuccess; ++i) {
    status = cudaMemcpyAsync(to_ + i * to_pitch_, from_ + i * from_pitch_, bytes_, cudaMemcpyHostToDevice, stream);
  }
  return status;
}

}  // namespace shoal::cuda
