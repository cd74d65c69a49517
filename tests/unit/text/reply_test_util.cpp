#include "reply_test_util.h"

#include <algorithm>
#include <array>
#include <ostream>

#include <gtest/gtest.h>

#include "glm53/core/utf8.h"
#include "text/load_tokenizer.h"

namespace glm53::test {

using namespace glm53::text;

namespace {

const std::array<int32_t, 256>& byte_ids() {
  static const auto ids = [] {
    std::array<int32_t, 256> table{};
    const Tokenizer& tokenizer = tiny_tokenizer();
    for (int32_t id = tokenizer.id_count() - 1; id >= 0; --id) {
      const std::string_view bytes = tokenizer.token_bytes(id);
      if (!tokenizer.is_added(id) && bytes.size() == 1) table[static_cast<unsigned char>(bytes[0])] = id;
    }
    return table;
  }();
  return ids;
}

/// Calls `part` with each stretch of text between added tokens.
template <typename Part>
std::vector<int32_t> map_text(const std::vector<int32_t>& ids, Part part) {
  std::vector<int32_t> out;
  std::string text;
  const auto flush = [&] {
    if (!text.empty()) part(std::exchange(text, {}), out);
  };
  for (const int32_t id : ids) {
    if (tiny_tokenizer().is_added(id)) {
      flush();
      out.push_back(id);
    } else {
      text += tiny_tokenizer().token_bytes(id);
    }
  }
  flush();
  return out;
}

void add_bytes(std::string_view text, std::vector<int32_t>& out) {
  for (const char c : text) out.push_back(byte_ids()[static_cast<unsigned char>(c)]);
}

/// As few tokens as encode() finds; bytes where the text is cut inside a character.
void add_text(const std::string& text, std::vector<int32_t>& out) {
  if (!is_utf8(text)) return add_bytes(text, out);
  const TextSegment segment{TextSegment::Kind::kPlain, text};
  const auto ids = tiny_tokenizer().encode({&segment, 1});
  out.insert(out.end(), ids.begin(), ids.end());
}

}  // namespace

const Tokenizer& tiny_tokenizer() {
  static const Tokenizer tiny = load_tokenizer(GLM53_TEST_DATA "/models/glm53-tiny/tokenizer.json");
  return tiny;
}

void PrintTo(const ReplyMessage& message, std::ostream* out) {
  *out << "reasoning " << testing::PrintToString(message.reasoning) << " content "
       << testing::PrintToString(message.content) << " calls " << testing::PrintToString(message.calls) << " stop "
       << testing::PrintToString(message.stop) << (message.ended ? " ended" : "");
}

ReplyMessage parse_reply(const std::vector<int32_t>& ids, const ReplyOptions& options, ReplyEnd end,
                         const std::vector<size_t>& steps) {
  ReplyParser parser(tiny_tokenizer(), options);
  ReplyMessage message;
  std::vector<ReplyDelta> waiting;  // merged
  std::vector<ReplyDelta> out;
  const auto publish = [&] {
    for (ReplyDelta& delta : std::exchange(out, {})) {
      EXPECT_TRUE(!delta.text.empty() || !delta.tool_name.empty());
      EXPECT_EQ(to_valid_utf8(delta.text), delta.text) << "part of a character";
      EXPECT_EQ(delta.call >= 0, delta.channel == ReplyChannel::kCall);
      if (!waiting.empty() && waiting.back().continued_by(delta)) {
        EXPECT_EQ(delta.tool_name, "") << "a call begun twice";
        waiting.back().text += delta.text;
      } else {
        waiting.push_back(std::move(delta));
      }
    }
  };
  const auto receive = [&] {
    for (ReplyDelta& delta : std::exchange(waiting, {})) {
      if (delta.channel == ReplyChannel::kCall) {
        if (delta.call == std::ssize(message.calls)) {
          EXPECT_NE(delta.tool_name, "");
          message.calls.emplace_back(delta.tool_name, "");
        } else {
          EXPECT_EQ(delta.call, std::ssize(message.calls) - 1);
          EXPECT_EQ(delta.tool_name, "");
        }
        message.calls.back().second += delta.text;
      } else {
        (delta.channel == ReplyChannel::kReasoning ? message.reasoning : message.content) += delta.text;
      }
    }
  };
  size_t step = 0;
  size_t left = steps.empty() ? ids.size() + 1 : steps[0];
  for (const int32_t id : ids) {
    message.ended = parser.push(id, out);
    publish();
    if (message.ended) break;
    if (--left == 0) {
      receive();
      left = steps[++step % steps.size()];
    }
  }
  parser.finish(end, out);
  EXPECT_TRUE(!message.ended || out.empty()) << "text after the reply's end";
  publish();
  receive();
  message.stop = parser.matched_stop();
  return message;
}

std::vector<int32_t> in_bytes(const std::vector<int32_t>& ids) {
  return map_text(ids, [](const std::string& text, std::vector<int32_t>& out) { add_bytes(text, out); });
}

std::vector<int32_t> cut_anew(const std::vector<int32_t>& ids, std::mt19937& random) {
  return map_text(ids, [&](const std::string& text, std::vector<int32_t>& out) {
    for (size_t begin = 0; begin < text.size();) {
      const size_t length = 1 + random() % 12;
      add_text(text.substr(begin, length), out);
      begin += length;
    }
  });
}

std::vector<int32_t> cut_at(const std::vector<int32_t>& ids, size_t at) {
  size_t begin = 0;
  return map_text(ids, [&](const std::string& text, std::vector<int32_t>& out) {
    const size_t cut = at < begin ? 0 : std::min(at - begin, text.size());
    begin += text.size();
    if (cut > 0) add_text(text.substr(0, cut), out);
    if (cut < text.size()) add_text(text.substr(cut), out);
  });
}

size_t plain_bytes(const std::vector<int32_t>& ids) {
  size_t bytes = 0;
  for (const int32_t id : ids) bytes += tiny_tokenizer().is_added(id) ? 0 : tiny_tokenizer().token_bytes(id).size();
  return bytes;
}

}  // namespace glm53::test
