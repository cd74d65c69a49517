// The exactness contract of 00-decisions §4, by gate name. All comparisons are bitwise unless a tolerance is given.
#include <random>

#include <gtest/gtest.h>

#include "backends_under_test.h"
#include "tiny_model.h"

namespace glm53::test {
namespace {

// Sanitizer builds run the same code some twenty times slower.
#ifdef __SANITIZE_ADDRESS__
constexpr int kTrials = 4;
constexpr size_t kLongPrompt = 1500;
#else
#ifdef GLM53_TEST_CUDA
constexpr int kTrials = 100;
#else
constexpr int kTrials = 24;  // of some 60 cuts each
#endif
constexpr size_t kLongPrompt = 7000;
#endif

using Logits = std::vector<std::vector<float>>;

/// ids[begin, end)
std::vector<int32_t> slice(const std::vector<int32_t>& ids, size_t begin, size_t end) {
  return {ids.begin() + static_cast<std::ptrdiff_t>(begin), ids.begin() + static_cast<std::ptrdiff_t>(end)};
}

void append(Logits& all, Logits more) { std::ranges::move(more, std::back_inserter(all)); }

/// First row that differs, or -1.
int first_difference(const Logits& a, const Logits& b) {
  if (a.size() != b.size()) return 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] != b[i]) return static_cast<int>(i);
  }
  return -1;
}

/// Every gate runs on every backend of this program.
class Exactness : public testing::TestWithParam<BackendUnderTest> {
 protected:
  void SetUp() override {
    if (!GetParam().problem.empty()) GTEST_SKIP() << "no CUDA device: " << GetParam().problem;
  }

  TinyModel model(int sequences = 1, int64_t context = 1024, int max_rows = 1024) const {
    return TinyModel(GetParam().make, sequences, context, max_rows);
  }
};

INSTANTIATE_TEST_SUITE_P(Backends, Exactness, testing::ValuesIn(backends_under_test()),
                         [](const auto& param) { return param.param.name; });

TEST_P(Exactness, chunked_prefill_equals_whole) {
  const std::vector<int32_t> ids = golden_ids("needle_mid");
  TinyModel tiny = model();
  const Logits whole = tiny.prompt(ids);
  const std::vector<float> whole_state = tiny.state();
  std::mt19937 random(1);
  for (int trial = 0; trial < kTrials; ++trial) {
    tiny.reset();
    Logits chunked;
    for (size_t begin = 0; begin < ids.size();) {
      // Short pieces in half of the trials, so that many cuts fall inside one sub-chunk.
      const size_t longest = trial % 2 == 0 ? 7 : 200;
      const size_t end = std::min(ids.size(), begin + 1 + random() % longest);
      append(chunked, tiny.prompt(slice(ids, begin, end)));
      begin = end;
    }
    ASSERT_EQ(first_difference(chunked, whole), -1) << "trial " << trial;
    ASSERT_EQ(tiny.state(), whole_state) << "trial " << trial;
  }
}

TEST_P(Exactness, rows_equal_steps) {
  const std::vector<int32_t> ids = golden_ids("tool");
  constexpr size_t kPrompt = 101;  // not a multiple of 16: the window starts from a row log
  TinyModel steps = model();
  TinyModel windows = model();
  for (size_t rows = 1; rows <= kMaxWindowRows; ++rows) {
    steps.reset();
    steps.prompt(slice(ids, 0, kPrompt));
    Logits one_by_one;
    for (size_t i = 0; i < rows; ++i) {
      append(one_by_one, steps.window({ids[kPrompt + i]}));
      steps.commit(1);
    }
    windows.reset();
    windows.prompt(slice(ids, 0, kPrompt));
    const Logits together = windows.window(slice(ids, kPrompt, kPrompt + rows));
    windows.commit(static_cast<int>(rows));
    ASSERT_EQ(first_difference(together, one_by_one), -1) << rows << " rows";
    ASSERT_EQ(windows.state(), steps.state()) << rows << " rows";
  }
}

TEST_P(Exactness, rollback_equals_never_speculated) {
  const std::vector<int32_t> ids = golden_ids("tool");
  constexpr size_t kPrompt = 101;
  constexpr size_t kRows = 7;
  const std::vector<int32_t> wrong(kRows - 1, 17);
  for (size_t kept = 1; kept <= kRows; ++kept) {
    TinyModel plain = model();
    plain.prompt(slice(ids, 0, kPrompt));
    for (size_t i = 0; i < kept; ++i) {
      plain.window({ids[kPrompt + i]});
      plain.commit(1);
    }
    const Logits plain_next = plain.window({ids[kPrompt + kept]});
    plain.commit(1);

    for (const bool recommit : {false, true}) {
      TinyModel speculated = model();
      speculated.prompt(slice(ids, 0, kPrompt));
      std::vector<int32_t> rows = slice(ids, kPrompt, kPrompt + kept);
      rows.insert(rows.end(), wrong.begin(), wrong.end());
      rows.resize(kRows);
      speculated.window(rows);
      if (recommit) {
        speculated.commit(kRows);
        speculated.commit_again(static_cast<int>(kept));
      } else {
        speculated.commit(static_cast<int>(kept));
      }
      const Logits next = speculated.window({ids[kPrompt + kept]});
      speculated.commit(1);
      ASSERT_EQ(first_difference(next, plain_next), -1) << kept << " kept, recommit " << recommit;
      ASSERT_EQ(speculated.state(), plain.state()) << kept << " kept, recommit " << recommit;
    }
  }
}

TEST_P(Exactness, rejected_window_leaves_no_trace) {
  const std::vector<int32_t> ids = golden_ids("json");
  TinyModel plain = model();
  plain.prompt(ids);
  TinyModel rejected = model();
  rejected.prompt(ids);
  rejected.window({5, 6, 7, 8, 9});
  rejected.commit(0);
  EXPECT_EQ(rejected.state(), plain.state());
  EXPECT_EQ(first_difference(rejected.window({42}), plain.window({42})), -1);
}

TEST_P(Exactness, batch_equals_sequential) {
  const std::vector<int32_t> tool = golden_ids("tool");
  const std::vector<int32_t> multi = golden_ids("multi");
  const std::vector<int32_t> count = golden_ids("count");
  constexpr size_t kMultiWindow = 5;
  TinyModel alone = model();
  const Logits tool_alone = alone.prompt(tool);
  const std::vector<float> tool_state = alone.state();
  alone.reset();
  alone.prompt(slice(multi, 0, multi.size() - kMultiWindow));
  const Logits multi_alone = alone.window(slice(multi, multi.size() - kMultiWindow, multi.size()));
  alone.commit(kMultiWindow);
  const std::vector<float> multi_state = alone.state();

  // Slot 0: a prompt in two cuts; slot 1: a window; slot 2: another prompt. All share calls.
  TinyModel batch = model(3);
  batch.prompt(slice(multi, 0, multi.size() - kMultiWindow), 1);
  Logits tool_batched;
  const Logits first = batch.run({{2, slice(count, 0, 3), SegmentKind::kPrompt},
                                  {0, slice(tool, 0, 77), SegmentKind::kPrompt},
                                  {1, slice(multi, multi.size() - kMultiWindow, multi.size()), SegmentKind::kWindow}});
  batch.commit(kMultiWindow, 1);
  append(tool_batched, {first.begin() + 3, first.begin() + 3 + 77});
  const Logits multi_batched(first.begin() + 3 + 77, first.end());
  const Logits second = batch.run({{0, slice(tool, 77, tool.size()), SegmentKind::kPrompt},
                                   {2, slice(count, 3, count.size()), SegmentKind::kPrompt}});
  append(tool_batched, {second.begin(), second.begin() + static_cast<std::ptrdiff_t>(tool.size() - 77)});

  EXPECT_EQ(first_difference(tool_batched, tool_alone), -1);
  EXPECT_EQ(first_difference(multi_batched, multi_alone), -1);
  EXPECT_EQ(batch.state(0), tool_state);
  EXPECT_EQ(batch.state(1), multi_state);
}

TEST_P(Exactness, one_window_among_seven_others) {
  const std::vector<int32_t> ids = golden_ids("needle_long");
  constexpr int kSequences = 8;
  // Slot s has 3 + 101·s tokens and a window of 1 + s rows; from slot 3 on its rows select among pools.
  const auto tokens = [](int slot) { return size_t{3} + size_t{101} * static_cast<size_t>(slot); };
  const auto window = [&](int slot) { return slice(ids, tokens(slot), tokens(slot) + 1 + static_cast<size_t>(slot)); };
  TinyModel alone = model(1);
  TinyModel batch = model(kSequences);
  std::vector<TinyModel::Piece> pieces;
  std::vector<Logits> expected;
  std::vector<std::vector<float>> expected_state;
  for (int slot = 0; slot < kSequences; ++slot) {
    alone.reset();
    alone.prompt(slice(ids, 0, tokens(slot)));
    expected.push_back(alone.window(window(slot)));
    alone.commit(slot / 2 + 1);
    expected_state.push_back(alone.state());
    batch.prompt(slice(ids, 0, tokens(slot)), slot);
    pieces.push_back({slot, window(slot), SegmentKind::kWindow});
  }
  const Logits together = batch.run(pieces);
  size_t row = 0;
  for (int slot = 0; slot < kSequences; ++slot) {
    batch.commit(slot / 2 + 1, slot);
    for (const std::vector<float>& logits : expected[static_cast<size_t>(slot)]) {
      EXPECT_EQ(together[row++], logits) << "slot " << slot;
    }
    EXPECT_EQ(batch.state(slot), expected_state[static_cast<size_t>(slot)]) << "slot " << slot;
  }
}

TEST_P(Exactness, steps_are_close_to_chunks) {
  const std::vector<int32_t> ids = golden_ids("needle_mid");
  TinyModel chunked = model();
  chunked.prompt(ids);
  TinyModel steps = model();
  for (int32_t id : ids) {
    steps.window({id});
    steps.commit(1);
  }
  // Rounded activations differ once a sum differs in its last bit, and later layers see it.
  const double tolerance = GetParam().name == "cpu_fp32" ? 1e-5 : 2e-2;
  for (int i = 0; i < chunked.geometry().kda_layer_count(); ++i) {
    EXPECT_LE(difference(steps.backend().read_kda_state(0, i), chunked.backend().read_kda_state(0, i)).relative(),
              tolerance)
        << "KDA layer " << i;
  }
}

TEST_P(Exactness, a_prompt_may_follow_decoded_rows) {
  const std::vector<int32_t> ids = golden_ids("multi");
  const auto run = [&](size_t cut) {
    TinyModel tiny = model();
    tiny.prompt(slice(ids, 0, 21));
    tiny.window(slice(ids, 21, 24));
    tiny.commit(3);
    Logits logits = tiny.prompt(slice(ids, 24, cut));
    append(logits, tiny.prompt(slice(ids, cut, ids.size())));
    return std::pair(logits, tiny.state());
  };
  // After decoded rows the first sub-chunk ends at the next multiple of 16 (position 32), wherever the prompt is cut.
  const auto expected = run(25);
  for (size_t cut = 26; cut < ids.size(); ++cut) {
    const auto actual = run(cut);
    ASSERT_EQ(first_difference(actual.first, expected.first), -1) << "cut at " << cut;
    ASSERT_EQ(actual.second, expected.second) << "cut at " << cut;
  }
}

TEST_P(Exactness, seven_thousand_tokens_in_any_chunks) {
  constexpr size_t kTokens = kLongPrompt;
  const std::vector<int32_t> text = golden_ids("needle_long");
  std::vector<int32_t> ids;
  while (ids.size() < kTokens) ids.insert(ids.end(), text.begin(), text.end());
  ids.resize(kTokens);
  // Only the last row's logits are kept, in one call and in chunks of 2,048 with an odd first cut.
  const auto run = [&](const std::vector<size_t>& cuts) {
    TinyModel tiny = model(1, 8192, kLongPrompt);
    std::vector<float> last;
    size_t begin = 0;
    for (size_t end : cuts) {
      last = tiny.prompt_last(slice(ids, begin, end));
      begin = end;
    }
    return last;
  };
  const std::vector<float> whole = run({kTokens});
  EXPECT_TRUE(std::ranges::all_of(whole, [](float value) { return std::isfinite(value); }));
  EXPECT_EQ(run({kTokens / 7 + 23, kTokens / 2 - 1, kTokens / 2 + 1, kTokens}), whole);
}

TEST_P(Exactness, misuse_is_refused) {
  TinyModel tiny = model(2);
  EXPECT_THROW(tiny.commit(1), std::logic_error);
  tiny.window({1, 2, 3});
  EXPECT_THROW(tiny.window({4}), std::logic_error);  // not committed
  EXPECT_THROW(tiny.backend().commit(0, 4), std::logic_error);
  tiny.commit(2);
  EXPECT_THROW(tiny.backend().commit(0, 3), std::logic_error);  // rows that were rejected cannot return
  const std::vector<int32_t> ids = {1};
  Segment segment;
  segment.first_position = 7;
  segment.rows = 1;
  EXPECT_THROW(tiny.model().forward({ids, {&segment, 1}, {}}), std::logic_error);  // wrong position
  segment.first_position = 2;
  const int32_t page = 0;
  segment.pages = {&page, 1};
  for (const std::vector<int32_t>& logit_rows : {std::vector<int32_t>{1}, {-1}, {0, 0}}) {
    EXPECT_THROW(tiny.model().forward({ids, {&segment, 1}, logit_rows}), std::logic_error);
  }
}

}  // namespace
}  // namespace glm53::test
