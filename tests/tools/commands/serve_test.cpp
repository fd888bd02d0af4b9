// Tests of `shoal serve` up to the start of the Python package. A script prints the arguments of the package.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/tools/child.h"
#include "tests/tools/fake_python.h"

namespace shoal::tools {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// The object that `shoal serve -m MODEL ...` passes to the server.
json options_of(std::vector<std::string> args, const std::map<std::string, std::string>& variables = {}) {
  const FakePython python;
  args.insert(args.begin(), {"serve", "-m", kModel});
  const Finished finished = run(args, python.around(variables));
  EXPECT_EQ(finished.code, 0) << finished.err;
  const std::vector<std::string> words = lines(finished.out);
  if (words.size() != 4) return ADD_FAILURE() << finished.out, json();
  EXPECT_THAT(std::vector(words.begin(), words.end() - 1), ElementsAre("-P", "-m", "shoal.server"));
  return json::parse(words.back());
}

/// The error line of `shoal serve` with these flags, which must be wrong for every model.
std::string usage_error(std::vector<std::string> args, const std::map<std::string, std::string>& variables = {}) {
  const FakePython python;
  args.insert(args.begin(), "serve");
  const Finished finished = run(args, python.around(variables));
  EXPECT_EQ(finished.code, 2) << finished.err;
  EXPECT_EQ(finished.out, "");
  EXPECT_EQ(std::count(finished.err.begin(), finished.err.end(), '\n'), 1) << finished.err;
  return finished.err;
}

TEST(Serve, PassesSecureDefaults) {
  const json options = options_of({});
  EXPECT_EQ(options["model"], json({"--model", kModel}));
  EXPECT_EQ(options["host"], "127.0.0.1");
  EXPECT_EQ(options["port"], 8080);
  EXPECT_EQ(options["api_key_file"], nullptr);
  EXPECT_EQ(options["alias"], nullptr);
  EXPECT_EQ(options["cors_origins"], json::array());
  EXPECT_EQ(options["allowed_hosts"], json::array());
  EXPECT_EQ(options["template"], nullptr);
  EXPECT_EQ(options["template_vars"], json::object());
  EXPECT_EQ(options["limits"], json({{"queue", 64},
                                     {"body_bytes", 32 << 20},
                                     {"answer_tokens", nullptr},
                                     {"request_tokens", nullptr},
                                     {"request_seconds", 600}}));
  EXPECT_EQ(options["defaults"]["temperature"], 0.8);
  EXPECT_EQ(options["defaults"]["top_k"], 40);
  EXPECT_EQ(options["defaults"]["seed"], nullptr);
  EXPECT_EQ(options["defaults"]["max_tokens"], nullptr);
}

TEST(Serve, PassesAllFlags) {
  const test::TemporaryFile key("key.txt", "secret\n"), jinja("template.jinja", "{{ messages }}"),
      certificate("cert.pem", "certificate");
  const json options = options_of({"--host",
                                   "0.0.0.0",
                                   "--port",
                                   "9000",
                                   "--api-key-file",
                                   key.path,
                                   "--alias",
                                   "tiny",
                                   "--cors-origin",
                                   "https://a.example",
                                   "--cors-origin",
                                   "http://b.example:3000",
                                   "--allowed-host",
                                   "models.example",
                                   "--template",
                                   jinja.path,
                                   "--template-var",
                                   "enable_thinking=false",
                                   "--max-queue",
                                   "2",
                                   "--max-body",
                                   "1",
                                   "--max-tokens",
                                   "100",
                                   "--max-context",
                                   "200",
                                   "--request-timeout",
                                   "9",
                                   "--ssl-certfile",
                                   certificate.path,
                                   "--ssl-keyfile",
                                   key.path,
                                   "--temp",
                                   "0.25",
                                   "--seed",
                                   "7",
                                   "-n",
                                   "20",
                                   "-dev",
                                   "CPU0,CPU1",
                                   "-np",
                                   "4",
                                   "--ctx-checkpoints",
                                   "3"});
  EXPECT_EQ(options["model"],
            json({"--model", kModel, "--devices", "CPU0,CPU1", "--ctx-checkpoints", "3", "--parallel", "4"}));
  EXPECT_EQ(options["host"], "0.0.0.0");
  EXPECT_EQ(options["port"], 9000);
  EXPECT_EQ(options["api_key_file"], key.path);
  EXPECT_EQ(options["alias"], "tiny");
  EXPECT_EQ(options["cors_origins"], json({"https://a.example", "http://b.example:3000"}));
  EXPECT_EQ(options["allowed_hosts"], json({"models.example"}));
  EXPECT_EQ(options["template"], jinja.path);
  EXPECT_EQ(options["template_vars"], json({{"enable_thinking", false}}));
  EXPECT_EQ(options["limits"], json({{"queue", 2},
                                     {"body_bytes", 1 << 20},
                                     {"answer_tokens", 100},
                                     {"request_tokens", 200},
                                     {"request_seconds", 9}}));
  EXPECT_EQ(options["ssl_certfile"], certificate.path);
  EXPECT_EQ(options["ssl_keyfile"], key.path);
  EXPECT_EQ(options["defaults"]["temperature"], 0.25);
  EXPECT_EQ(options["defaults"]["seed"], 7);
  EXPECT_EQ(options["defaults"]["max_tokens"], 20);
}

TEST(Serve, KeyStaysOutOfTheArguments) {
  const test::TemporaryFile key("key.txt", "secret-of-the-file");
  EXPECT_THAT(options_of({"--api-key-file", key.path}, {{"SHOAL_API_KEY", "secret-of-the-variable"}}).dump(),
              ::testing::Not(HasSubstr("secret-of")));
}

TEST(Serve, OtherHostsNeedAKey) {
  for (const char* host : {"0.0.0.0", "::", "192.168.1.2", "models.example", "128.0.0.1"}) {
    EXPECT_THAT(usage_error({"-m", kModel, "--host", host}),
                HasSubstr("give a key with --api-key-file or SHOAL_API_KEY, or add --insecure-no-key\n"))
        << host;
    EXPECT_EQ(options_of({"--host", host, "--insecure-no-key"})["host"], host);
    EXPECT_EQ(options_of({"--host", host}, {{"SHOAL_API_KEY", "k"}})["host"], host);
  }
  for (const char* host : {"127.0.0.1", "127.1.2.3", "::1", "localhost"}) {
    EXPECT_EQ(options_of({"--host", host})["host"], host);
  }
  EXPECT_THAT(usage_error({"-m", kModel, "--host", "0.0.0.0"}, {{"SHOAL_API_KEY", " \t\n"}}),
              HasSubstr("other hosts could use the server without an API key"));
  EXPECT_THAT(usage_error({"-m", kModel, "--host", "0.0.0.0"}, {{"SHOAL_API_KEY", ""}}),
              HasSubstr("without an API key"));
}

TEST(Serve, ReportsContradictoryFlags) {
  EXPECT_THAT(usage_error({"-m", kModel, "--insecure-no-key"}, {{"SHOAL_API_KEY", "k"}}),
              HasSubstr("--insecure-no-key contradicts the API key of SHOAL_API_KEY"));
  EXPECT_THAT(usage_error({"-m", kModel, "--ssl-keyfile", "key.pem"}), HasSubstr("add --ssl-certfile"));
  EXPECT_THAT(usage_error({"-m", kModel, "-dev", "CPU0,CPU1", "-ts", "1,2,3"}), HasSubstr("3 numbers for 2 devices"));
  EXPECT_THAT(usage_error({"-m", kModel, "--cors-origin", "a.example"}),
              HasSubstr("is not an origin, such as https://"));
  EXPECT_THAT(usage_error({"-m", kModel, "--cors-origin", "https://a/b"}), HasSubstr("is not an origin"));
  EXPECT_THAT(usage_error({"-m", kModel, "--allowed-host", "a:80"}), HasSubstr("is not the name of a host"));
  EXPECT_THAT(usage_error({"-m", kModel, "--port", "65536"}),
              HasSubstr("--port must be a whole number from 0 to 65535"));
  EXPECT_THAT(usage_error({"-m", kModel, "--api-key", "k"}), HasSubstr("did you mean --api-key-file?"));
  EXPECT_THAT(usage_error({}), HasSubstr("--model or --hf-repo is required; see shoal serve --help\n"));
}

TEST(Serve, ReportsUnusableFiles) {
  const FakePython python;
  const test::TemporaryFile empty("key.txt", " \n");
  for (const auto& [flag, path, message] : {std::tuple<std::string, std::string, std::string>(
                                                "--api-key-file", empty.path, "the file is empty; give a file"),
                                            {"--api-key-file", "no-such-file", "no-such-file"},
                                            {"--template", "no-such-file", "no-such-file"},
                                            {"--ssl-certfile", "/", "is a directory"},
                                            {"-m", "no-such-file", "no-such-file: cannot open the model file"}}) {
    const Finished finished = run({"serve", "-m", kModel, flag, path}, python.around());
    EXPECT_EQ(finished.code, 1) << flag;
    EXPECT_EQ(finished.out, "") << flag;
    EXPECT_THAT(finished.err, HasSubstr(message)) << flag;
  }
}

}  // namespace
}  // namespace shoal::tools
