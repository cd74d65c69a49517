#include "backend/weight_source.h"

#include <cmath>
#include <limits>

#include "glm53/core/error.h"
#include "glm53/core/printable.h"

namespace glm53 {
namespace {

/// Element (row, column) of the stored slice goes to its place in the [out, in] result.
void place_row(const LinearPart& part, int64_t row, const float* values, std::vector<float>& result) {
  const int64_t columns = part.columns.size();
  if (!part.transposed) {
    std::copy(values, values + columns, result.begin() + row * columns);
    return;
  }
  const int64_t rows = part.rows.size();
  for (int64_t c = 0; c < columns; ++c) result[c * rows + row] = values[c];
}

/// No early exit: whole vectors are checked in about the time that it takes to read them.
bool all_finite(std::span<const float> values) {
  bool finite = true;
  for (const float value : values) finite &= std::abs(value) <= std::numeric_limits<float>::max();
  return finite;
}

void require_finite(std::span<const float> values, const HostTensor& tensor) {
  if (!all_finite(values)) refuse_not_finite(tensor);
}

}  // namespace

void refuse_not_finite(const HostTensor& tensor) {
  throw Error(tensor.file + ": tensor " + printable(tensor.name) + " holds a NaN or infinity");
}

std::vector<float> read_part(const LinearPart& part) {
  std::vector<float> result(static_cast<size_t>(part.rows.size() * part.columns.size()));
  if (part.native != nullptr) {
    const int64_t stored_columns = part.native->shape.back();
    std::vector<float> row(static_cast<size_t>(part.columns.size()));
    for (int64_t r = 0; r < part.rows.size(); ++r) {
      copy_as_float(*part.native, (part.rows.begin + r) * stored_columns + part.columns.begin, part.columns.size(),
                    row.data());
      place_row(part, r, row.data(), result);
    }
    require_finite(result, *part.native);
    return result;
  }
  // EXL3 stores W as [in, out].
  Exl3Matrix matrix = read_exl3(*part.exl3);
  std::vector<std::byte> made;
  if (part.exl3->trellis->synthetic) {
    made.resize(static_cast<size_t>(part.exl3->trellis->element_count()) * sizeof(uint16_t));
    copy_elements(*part.exl3->trellis, 0, part.exl3->trellis->element_count(), made.data());
    matrix.trellis = made;
  }
  std::vector<float> weight(static_cast<size_t>(matrix.in * matrix.out));
  exl3_dequantise(matrix, weight.data());
  std::vector<float> row(static_cast<size_t>(part.columns.size()));
  for (int64_t r = 0; r < part.rows.size(); ++r) {
    const float* column = weight.data() + part.columns.begin * matrix.out + part.rows.begin + r;
    for (int64_t c = 0; c < part.columns.size(); ++c) row[c] = column[c * matrix.out];
    place_row(part, r, row.data(), result);
  }
  if (!all_finite(result)) throw Error("EXL3 tensor " + printable(matrix.name) + " holds a NaN or infinity");
  return result;
}

bool is_exact_in_bf16(const LinearPart& part) { return part.native != nullptr && part.native->dtype == DType::kBF16; }

std::vector<float> read_parts(std::span<const VectorPart> parts) {
  std::vector<float> values;
  for (const VectorPart& part : parts) {
    const size_t first = values.size();
    values.resize(first + static_cast<size_t>(part.range.size()));
    copy_as_float(*part.tensor, part.range.begin, part.range.size(), values.data() + first);
    require_finite(std::span(values).subspan(first), *part.tensor);
  }
  return values;
}

}  // namespace glm53
