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

/// The format that a file's name ends with, in capitals; or all of the name.
std::string quant_of(const std::string& stem) {
  const std::string name = with(stem, small);
  for (size_t at = 0; at <= name.size(); ++at) {
    const bool begins = at == 0 || std::string_view("-._").find(name[at - 1]) != std::string_view::npos;
    if (begins && is_format(std::string_view(name).substr(at))) return with(stem.substr(at), capital);
  }
  return stem;
}

std::string without_suffix(std::string_view path) {
  const size_t slash = path.rfind('/');
  if (slash != std::string_view::npos) path.remove_prefix(slash + 1);
  return std::string(path.substr(0, path.size() - kSuffix.size()));
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

bool is_file(const Model& model, std::string_view name) {
  const std::string& path = model.files.front().path;
  return is_end(path, name) || is_end(part_of(path).whole, name);
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
    model.quant = quant_of(without_suffix(part_of(model.files.front().path).whole));
    models.push_back(std::move(model));
  }
  std::ranges::stable_sort(models, {}, &Model::bytes);
  return models;
}

const Model& choose(const std::vector<Model>& models, const ModelName& name, const Taste& taste) {
  if (models.empty()) fail("{}: holds no GGUF model", name.repository.text());
  std::vector<const Model*> meant;
  const auto take = [&](auto matches) {
    if (!meant.empty()) return;
    for (const Model& model : models)
      if (matches(model)) meant.push_back(&model);
  };
  if (with(name.quant, small).ends_with(kSuffix)) {
    take([&](const Model& model) { return is_file(model, name.quant); });
    if (meant.empty())
      fail("{}: no file {}; there are {}", name.repository.text(), name.quant, list_of(models));
  } else if (!name.quant.empty()) {
    take([&](const Model& model) { return same(model.quant, name.quant); });
    take([&](const Model& model) { return same(model.quant, "UD-" + name.quant); });
    if (meant.empty()) fail("{}: no {}; there are {}", name.repository.text(), name.quant, list_of(models));
  }
  if (!name.quant.empty()) {
    if (meant.size() == 1) return *meant.front();
    std::string files;
    for (const Model* model : meant)
      files += fmt::format("{}{}", files.empty() ? "" : ", ", model->files.front().path);
    fail("{}: {} files are {}: {}; name one as {}:FILE", name.repository.text(), meant.size(), name.quant,
         files, name.repository.text());
  }
  const Model *usual = nullptr, *best = nullptr;
  for (const Model& model : models) {
    if (same(model.quant, kDefault) && usual == nullptr) usual = &model;
    const bool read = !taste.reads || taste.reads(model.quant);
    if (read && model.bytes() <= taste.available_bytes) best = &model;
  }
  if (usual != nullptr && (usual->bytes() <= taste.available_bytes || best == nullptr)) return *usual;
  return best != nullptr ? *best : models.front();
}

}  // namespace sluice::hub
