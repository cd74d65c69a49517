#include "text/tool_call_parser.h"

#include <algorithm>
#include <utility>

#include "glm53/core/ascii.h"
#include "text/prompt_text.h"

namespace glm53::text {

namespace {

constexpr size_t kUnknownName = 64;  // longest name of a tool that was not offered
// What is held as a call may as well be prose that only mentions one: these bound how long it is waited for.
constexpr size_t kUnopenedKey = 256;           // longest key without <arg_key>
constexpr size_t kJsonBody = size_t{1} << 18;  // longest call in JSON

const PromptJson kNoSchema;

bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
}

bool may_be_unknown_tool(const std::string& name) {
  return !name.empty() && name.size() <= kUnknownName && std::all_of(name.begin(), name.end(), is_word);
}

/// The inside of a JSON string; pieces may be joined.
std::string escaped(std::string text) {
  const std::string quoted = PromptJson::string(std::move(text)).dump();
  return quoted.substr(1, quoted.size() - 2);
}

}  // namespace

bool is_callable_name(std::string_view name) {
  const auto readable = [](char c) { return static_cast<unsigned char>(c) > ' ' && c != '\x7f' && c != '<'; };
  return !name.empty() && name.size() <= kMaxToolName && name.front() != '{' &&
         std::all_of(name.begin(), name.end(), readable);
}

bool is_readable_key(std::string_view name) {
  return !name.empty() && name.size() <= kMaxArgumentName && strip_back(strip_front(name)) == name;
}

ToolNames::ToolNames(const OfferedTools& tools) {
  for (const OfferedTool& tool : tools) {
    if (!is_callable_name(tool.name) || !exact_.emplace(tool.name, &tool).second) continue;
    const auto [place, added] = folded_.emplace(ascii_lower(tool.name), &tool);
    if (!added) place->second = nullptr;
    for (const char c : tool.name) in_names_[static_cast<unsigned char>(c)] = true;
    longest_ = std::max(longest_, tool.name.size());
  }
}

const OfferedTool* ToolNames::find(const std::string& name) const {
  if (const auto found = exact_.find(name); found != exact_.end()) return found->second;
  const auto found = folded_.find(ascii_lower(name));
  return found != folded_.end() ? found->second : nullptr;
}

bool ToolNames::continues(const std::string& name, char next) const {
  return name.size() < longest_ && (is_word(next) || next == '.' || in_names_[static_cast<unsigned char>(next)]);
}

ToolCallParser::Status ToolCallParser::push(std::string_view bytes) { return take_text(decoder_.push(bytes)); }

ToolCallParser::Status ToolCallParser::push_tag(ToolTag tag, std::string_view text) {
  // No character spans a tag.
  const Status status = take_text(decoder_.finish(options_.flush_partial_utf8));
  return status == Status::kOpen ? take_tag(tag, text) : status;
}

ToolCallParser::Status ToolCallParser::finish() {
  if (take_text(decoder_.finish(options_.flush_partial_utf8)) == Status::kText) return Status::kText;
  if (state_ == State::kStart || state_ == State::kJson || (state_ == State::kName && !end_name()))
    return Status::kText;
  if (strict_) return Status::kText;
  if (state_ == State::kJsonEnd) return Status::kCall;
  if (state_ == State::kKey || (state_ == State::kBetween && !word_.empty())) return malformed(ToolTag::kCallClose);
  if (state_ == State::kAfterKey) key_without_value();
  if (state_ == State::kValue) end_value(/*closed=*/false);
  return complete();
}

void ToolCallParser::cut() {
  if (state_ == State::kValue && streaming_) arguments_ += '"';
  complete();
}

std::string ToolCallParser::take_arguments() { return std::exchange(arguments_, {}); }

// ---- text

ToolCallParser::Status ToolCallParser::take_text(std::string_view text) {
  switch (state_) {
    case State::kStart:
    case State::kName:
      return take_head(text);
    case State::kBetween:
      return std::all_of(text.begin(), text.end(), [this](char c) { return take_word(c); }) ? Status::kOpen
                                                                                            : malformed();
    case State::kAfterKey:
    case State::kJsonEnd:
      return strip_front(text).empty() ? Status::kOpen : malformed();
    case State::kKey:
      text_ += text;
      return text_.size() <= kMaxArgumentName ? Status::kOpen : malformed();
    case State::kJson:
      return take_json(text);
    case State::kValue:
      add_value_text(text);
      return Status::kOpen;
    case State::kSkip:
      return Status::kOpen;
  }
  return Status::kOpen;
}

ToolCallParser::Status ToolCallParser::take_head(std::string_view text) {
  while (!text.empty()) {
    const char c = text.front();
    if (state_ == State::kStart && c == '{' && !strict_) {
      state_ = State::kJson;
      return take_text(text);
    }
    if (is_space(c)) {
      if (state_ == State::kName) {
        if (!end_name()) return Status::kText;
        return take_text(text);
      }
    } else if (names_.continues(name_, c)) {
      name_ += c;
      state_ = State::kName;
    } else {
      return Status::kText;
    }
    text.remove_prefix(1);
  }
  return Status::kOpen;
}

ToolCallParser::Status ToolCallParser::take_json(std::string_view text) {
  for (size_t i = 0; i < text.size(); ++i) {
    text_ += text[i];
    const auto scanned = json_.push(text[i]);
    if (scanned == JsonObjectScan::Status::kNotJson || text_.size() > kJsonBody) return Status::kText;
    if (scanned == JsonObjectScan::Status::kComplete) {
      return read_json() ? take_text(text.substr(i + 1)) : Status::kText;
    }
  }
  return Status::kOpen;
}

/// A key that <arg_key> is missing from is one word.
bool ToolCallParser::take_word(char c) {
  if (is_space(c)) {
    word_ended_ = !word_.empty();
    return true;
  }
  if (strict_ || word_ended_ || word_.size() >= kUnopenedKey) return false;
  word_ += c;
  return true;
}

/// False when nothing can be called by this name.
bool ToolCallParser::find_tool() {
  const OfferedTool* const tool = names_.find(name_);
  if (tool == nullptr && !(options_.unknown_tools && may_be_unknown_tool(name_))) return false;
  if (tool != nullptr) name_ = tool->name;
  strict_ = strict_ || tool == nullptr;
  typer_ = &typers_.of(tool != nullptr ? tool->parameters : kNoSchema);
  return true;
}

bool ToolCallParser::end_name() {
  state_ = State::kBetween;
  return find_tool();
}

// ---- tags

ToolCallParser::Status ToolCallParser::take_tag(ToolTag tag, std::string_view text) {
  switch (state_) {
    case State::kStart:
      return Status::kText;
    case State::kName:
      return end_name() ? tag_between(tag) : Status::kText;
    case State::kBetween:
      return tag_between(tag);
    case State::kKey:
      key_ = strip_back(strip_front(text_));
      if (tag != ToolTag::kKeyClose || key_.empty()) return malformed(tag);
      state_ = State::kAfterKey;
      return Status::kOpen;
    case State::kAfterKey:
      return tag_after_key(tag);
    case State::kValue:
      return tag_in_value(tag, text);
    case State::kJson:
      return Status::kText;
    case State::kJsonEnd:
      return tag == ToolTag::kCallClose ? Status::kCall : Status::kText;
    case State::kSkip:
      return tag_while_skipping(tag);
  }
  return Status::kOpen;
}

ToolCallParser::Status ToolCallParser::tag_between(ToolTag tag) {
  const bool word = !word_.empty();
  if (tag == ToolTag::kKeyOpen && !word) {
    open();
    text_.clear();
    state_ = State::kKey;
    return Status::kOpen;
  }
  if (tag == ToolTag::kKeyClose && word) {
    open();
    key_ = std::exchange(word_, {});
    word_ended_ = false;
    state_ = State::kAfterKey;
    return Status::kOpen;
  }
  if (tag == ToolTag::kCallClose && !word) return complete();
  // A call whose end is missing before the next one. A name alone is no call yet.
  if (tag == ToolTag::kCallOpen && !word && any_argument_ && !strict_) return complete(Status::kCallBefore);
  return malformed(tag);
}

ToolCallParser::Status ToolCallParser::tag_after_key(ToolTag tag) {
  if (tag == ToolTag::kValueOpen) {
    begin_value();
    return Status::kOpen;
  }
  if (strict_ || tag == ToolTag::kKeyClose || tag == ToolTag::kValueClose) return malformed(tag);
  key_without_value();
  return tag_between(tag);
}

ToolCallParser::Status ToolCallParser::tag_in_value(ToolTag tag, std::string_view text) {
  if (tag == ToolTag::kValueClose) {
    end_value(/*closed=*/true);
    return Status::kOpen;
  }
  const bool ends = nested_ == 0 && (tag == ToolTag::kKeyOpen || tag == ToolTag::kCallClose);
  if (ends) {
    if (strict_) return malformed(tag);
    end_value(/*closed=*/false);
    return tag_between(tag);
  }
  nested_ += tag == ToolTag::kCallOpen ? 1 : tag == ToolTag::kCallClose ? -1 : 0;
  add_value_text(text);
  return Status::kOpen;
}

ToolCallParser::Status ToolCallParser::tag_while_skipping(ToolTag tag) {
  if (tag == ToolTag::kCallClose) return complete();
  if (tag == ToolTag::kCallOpen) return complete(Status::kCallBefore);
  if (tag == ToolTag::kKeyOpen) {
    text_.clear();
    state_ = State::kKey;
  }
  return Status::kOpen;
}

ToolCallParser::Status ToolCallParser::malformed(ToolTag tag) {
  if (!opened_) return Status::kText;
  state_ = State::kSkip;
  word_.clear();
  word_ended_ = false;
  return tag_while_skipping(tag);
}

// ---- arguments

void ToolCallParser::open() { opened_ = options_.incremental && !strict_; }

void ToolCallParser::begin_value() {
  state_ = State::kValue;
  text_.clear();
  nested_ = 0;
  streaming_ = opened_ && typer_->only_text(key_);
  if (streaming_) {
    begin_member(key_);
    arguments_ += '"';
  }
}

void ToolCallParser::add_value_text(std::string_view text) {
  if (!streaming_) {
    text_ += text;
    return;
  }
  // White space may be trailing, which a value without its end loses.
  const std::string_view body = strip_back(text);
  if (!body.empty()) arguments_ += escaped(std::exchange(text_, {}) += body);
  text_ += text.substr(body.size());
}

void ToolCallParser::end_value(bool closed) {
  if (!closed) text_.resize(strip_back(text_).size());
  any_argument_ = true;
  state_ = State::kBetween;
  if (streaming_) {
    arguments_ += escaped(std::exchange(text_, {}));
    arguments_ += '"';
  } else {
    add_member(typer_->value(key_, text_));
    text_.clear();
  }
}

void ToolCallParser::key_without_value() {
  any_argument_ = true;
  state_ = State::kBetween;
  if (typer_->admits_text(key_)) add_member(PromptJson::string(""));
}

void ToolCallParser::begin_member(std::string_view key) {
  arguments_ += first_member_ ? "{\"" : ", \"";
  arguments_ += escaped(std::string(key));
  arguments_ += "\": ";
  first_member_ = false;
}

/// The last value of a repeated key wins, in the place of the first; of JSON that is handed out, whoever reads it
/// decides.
void ToolCallParser::add_member(PromptJson value) {
  if (opened_) {
    begin_member(key_);
    arguments_ += value.dump();
    return;
  }
  const auto [place, added] = places_.emplace(key_, members_.size());
  if (added) {
    members_.emplace_back(key_, std::move(value));
  } else {
    members_[place->second].second = std::move(value);
  }
}

ToolCallParser::Status ToolCallParser::complete(Status status) {
  if (opened_) {
    arguments_ += first_member_ ? "{}" : "}";
  } else {
    arguments_ = PromptJson::object(std::move(members_)).dump();
  }
  return status;
}

/// {"name": ..., "arguments": {...}}, the form of other families. The values have their types. False: no call.
bool ToolCallParser::read_json() {
  try {
    const PromptJson call = PromptJson::parse(text_);
    const PromptJson* const name = call.find("name");
    if (name == nullptr || !name->is_string()) return false;
    name_ = name->as_string();
    PromptJson arguments = PromptJson::object({});
    if (const PromptJson* given = call.find("arguments")) {
      arguments = given->is_string() ? PromptJson::parse(given->as_string()) : *given;
    }
    if (!arguments.is_object() || !find_tool()) return false;
    arguments_ = arguments.dump();
    state_ = State::kJsonEnd;
    return true;
  } catch (const PromptJson::ParseError&) {
    return false;  // a brace in prose
  }
}

}  // namespace glm53::text
