#include "engine/engine.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include <spdlog/spdlog.h>

#include "engine/token_rules.h"
#include "glm53/core/contains.h"
#include "glm53/core/error.h"
#include "glm53/core/token_mask.h"

namespace glm53::engine {
namespace {

const char* word(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stopped";
    case FinishReason::kLength:
      return "full";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kFailed:
      return "failed";
  }
  return "";
}

/// Padding rows of the head lie below the vocabulary's end and have no token. Masked, not banned: raw logprobs are
/// those of real tokens (spec 40 §10.4).
std::vector<uint32_t> mask_of_tokens(const text::Tokenizer& tokenizer, int vocab) {
  std::vector<uint32_t> mask(mask_words(vocab));
  bool all = true;
  for (int32_t id = 0; id < vocab; ++id) {
    if (tokenizer.has_token(id)) {
      allow_id(mask, id);
    } else {
      all = false;
    }
  }
  if (all) mask.clear();
  return mask;
}

TokenLogprobs logprobs_of(const SampledToken& token) {
  return {token.id, token.logprob, {token.top.begin(), token.top.begin() + token.top_count}};
}

text::ReplyOptions reply_options(const GenerationRequest& request) {
  text::ReplyOptions options = request.reply;
  options.min_tokens = request.min_tokens;
  return options;
}

GenerationResult ended_unserved(const GenerationRequest& request, FinishReason reason, std::string error = {}) {
  GenerationResult result;
  result.reason = reason;
  result.prompt_tokens = static_cast<int64_t>(request.prompt.size());
  result.error = std::move(error);
  return result;
}

}  // namespace

/// A request that owns a sequence slot.
struct Engine::Stream {
  Stream(Job& job, int slot_index, PagePool& pool, const text::Tokenizer& tokenizer, TokenRules token_rules,
         ReplyGuide reply_guide)
      : request(job.request),
        generation(*job.generation),
        times(job.times),
        slot(slot_index),
        pages(pool),
        parser(tokenizer, reply_options(job.request)),
        rules(std::move(token_rules)),
        guide(std::move(reply_guide)) {}

  int64_t prompt_tokens() const { return static_cast<int64_t>(request.prompt.size()); }

  const GenerationRequest& request;
  Generation& generation;
  RequestTimes& times;
  int slot;
  PageList pages;
  text::ReplyParser parser;
  TokenRules rules;
  ReplyGuide guide;
  std::vector<TokenLogprobs> prompt_logprobs;
  int64_t position = 0;                          ///< tokens in the sequence's state: where the next row goes
  int32_t pending = -1;                          ///< delivered but not yet forwarded: the token of that row
  int64_t completion = 0;                        ///< delivered tokens
  int64_t counted_rows = 0, counted_tokens = 0;  ///< as far as after_step() has counted position and completion
  std::optional<GenerationResult> result;
};

Engine::Engine(std::unique_ptr<ModelRunner> model, const text::Tokenizer& tokenizer, EngineLimits limits)
    : model_(std::move(model)),
      capacity_(model_->capacity()),
      tokenizer_(tokenizer),
      limits_(limits),
      pages_(capacity_.pages),
      metrics_(limits.context) {
  if (capacity_.sequences < 1 || capacity_.logit_rows < 1) throw std::invalid_argument("engine: the model has no slot");
  if (limits_.prefill_rows < 1 || limits_.prefill_rows > capacity_.rows) {
    throw std::invalid_argument("engine: chunks of " + std::to_string(limits_.prefill_rows) +
                                " rows, but a call takes 1 to " + std::to_string(capacity_.rows));
  }
  if (limits_.context < 2 || pages_for(limits_.context) > capacity_.pages) {
    throw std::invalid_argument("engine: " + std::to_string(capacity_.pages) +
                                " cache pages do not hold a context of " + std::to_string(limits_.context));
  }
  markers_ = text::ReplyMarkers::from(tokenizer_);  // throws now what would otherwise fail the first request
  tokens_mask_ = mask_of_tokens(tokenizer_, capacity_.vocab);
  thread_ = std::thread([this] { run(); });
}

Engine::~Engine() {
  stop();
  thread_.join();
}

void Engine::stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    if (running_) running_->cancel();
    for (const Job& job : waiting_) job.generation->cancel();
    finish_cancelled_waiters();
  }
  changed_.notify_all();
}

// ---- callers' side

void Engine::check(const GenerationRequest& request) const {
  const auto refuse = [](const std::string& why) { throw SubmitError(SubmitError::Kind::kBadRequest, why); };
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  if (prompt == 0) refuse("the prompt is empty");
  const auto in_vocabulary = [this](int32_t id) { return id >= 0 && id < capacity_.vocab; };
  for (const int32_t id : request.prompt) {
    if (!in_vocabulary(id)) refuse("prompt token " + std::to_string(id) + " is not in the vocabulary");
  }
  if (request.max_tokens < 1) refuse("max_tokens must be at least 1");
  if (request.max_tokens > limits_.context - prompt) {
    refuse("prompt of " + std::to_string(prompt) + " and max_tokens " + std::to_string(request.max_tokens) +
           " exceed the context of " + std::to_string(limits_.context) + " tokens");
  }
  const SamplingParams& sampling = request.sampling;
  if (!std::isfinite(sampling.temperature) || sampling.temperature < 0) refuse("temperature must be at least 0");
  if (!(sampling.top_p > 0 && sampling.top_p <= 1)) refuse("top_p must be in (0, 1]");
  if (!(sampling.min_p >= 0 && sampling.min_p <= 1)) refuse("min_p must be in [0, 1]");
  if (sampling.top_k < 0) refuse("top_k must not be negative");
  if (!std::isfinite(sampling.repetition) || sampling.repetition <= 0) refuse("repetition_penalty must be above 0");
  if (!std::isfinite(sampling.frequency)) refuse("frequency_penalty must be finite");
  if (!std::isfinite(sampling.presence)) refuse("presence_penalty must be finite");
  std::vector<bool> biased(static_cast<std::size_t>(capacity_.vocab));
  for (const LogitBias& bias : request.biases) {
    if (!in_vocabulary(bias.id)) refuse("logit_bias token " + std::to_string(bias.id) + " is not in the vocabulary");
    if (!std::isfinite(bias.value)) refuse("logit_bias must be finite");
    if (biased[static_cast<std::size_t>(bias.id)]) {
      refuse("logit_bias names token " + std::to_string(bias.id) + " twice");
    }
    biased[static_cast<std::size_t>(bias.id)] = true;
  }
  for (const int32_t id : request.allowed_ids) {
    if (!in_vocabulary(id)) refuse("allowed token " + std::to_string(id) + " is not in the vocabulary");
  }
  for (const std::vector<int32_t>& word : request.bad_words) {
    if (word.empty() || !std::all_of(word.begin(), word.end(), in_vocabulary)) refuse("a bad word has no tokens");
  }
  if (request.logprobs > kMaxTopLogprobs || request.prompt_logprobs > kMaxTopLogprobs) {
    refuse("at most " + std::to_string(kMaxTopLogprobs) + " logprobs can be given");
  }
  if (contains(request.reply.stop, std::string())) refuse("stop must not hold an empty string");
  if (request.grammar != nullptr && request.grammar->trie().vocab() != capacity_.vocab) {
    refuse("the grammar is for another vocabulary");
  }
  // The choices of a prompt have the same rules.
  if (request.sampling.choice == 0 && !TokenRules(request, tokens_mask_, capacity_.vocab).leave_a_token()) {
    throw SubmitError(SubmitError::Kind::kNoToken, "the request's rules leave no token to begin a reply with");
  }
}

std::shared_ptr<Generation> Engine::submit(GenerationRequest request) {
  std::vector<GenerationRequest> one;
  one.push_back(std::move(request));
  return submit(std::move(one)).front();
}

std::vector<std::shared_ptr<Generation>> Engine::submit(std::vector<GenerationRequest> requests) {
  using Kind = SubmitError::Kind;
  const int64_t places = limits_.max_queued < 0 ? std::numeric_limits<int64_t>::max() : int64_t{1} + limits_.max_queued;
  const auto wanted = static_cast<int64_t>(requests.size());
  if (wanted > places) {
    throw SubmitError(Kind::kTooManyChoices, "the request has " + std::to_string(wanted) + " choices, and at most " +
                                                 std::to_string(places) + " may run or wait (scheduler.max_queued)");
  }
  std::vector<std::shared_ptr<Generation>> generations;
  for (const GenerationRequest& request : requests) {
    check(request);
    generations.push_back(std::make_shared<Generation>());
  }
  {
    const std::lock_guard lock(mutex_);
    if (failed_) throw SubmitError(Kind::kEngineFailed, "the engine has failed");
    if (stop_) throw SubmitError(Kind::kStopping, "the server is stopping");
    finish_cancelled_waiters();
    // A job in the queue of an idle engine is as good as running.
    const auto occupied = static_cast<int64_t>(waiting_.size()) + (running_ ? 1 : 0);
    if (wanted > places - occupied) {
      ++metrics_.refused;
      throw SubmitError(Kind::kQueueFull, "too many requests are waiting");
    }
    metrics_.admitted(requests);
    RequestTimes times;
    times.queued = RequestTimes::Clock::now();
    for (std::size_t i = 0; i < requests.size(); ++i) {
      waiting_.push_back({std::move(requests[i]), generations[i], times});
    }
  }
  changed_.notify_all();
  return generations;
}

EngineStatus Engine::status() const {
  const std::lock_guard lock(mutex_);
  EngineStatus status;
  status.ready = !failed_ && !stop_;
  status.failed = failed_;
  status.running = running_ ? 1 : 0;
  status.waiting = static_cast<int>(waiting_.size());
  status.pages_used = pages_used_;
  status.pages_total = capacity_.pages;
  return status;
}

EngineMetrics Engine::metrics() const {
  const std::lock_guard lock(mutex_);
  return metrics_;
}

/// With mutex_ held.
void Engine::finish_cancelled_waiters() {
  std::erase_if(waiting_, [this](const Job& job) {
    if (!job.generation->cancelled()) return false;
    metrics_.ended_waiting(FinishReason::kCancelled);
    job.generation->finish(ended_unserved(job.request, FinishReason::kCancelled));
    return true;
  });
}

// ---- engine thread: jobs

void Engine::run() {
  while (std::optional<Job> job = next_job()) {
    GenerationResult result;
    bool failed = false;
    try {
      result = serve(*job);
    } catch (const std::exception& error) {
      spdlog::error("engine failed while serving {}: {}", job->request.id, error.what());
      result = ended_unserved(job->request, FinishReason::kFailed, error.what());
      failed = true;
    }
    spdlog::debug("{}: {} after {} prompt and {} completion tokens", job->request.id, word(result.reason),
                  result.prompt_tokens, result.completion_tokens);
    retire(std::move(*job), std::move(result), failed);
    if (failed) return;
  }
}

/// Waits for work; nullopt when the engine stops.
std::optional<Engine::Job> Engine::next_job() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stop_ || !waiting_.empty(); });
    finish_cancelled_waiters();
    if (!waiting_.empty()) break;
    if (stop_) return std::nullopt;
  }
  Job job = std::move(waiting_.front());
  waiting_.pop_front();
  job.times.started = RequestTimes::Clock::now();
  running_ = job.generation;
  return job;
}

/// The result is published under the lock: whoever sees it finds the slot free and, after a failure, the engine failed.
void Engine::retire(Job job, GenerationResult result, bool failed) {
  const std::lock_guard lock(mutex_);
  running_.reset();
  pages_used_ = pages_.used();
  metrics_.ended(job.request, result, job.times);
  if (failed) {
    failed_ = true;
    for (const Job& waiting : waiting_) {
      metrics_.ended_waiting(FinishReason::kFailed);
      waiting.generation->finish(ended_unserved(waiting.request, FinishReason::kFailed, result.error));
    }
    waiting_.clear();
  }
  job.generation->finish(std::move(result));
}

// ---- engine thread: one stream

GenerationResult Engine::serve(Job& job) {
  Stream stream(job, /*slot_index=*/0, pages_, tokenizer_, TokenRules(job.request, tokens_mask_, capacity_.vocab),
                ReplyGuide(job.request, markers_, tokens_mask_, capacity_.vocab));
  model_->reset_sequence(stream.slot);
  while (!stream.result) {
    if (stream.generation.cancelled()) {
      end(stream, FinishReason::kCancelled);
    } else if (stream.position < stream.prompt_tokens()) {
      prefill_chunk(stream);
    } else {
      decode_step(stream);
    }
    after_step(stream);
  }
  return *std::move(stream.result);
}

void Engine::after_step(Stream& stream) {
  const std::lock_guard lock(mutex_);
  pages_used_ = pages_.used();
  if (stream.position > stream.counted_rows) {
    metrics_.iteration_tokens.add(
        static_cast<double>(stream.position - std::exchange(stream.counted_rows, stream.position)));
  }
  for (; stream.counted_tokens < stream.completion; ++stream.counted_tokens) {
    metrics_.delivered(stream.prompt_tokens(), stream.times);
  }
  finish_cancelled_waiters();
}

/// Up to the next multiple of prefill_rows: cuts lie on one grid from position 0 wherever a prompt is resumed
/// (00-decisions §4). With prompt_logprobs every row needs logits, so the chunks are as short as their buffer.
void Engine::prefill_chunk(Stream& stream) {
  const bool all_logits = stream.request.prompt_logprobs >= 0;
  const int64_t grid = all_logits ? std::min(limits_.prefill_rows, capacity_.logit_rows) : limits_.prefill_rows;
  const int64_t first = stream.position;
  const int64_t chunk_end = std::min(stream.prompt_tokens(), (first / grid + 1) * grid);
  const bool last = chunk_end == stream.prompt_tokens();
  const auto rows = static_cast<std::size_t>(chunk_end - first);
  std::vector<int32_t> logit_rows(all_logits ? rows : last ? 1 : 0);
  std::iota(logit_rows.begin(), logit_rows.end(), static_cast<int32_t>(rows - logit_rows.size()));
  forward(stream, std::span(stream.request.prompt).subspan(static_cast<std::size_t>(first), rows), SegmentKind::kPrompt,
          logit_rows);
  if (all_logits) read_prompt_logprobs(stream, first);
  if (last && !stream.result) draw(stream, static_cast<int>(logit_rows.size()) - 1);
}

/// The rows of [first, position) give the logprobs of the tokens after them, as far as these belong to the prompt.
void Engine::read_prompt_logprobs(Stream& stream, int64_t first) {
  const GenerationRequest& request = stream.request;
  const int64_t next_end = std::min(stream.position + 1, stream.prompt_tokens());
  const auto count = static_cast<std::size_t>(next_end - first - 1);
  if (first == 0) stream.prompt_logprobs.push_back({request.prompt.front(), std::nullopt, {}});
  // A bias beyond all logits makes the greedy pick the prompt's own token, whose raw logprob the bias leaves alone.
  constexpr float kCertain = 1e30F;
  SamplingParams greedy;
  greedy.temperature = 0;
  std::vector<LogitBias> own(count);
  std::vector<SampleRow> rows(count);
  std::vector<SampledToken> picked(count);
  for (std::size_t i = 0; i < count; ++i) {
    own[i] = {request.prompt[static_cast<std::size_t>(first) + i + 1], kCertain};
    rows[i].logits_row = static_cast<int>(i);
    rows[i].params = &greedy;
    rows[i].logprobs = request.prompt_logprobs;
    rows[i].mask = tokens_mask_;
    rows[i].biases = {&own[i], 1};
  }
  if (count > 0) model_->sample(rows, picked);
  for (std::size_t i = 0; i < count; ++i) {
    if (picked[i].status != SampleStatus::kPicked) return fail(stream, picked[i].status);
    TokenLogprobs entry = logprobs_of(picked[i]);
    if (entry.id != own[i].id) {  // an id without a token: masked
      entry.id = own[i].id;
      entry.logprob = -std::numeric_limits<float>::infinity();
    }
    stream.prompt_logprobs.push_back(std::move(entry));
  }
  if (stream.position == stream.prompt_tokens())
    stream.generation.set_prompt_logprobs(std::move(stream.prompt_logprobs));
}

void Engine::decode_step(Stream& stream) {
  const int32_t token = stream.pending;
  const int32_t row = 0;
  forward(stream, {&token, 1}, SegmentKind::kWindow, {&row, 1});
  model_->commit(stream.slot, 1);
  draw(stream, 0);
}

void Engine::forward(Stream& stream, std::span<const int32_t> tokens, SegmentKind kind,
                     std::span<const int32_t> logit_rows) {
  const int rows = static_cast<int>(tokens.size());
  stream.pages.reserve_tokens(stream.position + rows);
  const Segment segment{.slot = stream.slot,
                        .first_position = stream.position,
                        .first_row = 0,
                        .rows = rows,
                        .kind = kind,
                        .pages = stream.pages.ids()};
  model_->forward({.token_ids = tokens, .segments = {&segment, 1}, .logit_rows = logit_rows});
  stream.position += rows;
}

/// The token after the last forwarded row.
void Engine::draw(Stream& stream, int logits_row) {
  SampleRow row;
  try {
    const bool may_close = !stream.rules.is_banned(markers_.think_close);
    row = stream.rules.next_row(stream.position, stream.guide.next_mask(may_close));
  } catch (const Error& error) {
    return fail(stream, error.what(), /*no_token=*/true);
  }
  if (stream.guide.complete()) return end(stream, FinishReason::kStop);  // the grammar wants no text at all
  row.logits_row = logits_row;
  SampledToken token;
  model_->sample({&row, 1}, {&token, 1});
  if (token.status == SampleStatus::kNothingAllowed && stream.guide.can_end()) {
    return end(stream, FinishReason::kStop);  // complete, and bans keep it both from going on and from ending
  }
  if (token.status != SampleStatus::kPicked) return fail(stream, token.status);
  stream.pending = token.id;
  stream.rules.take(token.id);
  deliver(stream, token);
}

/// Hands out one token and applies the end conditions in the order of spec 40 §11.
void Engine::deliver(Stream& stream, const SampledToken& token) {
  const GenerationRequest& request = stream.request;
  const int32_t id = token.id;
  ++stream.completion;
  const bool is_stop = contains(request.stop_token_ids, id);
  const bool is_end = !is_stop && contains(request.end_ids, id);

  std::vector<text::ReplyDelta> deltas;
  bool text_ended = false;
  if (!is_end && (!is_stop || request.reply.include_stop)) text_ended = stream.parser.push(id, deltas);
  std::vector<TokenLogprobs> logprobs;
  if (request.logprobs >= 0) logprobs.push_back(logprobs_of(token));
  stream.generation.publish({&id, 1}, std::move(deltas), std::move(logprobs));

  if (is_end || is_stop) {
    end(stream, FinishReason::kStop);
    if (!stream.result->stop_string) stream.result->stop_id = id;
    return;
  }
  if (text_ended) return end(stream, FinishReason::kStop);
  try {
    if (!stream.guide.take(id, stream.parser.in_reasoning())) {
      spdlog::error("{}: token {} was drawn, which the grammar does not allow", request.id, id);
      return fail(stream, "a token was drawn that the grammar does not allow", /*no_token=*/false);
    }
  } catch (const Error& error) {
    return fail(stream, error.what(), /*no_token=*/true);
  }
  if (stream.guide.complete()) {
    end(stream, FinishReason::kStop);
  } else if (stream.completion == request.max_tokens || stream.prompt_tokens() + stream.completion == limits_.context) {
    end(stream, FinishReason::kLength);
  }
}

/// For a row from which nothing can be drawn.
void Engine::fail(Stream& stream, SampleStatus why) {
  const bool no_token = why == SampleStatus::kNothingAllowed;
  fail(stream, no_token ? "the request's rules leave no token to go on with" : "the model's logits are not finite",
       no_token);
}

void Engine::fail(Stream& stream, std::string error, bool no_token) {
  end(stream, FinishReason::kFailed);
  stream.result->no_token = no_token;
  stream.result->error = std::move(error);
}

/// Releases the text that waited for more, and writes the result.
void Engine::end(Stream& stream, FinishReason reason) {
  std::vector<text::ReplyDelta> deltas;
  stream.parser.finish(reason == FinishReason::kStop ? text::ReplyEnd::kComplete : text::ReplyEnd::kCut, deltas);
  stream.generation.publish({}, std::move(deltas));
  GenerationResult result;
  result.reason = reason;
  // A stop string may have waited in what could have become a call: the reply ended there, not at the limit.
  if (stream.parser.matched_stop() && (reason == FinishReason::kStop || reason == FinishReason::kLength)) {
    result.reason = FinishReason::kStop;
    result.stop_string = stream.parser.matched_stop();
  }
  result.prompt_tokens = stream.prompt_tokens();
  result.completion_tokens = stream.completion;
  result.reasoning_tokens = stream.parser.reasoning_tokens();
  if (result.reason == FinishReason::kLength) result.cut_channel = stream.parser.cut_channel();
  stream.result = std::move(result);
}

}  // namespace glm53::engine
