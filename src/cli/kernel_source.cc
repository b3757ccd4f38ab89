#include "cli/kernel_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <regex>
#include <set>
#include <sstream>
#include <vector>

#include "base/file.h"
#include "cli/assemble.h"
#include "cli/output.h"

namespace sluice::cli {
namespace {

constexpr size_t kKernels = 3;
constexpr int kLines = 40;

/// A kernel's file in the tree that this program was built in; "" where it is not there.
std::string source_of(const std::string& file) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (file.rfind("src/", 0) != 0) return "";
  const fs::path path = executable_folder() / "../../.." / file;
  return fs::is_regular_file(path, error) ? read_file(path.string()) : "";
}

}  // namespace

std::string excerpt(const std::string& text, int line, int most) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string each; std::getline(stream, each);) lines.push_back(each);
  if (line < 1 || line > static_cast<int>(lines.size())) return "";
  const auto definition = static_cast<size_t>(line) - 1;
  std::string out;
  const auto show = [&](size_t i) { out += fmt::format("{:>5}  {}\n", i + 1, lines[i]); };
  // Kernel k{"name", how it is shared, function, ...}: the function stands above, and ends with a brace at
  // the margin.
  std::smatch match;
  static const std::regex kDefinition(R"(\{"[^"]*", *[A-Za-z:]+, *([A-Za-z_0-9]+))");
  if (std::regex_search(lines[definition], match, kDefinition)) {
    const std::string opening = " " + match[1].str() + "(";
    for (size_t i = definition; i-- > 0;) {
      if (lines[i].empty() || lines[i][0] == ' ' || lines[i].find(opening) == std::string::npos) continue;
      for (size_t at = i; at < definition && static_cast<int>(at - i) < most; ++at) {
        show(at);
        if (lines[at] == "}") break;
      }
      break;
    }
  }
  show(definition);
  return out;
}

std::string sources_text(const profile::Report& report) {
  std::vector<const profile::Row*> rows;
  for (const profile::Row& row : report.rows) rows.push_back(&row);
  std::stable_sort(rows.begin(), rows.end(), [](const auto* a, const auto* b) { return a->us > b->us; });
  std::string text;
  std::set<std::string> shown;
  for (const profile::Row* row : rows) {
    const std::string place = fmt::format("{}:{}", row->kernel.file, row->kernel.line);
    if (shown.size() == kKernels || !shown.insert(place).second) continue;
    const std::string source = excerpt(source_of(row->kernel.file), row->kernel.line, kLines);
    text +=
        fmt::format("\n{} at {}\n{}", row->kernel.name, place,
                    source.empty() ? "  (its source is not at hand: this program was installed)\n" : source);
  }
  return terminal_safe(text);
}

}  // namespace sluice::cli
