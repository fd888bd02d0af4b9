// shoal serve: serves a model over HTTP. The command checks all flags, and then replaces itself by the server of the
// Python package: `PYTHON -P -m shoal.server JSON`. The JSON object has these members:
//
//   "model"          the given flags of EngineFlags: ["--model", "m.gguf", "--devices", "CPU0,CPU1"]
//   "host", "port"   the address; port 0 means any free port
//   "api_key_file"   file with the key, or null; the server also reads SHOAL_API_KEY
//   "alias"          name of the model, or null
//   "cors_origins", "allowed_hosts"
//   "template", "template_vars"   file with a chat template, or null; variables of the template
//   "limits"         {"queue": requests, "body_bytes": bytes, "answer_tokens": tokens or null, "request_tokens": tokens
//                    or null, "request_seconds": s}
//   "ssl_certfile", "ssl_keyfile" files, or null
//   "defaults"       sampling of requests that do not set it, and "max_tokens" (-n; null: no limit)
#include <arpa/inet.h>
#include <fmt/format.h>

#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/user_file.h"
#include "models/gguf/gguf.h"
#include "tools/chat/conversation.h"
#include "tools/cli/command.h"
#include "tools/cli/flags.h"
#include "tools/cli/options.h"
#include "tools/cli/prompt.h"
#include "tools/cli/python_package.h"
#include "tools/startup/engine_flags.h"

namespace shoal::tools {
namespace {

using nlohmann::json;
using Text = std::optional<std::string>;

constexpr const char* kKeyVariable = "SHOAL_API_KEY";

struct ServeFlags {
  EngineFlags engine;
  ChatFlags chat;
  SamplingFlags sampling;
  std::string host = "127.0.0.1";
  int64_t port = 8080;
  Text key_file, alias, certificate, certificate_key;
  bool needs_no_key = false;
  std::vector<std::string> origins, hosts;
  int64_t queue = 64, body_mib = 32, seconds = 600;
  std::optional<int64_t> most_tokens;   ///< limit of the tokens of an answer
  std::optional<int64_t> most_context;  ///< limit of the tokens of a prompt and its answer
  int64_t count = -1;                   ///< number of tokens of an answer if the request names none; -1: no limit

  void add_to(CLI::App& app);
  /// Throws UsageError or InvalidArgument for flags and files that the server could not use.
  void check();
  json to_json() const;

 private:
  void add_network_to(CLI::App& app);
  void add_limits_to(CLI::App& app);
};

void add_file(CLI::App& app, const std::string& name, Text& file, const std::string& help) {
  const auto read = [&file](const std::string& flag, const std::string& text) {
    check_file_name(flag, text);
    file = text;
  };
  add_parsed(app, name, "FILE", read, help);
}

void check_origin(const std::string& flag, const std::string& text) {
  const size_t scheme = text.find("://");  // browser extensions and programs have schemes of their own
  const bool is_origin = scheme != std::string::npos && scheme > 0 && text.size() > scheme + 3 &&
                         text.find_first_of("/?#@ *", scheme + 3) == std::string::npos;
  require<InvalidArgument>(is_origin || text == "*" || text == "localhost",
                           "{}: '{}' is not an origin, such as https://chat.example.org", flag, text);
}

void check_host_name(const std::string& flag, const std::string& text) {
  require<InvalidArgument>(!text.empty() && text.find_first_of("/:@ ") == std::string::npos,
                           "{}: '{}' is not the name of a host, such as models.example.org, without port", flag, text);
}

void ServeFlags::add_network_to(CLI::App& app) {
  const auto read_host = [this](const std::string& flag, const std::string& text) {
    require<InvalidArgument>(!text.empty() && text.find_first_of("/ ") == std::string::npos,
                             "{}: '{}' is not an address, such as 127.0.0.1 or 0.0.0.0", flag, text);
    host = text;
  };
  add_parsed(app, "--host", "ADDRESS", read_host,
             "Address on which the server listens. Addresses other than 127.0.0.1, ::1 and localhost need an API key")
      ->default_str(host);
  add_integer(app, "--port", port, 0, 65535, "Port on which the server listens; 0: any free port");
  add_file(app, "--api-key-file", key_file,
           "File with the API key that clients must send; the variable SHOAL_API_KEY may contain the key instead");
  app.add_flag("--insecure-no-key", needs_no_key, "Serve everyone who reaches --host, without an API key");
  const auto read_origin = [this](const std::string& flag, const std::string& text) {
    check_origin(flag, text);
    origins.push_back(text);
  };
  add_repeated(app, "--cors-origin", "ORIGIN", read_origin,
               "Origin whose web pages may use the server, such as https://chat.example.org; localhost: pages of this "
               "host; *: every page; may be repeated");
  const auto read_allowed = [this](const std::string& flag, const std::string& text) {
    check_host_name(flag, text);
    hosts.push_back(text);
  };
  add_repeated(app, "--allowed-host", "NAME", read_allowed,
               "Host name by which clients may address the server, in addition to --host; may be repeated");
  add_file(app, "--ssl-certfile", certificate, "File with the certificate for HTTPS (PEM)");
  add_file(app, "--ssl-keyfile", certificate_key, "File with the private key of the certificate (PEM)");
}

void ServeFlags::add_limits_to(CLI::App& app) {
  const auto read_alias = [this](const std::string& flag, const std::string& text) {
    require<InvalidArgument>(!text.empty(), "{}: the name is empty; give a name", flag);
    alias = text;
  };
  add_parsed(app, "-a,--alias", "NAME", read_alias, "Name of the model for clients")->default_str("name of the file");
  add_integer(app, "--max-queue", queue, 0, 1'000'000,
              "Maximum number of waiting requests; further requests get status 429");
  add_integer(app, "--max-body", body_mib, 1, 4096, "Maximum size of a request in MiB");
  const auto read_most = [this](const std::string& flag, const std::string& text) {
    most_tokens = parse_integer(flag, text, 1, kMostTokens);
  };
  add_parsed(app, "--max-tokens", "INT", read_most,
             "Maximum number of tokens of an answer, whatever a request asks for")
      ->default_str("the context");
  const auto read_context = [this](const std::string& flag, const std::string& text) {
    most_context = parse_integer(flag, text, 2, kMostTokens);
  };
  add_parsed(app, "--max-context", "INT", read_context, "Maximum number of tokens of a prompt and its answer")
      ->default_str("the context");
  add_integer(app, "--request-timeout", seconds, 1, 1'000'000,
              "Maximum time in seconds from a request to the end of its answer");
}

void ServeFlags::add_to(CLI::App& app) {
  engine.add_to(app);
  chat.add_to(app);
  app.remove_option(app.get_option("--system"));  // the system prompt is a part of each request
  add_network_to(app);
  add_limits_to(app);
  sampling.add_to(app);
  sampling.add_penalties_to(app);
  // Biases belong to single requests. The engine copies all logits to the host whenever a request needs them.
  app.remove_option(app.get_option("--logit-bias"));
  app.remove_option(app.get_option("--sample-on-host"));
  add_integer(
      app, "-n,--predict", count, -1, kMostTokens,
      "Number of tokens to generate if a request names no limit; -1: until the text ends or the context is full");
}

/// Whether only programs of this host reach the address.
bool is_loopback(const std::string& host) {
  in_addr four{};
  in6_addr six{};
  if (inet_pton(AF_INET, host.c_str(), &four) == 1) return (ntohl(four.s_addr) >> 24) == 127;
  if (inet_pton(AF_INET6, host.c_str(), &six) == 1) return IN6_IS_ADDR_LOOPBACK(&six);
  return host == "localhost";
}

bool is_blank(std::string_view text) {
  return text.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

/// Whether a variable has a value. The server removes blanks around the value.
bool is_set(const char* variable) {
  const char* const value = std::getenv(variable);
  return value != nullptr && !is_blank(value);
}

/// Throws InvalidArgument if the file cannot be read or contains only blanks.
void check_text(const std::string& path, std::string_view what) {
  const std::string text = read_file({.path = path, .what = what, .most_bytes = size_t{1} << 20});
  require<InvalidArgument>(!is_blank(text), "{}: the file is empty; give a file with the {}", path, what);
}

void ServeFlags::check() {
  if (!is_loopback(host) && !key_file && !is_set(kKeyVariable) && !needs_no_key) {
    throw UsageError(
        fmt::format("--host {}: other hosts could use the server without an API key; give a key with --api-key-file or "
                    "{}, or add --insecure-no-key",
                    host, kKeyVariable));
  }
  if (needs_no_key && (key_file || is_set(kKeyVariable))) {
    throw UsageError(fmt::format("--insecure-no-key contradicts the API key of {}; omit one of them",
                                 key_file ? "--api-key-file" : kKeyVariable));
  }
  if (certificate_key && !certificate) {
    throw UsageError("--ssl-keyfile needs the certificate of the key; add --ssl-certfile");
  }
  if (key_file) check_text(*key_file, "API key");
  if (certificate) check_text(*certificate, "certificate");
  if (certificate_key) check_text(*certificate_key, "private key");
  if (chat.template_file) check_text(*chat.template_file, "chat template");
  engine.choice.devices.check();
  models::GgufFile(engine.choice.model.path);
}

/// The number that the flag contained: 0.8 instead of 0.800000011920929.
double decimal(float number) {
  return std::stod(fmt::format("{}", number));
}

json defaults_of(const ServeFlags& flags) {
  const models::SamplerParams& sampler = flags.sampling.sampler;
  return {{"temperature", decimal(sampler.temp)},
          {"top_k", sampler.top_k},
          {"top_p", decimal(sampler.top_p)},
          {"min_p", decimal(sampler.min_p)},
          {"repeat_penalty", decimal(sampler.repeat_penalty)},
          {"presence_penalty", decimal(sampler.presence_penalty)},
          {"frequency_penalty", decimal(sampler.frequency_penalty)},
          {"penalty_last_n", sampler.penalty_last_n},
          {"seed", flags.sampling.random_seed ? json() : json(sampler.seed)},
          {"max_tokens", flags.count < 0 ? json() : json(flags.count)}};
}

json ServeFlags::to_json() const {
  const auto or_null = [](const auto& value) { return value ? json(*value) : json(); };
  return {{"model", engine.given()},
          {"host", host},
          {"port", port},
          {"api_key_file", or_null(key_file)},
          {"alias", or_null(alias)},
          {"cors_origins", origins},
          {"allowed_hosts", hosts},
          {"template", or_null(chat.template_file)},
          {"template_vars", chat.variables},
          {"limits",
           {{"queue", queue},
            {"body_bytes", body_mib << 20},
            {"answer_tokens", or_null(most_tokens)},
            {"request_tokens", or_null(most_context)},
            {"request_seconds", seconds}}},
          {"ssl_certfile", or_null(certificate)},
          {"ssl_keyfile", or_null(certificate_key)},
          {"defaults", defaults_of(*this)}};
}

}  // namespace

CommandBody define_serve(CLI::App& app) {
  auto flags = std::make_shared<ServeFlags>();
  flags->add_to(app);
  return [flags]() -> int {
    flags->check();
    // Invalid UTF-8, such as in a file name, becomes U+FFFD.
    become_python("shoal.server", {flags->to_json().dump(-1, ' ', false, json::error_handler_t::replace)});
  };
}

}  // namespace shoal::tools
