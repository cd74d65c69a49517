// The process log: stderr, one line a message.
#pragma once

#include "glm53/core/settings.h"

namespace glm53 {

/// Makes spdlog's default logger write to stderr as `ops.log_format` and `ops.log_level` say. Text lines carry time,
/// rank and level; JSON lines are objects with time, level, rank and message. Nobody waits for the reader of stderr
/// (unblocking_sink.h). Call once, before other threads start.
void start_logging(const Settings& settings);

}  // namespace glm53
