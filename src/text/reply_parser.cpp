#include "text/reply_parser.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "glm53/core/contains.h"
#include "text/prompt_text.h"

namespace glm53::text {

namespace {

constexpr size_t kMaxHeldReasoning = 16384;
constexpr std::string_view kSpace = " \t\n\v\f\r";

void append(ReplyChannel channel, std::string_view text, std::vector<ReplyDelta>& out) {
  if (text.empty()) return;
  if (out.empty() || out.back().channel != channel) out.push_back({channel, {}});
  out.back().text += text;
}

int64_t tokens_of(const std::vector<ReplyUnit>& units) {
  return std::accumulate(units.begin(), units.end(), int64_t{0},
                         [](int64_t sum, const ReplyUnit& unit) { return sum + unit.tokens; });
}

}  // namespace

void append_joined(std::vector<ReplyDelta> deltas, std::vector<ReplyDelta>& to) {
  for (ReplyDelta& delta : deltas) {
    if (!to.empty() && to.back().continued_by(delta)) {
      to.back().text += delta.text;
    } else {
      to.push_back(std::move(delta));
    }
  }
}

ReplyMarkers ReplyMarkers::from(const Tokenizer& tokenizer) {
  if (!tokenizer.has_vocabulary()) return {};
  return {tokenizer.require_added("<think>"),
          tokenizer.require_added("</think>"),
          {tokenizer.require_added("<tool_call>"), tokenizer.require_added("</tool_call>"),
           tokenizer.require_added("<arg_key>"), tokenizer.require_added("</arg_key>"),
           tokenizer.require_added("<arg_value>"), tokenizer.require_added("</arg_value>")}};
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
    if (id == markers.think_close || contains(roles, id)) {
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
      matcher_(options_.stop) {
  if (options_.split_reasoning && options_.tools && !options_.tools->empty()) names_.emplace(*options_.tools);
  if (names_ && options_.spelled_tags) {
    const ToolTags& tags = markers_.tags;
    for (const int32_t id :
         {tags.call_open, tags.call_close, tags.key_open, tags.key_close, tags.value_open, tags.value_close}) {
      tags_.push_back({-1, tokenizer_.token_bytes(id), tags.of(id), 0});
    }
  }
}

bool ReplyParser::push(int32_t id, std::vector<ReplyDelta>& out) {
  if (ended_) return true;
  const std::string_view text = tokenizer_.token_bytes(id);
  if (!tags_.empty() && channel_ == ReplyChannel::kContent && !tokenizer_.is_added(id)) {
    for (size_t i = 0; i < text.size(); ++i) {
      if (push_byte({-1, text.substr(i, 1), ToolTag::kNone, i == 0 ? 1 : 0}, out)) return true;
    }
    return false;
  }
  return push_spelling(out) || push_unit({id, text, markers_.tags.of(id), 1}, out);
}

void ReplyParser::finish(ReplyEnd end, std::vector<ReplyDelta>& out) {
  if (!ended_) push_spelling(out);
  if (end == ReplyEnd::kCut) cut_channel_ = channel_;
  if (!ended_ && hold_) finish_held(end, out);
  if (ended_) return;
  end_stretch(out);
  release_space(out);
  ended_ = true;
}

bool ReplyParser::push_unit(const ReplyUnit& unit, std::vector<ReplyDelta>& out) {
  if (hold_) return push_held(unit, out);
  // One that is spelled opens a call where push_byte() looked for it; what lies before it may since have become text.
  if (names_ && unit.tag == ToolTag::kCallOpen && (unit.id >= 0 || line_begins_)) {
    hold_call(unit);
    return false;
  }
  return push_plain(unit, out);
}

// ---- tags spelled in ordinary tokens

/// A byte of content, which may belong to a tag.
bool ReplyParser::push_byte(const ReplyUnit& byte, std::vector<ReplyDelta>& out) {
  const bool inside = hold_ && hold_->spelled;
  if (spelling_.text.empty() && !(inside || (!hold_ && line_begins_))) return push_unit(byte, out);
  const size_t length = spelling_.text.size();
  const auto goes_on = [&](const ReplyUnit& tag) {
    return tag.text.starts_with(spelling_.text) && tag.text[length] == byte.text[0];
  };
  const auto end = inside ? tags_.end() : tags_.begin() + 1;
  const auto tag = std::find_if(tags_.begin(), end, goes_on);
  if (tag == end) {
    if (length == 0) return push_unit(byte, out);
    return push_spelling(out) || push_byte(byte, out);
  }
  spelling_.tokens += byte.tokens;
  spelling_.text = tag->text.substr(0, length + 1);
  if (spelling_.text.size() < tag->text.size()) return false;
  spelling_.tag = tag->tag;
  return push_spelling(out);
}

/// What has been seen of a tag is all of it, or text.
bool ReplyParser::push_spelling(std::vector<ReplyDelta>& out) {
  if (spelling_.text.empty()) return false;
  return push_unit(std::exchange(spelling_, {-1, {}, ToolTag::kNone, 0}), out);
}

// ---- text

bool ReplyParser::push_plain(const ReplyUnit& unit, std::vector<ReplyDelta>& out) {
  const int32_t id = unit.id;
  tokens_ += unit.tokens;
  if (options_.split_reasoning) {
    const bool in_reasoning = channel_ == ReplyChannel::kReasoning;
    if (id == markers_.think_close) {
      if (feed_silent_marker(id, false, out)) {
        return true;
      }
      if (in_reasoning) {
        end_stretch(out);
        begin_content();
      }
      return false;
    }
    reasoning_tokens_ += in_reasoning ? unit.tokens : 0;
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
    if (names_ && !in_reasoning) {
      if (id == markers_.tags.call_close && prose_opens_ == 0) return feed_silent_marker(id, false, out);
      prose_opens_ += id == markers_.tags.call_open ? 1 : id == markers_.tags.call_close ? -1 : 0;
    }
  }
  if (options_.skip_special_tokens && tokenizer_.is_special(id)) {
    return feed_silent_marker(id, true, out);
  }
  line_begins_ = unit.text.ends_with('\n');
  return feed_text(decoder_.push(unit.text), out);
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
      end_at_stop(stop, out);
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
  if (!contains(options_.stop, text)) {
    return false;
  }
  end_stretch(out);
  if (options_.include_stop && printable) {
    emit(text, out);
  }
  end_at_stop(std::string(text), out);
  return true;
}

void ReplyParser::end_stretch(std::vector<ReplyDelta>& out) {
  emit(held_ + decoder_.finish(options_.flush_partial_utf8), out);
  held_.clear();
  decoder_ = IncrementalDecoder();
  matcher_.reset();
}

void ReplyParser::end_at_stop(const std::string& stop, std::vector<ReplyDelta>& out) {
  release_space(out);
  matched_stop_ = stop;
  ended_ = true;
}

void ReplyParser::emit(std::string_view text, std::vector<ReplyDelta>& out) {
  if (text.empty()) {
    return;
  }
  if (names_ && channel_ == ReplyChannel::kContent) {
    emit_content(text, out);
  } else {
    append(channel_, text, out);
  }
}

void ReplyParser::emit_content(std::string_view text, std::vector<ReplyDelta>& out) {
  // Before a first call the space at the end is held back, behind it that at the beginning.
  const size_t certain = calls_ == 0                                 ? strip_back(text).size()
                         : text_since_ || !strip_front(text).empty() ? text.size()
                                                                     : 0;
  if (certain > 0) {
    append(ReplyChannel::kContent, std::exchange(space_, {}), out);
    append(ReplyChannel::kContent, text.substr(0, certain), out);
    text_since_ = true;
  }
  space_ += text.substr(certain);
}

void ReplyParser::release_space(std::vector<ReplyDelta>& out) {
  if (calls_ == 0) append(ReplyChannel::kContent, space_, out);
  space_.clear();
}

// ---- calls

int ReplyParser::max_calls() const { return options_.parallel_calls ? kMaxCalls : 1; }

void ReplyParser::begin_content() {
  channel_ = ReplyChannel::kContent;
  line_begins_ = true;
}

void ReplyParser::hold_call(const ReplyUnit& opening) {
  const bool in_reasoning = channel_ == ReplyChannel::kReasoning;
  if (!hold_) hold_.emplace();
  hold_->units.push_back(opening);
  hold_->bytes += opening.text.size();
  hold_->spelled = opening.id < 0;
  hold_->call.emplace(*names_, typers_,
                      ToolCallParser::Options{.incremental = options_.incremental_calls && !in_reasoning,
                                              .strict = in_reasoning,
                                              .unknown_tools = options_.unknown_tools,
                                              .flush_partial_utf8 = options_.flush_partial_utf8});
}

bool ReplyParser::push_held(const ReplyUnit& unit, std::vector<ReplyDelta>& out) {
  if (channel_ == ReplyChannel::kReasoning) return push_held_reasoning(unit, out);
  switch (feed_call(unit)) {
    case ToolCallParser::Status::kOpen:
      hold_->units.push_back(unit);
      if (hold_->call->opened()) give_out(out);
      return false;
    case ToolCallParser::Status::kCall:
      hold_->units.push_back(unit);
      return take_held_call(out);
    case ToolCallParser::Status::kCallBefore:
      return take_held_call(out) || push_unit(unit, out);
    case ToolCallParser::Status::kText:
      return release(out) || push_unit(unit, out);
  }
  return false;
}

bool ReplyParser::push_held_reasoning(const ReplyUnit& unit, std::vector<ReplyDelta>& out) {
  if (hold_->bytes + unit.text.size() > kMaxHeldReasoning) return release(out) || push_unit(unit, out);
  if (!hold_->call) {  // behind a call
    if (unit.id == markers_.think_close) {
      tokens_ += unit.tokens;
      return take_held_calls(out);
    }
    if (unit.tag == ToolTag::kCallOpen) {
      hold_call(unit);
      return false;
    }
    if (tokenizer_.is_added(unit.id) || unit.text.find_first_not_of(kSpace) != std::string_view::npos) {
      return release(out) || push_unit(unit, out);
    }
  } else {
    const auto status = unit.id == markers_.think_close ? ToolCallParser::Status::kText : feed_call(unit);
    if (status == ToolCallParser::Status::kText) return release(out) || push_unit(unit, out);
    if (status == ToolCallParser::Status::kCall) {
      hold_->calls.push_back({ReplyChannel::kCall, hold_->call->take_arguments(), -1, hold_->call->name()});
      hold_->call.reset();
      if (std::ssize(hold_->calls) > max_calls() - calls_) return take_held_calls(out);
    }
  }
  hold_->units.push_back(unit);
  hold_->bytes += unit.text.size();
  return false;
}

ToolCallParser::Status ReplyParser::feed_call(const ReplyUnit& unit) {
  if (unit.tag != ToolTag::kNone) return hold_->call->push_tag(unit.tag, unit.text);
  const bool silent = options_.skip_special_tokens && tokenizer_.is_special(unit.id);
  return silent ? ToolCallParser::Status::kOpen : hold_->call->push(unit.text);
}

/// Of the call that is held, what is known.
void ReplyParser::give_out(std::vector<ReplyDelta>& out) {
  if (!std::exchange(hold_->given_out, true)) {
    begin_call(out);
    out.push_back({ReplyChannel::kCall, {}, calls_ - 1, hold_->call->name()});
  }
  tokens_ += tokens_of(hold_->units);
  hold_->units.clear();
  const std::string arguments = hold_->call->take_arguments();
  if (arguments.empty()) return;
  if (out.empty() || out.back().call != calls_ - 1) out.push_back({ReplyChannel::kCall, {}, calls_ - 1});
  out.back().text += arguments;
}

bool ReplyParser::take_held_call(std::vector<ReplyDelta>& out) {
  give_out(out);
  hold_.reset();
  ended_ = calls_ == max_calls();
  return ended_;
}

/// Those in reasoning, which thereby ends.
bool ReplyParser::take_held_calls(std::vector<ReplyDelta>& out) {
  HeldCall hold = *std::exchange(hold_, std::nullopt);
  end_stretch(out);
  begin_content();
  tokens_ += tokens_of(hold.units);
  for (ReplyDelta& call : hold.calls) {
    if (calls_ == max_calls()) break;
    begin_call(out);
    call.call = calls_ - 1;
    out.push_back(std::move(call));
  }
  ended_ = calls_ == max_calls();
  return ended_;
}

void ReplyParser::begin_call(std::vector<ReplyDelta>& out) {
  end_stretch(out);
  space_.clear();
  text_since_ = false;
  prose_opens_ = 0;
  line_begins_ = true;
  ++calls_;
}

/// What is held is text.
bool ReplyParser::release(std::vector<ReplyDelta>& out) {
  const std::vector<ReplyUnit> units = std::move(hold_->units);
  hold_.reset();
  return std::any_of(units.begin(), units.end(), [&](const ReplyUnit& unit) { return push_plain(unit, out); });
}

void ReplyParser::finish_held(ReplyEnd end, std::vector<ReplyDelta>& out) {
  const bool complete = end == ReplyEnd::kComplete;
  if (channel_ == ReplyChannel::kReasoning) {
    if (complete && !hold_->call) {
      take_held_calls(out);
    } else {
      release(out);
    }
  } else if (!complete) {
    cut_channel_.reset();
    if (hold_->given_out) {
      cut_channel_ = ReplyChannel::kCall;
      hold_->call->cut();
      give_out(out);
    }
    hold_.reset();
  } else if (hold_->call->finish() == ToolCallParser::Status::kCall) {
    take_held_call(out);
  } else {
    release(out);
  }
}

}  // namespace glm53::text
