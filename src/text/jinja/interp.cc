// Scopes, output, assignment and calls.
#include "text/jinja/interp.h"

#include "text/jinja/failure.h"
#include "text/jinja/print.h"

namespace sluice::text::jinja {

Interp::Interp(Heap& heap, const Symbols& symbols, const RenderOptions& options)
    : heap_(heap), symbols_(symbols), options_(options), scope_(std::make_shared<Scope>(nullptr)) {}

std::string Interp::render(const Body& body) {
  Text text(heap_);
  out_ = &text;
  exec(body);
  return text.take();
}

Value Interp::eval(const Expr& expr) {
  heap_.step();
  const Heap::Level level(heap_);
  try {
    return expr.eval(*this);
  } catch (Failure& failure) {
    if (failure.line == 0) failure.line = expr.line;
    throw;
  }
}

Flow Interp::exec(const Body& body) {
  const Heap::Level level(heap_);
  for (const auto& stmt : body) {
    heap_.step();
    try {
      const Flow flow = stmt->exec(*this);
      if (flow != Flow::Next) return flow;
    } catch (Failure& failure) {
      if (failure.line == 0) failure.line = stmt->line;
      throw;
    }
  }
  return Flow::Next;
}

Arguments Interp::evaluate(const ArgumentNodes& nodes) {
  Arguments out;
  for (const ExprPtr& node : nodes.positional) out.positional.push_back(eval(*node));
  for (const auto& [name, node] : nodes.named) out.named.emplace_back(name, eval(*node));
  if (nodes.more_positional) {
    for (Value& value : items_of(heap_, eval(*nodes.more_positional)))
      out.positional.push_back(std::move(value));
  }
  if (nodes.more_named) {
    const Value more = eval(*nodes.more_named);
    if (!more.is(Kind::Dict)) refuse("the argument after ** must be a mapping, not {}", type_name(more));
    for (const auto& [key, value] : more.as_dict().entries()) {
      if (!key.is_string()) refuse("the names of arguments must be strings");
      heap_.pass(out.named.size() * sizeof(out.named[0]));
      for (const auto& given : out.named) {
        if (given.first == key.as_string()) refuse("the argument '{}' is given twice", key.as_string());
      }
      out.named.emplace_back(key.as_string(), value);
    }
  }
  const auto pass = [this](const Value& value) {  // texts are copied, and looked for or at
    if (value.is_string()) heap_.pass(value.as_string().size());
  };
  for (const Value& value : out.positional) pass(value);
  for (const auto& [name, value] : out.named) pass(value);
  return out;
}

Value Interp::lookup(Symbol symbol) {
  for (const Scope* scope = scope_.get(); scope != nullptr; scope = scope->parent()) {
    heap_.pass(scope->size() * sizeof(std::pair<Symbol, Value>));
    if (const Value* found = scope->find(symbol)) return *found;
  }
  return heap_.undefined("'" + symbols_.name(symbol) + "' is undefined");
}

void Interp::assign(const Target& target, const Value& value) {
  if (target.is_tuple) return assign_tuple(target, value);
  if (target.attribute.empty()) return set(target.symbol, value);
  const Value object = lookup(target.symbol);
  if (!object.is(Kind::Namespace)) refuse("cannot assign attribute on non-namespace object");
  Dict& attributes = object.as_namespace().attributes;
  if (attributes.find(target.attribute) == nullptr) heap_.take(2 * sizeof(Value) + target.attribute.size());
  attributes.set(heap_.string(target.attribute), value);
}

void Interp::assign_tuple(const Target& target, const Value& value) {
  const Heap::Level level(heap_);
  const std::vector<Value> values = items_of(heap_, value);
  const size_t expected = target.items.size();
  if (values.size() < expected)
    refuse("not enough values to unpack (expected {}, got {})", expected, values.size());
  if (values.size() > expected) refuse("too many values to unpack (expected {})", expected);
  for (size_t i = 0; i < expected; ++i) assign(target.items[i], values[i]);
}

void Interp::write(std::string_view text) {
  out_->append(text);
  if (out_->size() > options_.limits.output_bytes) refuse("the output is too long");
}

void Interp::write(const Value& value) {
  if (value.is_string()) return write(value.as_string());
  print_str(*out_, heap_, value);
  write("");
}

Value Interp::capture_here(const std::function<void()>& body) {
  Text text(heap_);
  struct Redirect {
    Text*& place;
    Text* before;
    ~Redirect() { place = before; }
  } const redirect{out_, out_};
  out_ = &text;
  body();
  return text.value();
}

Flow Interp::exec_scoped(const Body& body) {
  const Enter enter(*this, inner_scope());
  return exec(body);
}

Flow Interp::capture(const Body& body, Value& text) {
  Flow flow = Flow::Next;
  text = capture_here([&] { flow = exec_scoped(body); });
  return flow;
}

Value Interp::filtered(const Expr& filters, Value text) {
  std::swap(captured_, text);
  Value out = eval(filters);
  std::swap(captured_, text);
  return out;
}

Value Interp::call(const Value& callee, Arguments& arguments) {
  const Heap::Level level(heap_);
  switch (callee.kind()) {
    case Kind::Function: {
      Function& function = callee.as_function();
      if (function.macro != nullptr) return call_macro(function, arguments);
      if (function.method != nullptr) return function.method(*this, function.self, arguments);
      return function.native(*this, function, arguments);
    }
    case Kind::Loop: return call_loop(callee.as_loop(), arguments);
    case Kind::Undefined: refuse("{}", callee.why_undefined());
    default: refuse("'{}' object is not callable", type_name(callee));
  }
}

Value Interp::call_macro(const Function& function, Arguments& arguments) {
  const MacroNode& macro = *function.macro;
  const Enter enter(*this, std::make_shared<Scope>(function.scope));
  return capture_here([&] {
    bind_macro(macro, *scope_, arguments);
    exec(macro.body);
  });
}

void Interp::bind_macro(const MacroNode& macro, Scope& scope, Arguments& arguments) {
  const auto take_named = [&](const std::string& name, Value& out) {
    for (auto at = arguments.named.begin(); at != arguments.named.end(); ++at) {
      if (at->first != name) continue;
      out = std::move(at->second);
      arguments.named.erase(at);
      return true;
    }
    return false;
  };
  bool explicit_caller = false;
  for (size_t i = 0; i < macro.parameters.size(); ++i) {
    const MacroNode::Parameter& parameter = macro.parameters[i];
    explicit_caller |= parameter.name == "caller";
    Value value;
    if (i < arguments.positional.size())
      value = arguments.positional[i];
    else if (take_named(parameter.name, value)) {
    } else if (parameter.value)
      value = eval(*parameter.value);
    else
      value = heap_.undefined("parameter '" + parameter.name + "' was not provided");
    scope.set(parameter.symbol, std::move(value));
  }
  if (macro.uses_caller && !explicit_caller) {
    Value caller;
    if (!take_named("caller", caller)) caller = heap_.undefined("no caller defined");
    scope.set(symbols_.caller, std::move(caller));
  }
  if (macro.uses_kwargs) {
    Dict rest;
    for (auto& [name, value] : arguments.named) rest.set(heap_.string(name), std::move(value));
    scope.set(symbols_.kwargs, heap_.dict(std::move(rest)));
  } else if (!arguments.named.empty()) {
    refuse("macro '{}' takes no keyword argument '{}'", macro.name, arguments.named[0].first);
  }
  const size_t count = std::min(macro.parameters.size(), arguments.positional.size());
  std::vector<Value> more(arguments.positional.begin() + static_cast<std::ptrdiff_t>(count),
                          arguments.positional.end());
  if (macro.uses_varargs)
    scope.set(symbols_.varargs, heap_.tuple(std::move(more)));
  else if (!more.empty())
    refuse("macro '{}' takes not more than {} argument(s)", macro.name, macro.parameters.size());
}

Value Interp::call_loop(const Loop& loop, Arguments& arguments) {
  if (loop.node == nullptr) refuse("the loop must have the 'recursive' marker to be called");
  if (arguments.positional.size() != 1 || !arguments.named.empty()) refuse("loop() takes one argument");
  const ForNode& node = *loop.node;
  const int depth0 = loop.depth0 + 1;
  const Enter enter(*this, loop.scope);
  return capture_here([&] { node.run(*this, arguments.positional[0], depth0); });
}

}  // namespace sluice::text::jinja
