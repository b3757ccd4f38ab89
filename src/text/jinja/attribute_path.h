// What filters like map, sort and sum look up in each item, and the keys they sort by.
#pragma once

#include <vector>

#include "text/jinja/interp.h"

namespace sluice::text::jinja {

/// "a.b.0" or an index: items of items, integers being indices. None is the item itself.
class AttributePath {
 public:
  AttributePath(Interp& in, const Value& path);
  /// With `otherwise`, undefined steps become that value.
  Value of(Interp& in, const Value& item, const Value* otherwise = nullptr) const;

 private:
  std::vector<Value> parts_;
};

/// A string in lower case; anything else as it is.
Value lower_case(Heap& heap, const Value& value);

struct Keyed {
  Value key, value;
};

/// Values with what they are compared by: an attribute ("a" or several, "a,b"), without regard to case or
/// with.
std::vector<Keyed> keyed(Interp& in, std::vector<Value> values, const Value& attribute, bool case_sensitive);
/// Stable, in either direction. Throws Failure when two keys cannot be compared.
void sort_by_key(Heap& heap, std::vector<Keyed>& items, bool reverse);
std::vector<Value> values_of(std::vector<Keyed> items);

}  // namespace sluice::text::jinja
