#include "config/yaml_reader.h"

#include <set>
#include <sstream>

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include "glm53/core/error.h"
#include "glm53/core/printable.h"
#include "glm53/core/read_file.h"
#include "glm53/core/utf8.h"

namespace glm53::config {

namespace {

constexpr size_t kMaxFileBytes = 256 * 1024;

/// Turns parser events into entries. Working on events rather than on yaml-cpp's node graph shows duplicate keys, tells
/// quoted from plain scalars and never expands an alias.
class EntryCollector final : public YAML::EventHandler {
 public:
  explicit EntryCollector(std::string file) : file_(std::move(file)) {}

  std::vector<YamlEntry> take() { return std::move(entries_); }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (documents_++ > 0) fail(mark, "a configuration file holds one YAML document, this one has more");
  }
  void OnDocumentEnd() override {}

  void OnAnchor(const YAML::Mark& mark, const std::string&) override { refuse_anchor(mark); }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    fail(mark, "aliases (*name) are not supported in a configuration file");
  }

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    if (anchor != YAML::NullAnchor) refuse_anchor(mark);
    if (level_ == Level::kDocument) return;
    SettingValue value;
    value.kind = SettingValue::Kind::kNull;
    scalar(mark, std::move(value));
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& text) override {
    check_properties(mark, tag, anchor);
    SettingValue value;
    value.kind = tag == "!" ? SettingValue::Kind::kQuoted : SettingValue::Kind::kPlain;
    value.text = text;
    scalar(mark, std::move(value));
  }

  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    check_properties(mark, tag, anchor);
    if (level_ == Level::kDocument) {
      level_ = Level::kRoot;
    } else if (level_ == Level::kRoot && has_key_) {
      section_ = key_;
      entries_.push_back({section_, "", {}, key_line_});
      has_key_ = false;
      level_ = Level::kSection;
    } else if (level_ == Level::kSection && has_key_ && is_section(section_ + "." + key_)) {
      outer_section_ = section_;
      section_ += "." + key_;
      has_key_ = false;
      level_ = Level::kInnerSection;
    } else {
      fail(mark, where() + "a mapping is not expected here");
    }
  }

  void OnMapEnd() override {
    if (level_ == Level::kInnerSection) {
      level_ = Level::kSection;
      section_ = outer_section_;
      return;
    }
    level_ = level_ == Level::kSection ? Level::kRoot : Level::kDocument;
    section_.clear();
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    check_properties(mark, tag, anchor);
    if (level_ == Level::kDocument) fail(mark, "expected sections and keys, found a list");
    if (level_ == Level::kList || !has_key_) fail(mark, where() + "a list is not expected here");
    above_list_ = level_;
    level_ = Level::kList;
    items_.clear();
  }

  void OnSequenceEnd() override {
    level_ = above_list_;
    SettingValue value;
    value.kind = SettingValue::Kind::kList;
    value.items = std::move(items_);
    add(std::move(value));
  }

 private:
  enum class Level : uint8_t { kDocument, kRoot, kSection, kInnerSection, kList };

  [[noreturn]] void fail(const YAML::Mark& mark, const std::string& message) const {
    throw Error(fmt::format("{}:{}: {}", file_, mark.line + 1, message));
  }

  [[noreturn]] void refuse_anchor(const YAML::Mark& mark) const {
    fail(mark, "anchors (&name) are not supported in a configuration file");
  }

  /// yaml-cpp gives "?" for a node without a tag, "!" for a quoted scalar.
  void check_properties(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) const {
    if (anchor != YAML::NullAnchor) refuse_anchor(mark);
    if (!tag.empty() && tag != "?" && tag != "!") {
      fail(mark, fmt::format("tags are not supported in a configuration file, found {}", in_quotes(tag)));
    }
  }

  std::string where() const {
    if (!has_key_) return section_.empty() ? "" : printable(section_) + ": ";
    return fmt::format("{}{}{}: ", printable(section_), section_.empty() ? "" : ".", printable(key_));
  }

  void scalar(const YAML::Mark& mark, SettingValue value) {
    if (level_ == Level::kDocument) fail(mark, "expected sections and keys, found " + in_quotes(value.text));
    if (level_ == Level::kList) {
      if (value.kind == SettingValue::Kind::kNull) fail(mark, where() + "a list item has no value");
      items_.push_back(std::move(value.text));
    } else if (has_key_) {
      add(std::move(value));
    } else {
      start_key(mark, value);
    }
  }

  void start_key(const YAML::Mark& mark, const SettingValue& key) {
    if (key.kind == SettingValue::Kind::kNull || key.text.empty()) fail(mark, where() + "a key is missing");
    if (key.text == "<<") fail(mark, "merge keys (<<) are not supported in a configuration file");
    key_ = key.text;
    key_line_ = mark.line + 1;
    has_key_ = true;
    if (!seen_.insert({section_, key_}).second) {
      std::string name = where();
      name.resize(name.size() - 2);
      fail(mark, name + " is given twice");
    }
  }

  void add(SettingValue value) {
    entries_.push_back({section_, key_, std::move(value), key_line_});
    has_key_ = false;
  }

  std::string file_;
  std::vector<YamlEntry> entries_;
  std::set<std::pair<std::string, std::string>> seen_;
  int documents_ = 0;
  Level level_ = Level::kDocument;
  Level above_list_ = Level::kRoot;
  std::string section_;
  std::string outer_section_;  ///< of kInnerSection
  std::string key_;
  int key_line_ = 0;
  bool has_key_ = false;
  std::vector<std::string> items_;
};

}  // namespace

std::vector<YamlEntry> read_yaml(std::string_view text, const std::string& file) {
  const std::string name = printable(file, std::string::npos);
  if (text.size() > kMaxFileBytes) {
    throw Error(fmt::format("{}: a configuration file has at most {} KiB", name, kMaxFileBytes / 1024));
  }
  if (!is_utf8(text)) throw Error(fmt::format("{}: not UTF-8 text", name));
  if (text.find('\0') != std::string_view::npos) throw Error(fmt::format("{}: holds a NUL byte", name));

  EntryCollector collector(name);
  try {
    // The end marker makes yaml-cpp refuse a quote that is never closed; without it 0.7 takes the rest of the file.
    std::istringstream stream(std::string(text) + "\n...\n");
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(collector)) {
    }
  } catch (const YAML::Exception& e) {
    throw Error(fmt::format("{}:{}: not valid YAML: {}", name, e.mark.line + 1, printable(e.msg)));
  }
  return collector.take();
}

std::vector<YamlEntry> read_yaml_file(const std::string& path) {
  return read_yaml(read_file(path, kMaxFileBytes), path);
}

}  // namespace glm53::config
