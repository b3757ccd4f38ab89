#include "hub/choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "base/error.h"

namespace sluice::hub {
namespace {

constexpr const char* kDefault = "Q4_K_M";
constexpr std::string_view kSuffix = ".gguf";

char small(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }
char capital(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c; }

bool same(std::string_view a, std::string_view b) {
  return std::ranges::equal(a, b, [](char x, char y) { return small(x) == small(y); });
}

std::string with(std::string_view text, char (*change)(char)) {
  std::string out(text);
  std::ranges::transform(out, out.begin(), change);
  return out;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// Whether a name in small letters is one of a number format, or of a mixture: "iq4_xs", "ud-q4_k_xl",
/// "mxfp4_moe".
bool is_format(std::string_view name) {
  if (name.starts_with("ud-")) name.remove_prefix(3);
  for (const std::string_view whole : {"nvfp4", "bf16", "f16", "fp16", "f32", "fp32"})
    if (name == whole) return true;
  if (!std::ranges::all_of(name, [](char c) { return is_digit(c) || c == '_' || (c >= 'a' && c <= 'z'); }))
    return false;
  if (name.starts_with("mxfp4")) return true;
  if (name.starts_with('i') || name.starts_with('t')) name.remove_prefix(1);
  return name.size() >= 2 && name[0] == 'q' && is_digit(name[1]);
}

bool begins_at(std::string_view name, size_t at) {
  return at == 0 || std::string_view("-._").find(name[at - 1]) != std::string_view::npos;
}

/// The format that a name ends with, in capitals; empty: none.
std::string format_of(std::string_view name) {
  const std::string smalls = with(name, small);
  for (size_t at = 0; at < name.size(); ++at)
    if (begins_at(name, at) && is_format(std::string_view(smalls).substr(at)))
      return with(name.substr(at), capital);
  return "";
}

/// Whether a format stands in a name, with more behind it: "M-Q4_K_M-imat".
bool has_format(std::string_view name, const std::string& format) {
  const std::string smalls = with(name, small), wanted = with(format, small);
  if (!is_format(wanted)) return false;
  for (size_t at = smalls.find(wanted); at != std::string::npos; at = smalls.find(wanted, at + 1)) {
    const size_t end = at + wanted.size();
    if (begins_at(smalls, at) && (end == smalls.size() || smalls[end] == '-' || smalls[end] == '.'))
      return true;
  }
  return false;
}

/// The last part of a path, which is left without it.
std::string_view take_last(std::string_view& path) {
  const size_t slash = path.rfind('/');
  const std::string_view last = slash == std::string_view::npos ? path : path.substr(slash + 1);
  path = path.substr(0, slash == std::string_view::npos ? 0 : slash);
  return last;
}

/// The format that a file's name ends with, or its folder's (Q4_K_M/model.gguf); or all of the file's name.
std::string quant_of(std::string_view path) {
  std::string_view stem = take_last(path);
  stem.remove_suffix(kSuffix.size());
  std::string format = format_of(stem);
  if (format.empty()) format = format_of(take_last(path));
  return format.empty() ? std::string(stem) : format;
}

/// "NAME-00002-of-00005".
struct Part {
  std::string whole;  ///< the path without what numbers it
  size_t number = 0, of = 0;
};

Part part_of(const std::string& path) {
  constexpr std::string_view kForm = "-00000-of-00000.gguf";  // 0: any digit
  if (path.size() <= kForm.size()) return {path, 1, 1};
  const size_t stem = path.size() - kForm.size();
  const std::string end = path.substr(stem);
  const auto fits = [](char form, char c) { return form == '0' ? is_digit(c) : small(c) == form; };
  if (!std::ranges::equal(kForm, end, fits)) return {path, 1, 1};
  return {path.substr(0, stem) + std::string(kSuffix), std::stoul(end.substr(1, 5)),
          std::stoul(end.substr(10, 5))};
}

/// "Q4_K_M (17.20 GB), Q8_0 (31.00 GB)".
std::string list_of(const std::vector<Model>& models) {
  constexpr size_t kShown = 40;
  std::string out;
  for (size_t i = 0; i < std::min(models.size(), kShown); ++i)
    out += fmt::format("{}{} ({})", i > 0 ? ", " : "", models[i].quant, size_text(models[i].bytes()));
  if (models.size() > kShown) out += fmt::format(" and {} more", models.size() - kShown);
  return out;
}

/// Whether a name is this path, or its end behind a slash.
bool is_end(std::string_view path, std::string_view name) {
  return path == name ||
         (path.size() > name.size() && path.ends_with(name) && path[path.size() - name.size() - 1] == '/');
}

/// A projector of pictures, an importance matrix, or a block of multi-token prediction alone: mtp-MODEL.gguf,
/// as llama.cpp's converter calls it, or a repository's MTP/MODEL.gguf. path: in small letters.
bool goes_with_a_model(const std::string& path) {
  const auto has = [&path](std::string_view text) { return path.find(text) != std::string::npos; };
  const bool is_block = path.starts_with("mtp/") || path.compare(path.rfind('/') + 1, 4, "mtp-") == 0;
  return is_block || has("mmproj") || has("imatrix");
}

template <typename Matches>
std::vector<const Model*> those(const std::vector<Model>& models, Matches matches) {
  std::vector<const Model*> out;
  for (const Model& model : models)
    if (matches(model)) out.push_back(&model);
  return out;
}

std::vector<const Model*> files_of(const std::vector<Model>& models, std::string_view name) {
  return those(models, [&](const Model& model) {
    const std::string& path = model.files.front().path;
    return is_end(path, name) || is_end(part_of(path).whole, name);
  });
}

/// Those of a format; where there is none, Unsloth's mixtures around it, then those that only have its name
/// in theirs.
std::vector<const Model*> of_format(const std::vector<Model>& models, const std::string& format) {
  auto out = those(models, [&](const Model& model) { return same(model.quant, format); });
  if (out.empty()) out = those(models, [&](const Model& model) { return same(model.quant, "UD-" + format); });
  if (out.empty()) out = those(models, [&](const Model& model) { return has_format(model.quant, format); });
  return out;
}

}  // namespace

int64_t Model::bytes() const {
  return std::accumulate(files.begin(), files.end(), int64_t{0},
                         [](int64_t sum, const File& file) { return sum + file.size; });
}

std::vector<Model> models_of(const std::vector<File>& files) {
  struct Parts {
    size_t of = 0;
    std::map<size_t, File> files;
  };
  std::map<std::string, Parts> found;
  for (const File& file : files) {
    const std::string name = with(file.path, small);
    if (!name.ends_with(kSuffix) || goes_with_a_model(name)) continue;
    const Part part = part_of(file.path);
    Parts& parts = found[fmt::format("{} of {}", part.whole, part.of)];
    parts.of = part.of;
    if (part.number >= 1 && part.number <= part.of) parts.files[part.number] = file;
  }
  std::vector<Model> models;
  for (auto& [name, parts] : found) {
    if (parts.files.empty() || parts.files.size() != parts.of) continue;
    Model model;
    for (auto& [number, file] : parts.files) model.files.push_back(file);
    model.quant = quant_of(part_of(model.files.front().path).whole);
    models.push_back(std::move(model));
  }
  std::ranges::stable_sort(models, {}, &Model::bytes);
  return models;
}

const Model& choose(const std::vector<Model>& models, const ModelName& name, const Taste& taste) {
  if (models.empty()) fail("{}: holds no GGUF model", name.repository.text());
  if (!name.quant.empty()) {
    const bool is_path = with(name.quant, small).ends_with(kSuffix);
    const std::vector<const Model*> meant =
        is_path ? files_of(models, name.quant) : of_format(models, name.quant);
    if (meant.size() == 1) return *meant.front();
    if (meant.empty())
      fail("{}: no {}{}; there are {}", name.repository.text(), is_path ? "file " : "", name.quant,
           list_of(models));
    std::string files;
    for (const Model* model : meant)
      files += fmt::format("{}{}", files.empty() ? "" : ", ", model->files.front().path);
    fail("{}: {} files are {}: {}; name one as {}:FILE", name.repository.text(), meant.size(), name.quant,
         files, name.repository.text());
  }
  const std::vector<const Model*> usuals = of_format(models, kDefault);
  const Model *usual = usuals.empty() ? nullptr : usuals.front(), *best = nullptr;
  for (const Model& model : models) {
    const bool read = !taste.reads || taste.reads(model.quant);
    if (read && model.bytes() <= taste.available_bytes) best = &model;
  }
  if (usual != nullptr && (usual->bytes() <= taste.available_bytes || best == nullptr)) return *usual;
  return best != nullptr ? *best : models.front();
}

}  // namespace sluice::hub
