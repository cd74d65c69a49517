// gpu_same_text PORT PORT: asks two running servers of the tiny checkpoint to continue every golden prompt greedily and
// compares the replies byte for byte. Only as many tokens are asked for as are stable: up to the first step whose two
// best logits, in the CPU's fp32 mode, are closer than the band of tests/data/golden/README.md.
// Prints a line a prompt; exit code 0 when all agree. Run from the repository's root.
#include <cstdio>
#include <cstdlib>

#include "server/raw_client.h"
#include "tiny_model.h"

namespace glm53::test {
namespace {

constexpr float kStableMargin = 0.05F;

/// Greedy tokens before the first close step, an end id included.
size_t stable_tokens(TinyModel& exact, const std::vector<int32_t>& ids, const std::vector<int32_t>& greedy) {
  exact.reset();
  std::vector<float> row = exact.prompt_last(ids);
  for (size_t i = 0; i < greedy.size(); ++i) {
    if (top_margin(row) < kStableMargin) return i;
    if (argmax(row) != greedy[i]) throw Error("the CPU's fp32 mode leaves the golden continuation");
    row = exact.window({greedy[i]}).front();
    exact.commit(1);
  }
  return greedy.size();
}

std::string greedy_text(int port, const std::vector<int32_t>& ids, size_t tokens) {
  const nlohmann::json request = {{"prompt", ids}, {"temperature", 0}, {"max_tokens", tokens}};
  server::RawClient client(port);
  client.send(server::post("/v1/completions", request.dump(), "Content-Type: application/json\r\n"));
  const server::RawReply reply = client.reply();
  if (reply.status != 200) {
    throw Error("port " + std::to_string(port) + " answers " + std::to_string(reply.status) + ": " + reply.body);
  }
  return nlohmann::json::parse(reply.body).at("choices").at(0).at("text");
}

int compare(int first_port, int second_port) {
  TinyModel exact(0);
  int failures = 0;
  for (const auto& prompt : golden_json("text.json")) {
    const auto ids = prompt.at("ids").get<std::vector<int32_t>>();
    const size_t tokens = stable_tokens(exact, ids, prompt.at("greedy").get<std::vector<int32_t>>());
    const std::string name = prompt.at("name");
    if (tokens == 0) {
      std::printf("skipped %s: no stable token\n", name.c_str());
      continue;
    }
    const std::string first = greedy_text(first_port, ids, tokens);
    const std::string second = greedy_text(second_port, ids, tokens);
    std::printf("%s %s: %zu tokens\n", first == second ? "ok" : "not ok", name.c_str(), tokens);
    if (first == second) continue;
    ++failures;
    std::printf("    %s\n    %s\n", nlohmann::json(first).dump().c_str(), nlohmann::json(second).dump().c_str());
  }
  return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace glm53::test

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: gpu_same_text PORT PORT\n");
    return 2;
  }
  try {
    return glm53::test::compare(std::atoi(argv[1]), std::atoi(argv[2]));
  } catch (const std::exception& e) {
    std::fprintf(stderr, "gpu_same_text: %s\n", e.what());
    return 1;
  }
}
