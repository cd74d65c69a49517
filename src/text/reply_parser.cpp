#include "text/reply_parser.h"

#include <algorithm>
#include <utility>

namespace glm53::text {

ReplyMarkers ReplyMarkers::from(const Tokenizer& tokenizer) {
  if (!tokenizer.has_vocabulary()) return {};
  return {tokenizer.require_added("<think>"), tokenizer.require_added("</think>")};
}

ReplyChannel start_channel(std::span<const int32_t> prompt_ids, const Tokenizer& tokenizer) {
  const ReplyMarkers markers = ReplyMarkers::from(tokenizer);
  std::vector<int32_t> roles;
  for (const char* role : {"<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"}) {
    if (const auto id = tokenizer.added_id(role)) {
      roles.push_back(*id);
    }
  }
  for (size_t i = prompt_ids.size(); i > 0; --i) {
    const int32_t id = prompt_ids[i - 1];
    if (id == markers.think_open) {
      return ReplyChannel::kReasoning;
    }
    if (id == markers.think_close || std::find(roles.begin(), roles.end(), id) != roles.end()) {
      break;
    }
  }
  return ReplyChannel::kContent;
}

ReplyParser::ReplyParser(const Tokenizer& tokenizer, ReplyOptions options)
    : tokenizer_(tokenizer),
      options_(std::move(options)),
      markers_(ReplyMarkers::from(tokenizer)),
      channel_(options_.split_reasoning ? options_.start : ReplyChannel::kContent),
      matcher_(options_.stop) {}

bool ReplyParser::push(int32_t id, std::vector<ReplyDelta>& out) {
  if (matched_stop_) {
    return true;
  }
  ++tokens_;
  if (options_.split_reasoning) {
    const bool in_reasoning = channel_ == ReplyChannel::kReasoning;
    if (id == markers_.think_close) {
      if (feed_silent_marker(id, false, out)) {
        return true;
      }
      if (in_reasoning) {
        end_stretch(out);
        channel_ = ReplyChannel::kContent;
      }
      return false;
    }
    reasoning_tokens_ += in_reasoning ? 1 : 0;
    if (id == markers_.think_open && (in_reasoning || options_.thinking)) {
      if (feed_silent_marker(id, false, out)) {
        return true;
      }
      if (!in_reasoning) {
        end_stretch(out);
        channel_ = ReplyChannel::kReasoning;
      }
      return false;
    }
  }
  if (options_.skip_special_tokens && tokenizer_.is_special(id)) {
    return feed_silent_marker(id, true, out);
  }
  return feed_text(decoder_.push(tokenizer_.token_bytes(id)), out);
}

void ReplyParser::finish(std::vector<ReplyDelta>& out) {
  if (!matched_stop_) {
    end_stretch(out);
  }
}

bool ReplyParser::feed_text(const std::string& text, std::vector<ReplyDelta>& out) {
  if (!searching()) {
    emit(text, out);
    return false;
  }
  for (size_t i = 0; i < text.size(); ++i) {
    const int found = matcher_.push(text[i]);
    if (found >= 0) {
      const std::string& stop = options_.stop[static_cast<size_t>(found)];
      held_.append(text, 0, i + 1);
      held_.resize(held_.size() - (options_.include_stop ? 0 : stop.size()));
      emit(held_, out);
      held_.clear();
      matched_stop_ = stop;
      return true;
    }
  }
  held_ += text;
  const size_t certain = held_.size() - matcher_.held();
  emit(std::string_view(held_).substr(0, certain), out);
  held_.erase(0, certain);
  return false;
}

// A token that the reply does not show can still be a stop, by its text.
bool ReplyParser::feed_silent_marker(int32_t id, bool printable, std::vector<ReplyDelta>& out) {
  if (!searching()) {
    return false;
  }
  const std::string_view text = tokenizer_.token_bytes(id);
  if (std::find(options_.stop.begin(), options_.stop.end(), text) == options_.stop.end()) {
    return false;
  }
  end_stretch(out);
  if (options_.include_stop && printable) {
    emit(text, out);
  }
  matched_stop_ = std::string(text);
  return true;
}

void ReplyParser::end_stretch(std::vector<ReplyDelta>& out) {
  emit(held_ + decoder_.finish(options_.flush_partial_utf8), out);
  held_.clear();
  decoder_ = IncrementalDecoder();
  matcher_.reset();
}

void ReplyParser::emit(std::string_view text, std::vector<ReplyDelta>& out) const {
  if (text.empty()) {
    return;
  }
  if (out.empty() || out.back().channel != channel_) {
    out.push_back({channel_, {}});
  }
  out.back().text += text;
}

}  // namespace glm53::text
