#include "server/body.h"

#include <brotli/decode.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <memory>

#include "base/interruption.h"
#include "server/fields.h"
#include "text/exact_json.h"

namespace sluice::server {

namespace {

constexpr size_t kMostEncodings = 3;
constexpr int kZstdWindowLog = 26;  // 64 MiB: what a frame may make its reader keep

/// What was decoded, within a limit.
class Output {
 public:
  explicit Output(size_t limit) : limit_(limit) {}
  void append(const void* bytes, size_t size) {
    Interruptible::look();
    if (size > limit_ - text_.size())
      throw ApiError(413, fmt::format("the decoded body is larger than {} bytes", limit_));
    text_.append(static_cast<const char*>(bytes), size);
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
  size_t limit_;
};

[[noreturn]] void broken(const char* encoding) {
  throw ApiError(400, fmt::format("the body is not whole {} data", encoding));
}

using Buffer = std::array<unsigned char, 64 << 10>;

/// `window_bits` as zlib has them: 47 finds out between gzip and zlib, -15 is deflate without a head.
std::string inflate(std::string_view body, int window_bits, const char* name, size_t limit) {
  z_stream stream{};
  if (::inflateInit2(&stream, window_bits) != Z_OK) throw std::bad_alloc();
  const std::unique_ptr<z_stream, decltype(&::inflateEnd)> owner(&stream, &::inflateEnd);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(body.data()));
  stream.avail_in = static_cast<uInt>(body.size());  // bodies have a limit far below 4 GiB
  Output out(limit);
  const auto buffer = std::make_unique<Buffer>();
  while (true) {
    stream.next_out = buffer->data();
    stream.avail_out = static_cast<uInt>(buffer->size());
    const int result = ::inflate(&stream, Z_NO_FLUSH);
    out.append(buffer->data(), buffer->size() - stream.avail_out);
    if (result == Z_STREAM_END) {
      if (stream.avail_in == 0) return out.take();
      if (window_bits < 0 || ::inflateReset(&stream) != Z_OK) broken(name);  // gzip may have several members
    } else if (result != Z_OK) {
      broken(name);
    }
  }
}

std::string inflate_deflate(std::string_view body, size_t limit) {
  // zlib's head is what the name means; some clients leave it out. Its two bytes are a multiple of 31.
  const auto byte = [&](size_t i) { return i < body.size() ? static_cast<unsigned char>(body[i]) : 0U; };
  const bool has_head = (byte(0) & 0x0F) == 8 && (byte(0) * 256 + byte(1)) % 31 == 0;
  return inflate(body, has_head ? 15 : -15, "deflate", limit);
}

std::string decode_zstd(std::string_view body, size_t limit) {
  const std::unique_ptr<ZSTD_DCtx, decltype(&::ZSTD_freeDCtx)> context(::ZSTD_createDCtx(), &::ZSTD_freeDCtx);
  if (!context) throw std::bad_alloc();
  ::ZSTD_DCtx_setParameter(context.get(), ZSTD_d_windowLogMax, kZstdWindowLog);
  ZSTD_inBuffer in{body.data(), body.size(), 0};
  Output out(limit);
  const auto buffer = std::make_unique<Buffer>();
  while (true) {
    ZSTD_outBuffer piece{buffer->data(), buffer->size(), 0};
    const size_t result = ::ZSTD_decompressStream(context.get(), &piece, &in);
    if (::ZSTD_isError(result) != 0) broken("zstd");
    out.append(buffer->data(), piece.pos);
    if (result == 0 && in.pos == in.size) return out.take();  // the last frame is whole
    if (in.pos == in.size && piece.pos < piece.size) broken("zstd");
  }
}

std::string decode_brotli(std::string_view body, size_t limit) {
  const std::unique_ptr<BrotliDecoderState, decltype(&::BrotliDecoderDestroyInstance)> state(
      ::BrotliDecoderCreateInstance(nullptr, nullptr, nullptr), &::BrotliDecoderDestroyInstance);
  if (!state) throw std::bad_alloc();
  const auto* next = reinterpret_cast<const uint8_t*>(body.data());
  size_t left = body.size();
  Output out(limit);
  const auto buffer = std::make_unique<Buffer>();
  while (true) {
    uint8_t* to = buffer->data();
    size_t room = buffer->size();
    const auto result = ::BrotliDecoderDecompressStream(state.get(), &left, &next, &room, &to, nullptr);
    out.append(buffer->data(), buffer->size() - room);
    if (result == BROTLI_DECODER_RESULT_SUCCESS && left == 0) return out.take();
    if (result != BROTLI_DECODER_RESULT_NEEDS_MORE_OUTPUT) broken("br");
  }
}

std::string lower_trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  std::string out(text.substr(first, text.find_last_not_of(" \t") + 1 - first));
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + 32);
  return out;
}

std::string decode(std::string_view body, const std::string& name, size_t limit) {
  if (name == "gzip" || name == "x-gzip") return inflate(body, 15 + 16, "gzip", limit);
  if (name == "deflate") return inflate_deflate(body, limit);
  if (name == "zstd") return decode_zstd(body, limit);
  if (name == "br") return decode_brotli(body, limit);
  throw ApiError(415,
                 fmt::format("Content-Encoding {}: expected gzip, deflate, zstd or br", name.substr(0, 64)));
}

/// Looks for "model" or, as Ollama's clients may say, "name" among an object's own keys.
class ModelFinder : public nlohmann::json_sax<Json> {
 public:
  std::string found;

  bool key(string_t& name) override {
    wanted_ = depth_ == 1 && (name == "model" || name == "name");
    return true;
  }
  bool string(string_t& text) override {
    if (wanted_) found = text;
    return !wanted_;  // no further
  }
  bool null() override { return value(); }
  bool boolean(bool) override { return value(); }
  bool number_integer(number_integer_t) override { return value(); }
  bool number_unsigned(number_unsigned_t) override { return value(); }
  bool number_float(number_float_t, const string_t&) override { return value(); }
  bool binary(binary_t&) override { return value(); }
  bool start_object(std::size_t) override { return enter(); }
  bool start_array(std::size_t) override { return depth_ > 0 && enter(); }
  bool end_object() override { return leave(); }
  bool end_array() override { return leave(); }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override {
    return false;
  }

 private:
  bool value() {
    wanted_ = false;
    return depth_ > 0;
  }
  bool enter() {
    wanted_ = false;
    return ++depth_ <= 1000;
  }
  bool leave() {
    --depth_;
    return true;
  }
  int depth_ = 0;
  bool wanted_ = false;
};

}  // namespace

std::string decode_body(std::string_view body, std::string_view encodings, size_t limit) {
  std::vector<std::string> names;  // in the order in which they were put on
  while (!encodings.empty()) {
    const size_t comma = std::min(encodings.find(','), encodings.size());
    std::string name = lower_trimmed(encodings.substr(0, comma));
    encodings.remove_prefix(std::min(comma + 1, encodings.size()));
    if (!name.empty() && name != "identity") names.push_back(std::move(name));
  }
  if (names.size() > kMostEncodings)
    throw ApiError(415, fmt::format("Content-Encoding: more than {} encodings", kMostEncodings));
  std::string text(body);
  for (auto name = names.rbegin(); name != names.rend(); ++name) text = decode(text, *name, limit);
  return text;
}

std::string model_named(const HttpRequest& request, size_t limit) {
  const std::string_view encodings = request.header("content-encoding");
  ModelFinder finder;
  if (encodings.empty())
    text::read_json(request.body, finder);
  else
    text::read_json(decode_body(request.body, encodings, limit), finder);
  return std::move(finder.found);
}

Json request_json(const Call& call) {
  auto [text, held] = call.exchange->take_body();
  const std::string_view encodings = call.exchange->request().header("content-encoding");
  if (!encodings.empty()) {
    text = decode_body(text, encodings, call.max_body_bytes);
    if (text.size() > held.bytes() && !held.grow(text.size() - held.bytes())) throw out_of_memory();
  }
  Json body = parse_json(text, [&call](size_t bytes) { call.take_for_work(bytes); });
  call.record->model_asked_for(body);
  return body;
}

}  // namespace sluice::server
