#include "engine/token_rules.h"

#include <algorithm>

#include "glm53/core/token_mask.h"

namespace glm53::engine {

TokenRules::TokenRules(const GenerationRequest& request, std::span<const uint32_t> tokens_mask, int vocab)
    : request_(request), mask_(tokens_mask), vocab_(vocab) {
  if (!request.allowed_ids.empty()) {
    std::vector<bool> allowed(static_cast<std::size_t>(vocab));
    for (const int32_t id : request.allowed_ids) allowed[static_cast<std::size_t>(id)] = true;
    for (int32_t id = 0; id < vocab; ++id) {
      if (!allowed[static_cast<std::size_t>(id)]) always_banned_.push_back(id);
    }
  }
  for (const std::vector<int32_t>& word : request.bad_words) {
    if (word.size() == 1) always_banned_.push_back(word.front());
  }
  always_banned_ = in_vocabulary(std::move(always_banned_));
  if (request.min_tokens > 0) {
    early_banned_ = always_banned_;
    early_banned_.insert(early_banned_.end(), request.end_ids.begin(), request.end_ids.end());
    early_banned_.insert(early_banned_.end(), request.stop_token_ids.begin(), request.stop_token_ids.end());
    early_banned_ = in_vocabulary(std::move(early_banned_));
  }

  // Of the prompt's ids only the repetition penalty takes notice.
  if (request.sampling.repetition != 1.0F) {
    for (const int32_t id : request.prompt) {
      if (count_index_.try_emplace(id, counts_.size()).second) counts_.push_back({id, 0});
    }
  }
}

void TokenRules::take(int32_t id) {
  output_.push_back(id);
  if (!request_.sampling.penalizes()) return;
  const auto [entry, fresh] = count_index_.try_emplace(id, counts_.size());
  if (fresh) counts_.push_back({id, 0});
  ++counts_[entry->second].output;
}

/// Ascending, each once, without those that could not be drawn anyway.
std::vector<int32_t> TokenRules::in_vocabulary(std::vector<int32_t> ids) const {
  std::erase_if(ids, [this](int32_t id) { return id < 0 || id >= vocab_; });
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

/// Banned at this length, whatever the output is.
const std::vector<int32_t>& TokenRules::list() const {
  return static_cast<int64_t>(output_.size()) < request_.min_tokens ? early_banned_ : always_banned_;
}

bool TokenRules::leave_a_token() const {
  const auto masked = [this](int32_t id) { return !mask_.empty() && !allows_id(mask_, id); };
  auto banned = list().begin();
  for (int32_t id = 0; id < vocab_; ++id) {
    if (banned != list().end() && *banned == id) {
      ++banned;
    } else if (!masked(id)) {
      return true;
    }
  }
  return false;
}

bool TokenRules::is_banned(int32_t id) const {
  const std::vector<int32_t>& list = this->list();
  return std::binary_search(list.begin(), list.end(), id);
}

SampleRow TokenRules::next_row(int64_t position, std::span<const uint32_t> mask) {
  const std::vector<int32_t>& list = this->list();
  std::vector<int32_t> more;
  for (const std::vector<int32_t>& word : request_.bad_words) {
    const std::size_t before = word.size() - 1;
    if (before > 0 && before <= output_.size() &&
        std::equal(word.begin(), word.end() - 1, output_.end() - static_cast<std::ptrdiff_t>(before)) &&
        !std::binary_search(list.begin(), list.end(), word.back())) {
      more.push_back(word.back());
    }
  }
  if (!more.empty()) {
    banned_ = list;
    more = in_vocabulary(std::move(more));
    banned_.insert(banned_.end(), more.begin(), more.end());
  }
  SampleRow row;
  row.position = position;
  row.params = &request_.sampling;
  row.logprobs = request_.logprobs;
  row.mask = mask;
  row.banned = more.empty() ? list : banned_;
  row.biases = request_.biases;
  row.counts = counts_;
  return row;
}

}  // namespace glm53::engine
