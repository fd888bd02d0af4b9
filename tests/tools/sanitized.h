// Are the tests built with sanitizers, which take address space and memory of their own?
#pragma once

namespace shoal::tools {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SHOAL_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SHOAL_SANITIZED 1
#endif
#endif
#ifdef SHOAL_SANITIZED
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace shoal::tools
