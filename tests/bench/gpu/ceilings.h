// What this card can do at most, measured in the run that is compared with it.
#pragma once

#include <string>

namespace glm53::bench {

struct Ceilings {
  std::string card;
  double copy_bytes = 0;  ///< a second, read + written, by a kernel; the driver's copy is slower on an H200
  double read_bytes = 0;  ///< a second, read alone
  double mma_flops = 0;  ///< a second, mma.sync m16n8k16 f16 with fp32 sums, from registers; bf16 runs at this rate too
};

/// Measures them (medians of 9; takes 2 GiB for a moment) and prints them as a line. Throws CudaError.
Ceilings print_ceilings();

}  // namespace glm53::bench
