// The tags that calls are written with (spec 40 §4.1).
#pragma once

#include <cstdint>

namespace glm53::text {

enum class ToolTag : uint8_t { kNone, kCallOpen, kCallClose, kKeyOpen, kKeyClose, kValueOpen, kValueClose };

/// Their ids in a vocabulary; −1 without one.
struct ToolTags {
  int32_t call_open = -1;
  int32_t call_close = -1;
  int32_t key_open = -1;
  int32_t key_close = -1;
  int32_t value_open = -1;
  int32_t value_close = -1;

  ToolTag of(int32_t id) const {
    if (id == call_open) return ToolTag::kCallOpen;
    if (id == call_close) return ToolTag::kCallClose;
    if (id == key_open) return ToolTag::kKeyOpen;
    if (id == key_close) return ToolTag::kKeyClose;
    if (id == value_open) return ToolTag::kValueOpen;
    if (id == value_close) return ToolTag::kValueClose;
    return ToolTag::kNone;
  }
};

}  // namespace glm53::text
