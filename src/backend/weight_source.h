// Reading the parts that make up a weight (weights.h) into fp32, whatever they are stored as.
#pragma once

#include <vector>

#include "backend/weights.h"

namespace glm53 {

/// The part as [part.out(), part.in()] fp32, row-major. EXL3 matrices are de-quantised as exl3_dequantise does. Throws
/// Error naming the tensor when a value is not finite: one of those would spread over everything that is computed.
std::vector<float> read_part(const LinearPart& part);

/// What that Error says of a native tensor; for backends that check elsewhere.
[[noreturn]] void refuse_not_finite(const HostTensor& tensor);

/// True when bf16 holds every value of the part exactly.
bool is_exact_in_bf16(const LinearPart& part);

/// All parts concatenated. Throws as read_part does.
std::vector<float> read_parts(std::span<const VectorPart> parts);

}  // namespace glm53
