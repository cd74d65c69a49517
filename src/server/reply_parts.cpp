#include "server/reply_parts.h"

#include <algorithm>
#include <utility>

namespace glm53::server {

void ReplyParts::add(std::vector<text::ReplyDelta> deltas) { text::append_joined(std::move(deltas), parts_); }

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
