// Times the attention side of one sparse layer at the real geometry: decode and verify windows over contexts of 2k to
// 1M positions, and 2,048-row prompt chunks. Every figure is the median of replayed graphs that walk over enough copies
// of the caches to leave L2. Usage: bench_attention [heads, default 64]
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ceilings.h"
#include "graph_time.h"
#include "kernels/common/cuda_check.h"
#include "kernels/common/mma.h"
#include "kernels/indexer/index_score.h"
#include "kernels/indexer/index_select.h"
#include "kernels/indexer/index_write.h"
#include "kernels/latent_cache/latent_write.h"
#include "kernels/sparse_attention/sparse_attention.h"

namespace glm53::kernels {
namespace {

using bench::graph_microseconds;

constexpr int kLatent = 512;
constexpr int kQueryLora = 1536;
constexpr int kIndexHeads = 32;
constexpr int kIndexWidth = 2 * kIndexDim + kIndexHeads;
constexpr int kPoolsPerQuery = 512;
constexpr int kKpool = 4;

__device__ uint32_t hash(uint64_t x) {
  x = (x ^ (x >> 31)) * 0x7FB5D329728EA185ULL;
  x = (x ^ (x >> 27)) * 0x81DADEF4BC2DD44DULL;
  return static_cast<uint32_t>(x >> 32);
}

__global__ void fill_bf16(__nv_bfloat16* out, int64_t count, float range) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    out[i] = __float2bfloat16((static_cast<float>(hash(i)) * 0x1p-31F - 1.0F) * range);
  }
}
__global__ void fill_fp32(float* out, int64_t count, float range) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    out[i] = (static_cast<float>(hash(i)) * 0x1p-31F - 1.0F) * range;
  }
}
/// Records of `codes` random finite E4M3 bytes followed by `scales` floats of 2^-8, padded with zeros to `bytes`.
__global__ void fill_fp8(uint8_t* out, int64_t records, int codes, int scales, int bytes) {
  for (int64_t r = blockIdx.x; r < records; r += gridDim.x) {
    for (int i = threadIdx.x; i < bytes; i += blockDim.x) {
      const uint32_t draw = hash(r * bytes + i);
      uint8_t value = static_cast<uint8_t>((draw & 0x80) | (0x28 + draw % 0x30));
      if (i >= codes)
        value = i < codes + 4 * scales && (i - codes) % 4 == 3   ? 0x3B
                : (i - codes) % 4 == 2 && i < codes + 4 * scales ? 0x80
                                                                 : 0;
      out[r * bytes + i] = value;
    }
  }
}
struct Free {
  void operator()(void* memory) const { cudaFree(memory); }
};
template <typename T>
std::unique_ptr<T, Free> device(int64_t count) {
  void* memory = nullptr;
  check_cuda(cudaMalloc(&memory, std::max<int64_t>(count, 1) * sizeof(T)), "cudaMalloc");
  return std::unique_ptr<T, Free>(static_cast<T*>(memory));
}
template <typename T>
std::unique_ptr<T, Free> upload(const std::vector<T>& values) {
  auto memory = device<T>(static_cast<int64_t>(values.size()));
  check_cuda(cudaMemcpy(memory.get(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice), "cudaMemcpy");
  return memory;
}

/// One layer's caches, several copies; every sequence has its own pages.
class Bench {
 public:
  Bench(bool fp8, int heads, int sequences, int rows_each, int64_t context, bool prompt)
      : fp8_(fp8), heads_(heads), sequences_(sequences), rows_(sequences * rows_each), prompt_(prompt) {
    const int64_t pages_each = (context + kPagePositions - 1) / kPagePositions;
    pages_ = pages_each * sequences;
    const int64_t latent_bytes = pages_ * kPagePositions * latent_row_bytes(latent_format(), kLatent);
    const int64_t index_bytes = pages_ * index_page_bytes(index_format(), kKpool);
    copies_ = prompt ? 1 : static_cast<int>(std::clamp<int64_t>((int64_t{192} << 20) / index_bytes, 2, 24));
    pool_capacity_ = (context / kKpool + 63) / 64 * 64;

    std::vector<DeviceSegment> segments;
    std::vector<int32_t> row_segment;
    std::vector<int64_t> row_position;
    std::vector<int32_t> table;
    for (int s = 0; s < sequences; ++s) {
      segments.push_back({s, s * rows_each, rows_each, static_cast<int32_t>(s * pages_each), context - rows_each});
      for (int r = 0; r < rows_each; ++r) {
        row_segment.push_back(s);
        row_position.push_back(context - rows_each + r);
      }
    }
    // A fixed scatter of pages: an odd multiplier visits every residue once if the count is a power of two or odd.
    for (int64_t i = 0; i < pages_; ++i) table.push_back(static_cast<int32_t>((i * 7919 + 13) % pages_));
    segments_ = upload(segments);
    row_segment_ = upload(row_segment);
    row_position_ = upload(row_position);
    table_ = upload(table);
    tables_ = {segments_.get(), sequences, row_segment_.get(), row_position_.get(), table_.get()};

    for (int i = 0; i < copies_; ++i) {
      latents_.push_back(device<uint8_t>(latent_bytes));
      pools_.push_back(device<uint8_t>(index_bytes));
      if (fp8) {
        fill_fp8<<<4096, 256>>>(latents_.back().get(), pages_ * kPagePositions, kLatent, 1, kLatent + 16);
        fill_fp8<<<4096, 256>>>(pools_.back().get(), pages_, 2048, 16, 2112);
      } else {
        fill_bf16<<<4096, 256>>>(reinterpret_cast<__nv_bfloat16*>(latents_.back().get()), latent_bytes / 2, 2.0F);
        fill_bf16<<<4096, 256>>>(reinterpret_cast<__nv_bfloat16*>(pools_.back().get()), index_bytes / 2, 1.0F);
      }
    }
    low_ = random_bf16(int64_t{rows_} * (kQueryLora + kLatent), 1.0F);
    query_low_ = device<__nv_bfloat16>(int64_t{rows_} * kQueryLora);
    index_ = random_fp32(int64_t{rows_} * kIndexWidth);
    index_query_ = random_bf16(int64_t{rows_} * kIndexHeads * kIndexDim, 1.0F);
    prepared_ = device<__nv_bfloat16>(int64_t{rows_} * kIndexHeads * kIndexDim);
    weight_ = device<float>(int64_t{rows_} * kIndexHeads);
    query_ = random_bf16(int64_t{rows_} * heads * kLatent, 0.3F);
    output_ = device<__nv_bfloat16>(int64_t{rows_} * heads * kLatent);
    norms_ = random_fp32(4096);
    rings_ = device<__nv_bfloat16>(int64_t{sequences} * 32 * kIndexRingEntry);
    block_rows_ = static_cast<int>(std::min<int64_t>(rows_, prompt ? score_block_rows(pool_capacity_) : rows_));
    scores_ = device<float>(block_rows_ * pool_capacity_);
    selected_ = device<int32_t>(int64_t{rows_} * kPoolsPerQuery);
    select_workspace_ = device<uint8_t>(index_select_workspace(block_rows_, pool_capacity_, kPoolsPerQuery, prompt));
    if (!prompt) {
      attention_workspace_ = device<uint8_t>(sparse_attention_workspace(rows_, heads, kKpool, kPoolsPerQuery));
    }
    check_cuda(cudaDeviceSynchronize(), "fill");
  }

  int copies() const { return copies_; }

  void write(int copy, cudaStream_t stream) {
    LatentWrite latent;
    latent.tables = tables_;
    latent.rows = rows_;
    latent.q_lora = kQueryLora;
    latent.latent = kLatent;
    latent.low = low_.get();
    latent.query_norm = latent.latent_norm = norms_.get();
    latent.query_low = query_low_.get();
    latent.format = latent_format();
    latent.pages = latents_[copy].get();
    latent_write(latent, stream);
    IndexWrite index;
    index.tables = tables_;
    index.prompt = prompt_;
    index.rows = rows_;
    index.input = index_.get();
    index.input_stride = kIndexWidth;
    index.key_norm = index.key_bias = index.pool_position = norms_.get();
    index.rings = rings_.get();
    index.format = index_format();
    index.pages = pools_[copy].get();
    index_write(index, stream);
  }
  void prepare(cudaStream_t stream) {
    IndexQuery query;
    query.tables = tables_;
    query.rows = rows_;
    query.heads = kIndexHeads;
    query.format = index_format();
    query.query = index_query_.get();
    query.head_weight = index_.get() + 2 * kIndexDim;
    query.head_weight_stride = kIndexWidth;
    query.prepared_query = prepared_.get();
    query.prepared_weight = weight_.get();
    index_query(query, stream);
  }
  void score(int copy, int first, cudaStream_t stream) {
    IndexScore args;
    args.tables = tables_;
    args.first_row = first;
    args.rows = std::min(block_rows_, rows_ - first);
    args.heads = kIndexHeads;
    args.pools_per_query = kPoolsPerQuery;
    args.pool_capacity = pool_capacity_;
    args.format = index_format();
    args.query = fp8_ ? prepared_.get() : index_query_.get();
    args.weight = weight_.get();
    args.pages = pools_[copy].get();
    args.scores = scores_.get();
    index_score(args, stream);
  }
  void select(int first, cudaStream_t stream) {
    IndexSelect args;
    args.tables = tables_;
    args.prompt = prompt_;
    args.first_row = first;
    args.rows = std::min(block_rows_, rows_ - first);
    args.pools_per_query = kPoolsPerQuery;
    args.pool_capacity = pool_capacity_;
    args.scores = scores_.get();
    args.selected = selected_.get();
    args.workspace = select_workspace_.get();
    index_select(args, stream);
  }
  void attend(int copy, cudaStream_t stream) {
    SparseAttention args;
    args.tables = tables_;
    args.rows = rows_;
    args.heads = heads_;
    args.pools_per_query = kPoolsPerQuery;
    args.scale = 0.0625F;
    args.format = latent_format();
    args.pages = latents_[copy].get();
    args.query = query_.get();
    args.selected = selected_.get();
    args.output = output_.get();
    args.workspace = attention_workspace_.get();
    prompt_ ? sparse_attention_prompt(args, stream) : sparse_attention_window(args, stream);
  }
  void for_blocks(const std::function<void(int)>& body) const {
    for (int first = 0; first < rows_; first += block_rows_) body(first);
  }

 private:
  LatentFormat latent_format() const { return fp8_ ? LatentFormat::kFp8 : LatentFormat::kBf16; }
  IndexFormat index_format() const { return fp8_ ? IndexFormat::kFp8 : IndexFormat::kBf16; }
  static std::unique_ptr<__nv_bfloat16, Free> random_bf16(int64_t count, float range) {
    auto memory = device<__nv_bfloat16>(count);
    fill_bf16<<<1024, 256>>>(memory.get(), count, range);
    return memory;
  }
  static std::unique_ptr<float, Free> random_fp32(int64_t count) {
    auto memory = device<float>(count);
    fill_fp32<<<1024, 256>>>(memory.get(), count, 1.0F);
    return memory;
  }

  bool fp8_;
  int heads_, sequences_, rows_;
  bool prompt_;
  int64_t pages_ = 0, pool_capacity_ = 0;
  int copies_ = 1, block_rows_ = 0;
  BatchTables tables_;
  std::unique_ptr<DeviceSegment, Free> segments_;
  std::unique_ptr<int32_t, Free> row_segment_, table_, selected_;
  std::unique_ptr<int64_t, Free> row_position_;
  std::vector<std::unique_ptr<uint8_t, Free>> latents_, pools_;
  std::unique_ptr<__nv_bfloat16, Free> low_, query_low_, index_query_, prepared_, query_, output_, rings_;
  std::unique_ptr<float, Free> index_, weight_, norms_, scores_;
  std::unique_ptr<uint8_t, Free> select_workspace_, attention_workspace_;
};

void bench_window(const bench::Ceilings& ceilings, bool fp8, int heads, int sequences, int rows_each, int64_t context) {
  Bench bench(fp8, heads, sequences, rows_each, context, false);
  const int copies = bench.copies();
  const int rows = sequences * rows_each;
  const double write = graph_microseconds(copies, [&](int i, cudaStream_t s) { bench.write(i, s); });
  const double prepare = graph_microseconds(copies, [&](int, cudaStream_t s) { bench.prepare(s); });
  const double score = graph_microseconds(copies, [&](int i, cudaStream_t s) { bench.score(i, 0, s); });
  const double select = graph_microseconds(copies, [&](int, cudaStream_t s) { bench.select(0, s); });
  const double attend = graph_microseconds(copies, [&](int i, cudaStream_t s) { bench.attend(i, s); });
  const bool sparse = context / kKpool > kPoolsPerQuery;
  const double pool_bytes = sparse ? static_cast<double>(pool_key_bytes(fp8 ? IndexFormat::kFp8 : IndexFormat::kBf16)) *
                                         static_cast<double>(context / kKpool) * sequences
                                   : 0.0;
  const double keys = static_cast<double>(std::min<int64_t>(context, 4 * kPoolsPerQuery));
  const double key_bytes =
      keys * static_cast<double>(latent_row_bytes(fp8 ? LatentFormat::kFp8 : LatentFormat::kBf16, kLatent));
  const double flops = keys * rows * heads * 4.0 * kLatent;
  std::printf(
      "%-4s %2d heads %dx%-2d rows %8lld ctx | write %6.1f  query %5.1f  score %7.1f (%4.0f%%)  select %6.1f  attend "
      "%7.1f us (keys %4.0f GB/s a row sum, %4.1f TFLOP/s)\n",
      fp8 ? "fp8" : "bf16", heads, sequences, rows_each, static_cast<long long>(context), write, prepare, score,
      1e8 * pool_bytes / score / ceilings.copy_bytes, select, attend, key_bytes * rows / attend / 1e3,
      flops / attend / 1e6);
}

void bench_prompt(const bench::Ceilings& ceilings, bool fp8, int heads, int rows, int64_t context) {
  Bench bench(fp8, heads, 1, rows, context, true);
  const double write = graph_microseconds(1, [&](int i, cudaStream_t s) { bench.write(i, s); });
  bench.prepare(nullptr);
  const double score = graph_microseconds(
      1, [&](int i, cudaStream_t s) { bench.for_blocks([&](int first) { bench.score(i, first, s); }); }, 7);
  const double both = graph_microseconds(
      1,
      [&](int i, cudaStream_t s) {
        bench.for_blocks([&](int first) {
          bench.score(i, first, s);
          bench.select(first, s);
        });
      },
      7);
  const double attend = graph_microseconds(
      1, [&](int i, cudaStream_t s) { bench.attend(i, s); }, 7);
  double pools = 0.0;
  double keys = 0.0;
  for (int r = 0; r < rows; ++r) {
    const int64_t n = context - rows + r + 1;
    if (n / kKpool > kPoolsPerQuery) pools += static_cast<double>(n / kKpool);
    keys += static_cast<double>(std::min<int64_t>(n, 4 * kPoolsPerQuery + n % kKpool));
  }
  const double score_rate = pools * kIndexHeads * 2.0 * kIndexDim / score;
  const double attend_rate = keys * heads * 4.0 * kLatent / attend;
  std::printf(
      "%-4s %2d heads prompt %d rows to %8lld | write %6.0f  score %8.0f (%3.0f TFLOP/s, %2.0f%%)  +select %8.0f  "
      "attend %7.0f us (%3.0f TFLOP/s, %2.0f%%)\n",
      fp8 ? "fp8" : "bf16", heads, rows, static_cast<long long>(context), write, score, score_rate / 1e6,
      1e8 * score_rate / ceilings.mma_flops, both, attend, attend_rate / 1e6, 1e8 * attend_rate / ceilings.mma_flops);
}

}  // namespace
}  // namespace glm53::kernels

int main(int argc, char** argv) {
  using namespace glm53::kernels;
  if (cuda_device_count() == 0) {
    std::printf("no CUDA device\n");
    return 0;
  }
  const int heads = argc > 1 ? std::atoi(argv[1]) : 64;
  const glm53::bench::Ceilings ceilings = glm53::bench::print_ceilings();
  for (const bool fp8 : {true, false}) {
    for (const int64_t context : {2048, 8192, 131072, 1048576}) {
      bench_window(ceilings, fp8, heads, 1, 1, context);
      bench_window(ceilings, fp8, heads, 1, 8, context);
    }
    bench_window(ceilings, fp8, heads, 4, 8, 131072);
    for (const int64_t context : {2048, 8192, 131072, 1048576}) bench_prompt(ceilings, fp8, heads, 2048, context);
  }
  return 0;
}
