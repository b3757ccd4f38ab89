// Lists and ranges of whole numbers on the command line, as llama-bench takes them: "1,2,4", "512-2048+512",
// "1-8*2".
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sluice::cli {

/// The numbers of a list whose items are a number, FIRST-LAST (step 1), FIRST-LAST+STEP or FIRST-LAST*FACTOR.
/// Throws UsageError that names the flag when the text is none, when a number is below `least` or beyond
/// 2^30, or when there are more than 1,000.
std::vector<int64_t> number_list(const std::string& flag, const std::string& text, int64_t least);

}  // namespace sluice::cli
