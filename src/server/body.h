// A request's body as JSON, whatever encoding it came in (Content-Encoding: gzip, deflate, zstd, br).
#pragma once

#include "server/generation.h"

namespace sluice::server {

/// The body without its encodings, of at most `limit` bytes at any time. Throws ApiError: 415 for an encoding
/// that is not known, 413 for more bytes, 400 for what cannot be decoded.
std::string decode_body(std::string_view body, std::string_view encodings, size_t limit);

/// The model that a request's body names; empty: none. Reads no further than that, and of a body that is no
/// JSON nothing: whoever reads all of it says so. Throws ApiError for an encoding that cannot be undone.
std::string model_named(const HttpRequest& request, size_t limit);

/// The value of a call's body, which is let go: what its value and what comes of it take is counted as the
/// call's work. Throws ApiError.
Json request_json(const Call& call);

}  // namespace sluice::server
