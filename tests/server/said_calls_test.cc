// Calls that come back with their keys in another order.
#include "server/said_calls.h"

#include <gtest/gtest.h>

namespace sluice::server {
namespace {

Json message(const Json& arguments, const std::string& name = "write") {
  return Json::array(
      {{{"role", "user"}, {"content", "Go."}},
       {{"role", "assistant"},
        {"tool_calls", {{{"id", "1"}, {"function", {{"name", name}, {"arguments", arguments}}}}}}}});
}
/// As text, in its order.
std::string restored(SaidCalls& calls, const Json& arguments, uint64_t group = 0,
                     const std::string& name = "write") {
  Json messages = message(arguments, name);
  calls.restore(group, messages);
  const Json& now = messages[1]["tool_calls"][0]["function"]["arguments"];
  return now.is_string() ? now.get<std::string>() : now.dump();
}

const char* const kSaid =
    R"({"path":"a","edits":[{"to":2,"from":1},{"to":4,"from":3}],"count":18446744073709551616})";
const char* const kSorted =
    R"({"count":18446744073709551616,"edits":[{"from":1,"to":2},{"from":3,"to":4}],"path":"a"})";

TEST(SaidCalls, GetTheirOrderBack) {
  SaidCalls calls;
  EXPECT_EQ(restored(calls, kSorted), kSorted) << "nothing was said yet";
  calls.keep(0, "write", kSaid);
  EXPECT_EQ(restored(calls, kSorted), kSaid) << "as text, numbers too";
  calls.keep(0, "read", R"({"to":9,"from":"ä"})");
  EXPECT_EQ(restored(calls, Json::parse(R"({"from": "ä", "to": 9})"), 0, "read"), R"({"to":9,"from":"ä"})")
      << "as an object";
}

TEST(SaidCalls, OthersStayAsTheyAre) {
  SaidCalls calls;
  calls.keep(1, "write", R"({"b":1,"a":2})");
  EXPECT_EQ(restored(calls, R"({"a":2,"b":1})", 1), R"({"b":1,"a":2})");
  EXPECT_EQ(restored(calls, R"({"a":2,"b":1})", 2), R"({"a":2,"b":1})") << "another client's";
  EXPECT_EQ(restored(calls, R"({"a":2,"b":1})", 1, "read"), R"({"a":2,"b":1})") << "another tool's";
  EXPECT_EQ(restored(calls, R"({"a":2,"b":2})", 1), R"({"a":2,"b":2})") << "another value";
  EXPECT_EQ(restored(calls, R"({"b":1,"a":2,"c":null})", 1), R"({"b":1,"a":2,"c":null})") << "something more";
  EXPECT_EQ(restored(calls, R"({"b": 1, "a": 2})", 1), R"({"b": 1, "a": 2})") << "spaces are the client's";
  for (const char* odd : {"[1,2]", "no JSON", "{\"a\":", "", "null"}) EXPECT_EQ(restored(calls, odd, 1), odd);
  Json nothing = Json::parse(R"([{"tool_calls": null}, {"tool_calls": [3]}, {"tool_calls": [{"function": 3}]},
                                 {"tool_calls": [{"function": {"name": 3, "arguments": {}}}]}, 5])");
  const Json before = nothing;
  calls.restore(1, nothing);
  EXPECT_EQ(nothing, before);
}

TEST(SaidCalls, AreBounded) {
  SaidCalls calls;
  calls.keep(0, "first", R"({"b":1,"a":2})");
  calls.keep(0, "long", R"({"b":")" + std::string(300'000, 'x') + R"(","a":2})");
  EXPECT_EQ(restored(calls, R"({"a":2,"b":1})", 0, "first"), R"({"b":1,"a":2})");
  for (int i = 0; i < 100; ++i)
    calls.keep(0, "write", R"({"b":")" + std::string(200'000, 'x') + R"(","a":)" + std::to_string(i) + "}");
  EXPECT_EQ(restored(calls, R"({"a":2,"b":1})", 0, "first"), R"({"a":2,"b":1})") << "it has gone";
  const std::string last = R"({"a":99,"b":")" + std::string(200'000, 'x') + R"("})";
  EXPECT_EQ(restored(calls, last).substr(0, 5), R"({"b":)");
}

}  // namespace
}  // namespace sluice::server
