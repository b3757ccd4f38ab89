// The names that a template mentions, numbered, so that scopes compare numbers.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace sluice::text::jinja {

class Symbols {
 public:
  Symbols()
      : loop(intern("loop")),
        caller(intern("caller")),
        varargs(intern("varargs")),
        kwargs(intern("kwargs")) {}
  uint32_t intern(const std::string& name) {
    const auto [at, added] = numbers_.emplace(name, static_cast<uint32_t>(names_.size()));
    if (added) names_.push_back(name);
    return at->second;
  }
  const std::string& name(uint32_t symbol) const { return names_[symbol]; }
  uint32_t size() const { return static_cast<uint32_t>(names_.size()); }

 private:
  std::vector<std::string> names_;
  std::map<std::string, uint32_t> numbers_;

 public:
  /// The names that loops and macros set.
  const uint32_t loop, caller, varargs, kwargs;
};

}  // namespace sluice::text::jinja
