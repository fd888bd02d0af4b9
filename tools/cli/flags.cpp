#include "tools/cli/flags.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "collectives/communicator.h"
#include "devices/cpu/cpu_device.h"
#include "models/arch/kv_cache.h"
#include "models/place/split_policy.h"
#include "tools/cli/command.h"
#include "tools/cli/device_names.h"
#include "tools/cli/hub_flags.h"
#include "tools/cli/options.h"
#include "tools/cli/processes.h"
#include "tools/cli/split_profile.h"

namespace shoal::tools {
namespace {

/// `is_auto`: receives true if the value is "auto", otherwise false; nullptr if the command does not accept "auto".
void add_cache_type(CLI::App& app, const std::string& flag, DType& dtype, bool* is_auto, const std::string& what) {
  const auto read = [&dtype, is_auto](const std::string& flag, const std::string& text) {
    if (is_auto != nullptr) *is_auto = text == "auto";
    if (is_auto != nullptr && *is_auto) return;
    const std::optional<DType> named = models::cache_dtype_from_name(text);
    if (!named) {
      fail<InvalidArgument>("{} must be {}{}, got '{}'", flag, is_auto != nullptr ? "auto, " : "",
                            models::cache_dtype_names(), text);
    }
    dtype = *named;
  };
  const std::string choice = is_auto != nullptr ? "; auto: the widest of f16, q8_0 and q4_0 that memory allows" : "";
  add_parsed(app, flag, "TYPE", read, "Data type of cached " + what + ": " + models::cache_dtype_names() + choice)
      ->default_str(std::string(name_of(dtype)));
}

}  // namespace

void ModelFlags::add_to(CLI::App& app) {
  const auto read = [this](const std::string& flag, const std::string& text) {
    check_file_name(flag, text);
    path = text;
  };
  const auto read_name = [this](const std::string&, const std::string& text) { repository = text; };
  add_repository(app, read_name,
                 "Repository of the model on huggingface.co, OWNER/REPO or OWNER/REPO:QUANT, instead of -m; missing "
                 "files are downloaded")
      ->excludes(add_parsed(app, "-m,--model", "FILE", read, "GGUF file of the model; -m or -hf is required"));
}

void PluginFlags::add_to(CLI::App& app) {
  app.add_option("--plugin", files,
                 "Device plug-in to load in addition to the plug-ins found automatically; may be repeated")
      ->each([](const std::string& text) { check_file_name("--plugin", text); })
      ->type_name("FILE")
      ->allow_extra_args(false);
}

PluginReport PluginFlags::load() const {
  Registry& registry = Registry::instance();
  for (const std::string& file : files) registry.load(file);
  return registry.load_all();
}

CLI::Option* SingleDevicesFlag::add_to(CLI::App& app, const std::string& help) {
  const auto read = [this](const std::string& flag, const std::string& text) {
    require<InvalidArgument>(text.find('+') == std::string::npos,
                             "{}: '{}' contains a group (+); name single devices, such as CPU0,CPU1", flag, text);
    if (processes() == nullptr) split_device_names(text);  // throws for an invalid list
    list = text;
  };
  return add_parsed(app, "--devices", "NAMES", read, help);
}

std::vector<Device*> SingleDevicesFlag::find(const std::function<std::string()>& all) const {
  return find_devices(split_device_names(of_all_processes(names_all(list) ? of_every_process(all()) : list, all)));
}

void LoadFlags::add_to(CLI::App& app) {
  app.add_flag(
      "--repack,!--no-repack", repack,
      "--repack: repack weights for the CPU kernels while loading (default); --no-repack: keep the layout of the file");
  // set_mmap is needed, because a plain flag would set `mmap` to false even if the flag is not given.
  const auto set_mmap = [this](int64_t sum) { mmap = sum > 0; };
  app.add_flag("--mmap,!--no-mmap", std::function<void(int64_t)>(set_mmap),
               "--mmap: on single CPU devices, use weights in the mapped file and do not repack them (default with "
               "--no-repack); --no-mmap: copy all weights into memory")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

void DeviceFlags::take(const std::string& devices) {
  const std::string all = of_all_processes(devices, [this] { return default_devices(plugins.load()); });
  names = split_device_names(all);
  group_sizes = device_group_sizes(all);
}

void DeviceFlags::add_to(CLI::App& app) {
  auto read = [this](const std::string&, const std::string& text) {
    list = text;
    // check() resolves "all" and hosts later, because a --plugin that follows on the command line may provide their
    // devices.
    if (!names_all(text) && !text.starts_with("@")) take(text);
  };
  add_parsed(
      app, "--devices", "NAMES", read,
      "Devices to split the model over (see -sm), such as CPU0,CPU1; all: every GPU, or every CPU device if there is "
      "no GPU. Under mpirun, a list that names no process (1:CPU0) and no host (@0) applies to each process")
      ->default_str("all GPUs, or CPU0");
  app.add_option("--tensor-split", ratio,
                 "Share of the model for each device (with -sm layer, for each group), such as 3,1; auto: the shares "
                 "predicted to be fastest; @FILE: the shares of a profile written by scripts/tune_split.py")
      ->type_name("SHARES")
      ->default_str("even");
  add_integer(app, "-t,--threads", threads, 0, cpu::kMaxThreads,
              "Number of threads of each CPU device; 0: one per core");
  plugins.add_to(app);
}

void DeviceFlags::add_layers_to(CLI::App& app) {
  split.add_to(app);
  add_comm_to(app);
  host.add_to(app);
}

void DeviceFlags::add_comm_to(CLI::App& app) {
  const auto read_comm = [this](const std::string& flag, const std::string& name) {
    naming(flag, [&name] { collectives::check_implementation(name); });
    comm = name;
  };
  add_parsed(app, "--comm", "NAME", read_comm,
             "Implementation of the collectives: auto, host, mpi, p2p, nccl or staged")
      ->default_str("SHOAL_COMM, or auto");
}

int devices_together(models::SplitMode mode, std::span<const int> group_sizes) {
  if (mode == models::SplitMode::kLayer) return *std::max_element(group_sizes.begin(), group_sizes.end());
  return std::accumulate(group_sizes.begin(), group_sizes.end(), 0);
}

void check_comm(const std::string& comm, models::SplitMode mode, int together) {
  const bool needs_several = !comm.empty() && comm != "auto" && comm != "host";
  if (together > 1 || !needs_several) return;
  throw UsageError(
      fmt::format("--comm {} needs several devices that act as one; name {} with --devices, or omit --comm", comm,
                  mode == models::SplitMode::kLayer ? "a group such as CPU0+CPU1" : "several devices"));
}

namespace {

/// With several processes, throws UsageError if a flag keeps parts of the model on the host, because the processes have
/// no common host.
void check_for_processes(const DeviceFlags& flags) {
  if (processes() == nullptr) return;
  const std::string flag = flags.host.given();
  if (flag.empty()) return;
  throw UsageError(
      fmt::format("{}: several processes cannot keep parts of a model on the host; omit the flag and add CPU devices "
                  "to --devices, or start one process",
                  flag));
}

}  // namespace

tuning::Asked DeviceFlags::asked(models::DeviceGroups groups) const {
  check_for_processes(*this);
  tuning::Asked asked;
  asked.fixed = {.groups = std::move(groups), .mode = split.mode, .experts = split.experts, .latent = split.latent};
  const size_t sharers = asked.fixed.sharers().size();
  asked.free.shares = ratio == kAutoRatio && sharers > 1;
  if (!ratio.empty() && ratio != kAutoRatio) {
    asked.fixed.shares = models::parse_ratio(ratio, static_cast<int>(sharers));
  }
  asked.work = tuning::work_of({}, asked.objective);
  asked.placement = {.ratio = {}, .threads = threads, .comm = comm, .processes = processes()};
  host.put_into(asked.placement);
  return asked;
}

models::DeviceGroups DeviceFlags::find_groups() const {
  return grouped(find());
}

models::DeviceGroups DeviceFlags::grouped(std::span<Device* const> devices) const {
  models::DeviceGroups groups;
  auto next = devices.begin();
  for (const int size : group_sizes) {
    groups.emplace_back(next, next + size);
    next += size;
  }
  return groups;
}

void DeviceFlags::check() {
  if (names_all(list) && names.empty()) {
    list = all_devices(plugins.load());
    take(of_every_process(list));
  }
  if (list.starts_with("@") && names.empty()) take(list);
  if (names_profile(ratio)) {
    profile = read_split_profile(ratio);
    if (list.empty()) take(profile->device_list());
    if (!split.mode_given) split.mode = profile->mode;
    check_profile(*profile, list.empty() ? profile->device_list() : list, split.mode);
    ratio = profile->ratio();
  }
  if (names.empty()) {
    take(of_every_process(default_devices(plugins.load())));
  }
  check_comm(comm, split.mode, devices_together(split.mode, group_sizes));
  if (ratio == kAutoRatio) return;
  try {
    models::parse_ratio(ratio,
                        static_cast<int>(split.mode == models::SplitMode::kLayer ? group_sizes.size() : names.size()));
  } catch (const InvalidArgument& error) {
    throw UsageError(error.what());
  }
}

std::vector<Device*> DeviceFlags::find() const {
  plugins.load();
  return find_devices(names);
}

void ContextFlags::add_to(CLI::App& app, bool may_choose) {
  add_integer(app, "-c,--ctx-size", context, 0, kMostTokens,
              "Context size in tokens. 0 means the model's training context (see --fit), or the size that the test "
              "needs (bench, simulate, compare)");
  add_types_to(app, may_choose);
}

void ContextFlags::add_types_to(CLI::App& app, bool may_choose) {
  add_cache_type(app, "--cache-type-k", dtype_k, may_choose ? &auto_k : nullptr, "keys");
  add_cache_type(app, "--cache-type-v", dtype_v, may_choose ? &auto_v : nullptr, "values");
}

void ContextFlags::add_batches_to(CLI::App& app) {
  app.add_flag("!--no-op-offload", op_offload,
               "Do not copy weights from the host to devices for large batches; compute on the host instead");
  add_integer(app, "-b,--batch-size", batch, 1, kMostTokens,
              "Maximum number of tokens per batch; the smaller of -b and -ub applies");
  add_integer(app, "--ubatch-size", ubatch, 1, kMostTokens,
              "Maximum number of tokens per batch; the smaller of -b and -ub applies");
}

void ContextFlags::add_checkpoints_to(CLI::App& app) {
  add_integer(app, "--ctx-checkpoints", checkpoints, 0, kMostTokens,
              "Number of states of earlier questions that recurrent models keep on the devices");
}

void FitFlags::add_to(CLI::App& app) {
  const auto read = [this](const std::string& flag, const std::string& text) {
    require<InvalidArgument>(text == "on" || text == "off", "{} must be on or off, got '{}'", flag, text);
    on = text == "on";
  };
  add_parsed(app, "--fit", "on|off", read,
             "on: shrink the context and keep parts of the model on the host until the model fits; off: change nothing")
      ->default_str("on; off if -c N is given without --fit-ctx and --fit-target");
  add_integer(app, "--fit-ctx", least_context, 1, kMostTokens, kLeastContext,
              "Smallest context in tokens that --fit may choose");
  add_integer(app, "--fit-target", margin_mib, 0, int64_t{1} << 30, kMarginMib,
              "Memory in MiB that --fit leaves free on each device; on CPU devices, at least 2 % and 64 MiB stay free");
}

void FitFlags::put_into(tuning::Asked& asked) const {
  const int64_t context = asked.session.context;
  if (!on.value_or(context == 0 || least_context || margin_mib)) return;
  asked.free.context = asked.free.host = true;
  asked.least_context = least_context.value_or(kLeastContext);
  asked.margin = {.bytes = static_cast<size_t>(margin_mib.value_or(kMarginMib)) << 20, .spare_host = true};
  asked.must_fit = on.has_value() || context > 0;
}

void WorkloadFlags::add_to(CLI::App& app) {
  const tuning::Workload usual;
  add_integer(app, "-p,--n-prompt", prompt, 0, kMostTokens, usual.prompt,
              "Number of prompt tokens in the prediction; 0: no prompt");
  add_integer(app, "-n,--n-gen", generate, 0, kMostTokens, usual.generate,
              "Number of generated tokens in the prediction; 0: no generation");
  add_integer(app, "-d,--n-depth", depth, 0, kMostTokens, usual.depth, "Number of tokens already in the KV cache");
  add_integer(app, "--parallel", sequences, 1, kMostTokens, "Number of requests at the same time; all share -c");
}

tuning::Workload WorkloadFlags::workload(int64_t context) const {
  const tuning::Workload usual;
  const tuning::Workload asked{prompt.value_or(usual.prompt), generate.value_or(usual.generate),
                               depth.value_or(usual.depth), sequences};
  const tuning::Workload possible = tuning::clipped(asked, context);
  const bool less = (prompt && possible.prompt < *prompt) || (generate && possible.generate < *generate) ||
                    (depth && possible.depth < *depth);
  require<InvalidArgument>(!less,
                           "a prompt of {} tokens (-p) or {} generated tokens (-n) after {} cached tokens (-d) do not "
                           "fit into a context of {}{}; use a larger context (-c) or fewer tokens",
                           asked.prompt, asked.generate, asked.depth, context,
                           sequences > 1 ? fmt::format(" for {} requests (-np)", sequences) : "");
  require<InvalidArgument>(possible.prompt + possible.generate > 0,
                           "nothing to predict; give a number of tokens above 0 with -p or -n");
  return possible;
}

void SamplingFlags::add_to(CLI::App& app) {
  auto read_seed = [this](const std::string& flag, const std::string& text) {
    random_seed = text == "-1";
    if (!random_seed) sampler.seed = parse_seed(flag, text);
  };
  constexpr double kHuge = std::numeric_limits<float>::max();
  add_parsed(app, "--seed", "INT", read_seed, "Sampling seed; -1: a random seed")->default_str("-1");
  add_number(app, "--temp", sampler.temp, -kHuge, kHuge,
             "Sampling temperature; 0: greedy, always the most probable token");
  add_candidates_to(app);
  add_number(app, "--top-p", sampler.top_p, 0.0, 1.0,
             "Sample from the most probable tokens whose probabilities add up to this number; 1: from all tokens");
  add_number(app, "--min-p", sampler.min_p, 0.0, 1.0,
             "Drop tokens whose probability is below this fraction of the highest probability; 0: keep all tokens");
}

void SamplingFlags::add_penalties_to(CLI::App& app) {
  add_number(app, "--repeat-penalty", sampler.repeat_penalty, 0.01, 100.0,
             "For recent tokens, divide positive logits and multiply negative logits by this number; 1: off");
  add_number(app, "--presence-penalty", sampler.presence_penalty, -100.0, 100.0,
             "Subtract this number from the logit of every recent token; 0: off");
  add_number(app, "--frequency-penalty", sampler.frequency_penalty, -100.0, 100.0,
             "Subtract this number from the logit of a recent token once per occurrence; 0: off");
  add_integer(app, "--penalty-last-n", sampler.penalty_last_n, -1, kMostTokens,
              "Number of latest tokens, including the prompt, that count as recent for penalties; 0: no penalties; -1: "
              "all tokens (the host then samples from all logits)");
  const auto read_bias = [this](const std::string& flag, const std::string& text) {
    const size_t equals = text.find('=');
    require<InvalidArgument>(equals != std::string::npos, "{}: '{}' is not ID=VALUE, such as 15=-2.5", flag, text);
    const std::vector<int32_t> ids = parse_ids(flag, text.substr(0, equals));
    require<InvalidArgument>(ids.size() == 1, "{}: '{}' is not ID=VALUE, such as 15=-2.5", flag, text);
    sampler.biases[ids[0]] = static_cast<float>(parse_number(flag, text.substr(equals + 1), -1e9, 1e9));
  };
  add_repeated(app, "--logit-bias", "ID=VALUE", read_bias,
               "Add VALUE to the logit of the token with this ID, such as 15=-2.5; -1e9 bans the token; may be "
               "repeated. With a VALUE above 0, the host samples from all logits");
}

void SamplingFlags::add_candidates_to(CLI::App& app) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  add_integer(app, "--top-k", sampler.top_k, 0, kMost, "Number of most probable tokens to sample from; 0: all tokens");
  app.add_flag(
      "--sample-on-host", on_host,
      "Copy all logits to the host for sampling; by default, only the highest logits (at most 256) are copied");
}

int64_t SamplingFlags::candidates(int64_t listed) const {
  const int64_t needed = models::candidates_needed(sampler);
  const bool on_devices = !on_host && needed > 0 && listed <= models::kMostCandidates;
  return on_devices ? std::max(needed, listed) : 0;
}

void OutputFlag::add_to(CLI::App& app, const std::string& help) {
  const auto read = [this](const std::string& flag, const std::string& text) {
    require<InvalidArgument>(text == "text" || text == "json", "{} must be text or json, got '{}'", flag, text);
    format = text;
  };
  add_parsed(app, "-o,--output", "FORMAT", read, help)->default_str("text");
}

void ChoiceFlags::add_to(CLI::App& app) {
  model.add_to(app);
  context.add_to(app, true);
  context.add_batches_to(app);
  devices.add_to(app);
  devices.add_layers_to(app);
  load.add_to(app);
  fit.add_to(app);
}

tuning::Asked ChoiceFlags::asked(models::DeviceGroups groups, int64_t candidates) const {
  tuning::Asked asked = devices.asked(std::move(groups));
  asked.session = context.session();
  asked.free.cache_k = context.auto_k;
  asked.free.cache_v = context.auto_v;
  asked.session.candidates = candidates;
  asked.load = load.load(asked.session.op_offload);
  fit.put_into(asked);
  return asked;
}

}  // namespace shoal::tools
