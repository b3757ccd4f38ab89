// Looking names up in the tables.
#include "text/jinja/tables.h"

#include <initializer_list>
#include <map>

namespace sluice::text::jinja {

namespace {

template <typename Entry>
using Index = std::map<std::string_view, Entry>;

template <typename Entry>
Index<Entry> index_of(std::initializer_list<std::span<const Row<Entry>>> tables) {
  Index<Entry> out;
  for (const auto table : tables) {
    for (const Row<Entry>& row : table) out.emplace(row.name, row.entry);
  }
  return out;
}

template <typename Entry>
Entry find(const Index<Entry>& index, std::string_view name) {
  const auto found = index.find(name);
  return found == index.end() ? nullptr : found->second;
}

}  // namespace

Filter find_filter(std::string_view name) {
  static const Index<Filter> index =
      index_of<Filter>({text_filters(), number_filters(), sequence_filters(), selection_filters()});
  return find(index, name);
}

Method find_method(const Value& self, std::string_view name) {
  static const Index<Method> strings = index_of<Method>({string_methods()});
  static const Index<Method> lists = index_of<Method>({list_methods()});
  static const Index<Method> dicts = index_of<Method>({dict_methods()});
  switch (self.kind()) {
    case Kind::String: return find(strings, name);
    case Kind::Dict: return find(dicts, name);
    case Kind::List: {
      const List& list = self.as_list();
      if (list.flavour == Flavour::List) return find(lists, name);
      if (list.is_tuple() || list.flavour == Flavour::Range)
        return name == "count" || name == "index" ? find(lists, name) : nullptr;
      return nullptr;
    }
    default: return nullptr;
  }
}

}  // namespace sluice::text::jinja
