// Replies with tool calls and what becomes of them.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "reply_test_util.h"

namespace glm53::test {

struct ToolCallCase {
  std::string name;
  std::string text;      ///< tags become their tokens
  ReplyMessage message;  ///< calls given out whole
  text::ReplyEnd end = text::ReplyEnd::kComplete;
  bool reasoning = false;                     ///< begins in it
  std::optional<ReplyMessage> incremental{};  ///< where it differs
};

const std::vector<ToolCallCase>& tool_call_cases();
/// get_time, get_weather, write_file, set, Search and search: for these cases.
std::shared_ptr<const text::OfferedTools> case_tools();
text::ReplyOptions case_options(bool reasoning, bool incremental);

}  // namespace glm53::test
