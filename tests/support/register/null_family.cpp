// Compiled into each test program: from a library it would be taken only for a symbol that someone needs.
#include "tests/support/null_device.h"

namespace shoal::null {
namespace {

[[maybe_unused]] const bool kIsRegistered = [] {
  Registry::instance().add(make_family());
  return true;
}();

}  // namespace
}  // namespace shoal::null
