// The version a user sees.
#pragma once

namespace sluice::cli {

/// "0.1.0 (1a2b3c4)"; without the commit when the source was no git checkout.
const char* version();
/// The commit that it was built from, or an empty string when that is not known.
const char* commit();

}  // namespace sluice::cli
