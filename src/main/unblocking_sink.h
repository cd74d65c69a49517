// A log sink that never waits for its reader.
#pragma once

#include <memory>

namespace spdlog::sinks {
class sink;
}

namespace glm53 {

/// Writes lines to a descriptor, which outlives the sink. A pipe that nobody empties would hold every thread that logs,
/// and with them the shut-down: what it has no room for is lost here, and the next line that gets through is preceded
/// by a warning that says how many were. The sink is thread-safe.
std::shared_ptr<spdlog::sinks::sink> make_unblocking_sink(int descriptor);

}  // namespace glm53
