// One rendering under way: scopes, the output, and the calls between nodes and tables.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/heap.h"
#include "text/jinja/symbols.h"
#include "text/jinja/template.h"
#include "text/jinja/value.h"

namespace sluice::text::jinja {

/// The arguments of a call, evaluated.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

/// The variables of a block, and the block around it in the template's text.
class Scope {
 public:
  explicit Scope(std::shared_ptr<Scope> parent) : parent_(std::move(parent)) {}
  Scope* parent() const { return parent_.get(); }
  size_t size() const { return variables_.size(); }
  /// Null: not set in this scope itself.
  const Value* find(Symbol symbol) const {
    for (const auto& [name, value] : variables_) {
      if (name == symbol) return &value;
    }
    return nullptr;
  }
  void set(Symbol symbol, Value value) {
    for (auto& [name, held] : variables_) {
      if (name == symbol) {
        held = std::move(value);
        return;
      }
    }
    variables_.emplace_back(symbol, std::move(value));
  }

 private:
  std::shared_ptr<Scope> parent_;
  std::vector<std::pair<Symbol, Value>> variables_;
};

class Interp {
 public:
  Interp(Heap& heap, const Symbols& symbols, const RenderOptions& options);

  /// The text of a whole template.
  std::string render(const Body& body);

  Heap& heap() { return heap_; }
  const Symbols& symbols() const { return symbols_; }
  std::tm now() const { return options_.clock(); }

  Value eval(const Expr& expr);
  bool test(const Expr& expr) { return truthy(eval(expr)); }
  Flow exec(const Body& body);
  Arguments evaluate(const ArgumentNodes& nodes);

  /// The variable, or an undefined value that says its name.
  Value lookup(Symbol symbol);
  const std::shared_ptr<Scope>& scope() const { return scope_; }
  void set(Symbol symbol, Value value) {
    heap_.pass(scope_->size() * sizeof(std::pair<Symbol, Value>));  // variables are looked through one by one
    scope_->set(symbol, std::move(value));
  }
  /// Throws Failure when the value cannot be unpacked as the target wants it.
  void assign(const Target& target, const Value& value);

  void write(std::string_view text);
  void write(const Value& value);
  const Value& captured() const { return captured_; }

  Value call(const Value& callee, Arguments& arguments);

  /// Runs a body in a scope of its own inside the present one.
  Flow exec_scoped(const Body& body);
  /// Like that, but what it prints becomes `text`.
  Flow capture(const Body& body, Value& text);
  /// The text that a body prints in the present scope.
  Value capture_here(const std::function<void()>& body);
  /// Evaluates filters around a captured text.
  Value filtered(const Expr& filters, Value text);

  /// A scope entered for as long as this lives.
  class Enter {
   public:
    Enter(Interp& in, std::shared_ptr<Scope> scope) : in_(in), before_(std::move(scope)) {
      std::swap(in_.scope_, before_);
    }
    ~Enter() { std::swap(in_.scope_, before_); }
    Enter(const Enter&) = delete;
    Enter& operator=(const Enter&) = delete;

   private:
    Interp& in_;
    std::shared_ptr<Scope> before_;
  };
  /// A new scope inside the present one.
  std::shared_ptr<Scope> inner_scope() const { return std::make_shared<Scope>(scope_); }

 private:
  Value call_macro(const Function& function, Arguments& arguments);
  void bind_macro(const MacroNode& macro, Scope& scope, Arguments& arguments);
  Value call_loop(const Loop& loop, Arguments& arguments);
  void assign_tuple(const Target& target, const Value& value);

  Heap& heap_;
  const Symbols& symbols_;
  const RenderOptions& options_;
  std::shared_ptr<Scope> scope_;
  Text* out_ = nullptr;
  Value captured_;
};

/// object.name as Jinja has it: a method or attribute first, then the item of that name.
Value get_attribute(Interp& in, const Value& object, std::string_view name);
/// object[key]: the item first, then the attribute of that name.
Value get_item(Interp& in, const Value& object, const Value& key);

}  // namespace sluice::text::jinja
