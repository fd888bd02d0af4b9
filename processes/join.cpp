#include "processes/join.h"

#include <dlfcn.h>

#include <array>
#include <cstdlib>
#include <filesystem>

#include "base/error.h"
#include "devices/plugin_directories.h"

namespace shoal {
namespace {

/// Returns the number in an environment variable, or 0 if the variable is unset.
int number_of(const char* variable) {
  const char* text = std::getenv(variable);
  return text != nullptr ? std::atoi(text) : 0;
}

std::unique_ptr<Transport> open_transport(const std::filesystem::path& file) {
  std::error_code ignored;
  // dlopen() of a pipe would block until another process opens the pipe.
  require<DeviceError>(!std::filesystem::is_fifo(file, ignored), "plug-in {} is a pipe; install shoal again",
                       file.string());
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL);
  require<DeviceError>(library != nullptr, "plug-in {} cannot be loaded: {}; install the MPI that it was built with",
                       file.string(), library == nullptr ? dlerror() : "");
  const auto find = reinterpret_cast<const TransportPlugin* (*)()>(dlsym(library, "shoal_transport"));
  require<DeviceError>(find != nullptr, "plug-in {} has no function shoal_transport; install shoal again",
                       file.string());
  const TransportPlugin& plugin = *find();
  require<DeviceError>(plugin.class_sizes == transport_sizes(), "plug-in {}: {}", file.string(), kOtherSizes);
  return plugin.open();
}

}  // namespace

bool is_one_of_several() {
  constexpr std::array kSizes{"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"};
  for (const char* variable : kSizes) {
    if (number_of(variable) > 1) return true;
  }
  // PMIx sets only the rank of this process, but Slurm also sets the number of processes.
  return std::getenv("PMIX_RANK") != nullptr && number_of("SLURM_STEP_NUM_TASKS") > 1;
}

int unconnected_tasks() {
  const int tasks = number_of("SLURM_STEP_NUM_TASKS");
  return tasks > 1 && !is_one_of_several() ? tasks : 0;
}

std::unique_ptr<ProcessGroup> join_processes(std::chrono::milliseconds silence) {
  if (!is_one_of_several()) return nullptr;
  for (const std::filesystem::path& directory : plugin_directories()) {
    const std::filesystem::path file = directory / kTransportFile;
    std::error_code error;
    if (!std::filesystem::exists(file, error)) continue;
    auto transport = open_transport(file);
    require<DeviceError>(transport->size() > 1,
                         "this process is one of several, but {} finds no other process; use mpirun of the MPI "
                         "with which this plug-in was built, or use srun with a value of --mpi that this MPI supports "
                         "(srun --mpi=list)",
                         file.string());
    return std::make_unique<ProcessGroup>(std::move(transport), silence);
  }
  fail<DeviceError>(
      "this process is one of several, but there is no {} next to the program or in SHOAL_PLUGIN_PATH; "
      "run scripts/install_deps --mpi and then scripts/quickstart, which builds the plug-in, or start only one process",
      kTransportFile);
}

}  // namespace shoal
