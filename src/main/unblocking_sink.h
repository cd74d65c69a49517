// A log sink that never waits for its reader.
#pragma once

#include <cstdint>
#include <mutex>

#include <spdlog/sinks/base_sink.h>

namespace glm53 {

/// Writes lines to a descriptor. A pipe that nobody empties would hold every thread that logs, and with them the
/// shut-down: what it has no room for is lost here, and the next line that gets through is preceded by a warning that
/// says how many were. Thread-safe, as spdlog's sinks are.
class UnblockingSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  /// `descriptor` outlives the sink.
  explicit UnblockingSink(int descriptor) : descriptor_(descriptor) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override;
  void flush_() override {}

 private:
  /// False when it did not go through whole.
  bool write_line(const spdlog::details::log_msg& message);

  const int descriptor_;
  int64_t lost_ = 0;          ///< lines, since the last that got through
  bool within_line_ = false;  ///< what was written last was the beginning of a line
};

}  // namespace glm53
