// Everything that reads a client's bytes before the tokenizer does: request head, chunked coding, and the request
// parsers up to the rendered prompt. Refusals are exceptions of known types; anything else is a finding.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "server/api_error.h"
#include "server/chat_request.h"
#include "server/completions.h"
#include "server/messages_request.h"
#include "server/request_gate.h"
#include "server/responses_request.h"
#include "text/chat_prompt.h"

namespace {

using namespace glm53;          // NOLINT
using namespace glm53::server;  // NOLINT

void require(bool condition) {
  if (!condition) std::abort();
}

void run_gate(std::string_view bytes) {
  const auto end = find_head_end(bytes, 4096);
  if (const auto* length = std::get_if<size_t>(&end); length != nullptr && *length > 0) {
    require(*length <= 4096 && *length <= bytes.size());
    (void)parse_head(bytes.substr(0, *length), 1 << 20);
  }
  (void)parse_head(bytes, 1 << 20);
}

/// Whole and byte by byte give the same data, place and verdict.
void run_chunks(std::string_view bytes) {
  ChunkDecoder whole(1 << 16);
  std::string whole_data;
  const size_t whole_used = whole.feed(bytes, &whole_data);
  ChunkDecoder pieces(1 << 16);
  std::string pieces_data;
  size_t used = 0;
  while (used < bytes.size() && pieces.status() == ChunkDecoder::Status::kMore) {
    used += pieces.feed(bytes.substr(used, 1), &pieces_data);
  }
  require(whole.status() == pieces.status() && whole_used == used && whole_data == pieces_data);
  require(whole_data.size() <= (1 << 16));
}

template <class Parse>
void run_chat_parser(const Parse& parse) {
  try {
    const ChatRequest request = parse();
    const auto offered = offered_tools(request.prompt.tools, request.tool_choice);
    require((offered == nullptr) == (request.tool_choice.mode == ToolChoice::Mode::kNone));
    require(offered == nullptr || !offered->empty());
    require(request.tool_choice.mode != ToolChoice::Mode::kNamed || offered->size() == 1);
    (void)text::render_chat_prompt(request.prompt);
  } catch (const ApiError& error) {
    require(error.status == 400 || error.status == 404);
    (void)error_json(error);
    (void)messages_error_json(error);
  } catch (const text::ChatPromptError&) {
  }
}

void run_parsers(std::string_view body) {
  RequestRules rules;
  rules.defaults.vocab = 4096;
  rules.defaults.eos_ids = {1, 2};
  run_chat_parser([&] { return parse_chat_request(body, rules); });
  run_chat_parser([&] { return parse_messages_request(body, rules, MessagesPurpose::kReply); });
  run_chat_parser([&] { return parse_responses_request(body, rules).chat; });
  try {
    (void)parse_completion_request(body, rules);
  } catch (const ApiError& error) {
    require(error.status == 400 || error.status == 404);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  run_gate(bytes);
  run_chunks(bytes);
  run_parsers(bytes);
  return 0;
}
