#include "tools/flags.h"

#include <algorithm>
#include <array>

#include "devices/cpu/cpu_device.h"
#include "models/split_policy.h"
#include "tools/command.h"
#include "tools/device_names.h"
#include "tools/options.h"

namespace shoal::tools {
namespace {

constexpr std::array kCacheTypes{DType::kF16, DType::kF32, DType::kQ8_0};

void add_cache_type(CLI::App& app, const std::string& names, DType& dtype, const std::string& help) {
  auto read = [&dtype](const std::string& flag, const std::string& text) {
    std::optional<DType> named = dtype_from_name(text);
    bool known = named && std::find(kCacheTypes.begin(), kCacheTypes.end(), *named) != kCacheTypes.end();
    require<InvalidArgument>(known, "{} must be f16, f32 or q8_0, got '{}'", flag, text);
    dtype = *named;
  };
  add_parsed(app, names, "TYPE", read, help)->default_str(std::string(name_of(dtype)));
}

}  // namespace

void ModelFlags::add_to(CLI::App& app) {
  app.add_option("-m,--model", path, "GGUF file")->required();
}

void PluginFlags::add_to(CLI::App& app) {
  app.add_option("--plugin", files, "Plug-in with more devices, besides those that are found; may be repeated")
      ->type_name("FILE")
      ->allow_extra_args(false);
}

PluginReport PluginFlags::load() const {
  Registry& registry = Registry::instance();
  for (const std::string& file : files) registry.load(file);
  return registry.load_all();
}

void LoadFlags::add_to(CLI::App& app) {
  app.add_flag("--mmap,!--no-mmap", mmap,
               "Use the weights where the file is mapped, on a single CPU device (default), or copy them into memory");
}

void DeviceFlags::add_to(CLI::App& app, bool required) {
  auto read = [this](const std::string&, const std::string& text) { names = split_device_names(text); };
  CLI::Option* option =
      add_parsed(app, "--devices", "NAMES", read, "Devices that act as one, such as CPU0,CPU1 (-dev)");
  if (required) {
    option->required();
  } else {
    option->default_str(names.front());
  }
  app.add_option("--tensor-split", ratio, "Share of each device, such as 3,1; default even (-ts)");
  add_integer(app, "-t,--threads", threads, 0, cpu::kMaxThreads, "Threads of each CPU device; 0: its cores");
  plugins.add_to(app);
}

void DeviceFlags::check() const {
  try {
    models::parse_ratio(ratio, static_cast<int>(names.size()));
  } catch (const InvalidArgument& error) {
    throw UsageError(error.what());
  }
}

std::vector<Device*> DeviceFlags::find() const {
  plugins.load();
  return find_devices(names);
}

void ContextFlags::add_to(CLI::App& app) {
  add_integer(app, "-c,--ctx-size", context, 0, kMostTokens,
              "Tokens that fit into the KV cache; 0: as many as the model or the command needs");
  add_cache_type(app, "--cache-type-k", dtype_k, "Type of cached keys: f16, f32, q8_0 (-ctk)");
  add_cache_type(app, "--cache-type-v", dtype_v, "Type of cached values: f16, f32, q8_0 (-ctv)");
}

void ContextFlags::add_batches_to(CLI::App& app) {
  add_integer(app, "-b,--batch-size", batch, 1, kMostTokens, "Most tokens computed at once, where it is less than -ub");
  add_integer(app, "--ubatch-size", ubatch, 1, kMostTokens, "Most tokens computed at once (-ub)");
}

void OutputFlag::add_to(CLI::App& app) {
  app.add_option("--output", format, "text or json")->capture_default_str()->check(CLI::IsMember({"text", "json"}));
}

}  // namespace shoal::tools
