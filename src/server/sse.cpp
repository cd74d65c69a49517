#include "server/sse.h"

#include <string>
#include <utility>

#include "server/api_error.h"

namespace glm53::server {

void SseWriter::send(std::string_view text) {
  if (!body_.write(text)) throw ClientGone();
  last_sent_ = Clock::now();
}

void SseWriter::event(std::string_view json) { send("data: " + std::string(json) + "\n\n"); }

void SseWriter::event(std::string_view name, std::string_view json) {
  send("event: " + std::string(name) + "\ndata: " + std::string(json) + "\n\n");
}

void SseWriter::comment(std::string_view text) { send(": " + std::string(text) + "\n\n"); }

void SseWriter::done() { send("data: [DONE]\n\n"); }

HttpResponse sse_response(std::function<void(SseWriter&)> produce) {
  HttpResponse response;
  response.content_type = "text/event-stream; charset=utf-8";
  response.headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
  response.stream = [produce = std::move(produce)](BodyWriter& body) {
    SseWriter out(body);
    try {
      produce(out);
    } catch (const ApiError& error) {
      out.event(error_json(error));
      out.done();
    }
  };
  return response;
}

}  // namespace glm53::server
