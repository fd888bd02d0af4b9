#include "tests/cuda/emulator/fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <boost/context/detail/fcontext.hpp>
#include <cstdlib>
#include <mutex>
#include <new>
#include <vector>

#ifdef __SANITIZE_ADDRESS__
#define SHOAL_ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SHOAL_ADDRESS_SANITIZER 1
#endif
#endif
#ifdef SHOAL_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace shoal::cuda::emulator {
namespace {

using boost::context::detail::jump_fcontext;
using boost::context::detail::make_fcontext;
using boost::context::detail::transfer_t;

#ifdef SHOAL_ADDRESS_SANITIZER
constexpr size_t kStackSize = 512 * 1024;  // the address sanitizer makes stack frames several times larger
#else
constexpr size_t kStackSize = 128 * 1024;
#endif

/// One mapping contains many stacks, because Linux allows only 65,530 mappings per process. The thread sanitizer adds
/// its own mapping to each mapping.
class StackPool {
 public:
  ~StackPool() {
    for (std::byte* piece : pieces_) munmap(piece, kStacksOfPiece * kStackSize);
  }
  void* take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) add_piece();
    void* const stack = free_.back();
    free_.pop_back();
    return stack;
  }
  void give(void* stack) {
#ifdef SHOAL_ADDRESS_SANITIZER
    __asan_unpoison_memory_region(stack, kStackSize);  // clears the poison of frames that never returned
#endif
    const std::lock_guard lock(mutex_);
    free_.push_back(stack);
  }

 private:
  static constexpr size_t kStacksOfPiece = 256, kGuardedPieces = 32;

  void add_piece() {
    void* const piece = mmap(nullptr, kStacksOfPiece * kStackSize, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (piece == MAP_FAILED) throw std::bad_alloc();
    pieces_.push_back(static_cast<std::byte*>(piece));
    for (size_t i = kStacksOfPiece; i-- > 0;) {
      std::byte* const stack = pieces_.back() + i * kStackSize;
      // A guard page below a stack splits the mapping in two, so only stacks of the first mappings have a guard page.
      // Without a guard page, a stack overflow is only harder to diagnose.
      if (pieces_.size() <= kGuardedPieces) {
        static_cast<void>(mprotect(stack, static_cast<size_t>(sysconf(_SC_PAGESIZE)), PROT_NONE));
      }
      free_.push_back(stack);
    }
  }

  std::mutex mutex_;
  std::vector<void*> free_;
  std::vector<std::byte*> pieces_;
};

StackPool& stacks() {
  static StackPool pool;
  return pool;
}

}  // namespace

struct Fiber::Switch {
  Fiber* from;
  Fiber* to;
};

struct Fiber::Arrival {
  /// Runs whenever a fiber starts or continues. Stores the point where the previous fiber continues.
  static Fiber& at(transfer_t transfer) {
    const Switch& from = *static_cast<const Switch*>(transfer.data);
#ifdef SHOAL_ADDRESS_SANITIZER
    __sanitizer_finish_switch_fiber(from.to->fake_stack_, &from.from->bottom_, &from.from->size_);
#endif
    from.from->context_ = transfer.fctx;
    return *from.to;
  }
  static void first(transfer_t transfer) {
    Fiber& self = at(transfer);
    self.entry_(self, self.argument_);
    std::abort();
  }
};

Fiber::Fiber(Entry entry, void* argument) : stack_(stacks().take()), entry_(entry), argument_(argument) {
  bottom_ = stack_;
  size_ = kStackSize;
  context_ = make_fcontext(static_cast<char*>(stack_) + kStackSize, kStackSize, &Arrival::first);
}

Fiber::~Fiber() {
  if (stack_ != nullptr) stacks().give(stack_);
}

void Fiber::keep_stacks() {
  stacks();
}

void Fiber::switch_to(Fiber& next) {
  Switch passed{this, &next};
#ifdef SHOAL_ADDRESS_SANITIZER
  __sanitizer_start_switch_fiber(&fake_stack_, next.bottom_, next.size_);
#endif
  Arrival::at(jump_fcontext(next.context_, &passed));
}

}  // namespace shoal::cuda::emulator
