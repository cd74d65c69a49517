// What this card can do at most, measured in the run that is compared with it.
#pragma once

#include <string>

namespace glm53::bench {

struct Ceilings {
  std::string card;
  double copy_bytes = 0;  ///< a second, read + written, device to device
  double mma_flops = 0;   ///< a second, mma.sync m16n8k16 f16 with fp32 sums, from registers
};

/// Medians of 9; takes 2 GiB for a moment. Throws CudaError.
Ceilings measure_ceilings();

}  // namespace glm53::bench
