#include "tools/startup/service.h"

#include "base/error.h"
#include "meta/device/meta_family.h"
#include "meta/plan/plan.h"
#include "tools/cli/model_text.h"
#include "tools/cli/prompt.h"
#include "tools/startup/engine_flags.h"

namespace shoal::tools {
namespace {

/// Number of prompt tokens per step whose log probabilities a request can get (RequestOptions::lists_prompt).
constexpr int64_t kPromptOutputs = 64;

Deployment resolve_service(const std::vector<std::string>& arguments) {
  meta::family();
  EngineFlags flags;
  flags.parse(arguments);
  require<InvalidArgument>(!flags.choice.model.path.empty(), "--model is required");
  flags.choice.devices.check();
  auto model = models::open_model(flags.choice.model.path);
  warn_of_ignored(*model);
  if (flags.choice.devices.profile) warn_of_profile(*flags.choice.devices.profile, *model);
  Request request{std::move(model),
                  flags.choice.asked(flags.choice.devices.find_groups(), SamplingFlags{}.candidates())};
  models::SessionOptions& session = request.asked.session;
  session.sequences = flags.parallel;
  session.drafts = flags.draft;
  session.outputs = flags.parallel * (1 + flags.draft) + kPromptOutputs;
  session = models::engine_options(session, flags.choice.context.checkpoints);
  Deployment deployment = resolve(std::move(request));
  flags.choice.devices.warn_of_ways(*deployment.model);
  warn_of_context(deployment.model->hparams, deployment.plan->size.context);
  return deployment;
}

std::string plan_text(const models::ModelPlan& plan) {
  std::string text;
  for (size_t d = 0; d < plan.step.plans.size(); ++d) {
    if (!plan.step.plans[d]) continue;
    if (plan.step.plans.size() > 1) text += fmt::format("on {}\n", plan.step.schedule.backends[d]);
    text += meta::layouts_text(*plan.step.plans[d]) + meta::steps_text(*plan.step.plans[d]);
  }
  return text;
}

}  // namespace

Service::Service(const std::vector<std::string>& arguments, const models::LoadProgress& progress)
    : deployment_(resolve_service(arguments)), tokenizer_(deployment_.model->file) {
  check_tokenizer(*deployment_.model, tokenizer_);
  memory_ = deployment_.plan->memory;
  cache_tokens_ = deployment_.plan->cache.rows;
  plan_ = plan_text(*deployment_.plan);
  load(deployment_, progress);
  start_engine(deployment_, &tokenizer_);
  thread_ = std::make_unique<models::EngineThread>(*deployment_.engine);
}

}  // namespace shoal::tools
