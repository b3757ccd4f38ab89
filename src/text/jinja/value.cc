// Values and containers: what needs no rendering to be known.
#include <algorithm>
#include <ctime>

#include "base/interruption.h"
#include "text/jinja/value.h"

#include "text/jinja/failure.h"
#include "text/jinja/heap.h"
#include "text/jinja/operators.h"

namespace sluice::text::jinja {

namespace {

/// What a string costs beside its bytes: the shared block and the value that holds it.
constexpr size_t kStringCost = 64;
/// What a container costs beside its items.
constexpr size_t kContainerCost = 96;
constexpr size_t kEntryCost = 2 * sizeof(Value) + 64;  // with its place in an index

}  // namespace

String::~String() {
  if (heap != nullptr) heap->give_back(text.size() + kStringCost);
}

std::string Value::why_undefined() const {
  const Missing* missing = std::get_if<Missing>(&data_);
  return missing != nullptr && missing->why ? missing->why->text : "the value is undefined";
}

bool Value::same_as(const Value& other) const {
  if (kind() != other.kind()) return false;
  switch (kind()) {
    case Kind::Undefined: return false;
    case Kind::None: return true;
    case Kind::Bool: return as_bool() == other.as_bool();
    case Kind::Int: return as_int() == other.as_int();
    case Kind::Float: return as_double() == other.as_double();
    case Kind::String: return as_string() == other.as_string();
    default: return data_.index() == other.data_.index() && address() == other.address();
  }
}

const void* Value::address() const {
  return std::visit(
      [](const auto& held) -> const void* {
        if constexpr (std::is_pointer_v<std::decay_t<decltype(held)>>) return held;
        return nullptr;
      },
      data_);
}

const Value* Dict::find(std::string_view key) const {
  if (entries_.size() > kScanned) {
    const auto found = index_.find(key);
    return found == index_.end() ? nullptr : &entries_[found->second].second;
  }
  for (const Entry& entry : entries_) {
    if (entry.first.is_string() && entry.first.as_string() == key) return &entry.second;
  }
  return nullptr;
}

const Value* Dict::find(const Value& key) const {
  if (key.is_string()) return find(key.as_string());
  for (const Entry& entry : entries_) {
    if (key.is_number() && entry.first.is_number() && numbers_equal(key, entry.first)) return &entry.second;
    if (key.is_none() && entry.first.is_none()) return &entry.second;
  }
  return nullptr;
}

void Dict::set(const Value& key, Value value) {
  if (!key.is_none() && !key.is_number() && !key.is_string())
    refuse("a key of a dict is of type '{}'; only strings, numbers, booleans and none can be",
           type_name(key));
  if (const Value* found = find(key)) {
    *const_cast<Value*>(found) = std::move(value);
    return;
  }
  entries_.emplace_back(key, std::move(value));
  const auto note = [this](size_t at) {
    if (entries_[at].first.is_string()) index_.emplace(entries_[at].first.as_string(), at);
  };
  if (entries_.size() == kScanned + 1) {
    for (size_t i = 0; i < entries_.size(); ++i) note(i);
  } else if (entries_.size() > kScanned) {
    note(entries_.size() - 1);
  }
}

namespace {

// Time that this thread has had a processor: that others are busy is no fault of the template.
double thread_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

}  // namespace

Heap::Heap(int64_t steps, int depth, size_t memory_bytes, double seconds)
    : steps_left_(steps),
      next_look_(steps),
      depth_left_(depth),
      bytes_left_(memory_bytes),
      end_(thread_seconds() + seconds) {}

void Heap::look_at_clock() {
  constexpr int64_t kStepsBetweenLooks = 20'000;  // a millisecond, or some
  if (steps_left_ < 0) refuse("the template takes too many steps");
  Interruptible::look();
  if (thread_seconds() > end_) refuse("the template takes too long");
  next_look_ = std::max<int64_t>(steps_left_ - kStepsBetweenLooks, 0);
}
void Heap::out_of_memory() { refuse("the template uses too much memory"); }
void Heap::too_deep() { refuse("the template is nested or recurses too deeply"); }

Value Heap::string(std::string text) { return Value(shared(std::move(text))); }

StringRef Heap::shared(std::string text) {
  take(text.size() + kStringCost);
  try {
    return std::make_shared<const String>(std::move(text), this);
  } catch (...) {
    give_back(text.size() + kStringCost);
    throw;
  }
}

Value Heap::list(std::vector<Value> items, Flavour flavour) {
  step(std::max<int64_t>(1, static_cast<int64_t>(items.size())));
  take(kContainerCost + items.capacity() * sizeof(Value));
  lists_.push_back({std::move(items), flavour});
  return Value(&lists_.back());
}

Value Heap::dict(Dict entries) {
  step(std::max<int64_t>(1, static_cast<int64_t>(entries.size())));
  take(kContainerCost + entries.size() * kEntryCost);
  dicts_.push_back(std::move(entries));
  return Value(&dicts_.back());
}

Value Heap::name_space(Dict attributes) {
  take(kContainerCost + attributes.size() * kEntryCost);
  namespaces_.push_back({std::move(attributes)});
  return Value(&namespaces_.back());
}

Value Heap::function(Function function) {
  take(kContainerCost + sizeof(Function));
  functions_.push_back(std::move(function));
  return Value(&functions_.back());
}

Value Heap::loop(Loop loop) {
  take(kContainerCost + sizeof(Loop));
  loops_.push_back(std::move(loop));
  return Value(&loops_.back());
}

Value Heap::undefined(std::string why) { return Value::undefined(shared(std::move(why))); }

std::string_view type_name(const Value& value) {
  switch (value.kind()) {
    case Kind::Undefined: return "Undefined";
    case Kind::None: return "NoneType";
    case Kind::Bool: return "bool";
    case Kind::Int: return "int";
    case Kind::Float: return "float";
    case Kind::String: return "str";
    case Kind::Dict: return "dict";
    case Kind::Namespace: return "Namespace";
    case Kind::Function: return "function";
    case Kind::Loop: return "LoopContext";
    case Kind::List: break;
  }
  switch (value.as_list().flavour) {
    case Flavour::List: return "list";
    case Flavour::Tuple:
    case Flavour::Group: return "tuple";
    case Flavour::Range: return "range";
    case Flavour::Keys: return "dict_keys";
    case Flavour::Values: return "dict_values";
    case Flavour::Items: return "dict_items";
    case Flavour::Generator: return "generator";
  }
  return "object";
}

bool truthy(const Value& value) {
  switch (value.kind()) {
    case Kind::Undefined:
    case Kind::None: return false;
    case Kind::Bool: return value.as_bool();
    case Kind::Int: return value.as_int() != 0;
    case Kind::Float: return value.as_double() != 0;
    case Kind::String: return !value.as_string().empty();
    case Kind::List: return value.as_list().flavour == Flavour::Generator || !value.as_list().items.empty();
    case Kind::Dict: return value.as_dict().size() != 0;
    case Kind::Namespace:
    case Kind::Function:
    case Kind::Loop: return true;
  }
  return true;
}

}  // namespace sluice::text::jinja
