#include "server/reply_parts.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

namespace glm53::server {
namespace {

using nlohmann::ordered_json;
using text::PromptJson;

ordered_json number_json(const std::string& literal) {
  const char* begin = literal.data();
  const char* end = begin + literal.size();
  int64_t integer = 0;
  if (const auto read = std::from_chars(begin, end, integer); read.ec == std::errc() && read.ptr == end) return integer;
  double value = 0;
  const bool fits = std::from_chars(begin, end, value).ec == std::errc();
  // Only an integer of hundreds of digits does not fit, and a number too small to matter.
  if (!fits) value = literal.find_first_of("eE.") != std::string::npos ? 0 : std::numeric_limits<double>::max();
  return value;
}

}  // namespace

std::string call_id(const char* prefix) { return prefix + random_id().substr(0, 24); }

ordered_json to_json(const PromptJson& value) {
  switch (value.kind()) {
    case PromptJson::Kind::kNull:
      return nullptr;
    case PromptJson::Kind::kBool:
      return value.as_bool();
    case PromptJson::Kind::kNumber:
      return number_json(value.number_literal());
    case PromptJson::Kind::kString:
      return value.as_string();
    case PromptJson::Kind::kArray: {
      ordered_json::array_t items;
      for (const PromptJson& item : value.items()) items.push_back(to_json(item));
      return items;
    }
    case PromptJson::Kind::kObject: {
      ordered_json::object_t members;
      members.reserve(value.members().size());
      // Keys differ already; operator[] would compare each with all before it.
      for (const auto& [key, member] : value.members()) members.emplace_back(key, to_json(member));
      return members;
    }
  }
  return nullptr;
}

void ReplyParts::add(std::vector<text::ReplyDelta> deltas) {
  for (text::ReplyDelta& delta : deltas) {
    if (!parts_.empty() && parts_.back().continued_by(delta)) {
      parts_.back().text += delta.text;
    } else {
      parts_.push_back(std::move(delta));
    }
  }
}

std::vector<text::ReplyDelta> ReplyParts::take(const RunningReply& reply, const ApiSettings& settings,
                                               bool show_reasoning) {
  // A call ends reasoning as </think> does.
  const bool calls = std::any_of(parts_.begin(), parts_.end(), [](const text::ReplyDelta& part) {
    return part.channel == text::ReplyChannel::kCall;
  });
  if (settings.unclosed_think == "content" && !calls && reply.unclosed_reasoning()) {
    for (text::ReplyDelta& part : parts_) {
      if (part.channel == text::ReplyChannel::kReasoning) part.channel = text::ReplyChannel::kContent;
    }
  }
  if (!show_reasoning) {
    const auto hidden = [](const text::ReplyDelta& part) { return part.channel == text::ReplyChannel::kReasoning; };
    std::vector<text::ReplyDelta> all = std::move(parts_);
    all.erase(std::remove_if(all.begin(), all.end(), hidden), all.end());
    parts_.clear();
    add(std::move(all));  // joins the text on both sides of what was left out
  }
  return std::move(parts_);
}

}  // namespace glm53::server
