#include "collectives/nccl/nccl_api.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <mutex>

#include "base/error.h"

namespace shoal::collectives::nccl {
namespace {

template <class F>
void find(void* library, const std::string& file, const char* name, F& into) {
  into = reinterpret_cast<F>(dlsym(library, name));
  if (into != nullptr) return;
  fail<DeviceError>("[nccl] {} has no function {}; install NCCL {} or later", file, name, version_text(kLeastVersion));
}

Api load(const std::string& file) {
  Api api;
  api.file = file;
  std::error_code ignored;
  // dlopen() of a named pipe would block until another process opens the pipe. A name without a folder needs no check,
  // because dlopen() searches only the system's folders for such a name.
  require<DeviceError>(file.find('/') == std::string::npos || !std::filesystem::is_fifo(file, ignored),
                       "[nccl] {} is a pipe, not a library; set SHOAL_NCCL_LIBRARY to the file of NCCL", file);
  void* library = dlopen(api.file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    fail<DeviceError>("[nccl] cannot load {} ({}); install NCCL, or set SHOAL_NCCL_LIBRARY to the file of NCCL",
                      api.file, dlerror());
  }
  find(library, api.file, "ncclGetVersion", api.get_version);
  if (api.get_version(&api.version) != Result::kSuccess || api.version < kLeastVersion) {
    fail<DeviceError>("[nccl] {} is version {}; install {} or later", api.file, version_text(api.version),
                      version_text(kLeastVersion));
  }
#define SHOAL_FIND(member, name, ...) find(library, api.file, name, api.member);
  SHOAL_NCCL_FUNCTIONS(SHOAL_FIND)
#undef SHOAL_FIND
  return api;
}

}  // namespace

std::string version_text(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

const Api& api() {
  static std::mutex mutex;
  static std::map<std::string, Api> loaded;  // after a failed load, the next call tries again
  const char* named = std::getenv("SHOAL_NCCL_LIBRARY");
  const std::string file = named != nullptr && *named != '\0' ? named : "libnccl.so.2";
  const std::lock_guard lock(mutex);
  const auto found = loaded.find(file);
  return found != loaded.end() ? found->second : loaded.emplace(file, load(file)).first->second;
}

}  // namespace shoal::collectives::nccl
