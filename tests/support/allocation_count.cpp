#include "tests/support/allocation_count.h"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

// AddressSanitizer and ThreadSanitizer have their own operator new, which this file must not replace.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SHOAL_COUNTS_ALLOCATIONS 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SHOAL_COUNTS_ALLOCATIONS 0
#endif
#endif
#ifndef SHOAL_COUNTS_ALLOCATIONS
#define SHOAL_COUNTS_ALLOCATIONS 1
#endif

namespace {

std::atomic<int64_t> allocations{0};

}  // namespace

namespace shoal::test {

bool counts_allocations() {
  return SHOAL_COUNTS_ALLOCATIONS != 0;
}

int64_t allocation_count() {
  return allocations;
}

}  // namespace shoal::test

#if SHOAL_COUNTS_ALLOCATIONS

namespace {

void* counted(std::size_t size, std::size_t alignment) {
  ++allocations;
  const std::size_t rounded = (size + alignment - 1) / alignment * alignment;
  void* data = alignment <= alignof(std::max_align_t)
                   ? std::malloc(size != 0 ? size : 1)
                   : std::aligned_alloc(alignment, rounded != 0 ? rounded : alignment);
  if (data == nullptr) throw std::bad_alloc();
  return data;
}

}  // namespace

void* operator new(std::size_t size) {
  return counted(size, 1);
}
void* operator new[](std::size_t size) {
  return counted(size, 1);
}
void* operator new(std::size_t size, std::align_val_t alignment) {
  return counted(size, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t size, std::align_val_t alignment) {
  return counted(size, static_cast<std::size_t>(alignment));
}
void operator delete(void* data) noexcept {
  std::free(data);
}
void operator delete[](void* data) noexcept {
  std::free(data);
}
void operator delete(void* data, std::size_t) noexcept {
  std::free(data);
}
void operator delete[](void* data, std::size_t) noexcept {
  std::free(data);
}
void operator delete(void* data, std::align_val_t) noexcept {
  std::free(data);
}
void operator delete[](void* data, std::align_val_t) noexcept {
  std::free(data);
}
void operator delete(void* data, std::size_t, std::align_val_t) noexcept {
  std::free(data);
}
void operator delete[](void* data, std::size_t, std::align_val_t) noexcept {
  std::free(data);
}

#endif
