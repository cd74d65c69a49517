#include "text/byte_alphabet.h"

#include <array>

#include "glm53/core/utf8.h"

namespace glm53::text {
namespace {

constexpr int kLetters = 0x100 + 68;

struct Alphabet {
  std::array<char16_t, 256> letter{};
  std::array<int16_t, kLetters> byte{};  ///< -1 for code points outside the alphabet
};

constexpr Alphabet make_alphabet() {
  Alphabet alphabet;
  for (int16_t& byte : alphabet.byte) byte = -1;
  char16_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool itself = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    const char16_t letter = itself ? static_cast<char16_t>(byte) : next++;
    alphabet.letter[static_cast<size_t>(byte)] = letter;
    alphabet.byte[letter] = static_cast<int16_t>(byte);
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = make_alphabet();

}  // namespace

std::string bytes_to_alphabet(std::string_view bytes) {
  std::string piece;
  for (const char byte : bytes) append_code_point(kAlphabet.letter[static_cast<uint8_t>(byte)], piece);
  return piece;
}

std::optional<std::string> alphabet_to_bytes(std::string_view piece) {
  std::string bytes;
  while (!piece.empty()) {
    const char32_t letter = take_code_point(piece);
    if (letter >= kLetters || kAlphabet.byte[letter] < 0) return std::nullopt;
    bytes += static_cast<char>(kAlphabet.byte[letter]);
  }
  return bytes;
}

}  // namespace glm53::text
