// Arguments matched with the parameters of a built-in filter, test, method or function.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/interp.h"

namespace sluice::text::jinja {

class Bound {
 public:
  /// Parameters in order; those before `required` must be given. Throws Failure that names `what`.
  Bound(std::string_view what, const Arguments& arguments, std::initializer_list<std::string_view> names = {},
        size_t required = 0);

  /// Null when it was not given.
  const Value* operator[](size_t index) const { return values_[index]; }
  /// The value, or none.
  Value value(size_t index) const { return values_[index] ? *values_[index] : Value::none(); }
  /// Throws Failure when the argument is there but is no such thing. None counts as not given.
  bool flag(size_t index, bool otherwise) const;
  int64_t integer(size_t index, int64_t otherwise) const;
  std::string string(size_t index, std::string_view otherwise) const;
  /// The argument is there and not none.
  bool given(size_t index) const { return values_[index] && !values_[index]->is_none(); }

 private:
  std::string what_;
  std::vector<std::string_view> names_;
  std::vector<const Value*> values_;
};

}  // namespace sluice::text::jinja
