// The values of a template, with Python's distinctions: true is no 1, 2 is no 2.0, undefined is no none.
// A value is small and cheap to copy; strings are shared, containers belong to the Heap of the rendering.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace sluice::text::jinja {

class Heap;
class Interp;
class Scope;
struct Arguments;
struct MacroNode;
struct ForNode;

/// A shared text and the memory account that it is on (null: a constant of the template).
struct String {
  String(std::string text_in, Heap* heap_in) : text(std::move(text_in)), heap(heap_in) {}
  String(const String&) = delete;
  String& operator=(const String&) = delete;
  ~String();
  const std::string text;
  Heap* heap;
};
using StringRef = std::shared_ptr<const String>;

/// Kinds, in the order of Value's variant.
enum class Kind : uint8_t {
  Undefined,
  None,
  Bool,
  Int,
  Float,
  String,
  List,
  Dict,
  Namespace,
  Function,
  Loop
};

struct List;
class Dict;
struct Namespace;
struct Function;
struct Loop;

class Value {
 public:
  Value() = default;  ///< undefined
  static Value none() { return Value(Data(std::in_place_index<1>)); }
  static Value boolean(bool b) { return Value(Data(std::in_place_index<2>, b)); }
  static Value integer(int64_t i) { return Value(Data(std::in_place_index<3>, i)); }
  static Value real(double d) { return Value(Data(std::in_place_index<4>, d)); }
  /// A number that no double holds: it calculates as the nearest one and prints as `text`.
  static Value written_number(double nearest, StringRef text) {
    return Value(Data(std::in_place_index<11>, Written{nearest, std::move(text)}));
  }
  static Value undefined(StringRef why) {
    return Value(Data(std::in_place_index<0>, Missing{std::move(why)}));
  }
  explicit Value(StringRef s) : data_(std::move(s)) {}
  explicit Value(List* l) : data_(l) {}
  explicit Value(Dict* d) : data_(d) {}
  explicit Value(Namespace* n) : data_(n) {}
  explicit Value(Function* f) : data_(f) {}
  explicit Value(Loop* l) : data_(l) {}

  Kind kind() const { return data_.index() == 11 ? Kind::Float : static_cast<Kind>(data_.index()); }
  bool is(Kind kind_in) const { return kind() == kind_in; }
  bool is_undefined() const { return is(Kind::Undefined); }
  bool is_none() const { return is(Kind::None); }
  bool is_string() const { return is(Kind::String); }
  /// bool, int or float: what arithmetic takes.
  bool is_number() const { return is(Kind::Bool) || is(Kind::Int) || is(Kind::Float); }
  /// bool or int.
  bool is_integral() const { return is(Kind::Bool) || is(Kind::Int); }

  /// The following need a value of that kind.
  bool as_bool() const { return *std::get_if<2>(&data_); }
  int64_t as_int() const { return is(Kind::Bool) ? (as_bool() ? 1 : 0) : *std::get_if<3>(&data_); }
  double as_double() const {
    if (const auto* number = std::get_if<11>(&data_)) return number->nearest;
    return is(Kind::Float) ? *std::get_if<4>(&data_) : static_cast<double>(as_int());
  }
  /// Of a written number: its text; null for all others.
  const std::string* written() const {
    const auto* number = std::get_if<11>(&data_);
    return number ? &number->text->text : nullptr;
  }
  const std::string& as_string() const { return (*std::get_if<StringRef>(&data_))->text; }
  StringRef string_ref() const { return *std::get_if<StringRef>(&data_); }
  List& as_list() const { return **std::get_if<List*>(&data_); }
  Dict& as_dict() const { return **std::get_if<Dict*>(&data_); }
  Namespace& as_namespace() const { return **std::get_if<Namespace*>(&data_); }
  Function& as_function() const { return **std::get_if<Function*>(&data_); }
  Loop& as_loop() const { return **std::get_if<Loop*>(&data_); }
  /// What using this undefined value says.
  std::string why_undefined() const;

  /// Of a container: which one it is; null for all others.
  const void* address() const;
  /// Python's `is`, as far as a template can tell: the same container, or equal scalars of one kind.
  bool same_as(const Value& other) const;

 private:
  struct Missing {
    StringRef why;
  };
  struct Written {
    double nearest;
    StringRef text;
  };
  using Data = std::variant<Missing, std::monostate, bool, int64_t, double, StringRef, List*, Dict*,
                            Namespace*, Function*, Loop*, Written>;
  explicit Value(Data data) : data_(std::move(data)) {}
  Data data_;
};

/// Which of Python's sequences a List stands for: they print and behave differently.
enum class Flavour : uint8_t {
  List,
  Tuple,
  Group,      ///< a tuple (grouper, list) with these attributes
  Range,      ///< range(...)
  Keys,       ///< dict.keys() and its kin: no index, no JSON
  Values,     //
  Items,      //
  Generator,  ///< what filters like map return: can be walked once, has no length
};

struct List {
  std::vector<Value> items;
  Flavour flavour = Flavour::List;
  size_t taken = 0;  ///< items of a Generator that have been walked
  bool is_view() const { return flavour >= Flavour::Keys && flavour <= Flavour::Items; }
  bool is_tuple() const { return flavour == Flavour::Tuple || flavour == Flavour::Group; }
};

/// A dict in order of insertion. Keys are none, booleans, numbers and strings; 1, 1.0 and true are one key.
class Dict {
 public:
  using Entry = std::pair<Value, Value>;
  const std::vector<Entry>& entries() const { return entries_; }
  size_t size() const { return entries_.size(); }
  /// Null when there is no such key. Never fails: what can be no key is not there.
  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
  /// Keeps the place of a key that is there. Throws Failure if the value can be no key.
  void set(const Value& key, Value value);

 private:
  static constexpr size_t kScanned = 8;  ///< up to this many entries a scan is faster than an index
  std::vector<Entry> entries_;
  std::map<std::string_view, size_t>
      index_;  ///< of the string keys, once there are more than kScanned entries
};

struct Namespace {
  Dict attributes;
};

/// Anything that can be called: a built-in, a method with its object, a macro.
struct Function {
  using Native = Value (*)(Interp&, Function& function, Arguments& arguments);
  std::string name;
  Native native = nullptr;
  Value (*method)(Interp&, const Value& self, Arguments& arguments) = nullptr;
  Value self;                         ///< of a method: its object; of cycler and joiner: what they hold
  int64_t state = 0;                  ///< of cycler and joiner
  const MacroNode* macro = nullptr;   ///< of a macro or a call block
  std::shared_ptr<Scope> scope = {};  ///< where the macro was defined
};

/// The variable `loop`.
struct Loop {
  List* items = nullptr;
  size_t index0 = 0;
  int depth0 = 0;
  Value last_changed;             ///< the arguments of the last loop.changed(...); undefined before the first
  const ForNode* node = nullptr;  ///< of a recursive loop, which can be called
  std::shared_ptr<Scope> scope = {};
};

/// The name of the value's type in Python: "str", "NoneType".
std::string_view type_name(const Value& value);

/// Python's bool(value).
bool truthy(const Value& value);

}  // namespace sluice::text::jinja
