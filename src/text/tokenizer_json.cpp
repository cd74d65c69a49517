#include "text/tokenizer_json.h"

#include <nlohmann/json.hpp>

#include "glm53/core/error.h"
#include "glm53/core/printable.h"

namespace glm53::text {
namespace {

using nlohmann::json;

constexpr size_t kMaxDepth = 16;

[[noreturn]] void refuse(const std::string& part, const std::string& what) { throw Error(part + " " + what); }

// One line of ASCII, shortened when long.
std::string shown(const json& value) {
  return printable(value.dump(-1, ' ', true, json::error_handler_t::replace), 80);
}

[[noreturn]] void not_implemented(const std::string& part, const json& value) {
  refuse(part, "is " + shown(value) + ", which is not implemented");
}

// Reads the file in one pass. model.vocab and model.merges, hundreds of thousands of entries, go straight into their
// vectors; the rest becomes a small tree in which both are left empty. nlohmann's own tree would also drop repeated
// keys silently.
class Reader : public nlohmann::json_sax<json> {
 public:
  explicit Reader(TokenizerJson& out) : out_(out) {}

  json take_tree() { return std::move(root_); }

  bool null() override { return scalar(nullptr); }
  bool boolean(bool value) override { return scalar(value); }
  bool number_integer(number_integer_t value) override { return scalar(value); }
  bool number_float(number_float_t value, const string_t&) override { return scalar(value); }
  bool binary(binary_t&) override { return false; }

  bool number_unsigned(number_unsigned_t value) override {
    if (mode_ != Mode::kVocab) return scalar(value);
    if (value >= kMaxTokenIds) refuse("model.vocab:", "the id of " + in_quotes(key_) + " is over 2^24 - 1");
    out_.vocab.emplace_back(std::move(key_), static_cast<int32_t>(value));
    return true;
  }

  bool string(string_t& value) override {
    switch (mode_) {
      case Mode::kMerges: {
        const size_t space = value.find(' ');
        if (space == 0 || space >= value.size() - 1 || value.find(' ', space + 1) != std::string::npos) bad_merge();
        out_.merges.emplace_back(value.substr(0, space), value.substr(space + 1));
        return true;
      }
      case Mode::kMergePair:
        if (pair_size_ == 2 || value.empty()) bad_merge();
        (pair_size_++ == 0 ? out_.merges.back().first : out_.merges.back().second) = std::move(value);
        return true;
      default:
        return scalar(std::move(value));
    }
  }

  bool start_object(size_t) override {
    if (in_model("vocab")) {
      scalar(json::object());
      mode_ = Mode::kVocab;
      return true;
    }
    return open(json::object());
  }

  bool key(string_t& name) override {
    if (mode_ != Mode::kVocab && stack_.back()->contains(name)) refuse("key", in_quotes(name) + " appears twice");
    key_ = std::move(name);
    return true;
  }

  bool end_object() override { return close(Mode::kVocab); }

  bool start_array(size_t) override {
    if (mode_ == Mode::kMerges) {
      out_.merges.emplace_back();
      mode_ = Mode::kMergePair;
      pair_size_ = 0;
      return true;
    }
    if (in_model("merges")) {
      scalar(json::array());
      mode_ = Mode::kMerges;
      return true;
    }
    return open(json::array());
  }

  bool end_array() override {
    if (mode_ != Mode::kMergePair) return close(Mode::kMerges);
    if (pair_size_ != 2) bad_merge();
    mode_ = Mode::kMerges;
    return true;
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) override {
    throw Error("not valid JSON at byte " + std::to_string(position));
  }

 private:
  enum class Mode : uint8_t { kTree, kVocab, kMerges, kMergePair };

  bool in_model(const char* name) const {
    return mode_ == Mode::kTree && stack_.size() == 2 && model_ == stack_.back() && key_ == name;
  }

  [[noreturn]] void bad_merge() const {
    const size_t index = out_.merges.size() - (mode_ == Mode::kMergePair ? 1 : 0);
    refuse("model.merges[" + std::to_string(index) + "]", "is not a pair of two tokens");
  }

  json& add(json value) {
    if (stack_.empty()) return root_ = std::move(value);
    json& parent = *stack_.back();
    if (parent.is_object()) return parent[key_] = std::move(value);
    parent.push_back(std::move(value));
    return parent.back();
  }

  bool scalar(json value) {
    if (mode_ == Mode::kVocab)
      refuse("model.vocab:", "the id of " + in_quotes(key_) + " is not a non-negative integer");
    if (mode_ != Mode::kTree) bad_merge();
    add(std::move(value));
    return true;
  }

  bool open(json value) {
    if (mode_ != Mode::kTree) scalar(nullptr);
    if (stack_.size() == kMaxDepth) throw Error("JSON nested deeper than " + std::to_string(kMaxDepth) + " levels");
    const bool is_model = stack_.size() == 1 && key_ == "model" && root_.is_object();
    stack_.push_back(&add(std::move(value)));
    if (is_model) model_ = stack_.back();
    return true;
  }

  bool close(Mode special) {
    if (mode_ == special) {
      mode_ = Mode::kTree;
    } else {
      stack_.pop_back();
    }
    return true;
  }

  TokenizerJson& out_;
  json root_;
  std::vector<json*> stack_;
  const json* model_ = nullptr;  ///< the object "model" of the root
  std::string key_;
  Mode mode_ = Mode::kTree;
  int pair_size_ = 0;
};

// A member that may be absent: null then.
const json& member(const json& object, const char* name) {
  static const json null;
  const auto found = object.find(name);
  return found == object.end() ? null : *found;
}

bool require_bool(const json& object, const char* name, const std::string& part) {
  const json& value = member(object, name);
  if (!value.is_boolean()) refuse(part + "." + name, "is not true or false");
  return value.get<bool>();
}

// Absent and null mean false.
bool optional_bool(const json& object, const char* name, const std::string& part) {
  return !member(object, name).is_null() && require_bool(object, name, part);
}

std::string type_of(const json& value, const std::string& part) {
  if (!value.is_object()) refuse(part, "is not an object");
  const json& type = member(value, "type");
  if (!type.is_string()) refuse(part + ".type", "is not a string");
  return type.get<std::string>();
}

bool is_type(const json& value, const char* type, const std::string& part) {
  return !value.is_null() && type_of(value, part) == type;
}

void check_model(const json& model, TokenizerJson& out) {
  if (type_of(model, "model") != "BPE") not_implemented("model.type", model["type"]);
  for (const char* name : {"dropout", "unk_token"}) {
    if (!member(model, name).is_null()) not_implemented(std::string("model.") + name, model[name]);
  }
  for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!member(model, name).is_null() && model[name] != "") not_implemented(std::string("model.") + name, model[name]);
  }
  for (const char* name : {"byte_fallback", "fuse_unk"}) {
    if (optional_bool(model, name, "model")) not_implemented(std::string("model.") + name, model[name]);
  }
  out.ignore_merges = optional_bool(model, "ignore_merges", "model");
  if (!member(model, "vocab").is_object()) refuse("model.vocab", "is not an object");
  if (!member(model, "merges").is_array()) refuse("model.merges", "is not a list");
}

void check_normalizer(const json& normalizer) {
  if (normalizer.is_null()) return;
  if (is_type(normalizer, "Sequence", "normalizer") && member(normalizer, "normalizers") == json::array()) return;
  not_implemented("normalizer", normalizer);
}

std::string split_pattern(const json& split, const std::string& part) {
  if (!is_type(split, "Split", part)) not_implemented(part, split);
  if (member(split, "behavior") != "Isolated") not_implemented(part + ".behavior", member(split, "behavior"));
  if (require_bool(split, "invert", part)) not_implemented(part + ".invert", split["invert"]);
  const json& pattern = member(split, "pattern");
  if (!pattern.is_object() || pattern.size() != 1 || !member(pattern, "Regex").is_string()) {
    not_implemented(part + ".pattern", pattern);
  }
  return pattern["Regex"].get<std::string>();
}

std::string check_pre_tokenizer(const json& pre_tokenizer) {
  const std::string part = "pre_tokenizer";
  if (!is_type(pre_tokenizer, "Sequence", part)) not_implemented(part, pre_tokenizer);
  const json& steps = member(pre_tokenizer, "pretokenizers");
  if (!steps.is_array() || steps.size() != 2) refuse(part + ".pretokenizers", "is not a list of Split and ByteLevel");
  const std::string byte_level = part + ".pretokenizers[1]";
  if (!is_type(steps[1], "ByteLevel", byte_level)) not_implemented(byte_level, steps[1]);
  for (const char* name : {"add_prefix_space", "use_regex"}) {
    if (require_bool(steps[1], name, byte_level)) not_implemented(byte_level + "." + name, steps[1][name]);
  }
  return split_pattern(steps[0], part + ".pretokenizers[0]");
}

// Only what adds no token: the text's ids as they are.
void check_post_processor(const json& post_processor) {
  const std::string part = "post_processor";
  if (post_processor.is_null() || is_type(post_processor, "ByteLevel", part)) return;
  if (is_type(post_processor, "TemplateProcessing", part)) {
    const json& single = member(post_processor, "single");
    if (single.is_array() && single.size() == 1 && single[0].is_object() && single[0].contains("Sequence")) return;
  }
  not_implemented(part, post_processor);
}

void read_added_tokens(const json& list, std::vector<AddedToken>& out) {
  if (!list.is_array()) refuse("added_tokens", "is not a list");
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string part = "added_tokens[" + std::to_string(i) + "]";
    const json& entry = list[i];
    if (!entry.is_object()) refuse(part, "is not an object");
    const json& id = member(entry, "id");
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= kMaxTokenIds) {
      refuse(part + ".id", "is not an integer from 0 to 2^24 - 1");
    }
    const json& content = member(entry, "content");
    if (!content.is_string() || content == "") refuse(part + ".content", "is not a string with text");
    for (const char* name : {"lstrip", "rstrip", "single_word", "normalized"}) {
      if (require_bool(entry, name, part)) not_implemented(part + "." + name, entry[name]);
    }
    out.push_back({id.get<int32_t>(), content.get<std::string>(), require_bool(entry, "special", part)});
  }
}

}  // namespace

TokenizerJson parse_tokenizer_json(std::string_view text) {
  TokenizerJson out;
  Reader reader(out);
  json::sax_parse(text, &reader);
  const json root = reader.take_tree();
  if (!root.is_object()) throw Error("the top level is not an object");
  for (const char* name : {"truncation", "padding"}) {
    if (!member(root, name).is_null()) not_implemented(name, root[name]);
  }
  check_model(member(root, "model"), out);
  check_normalizer(member(root, "normalizer"));
  out.split_pattern = check_pre_tokenizer(member(root, "pre_tokenizer"));
  check_post_processor(member(root, "post_processor"));
  if (!is_type(member(root, "decoder"), "ByteLevel", "decoder")) not_implemented("decoder", member(root, "decoder"));
  read_added_tokens(member(root, "added_tokens"), out.added_tokens);
  return out;
}

}  // namespace glm53::text
