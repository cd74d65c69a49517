#include "text/tokenizer.h"

#include <algorithm>
#include <array>
#include <unordered_map>

#include "glm53/core/contains.h"
#include "glm53/core/error.h"
#include "glm53/core/printable.h"
#include "glm53/core/utf8.h"
#include "text/bpe.h"
#include "text/byte_alphabet.h"
#include "text/pretokenizer.h"
#include "text/tokenizer_json.h"

namespace glm53::text {
namespace {

// Typed by a user these must not be counted as pictures (spec 40 §1.5).
constexpr auto kMediaMarkers = std::to_array<std::string_view>(
    {"<|image|>", "<|video|>", "<|begin_of_image|>", "<|end_of_image|>", "<|begin_of_video|>", "<|end_of_video|>"});

using IdByText = std::unordered_map<std::string_view, int32_t>;

int32_t require_token(const IdByText& ids, const std::string& piece, size_t merge) {
  const auto found = ids.find(piece);
  if (found == ids.end()) {
    throw Error("model.merges[" + std::to_string(merge) + "]: " + in_quotes(piece) + " is not in model.vocab");
  }
  return found->second;
}

}  // namespace

struct Tokenizer::Impl {
  struct Token {
    int32_t id;
    std::string bytes;
    bool added = false;
    bool special = false;
    bool in_alphabet = true;  ///< false: the piece has characters that stand for no byte, and is its own text
  };
  struct Marker {
    std::string_view text;
    int32_t id;
    bool media;
  };

  Impl(const TokenizerJson& json, std::string file_name)
      : file(std::move(file_name)),
        ignore_merges(json.ignore_merges),
        pre_tokenizer(pre_tokenizer_of(json)),
        merger(load(json)) {}

  static PreTokenizer pre_tokenizer_of(const TokenizerJson& json) {
    try {
      return PreTokenizer(json.split_pattern);
    } catch (const Error& error) {
      throw Error(std::string("pre_tokenizer.pretokenizers[0].pattern: ") + error.what());
    }
  }

  BpeMerger load(const TokenizerJson& json);
  void add_token(Token token);

  const Token* find(int32_t id) const {
    if (id < 0 || id >= static_cast<int32_t>(slots.size()) || slots[static_cast<size_t>(id)] < 0) return nullptr;
    return &tokens[static_cast<size_t>(slots[static_cast<size_t>(id)])];
  }

  const Marker* marker_at(std::string_view text, bool media) const;
  void encode_text(std::string_view text, std::vector<int32_t>& ids) const;

  std::string file;
  bool ignore_merges;
  PreTokenizer pre_tokenizer;
  std::vector<Token> tokens;   ///< fixed once loaded: the maps below view into it
  std::vector<int32_t> slots;  ///< by id: index into tokens, or -1
  IdByText added_ids;
  IdByText whole_pieces;                              ///< bytes of a piece → id; used with ignore_merges only
  std::array<std::vector<Marker>, 256> markers_from;  ///< added tokens by first byte, longest first
  BpeMerger merger;                                   ///< last: made by load(), which fills the others
};

void Tokenizer::Impl::add_token(Token token) {
  const auto index = static_cast<size_t>(token.id);
  if (slots.size() <= index) slots.resize(index + 1, -1);
  if (slots[index] >= 0) throw Error("two tokens have the id " + std::to_string(token.id));
  slots[index] = static_cast<int32_t>(tokens.size());
  tokens.push_back(std::move(token));
}

BpeMerger Tokenizer::Impl::load(const TokenizerJson& json) {
  IdByText vocab;
  vocab.reserve(json.vocab.size());
  for (const auto& [piece, id] : json.vocab) {
    if (!vocab.emplace(piece, id).second) throw Error("model.vocab: " + in_quotes(piece) + " appears twice");
  }
  std::array<int32_t, 256> byte_ids{};
  for (size_t byte = 0; byte < byte_ids.size(); ++byte) {
    const auto value = static_cast<char>(byte);
    const std::string letter = bytes_to_alphabet({&value, 1});
    const auto found = vocab.find(letter);
    if (found == vocab.end()) {
      throw Error("model.vocab: no token for byte " + std::to_string(byte) + " (" + in_quotes(letter) + ")");
    }
    byte_ids[byte] = found->second;
  }

  tokens.reserve(json.added_tokens.size() + json.vocab.size());
  for (const AddedToken& added : json.added_tokens) {
    const auto in_vocab = vocab.find(added.text);
    if (in_vocab != vocab.end() && in_vocab->second != added.id) {
      throw Error("added_tokens: " + in_quotes(added.text) + " has id " + std::to_string(added.id) +
                  ", in model.vocab " + std::to_string(in_vocab->second));
    }
    add_token({added.id, added.text, true, added.special, false});
  }
  for (const auto& [piece, id] : json.vocab) {
    const Token* added = find(id);
    if (added != nullptr && added->added && added->bytes == piece) continue;  // in both lists, as some files have it
    std::optional<std::string> bytes = alphabet_to_bytes(piece);
    add_token({id, bytes ? *std::move(bytes) : piece, false, false, bytes.has_value()});
  }

  for (const Token& token : tokens) {
    if (token.added) {
      if (!added_ids.emplace(token.bytes, token.id).second) {
        throw Error("added_tokens: " + in_quotes(token.bytes) + " appears twice");
      }
      const bool media = contains(kMediaMarkers, token.bytes);
      markers_from[static_cast<uint8_t>(token.bytes[0])].push_back({token.bytes, token.id, media});
    } else if (ignore_merges && token.in_alphabet) {
      whole_pieces.emplace(token.bytes, token.id);
    }
  }
  for (std::vector<Marker>& markers : markers_from) {
    std::sort(markers.begin(), markers.end(),
              [](const Marker& a, const Marker& b) { return a.text.size() > b.text.size(); });
  }

  std::vector<BpeMerge> merges;
  merges.reserve(json.merges.size());
  for (size_t i = 0; i < json.merges.size(); ++i) {
    const auto& [left, right] = json.merges[i];
    merges.push_back(
        {require_token(vocab, left, i), require_token(vocab, right, i), require_token(vocab, left + right, i)});
    // Otherwise ordinary text could turn into a control token.
    if (find(merges.back().result)->added) {
      throw Error("model.merges[" + std::to_string(i) + "] makes the added token " + in_quotes(left + right));
    }
  }
  return BpeMerger(byte_ids, merges);
}

const Tokenizer::Impl::Marker* Tokenizer::Impl::marker_at(std::string_view text, bool media) const {
  for (const Marker& marker : markers_from[static_cast<uint8_t>(text[0])]) {
    if ((media || !marker.media) && text.starts_with(marker.text)) return &marker;
  }
  return nullptr;
}

// Text without markers. Repaired first: PCRE2 is told not to check.
void Tokenizer::Impl::encode_text(std::string_view text, std::vector<int32_t>& ids) const {
  const std::string valid = to_valid_utf8(text);
  BpeMerger::Scratch scratch;
  for (const std::string_view piece : pre_tokenizer.split(valid)) {
    if (ignore_merges) {
      if (const auto whole = whole_pieces.find(piece); whole != whole_pieces.end()) {
        ids.push_back(whole->second);
        continue;
      }
    }
    merger.encode(piece, scratch, ids);
  }
}

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl, int32_t ids) : impl_(std::move(impl)), ids_(ids) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer Tokenizer::from_json(std::string_view json, const std::string& file) {
  try {
    auto impl = std::make_unique<Impl>(parse_tokenizer_json(json), file);
    const auto ids = static_cast<int32_t>(impl->slots.size());
    return {std::move(impl), ids};
  } catch (const Error& error) {
    throw Error(file + ": " + error.what());
  }
}

Tokenizer Tokenizer::without_vocabulary(int32_t ids) { return {nullptr, ids}; }

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  const TextSegment segment{TextSegment::Kind::kTemplate, std::string(text)};
  return encode(std::span(&segment, 1));
}

std::vector<int32_t> Tokenizer::encode(std::span<const TextSegment> segments) const {
  if (!impl_) throw std::runtime_error("text cannot be encoded: the checkpoint has no tokenizer");
  std::vector<int32_t> ids;
  std::string text;  // since the last marker
  for (size_t i = 0; i < segments.size();) {
    const TextSegment::Kind kind = segments[i].kind;
    std::string joined;
    for (; i < segments.size() && segments[i].kind == kind; ++i) joined += segments[i].text;
    if (kind == TextSegment::Kind::kPlain) {
      text += joined;
      continue;
    }
    size_t begin = 0;
    for (size_t at = 0; at < joined.size();) {
      const Impl::Marker* marker =
          impl_->marker_at(std::string_view(joined).substr(at), kind == TextSegment::Kind::kTemplate);
      if (marker == nullptr) {
        ++at;
        continue;
      }
      text.append(joined, begin, at - begin);
      impl_->encode_text(text, ids);
      text.clear();
      ids.push_back(marker->id);
      begin = at += marker->text.size();
    }
    text.append(joined, begin);
  }
  impl_->encode_text(text, ids);
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string bytes;
  for (const int32_t id : ids) {
    if (!(skip_special && is_special(id))) bytes += token_bytes(id);
  }
  return to_valid_utf8(bytes);
}

std::string_view Tokenizer::token_bytes(int32_t id) const {
  const Impl::Token* token = impl_ ? impl_->find(id) : nullptr;
  return token != nullptr ? std::string_view(token->bytes) : std::string_view();
}

std::string Tokenizer::token_piece(int32_t id) const {
  const Impl::Token* token = impl_ ? impl_->find(id) : nullptr;
  if (token == nullptr) return "";
  return token->in_alphabet ? bytes_to_alphabet(token->bytes) : token->bytes;
}

int32_t Tokenizer::id_count() const { return ids_; }

bool Tokenizer::has_token(int32_t id) const { return impl_ ? impl_->find(id) != nullptr : id >= 0 && id < ids_; }

bool Tokenizer::is_added(int32_t id) const {
  const Impl::Token* token = impl_ ? impl_->find(id) : nullptr;
  return token != nullptr && token->added;
}

bool Tokenizer::is_special(int32_t id) const {
  const Impl::Token* token = impl_ ? impl_->find(id) : nullptr;
  return token != nullptr && token->special;
}

std::optional<int32_t> Tokenizer::added_id(std::string_view text) const {
  if (!impl_) return std::nullopt;
  const auto found = impl_->added_ids.find(text);
  return found != impl_->added_ids.end() ? std::optional(found->second) : std::nullopt;
}

int32_t Tokenizer::require_added(std::string_view text) const {
  const std::optional<int32_t> id = added_id(text);
  if (!id)
    throw Error((impl_ ? impl_->file : std::string("no tokenizer")) + ": added_tokens has no " + in_quotes(text));
  return *id;
}

}  // namespace glm53::text
