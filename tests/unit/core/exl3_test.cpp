#include "glm53/core/exl3.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <stdexcept>

#include <gtest/gtest.h>
#include <openssl/evp.h>

#include "core/exl3_vectors.h"
#include "glm53/core/float_convert.h"

namespace glm53 {
namespace {

constexpr std::array kCodebooks = {Exl3Codebook::k3Inst, Exl3Codebook::kMcg, Exl3Codebook::kMul1};

std::string sha256(const void* data, size_t size) {
  std::array<unsigned char, 32> digest;
  EXPECT_EQ(EVP_Digest(data, size, digest.data(), nullptr, EVP_sha256(), nullptr), 1);
  std::string hex;
  for (unsigned char byte : digest) {
    hex += "0123456789abcdef"[byte >> 4];
    hex += "0123456789abcdef"[byte & 15];
  }
  return hex;
}

/// The trellis words of the published test vectors.
std::vector<uint16_t> generated_words(size_t count, int bits) {
  std::vector<uint16_t> words(count);
  for (uint64_t i = 0; i < count; ++i) {
    words[i] = static_cast<uint16_t>((i * 2654435761U + static_cast<uint64_t>(bits) * 40503U) >> 9);
  }
  return words;
}

/// A matrix that views `words`; suh and svh are left empty.
Exl3Matrix matrix_over(const std::vector<uint16_t>& words, int64_t in, int64_t out, int bits, Exl3Codebook codebook,
                       Exl3TileOrder order = Exl3TileOrder::kStandard) {
  Exl3Matrix matrix;
  matrix.name = "test";
  matrix.in = in;
  matrix.out = out;
  matrix.bits = bits;
  matrix.codebook = codebook;
  matrix.order = order;
  matrix.trellis = std::as_bytes(std::span(words));
  return matrix;
}

size_t word_count(int64_t in, int64_t out, int bits) { return static_cast<size_t>(in * out / 16 * bits); }

/// The 16 × 128 strip of the published digests: first tile row of a matrix, whose words do not depend on its height.
std::vector<uint16_t> decoded_strip(int bits, Exl3Codebook codebook, Exl3TileOrder order) {
  const std::vector<uint16_t> words = generated_words(word_count(128, 128, bits), bits);
  std::vector<uint16_t> codes(128 * 128);
  exl3_decode_codes(matrix_over(words, 128, 128, bits, codebook, order), 0, 128, codes.data());
  codes.resize(16 * 128);
  return codes;
}

template <size_t N>
std::vector<uint32_t> as_words32(const std::array<uint16_t, N>& halves) {
  std::vector<uint32_t> words;
  for (size_t i = 0; i < N; i += 2) words.push_back(halves[i] | static_cast<uint32_t>(halves[i + 1]) << 16);
  return words;
}

/// State p straight from the definition: 16 stream bits that end at bit (p+1)·K of a ring of 256·K bits.
uint16_t state_by_definition(std::span<const uint32_t> words, int bits, int p) {
  const int ring = 256 * bits;
  uint32_t state = 0;
  for (int j = 0; j < 16; ++j) {
    const int b = ((p + 1) * bits - 16 + j + ring) % ring;
    state = state << 1 | ((words[static_cast<size_t>(b / 32)] >> (31 - b % 32)) & 1U);
  }
  return static_cast<uint16_t>(state);
}

TEST(Exl3, SingleStatesOfEveryCodebook) {
  struct Row {
    uint16_t state, inst3, mcg, mul1;
  };
  constexpr std::array kRows = {
      Row{0x0000, 0x3A25, 0x3F60, 0xC2E8}, Row{0x0001, 0xBB5B, 0x304E, 0x3921}, Row{0x0002, 0x3B74, 0xBA13, 0xB72D},
      Row{0x1234, 0xC066, 0x3E0F, 0xB89E}, Row{0x8000, 0xB7F8, 0xB915, 0xBAF2}, Row{0xABCD, 0xB98E, 0x35E7, 0xBD42},
      Row{0xFFFF, 0xB110, 0x3ACD, 0xB936},
  };
  for (const Row& row : kRows) {
    EXPECT_EQ(exl3_codebook_table(Exl3Codebook::k3Inst)[row.state], row.inst3) << row.state;
    EXPECT_EQ(exl3_codebook_table(Exl3Codebook::kMcg)[row.state], row.mcg) << row.state;
    EXPECT_EQ(exl3_codebook_table(Exl3Codebook::kMul1)[row.state], row.mul1) << row.state;
  }
}

TEST(Exl3, CodebookTablesHaveThePublishedDigests) {
  constexpr std::array kDigests = {"ad88de2dcff5bb05fff2faec37cceceb43aa1c2e8203f9d81a6fbd6dd3393eea",
                                   "95383563929baa9d1ae5de0be22490284382673620bdd85929feea7bdbef04a9",
                                   "bc48d02cb1c14939dc47b90f870dd689d63e3b1ab69a157e65538db68677a6c8"};
  for (size_t i = 0; i < kCodebooks.size(); ++i) {
    const auto& table = exl3_codebook_table(kCodebooks[i]);
    EXPECT_EQ(sha256(table.data(), sizeof table), kDigests[i]) << i;
  }
}

TEST(Exl3, StatesOfTheTestTiles) {
  std::array<uint16_t, 256> states;
  exl3_tile_states(as_words32(exl3_vectors::kT4Words), 4, states);
  EXPECT_EQ(states, exl3_vectors::kT4States);
  exl3_tile_states(as_words32(exl3_vectors::kT2Words), 2, states);
  EXPECT_EQ(states, exl3_vectors::kT2States);
}

TEST(Exl3, DecodedBlocksOfTheTestTiles) {
  const std::vector<uint16_t> t4 = decoded_strip(4, Exl3Codebook::kMcg, Exl3TileOrder::kStandard);
  const std::vector<uint16_t> t2 = decoded_strip(2, Exl3Codebook::kMcg, Exl3TileOrder::kStandard);
  for (size_t row = 0; row < 16; ++row) {
    for (size_t column = 0; column < 16; ++column) {
      EXPECT_EQ(t4[row * 128 + column], exl3_vectors::kT4Block[row * 16 + column]) << row << ' ' << column;
      EXPECT_EQ(t2[row * 128 + column], exl3_vectors::kT2Block[row * 16 + column]) << row << ' ' << column;
    }
  }
}

TEST(Exl3, GeneratedWordsAreThoseOfTheTestTiles) {
  const std::vector<uint16_t> words = generated_words(64, 4);
  EXPECT_TRUE(std::equal(words.begin(), words.end(), exl3_vectors::kT4Words.begin()));
}

TEST(Exl3, StripDigestsForEveryRateAndCodebook) {
  constexpr const char* kDigests[8][3] = {
      {"4e2d6d12cfb38a4c4ebe9d3ee32845cce47c1a3791085a3d20eb32ff0d8a0427",
       "45d5c3ea57e51e1371f4a47415abe97cd5445abe4198bf4a74d63ad1445b7207",
       "e02f46d22bd71aa89746aa7378361d58b578039846ab1249ac9435d26ea86723"},
      {"6be161c9cb30d2169132a9c5e990a190fb5dea478c9e2c77ef986789f495e31b",
       "e45f494665e37c04ff3b8f9672471f0fb00126cac4f020bfd7f84aa06fb5de72",
       "54576a863b0120660e5a832b44907243809e1c676542ba7ddb851d0c4d5fecb1"},
      {"380379b1d14dc1ac0b82d7f42cd42ecc83060edb5b49d65a23e3c001c6c7c1ab",
       "cda4e8323139c8702a8465a813d161f54037922d759d8d5f5cd0e10afe62dd85",
       "2edab79d097bad3308c1215a7aba65ace27990b50f01b6afdb55445901db880c"},
      {"46d49a3ab13652fc99386524478499faa0d0dc549b9182daf6fd3625d1e5621c",
       "14fbf140e51b3105515eaf58d240df57bfd628d97a13fbcd3214737871c30437",
       "65cb9ac790fd7a102a0f599117919543d2bcce9130d2b5edb8b5c4113976d8a0"},
      {"86ce3ab8696fa426fc73b70be6552777cbebf0aef8d6e6ed59bce9cb273e9bc7",
       "7c74efca93f5c857f6b76056b51d4876be143441a10b84016e9d6e0366b6a9ad",
       "501f06bdc000286cf6f4e194df3d8a199e547003c733cf7ee7183ad2e08899e5"},
      {"ffed01af1231b2f5662760798c359f5d122deec48ed19d36658dab0e810909bf",
       "9aba2053ca8d8fc148a49b8efe771fa55679083560ca03ad2e4d1f3ca9182a46",
       "afd08213bcf53e69c7eadac826b39071e45b406a76a82c7e0e8199294dd68512"},
      {"9ed8f0b26e4cd4846b1c56b0d5565d01f98bf25fe2a47210641a62c741ff0126",
       "ca3b08c85a49df62969b458db26c19d9fe20ba4dbfaea220255ce2e41897c7b9",
       "72a9c3bf4823a96a4db79a7265cfa0656b02ccfb6ee2d0221939e139fefac692"},
      {"8f08353cc1512af1c9fba2254b9c83b6adc432eed3f72e55248645414b34eaea",
       "fe5a477706255a9fc2f01877bb5e3c24187cad6d212b26b9a5c0eb0f9797efef",
       "a737f9024d296490ee794aeb0301d4a69e48ba2a4496fbc31de281dc1c464f21"},
  };
  for (int bits = 1; bits <= 8; ++bits) {
    for (size_t i = 0; i < kCodebooks.size(); ++i) {
      const std::vector<uint16_t> strip = decoded_strip(bits, kCodebooks[i], Exl3TileOrder::kStandard);
      EXPECT_EQ(sha256(strip.data(), strip.size() * 2), kDigests[bits - 1][i]) << "K=" << bits << " codebook " << i;
    }
  }
}

TEST(Exl3, StripDigestsInColumnMajorOrder) {
  constexpr std::array kDigests = {"0345d4fe2b64c9f002fd32a31a7d9ca2f8f328d7273f3f0cf2b433476b4df75a",
                                   "942c2b91ce6e31dbb2fe2e1f055b307dba330a42202877dd2d3446174677240e",
                                   "78d15ca16319e4164fa9bc515804eb225313dcb2353fbf9ceb0399c36ef08e8b"};
  for (size_t i = 0; i < kDigests.size(); ++i) {
    const std::vector<uint16_t> strip =
        decoded_strip(static_cast<int>(i) + 2, Exl3Codebook::kMcg, Exl3TileOrder::kColumnMajor);
    EXPECT_EQ(sha256(strip.data(), strip.size() * 2), kDigests[i]) << "K=" << i + 2;
  }
}

TEST(Exl3, TilePositionsCoverTheTileOnce) {
  for (Exl3TileOrder order : {Exl3TileOrder::kStandard, Exl3TileOrder::kColumnMajor}) {
    std::array<int, 256> seen{};
    for (int p = 0; p < 256; ++p) {
      const TilePosition at = exl3_tile_position(order, p);
      ++seen[static_cast<size_t>(at.row * 16 + at.column)];
      if (order == Exl3TileOrder::kStandard) {  // the inverse of the definition
        const int lane = 4 * (at.column % 8) + (at.row % 8) / 2;
        EXPECT_EQ(p, 8 * lane + (at.row & 1) + 2 * (at.row >> 3) + 4 * (at.column >> 3));
      } else {
        EXPECT_EQ(p, 16 * at.column + at.row);
      }
    }
    for (int count : seen) EXPECT_EQ(count, 1);
  }
}

TEST(Exl3, StatesFollowTheDefinitionAndPackBack) {
  std::mt19937 random(7);
  for (int bits = 1; bits <= 8; ++bits) {
    std::vector<uint32_t> words(static_cast<size_t>(8 * bits));
    for (uint32_t& word : words) word = random();
    std::array<uint16_t, 256> states;
    exl3_tile_states(words, bits, states);
    std::vector<uint32_t> packed(words.size(), 0);
    for (int p = 0; p < 256; ++p) {
      const uint16_t state = states[static_cast<size_t>(p)];
      ASSERT_EQ(state, state_by_definition(words, bits, p)) << "K=" << bits << " p=" << p;
      // Neighbours share 16 − K bits, also across the end of the tile.
      const uint16_t before = states[static_cast<size_t>((p + 255) % 256)];
      EXPECT_EQ(state >> bits, before & ((1 << (16 - bits)) - 1));
      for (int j = 0; j < bits; ++j) {
        const int b = p * bits + j;
        packed[static_cast<size_t>(b / 32)] |= static_cast<uint32_t>((state >> (bits - 1 - j)) & 1) << (31 - b % 32);
      }
    }
    EXPECT_EQ(packed, words) << "K=" << bits;
  }
}

/// Random fp16 of magnitude [1/4, 1) and either sign; every 50th is zero when `zeros`.
std::vector<uint16_t> random_scales(int64_t count, bool zeros, std::mt19937& random) {
  std::vector<uint16_t> scales(static_cast<size_t>(count));
  for (size_t i = 0; i < scales.size(); ++i) {
    scales[i] = static_cast<uint16_t>(0x3400U + random() % 0x800U + (random() & 1U) * 0x8000U);
    if (zeros && i % 50 == 49) scales[i] = 0;
  }
  return scales;
}

/// W of the definition, by dense products with H in fp64.
std::vector<double> dequantise_by_definition(const Exl3Matrix& matrix) {
  const auto in = static_cast<size_t>(matrix.in);
  const auto out = static_cast<size_t>(matrix.out);
  const auto tile_words = static_cast<size_t>(8 * matrix.bits);
  std::vector<double> codes(in * out);
  for (size_t a = 0; a < in / 16; ++a) {
    for (size_t b = 0; b < out / 16; ++b) {
      std::vector<uint32_t> words(tile_words);
      std::memcpy(words.data(), matrix.trellis.data() + (a * (out / 16) + b) * tile_words * 4, tile_words * 4);
      for (int p = 0; p < 256; ++p) {
        const uint16_t state = state_by_definition(words, matrix.bits, p);
        const TilePosition at = exl3_tile_position(matrix.order, p);
        codes[(16 * a + static_cast<size_t>(at.row)) * out + 16 * b + static_cast<size_t>(at.column)] =
            fp16_to_float(exl3_codebook_table(matrix.codebook)[state]);
      }
    }
  }
  const auto sign = [](size_t i, size_t j) { return std::popcount((i % 128) & (j % 128)) % 2 == 0 ? 1.0 : -1.0; };
  std::vector<double> half(in * out, 0.0);  // H_in · W_q · √128
  for (size_t i = 0; i < in; ++i) {
    for (size_t r = i / 128 * 128; r < i / 128 * 128 + 128; ++r) {
      for (size_t c = 0; c < out; ++c) half[i * out + c] += sign(i, r) * codes[r * out + c];
    }
  }
  std::vector<double> weight(in * out, 0.0);
  for (size_t i = 0; i < in; ++i) {
    for (size_t j = 0; j < out; ++j) {
      double sum = 0.0;
      for (size_t c = j / 128 * 128; c < j / 128 * 128 + 128; ++c) sum += half[i * out + c] * sign(c, j);
      weight[i * out + j] = sum / 128 * fp16_to_float(matrix.suh[i]) * fp16_to_float(matrix.svh[j]);
    }
  }
  return weight;
}

TEST(Exl3, DequantiseIsTheDefinitionRoundedOnce) {
  std::mt19937 random(11);
  for (int bits = 1; bits <= 8; ++bits) {
    const Exl3TileOrder order = bits % 2 == 0 ? Exl3TileOrder::kStandard : Exl3TileOrder::kColumnMajor;
    std::vector<uint16_t> words(word_count(256, 128, bits));
    for (uint16_t& word : words) word = static_cast<uint16_t>(random());
    Exl3Matrix matrix = matrix_over(words, 256, 128, bits, kCodebooks[static_cast<size_t>(bits) % 3], order);
    matrix.suh = random_scales(matrix.in, false, random);
    matrix.svh = random_scales(matrix.out, true, random);
    std::vector<float> weight(words.size() * 16 / static_cast<size_t>(bits));
    exl3_dequantise(matrix, weight.data());
    const std::vector<double> expected = dequantise_by_definition(matrix);
    ASSERT_EQ(weight.size(), expected.size());
    for (size_t i = 0; i < weight.size(); ++i) {
      ASSERT_LE(std::abs(weight[i] - expected[i]), std::abs(expected[i]) * 0x1.00001p-24) << "K=" << bits << " " << i;
    }
  }
}

TEST(Exl3, UnalignedTrellisDecodesAlike) {
  std::mt19937 random(13);
  std::vector<uint16_t> words(word_count(128, 256, 3));
  for (uint16_t& word : words) word = static_cast<uint16_t>(random());
  Exl3Matrix matrix = matrix_over(words, 128, 256, 3, Exl3Codebook::kMcg);
  matrix.suh = random_scales(matrix.in, false, random);
  matrix.svh = random_scales(matrix.out, false, random);
  std::vector<float> aligned(128 * 256);
  exl3_dequantise(matrix, aligned.data());

  std::vector<std::byte> shifted(words.size() * 2 + 1);
  std::memcpy(shifted.data() + 1, words.data(), words.size() * 2);
  matrix.trellis = std::span<const std::byte>(shifted).subspan(1);
  std::vector<float> unaligned(128 * 256);
  exl3_dequantise(matrix, unaligned.data());
  EXPECT_EQ(aligned, unaligned);
}

TEST(Exl3, ColumnRangesAreSlicesOfTheWhole) {
  const std::vector<uint16_t> words = generated_words(word_count(128, 256, 5), 5);
  const Exl3Matrix matrix = matrix_over(words, 128, 256, 5, Exl3Codebook::kMul1);
  std::vector<uint16_t> whole(128 * 256);
  exl3_decode_codes(matrix, 0, 256, whole.data());
  constexpr std::array<std::array<int64_t, 2>, 4> kRanges = {{{0, 16}, {48, 128}, {240, 256}, {96, 96}}};
  for (const auto& [begin, end] : kRanges) {
    const auto width = static_cast<size_t>(end - begin);
    std::vector<uint16_t> part(128 * width + 1, 0x7E11);
    exl3_decode_codes(matrix, begin, end, part.data());
    for (size_t row = 0; row < 128; ++row) {
      for (size_t column = 0; column < width; ++column) {
        ASSERT_EQ(part[row * width + column], whole[row * 256 + static_cast<size_t>(begin) + column]);
      }
    }
    EXPECT_EQ(part.back(), 0x7E11);
  }
}

TEST(Exl3, InconsistentArgumentsAreRefused) {
  const std::vector<uint16_t> words = generated_words(word_count(128, 128, 4), 4);
  const Exl3Matrix good = matrix_over(words, 128, 128, 4, Exl3Codebook::kMcg);
  std::vector<uint16_t> codes(128 * 128);
  std::vector<float> weight(128 * 128);
  constexpr std::array<std::array<int64_t, 2>, 5> kBadRanges = {{{-16, 16}, {0, 144}, {8, 32}, {0, 100}, {32, 16}}};
  for (const auto& [begin, end] : kBadRanges) {
    EXPECT_THROW(exl3_decode_codes(good, begin, end, codes.data()), std::invalid_argument);
  }
  EXPECT_THROW(exl3_dequantise(good, weight.data()), std::invalid_argument);  // no suh
  Exl3Matrix bad = good;
  bad.bits = 5;  // the trellis is too short for that
  EXPECT_THROW(exl3_decode_codes(bad, 0, 128, codes.data()), std::invalid_argument);
  bad = good;
  bad.bits = 9;
  EXPECT_THROW(exl3_decode_codes(bad, 0, 128, codes.data()), std::invalid_argument);
  std::array<uint16_t, 256> states;
  EXPECT_THROW(exl3_tile_states(std::vector<uint32_t>(31), 4, states), std::invalid_argument);
}

struct LinearCase {
  int64_t size;
  int bits;
  double first, right, below, last;  ///< W[0,0], W[0,1], W[1,0], W[k−1,n−1]
  double sum, sum_of_squares;
  std::array<double, 4> y;
  double y_last, y_norm, code_sum;
};

TEST(Exl3, WholeLinearVectors) {
  constexpr std::array kCases = {
      LinearCase{128,
                 4,
                 -0.031388432,
                 0.051624211,
                 0.002871811,
                 0.060820294,
                 16.560933281,
                 135.869481734,
                 {-0.397178725, -0.244106006, -0.559621322, 0.416009733},
                 -0.932316546,
                 6.338691900,
                 -128.567017},
      LinearCase{256,
                 2,
                 0.028004885,
                 0.000317111,
                 0.023068980,
                 -0.048251411,
                 -27.361961549,
                 531.600139894,
                 {0.984492308, 0.181855475, -0.232822380, -0.497427539},
                 0.353556471,
                 12.562500258,
                 39.184570},
  };
  for (const LinearCase& expected : kCases) {
    const auto size = static_cast<size_t>(expected.size);
    const std::vector<uint16_t> words =
        generated_words(word_count(expected.size, expected.size, expected.bits), expected.bits);
    Exl3Matrix matrix = matrix_over(words, expected.size, expected.size, expected.bits, Exl3Codebook::kMcg);
    for (unsigned i = 0; i < size; ++i) {
      const auto position = static_cast<float>(i % 128);
      const float suh = (std::popcount(i) % 2 == 0 ? 1.0F : -1.0F) * (0.5F + position / 256);
      const float svh = (std::popcount(5 * i) % 2 == 0 ? 1.0F : -1.0F) * (1.0F + position / 128) / 16;
      matrix.suh.push_back(float_to_fp16(suh));
      matrix.svh.push_back(float_to_fp16(svh));
    }
    std::vector<float> weight(size * size);
    exl3_dequantise(matrix, weight.data());
    EXPECT_NEAR(weight[0], expected.first, 3e-9);
    EXPECT_NEAR(weight[1], expected.right, 3e-9);
    EXPECT_NEAR(weight[size], expected.below, 3e-9);
    EXPECT_NEAR(weight.back(), expected.last, 3e-9);

    double sum = 0.0;
    double sum_of_squares = 0.0;
    std::vector<double> y(size, 0.0);
    for (size_t i = 0; i < size; ++i) {
      const double x = (static_cast<double>(37 * i % 17) - 8) / 8;
      for (size_t j = 0; j < size; ++j) {
        const double w = weight[i * size + j];
        sum += w;
        sum_of_squares += w * w;
        y[j] += x * w;
      }
    }
    EXPECT_NEAR(sum, expected.sum, 1e-6);
    EXPECT_NEAR(sum_of_squares, expected.sum_of_squares, 1e-6);
    double norm = 0.0;
    for (double value : y) norm += value * value;
    for (size_t j = 0; j < 4; ++j) EXPECT_NEAR(y[j], expected.y[j], 1e-7);
    EXPECT_NEAR(y.back(), expected.y_last, 1e-7);
    EXPECT_NEAR(std::sqrt(norm), expected.y_norm, 1e-7);

    std::vector<uint16_t> codes(size * size);
    exl3_decode_codes(matrix, 0, expected.size, codes.data());
    double code_sum = 0.0;
    for (uint16_t code : codes) code_sum += fp16_to_float(code);
    EXPECT_NEAR(code_sum, expected.code_sum, 1e-6);
  }
}

}  // namespace
}  // namespace glm53
