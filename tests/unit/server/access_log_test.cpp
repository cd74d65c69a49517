#include "server/access_log.h"

#include <gtest/gtest.h>

namespace glm53::server {
namespace {

TEST(AccessLog, ALineHasWhatIsKnown) {
  ServedRequest request;
  EXPECT_EQ(access_line(request), "client=- id=- method=- path=- status=0 bytes=0 seconds=0.000");
  request.client = "::1";
  request.request_id = "abc";
  request.method = "POST";
  request.path = "/v1/completions";
  request.status = 200;
  request.bytes = 1234;
  request.time = std::chrono::milliseconds(1500);
  request.tokens = TokenCounts{10, 3};
  request.complete = false;
  EXPECT_EQ(access_line(request),
            "client=::1 id=abc method=POST path=/v1/completions status=200 bytes=1234 seconds=1.500 prompt_tokens=10 "
            "completion_tokens=3 cut=true");
}

TEST(AccessLog, APathIsVisibleAsciiAndShort) {
  ServedRequest request;
  request.path = "/a b\n\x1b\x7f\xc2\x9b%20";
  EXPECT_NE(access_line(request).find(" path=/a%20b%0A%1B%7F%C2%9B%20 "), std::string::npos);
  request.path = '/' + std::string(8000, 'x');
  const std::string line = access_line(request);
  EXPECT_LT(line.size(), 400U);
  EXPECT_NE(line.find("xxx... status="), std::string::npos);
}

}  // namespace
}  // namespace glm53::server
