// The door: JSON in, text out, and every failure turned into a TemplateError.
#include "text/jinja/template.h"

#include <new>
#include <nlohmann/json.hpp>

#include "text/exact_json.h"
#include "text/jinja/failure.h"
#include "text/jinja/interp.h"
#include "text/jinja/parser.h"

namespace sluice::text::jinja {

namespace {

using Json = nlohmann::ordered_json;

/// A number that is kept as text, because no value here holds it.
Value written_number(Heap& heap, const Json& json, const std::string& text) {
  const Value string = heap.string(text);
  return Value::written_number(with_nearest_numbers(json).get<double>(), string.string_ref());
}

Value from_json(Heap& heap, const Json& json) {
  const Heap::Level level(heap);
  heap.step();
  switch (json.type()) {
    case Json::value_t::null: return Value::none();
    case Json::value_t::boolean: return Value::boolean(json.get<bool>());
    case Json::value_t::number_integer: return Value::integer(json.get<int64_t>());
    case Json::value_t::number_unsigned:
      if (json.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX))
        return written_number(heap, json, std::to_string(json.get<uint64_t>()));
      return Value::integer(json.get<int64_t>());
    case Json::value_t::binary:
      if (const auto digits = number_text(json)) return written_number(heap, json, std::string(*digits));
      refuse("a variable holds what JSON cannot");
    case Json::value_t::number_float: return Value::real(json.get<double>());
    case Json::value_t::string: return heap.string(json.get_ref<const std::string&>());
    case Json::value_t::array: {
      heap.check_room(json.size(), sizeof(Value));
      std::vector<Value> items;
      items.reserve(json.size());
      for (const Json& item : json) items.push_back(from_json(heap, item));
      return heap.list(std::move(items));
    }
    case Json::value_t::object: {
      Dict dict;
      for (const auto& [key, value] : json.items()) dict.set(heap.string(key), from_json(heap, value));
      return heap.dict(std::move(dict));
    }
    default: refuse("a variable holds what JSON cannot");
  }
}

}  // namespace

std::tm local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm out{};
  localtime_r(&now, &out);
  return out;
}

TemplateError::TemplateError(int line, const std::string& message, bool raised)
    : Error(fmt::format("line {}: {}", line, message)), line_(line), message_(message), raised_(raised) {}

struct Template::Impl {
  Symbols symbols;
  Body body;
};

Template::Template(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Template::Template(Template&&) noexcept = default;
Template& Template::operator=(Template&&) noexcept = default;
Template::~Template() = default;

Template Template::parse(std::string_view source) {
  try {
    if (source.size() > kMaxSourceBytes) refuse("the template has more than {} bytes", kMaxSourceBytes);
    auto impl = std::make_unique<Impl>();
    impl->body = jinja::parse(source, impl->symbols);
    return Template(std::move(impl));
  } catch (const Failure& failure) {
    throw TemplateError(std::max(failure.line, 1), failure.message, false);
  }
}

std::string Template::render(const Json& variables, const RenderOptions& options) const {
  const Limits& limits = options.limits;
  try {
    Heap heap(limits.steps, limits.depth, limits.memory_bytes, limits.seconds);
    Interp in(heap, impl_->symbols, options);
    for (Symbol symbol = 0; symbol < impl_->symbols.size();
         ++symbol) {  // names that it never mentions cost nothing
      const std::string& name = impl_->symbols.name(symbol);
      const auto found = variables.find(name);
      const Value value = found != variables.end() ? from_json(heap, *found) : find_global(heap, name);
      if (!value.is_undefined()) in.set(symbol, value);
    }
    return in.render(impl_->body);
  } catch (const Failure& failure) {
    throw TemplateError(std::max(failure.line, 1), failure.message, failure.raised);
  } catch (const std::bad_alloc&) {
    throw TemplateError(1, "there is not enough memory to render the template", false);
  }
}

}  // namespace sluice::text::jinja
