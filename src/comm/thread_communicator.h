// Ranks as threads of one process: tensor-parallel code runs in unit tests without a network.
#pragma once

#include <barrier>
#include <memory>
#include <vector>

#include "comm/communicator.h"

namespace glm53 {

/// One rank's end; all ends of a group share a barrier. Each end is used by its own thread, and every rank makes the
/// same calls in the same order, or all of them wait for ever.
class ThreadCommunicator final : public Communicator {
 public:
  /// `world` connected ends, by rank.
  static std::vector<std::unique_ptr<Communicator>> make_group(int world);

  int rank() const override { return rank_; }
  int world() const override { return static_cast<int>(group_->contributions.size()); }
  void all_reduce(std::span<float> values) override;

 private:
  struct Group {
    explicit Group(int world) : contributions(static_cast<size_t>(world)), barrier(world) {}
    std::vector<std::vector<float>> contributions;  ///< by rank
    std::barrier<> barrier;
  };

  ThreadCommunicator(int rank, std::shared_ptr<Group> group) : rank_(rank), group_(std::move(group)) {}

  int rank_;
  std::shared_ptr<Group> group_;
};

}  // namespace glm53
