// Any bytes as a connection. Whatever they are, they are answered or cut off, nothing of them stays, and it
// is never the server that is wrong.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "server/http_session.h"

namespace {

using namespace sluice;

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

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  connect({reinterpret_cast<const char*>(data), size});
  return 0;
}
