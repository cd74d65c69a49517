#include "server/metrics.h"

#include <charconv>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <system_error>

#include <sys/resource.h>
#include <unistd.h>

#include "glm53/core/limits.h"
#include "server/request_counts.h"

namespace glm53::server {
namespace {

std::string number(double value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

std::string escaped(std::string_view value) {
  std::string out;
  for (const char c : value) {
    if (c == '\n') {
      out += "\\n";
    } else {
      if (c == '\\' || c == '"') out += '\\';
      out += c;
    }
  }
  return out;
}

/// Writes families in the order of the calls; every sample carries the labels of spec 40 §13.
class Exposition {
 public:
  explicit Exposition(std::string_view model) : labels_("model_name=\"" + escaped(model) + "\",engine=\"0\"") {}

  void family(const char* name, const char* type, const char* help) {
    text_ += std::string("# HELP ") + name + ' ' + help + "\n# TYPE " + name + ' ' + type + '\n';
  }
  void sample(const std::string& name, double value, const std::string& more = {}) {
    text_ += name + '{' + labels_ + (more.empty() ? "" : ",") + more + "} " + number(value) + '\n';
  }
  void single(const char* name, const char* type, const char* help, double value) {
    family(name, type, help);
    sample(name, value);
  }
  void counter(const char* name, const char* help, uint64_t value) {
    single(name, "counter", help, static_cast<double>(value));
  }
  void gauge(const char* name, const char* help, double value) { single(name, "gauge", help, value); }
  void histogram(const char* name, const char* help, const engine::Histogram& values) {
    family(name, "histogram", help);
    uint64_t below = 0;
    for (size_t i = 0; i < values.counts.size(); ++i) {
      below += values.counts[i];
      const std::string bound = i < values.bounds.size() ? number(values.bounds[i]) : "+Inf";
      sample(std::string(name) + "_bucket", static_cast<double>(below), "le=\"" + bound + '"');
    }
    sample(std::string(name) + "_sum", values.sum);
    sample(std::string(name) + "_count", static_cast<double>(below));
  }

  std::string take() { return std::move(text_); }

 private:
  std::string labels_;
  std::string text_;
};

void write_state(const engine::EngineStatus& status, const ApiContext& api, Exposition& out) {
  const auto pages = static_cast<double>(status.pages_total);
  const double used = pages > 0 ? static_cast<double>(status.pages_used) / pages : 0;
  out.gauge("vllm:num_requests_running", "Requests being served.", status.running);
  out.gauge("vllm:num_requests_waiting", "Requests in the queue.", status.waiting);
  out.gauge("vllm:kv_cache_usage_perc", "Part of the cache pages in use, 0 to 1.", used);
  out.gauge("vllm:gpu_cache_usage_perc", "Older name of vllm:kv_cache_usage_perc.", used);
  out.family("vllm:cache_config_info", "gauge", "Sizes of the cache.");
  out.sample("vllm:cache_config_info", 1,
             "block_size=\"" + std::to_string(kPageTokens) + "\",num_gpu_blocks=\"" +
                 std::to_string(status.pages_total) + "\",max_model_len=\"" + std::to_string(api.generator.context()) +
                 '"');
}

/// Counters of what this server does not do. Dashboards divide by them or break without them.
void write_zeros(Exposition& out) {
  for (const char* name :
       {"vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_queries_total",
        "vllm:gpu_prefix_cache_hits_total", "vllm:mm_cache_queries_total", "vllm:mm_cache_hits_total",
        "vllm:num_preemptions_total", "vllm:spec_decode_num_drafts_total", "vllm:spec_decode_num_draft_tokens_total",
        "vllm:spec_decode_num_accepted_tokens_total"}) {
    out.counter(name, "Always 0 in this version.", 0);
  }
  const char* per_position = "vllm:spec_decode_num_accepted_tokens_per_pos_total";
  out.family(per_position, "counter", "Always 0 in this version.");
  out.sample(per_position, 0, "position=\"0\"");
}

void write_counts(const engine::EngineMetrics& counted, Exposition& out) {
  out.counter("vllm:prompt_tokens_total", "Prompt tokens of requests that gave a token.", counted.prompt_tokens);
  out.counter("vllm:generation_tokens_total", "Delivered tokens.", counted.generation_tokens);
  static constexpr const char* kReasons[] = {"stop", "length", "abort", "error"};  // in the order of FinishReason
  out.family("vllm:request_success_total", "counter", "Requests that ended, by reason.");
  for (size_t i = 0; i < counted.finished.size(); ++i) {
    out.sample("vllm:request_success_total", static_cast<double>(counted.finished[i]),
               std::string("finished_reason=\"") + kReasons[i] + '"');
  }
  out.counter("glm53:queue_refusals_total", "Requests refused since the queue was full.", counted.refused);
  out.counter("glm53:requests_cancelled_total", "Requests whose client left.",
              counted.finished[static_cast<size_t>(engine::FinishReason::kCancelled)]);
}

void write_histograms(const engine::EngineMetrics& counted, Exposition& out) {
  out.histogram("vllm:iteration_tokens_total", "Tokens of one forward call.", counted.iteration_tokens);
  out.histogram("vllm:time_to_first_token_seconds", "From queueing to the first token.", counted.time_to_first_token);
  out.histogram("vllm:inter_token_latency_seconds", "Between two tokens.", counted.inter_token);
  out.histogram("vllm:request_time_per_output_token_seconds", "Mean time of a request's tokens after the first.",
                counted.time_per_output_token);
  out.histogram("vllm:time_per_output_token_seconds", "Older name of vllm:inter_token_latency_seconds.",
                counted.inter_token);
  out.histogram("vllm:e2e_request_latency_seconds", "From queueing to the end.", counted.e2e);
  out.histogram("vllm:request_queue_time_seconds", "In the queue.", counted.queue);
  out.histogram("vllm:request_inference_time_seconds", "From leaving the queue to the end.", counted.inference);
  out.histogram("vllm:request_prefill_time_seconds", "From leaving the queue to the first token.", counted.prefill);
  out.histogram("vllm:request_decode_time_seconds", "From the first token to the last.", counted.decode);
  out.histogram("vllm:request_prompt_tokens", "Prompt tokens of a request.", counted.request_prompt_tokens);
  out.histogram("vllm:request_generation_tokens", "Tokens of a reply.", counted.request_generation_tokens);
  out.histogram("vllm:request_max_num_generation_tokens", "Tokens of a reply, each choice by itself.",
                counted.request_generation_tokens);
  out.histogram("vllm:request_params_max_tokens", "Limit of a reply.", counted.request_max_tokens);
  out.histogram("vllm:request_prefill_kv_computed_tokens", "Prompt tokens that were not cached.",
                counted.request_computed_tokens);
  out.histogram("vllm:request_params_n", "Choices of a prompt.", counted.request_choices);
}

void write_requests(const ApiContext& api, Exposition& out) {
  out.family("http_requests_total", "counter", "Answered requests; status 499: the client left before a reply began.");
  for (const auto& [key, count] : api.requests.read()) {
    out.sample("http_requests_total", static_cast<double>(count),
               "handler=\"" + escaped(key.route) + "\",method=\"" + escaped(key.method) + "\",status=\"" +
                   std::to_string(key.status) + '"');
  }
}

/// The names of Prometheus' own client libraries.
void write_process(const ApiContext& api, Exposition& out) {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  int64_t virtual_pages = 0, resident_pages = 0;
  std::ifstream("/proc/self/statm") >> virtual_pages >> resident_pages;
  const auto page_bytes = static_cast<double>(::sysconf(_SC_PAGESIZE));
  std::error_code unreadable;
  const auto descriptors = std::distance(std::filesystem::directory_iterator("/proc/self/fd", unreadable), {});
  out.single("process_cpu_seconds_total", "counter", "Processor time of the process.",
             seconds(usage.ru_utime) + seconds(usage.ru_stime));
  out.gauge("process_resident_memory_bytes", "Resident memory.", static_cast<double>(resident_pages) * page_bytes);
  out.gauge("process_virtual_memory_bytes", "Virtual memory.", static_cast<double>(virtual_pages) * page_bytes);
  out.gauge("process_open_fds", "Open file descriptors.", static_cast<double>(descriptors));
  out.gauge("process_start_time_seconds", "Start, in Unix time.", static_cast<double>(api.started));
}

}  // namespace

HttpResponse metrics(const HttpRequest&, const ApiContext& api) {
  const engine::EngineMetrics counted = api.generator.metrics();
  Exposition out(api.rules.settings.model.served_name.front());
  write_state(api.generator.status(), api, out);
  write_counts(counted, out);
  write_histograms(counted, out);
  write_requests(api, out);
  write_process(api, out);
  write_zeros(out);
  HttpResponse response;
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  response.body = out.take();
  return response;
}

}  // namespace glm53::server
