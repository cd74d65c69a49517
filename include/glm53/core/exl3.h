// EXL3 ("trellis") quantised matrices: the format's arithmetic, readable and exact. Spec 20 §1–§5.
//
//   W = diag(suh) · H_in · W_q · H_out · diag(svh)         y = x · W (+ bias)
//
// W is [in, out] (the transpose of a native [out, in] weight); H is the block-diagonal 128×128 Sylvester–Hadamard
// matrix over √128; W_q holds one codebook value a weight.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "glm53/core/host_tensor.h"

namespace glm53 {

inline constexpr int kExl3TileEdge = 16;        ///< a tile is 16 × 16 weights
inline constexpr int kExl3HadamardBlock = 128;  ///< and both matrix dimensions are multiples of this

enum class Exl3Codebook : uint8_t { k3Inst = 0, kMcg = 1, kMul1 = 2 };

/// Where stream position p of a tile lies (spec 20 §1.5 and §5.1).
enum class Exl3TileOrder : uint8_t { kStandard, kColumnMajor };

/// One quantised matrix. `trellis` is a view on the checkpoint; the vectors are copies (legacy packed signs expanded).
struct Exl3Matrix {
  std::string name;  ///< module prefix, without ".trellis"
  int64_t in = 0;    ///< rows of W (padded to a multiple of 128)
  int64_t out = 0;   ///< columns of W (padded to a multiple of 128)
  int bits = 0;      ///< K, bits a weight, 1..8
  Exl3Codebook codebook = Exl3Codebook::kMcg;
  Exl3TileOrder order = Exl3TileOrder::kStandard;
  std::span<const std::byte> trellis;  ///< [in/16, out/16, 16·K] I16, possibly unaligned
  std::vector<uint16_t> suh;           ///< [in] fp16
  std::vector<uint16_t> svh;           ///< [out] fp16
  std::vector<uint16_t> bias;          ///< [out] fp16, or empty
};

/// One quantised matrix as it is stored: sizes and views, checked against each other. Nothing of the tensors' contents
/// has been read, so that a whole checkpoint can be looked at without reading it.
struct Exl3Stored {
  std::string name;  ///< module prefix, without ".trellis"
  int64_t in = 0;
  int64_t out = 0;
  int bits = 0;
  Exl3Codebook codebook = Exl3Codebook::kMcg;  ///< by the marker that is present
  Exl3TileOrder order = Exl3TileOrder::kStandard;
  const HostTensor* trellis = nullptr;          ///< [in/16, out/16, 16·K] I16
  const HostTensor* suh = nullptr;              ///< [in] F16, or packed signs [in/16] I16 of the legacy form
  const HostTensor* svh = nullptr;              ///< [out] F16, or [out/16] I16
  const HostTensor* bias = nullptr;             ///< [out] F16 or F32, or null
  const HostTensor* codebook_marker = nullptr;  ///< one I32, or null
  const HostTensor* order_marker = nullptr;     ///< one I32, or null
};

/// Reads what is small: checks the markers and fills in suh, svh and bias. `trellis` is a view on the stored one (empty
/// where that is synthetic). Throws Error naming file and tensor: a marker holds another value than the format's, a
/// scale or bias is not finite.
Exl3Matrix read_exl3(const Exl3Stored& stored);

/// fp16 bits of all 65,536 states of a codebook, built once a process (spec 20 §2).
const std::array<uint16_t, 65536>& exl3_codebook_table(Exl3Codebook codebook);

/// The 256 states of one tile in stream order. `words` = the tile's 8·bits little-endian uint32 words (spec 20 §1.3).
void exl3_tile_states(std::span<const uint32_t> words, int bits, std::array<uint16_t, 256>& states);

struct TilePosition {
  int row;     ///< 0..15, along `in`
  int column;  ///< 0..15, along `out`
};

/// Tile element of stream position p (0..255).
TilePosition exl3_tile_position(Exl3TileOrder order, int p);

/// The code matrix W_q, rotated basis, rows [0, in) × columns [column_begin, column_end): fp16 bits into `codes`
/// [in, column_end − column_begin]. Column bounds are multiples of 16. Throws std::invalid_argument for other bounds or
/// a matrix whose sizes do not agree (which collect_exl3_groups never makes).
void exl3_decode_codes(const Exl3Matrix& matrix, int64_t column_begin, int64_t column_end, uint16_t* codes);

/// W in fp32 (computed in fp64 and rounded once): `weight` [in, out] fp32, row-major. The bias is not part of it.
/// Throws as exl3_decode_codes.
void exl3_dequantise(const Exl3Matrix& matrix, float* weight);

}  // namespace glm53
