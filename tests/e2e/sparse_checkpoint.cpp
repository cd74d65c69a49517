// sparse_checkpoint DIRECTORY K SHARDS: adds to a directory with a config.json the index and shards of a checkpoint of
// that geometry, routed experts of K bits, all data holes.
#include "model/sparse_checkpoint.h"

#include <cstdio>
#include <cstdlib>

#include "checkpoint/config_json.h"

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  try {
    const glm53::Geometry geometry = glm53::load_geometry(argv[1]);
    const auto written = glm53::test::write_sparse_checkpoint(
        argv[1], glm53::test::routed_only_tensors(geometry, std::atoi(argv[2])), std::atoi(argv[3]));
    std::printf("%llu\n", static_cast<unsigned long long>(written.data_bytes));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
