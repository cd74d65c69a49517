// GET /metrics: the text format, and every name that dashboards look for.
#include <ctime>
#include <set>
#include <sstream>

#include <gmock/gmock.h>

#include "api_test.h"

namespace glm53::server {
namespace {

using engine::FinishReason;

class MetricsTest : public ApiTest {
 protected:
  /// Samples by name and labels. Checks that each belongs to the family announced last.
  std::map<std::string, double> scrape() {
    const RawReply reply = ask(get("/metrics"));
    EXPECT_EQ(reply.status, 200);
    EXPECT_EQ(reply.header("content-type"), "text/plain; version=0.0.4; charset=utf-8");
    EXPECT_EQ(reply.body.back(), '\n');
    std::map<std::string, double> samples;
    std::set<std::string> families;
    std::string line, family;
    for (std::istringstream lines(reply.body); std::getline(lines, line);) {
      if (line.rfind("# HELP ", 0) == 0) continue;
      if (line.rfind("# TYPE ", 0) == 0) {
        family = line.substr(7, line.find(' ', 7) - 7);
        EXPECT_TRUE(families.insert(family).second) << family << " twice";
        continue;
      }
      EXPECT_EQ(line.rfind(family, 0), 0U) << line;
      const size_t space = line.rfind(' ');
      EXPECT_TRUE(samples.emplace(line.substr(0, space), std::stod(line.substr(space + 1))).second) << line;
    }
    return samples;
  }
  static std::string labelled(const std::string& name, const std::string& more = {}) {
    return name + "{model_name=\"served\",engine=\"0\"" + (more.empty() ? "" : ',' + more) + '}';
  }
};

TEST_F(MetricsTest, EveryNameIsThereBeforeTheFirstRequest) {
  const auto samples = scrape();
  for (const char* name :
       {"vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc",
        "vllm:gpu_cache_usage_perc", "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total",
        "vllm:mm_cache_queries_total", "vllm:mm_cache_hits_total", "vllm:num_preemptions_total",
        "vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:spec_decode_num_drafts_total",
        "vllm:spec_decode_num_draft_tokens_total", "vllm:spec_decode_num_accepted_tokens_total"}) {
    ASSERT_TRUE(samples.contains(labelled(name))) << name;
    EXPECT_EQ(samples.at(labelled(name)), 0) << name;
  }
  for (const char* reason : {"stop", "length", "abort", "error"}) {
    EXPECT_EQ(samples.at(labelled("vllm:request_success_total", "finished_reason=\"" + std::string(reason) + '"')), 0);
  }
  EXPECT_EQ(samples.at(labelled("vllm:spec_decode_num_accepted_tokens_per_pos_total", "position=\"0\"")), 0);
  for (const char* name :
       {"vllm:iteration_tokens_total", "vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds",
        "vllm:request_time_per_output_token_seconds", "vllm:time_per_output_token_seconds",
        "vllm:e2e_request_latency_seconds", "vllm:request_queue_time_seconds", "vllm:request_inference_time_seconds",
        "vllm:request_prefill_time_seconds", "vllm:request_decode_time_seconds", "vllm:request_prompt_tokens",
        "vllm:request_generation_tokens", "vllm:request_max_num_generation_tokens", "vllm:request_params_max_tokens",
        "vllm:request_prefill_kv_computed_tokens", "vllm:request_params_n"}) {
    EXPECT_EQ(samples.at(labelled(std::string(name) + "_count")), 0) << name;
    EXPECT_EQ(samples.at(labelled(std::string(name) + "_sum")), 0) << name;
    EXPECT_EQ(samples.at(labelled(std::string(name) + "_bucket", "le=\"+Inf\"")), 0) << name;
  }
}

TEST_F(MetricsTest, ShowsWhatTheEngineCounted) {
  generator_.current.running = 1;
  generator_.current.waiting = 3;
  generator_.current.pages_used = 4;
  generator_.current.pages_total = 16;
  generator_.counted.prompt_tokens = 40;
  generator_.counted.finished = {5, 6, 7, 8};
  for (const double seconds : {0.005, 0.02, 0.03, 5000.0}) generator_.counted.time_to_first_token.add(seconds);
  generator_.counted.request_prompt_tokens.add(40);
  const auto samples = scrape();
  EXPECT_EQ(samples.at(labelled("vllm:num_requests_running")), 1);
  EXPECT_EQ(samples.at(labelled("vllm:num_requests_waiting")), 3);
  EXPECT_EQ(samples.at(labelled("vllm:kv_cache_usage_perc")), 0.25);
  EXPECT_EQ(samples.at(labelled("vllm:prompt_tokens_total")), 40);
  EXPECT_EQ(samples.at(labelled("vllm:request_success_total", "finished_reason=\"length\"")), 6);
  const auto first_token = [&](const char* bound) {
    return samples.at(labelled("vllm:time_to_first_token_seconds_bucket", "le=\"" + std::string(bound) + '"'));
  };
  EXPECT_EQ(first_token("0.001"), 0);  // bounds include their value, buckets all below them
  EXPECT_EQ(first_token("0.005"), 1);
  EXPECT_EQ(first_token("0.01"), 1);
  EXPECT_EQ(first_token("0.02"), 2);
  EXPECT_EQ(first_token("2560"), 3);
  EXPECT_EQ(first_token("+Inf"), 4);
  EXPECT_DOUBLE_EQ(samples.at(labelled("vllm:time_to_first_token_seconds_sum")), 5000.055);
  EXPECT_EQ(samples.at(labelled("vllm:request_prompt_tokens_bucket", "le=\"20\"")), 0);
  EXPECT_EQ(samples.at(labelled("vllm:request_prompt_tokens_bucket", "le=\"500\"")), 1);  // the last within 512
  EXPECT_FALSE(samples.contains(labelled("vllm:request_prompt_tokens_bucket", "le=\"1000\"")));
}

TEST_F(MetricsTest, AnswersAreCountedByRouteMethodAndStatus) {
  settings_.server.max_body_mib = 1;
  ask(get("/health"));
  ask(get("/health/"));
  ask("HEAD /health HTTP/1.1\r\nConnection: close\r\n\r\n");
  ask(get("/v1/models/served"));
  ask(get("/v1%2Fmodels"));
  ask(get("/made/up/1"));
  ask(get("/made/up/2"));
  ask(post("/v1/completions", "{}"));
  ask("POST /v1/completions HTTP/1.1\r\nContent-Length: 9999999\r\n\r\n");
  ask("\x16");
  const auto count = [&](const std::string& route, const std::string& method, int status) {
    const std::string name = labelled("http_requests_total", "handler=\"" + route + "\",method=\"" + method +
                                                                 "\",status=\"" + std::to_string(status) + '"');
    const auto samples = scrape();
    return samples.contains(name) ? samples.at(name) : 0;
  };
  for (int i = 0; i < 1000 && count("none", "", 400) == 0; ++i) {  // counted after the reply
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  EXPECT_EQ(count("/health", "GET", 200), 2);
  EXPECT_EQ(count("/health", "HEAD", 200), 1);
  EXPECT_EQ(count("/v1/models/", "GET", 200), 1);
  EXPECT_EQ(count("/v1/models", "GET", 200), 1);
  EXPECT_EQ(count("none", "GET", 404), 2);
  EXPECT_EQ(count("/v1/completions", "POST", 400), 1);
  EXPECT_EQ(count("/v1/completions", "POST", 413), 1);
  EXPECT_EQ(count("none", "", 400), 1);
}

TEST_F(MetricsTest, TheProcessIsMeasured) {
  timespec used{};  // what is too short to be counted would read 0
  do {
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  } while (used.tv_sec == 0 && used.tv_nsec < 50'000'000);
  const auto samples = scrape();
  EXPECT_GT(samples.at(labelled("process_resident_memory_bytes")), 1e6);
  EXPECT_GE(samples.at(labelled("process_virtual_memory_bytes")),
            samples.at(labelled("process_resident_memory_bytes")));
  EXPECT_GE(samples.at(labelled("process_open_fds")), 3);
  EXPECT_GT(samples.at(labelled("process_cpu_seconds_total")), 0);
  EXPECT_NEAR(samples.at(labelled("process_start_time_seconds")), static_cast<double>(std::time(nullptr)), 600);
}

TEST_F(MetricsTest, LabelsAreEscaped) {
  settings_.model.served_name = {"a\"b\\c\nd"};
  EXPECT_THAT(ask(get("/metrics")).body,
              testing::HasSubstr("vllm:num_requests_running{model_name=\"a\\\"b\\\\c\\nd\",engine=\"0\"} 0\n"));
}

TEST_F(MetricsTest, OpenToDashboardsWhereTextIsNot) {
  settings_.server.api_key = {"key"};
  EXPECT_EQ(ask(get("/metrics")).status, 200);
  for (const char* path : {"/tokenize", "/v1/tokenize", "/detokenize", "/v1/detokenize"}) {
    EXPECT_EQ(ask(post(path, R"({"prompt":"a","tokens":[]})")).status, 401) << path;
    EXPECT_EQ(ask(post(path, R"({"prompt":"a","tokens":[]})", "x-api-key: key\r\n")).status, 200) << path;
  }
}

}  // namespace
}  // namespace glm53::server
