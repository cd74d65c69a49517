// Replies as a client puts them together from what a ReplyParser gives out.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/reply_parser.h"

namespace glm53::test {

/// The tokenizer of glm53-tiny.
const text::Tokenizer& tiny_tokenizer();

struct ReplyMessage {
  std::string reasoning{};
  std::string content{};
  std::vector<std::pair<std::string, std::string>> calls{};  ///< name, arguments
  std::optional<std::string> stop{};
  bool ended = false;  ///< by the parser
  bool operator==(const ReplyMessage&) const = default;
};
void PrintTo(const ReplyMessage& message, std::ostream* out);

/// Feeds `ids`; after as many tokens as `steps` gives in turn (none: never) the deltas are handed on and merged as
/// engine::Generation merges them. Every delta must be fit to send: whole characters, no empty text, calls in order.
ReplyMessage parse_reply(const std::vector<int32_t>& ids, const text::ReplyOptions& options,
                         text::ReplyEnd end = text::ReplyEnd::kComplete, const std::vector<size_t>& steps = {1});

/// `ids` with the text between added tokens cut into other tokens: one a byte.
std::vector<int32_t> in_bytes(const std::vector<int32_t>& ids);
/// The same, cut at random places and each part encoded anew.
std::vector<int32_t> cut_anew(const std::vector<int32_t>& ids, std::mt19937& random);
/// The same, cut into two parts at byte `at` of all such text and at the borders of added tokens.
std::vector<int32_t> cut_at(const std::vector<int32_t>& ids, size_t at);
/// Bytes of `ids` that are not of added tokens.
size_t plain_bytes(const std::vector<int32_t>& ids);

}  // namespace glm53::test
