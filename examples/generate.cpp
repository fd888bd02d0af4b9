// Generates text with a model on devices that act as one device.
//
//   example_generate model.gguf CPU0,CPU1 "In the beginning"
#include <fmt/core.h>

#include <array>
#include <exception>

#include "models/session/loader.h"
#include "models/session/session.h"
#include "models/tokenizer/tokenizer.h"

using namespace shoal;

static void generate(const char* file, const char* devices, const char* prompt) {
  // Opens the file and places the weights on the devices. Each device gets an equal share.
  auto model = models::open_model(file);
  models::Placement placement(*model, Registry::instance().device_list(devices));
  models::load_weights(*model, placement);

  // A session owns the KV cache of one sequence and the plans of its graphs.
  models::Session session(*model, placement, placement.init(), {.context = 256});
  models::Tokenizer tokenizer(model->file);
  models::Sampler sampler({.temp = 0});

  // The whole prompt is one batch. Each later batch contains the last sampled token.
  fmt::print("{}", prompt);
  session.evaluate(tokenizer.encode(prompt));
  for (int i = 0; i < 8; ++i) {
    const int32_t token = sampler.sample(session.logits());
    fmt::print("{}", tokenizer.decode({&token, 1}, false));
    session.evaluate(std::array{token});
  }
  fmt::print("\n");
}

int main(int argc, char** argv) {
  if (argc != 4) {
    fmt::print(stderr, "usage: example_generate MODEL DEVICES PROMPT\n");
    return 2;
  }
  try {
    generate(argv[1], argv[2], argv[3]);
  } catch (const std::exception& error) {
    fmt::print(stderr, "generate: error: {}\n", error.what());
    return 1;
  }
}
