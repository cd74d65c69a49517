#include "main/logging.h"

#include <chrono>
#include <memory>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <spdlog/formatter.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include "glm53/core/printable.h"
#include "main/unblocking_sink.h"

namespace glm53 {

namespace {

/// spdlog's patterns do not escape the message, so JSON needs a formatter of its own.
class JsonFormatter final : public spdlog::formatter {
 public:
  explicit JsonFormatter(int rank) : rank_(rank) {}

  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& out) override {
    const auto since_epoch = message.time.time_since_epoch();
    const auto millis = std::chrono::duration_cast<std::chrono::milliseconds>(since_epoch).count() % 1000;
    const std::tm utc = fmt::gmtime(std::chrono::system_clock::to_time_t(message.time));
    const spdlog::string_view_t level = spdlog::level::to_string_view(message.level);
    fmt::format_to(std::back_inserter(out),
                   R"({{"time":"{:%Y-%m-%dT%H:%M:%S}.{:03}Z","level":"{}","rank":{},"message":{}}})", utc, millis,
                   std::string_view(level.data(), level.size()), rank_,
                   json_string({message.payload.data(), message.payload.size()}));
    out.push_back('\n');
  }

  std::unique_ptr<spdlog::formatter> clone() const override { return std::make_unique<JsonFormatter>(rank_); }

 private:
  int rank_;
};

}  // namespace

void start_logging(const Settings& settings) {
  auto logger = std::make_shared<spdlog::logger>("glm53-serve", make_unblocking_sink(STDERR_FILENO));
  const int rank = settings.cluster.rank;
  if (settings.ops.log_format == "json") {
    logger->set_formatter(std::make_unique<JsonFormatter>(rank));
  } else {
    logger->set_pattern(fmt::format("[%Y-%m-%d %H:%M:%S.%e] [rank {}] [%l] %v", rank));
  }
  logger->set_level(spdlog::level::from_str(settings.ops.log_level));
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace glm53
