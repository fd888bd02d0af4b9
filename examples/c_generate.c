// Generates text with a model on two devices that act as one device, in C.
//
//   example_c_generate model.gguf "In the beginning"
#include <shoal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(bool good) {
  if (good) return;
  fprintf(stderr, "c_generate: error: %s\n", shoal_last_error());
  exit(1);
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  check(shoal_cpu_configure("devices=2,threads=1") == SHOAL_OK);  // two CPU devices, also on a machine with one socket
  // Each device gets an equal share of the weights and of the KV cache.
  shoal_device* devices[] = {shoal_device_by_name("CPU0"), shoal_device_by_name("CPU1")};
  shoal_model* model = shoal_model_load(argv[1], devices, 2, NULL);
  check(model != NULL);
  shoal_session_options options = SHOAL_SESSION_OPTIONS_INIT;
  options.context = 256;
  shoal_session* session = shoal_session_new(model, &options);
  check(session != NULL);
  shoal_sampler_options sampling = SHOAL_SAMPLER_OPTIONS_INIT;
  sampling.temperature = 0;
  shoal_sampler* sampler = shoal_sampler_new(&sampling);

  shoal_token tokens[256], token;
  size_t count, length;
  char text[64];
  check(shoal_model_tokenize(model, argv[2], strlen(argv[2]), false, tokens, 256, &count) == SHOAL_OK);
  check(shoal_session_evaluate(session, tokens, count, 1) == SHOAL_OK);
  printf("%s", argv[2]);
  for (int i = 0; i < 8; ++i) {
    check(shoal_sampler_sample(sampler, session, &token) == SHOAL_OK);
    check(shoal_model_detokenize(model, &token, 1, false, text, sizeof text, &length) == SHOAL_OK);
    printf("%.*s", (int)length, text);
    check(shoal_session_evaluate(session, &token, 1, 1) == SHOAL_OK);
  }
  printf("\n");

  shoal_sampler_free(sampler);
  shoal_session_free(session);
  shoal_model_free(model);
}
