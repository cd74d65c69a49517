// The files that the program carries, and how they are served.
#include "server/chat_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "api_test.h"

namespace glm53::server {
namespace {

using testing::HasSubstr;

class ChatPageTest : public ApiTest {};

TEST_F(ChatPageTest, ServesItsFilesWithTheirTypes) {
  settings_.server.api_key = {"k"};
  const RawReply index = ask(get("/"));
  EXPECT_EQ(index.status, 200);
  EXPECT_EQ(index.headers.at("content-type"), "text/html; charset=utf-8");
  EXPECT_THAT(index.headers.at("content-security-policy"), HasSubstr("default-src 'none'"));
  EXPECT_THAT(index.body, HasSubstr("page/chat.js"));
  EXPECT_EQ(ask(get("/page/index.html")).body, index.body);
  EXPECT_EQ(ask(get("/page/chat.css")).headers.at("content-type"), "text/css; charset=utf-8");
  EXPECT_EQ(ask(get("/page/chat.js")).headers.at("content-type"), "text/javascript; charset=utf-8");
}

TEST_F(ChatPageTest, KnowsWhatTheBrowserHas) {
  const std::string etag = ask(get("/")).headers.at("etag");
  const RawReply same = ask("GET / HTTP/1.1\r\nHost: x\r\nIf-None-Match: " + etag + "\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(same.status, 304);
  EXPECT_EQ(same.body, "");
  EXPECT_NE(ask(get("/page/chat.js")).headers.at("etag"), etag);
}

TEST_F(ChatPageTest, OtherPathsAreNotFiles) {
  for (const char* path : {"/page", "/page/", "/page/nothing", "/page/../server.cpp", "/index.html"}) {
    EXPECT_EQ(ask(get(path)).status, 404) << path;
  }
  EXPECT_EQ(ask(post("/", "{}")).status, 405);
}

TEST_F(ChatPageTest, CanBeLeftOut) {
  settings_.api.chat_page = false;
  EXPECT_EQ(ask(get("/")).status, 404);
  EXPECT_EQ(ask(get("/page/chat.js")).status, 404);
  EXPECT_EQ(ask(post("/", "{}")).status, 404);
}

TEST(PageFiles, RefersToNothingElsewhere) {
  ASSERT_FALSE(page_files().empty());
  for (const PageFile& file : page_files()) {
    EXPECT_FALSE(file.bytes.empty()) << file.name;
    EXPECT_EQ(file.bytes.find("://"), std::string_view::npos) << file.name;
  }
}

}  // namespace
}  // namespace glm53::server
