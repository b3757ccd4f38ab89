#include "cli/kernel_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
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

namespace fs = std::filesystem;

/// A kernel's file in the tree that this program was built in, if that is at hand.
fs::path path_of(const std::string& file) {
  return file.rfind("src/", 0) == 0 ? executable_folder() / "../../.." / file : fs::path();
}
std::string text_of(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error) ? read_file(path.string()) : "";
}

/// The definitions of the functions that a kernel starts on the device, where they are found.
std::string device_source(const program::BoundKernel& kernel, int most) {
  const fs::path folder = path_of(kernel.file).parent_path();
  std::vector<fs::path> files;
  std::error_code error;
  for (const fs::path& each : {folder, folder / "../prim"}) {
    for (const fs::directory_entry& entry : fs::directory_iterator(each, error))
      files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  std::string text;
  for (const std::string& function : kernel.functions) {
    for (const fs::path& file : files) {
      if (file.extension() != ".cu" && file.extension() != ".cuh") continue;
      const std::string found = device_function(text_of(file), function, most);
      if (!found.empty()) text += fmt::format("  in {}\n{}", file.filename().string(), found);
    }
  }
  return text;
}

bool is_word(char c) {
  return c == '_' || (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

/// The function in `{"name", how it is shared, function`; empty: a line has nothing like it.
std::string named_function(std::string_view line) {
  for (const std::string_view part : {"{\"", "\",", ","}) {
    const size_t at = line.find(part);
    if (at == std::string_view::npos) return "";
    line.remove_prefix(at + part.size());
  }
  line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
  return {line.begin(), std::find_if_not(line.begin(), line.end(), is_word)};
}

/// Where a kernel's definition begins: at the last __global__ before its name and parameters without an end
/// of something else in between.
size_t definition_of(std::string_view text, const std::string& name) {
  for (size_t at = text.find(name + "("); at != std::string_view::npos; at = text.find(name + "(", at + 1)) {
    if (at == 0 || is_word(text[at - 1])) continue;
    const size_t end = text.find_last_of("{};", at), global = text.rfind("__global__", at);
    if (global != std::string_view::npos && (end == std::string_view::npos || end < global)) return global;
  }
  return std::string_view::npos;
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
  if (const std::string function = named_function(lines[definition]); !function.empty()) {
    const std::string opening = " " + function + "(";
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

std::string device_function(const std::string& text, const std::string& name, int most) {
  const size_t definition = definition_of(text, name);
  if (name.empty() || definition == std::string::npos) return "";
  std::istringstream stream(text);
  const auto first =
      1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(definition), '\n');
  std::string out;
  int number = 1;
  for (std::string line; std::getline(stream, line) && number < first + most; ++number) {
    if (number < first) continue;
    out += fmt::format("{:>5}  {}\n", number, line);
    if (line == "}") break;
  }
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
    std::string source = device_source(row->kernel, kLines);
    if (source.empty()) source = excerpt(text_of(path_of(row->kernel.file)), row->kernel.line, kLines);
    text +=
        fmt::format("\n{} at {}\n{}", row->kernel.name.substr(0, row->kernel.name.find(':')), place,
                    source.empty() ? "  (its source is not at hand: this program was installed)\n" : source);
  }
  return terminal_safe(text);
}

}  // namespace sluice::cli
