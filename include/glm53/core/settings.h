// The effective configuration of one process, after file, environment and command line are merged (spec 50 §19).
// `config/` fills and checks it; every other part only reads the section that concerns it. A field's comment gives its
// unit; its key is section.field as written here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace glm53 {

struct ModelSettings {
  std::string path;                                               ///< checkpoint directory
  std::vector<std::string> served_name = {"GLM-5.3-Flash-EXL3"};  ///< not empty; the first is the default
  std::string load_format = "checkpoint";  ///< checkpoint | dummy (config.json alone; random weights)
};

/// Weights of model.load_format dummy.
struct DummySettings {
  int experts_k = 4;                 ///< bits a weight of the routed experts
  std::vector<std::string> layer_k;  ///< "LAYER:K" where a layer's experts differ
  int64_t seed = 0;
};

struct ServerSettings {
  std::string host = "0.0.0.0";
  int port = 8888;
  std::vector<std::string> api_key;  ///< empty: open
  int max_body_mib = 96;
  int max_bodies_mib = 256;   ///< of all connections together; beyond it 503
  int max_connections = 512;  ///< one thread each; beyond it 503
  int header_kib = 16;
  int header_timeout_s = 10;  ///< for the whole header block
  int body_timeout_s = 60;    ///< of silence while a body arrives
  int write_timeout_s = 120;  ///< a client that takes nothing for so long is gone; every byte it takes starts anew
  int idle_timeout_s = 75;    ///< keep-alive connection without a request
  std::vector<std::string> cors_origin = {"*"};  ///< whose web pages may read replies; empty: this server's own alone
  bool access_log = true;                        ///< a line for each request
};

struct ClusterSettings {
  int tp = 2;
  int rank = 0;
  std::string master_addr;
  int master_port = 29551;
};

struct CpuSettings {
  std::string mode = "fp32";  ///< fp32 | bf16 (the GPU's rounding points)
  int threads = 0;            ///< 0 = all cores
};

struct CudaSettings {
  int device = 0;      ///< CUDA device number
  bool graphs = true;  ///< record decode steps at start and replay them; the same results either way
};

struct KvSettings {
  std::string dtype = "fp8";  ///< bf16 | fp8; the CPU's fp32 mode keeps caches in fp32
  std::string index;          ///< of pool keys: bf16 | fp8; "" = as dtype
};

/// Section dense.groups: bf16 | fp8 | q4 for a part of the dense weights; "" = what dense.format means for it.
struct DenseGroupSettings {
  std::string kda;
  std::string mla;     ///< without kv_b
  std::string kv_b;    ///< keys and values from latents
  std::string mlp;     ///< of the dense layers
  std::string shared;  ///< shared experts
  std::string head;    ///< lm_head
};

struct DenseSettings {
  std::string format = "q4";  ///< bf16 | fp8 | q4
};

struct SchedulerSettings {
  int max_streams = 4;
  int max_queued = 256;     ///< waiting requests; -1 = no limit, 0 = refuse when busy
  int prefill_rows = 2048;  ///< most rows of one prompt chunk
};

struct DraftSettings {
  std::string kind = "dflash2";  ///< dflash2 | mtp | none
  std::string path;
};

struct StreamSettings {
  bool smooth = true;
  int smooth_ms = 400;
};

struct DefaultsSettings {
  int max_tokens = 32768;  ///< 0 = up to the context
  bool thinking = true;
  std::string effort;  ///< "", low, high, max
  bool keep_reasoning = true;
  int reasoning_budget = 0;                ///< tokens; 0 = none
  std::string generation_config = "auto";  ///< auto (the checkpoint's sampling defaults) | vllm (neutral ones)
  std::string override_generation_config;  ///< JSON object over those; "" = nothing
};

struct TemplateSettings {
  std::string effort_at = "head";  ///< head | before_last_user | tail
};

struct GuardSettings {
  bool assistant_ends = true;
  bool loop = false;  ///< reasoning that runs in circles is closed
};

struct ApiSettings {
  std::string content_markers = "special";  ///< special | text (spec 40 §1.5)
  std::string reasoning_field = "both";     ///< both | reasoning_content | reasoning
  std::string stop_scope = "content";       ///< content | all
  bool flush_partial_utf8 = false;
  std::string anthropic_default_thinking = "on";  ///< on | off: /v1/messages without `thinking`
  std::string tool_stream = "whole";              ///< whole | incremental: how streams send the arguments of calls
  std::string tool_tags = "ids";                  ///< ids | text-too: whether tags of calls may be spelled out
  bool tool_grammar = false;                      ///< calls of every function are held to its parameters
  std::string unclosed_think = "reasoning";       ///< reasoning | content: of a whole reply that ends without </think>
  bool lenient_empty_tools = true;                ///< `tools: []` counts as absent, else 400
  int max_n = 8;                                  ///< most choices of a request
  int sse_keepalive_s = 15;                       ///< 0 = off
  bool chat_page = true;                          ///< the page at `/`
};

struct OpsSettings {
  int drain_s = 30;
  std::string log_format = "text";  ///< text | json
  std::string log_level = "info";   ///< trace | debug | info | warn | error
};

struct Settings {
  ModelSettings model;
  DummySettings dummy;
  ServerSettings server;
  ClusterSettings cluster;
  std::string backend = "auto";  ///< auto | cpu | cuda
  CpuSettings cpu;
  CudaSettings cuda;
  int64_t context = 1048576;  ///< tokens of prompt and reply together
  KvSettings kv;
  DenseSettings dense;
  DenseGroupSettings dense_groups;  ///< section `dense.groups`
  SchedulerSettings scheduler;
  DraftSettings draft;
  StreamSettings stream;
  DefaultsSettings defaults;
  TemplateSettings chat_template;  ///< section `template`
  GuardSettings guards;
  ApiSettings api;
  OpsSettings ops;
};

}  // namespace glm53
