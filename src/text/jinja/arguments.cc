// Arguments matched with parameters.
#include "text/jinja/arguments.h"

#include <algorithm>

#include "text/jinja/failure.h"

namespace sluice::text::jinja {

Bound::Bound(std::string_view what, const Arguments& arguments, std::initializer_list<std::string_view> names,
             size_t required)
    : what_(what), names_(names), values_(names.size(), nullptr) {
  if (arguments.positional.size() > names.size())
    refuse("{} takes at most {} arguments, {} given", what, names.size(), arguments.positional.size());
  for (size_t i = 0; i < arguments.positional.size(); ++i) values_[i] = &arguments.positional[i];
  for (const auto& [name, value] : arguments.named) {
    const auto at = static_cast<size_t>(std::find(names_.begin(), names_.end(), name) - names_.begin());
    if (at == names_.size()) refuse("{} has no argument '{}'", what, name);
    if (values_[at] != nullptr) refuse("{}: the argument '{}' is given twice", what, name);
    values_[at] = &value;
  }
  for (size_t i = 0; i < required; ++i) {
    if (values_[i] == nullptr) refuse("{} needs the argument '{}'", what, names_[i]);
  }
}

bool Bound::flag(size_t index, bool otherwise) const {
  return given(index) ? truthy(*values_[index]) : otherwise;
}

int64_t Bound::integer(size_t index, int64_t otherwise) const {
  if (!given(index)) return otherwise;
  if (!values_[index]->is_integral())
    refuse("{}: '{}' must be an integer, not {}", what_, names_[index], type_name(*values_[index]));
  return values_[index]->as_int();
}

std::string Bound::string(size_t index, std::string_view otherwise) const {
  if (!given(index)) return std::string(otherwise);
  if (!values_[index]->is_string())
    refuse("{}: '{}' must be a string, not {}", what_, names_[index], type_name(*values_[index]));
  return values_[index]->as_string();
}

}  // namespace sluice::text::jinja
