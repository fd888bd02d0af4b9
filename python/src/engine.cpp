// Engine, Channel and Output of the module: a loaded model, and the outputs of its requests. All calls that may wait
// release the global interpreter lock. The engine's thread never takes it.
#include <nanobind/nanobind.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unordered_map.h>
#include <nanobind/stl/vector.h>

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <future>
#include <limits>
#include <type_traits>

#include "base/error.h"
#include "models/engine/mask_feed.h"
#include "models/engine/output_channel.h"
#include "python/src/module.h"
#include "python/src/service.h"
#include "tools/chat/answer.h"
#include "tools/chat/chat_template.h"
#include "tools/cli/output.h"

namespace shoal::python {
namespace {

namespace nb = nanobind;
using namespace nb::literals;
using models::Output;
using models::OutputChannel;
using Service = OpenService;

using Release = nb::call_guard<UnlockedPython>;

constexpr std::chrono::milliseconds kSignalPeriod{100};  // between two checks for signals

// The engine's thread drops channels and feeds. Objects of Python would need the global interpreter lock for that, so
// Python's objects only share the ownership.
struct Channel {
  std::shared_ptr<OutputChannel> shared = std::make_shared<OutputChannel>();
};
struct Masks {
  std::shared_ptr<models::MaskFeed> shared = std::make_shared<models::MaskFeed>();
};

const char* name_of(models::Finish finish) {
  switch (finish) {
    case models::Finish::kEndToken:
      return "end";
    case models::Finish::kStopString:
      return "stop";
    case models::Finish::kTokens:
      return "length";
    case models::Finish::kContext:
      return "context";
    case models::Finish::kCancelled:
      return "cancelled";
    case models::Finish::kFailed:
      return "failed";
  }
  return "failed";
}

/// Logarithms of probabilities instead of logits.
std::vector<std::pair<int32_t, double>> log_probabilities(const Output& output) {
  std::vector<std::pair<int32_t, double>> all;
  all.reserve(output.best.size());
  for (const models::TokenLogit& one : output.best) all.emplace_back(one.id, one.logit - output.log_sum);
  return all;
}

void bind_outputs(nb::module_& module) {
  nb::class_<Output>(module, "Output", "One token of an answer, or its end.")
      .def_ro("request", &Output::request, "Number of the request.")
      .def_ro("token", &Output::token, "Id of the token; -1: no token.")
      .def_ro("is_prompt", &Output::is_prompt, "Whether the token is part of the prompt (list_prompt).")
      .def_prop_ro(
          "text",
          [](const Output& output) {
            return nb::steal<nb::str>(
                PyUnicode_DecodeUTF8(output.text.data(), static_cast<Py_ssize_t>(output.text.size()), "replace"));
          },
          "Text that is complete now. Incomplete characters and possible stop strings arrive later.")
      .def_prop_ro(
          "logprob",
          [](const Output& output) {
            return output.best.empty() || output.token < 0 ? std::nullopt
                                                           : std::optional(output.logit - output.log_sum);
          },
          "Natural logarithm of the token's probability before the sampler's parameters; None without logprobs.")
      .def_prop_ro("top", &log_probabilities, "The most probable tokens with their log probabilities.")
      .def_prop_ro(
          "finish", [](const Output& output) { return output.finish ? name_of(*output.finish) : nullptr; },
          nb::sig("def finish(self) -> str | None"),
          "None, or why the answer ended: end, stop, length, context, cancelled or failed.")
      .def_ro("error", &Output::error, "The reason of finish == 'failed'.")
      .def_ro("computed_tokens", &Output::computed_tokens,
              "Number of prompt tokens that were computed or cached; -1: no report (report_progress).")
      .def_ro("cached_tokens", &Output::cached_tokens,
              "Number of cached prompt tokens; in reports and in the last output.");

  nb::class_<Channel>(module, "Channel", "Receives the outputs of requests. Any thread may use a channel.")
      .def(nb::init<>())
      .def(
          "fileno", [](const Channel& self) { return self.shared->descriptor(); },
          "A file descriptor that is readable while there are outputs.")
      .def(
          "take", [](const Channel& self) { return self.shared->take(); }, Release(),
          "Removes and returns all outputs, without waiting.")
      .def(
          "wait",
          [](const Channel& self, double seconds) {
            const double milliseconds = std::clamp(seconds * 1000, 0.0, 1e9);
            return self.shared->wait(std::chrono::milliseconds(static_cast<int64_t>(milliseconds)));
          },
          "seconds"_a, Release(), "Waits until there are outputs or the time is over. Then returns take().");
}

/// Loads a model in another thread. Python handles signals only in the main thread, so the calling thread stays
/// responsive. An exception of a signal handler or of `progress` stops the loading.
std::unique_ptr<tools::Service> load(const std::vector<std::string>& arguments, const nb::object& progress) {
  std::atomic<bool> is_stopped = false;
  const models::LoadProgress observer = [&](size_t done, size_t total) {
    if (is_stopped) throw Error("a signal stopped the loading");
    if (progress.is_none()) return;
    const LockedPython lock;
    progress(done, total);
  };
  auto loading = std::async(std::launch::async, [&] { return std::make_unique<tools::Service>(arguments, observer); });
  for (;;) {
    const bool is_over = [&] {
      const UnlockedPython release;
      return loading.wait_for(kSignalPeriod) == std::future_status::ready;
    }();
    if (is_over) return loading.get();
    if (PyErr_CheckSignals() == 0) continue;
    try {
      nb::raise_python_error();
    } catch (...) {
      is_stopped = true;
      const UnlockedPython release;
      loading = {};  // waits for the thread
      throw;
    }
  }
}

/// The form of an option's values, for messages.
template <class T>
std::string form_of() {
  if constexpr (std::is_same_v<T, bool>) return "True or False";
  if constexpr (std::is_integral_v<T>) {
    return fmt::format("an integer from {} to {}", std::numeric_limits<T>::min(), std::numeric_limits<T>::max());
  }
  if constexpr (std::is_floating_point_v<T>) return "a number";
  if constexpr (std::is_same_v<T, std::string>) return "a string of valid Unicode";
  if constexpr (std::is_same_v<T, std::vector<std::string>>) return "a list of strings of valid Unicode";
  if constexpr (std::is_same_v<T, std::vector<int32_t>>) return "a list of token ids";
  return "a dict from token ids to numbers";
}

models::RequestOptions request_options(const Service& service, const nb::kwargs& given) {
  models::RequestOptions options;
  models::SamplerParams& sampling = options.sampling;
  options.end_tokens.assign(service->tokenizer().ends().begin(), service->tokenizer().ends().end());
  options.draft = service->draft();
  for (const auto& [key, value] : given) {
    const auto name = nb::cast<std::string>(key);
    const auto take = [&](const char* which, auto& into) {
      if (name != which) return false;
      if (nb::try_cast(value, into)) return true;
      const auto text = nb::module_::import_("reprlib").attr("repr")(value);  // a short form of long values
      throw nb::type_error(fmt::format("{} is {}; give {}", name, nb::cast<std::string>(text),
                                       form_of<std::remove_cvref_t<decltype(into)>>())
                               .c_str());
    };
    bool ignores_end = false;
    const bool is_known =
        take("max_tokens", options.most_tokens) || take("temperature", sampling.temp) ||
        take("top_k", sampling.top_k) || take("top_p", sampling.top_p) || take("min_p", sampling.min_p) ||
        take("seed", sampling.seed) || take("repeat_penalty", sampling.repeat_penalty) ||
        take("presence_penalty", sampling.presence_penalty) || take("frequency_penalty", sampling.frequency_penalty) ||
        take("repeat_last_n", sampling.penalty_last_n) || take("logit_bias", sampling.biases) ||
        take("stop", options.stops) || take("logprobs", options.logprobs) ||
        take("list_prompt", options.lists_prompt) || take("report_progress", options.reports_progress) ||
        take("spelled", options.spelled) || take("priority", options.priority) || take("salt", options.salt) ||
        take("junction", options.junction) || take("ignore_end", ignores_end);
    if (!is_known) throw nb::type_error(("there is no option '" + name + "'; see Model.generate()").c_str());
    if (ignores_end) options.end_tokens.clear();
  }
  if (options.logprobs == 0) options.logprobs = 1;  // without listed tokens, outputs would have no log probability
  return options;
}

/// Adds a request. If `mask` is given, it has one bit per token, and the thread that reads `tokens` must send a mask
/// for each later token with MaskFeed.put().
models::RequestId submit(Service& service, const Channel& channel, std::vector<int32_t> prompt, const Masks* masks,
                         const Channel* tokens, const nb::kwargs& given) {
  models::RequestOptions options = request_options(service, given);
  if (masks != nullptr) {
    options.mask = [masks = masks->shared](std::span<const int32_t> answer, std::span<uint32_t> mask) {
      masks->wait(answer.size(), mask);
    };
    options.draft = 0;  // each guess would wait for its mask
  }
  const UnlockedPython release;
  return service->thread().submit(channel.shared, std::move(prompt), options,
                                  tokens != nullptr ? tokens->shared : nullptr);
}

nb::dict stats(Service& service) {
  const models::EngineStats now = [&] {
    const UnlockedPython release;
    return service->thread().stats();
  }();
  nb::dict all;
  all["running"] = now.running;
  all["waiting"] = now.waiting;
  all["steps"] = now.steps;
  all["prompt_tokens"] = now.prompt_tokens;
  all["cached_tokens"] = now.cached_tokens;
  all["generated_tokens"] = now.generated_tokens;
  all["preemptions"] = now.preemptions;
  all["drafted_tokens"] = now.drafted_tokens;
  all["accepted_tokens"] = now.accepted_tokens;
  all["used_tokens"] = now.used_tokens;
  return all;
}

nb::list devices(const Service& service) {
  nb::list all;
  const std::vector<double> shares = service->choice().shares;
  for (const models::DeviceUse& use : service->memory()) {
    nb::dict one;
    one["name"] = use.device;
    for (const Device* device : service->placement().members()) {
      if (device->name() == use.device) one["description"] = device->description();
    }
    one["weights"] = use.use.weights;
    one["mapped"] = use.mapped;
    one["cache"] = use.use.cache;
    one["compute"] = use.use.compute + use.use.communication;
    one["free"] = use.memory.free;
    one["total"] = use.memory.total;
    all.append(one);
  }
  return all;
}

nb::dict info(const Service& service) {
  const models::Model& model = service->model();
  int64_t parameters = 0;
  for (const Tensor* tensor : model.weights.tensors()) parameters += tensor->elements();
  nb::dict all;
  all["path"] = model.file.path();
  all["name"] = model.file.has("general.name") ? model.file.get<std::string>("general.name") : std::string();
  all["architecture"] = std::string(model.architecture->name);
  all["parameters"] = parameters;
  all["bytes"] = model.weight_bytes();
  all["trained_context"] = model.hparams.context;
  all["embedding"] = model.hparams.embd;
  all["vocabulary"] = model.hparams.vocab;
  all["context"] = service->most_tokens();
  all["cache_tokens"] = service->cache_tokens();
  all["parallel"] = service->parallel();
  return all;
}

void bind_service(nb::module_& module) {
  nb::class_<Masks>(module, "MaskFeed", "Masks that a thread of Python computes while the devices compute.")
      .def(nb::init<>())
      .def(
          "put",
          [](const Masks& self, size_t answered, const nb::bytes& mask) {
            std::vector<uint32_t> words(mask.size() / sizeof(uint32_t));
            std::memcpy(words.data(), mask.c_str(), words.size() * sizeof(uint32_t));
            self.shared->put(answered, std::move(words));
          },
          "answered"_a, "mask"_a,
          "Sets the mask of the token after `answered` tokens: one bit per token of the vocabulary.")
      .def(
          "fail", [](const Masks& self, const std::string& error) { self.shared->fail(error); }, "error"_a,
          "Ends the request with an error at its next token.");

  nb::class_<Service>(module, "Engine", "A loaded model that answers many requests at the same time.")
      .def(
          "__init__",
          [](Service* self, const std::vector<std::string>& arguments, const nb::object& progress) {
            new (self) Service(load(arguments, progress));
          },
          "arguments"_a, "progress"_a = nb::none(),
          "Loads a model with the flags of `shoal serve` for devices, layouts and memory, such as ['-m', path].")
      .def("submit", &submit, "channel"_a, "prompt"_a, "masks"_a = nb::none(), "tokens"_a = nb::none(), "options"_a,
           "Adds a request and returns its number. With masks, `tokens` receives a copy of each token.")
      .def(
          "cancel", [](Service& self, int64_t request) { self->thread().cancel(request); }, "request"_a, Release(),
          "Ends a request before the next step.")
      .def(
          "stop", [](Service& self) { self->thread().stop(); }, Release(),
          "Ends all requests after the current step. No more requests can be added.")
      .def("stats", &stats, "Numbers of requests and tokens since the start.")
      .def(
          "failure", [](Service& self) { return self->thread().failure(); }, Release(),
          "The error of a failed device, or ''.")
      .def("devices", &devices, "Planned memory of each device, in bytes.")
      .def("info", &info, "Facts about the model and the cache.")
      .def(
          "plan", [](const Service& self) { return self->plan(); },
          "The layouts and steps with which one token is generated.")
      .def(
          "shares", [](const Service& self) { return self->choice().shares; }, "Share of each device; [] if even.");
}

/// The tokenizer of an engine.
void bind_tokenizer(nb::module_& module) {
  auto service = nb::borrow<nb::class_<Service>>(module.attr("Engine"));
  using Parts = std::vector<std::pair<std::string, bool>>;
  service
      .def(
          "encode",
          [](const Service& self, const Parts& parts) {
            std::vector<models::TextPart> all;
            for (const auto& [text, is_template] : parts) all.push_back({text, is_template});
            return self->tokenizer().encode(all);
          },
          "parts"_a, Release(), "Tokens of a text in parts. Only parts with True may contain control tokens.")
      .def(
          "decode",
          [](const Service& self, const std::vector<int32_t>& tokens, bool whole) {
            const std::string text = self->tokenizer().decode(tokens, whole);
            return nb::bytes(text.data(), text.size());
          },
          "tokens"_a, "whole"_a = true, "Text of tokens as bytes. Control tokens have no text.")
      .def(
          "piece",
          [](const Service& self, int32_t token) {
            const std::string& text = self->tokenizer().vocabulary().piece(token);
            return nb::bytes(text.data(), text.size());
          },
          "token"_a, "The piece of a token as stored in the file.")
      .def(
          "pieces",
          [](const Service& self) {
            const models::TokenizerVocabulary& vocabulary = self->tokenizer().vocabulary();
            nb::list all;
            for (int32_t id = 0; id < vocabulary.size(); ++id) {
              const models::TokenKind kind = vocabulary.kind(id);
              const bool is_control = kind == models::TokenKind::kControl || kind == models::TokenKind::kUnknown ||
                                      kind == models::TokenKind::kUnused;
              const std::string text = is_control ? vocabulary.piece(id) : vocabulary.text_of(id);
              all.append(nb::make_tuple(nb::bytes(text.data(), text.size()), is_control));
            }
            return all;
          },
          "For each token, its bytes and whether it is a control token.")
      .def_prop_ro("bos", [](const Service& self) { return self->tokenizer().bos(); })
      .def_prop_ro("eos", [](const Service& self) { return self->tokenizer().eos(); })
      .def_prop_ro("adds_bos", [](const Service& self) { return self->tokenizer().adds_bos(); })
      .def_prop_ro("adds_eos", [](const Service& self) { return self->tokenizer().adds_eos(); })
      .def_prop_ro("ends",
                   [](const Service& self) {
                     return std::vector<int32_t>(self->tokenizer().ends().begin(), self->tokenizer().ends().end());
                   })
      .def(
          "answer_marks", [](const Service& self) { return tools::answer_marks(self->tokenizer().vocabulary()); },
          "Ids of the control tokens that form tags of reasoning.")
      .def(
          "chat_template",
          [](const Service& self) -> std::optional<std::string> {
            constexpr std::string_view kKey = "tokenizer.chat_template";
            const models::GgufFile& file = self->model().file;
            return file.has(kKey) ? std::optional(file.get<std::string>(kKey)) : std::nullopt;
          },
          "The chat template of the model file, or None.");
}

std::vector<std::pair<std::string, bool>> pairs_of(const std::vector<tools::AnswerPiece>& pieces) {
  std::vector<std::pair<std::string, bool>> all;
  for (const tools::AnswerPiece& piece : pieces) all.emplace_back(piece.text, piece.is_thought);
  return all;
}

void bind_answers(nb::module_& module) {
  nb::class_<tools::AnswerSplitter>(module, "AnswerSplitter", "Splits an answer into reasoning and the answer proper.")
      .def(nb::init<bool, bool>(), "begins_with_thought"_a, "continues"_a = false)
      .def(
          "push", [](tools::AnswerSplitter& self, const std::string& text) { return pairs_of(self.push(text)); },
          "text"_a, "Adds text. Returns complete pieces: (text, is_reasoning).")
      .def(
          "finish", [](tools::AnswerSplitter& self) { return pairs_of(self.finish()); },
          "Returns the held back pieces.");
  module.def(
      "ends_in_thought", [](const std::string& prompt) { return tools::ends_in_thought(prompt); }, "prompt"_a,
      "Whether the prompt ends with a tag that begins reasoning.");
  module.def(
      "redirect_messages",
      [](nb::callable receiver) {
        // The function is never destroyed, because the program outlives the interpreter.
        const auto* const kept = new nb::callable(std::move(receiver));
        tools::redirect_messages([kept](std::string_view text) {
          const LockedPython lock;
          try {
            (*kept)(nb::str(text.data(), text.size()));
          } catch (nb::python_error& error) {
            error.discard_as_unraisable("shoal: a message");
          }
        });
      },
      "receiver"_a, "Sends messages and warnings to a function instead of stderr.");
}

}  // namespace

void bind_engine(nb::module_& module) {
  bind_outputs(module);
  bind_service(module);
  bind_tokenizer(module);
  bind_answers(module);
}

}  // namespace shoal::python
