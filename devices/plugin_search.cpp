// Registry functions that load plug-ins by path, from one directory, and from all plug-in directories.
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <set>

#include "base/error.h"
#include "devices/plugin_directories.h"
#include "devices/plugin_file.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;

/// An open plug-in with its score. If the score is 0, the plug-in does not support this machine.
struct Candidate {
  PluginFile file;
  int score;
};

/// Resolves links, so that each file has one path.
fs::path real_path(const fs::path& path) {
  std::error_code error;
  fs::path real = fs::canonical(path, error);
  return error ? fs::absolute(path) : real;
}

bool is_plugin_name(const fs::path& path) {
  const std::string name = path.filename().string();
  return name.starts_with("libshoal-") && name.ends_with(".so") && name != kTransportFile;
}

/// Appends the plug-ins in `directory` to `files`, in order of their names. Returns false if there is no such
/// directory.
bool list_plugins(const fs::path& directory, std::vector<fs::path>& files) {
  std::error_code error;
  std::vector<fs::path> found;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error)) {
    if (is_plugin_name(entry->path())) found.push_back(real_path(entry->path()));
  }
  if (error) return false;
  std::sort(found.begin(), found.end());
  files.insert(files.end(), found.begin(), found.end());
  return true;
}

[[noreturn]] void fail_unsupported(const PluginInfo& info) {
  fail<DeviceError>("{} does not support this machine (score 0): use a variant or a build for this machine",
                    describe(info));
}

Candidate open(const fs::path& path) {
  PluginFile file(path);
  const int score = file.score();
  return {std::move(file), score};
}

void check_supported(const Candidate& candidate) {
  if (candidate.score <= 0) fail_unsupported(candidate.file.info());
}

}  // namespace

std::vector<fs::path> plugin_directories_from_environment() {
  const char* text = std::getenv("SHOAL_PLUGIN_PATH");
  std::vector<fs::path> directories;
  std::string_view rest = text != nullptr ? text : "";
  while (!rest.empty()) {
    const size_t colon = std::min(rest.find(':'), rest.size());
    if (colon > 0) directories.emplace_back(rest.substr(0, colon));
    rest.remove_prefix(std::min(colon + 1, rest.size()));
  }
  return directories;
}

std::vector<fs::path> plugin_directories_of_program() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  std::vector<fs::path> directories;
  if (!error) directories = {program.parent_path(), program.parent_path().parent_path() / "lib" / "shoal"};
  // The module of the Python package contains this code, and the package has a folder "bin" with the plug-ins.
  Dl_info object{};
  if (dladdr(reinterpret_cast<void*>(&plugin_directories_of_program), &object) != 0) {
    const fs::path folder = fs::path(object.dli_fname).parent_path() / "bin";
    if (fs::is_directory(folder, error)) directories.push_back(fs::canonical(folder, error));
  }
  return directories;
}

std::vector<fs::path> plugin_directories() {
  std::vector<fs::path> all = plugin_directories_from_environment();
  const std::vector<fs::path> own = plugin_directories_of_program();
  all.insert(all.end(), own.begin(), own.end());
  return all;
}

BackendReg& Registry::load(const fs::path& path) {
  const fs::path file = real_path(path);
  const auto changing = change();
  for (BackendReg* family : families()) {
    if (file_of(*family) == file) return *family;
  }
  try {
    Candidate candidate = open(file);
    check_supported(candidate);
    return adopt(std::move(candidate.file));
  } catch (const InvalidArgument& error) {
    fail<InvalidArgument>("[plug-in {}] {}", file.string(), error.what());
  } catch (const DeviceError& error) {
    fail<DeviceError>("[plug-in {}] {}", file.string(), error.what());
  }
}

PluginReport Registry::load_best(const std::vector<fs::path>& files) {
  const auto changing = change();
  PluginReport report;
  std::set<fs::path> seen;
  for (BackendReg* family : families()) seen.insert(file_of(*family));
  std::vector<Candidate> candidates;
  for (const fs::path& path : files) {
    if (!seen.insert(path).second) continue;
    bool is_sound = false;
    try {
      const Candidate& candidate = candidates.emplace_back(open(path));
      is_sound = candidate.score <= 0;
      check_supported(candidate);
      check_new(candidate.file);
    } catch (const Error& error) {
      report.skipped.push_back({path.string(), error.what(), !is_sound});
      std::erase_if(candidates, [&](const Candidate& one) { return one.file.path() == path; });
    }
  }
  // Candidates are sorted by descending score. Candidates with equal scores stay in the order in which they were found.
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.score > b.score; });
  for (Candidate& candidate : candidates) {
    const std::string file = candidate.file.path().string(), what = describe(candidate.file.info());
    const BackendReg* better = find_family(candidate.file.info().family);
    try {
      if (better != nullptr) {
        fail<InvalidArgument>("{} has score {}, which is not higher than the score of {}", what, candidate.score,
                              file_of(*better).filename().string());
      }
      report.loaded.push_back(adopt(std::move(candidate.file)).name());
    } catch (const Error& error) {
      report.skipped.push_back({file, error.what(), better == nullptr});
    }
  }
  return report;
}

PluginReport Registry::load_all_from(const fs::path& directory) {
  std::vector<fs::path> files;
  require<InvalidArgument>(list_plugins(directory, files), "there is no directory {} to load plug-ins from",
                           directory.string());
  return load_best(files);
}

PluginReport Registry::load_all() {
  std::vector<fs::path> files;
  PluginReport missing;
  for (const fs::path& directory : plugin_directories_from_environment()) {
    if (list_plugins(directory, files)) continue;
    missing.skipped.push_back({directory.string(), "SHOAL_PLUGIN_PATH names this directory, which does not exist"});
  }
  for (const fs::path& directory : plugin_directories_of_program()) list_plugins(directory, files);
  PluginReport report = load_best(files);
  report.skipped.insert(report.skipped.begin(), missing.skipped.begin(), missing.skipped.end());
  return report;
}

}  // namespace shoal
