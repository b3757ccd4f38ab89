// Any bytes as the bodies of every endpoint. Whatever they are, the client gets an answer that blames it, or
// one that says that the engine (closed here) is not there; never that the server is wrong.
#include <cstdint>
#include <string>

#include "base/check.h"
#include "server/endpoints.h"
#include "server/parrot.h"

namespace {

using namespace sluice;

/// Takes the answer down.
class Recorder : public server::Exchange {
 public:
  Recorder(std::string path, std::string body) {
    request_.method = "POST";
    request_.path = std::move(path);
    request_.body = std::move(body);
  }
  void respond(server::HttpResponse response) override { answer = std::move(response); }
  void start_stream(server::HttpResponse, std::string) override { CHECK(false, "the engine is closed"); }
  void write(std::string) override {}
  void finish() override {}
  void on_gone(std::function<void()>) override {}
  std::optional<server::HttpResponse> answer;
};

}  // namespace

/// The first byte chooses the endpoint; the rest is the body.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  static test::ParrotServer* const parrot = [] {
    auto* made = new test::ParrotServer;
    made->engine().close();
    return made;
  }();
  static server::Metrics metrics;
  static server::Workers workers(1);
  const std::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
  using server::Style;
  const struct {
    const char* path;
    Style style;
    void (*run)(const server::Call&);
  } endpoints[] = {{"/v1/chat/completions", Style::OpenAi, server::chat_completions},
                   {"/v1/completions", Style::OpenAi, server::completions},
                   {"/v1/messages", Style::Anthropic, server::messages},
                   {"/v1/messages/count_tokens", Style::Anthropic, server::count_tokens},
                   {"/v1/responses", Style::OpenAi, server::responses},
                   {"/tokenize", Style::OpenAi, server::tokenize},
                   {"/detokenize", Style::OpenAi, server::detokenize},
                   {"/apply-template", Style::OpenAi, server::apply_template},
                   {"/api/chat", Style::Ollama, server::ollama_chat},
                   {"/api/generate", Style::Ollama, server::ollama_generate},
                   {"/api/show", Style::Ollama, server::ollama_show}};
  const size_t choice = data[0] % std::size(endpoints);
  const auto& [path, style, run] = endpoints[choice];
  const auto exchange = std::make_shared<Recorder>(path, std::string(input));
  static const server::Log log;
  static server::PromptHistory history;
  const server::Call call = {parrot->service(),
                             metrics.times("parrot"),
                             exchange,
                             std::make_shared<server::SerialQueue>(workers, "client"),
                             style,
                             "fuzz",
                             1 << 20,
                             std::make_shared<server::RequestRecord>(log, history, exchange, "fuzz")};
  try {
    run(call);
    CHECK(exchange->answer && exchange->answer->status == 200);
  } catch (const server::ApiError& error) {
    CHECK(error.status == 400 || error.status == 503, "{}: {}", error.status, error.what());
    const server::HttpResponse response = server::error_response(style, error);
    CHECK(server::Json::accept(response.body));
  } catch (const Error&) {
    // becomes a 400
  }
  return 0;
}
