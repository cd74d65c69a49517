#include "engine/engine.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <spdlog/spdlog.h>

namespace glm53::engine {
namespace {

bool contains(std::span<const int32_t> ids, int32_t id) { return std::find(ids.begin(), ids.end(), id) != ids.end(); }

bool contains_empty(const std::vector<std::string>& strings) {
  return std::any_of(strings.begin(), strings.end(), [](const std::string& text) { return text.empty(); });
}

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
  std::vector<uint32_t> mask((static_cast<std::size_t>(vocab) + 31) / 32);
  bool all = true;
  for (int32_t id = 0; id < vocab; ++id) {
    if (tokenizer.has_token(id)) {
      mask[static_cast<std::size_t>(id) / 32] |= uint32_t{1} << (id % 32);
    } else {
      all = false;
    }
  }
  if (all) mask.clear();
  return mask;
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
  Stream(const Job& job, int slot_index, PagePool& pool, const text::Tokenizer& tokenizer)
      : request(job.request),
        generation(*job.generation),
        slot(slot_index),
        pages(pool),
        parser(tokenizer, job.request.reply) {}

  int64_t prompt_tokens() const { return static_cast<int64_t>(request.prompt.size()); }

  const GenerationRequest& request;
  Generation& generation;
  int slot;
  PageList pages;
  text::ReplyParser parser;
  std::vector<int32_t> banned_early;  ///< while completion < min_tokens
  int64_t position = 0;               ///< tokens in the sequence's state: where the next row goes
  int32_t pending = -1;               ///< delivered but not yet forwarded: the token of that row
  int64_t completion = 0;             ///< delivered tokens
  std::optional<GenerationResult> result;
};

Engine::Engine(std::unique_ptr<ModelRunner> model, const text::Tokenizer& tokenizer, EngineLimits limits)
    : model_(std::move(model)),
      capacity_(model_->capacity()),
      tokenizer_(tokenizer),
      limits_(limits),
      pages_(capacity_.pages) {
  if (capacity_.sequences < 1 || capacity_.logit_rows < 1) throw std::invalid_argument("engine: the model has no slot");
  if (limits_.prefill_rows < 1 || limits_.prefill_rows > capacity_.rows) {
    throw std::invalid_argument("engine: chunks of " + std::to_string(limits_.prefill_rows) +
                                " rows, but a call takes 1 to " + std::to_string(capacity_.rows));
  }
  if (limits_.context < 2 || pages_for(limits_.context) > capacity_.pages) {
    throw std::invalid_argument("engine: " + std::to_string(capacity_.pages) +
                                " cache pages do not hold a context of " + std::to_string(limits_.context));
  }
  text::ReplyMarkers::from(tokenizer_);  // throws now what would otherwise fail the first request
  tokens_mask_ = mask_of_tokens(tokenizer_, capacity_.vocab);
  thread_ = std::thread([this] { run(); });
}

Engine::~Engine() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    if (running_) running_->cancel();
  }
  changed_.notify_all();
  thread_.join();
}

// ---- callers' side

void Engine::check(const GenerationRequest& request) const {
  const auto refuse = [](const std::string& why) { throw SubmitError(SubmitError::Kind::kBadRequest, why); };
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  if (prompt == 0) refuse("the prompt is empty");
  for (const int32_t id : request.prompt) {
    if (id < 0 || id >= capacity_.vocab) refuse("prompt token " + std::to_string(id) + " is not in the vocabulary");
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
  if (contains_empty(request.reply.stop)) refuse("stop must not hold an empty string");
}

std::shared_ptr<Generation> Engine::submit(GenerationRequest request) {
  using Kind = SubmitError::Kind;
  check(request);
  auto generation = std::make_shared<Generation>();
  {
    const std::lock_guard lock(mutex_);
    if (failed_) throw SubmitError(Kind::kEngineFailed, "the engine has failed");
    if (stop_) throw SubmitError(Kind::kStopping, "the server is stopping");
    finish_cancelled_waiters();
    // A job in the queue of an idle engine is as good as running.
    const auto occupied = static_cast<int64_t>(waiting_.size()) + (running_ ? 1 : 0);
    if (limits_.max_queued >= 0 && occupied >= int64_t{1} + limits_.max_queued) {
      throw SubmitError(Kind::kQueueFull, "too many requests are waiting");
    }
    waiting_.push_back({std::move(request), generation});
  }
  changed_.notify_all();
  return generation;
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

/// With mutex_ held.
void Engine::finish_cancelled_waiters() {
  std::erase_if(waiting_, [](const Job& job) {
    if (!job.generation->cancelled()) return false;
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

/// Waits for work; nullopt when the engine stops, after everything that waited was cancelled.
std::optional<Engine::Job> Engine::next_job() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stop_ || !waiting_.empty(); });
    if (stop_) {
      for (const Job& job : waiting_) job.generation->cancel();
    }
    finish_cancelled_waiters();
    if (!waiting_.empty()) break;
    if (stop_) return std::nullopt;
  }
  Job job = std::move(waiting_.front());
  waiting_.pop_front();
  running_ = job.generation;
  return job;
}

/// The result is published under the lock: whoever sees it finds the slot free and, after a failure, the engine failed.
void Engine::retire(Job job, GenerationResult result, bool failed) {
  const std::lock_guard lock(mutex_);
  running_.reset();
  pages_used_ = pages_.used();
  if (failed) {
    failed_ = true;
    for (const Job& waiting : waiting_) {
      waiting.generation->finish(ended_unserved(waiting.request, FinishReason::kFailed, result.error));
    }
    waiting_.clear();
  }
  job.generation->finish(std::move(result));
}

// ---- engine thread: one stream

GenerationResult Engine::serve(const Job& job) {
  Stream stream(job, /*slot_index=*/0, pages_, tokenizer_);
  for (const auto* ids : {&stream.request.end_ids, &stream.request.stop_token_ids}) {
    for (const int32_t id : *ids) {
      if (id >= 0 && id < capacity_.vocab) stream.banned_early.push_back(id);
    }
  }
  model_->reset_sequence(stream.slot);
  while (!stream.result) {
    if (stream.generation.cancelled()) {
      end(stream, FinishReason::kCancelled);
    } else if (stream.position < stream.prompt_tokens()) {
      prefill_chunk(stream);
    } else {
      decode_step(stream);
    }
    after_step();
  }
  return *std::move(stream.result);
}

void Engine::after_step() {
  const std::lock_guard lock(mutex_);
  pages_used_ = pages_.used();
  finish_cancelled_waiters();
}

/// Up to the next multiple of prefill_rows: cuts lie on one grid from position 0 wherever a prompt is resumed
/// (00-decisions §4).
void Engine::prefill_chunk(Stream& stream) {
  const int64_t grid_end = (stream.position / limits_.prefill_rows + 1) * limits_.prefill_rows;
  const int64_t chunk_end = std::min(stream.prompt_tokens(), grid_end);
  const bool last = chunk_end == stream.prompt_tokens();
  const auto chunk =
      std::span(stream.request.prompt)
          .subspan(static_cast<std::size_t>(stream.position), static_cast<std::size_t>(chunk_end - stream.position));
  forward(stream, chunk, SegmentKind::kPrompt, last);
  if (last) draw(stream);
}

void Engine::decode_step(Stream& stream) {
  const int32_t token = stream.pending;
  forward(stream, {&token, 1}, SegmentKind::kWindow, true);
  model_->commit(stream.slot, 1);
  draw(stream);
}

/// Logits, if wanted, are those of the last row.
void Engine::forward(Stream& stream, std::span<const int32_t> tokens, SegmentKind kind, bool wants_logits) {
  const int rows = static_cast<int>(tokens.size());
  stream.pages.reserve_tokens(stream.position + rows);
  const Segment segment{.slot = stream.slot,
                        .first_position = stream.position,
                        .first_row = 0,
                        .rows = rows,
                        .kind = kind,
                        .pages = stream.pages.ids()};
  const int last_row = rows - 1;
  model_->forward({.token_ids = tokens,
                   .segments = {&segment, 1},
                   .logit_rows = {&last_row, wants_logits ? std::size_t{1} : std::size_t{0}}});
  stream.position += rows;
}

/// The token after the last forwarded row.
void Engine::draw(Stream& stream) {
  SampleRow row;
  row.position = stream.position;
  row.params = &stream.request.sampling;
  row.mask = tokens_mask_;
  if (stream.completion < stream.request.min_tokens) row.banned = stream.banned_early;
  SampledToken token;
  model_->sample({&row, 1}, {&token, 1});
  if (token.status != SampleStatus::kPicked) {
    end(stream, FinishReason::kFailed);
    stream.result->error =
        token.status == SampleStatus::kNotFinite ? "the model's logits are not finite" : "no token is allowed";
    return;
  }
  stream.pending = token.id;
  deliver(stream, token.id);
}

/// Hands out one token and applies the end conditions in the order of spec 40 §11.
void Engine::deliver(Stream& stream, int32_t id) {
  const GenerationRequest& request = stream.request;
  ++stream.completion;
  const bool is_end = contains(request.end_ids, id);
  const bool is_stop = !is_end && contains(request.stop_token_ids, id);

  std::vector<text::ReplyDelta> deltas;
  bool stop_string = false;
  if (!is_end && (!is_stop || request.reply.include_stop)) stop_string = stream.parser.push(id, deltas);
  stream.generation.publish({&id, 1}, std::move(deltas));

  if (is_end || is_stop) {
    end(stream, FinishReason::kStop);
    stream.result->stop_id = id;
  } else if (stop_string) {
    end(stream, FinishReason::kStop);
    stream.result->stop_string = stream.parser.matched_stop();
  } else if (stream.completion == request.max_tokens || stream.prompt_tokens() + stream.completion == limits_.context) {
    end(stream, FinishReason::kLength);
  }
}

/// Releases the text that waited for more, and writes the result.
void Engine::end(Stream& stream, FinishReason reason) {
  if (!stream.parser.matched_stop()) {
    std::vector<text::ReplyDelta> deltas;
    stream.parser.finish(deltas);
    stream.generation.publish({}, std::move(deltas));
  }
  GenerationResult result;
  result.reason = reason;
  result.prompt_tokens = stream.prompt_tokens();
  result.completion_tokens = stream.completion;
  result.reasoning_tokens = stream.parser.reasoning_tokens();
  stream.result = std::move(result);
}

}  // namespace glm53::engine
