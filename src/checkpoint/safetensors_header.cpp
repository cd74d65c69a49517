// The JSON header of a safetensors file. A streaming parser: nothing is kept but the entries themselves, so a hostile
// header of the largest size cannot make the program build a large document, and duplicate names do not vanish.
#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>

#include "checkpoint/safetensors.h"
#include "glm53/core/error.h"
#include "glm53/core/printable.h"

namespace glm53 {
namespace {

constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr size_t kMaxRank = 8;

/// Receives the header's tokens. Offsets stay relative to the data section.
class HeaderHandler {
 public:
  using json = nlohmann::json;

  explicit HeaderHandler(const std::string& file) : file_(file) {}

  std::vector<SafetensorsEntry> take_entries() { return std::move(entries_); }

  bool null() { return unexpected("null"); }
  bool boolean(bool) { return unexpected("a boolean"); }
  bool number_float(json::number_float_t, const std::string&) { return unexpected("a number that is no integer"); }
  bool number_integer(json::number_integer_t) { return unexpected("a negative number"); }
  bool binary(json::binary_t&) { return unexpected("binary data"); }

  bool number_unsigned(json::number_unsigned_t value) {
    if (state_ == State::kShape) {
      if (value > INT64_MAX) fail("shape has an extent out of range");
      if (entry().shape.size() == kMaxRank) fail("shape has more than " + std::to_string(kMaxRank) + " dimensions");
      entry().shape.push_back(static_cast<int64_t>(value));
      return true;
    }
    if (state_ == State::kOffsets) {
      if (offsets_ == 2) fail("data_offsets has more than two numbers");
      (offsets_++ == 0 ? entry().begin : entry().end) = value;
      return true;
    }
    return unexpected("a number");
  }

  bool string(std::string& value) {
    if (state_ == State::kMetadata) return true;
    if (state_ != State::kField || field_ != Field::kDtype) return unexpected("a string");
    const std::optional<DType> dtype = dtype_from_name(value);
    if (!dtype) fail("dtype " + in_quotes(value) + " is not supported");
    entry().dtype = *dtype;
    state_ = State::kEntry;
    return true;
  }

  bool start_object(size_t) {
    switch (state_) {
      case State::kStart:
        state_ = State::kTop;
        return true;
      case State::kTopValue:
        state_ = in_metadata_ ? State::kMetadata : State::kEntry;
        return true;
      default:
        return unexpected("an object");
    }
  }

  bool key(std::string& name) {
    if (state_ == State::kTop) {
      in_metadata_ = name == "__metadata__";
      if (in_metadata_ && std::exchange(metadata_seen_, true)) throw Error(file_ + ": __metadata__ occurs twice");
      if (!in_metadata_) {
        entries_.emplace_back().name = name;
        fields_seen_ = 0;
      }
      state_ = State::kTopValue;
    } else if (state_ == State::kEntry) {
      if (name == "dtype") {
        field_ = Field::kDtype;
      } else if (name == "shape") {
        field_ = Field::kShape;
      } else if (name == "data_offsets") {
        field_ = Field::kOffsets;
      } else {
        fail("unknown field " + in_quotes(name));
      }
      const unsigned bit = 1U << static_cast<unsigned>(field_);
      if ((fields_seen_ & bit) != 0) fail("field " + name + " occurs twice");
      fields_seen_ |= bit;
      state_ = State::kField;
    }
    return true;
  }

  bool end_object() {
    if (state_ == State::kEntry && fields_seen_ != 7U) {
      fail(std::string("field ") +
           ((fields_seen_ & 1U) == 0   ? "dtype"
            : (fields_seen_ & 2U) == 0 ? "shape"
                                       : "data_offsets") +
           " is missing");
    }
    state_ = State::kTop;
    return true;
  }

  bool start_array(size_t) {
    if (state_ == State::kField && field_ == Field::kShape) {
      state_ = State::kShape;
    } else if (state_ == State::kField && field_ == Field::kOffsets) {
      state_ = State::kOffsets;
      offsets_ = 0;
    } else {
      return unexpected("an array");
    }
    return true;
  }

  bool end_array() {
    if (state_ == State::kOffsets && offsets_ != 2) fail("data_offsets has fewer than two numbers");
    state_ = State::kEntry;
    return true;
  }

  bool parse_error(size_t position, const std::string&, const json::exception&) {
    throw Error(file_ + ": the header is not valid JSON at byte " + std::to_string(position));
  }

 private:
  enum class State { kStart, kTop, kTopValue, kMetadata, kEntry, kField, kShape, kOffsets };
  enum class Field : unsigned { kDtype, kShape, kOffsets };

  SafetensorsEntry& entry() { return entries_.back(); }

  [[noreturn]] void fail(const std::string& what) {
    throw Error(file_ + ": tensor " + printable(entry().name) + ": " + what);
  }

  /// A token where the format has none. (false would end the parse without a reason; this always throws.)
  bool unexpected(const std::string& token) {
    if (state_ == State::kStart) throw Error(file_ + ": the header is not a JSON object");
    if (in_metadata_) throw Error(file_ + ": __metadata__ is not an object of strings");
    switch (state_) {
      case State::kField:
        fail(std::string(field_ == Field::kDtype   ? "dtype"
                         : field_ == Field::kShape ? "shape"
                                                   : "data_offsets") +
             " is " + token);
      case State::kShape:
        fail("shape holds " + token + " where only non-negative integers belong");
      case State::kOffsets:
        fail("data_offsets holds " + token + " where only non-negative integers belong");
      default:
        fail("the entry is " + token + ", not an object");
    }
  }

  const std::string& file_;
  std::vector<SafetensorsEntry> entries_;
  State state_ = State::kStart;
  Field field_ = Field::kDtype;
  bool in_metadata_ = false;
  bool metadata_seen_ = false;
  unsigned fields_seen_ = 0;  ///< bit per Field
  int offsets_ = 0;           ///< numbers read of data_offsets
};

/// data_offsets lie in the data section and hold exactly dtype × shape.
void check_extent(const SafetensorsEntry& entry, uint64_t data_bytes, const std::string& file) {
  const auto fail = [&](const std::string& what) {
    throw Error(file + ": tensor " + printable(entry.name) + ": " + what);
  };
  const auto offsets = [&] {
    return "data_offsets [" + std::to_string(entry.begin) + ", " + std::to_string(entry.end) + "]";
  };
  if (entry.begin > entry.end) fail(offsets() + " run backwards");
  if (entry.end > data_bytes) {
    fail(offsets() + " leave the file, whose data section has " + std::to_string(data_bytes) + " bytes");
  }
  auto bytes = static_cast<int64_t>(dtype_bytes(entry.dtype));
  for (int64_t extent : entry.shape) {
    if (__builtin_mul_overflow(bytes, extent, &bytes)) {
      fail("the size of shape " + describe(entry.shape, entry.dtype) + " overflows");
    }
  }
  if (static_cast<uint64_t>(bytes) != entry.end - entry.begin) {
    fail(describe(entry.shape, entry.dtype) + " takes " + std::to_string(bytes) + " bytes, " + offsets() + " hold " +
         std::to_string(entry.end - entry.begin));
  }
}

void check_duplicates(const std::vector<SafetensorsEntry>& entries, const std::string& file) {
  std::vector<std::string_view> names;
  names.reserve(entries.size());
  for (const SafetensorsEntry& entry : entries) names.push_back(entry.name);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice != names.end()) throw Error(file + ": tensor " + printable(*twice) + " occurs twice in the header");
}

/// Tensors must cover the data section exactly, in any order: what lies outside is a truncated or foreign file.
void check_coverage(std::vector<SafetensorsEntry>& entries, uint64_t data_bytes, const std::string& file) {
  std::sort(entries.begin(), entries.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  uint64_t covered = 0;
  const SafetensorsEntry* previous = nullptr;
  for (const SafetensorsEntry& entry : entries) {
    if (entry.begin < covered) {
      throw Error(file + ": tensor " + printable(entry.name) + " overlaps tensor " + printable(previous->name));
    }
    if (entry.begin > covered) {
      throw Error(file + ": tensor " + printable(entry.name) + ": " + std::to_string(entry.begin - covered) +
                  " unused bytes before its data");
    }
    covered = entry.end;
    previous = &entry;
  }
  if (covered != data_bytes) {
    throw Error(file + ": " + std::to_string(data_bytes - covered) + " bytes after the last tensor" +
                (previous != nullptr ? ", " + printable(previous->name) : ""));
  }
}

}  // namespace

std::vector<SafetensorsEntry> parse_safetensors_header(std::string_view prefix, uint64_t file_size,
                                                       const std::string& file) {
  static_assert(std::endian::native == std::endian::little, "the header length is little-endian");
  uint64_t header_bytes = 0;
  if (prefix.size() < sizeof header_bytes || file_size < sizeof header_bytes) {
    throw Error(file + ": shorter than the 8 bytes of a safetensors header length");
  }
  std::memcpy(&header_bytes, prefix.data(), sizeof header_bytes);
  if (header_bytes > kMaxHeaderBytes) {
    throw Error(file + ": header length " + std::to_string(header_bytes) + " is more than the limit of " +
                std::to_string(kMaxHeaderBytes) + " bytes");
  }
  if (header_bytes > file_size - sizeof header_bytes || header_bytes > prefix.size() - sizeof header_bytes) {
    throw Error(file + ": header length " + std::to_string(header_bytes) + " is more than the file's " +
                std::to_string(file_size) + " bytes hold");
  }
  const std::string_view header = prefix.substr(sizeof header_bytes, header_bytes);
  if (header.empty() || header.front() != '{') throw Error(file + ": the header is not a JSON object");

  HeaderHandler handler(file);
  nlohmann::json::sax_parse(header.begin(), header.end(), &handler);
  std::vector<SafetensorsEntry> entries = handler.take_entries();

  const uint64_t data_begin = sizeof header_bytes + header_bytes;
  const uint64_t data_bytes = file_size - data_begin;
  for (const SafetensorsEntry& entry : entries) check_extent(entry, data_bytes, file);
  check_duplicates(entries, file);
  check_coverage(entries, data_bytes, file);
  for (SafetensorsEntry& entry : entries) {
    entry.begin += data_begin;
    entry.end += data_begin;
  }
  return entries;
}

}  // namespace glm53
