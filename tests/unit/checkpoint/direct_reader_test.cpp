// The reader past the page cache: same bytes as the mapping, in order, through a ring of few small blocks.
#include "checkpoint/direct_reader.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <list>
#include <map>
#include <memory>
#include <random>

#include "checkpoint/safetensors.h"
#include "checkpoint_files.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace glm53 {
namespace {

using test::error_of;
using test::TempDirectory;
using testing::AllOf;
using testing::HasSubstr;

/// Blocks in ordinary memory. Counts what the reader promises: a block is asked for only after it was used.
class HostRing final : public StagingRing {
 public:
  HostRing(size_t blocks, size_t block_bytes)
      : memory_(static_cast<std::byte*>(std::aligned_alloc(kDirectAlignment, blocks * block_bytes)), std::free),
        used_(blocks),
        waited_(blocks) {
    std::memset(memory_.get(), 0xEE, blocks * block_bytes);
    for (size_t i = 0; i < blocks; ++i) blocks_.emplace_back(memory_.get() + i * block_bytes, block_bytes);
  }
  const std::vector<std::span<std::byte>>& blocks() const override { return blocks_; }
  void used(size_t block) override {
    ++used_[block];
    // Stands for work of a device that is over: whatever reads this block from now on reads rubbish.
    std::ranges::fill(blocks_[block], std::byte{0xEE});
  }
  void wait_until_free(size_t block) override {
    if (++waited_[block] > used_[block]) ++violations;
  }

  std::atomic<int> violations{0};

 private:
  std::unique_ptr<std::byte, decltype(&std::free)> memory_;
  std::vector<std::span<std::byte>> blocks_;
  std::vector<std::atomic<int>> used_, waited_;
};

/// A file of random bytes and tensors over it.
class DirectReaderTest : public testing::Test {
 protected:
  void write_file(const std::string& name, size_t size) {
    std::mt19937 random(static_cast<unsigned>(size) + static_cast<unsigned>(name.size()));
    std::string& bytes = contents_[name];
    bytes.resize(size);
    for (char& byte : bytes) byte = static_cast<char>(random());
    directory_.write(name, bytes);
  }

  /// Views stay: the list never moves its elements.
  const HostTensor& tensor(const std::string& file, uint64_t offset, uint64_t size) {
    HostTensor& tensor = tensors_.emplace_back();
    tensor.name = "t" + std::to_string(tensors_.size());
    tensor.file = directory_.path() + "/" + file;
    tensor.bytes = std::as_bytes(std::span(contents_[file]).subspan(offset, size));
    tensor.file_offset = offset;
    return tensor;
  }

  TensorRange range(const std::string& file, uint64_t offset, uint64_t size) {
    return {&tensor(file, offset, size), 0, size};
  }

  static std::string take(TensorStream& stream) {
    std::string bytes;
    stream.next([&bytes](std::span<const std::byte> piece) {
      bytes.append(reinterpret_cast<const char*>(piece.data()), piece.size());
    });
    return bytes;
  }

  /// Reads all ranges and compares with the files.
  void expect_same(const std::vector<TensorRange>& ranges, HostRing& ring, DirectReaderOptions options) {
    DirectReader reader(ranges, ring, options);
    for (size_t i = 0; i < ranges.size(); ++i) {
      const std::span<const std::byte> expected = ranges[i].tensor->bytes.subspan(ranges[i].first, ranges[i].size);
      const std::string bytes = take(reader);
      ASSERT_EQ(bytes.size(), expected.size()) << i;
      ASSERT_TRUE(std::equal(expected.begin(), expected.end(), std::as_bytes(std::span(bytes)).begin())) << i;
    }
    EXPECT_EQ(ring.violations, 0);
    EXPECT_THROW(take(reader), std::logic_error);
  }

  TempDirectory directory_;
  std::map<std::string, std::string> contents_;
  std::list<HostTensor> tensors_;
};

TEST_F(DirectReaderTest, ReadsUnalignedTinyLargeAndLastRangesInTheOrderOfUse) {
  write_file("a", 300'001);
  write_file("b", 70'000);
  const std::vector<TensorRange> ranges = {
      range("a", 4095, 2),                      // across a page
      range("b", 69'999, 1),                    // the last byte of a file
      range("a", 299'000, 1001),                // its tail
      range("a", 8192, 0),                      // nothing
      range("a", 1, 200'000),                   // longer than the ring
      range("a", 200'001, 4),                   // a neighbour
      range("a", 200'005, 50'000),              // another
      range("b", 4096, 4096),                   // exactly a page
      range("a", 100, 1),                       // backwards
      range("a", 100, 1),                       // the same again
      {&tensor("b", 10, 60'000), 777, 30'000},  // part of a tensor
      range("b", 0, 70'000),
  };
  for (const int threads : {1, 3, 8}) {
    for (const bool direct : {true, false}) {
      for (const size_t blocks : {1U, 2U, 5U}) {
        HostRing ring(blocks, 16'384);
        expect_same(ranges, ring, {threads, direct});
      }
      HostRing ring(3, 4096);
      expect_same(ranges, ring, {threads, direct});
    }
  }
}

TEST_F(DirectReaderTest, RandomRanges) {
  write_file("a", 1'234'567);
  write_file("b", 654'321);
  std::mt19937 random(7);
  std::vector<TensorRange> ranges;
  for (int i = 0; i < 400; ++i) {
    const std::string file = random() % 4 == 0 ? "b" : "a";
    const uint64_t length = contents_[file].size();
    const uint64_t offset = random() % length;
    const uint64_t largest = random() % 8 == 0 ? 200'000 : 3'000;
    ranges.push_back(range(file, offset, std::min<uint64_t>(random() % largest, length - offset)));
  }
  HostRing ring(4, 65'536);
  expect_same(ranges, ring, {4, true});
}

TEST_F(DirectReaderTest, NoRanges) {
  HostRing ring(1, 4096);
  expect_same({}, ring, {});
}

TEST_F(DirectReaderTest, NeighboursShareRequests) {
  write_file("a", 1 << 20);
  std::vector<TensorRange> ranges;
  for (uint64_t at = 0; at + 1000 <= 1 << 20; at += 1024) ranges.push_back(range("a", at, 1000));
  const ReadPlan plan = plan_reads(ranges, 256 << 10);
  EXPECT_EQ(plan.blocks(), 4U);
  EXPECT_EQ(plan.extents.size(), 4U);
  for (const ReadPlan::Extent& extent : plan.extents) EXPECT_EQ(extent.begin % kDirectAlignment, 0U);
}

TEST_F(DirectReaderTest, ScatteredRangesShareABlock) {
  write_file("a", 4 << 20);
  std::vector<TensorRange> ranges;
  for (uint64_t i = 0; i < 8; ++i) ranges.push_back(range("a", (7 - i) * 400'000, 5000));
  const ReadPlan plan = plan_reads(ranges, 256 << 10);
  EXPECT_EQ(plan.blocks(), 1U);
  EXPECT_EQ(plan.extents.size(), 8U);
}

TEST_F(DirectReaderTest, RefusesARangeOutsideItsTensor) {
  write_file("a", 100);
  const HostTensor& t = tensor("a", 10, 50);
  EXPECT_THROW(plan_reads({{&t, 10, 41}}, 4096), std::invalid_argument);
  EXPECT_THROW(plan_reads({{&t, 51, 0}}, 4096), std::invalid_argument);
  EXPECT_THROW(plan_reads({{&t, 1, UINT64_MAX}}, 4096), std::invalid_argument);
}

TEST_F(DirectReaderTest, MissingFileIsNamed) {
  write_file("gone", 100);
  const std::vector<TensorRange> ranges = {range("gone", 0, 100)};
  std::filesystem::remove(directory_.path() + "/gone");
  HostRing ring(2, 4096);
  EXPECT_THAT(error_of([&] { DirectReader(ranges, ring); }), HasSubstr("/gone: No such file"));
}

TEST_F(DirectReaderTest, FileCutBeforeOpeningNamesTheTensorThatIsNotWhole) {
  write_file("cut", 50'000);
  const std::vector<TensorRange> ranges = {range("cut", 0, 20'000), range("cut", 20'000, 10'000),
                                           range("cut", 30'000, 20'000)};
  std::filesystem::resize_file(directory_.path() + "/cut", 25'000);
  HostRing ring(8, 65'536);
  EXPECT_THAT(error_of([&] { DirectReader(ranges, ring); }), AllOf(HasSubstr("/cut: tensor t2: ends before")));
}

TEST_F(DirectReaderTest, FileCutWhileReadingNamesTheTensor) {
  for (const bool direct : {true, false}) {
    write_file("cut", 400'000);
    const std::vector<TensorRange> ranges = {range("cut", 0, 10'000), range("cut", 10'000, 300'000),
                                             range("cut", 390'000, 5000)};
    HostRing ring(2, 8192);
    DirectReader reader(ranges, ring, {2, direct});
    // The ring is two blocks long: what lies beyond cannot have been read.
    std::filesystem::resize_file(directory_.path() + "/cut", 100'123);
    EXPECT_EQ(take(reader), contents_["cut"].substr(0, 10'000));
    const std::string name = ranges[1].tensor->name;
    EXPECT_THAT(error_of([&] { take(reader); }), AllOf(HasSubstr("/cut: tensor " + name), HasSubstr("ends before")));
  }
}

TEST_F(DirectReaderTest, StopsWhereverItIsLeft) {
  write_file("a", 500'000);
  std::vector<TensorRange> ranges;
  for (uint64_t at = 0; at < 500'000; at += 10'000) ranges.push_back(range("a", at, 10'000));
  for (int taken = 0; taken < 50; taken += 7) {
    HostRing ring(3, 16'384);
    DirectReader reader(ranges, ring, {4, true});
    for (int i = 0; i < taken; ++i) take(reader);
  }
}

TEST_F(DirectReaderTest, AConsumersExceptionPassesThrough) {
  write_file("a", 100'000);
  HostRing ring(2, 8192);
  DirectReader reader({range("a", 0, 100'000)}, ring);
  EXPECT_THROW(reader.next([](std::span<const std::byte>) { throw std::runtime_error("stop"); }), std::runtime_error);
}

TEST_F(DirectReaderTest, AFailingRingEndsTheStream) {
  class FailingRing final : public StagingRing {
   public:
    explicit FailingRing(HostRing& ring) : ring_(ring) {}
    const std::vector<std::span<std::byte>>& blocks() const override { return ring_.blocks(); }
    void used(size_t block) override { ring_.used(block); }
    void wait_until_free(size_t) override { throw std::runtime_error("device lost"); }

   private:
    HostRing& ring_;
  };
  write_file("a", 100'000);
  HostRing memory(2, 8192);
  FailingRing ring(memory);
  DirectReader reader({range("a", 0, 100'000)}, ring);
  EXPECT_THROW(take(reader), std::runtime_error);
}

TEST_F(DirectReaderTest, RefusesAMisalignedRing) {
  write_file("a", 10);
  HostRing ring(2, 6144);  // the second block begins in the middle of a page
  EXPECT_THROW(DirectReader({range("a", 0, 10)}, ring), std::invalid_argument);
}

TEST_F(DirectReaderTest, CountsBytesAndSaysWhenItWasNotDirect) {
  write_file("a", 100'000);
  HostRing ring(4, 32'768);
  DirectReader reader({range("a", 5000, 90'000)}, ring, {2, false});
  take(reader);
  EXPECT_EQ(reader.bytes_read(), 94'208U);  // pages 1 to 23
  EXPECT_FALSE(reader.is_direct());
}

TEST(DirectReaderCheckpointTest, EqualsTheMappingForEveryTensorOfTheTinyModel) {
  const Checkpoint checkpoint = Checkpoint::open(std::string(GLM53_TEST_DATA) + "/models/glm53-tiny");
  std::vector<TensorRange> ranges;
  for (const auto& [name, tensor] : checkpoint.tensors()) ranges.push_back({&tensor, 0, tensor.bytes.size()});
  std::shuffle(ranges.begin(), ranges.end(), std::mt19937(1));
  HostRing ring(4, 256 << 10);
  DirectReader reader(ranges, ring);
  for (const TensorRange& range : ranges) {
    size_t at = 0;
    bool same = true;
    reader.next([&](std::span<const std::byte> piece) {
      same &= std::ranges::equal(piece, range.tensor->bytes.subspan(at, piece.size()));
      at += piece.size();
    });
    EXPECT_TRUE(same) << range.tensor->name;
    EXPECT_EQ(at, range.tensor->bytes.size()) << range.tensor->name;
  }
}

}  // namespace
}  // namespace glm53
