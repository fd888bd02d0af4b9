// Whether the tests are built with sanitizers. Sanitizers need additional address space, memory and time.
#pragma once

namespace shoal::test {

#if defined(__has_feature)
#define SHOAL_HAS_FEATURE(name) __has_feature(name)
#else
#define SHOAL_HAS_FEATURE(name) 0
#endif

#if defined(__SANITIZE_THREAD__) || SHOAL_HAS_FEATURE(thread_sanitizer)
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif

#if defined(__SANITIZE_ADDRESS__) || SHOAL_HAS_FEATURE(address_sanitizer)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = kThreadSanitizer;
#endif

#undef SHOAL_HAS_FEATURE

}  // namespace shoal::test
