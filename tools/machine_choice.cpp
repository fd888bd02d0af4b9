#include "tools/machine_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>

#include "graph/error.h"
#include "meta/machine_file.h"
#include "meta/probe.h"
#include "tools/interrupt.h"
#include "tools/output.h"
#include "tools/program.h"
#include "tools/progress.h"
#include "tools/threads.h"

namespace shoal::tools {
namespace {

/// Of the products of a model; those who have no figures of its types have nothing to say of it.
std::vector<DType> dtypes_of(const models::Model& model) {
  std::vector<DType> dtypes;
  const std::vector<DType> known = meta::probe_dtypes();
  for (const models::TensorSpec& spec : model.specs) {
    const DType dtype = model.weights.find(spec.name)->dtype;
    const bool is_product = !spec.elementwise && std::find(known.begin(), known.end(), dtype) != known.end();
    if (is_product && std::find(dtypes.begin(), dtypes.end(), dtype) == dtypes.end()) dtypes.push_back(dtype);
  }
  return dtypes;
}

meta::MachineModel read_machine(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  require<InvalidArgument>(file.good() || (file.eof() && !text.empty()),
                           "--machine {}: cannot read the description: {}; check the path and its permissions", path,
                           errno != 0 ? std::strerror(errno) : "it is empty");
  return meta::parse_machine(text, path);
}

}  // namespace

std::optional<KnownMachine> find_machine(const MachineQuestion& question) {
  if (!question.file.empty()) return KnownMachine{read_machine(question.file), question.file};
  auto found = meta::find_measured(question.devices, question.threads, dtypes_of(question.model));
  if (!found) return std::nullopt;
  return KnownMachine{std::move(found->machine), "measured " + found->measured};
}

KnownMachine require_machine(const MachineQuestion& question) {
  if (auto known = find_machine(question)) return *std::move(known);
  write_err(fmt::format("shoal: measuring {} device(s) quickly; {} does it better\n", question.devices.size(),
                        probe_command(question)));
  require_threads(threads_needed(question.devices, question.threads));
  meta::ProbeOptions options;
  options.threads = question.threads;
  options.dtypes = dtypes_of(question.model);
  options.quick = true;
  ProgressBar bar("probing");
  options.progress = [&bar](int done, int total, const std::string& what) {
    if (interrupted()) throw Interrupted();
    bar.update(static_cast<size_t>(done), static_cast<size_t>(total), what);
  };
  meta::MachineModel machine = meta::probe(question.devices, options);
  try {
    meta::save_machine(machine);
  } catch (const DeviceError& error) {
    bar.clear();
    warn(error.what());  // what was measured serves this time
  }
  return {std::move(machine), "measured just now"};
}

std::string probe_command(const MachineQuestion& question) {
  std::string names;
  for (const Device* device : question.devices) names += (names.empty() ? "" : ",") + device->name();
  return fmt::format("`shoal probe --devices {}{}`", names,
                     question.threads > 0 ? fmt::format(" -t {}", question.threads) : "");
}

}  // namespace shoal::tools
