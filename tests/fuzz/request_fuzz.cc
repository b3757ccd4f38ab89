// Bytes as a connection, and as the bodies of every endpoint. Whatever they are, the client gets an answer
// that blames it, or one that says that the engine (closed here) is not there; never that the server is
// wrong.
#include <cstdint>
#include <string>

#include "base/check.h"
#include "server/endpoints.h"
#include "server/http_session.h"
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

/// A client that sends its bytes in pieces, takes whatever comes, and then has gone.
class Sender : public server::Transport {
 public:
  Sender(std::string_view bytes, std::vector<std::function<void()>>& later) : bytes_(bytes), later_(later) {}
  void start(Done done) override {
    later_.push_back([done = std::move(done)] { done(true); });
  }
  void read(Read done) override {
    later_.push_back([this, done = std::move(done)] {
      const size_t size = std::min<size_t>(bytes_.size(), 1 + bytes_.size() / 3);
      const std::string_view piece = bytes_.substr(0, size);
      bytes_.remove_prefix(size);
      done(size > 0, piece);
    });
  }
  void write(std::string_view bytes, std::function<void(bool, size_t)> done) override {
    later_.push_back([size = bytes.size(), done = std::move(done)] { done(true, size); });
  }
  void shut(Done done) override {
    later_.push_back([done = std::move(done)] { done(true); });
  }
  void close() override {}

 private:
  std::string_view bytes_;
  std::vector<std::function<void()>>& later_;
};

void connect(std::string_view bytes) {
  std::vector<std::function<void()>> later;
  const auto host = std::make_shared<server::SessionHost>();
  host->options.max_header_bytes = 4096;
  host->options.max_body_bytes = 4096;
  host->post = [&later](std::function<void()> function) { later.push_back(std::move(function)); };
  host->hooks.gate = [](const server::HttpRequest&) { return std::nullopt; };
  host->hooks.headers = [](const server::HttpRequest&) { return server::Headers{}; };
  host->hooks.answering = [](int status) { CHECK(status != 500); };
  host->hooks.error = [](const server::HttpRequest&, int status, const std::string& message) {
    return server::HttpResponse{status, "text/plain", message, {}};
  };
  host->hooks.handle = [](const std::shared_ptr<server::Exchange>& exchange) {
    if (exchange->request().path.size() % 2 == 0)
      return exchange->respond({200, "text/plain", exchange->request().body, {}});
    exchange->start_stream({200, "text/plain", "a", {}}, "p");
    exchange->write(exchange->request().body);
    exchange->finish();
  };
  const auto session =
      std::make_shared<server::HttpSession>(host, std::make_unique<Sender>(bytes, later), "127.0.0.1");
  host->sessions.insert(session);
  session->start();
  for (size_t i = 0; i < later.size(); ++i) {
    const auto function = std::move(later[i]);
    function();
  }
  session->close();
  CHECK(host->options.memory->used() == 0 && host->sessions.empty());
}

}  // namespace

/// The first byte chooses the endpoint, or the connection; the rest is the body.
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
  const struct {
    const char* path;
    void (*run)(const server::Call&);
  } endpoints[] = {{"/v1/chat/completions", server::chat_completions},
                   {"/v1/completions", server::completions},
                   {"/v1/messages", server::messages},
                   {"/v1/messages/count_tokens", server::count_tokens},
                   {"/v1/responses", server::responses},
                   {"/tokenize", server::tokenize},
                   {"/detokenize", server::detokenize},
                   {"/apply-template", server::apply_template}};
  const size_t choice = data[0] % (std::size(endpoints) + 1);
  if (choice == std::size(endpoints)) {
    connect(input);
    return 0;
  }
  const auto exchange = std::make_shared<Recorder>(endpoints[choice].path, std::string(input));
  static const server::Log log;
  const server::Call call = {parrot->service(),
                             metrics,
                             exchange,
                             std::make_shared<server::SerialQueue>(workers, "client"),
                             server::Style::OpenAi,
                             "fuzz",
                             1 << 20,
                             std::make_shared<server::RequestRecord>(log, exchange, "fuzz")};
  try {
    endpoints[choice].run(call);
    CHECK(exchange->answer && exchange->answer->status == 200);
  } catch (const server::ApiError& error) {
    CHECK(error.status == 400 || error.status == 503, "{}: {}", error.status, error.what());
    const server::HttpResponse response = server::error_response(server::Style::OpenAi, error);
    CHECK(server::Json::accept(response.body));
  } catch (const Error&) {
    // becomes a 400
  }
  return 0;
}
