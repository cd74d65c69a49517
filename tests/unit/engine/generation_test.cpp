// A running reply between its two sides, without an engine.
#include "engine/generation.h"

#include <array>
#include <memory>
#include <thread>

#include <gtest/gtest.h>

namespace glm53::engine {
namespace {

using std::chrono::milliseconds;
using text::ReplyChannel;
using text::ReplyDelta;

constexpr milliseconds kLong{20000};

std::array<int32_t, 1> token(int32_t id) { return {id}; }

TEST(Generation, PiecesOfOneCallAreJoinedAndThoseOfTwoAreNot) {
  Generation generation;
  generation.publish({}, {{ReplyChannel::kContent, "a"}, {ReplyChannel::kCall, "", 0, "f"}});
  generation.publish({}, {{ReplyChannel::kCall, "{\"x\": ", 0}});
  generation.publish({}, {{ReplyChannel::kCall, "1}", 0}, {ReplyChannel::kCall, "{}", 1, "f"}});
  const auto event = generation.next(milliseconds(0));
  ASSERT_TRUE(event);
  ASSERT_EQ(event->deltas.size(), 3U);
  EXPECT_EQ(event->deltas[1].tool_name, "f");
  EXPECT_EQ(event->deltas[1].text, "{\"x\": 1}");
  EXPECT_EQ(event->deltas[2].tool_name, "f");
  EXPECT_EQ(event->deltas[2].text, "{}");
}

TEST(Generation, TokensWithoutTextAreHeldForTheNextEvent) {
  Generation generation;
  EXPECT_EQ(generation.held_tokens(), 0U);
  generation.publish(token(5), {});
  generation.publish(token(6), {});
  EXPECT_EQ(generation.held_tokens(), 2U);
  EXPECT_FALSE(generation.next(milliseconds(0)));
  generation.publish(token(7), {{ReplyChannel::kContent, "x"}});
  EXPECT_EQ(generation.held_tokens(), 0U);
  const auto event = generation.next(milliseconds(0));
  ASSERT_TRUE(event);
  EXPECT_EQ(event->tokens, (std::vector<int32_t>{5, 6, 7}));
  EXPECT_EQ(generation.held_tokens(), 0U);
}

// Two writers, one reader that sleeps on their signal alone: an event of which it is not told would hang it.
TEST(Generation, OneSignalTellsOfAllGenerations) {
  constexpr int kEach = 2000;
  const auto signal = std::make_shared<ReadySignal>();
  std::array<Generation, 2> generations;
  for (Generation& generation : generations) generation.set_signal(signal);
  std::vector<std::thread> writers;
  for (Generation& generation : generations) {
    writers.emplace_back([&generation] {
      for (int i = 0; i < kEach; ++i) generation.publish(token(i), {{ReplyChannel::kContent, "x"}});
      generation.finish({});
    });
  }
  size_t texts = 0;
  int ended = 0;
  while (ended < 2) {
    bool came = false;
    for (Generation& generation : generations) {
      while (const auto event = generation.next(milliseconds(0))) {
        came = true;
        for (const ReplyDelta& delta : event->deltas) texts += delta.text.size();
        ended += event->result ? 1 : 0;
      }
    }
    if (!came) {
      const auto before = std::chrono::steady_clock::now();
      signal->wait(kLong);
      EXPECT_LT(std::chrono::steady_clock::now() - before, kLong) << "an event without its signal";
    }
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(texts, 2U * kEach);
}

TEST(ReadySignal, IsTakenBackByTheWait) {
  ReadySignal signal;
  signal.set();
  signal.set();
  signal.wait(kLong);
  const auto before = std::chrono::steady_clock::now();
  signal.wait(milliseconds(20));
  EXPECT_GE(std::chrono::steady_clock::now() - before, milliseconds(20));
}

}  // namespace
}  // namespace glm53::engine
