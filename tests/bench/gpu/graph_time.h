// Times of device work as replays of a graph: the GPU never waits for the host.
#pragma once

#include <functional>

#include <cuda_runtime_api.h>

namespace glm53::bench {

/// Median µs of one of `calls` calls work(i, stream), i = 0 … calls − 1, captured together in one graph and replayed
/// `replays` times after 3 that do not count. Throws CudaError.
double graph_microseconds(int calls, const std::function<void(int, cudaStream_t)>& work, int replays = 21);

}  // namespace glm53::bench
