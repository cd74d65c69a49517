#include "comm/thread_communicator.h"

#include <algorithm>

namespace glm53 {

std::vector<std::unique_ptr<Communicator>> ThreadCommunicator::make_group(int world) {
  const auto group = std::make_shared<Group>(world);
  std::vector<std::unique_ptr<Communicator>> ends;
  for (int rank = 0; rank < world; ++rank) {
    ends.push_back(std::unique_ptr<Communicator>(new ThreadCommunicator(rank, group)));
  }
  return ends;
}

void ThreadCommunicator::all_reduce(std::span<float> values) {
  group_->contributions[static_cast<size_t>(rank_)].assign(values.begin(), values.end());
  group_->barrier.arrive_and_wait();
  std::ranges::fill(values, 0.0F);
  for (const std::vector<float>& contribution : group_->contributions) {
    for (size_t i = 0; i < values.size(); ++i) values[i] += contribution[i];
  }
  // Nobody overwrites a contribution before all have read it.
  group_->barrier.arrive_and_wait();
}

}  // namespace glm53
