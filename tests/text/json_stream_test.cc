// JSON read byte by byte, and JSON that was cut.
#include "text/json_stream.h"

#include <gtest/gtest.h>

#include "text/json_text.h"
#include "text/support.h"

namespace sluice::text {
namespace {

TEST(JsonStream, ReadsAsJsonDoes) {
  const auto read = [](std::string_view text) {
    JsonStream stream;
    std::string out;
    for (size_t i = 0; i < text.size(); ++i) {
      const auto status = stream.read(text[i], out);
      if (status == JsonStream::Status::Failed) return "failed at " + std::to_string(i);
      if (status == JsonStream::Status::Done) return i + 1 == text.size() ? out : out + " rest";
    }
    return out + " ...";
  };
  for (const std::string text :
       {R"({ "a" : [ 1 , -2.5e3 , true , null , { } , [ ] ] , "b c" : "d \" \u00e9" })", R"("x\n")", "[]"})
    EXPECT_EQ(read(text), json_compact(text));
  EXPECT_EQ(read(R"(["\ud83d\ude00", "\ud83d", "\ude00x", "\ud83d\ud83d\ude00"])"),
            R"(["\ud83d\ude00","\ufffd","\ufffdx","\ufffd\ud83d\ude00"])");
  // What is no escape was meant as it stands, Python's words are JSON's, and a number may be any.
  EXPECT_EQ(read(R"(["\d+\.", "\u12g4", "\u", "it\'s", "\ud83d\x", "\u\"", True, False, None, 1e999])"),
            R"(["\\d+\\.","\\u12g4","\\u","it's","\ufffd\\x","\\u\"",true,false,null,1e999])");
  for (const char* text : {"{,}", "{\"a\":1,}", "[1,]", "{\"a\" 1}", "[01]", "[tru]", "[True1]", "[none]",
                           "[1}", "{1:2}", "5", "[nul,"})
    EXPECT_EQ(read(text).rfind("failed", 0), 0u) << text << " " << read(text);
  EXPECT_EQ(read(repeated("[", 256) + repeated("]", 256)).size(), 512u);
  EXPECT_EQ(read(repeated("[", 257)), "failed at 256");
}

TEST(JsonStream, ClosesWhatWasCut) {
  const std::pair<const char*, const char*> cases[] = {{"", "{}"},
                                                       {"{", "{}"},
                                                       {"{\"a", "{}"},
                                                       {"{\"a\"", "{}"},
                                                       {"{\"a\":", "{}"},
                                                       {"{\"a\":1", "{\"a\":1}"},
                                                       {"{\"a\":\"x", "{\"a\":\"x\"}"},
                                                       {"{\"a\":[1,", "{\"a\":[1]}"},
                                                       {"{\"a\":[{\"b\":1,\"c", "{\"a\":[{\"b\":1}]}"},
                                                       {"{\"a\":1,\"b\":\"\\\"", "{\"a\":1,\"b\":\"\\\"\"}"}};
  for (const auto& [cut, closed] : cases) EXPECT_EQ(json_closed(cut), closed) << cut;
}

}  // namespace
}  // namespace sluice::text
