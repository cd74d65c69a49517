// What whole replies of all chat protocols are made of: the stretches of reasoning, text and calls.
#pragma once

#include <vector>

#include "server/running_reply.h"

namespace glm53::server {

/// A reply's deltas as they come, what continues one another joined.
class ReplyParts {
 public:
  void add(std::vector<text::ReplyDelta> deltas);
  /// All of it, once `reply` has ended. With api.unclosed_think `content`, reasoning that the model ended without
  /// </think> is what it had to say. Other reasoning is left out unless it is shown.
  std::vector<text::ReplyDelta> take(const RunningReply& reply, const ApiSettings& settings,
                                     bool show_reasoning = true);

 private:
  std::vector<text::ReplyDelta> parts_;
};

}  // namespace glm53::server
