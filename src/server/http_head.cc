#include "server/http_head.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <limits>

namespace sluice::server {

namespace http = boost::beast::http;
using boost::beast::error_code;

struct HttpHead::Impl {
  http::request_parser<http::empty_body> parser;
};

namespace {

/// The characters of a host's name, an address or a port, and those that stand between them.
bool is_host(std::string_view host) {
  return std::ranges::all_of(host, [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           std::string_view(".-_~%!$&'()*+;=:[]").find(c) != std::string_view::npos;
  });
}

}  // namespace

std::string lower_case(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return out;
}

HttpHead::HttpHead(const HttpOptions& options) : options_(options), impl_(std::make_unique<Impl>()) {
  impl_->parser.header_limit(static_cast<uint32_t>(options.max_header_bytes));
  impl_->parser.body_limit(std::numeric_limits<uint64_t>::max());  // read_body_length() knows it
}

HttpHead::~HttpHead() = default;

std::optional<HeadProblem> HttpHead::take(std::string& in) {
  error_code error;
  in.erase(0, impl_->parser.put(boost::asio::buffer(in), error));
  if (error == http::error::need_more) {
    if (in.size() < options_.max_header_bytes) return {};
    error = http::error::header_limit;
  }
  if (error == http::error::header_limit) return HeadProblem{431, "the headers are too large"};
  if (error) return HeadProblem{400, "this is no HTTP request: " + error.message()};
  if (!impl_->parser.is_header_done()) return {};
  done_ = true;
  return read();
}

std::optional<HeadProblem> HttpHead::read() {
  const auto& message = impl_->parser.get();
  request.method = std::string(message.method_string());
  for (const auto& field : message) {
    request.headers.emplace_back(lower_case({field.name_string().data(), field.name_string().size()}),
                                 std::string(field.value()));
  }
  keep_alive = message.keep_alive();
  answers_in_chunks = message.version() >= 11;
  if (auto problem = read_target({message.target().data(), message.target().size()})) return problem;
  if (auto problem = read_body_length()) return problem;
  return check_host();
}

// A path, "*" or a whole URL, whose host counts in place of the header's (RFC 9112, 3.2).
std::optional<HeadProblem> HttpHead::read_target(std::string_view target) {
  const size_t colon = target.find("://");
  const std::string scheme = colon == target.npos ? "" : lower_case(target.substr(0, colon));
  if (scheme == "http" || scheme == "https") {
    target.remove_prefix(colon + 3);
    const size_t path = std::min(target.find_first_of("/?"), target.size());
    const std::string host(target.substr(0, path));
    target.remove_prefix(path);
    if (host.empty()) return HeadProblem{400, "the request's URL names no host"};
    const auto header = std::ranges::find(request.headers, "host", &Headers::value_type::first);
    if (header != request.headers.end()) header->second = host;
    if (!target.starts_with('/')) {
      request.path = "/";
      request.query = target.substr(std::min<size_t>(target.size(), 1));
      return {};
    }
  } else if (!target.starts_with('/') && !(target == "*" && request.method == "OPTIONS")) {
    return HeadProblem{400, "the request's target is neither a path nor a URL"};
  }
  const size_t query = target.find('?');
  request.path = target.substr(0, query);
  if (query != std::string_view::npos) request.query = target.substr(query + 1);
  return {};
}

std::optional<HeadProblem> HttpHead::read_body_length() {
  const auto count = [this](std::string_view name) {
    return std::ranges::count(request.headers, name, &Headers::value_type::first);
  };
  if (const auto codings = count("transfer-encoding"); codings > 0) {
    if (!answers_in_chunks) return HeadProblem{400, "Transfer-Encoding is not for HTTP/1.0"};
    if (count("content-length") > 0) return HeadProblem{400, "Transfer-Encoding beside Content-Length"};
    if (codings > 1 || lower_case(request.header("transfer-encoding")) != "chunked")
      return HeadProblem{400, "Transfer-Encoding: expected chunked and no other"};
    chunked = true;
    return {};
  }
  const std::string_view said = request.header("content-length");
  if (count("content-length") > 1 || said.find_first_not_of("0123456789") != std::string_view::npos)
    return HeadProblem{400, "Content-Length: expected one number"};
  length = impl_->parser.content_length().value_or(0);
  if (length > options_.max_body_bytes)
    return HeadProblem{413, fmt::format("the body is larger than {} bytes", options_.max_body_bytes)};
  return {};
}

std::optional<HeadProblem> HttpHead::check_host() {
  const auto hosts = std::ranges::count(request.headers, "host", &Headers::value_type::first);
  if (hosts > 1) return HeadProblem{400, "Host is given more than once"};
  if (hosts == 0 && answers_in_chunks) return HeadProblem{400, "Host is missing"};
  if (!is_host(request.header("host"))) return HeadProblem{400, "Host: expected a name or an address"};
  return {};
}

}  // namespace sluice::server
