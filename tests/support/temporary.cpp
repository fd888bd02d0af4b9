#include "tests/support/temporary.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <system_error>

namespace shoal::test {

namespace fs = std::filesystem;

TemporaryFolder::TemporaryFolder() : owner_(getpid()) {
  std::string name = (fs::canonical(fs::temp_directory_path()) / "shoal-test-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) throw std::system_error(errno, std::generic_category(), name);
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  if (getpid() == owner_) fs::remove_all(path_, ignored);
}

std::string temporary(const std::string& name) {
  static const TemporaryFolder folder;
  return (folder.path() / name).string();
}

}  // namespace shoal::test
