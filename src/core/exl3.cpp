#include "glm53/core/exl3.h"

#include <bit>
#include <cstring>
#include <stdexcept>

#include "glm53/core/float_convert.h"

namespace glm53 {
namespace {

constexpr int kTileWeights = kExl3TileEdge * kExl3TileEdge;
constexpr int kMaxBits = 8;
constexpr int kBlock = kExl3HadamardBlock;
constexpr int kBlockTiles = kBlock / kExl3TileEdge;

using CodebookTable = std::array<uint16_t, 65536>;
using TileOrderTable = std::array<TilePosition, kTileWeights>;

/// Codebooks 3INST and MCG end alike: mask and xor leave two normal fp16 values of magnitude [1/8, 2) in one word; the
/// weight is their sum, rounded once (the fp32 sum is exact).
uint16_t sum_of_halves(uint32_t x) {
  x = (x & 0x8FFF8FFFU) ^ 0x3B603B60U;
  return float_to_fp16(fp16_to_float(static_cast<uint16_t>(x)) + fp16_to_float(static_cast<uint16_t>(x >> 16)));
}

uint16_t codebook_value(Exl3Codebook codebook, uint32_t state) {
  switch (codebook) {
    case Exl3Codebook::k3Inst:
      return sum_of_halves(state * 89226354U + 64248484U);
    case Exl3Codebook::kMcg:
      return sum_of_halves(state * 0xCBAC1FEDU);
    case Exl3Codebook::kMul1:
      break;
  }
  const uint32_t x = state * 0x83DCD12DU;
  const uint32_t byte_sum = (x & 0xFFU) + ((x >> 8) & 0xFFU) + ((x >> 16) & 0xFFU) + (x >> 24);
  // One fused fp16 multiply-add. Both terms are multiples of 2^-18 below 2^5, so fp32 holds product and sum exactly.
  return float_to_fp16(static_cast<float>(1024U + byte_sum) * fp16_to_float(0x1EEE) + fp16_to_float(0xC931));
}

CodebookTable make_codebook_table(Exl3Codebook codebook) {
  CodebookTable table;
  for (uint32_t state = 0; state < table.size(); ++state) table[state] = codebook_value(codebook, state);
  return table;
}

constexpr TilePosition tile_position(Exl3TileOrder order, int p) {
  if (order == Exl3TileOrder::kColumnMajor) return {p % kExl3TileEdge, p / kExl3TileEdge};
  const int lane = p / 8;
  const int j = p % 8;
  return {2 * (lane % 4) + (j & 1) + 8 * ((j >> 1) & 1), lane / 4 + 8 * (j >> 2)};
}

constexpr TileOrderTable make_order_table(Exl3TileOrder order) {
  TileOrderTable table{};
  for (int p = 0; p < kTileWeights; ++p) table[static_cast<size_t>(p)] = tile_position(order, p);
  return table;
}

const TileOrderTable& order_table(Exl3TileOrder order) {
  static constexpr TileOrderTable kStandard = make_order_table(Exl3TileOrder::kStandard);
  static constexpr TileOrderTable kColumnMajor = make_order_table(Exl3TileOrder::kColumnMajor);
  return order == Exl3TileOrder::kColumnMajor ? kColumnMajor : kStandard;
}

/// Reads tiles of one matrix. Checks sizes once, so that a matrix filled by hand cannot make it read outside.
class TileReader {
 public:
  explicit TileReader(const Exl3Matrix& matrix)
      : matrix_(matrix), tile_bytes_(static_cast<size_t>(kTileWeights / 8 * matrix.bits)) {
    const bool dimensions_ok = matrix.in > 0 && matrix.out > 0 && matrix.in % kBlock == 0 && matrix.out % kBlock == 0;
    if (!dimensions_ok || matrix.bits < 1 || matrix.bits > kMaxBits ||
        matrix.trellis.size() !=
            static_cast<size_t>(matrix.in / kExl3TileEdge * (matrix.out / kExl3TileEdge)) * tile_bytes_) {
      throw std::invalid_argument("EXL3 matrix " + matrix.name + " is inconsistent");
    }
  }

  /// States of tile (row, column) of the tile grid, in stream order.
  void states(int64_t row, int64_t column, std::array<uint16_t, kTileWeights>& states) const {
    static_assert(std::endian::native == std::endian::little, "trellis words are little-endian");
    std::array<uint32_t, 8 * kMaxBits> words;
    const auto index = static_cast<size_t>(row * (matrix_.out / kExl3TileEdge) + column);
    std::memcpy(words.data(), matrix_.trellis.data() + index * tile_bytes_, tile_bytes_);
    exl3_tile_states(std::span(words).first(tile_bytes_ / sizeof(uint32_t)), matrix_.bits, states);
  }

 private:
  const Exl3Matrix& matrix_;
  size_t tile_bytes_;
};

/// x ← x·H·√128 along the rows of a block (across its columns), every row on its own: the butterfly form of the
/// Sylvester matrix, whose entries are ±1.
void transform_columns(double* block) {
  for (int row = 0; row < kBlock; ++row) {
    double* x = block + row * kBlock;
    for (int stride = 1; stride < kBlock; stride *= 2) {
      for (int first = 0; first < kBlock; first += 2 * stride) {
        for (int i = first; i < first + stride; ++i) {
          const double sum = x[i] + x[i + stride];
          x[i + stride] = x[i] - x[i + stride];
          x[i] = sum;
        }
      }
    }
  }
}

/// The same across the rows of a block: whole rows are added, so every inner loop is contiguous.
void transform_rows(double* block) {
  for (int stride = 1; stride < kBlock; stride *= 2) {
    for (int first = 0; first < kBlock; first += 2 * stride) {
      for (int row = first; row < first + stride; ++row) {
        double* upper = block + row * kBlock;
        double* lower = upper + stride * kBlock;
        for (int column = 0; column < kBlock; ++column) {
          const double sum = upper[column] + lower[column];
          lower[column] = upper[column] - lower[column];
          upper[column] = sum;
        }
      }
    }
  }
}

std::vector<double> to_doubles(const std::vector<uint16_t>& halves) {
  std::vector<double> values(halves.size());
  for (size_t i = 0; i < halves.size(); ++i) values[i] = static_cast<double>(fp16_to_float(halves[i]));
  return values;
}

}  // namespace

const std::array<uint16_t, 65536>& exl3_codebook_table(Exl3Codebook codebook) {
  static const std::array<CodebookTable, 3> kTables = {make_codebook_table(Exl3Codebook::k3Inst),
                                                       make_codebook_table(Exl3Codebook::kMcg),
                                                       make_codebook_table(Exl3Codebook::kMul1)};
  return kTables[static_cast<size_t>(codebook)];
}

void exl3_tile_states(std::span<const uint32_t> words, int bits, std::array<uint16_t, 256>& states) {
  if (bits < 1 || bits > kMaxBits || words.size() != static_cast<size_t>(8 * bits)) {
    throw std::invalid_argument("an EXL3 tile of " + std::to_string(bits) + " bits a weight has " +
                                std::to_string(words.size()) + " words");
  }
  const uint32_t new_bits_mask = (1U << bits) - 1U;
  uint32_t state = words.back();  // the stream is a ring: weight 0's window begins in the last word
  uint64_t buffer = 0;            // its low `available` bits are the ones not yet consumed
  int available = 0;
  auto next = words.begin();
  for (uint16_t& result : states) {
    if (available < bits) {
      buffer = (buffer << 32) | *next++;
      available += 32;
    }
    available -= bits;
    state = (state << bits) | (static_cast<uint32_t>(buffer >> available) & new_bits_mask);
    result = static_cast<uint16_t>(state);
  }
}

TilePosition exl3_tile_position(Exl3TileOrder order, int p) { return tile_position(order, p); }

void exl3_decode_codes(const Exl3Matrix& matrix, int64_t column_begin, int64_t column_end, uint16_t* codes) {
  if (column_begin < 0 || column_begin > column_end || column_end > matrix.out || column_begin % kExl3TileEdge != 0 ||
      column_end % kExl3TileEdge != 0) {
    throw std::invalid_argument("columns " + std::to_string(column_begin) + " to " + std::to_string(column_end) +
                                " are not whole tiles of EXL3 matrix " + matrix.name);
  }
  const TileReader reader(matrix);
  const CodebookTable& table = exl3_codebook_table(matrix.codebook);
  const TileOrderTable& positions = order_table(matrix.order);
  const int64_t width = column_end - column_begin;
  std::array<uint16_t, kTileWeights> states;
  for (int64_t row = 0; row < matrix.in; row += kExl3TileEdge) {
    for (int64_t column = column_begin; column < column_end; column += kExl3TileEdge) {
      reader.states(row / kExl3TileEdge, column / kExl3TileEdge, states);
      uint16_t* tile = codes + row * width + (column - column_begin);
      for (size_t p = 0; p < states.size(); ++p) {
        tile[positions[p].row * width + positions[p].column] = table[states[p]];
      }
    }
  }
}

void exl3_dequantise(const Exl3Matrix& matrix, float* weight) {
  const TileReader reader(matrix);
  if (matrix.suh.size() != static_cast<size_t>(matrix.in) || matrix.svh.size() != static_cast<size_t>(matrix.out)) {
    throw std::invalid_argument("EXL3 matrix " + matrix.name + " has suh or svh of the wrong length");
  }
  const CodebookTable& table = exl3_codebook_table(matrix.codebook);
  const TileOrderTable& positions = order_table(matrix.order);
  const std::vector<double> suh = to_doubles(matrix.suh);
  const std::vector<double> svh = to_doubles(matrix.svh);
  std::vector<double> block(static_cast<size_t>(kBlock) * kBlock);
  std::array<uint16_t, kTileWeights> states;

  for (int64_t row0 = 0; row0 < matrix.in; row0 += kBlock) {
    for (int64_t column0 = 0; column0 < matrix.out; column0 += kBlock) {
      for (int a = 0; a < kBlockTiles; ++a) {
        for (int b = 0; b < kBlockTiles; ++b) {
          reader.states(row0 / kExl3TileEdge + a, column0 / kExl3TileEdge + b, states);
          double* tile = block.data() + (a * kBlock + b) * kExl3TileEdge;
          for (size_t p = 0; p < states.size(); ++p) {
            tile[positions[p].row * kBlock + positions[p].column] =
                static_cast<double>(fp16_to_float(table[states[p]]));
          }
        }
      }
      // Codes are multiples of 2^-18 below 4, so all 2^14-term sums are exact in fp64, and so is the 1/√128 of both
      // sides together. What is left to round are the products with suh and svh and the result.
      transform_rows(block.data());
      transform_columns(block.data());
      for (int row = 0; row < kBlock; ++row) {
        const double* source = block.data() + row * kBlock;
        float* target = weight + (row0 + row) * matrix.out + column0;
        const double row_scale = suh[static_cast<size_t>(row0 + row)] / kBlock;
        for (int column = 0; column < kBlock; ++column) {
          target[column] =
              static_cast<float>(source[column] * (row_scale * svh[static_cast<size_t>(column0 + column)]));
        }
      }
    }
  }
}

}  // namespace glm53
