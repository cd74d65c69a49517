#include "server/running_reply.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "glm53/core/contains.h"
#include "server/api_error.h"

namespace glm53::server {
namespace {

constexpr std::chrono::seconds kAtWork{2};  // of silence after which a reply shows that it is being worked on
constexpr const char* kKeepalive = "keepalive";

/// The field of the rules on ids that left nothing to draw; a bad word is banned wherever another list allows it.
const char* field_of_id_rules(const engine::GenerationRequest& request) {
  if (!request.allowed_ids.empty()) return "allowed_token_ids";
  return request.bad_words.empty() ? "stop_token_ids" : "bad_words";
}

/// The same once the reply has begun: what it must look like is the tightest of its rules.
std::string field_of_rules(const engine::GenerationRequest& request) {
  return request.grammar != nullptr ? request.grammar_field : field_of_id_rules(request);
}

ApiError refusal(const engine::SubmitError& error, const std::vector<engine::GenerationRequest>& requests) {
  using Kind = engine::SubmitError::Kind;
  if (error.kind == Kind::kTooManyChoices) {
    return bad_field(requests.back().sampling.choice > 0 ? "n" : "prompt", error.what());
  }
  if (error.kind == Kind::kNoToken) {
    return bad_field(field_of_id_rules(requests.front()), error.what());
  }
  if (error.kind == Kind::kBadRequest) return {400, error.what()};
  return error.kind == Kind::kQueueFull ? busy(error.what(), "queue_full") : unavailable(error.what());
}

/// Throws for an end that is no reply. `rules`: the field of the request's rules.
void check_finished(const engine::GenerationResult& result, const std::string& rules) {
  if (result.no_token) throw bad_field(rules, rules + ": " + result.error);
  if (result.reason == engine::FinishReason::kFailed) throw ApiError(500, result.error, {}, "server_error");
  if (result.reason == engine::FinishReason::kCancelled) throw unavailable("the server is shutting down");
}

}  // namespace

RunningReply::RunningReply(std::shared_ptr<engine::Generation> generation, const engine::GenerationRequest& request,
                           const ApiContext& api)
    : generation_(std::move(generation)),
      prompt_(request.prompt),
      first_of_its_prompt_(request.sampling.choice == 0),
      starts_in_reasoning_(request.reply.split_reasoning && request.reply.start == text::ReplyChannel::kReasoning),
      think_close_(text::ReplyMarkers::from(api.tokenizer).think_close),
      stop_ids_(request.stop_token_ids) {
  const auto& eos = api.rules.defaults.eos_ids;
  for (const std::string& stop : request.reply.stop) {
    if (const auto id = api.tokenizer.added_id(stop)) marker_stops_.emplace_back(*id, stop);
  }
  if (eos.size() > 1) end_ids_.assign(eos.begin() + 1, eos.end());
}

RunningReply::~RunningReply() {
  if (!result_) generation_->cancel();
}

std::optional<engine::GenerationEvent> RunningReply::poll() {
  auto event = generation_->next(std::chrono::milliseconds(0));
  if (event) {
    tokens_.insert(tokens_.end(), event->tokens.begin(), event->tokens.end());
    result_ = event->result;
  }
  return event;
}

const char* RunningReply::finish_reason(const engine::GenerationResult& result) {
  return result.reason == engine::FinishReason::kLength ? "length" : "stop";
}

nlohmann::ordered_json RunningReply::stop_reason(const engine::GenerationResult& result) const {
  if (result.reason != engine::FinishReason::kStop) return nullptr;
  if (result.stop_string) return *result.stop_string;
  if (!result.stop_id) return nullptr;
  for (const auto& [id, stop] : marker_stops_) {
    if (id == *result.stop_id) return stop;
  }
  const bool shown = contains(stop_ids_, *result.stop_id) || contains(end_ids_, *result.stop_id);
  return shown ? nlohmann::ordered_json(*result.stop_id) : nlohmann::ordered_json();
}

bool RunningReply::unclosed_reasoning() const {
  const bool ended_itself = result_ && result_->reason == engine::FinishReason::kStop && result_->stop_id &&
                            !contains(stop_ids_, *result_->stop_id);
  return ended_itself && starts_in_reasoning_ && !contains(tokens_, think_close_);
}

RunningReplies::RunningReplies(std::vector<engine::GenerationRequest> requests, const ApiContext& api)
    : keepalive_(api.rules.settings.api.sse_keepalive_s),
      rules_field_(field_of_rules(requests.front())),
      signal_(std::make_shared<engine::ReadySignal>()) {
  std::vector<std::shared_ptr<engine::Generation>> generations;
  try {
    generations = api.generator.submit(requests);
  } catch (const engine::SubmitError& error) {
    throw refusal(error, requests);
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    generations[i]->set_signal(signal_);
    replies_.push_back(std::make_unique<RunningReply>(std::move(generations[i]), requests[i], api));
  }
}

TokenCounts RunningReplies::tokens() const {
  TokenCounts counts;
  for (const auto& reply : replies_) {
    if (reply->first_of_its_prompt()) counts.prompt += reply->prompt_tokens();
    counts.completion += reply->completion_tokens();
  }
  return counts;
}

bool RunningReplies::step(const std::function<bool()>& client_gone, const Take& take) {
  bool came = false, open = false;
  for (size_t i = 0; i < replies_.size(); ++i) {
    if (replies_[i]->result()) continue;
    open = true;
    auto event = replies_[i]->poll();
    if (!event) continue;
    came = true;
    if (client_gone()) throw ClientGone();
    if (event->result) check_finished(*event->result, rules_field_);
    take(i, *event);
  }
  if (open && !came) {
    signal_->wait(kClientLook);
    if (client_gone()) throw ClientGone();
  }
  return open;
}

void RunningReplies::collect(const std::function<bool()>& client_gone, const Take& take) {
  while (step(client_gone, take)) {
  }
}

void RunningReplies::stream(SseWriter& out, const AtWork& at_work, const Take& take) {
  const std::function<bool()> client_gone = [&out] { return out.client_gone(); };
  std::vector<size_t> seen(replies_.size());  // tokens of each choice
  while (step(client_gone, take)) {
    const bool silent = out.silence() >= kAtWork;
    for (size_t i = 0; i < replies_.size(); ++i) {
      const size_t tokens = replies_[i]->tokens().size() + replies_[i]->held_tokens();
      if (tokens == std::exchange(seen[i], tokens) || !silent) continue;
      if (at_work) {
        at_work(i);
      } else {
        out.comment(kKeepalive);
      }
    }
    if (keepalive_.count() > 0 && out.silence() >= keepalive_) out.comment(kKeepalive);
  }
}

}  // namespace glm53::server
