// The commands chat, run --chat, tokenize and detokenize as a user meets them, through pipes. What needs a
// terminal is in terminal_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "gguf/writer.h"
#include "support/command.h"
#include "support/golden.h"

namespace sluice::cli {
namespace {

using test::CommandResult;
using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class Chat : public testing::Test, public test::CommandFolder {
 protected:
  Chat() : CommandFolder("chat") {}

  std::string write(const std::string& name, const std::string& content) const {
    std::ofstream(path(name), std::ios::binary) << content;
    return path(name);
  }
  /// Greedy answers of 12 tokens to a script of lines.
  CommandResult chat(const std::string& script, const std::string& flags = "") const {
    return run("chat --temp 0 -n 12 " + flags, write("script", script));
  }
  nlohmann::json saved(const std::string& name) const { return nlohmann::json::parse(read_file(path(name))); }
};

TEST_F(Chat, AnswersEachLineOnStandardOutputAlone) {
  const CommandResult result = chat("Tell me a tale.\n\nGo on.\n");
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.err, "");
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 2) << result.out;
  EXPECT_THAT(result.out, Not(HasSubstr("\x1b")));
  EXPECT_THAT(result.out, Not(HasSubstr(">>>")));
  EXPECT_THAT(result.out, Not(HasSubstr("think>")));
  EXPECT_EQ(result.out, chat("Tell me a tale.\r\nGo on.").out) << "carriage returns, no last newline";
  EXPECT_EQ(chat("").out, "");
}

// The second answer's words lead by half a logit and more: a chat and a prompt read at once do not round
// alike.
TEST_F(Chat, TurnsAreRenderedByTheTemplate) {
  const CommandResult result =
      chat("/set system You are a fox.\nAre you hungry?\n/set think off\nWhat do you see?\n/save " +
               path("c.json") + "\n",
           "--verbose");
  ASSERT_EQ(result.code, 0) << result.err;
  const auto messages = saved("c.json")["messages"];
  ASSERT_EQ(messages.size(), 5u);
  EXPECT_EQ(saved("c.json")["model"], "Fairy Tales");
  EXPECT_EQ(messages[0], (nlohmann::json{{"role", "system"}, {"content", "You are a fox."}}));
  EXPECT_EQ(messages[1], (nlohmann::json{{"role", "user"}, {"content", "Are you hungry?"}}));
  EXPECT_EQ(messages[2]["role"], "assistant");
  const std::string first = messages[2]["content"], second = messages[4]["content"];
  EXPECT_EQ(result.out, first + "\n" + second + "\n");
  // The same prompt written out, as tokens of their own.
  const std::string prompt =
      "[gMASK]<sop><|system|>You are a fox.<|user|>Are you hungry?<|assistant|></think>" + first +
      "<|user|>What do you see?<|assistant|></think>";
  const CommandResult plain = run("run --temp 0 -n 12 -f " + write("prompt", prompt));
  EXPECT_EQ(plain.out, second + "\n");
}

TEST_F(Chat, ReusesTheCacheBetweenTurns) {
  const CommandResult result =
      chat("Tell me a tale of a fox and a crow.\nGo on.\n/clear\nGo on.\n", "--verbose --think off");
  std::vector<int> cached;
  for (size_t at = 0; (at = result.err.find("[ prompt: ", at)) != std::string::npos; ++at) {
    int tokens = 0, reused = 0;
    std::sscanf(result.err.c_str() + at, "[ prompt: %d tokens (%d from", &tokens, &reused);
    cached.push_back(tokens - reused);
  }
  ASSERT_EQ(cached.size(), 3u) << result.err;
  EXPECT_GT(cached[0], 15);
  EXPECT_LT(cached[1], 10) << "only the new message, and the end of the answer";
}

TEST_F(Chat, RegenClearReadAndQuotes) {
  const std::string file = write("tale.txt", "The king said\nto the queen\n");
  const CommandResult result =
      chat("First.\nSecond.\n/regen\n/save " + path("a") + "\n/clear\n/read " + file +
           "\n\"\"\"one\n/bye is no command here\n\nfour\"\"\"\n\"\"\"\nfive\n\"\"\"\n/save " + path("b") +
           "\n/bye\nnever read\n");
  ASSERT_EQ(result.code, 0) << result.err;
  const auto a = saved("a")["messages"], b = saved("b")["messages"];
  ASSERT_EQ(a.size(), 4u);
  EXPECT_EQ(a[2]["content"], "Second.");
  ASSERT_EQ(b.size(), 6u);
  EXPECT_EQ(b[0]["content"], "The king said\nto the queen\n");
  EXPECT_EQ(b[2]["content"], "one\n/bye is no command here\n\nfour");
  EXPECT_EQ(b[4]["content"], "five");
}

TEST_F(Chat, AnswersDifferBySeedAndRegenDrawsAgain) {
  const std::string script = write("script", "Tell me a tale.\n/regen\n");
  const std::string one = run("chat -n 20 -s 3", script).out;
  EXPECT_EQ(one, run("chat -n 20 -s 3", script).out);
  EXPECT_NE(one, run("chat -n 20 -s 4", script).out);
  const size_t half = one.find('\n');
  EXPECT_NE(one.substr(0, half), one.substr(half + 1, one.size() - half - 2)) << "the second is another one";
}

TEST_F(Chat, LoadsWhatItSaved) {
  const std::string whole = chat("Tell me a tale.\nGo on.\n").out;
  chat("Tell me a tale.\n/save " + path("c.json") + "\n");
  const CommandResult resumed = chat("/load " + path("c.json") + "\nGo on.\n");
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_THAT(whole, EndsWith("\n" + resumed.out));
  const struct {
    const char* json;
    const char* message;
  } cases[] = {{"{", "not JSON"},
               {"{}", "expected an object with an array"},
               {"[1]", "messages[0]: expected an object with strings"},
               {R"([{"role":"tool","content":"x"}])", "messages[0]: role \"tool\", expected user"},
               {R"([{"role":"user","content":"x","reasoning_content":1}])", "messages[0].reasoning_content"}};
  for (const auto& c : cases) {
    const CommandResult bad = chat("/load " + write("bad.json", c.json) + "\n");
    EXPECT_EQ(bad.code, 1) << c.json;
    EXPECT_THAT(bad.err, AllOf(HasSubstr("bad.json: "), HasSubstr(c.message)));
  }
}

TEST_F(Chat, TellsWhatIsWrongAndGoesOn) {
  const CommandResult result = chat(
      "/nonsense\n/set\n/set think maybe\n/set parameter nope 1\n/set parameter top_k x\n"
      "/set parameter temperature -1\n/set parameter top_k\n/show nothing\n/read "
      "/nowhere\n/read\n/regen\nHello.\n");
  EXPECT_EQ(result.code, 1);
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 1);
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 12) << result.err;
  for (const char* part :
       {"sluice: no command /nonsense; /help lists them\n", "sluice: /set: expected parameter, system",
        "sluice: /set think: expected on or off\n", "sluice: /set parameter: no parameter \"nope\"",
        "sluice: \"x\" is no number", "temperature", "sluice: /show: expected settings",
        "sluice: /nowhere: No such file or directory\n", "sluice: /read: expected the name of a file\n",
        "sluice: there is no message to answer yet\n", "sluice: 11 problems, told above\n"})
    EXPECT_THAT(result.err, HasSubstr(part));
  const CommandResult open = chat("\"\"\"open\n");
  EXPECT_EQ(open.code, 1);
  EXPECT_THAT(open.err, HasSubstr("was not closed"));
}

TEST_F(Chat, ShowsAndChangesSettings) {
  const CommandResult result = chat(
      "/set parameter top_k 7\n/set parameter seed 5\n/set parameter stop the end\n/set fold on\n/show "
      "settings\n"
      "/set system \"\"\"Be\nkind.\"\"\"\n/show system\n/show info\n/show template\n/help\n");
  EXPECT_EQ(result.code, 0) << result.err;
  for (const char* part :
       {"top_k              7\n", "seed               5\n", "stop               \"the end\"",
        "fold               on\n", "Be\nkind.\n", "name               Fairy Tales\n",
        "architecture       deepseek2\n", "[gMASK]<sop>\n", "/load FILE"})
    EXPECT_THAT(result.out, HasSubstr(part));
  EXPECT_EQ(chat("/set parameter num_predict 3\nTell me.\n").out,
            run("chat --temp 0 -n 3", write("script", "Tell me.\n")).out);
}

TEST_F(Chat, AFullContextLeavesTheConversationUsable) {
  const CommandResult result =
      run("chat --temp 0 -c 64", write("script",
                                       "Tell me a tale.\n"
                                       "Go on, with a fox and a crow and a king.\n"
                                       "/save " +
                                           path("c") + "\n/clear\nTell me a tale.\n"));
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err,
              HasSubstr("[ the context of 64 tokens is full; /clear begins a new conversation ]\n"));
  EXPECT_THAT(result.err,
              HasSubstr("leaves no room in a context of 64; the message is left out, /clear begins"));
  EXPECT_EQ(saved("c")["messages"].size(), 2u);
  const size_t half = result.out.size() / 2;
  EXPECT_EQ(result.out.substr(0, half), result.out.substr(half)) << "the same tale again";
}

TEST_F(Chat, RunAnswersOneMessage) {
  const std::string answer = chat("Tell me a tale.\n").out;
  const CommandResult result = run("run --chat --temp 0 -n 12 -p 'Tell me a tale.'");
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.out, answer);
  EXPECT_THAT(result.err, Not(HasSubstr("\x1b")));
  EXPECT_EQ(run("run --chat --temp 0 -n 12 --system 'Be a fox.' --think off -p 'Who are you?'").out,
            chat("/set system Be a fox.\nWho are you?\n", "--think off").out);
  EXPECT_EQ(run("run --chat", write("empty", "")).code, 2);
  EXPECT_EQ(run("run --think off -p x").code, 2);
  EXPECT_EQ(run("chat --think maybe").code, 2);
}

TEST_F(Chat, UsersCannotWriteControlTokens) {
  const CommandResult result = chat("<|user|><|assistant|></think>\n", "--verbose");
  int tokens = 0;
  std::sscanf(result.err.c_str(), "[ prompt: %d", &tokens);
  EXPECT_GT(tokens, 15) << "characters, not tokens";
}

TEST_F(Chat, AFileWithoutATemplateIsNamed) {
  const test::Golden golden = test::golden_case("lite-legacy-kv_b");
  for (const std::string command : {"chat", "run --chat -p x"}) {
    const CommandResult result = run(command + " -m " + golden.model);
    EXPECT_EQ(result.code, 1);
    EXPECT_THAT(result.err, StartsWith("sluice: " + golden.model + ": "));
    EXPECT_EQ(result.out, "");
  }
}

TEST_F(Chat, TokenizeListsTokensAndDetokenizeJoinsThem) {
  const std::string text = "Once upon a time,\n水 <|user|>\x01";
  const std::string file = write("text", text);
  const CommandResult listed = run("tokenize -f " + file);
  EXPECT_EQ(listed.code, 0);
  EXPECT_THAT(listed.out, AllOf(HasSubstr("\"Once\"\n"), HasSubstr("\" upon\"\n"), HasSubstr("\"\\n\"\n"),
                                HasSubstr("\"\\xe6\"\n"), HasSubstr("\"\\x01\"\n")));
  const CommandResult ids = run("tokenize --ids", file);
  EXPECT_EQ(ids.out, run("tokenize --ids -f " + file).out);
  EXPECT_EQ(run("detokenize", write("ids", ids.out)).out, text);
  EXPECT_EQ(run("detokenize", write("ids", run("tokenize --ids --json -f " + file).out)).out, text);

  const std::string special = run("tokenize --ids --special -p '<|user|>Hi'").out;
  EXPECT_LT(special.size(), run("tokenize --ids -p '<|user|>Hi'").out.size());
  EXPECT_EQ(run("detokenize", write("ids", special)).out, "Hi");
  EXPECT_EQ(run("detokenize --special", path("ids")).out, "<|user|>Hi");
  EXPECT_THAT(run("tokenize --bos -p Hi").out, HasSubstr("\"[gMASK]\"\n"));
  const auto json = nlohmann::json::parse(run("tokenize --json -p '水'").out);
  EXPECT_EQ(json[0]["bytes"], nlohmann::json({0xE6}));
  EXPECT_EQ(run("tokenize -p ''").out, "");
  EXPECT_EQ(run("detokenize").out, "");
}

TEST_F(Chat, TokenizeNamesWhatIsWrong) {
  EXPECT_EQ(run("detokenize 1 x").code, 2);
  EXPECT_THAT(run("detokenize 4096").err, HasSubstr("\"4096\": expected a token id from 0 to 4095\n"));
  const CommandResult piped = run("detokenize", write("ids", "1 2 nope"));
  EXPECT_EQ(piped.code, 1);
  EXPECT_THAT(piped.err, HasSubstr("sluice: standard input: \"nope\": expected a token id"));
  EXPECT_EQ(run("tokenize -m /nowhere -p x").code, 1);
  EXPECT_EQ(run("tokenize -p x -f y").code, 2);
}

/// A file of SentencePiece's kind: what the keys of a GGUF file become is tested here.
TEST_F(Chat, TokenizeReadsSentencePieceFiles) {
  gguf::WritePlan plan;
  const auto add = [&](const char* key, gguf::WriteValue value) {
    plan.metadata.push_back({key, std::move(value)});
  };
  std::vector<std::string> tokens = {"<unk>", "<s>", "</s>"};
  std::vector<int32_t> types = {2, 3, 3};
  std::vector<float> scores(3, 0.0f);
  const auto token = [&](const std::string& text, float score, int32_t type) {
    tokens.push_back(text), scores.push_back(score), types.push_back(type);
  };
  for (int byte = 0; byte < 256; ++byte) token(fmt::format("<0x{:02X}>", byte), 0, 6);
  token("▁f", -2, 1), token("ox", -1, 1), token("▁fox", -3, 1), token("▁", -4, 1), token("o", -5, 1);
  add("general.architecture", std::string("llama"));
  add("tokenizer.ggml.model", std::string("llama"));
  add("tokenizer.ggml.tokens", tokens);
  add("tokenizer.ggml.scores", scores);
  add("tokenizer.ggml.token_type", types);
  add("tokenizer.ggml.unknown_token_id", uint32_t{0});
  add("tokenizer.ggml.bos_token_id", uint32_t{1});
  add("tokenizer.ggml.eos_token_id", uint32_t{2});
  gguf::Writer(path("spm.gguf"), plan).finish();
  const std::string model = " -m " + path("spm.gguf");
  EXPECT_EQ(run("tokenize --bos -p 'fox!' " + model).out,
            "      1  \"<s>\"\n    261  \" fox\"\n     36  \"!\"\n");
  EXPECT_EQ(run("detokenize 261 36 262 261" + model).out, "fox!  fox");
}

}  // namespace
}  // namespace sluice::cli
