// The tree of a template. Nodes know how to run (expressions.cc, statements.cc); parsing is parser.h's
// business. Immutable once parsed, so that renderings can share it. Heights are bounded by the parser:
// running a tree and destroying it recurse over it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/operators.h"
#include "text/jinja/tables.h"
#include "text/jinja/value.h"

namespace sluice::text::jinja {

/// The number of a name; Symbols (symbols.h) has the names.
using Symbol = uint32_t;

struct Node {
  int line = 0;
  int height = 1;  ///< nodes on the longest way down, this one included
  virtual ~Node() = default;
};

template <typename T>
std::unique_ptr<T> make(int line) {
  auto node = std::make_unique<T>();
  node->line = line;
  return node;
}

struct Expr : Node {
  virtual Value eval(Interp& in) const = 0;
};
using ExprPtr = std::unique_ptr<const Expr>;

enum class Flow : uint8_t { Next, Break, Continue };
struct Stmt : Node {
  virtual Flow exec(Interp& in) const = 0;
};
using Body = std::vector<std::unique_ptr<const Stmt>>;

// ---- expressions

struct LiteralExpr : Expr {
  Value value;  ///< a scalar or a string
  Value eval(Interp& in) const override;
};
struct NameExpr : Expr {
  Symbol symbol = 0;
  Value eval(Interp& in) const override;
};
struct ListExpr : Expr {
  std::vector<ExprPtr> items;
  Flavour flavour = Flavour::List;
  Value eval(Interp& in) const override;
};
struct DictExpr : Expr {
  std::vector<std::pair<ExprPtr, ExprPtr>> entries;
  Value eval(Interp& in) const override;
};
struct AttributeExpr : Expr {
  ExprPtr object;
  std::string name;
  Value eval(Interp& in) const override;
};
struct ItemExpr : Expr {
  ExprPtr object, key;
  Value eval(Interp& in) const override;
};
struct SliceExpr : Expr {
  ExprPtr object, start, stop, step;  ///< null: left out
  Value eval(Interp& in) const override;
};

struct ArgumentNodes {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> named;
  ExprPtr more_positional, more_named;  ///< *x and **x, or null
};
struct CallExpr : Expr {
  ExprPtr callee;
  ArgumentNodes arguments;
  Value eval(Interp& in) const override { return call(in, nullptr); }
  /// `caller`: what a call block passes beside the arguments, or null.
  Value call(Interp& in, const Value* caller) const;
};
struct FilterExpr : Expr {
  ExprPtr value;
  std::string name;
  Filter filter = nullptr;  ///< null: there is none of that name, which is an error only once it is used
  ArgumentNodes arguments;
  Value eval(Interp& in) const override;
};
struct TestExpr : Expr {
  ExprPtr value;
  std::string name;
  Test test = nullptr;  ///< as above
  ArgumentNodes arguments;
  Value eval(Interp& in) const override;
};
/// The text that a filter block or a block set hands to its filters.
struct CapturedExpr : Expr {
  Value eval(Interp& in) const override;
};

struct UnaryExpr : Expr {
  enum Op { Not, Minus, Plus } op = Not;
  ExprPtr operand;
  Value eval(Interp& in) const override;
};
struct BinaryExpr : Expr {
  BinaryOp op = BinaryOp::Add;
  ExprPtr left, right;
  Value eval(Interp& in) const override;
};
struct LogicExpr : Expr {
  bool is_and = true;
  ExprPtr left, right;
  Value eval(Interp& in) const override;
};
/// a < b <= c
struct CompareExpr : Expr {
  ExprPtr first;
  std::vector<std::pair<CompareOp, ExprPtr>> rest;
  Value eval(Interp& in) const override;
};
/// a ~ b ~ c
struct ConcatExpr : Expr {
  std::vector<ExprPtr> parts;
  Value eval(Interp& in) const override;
};
struct ConditionalExpr : Expr {
  ExprPtr condition, yes, no;  ///< no `no`: undefined
  Value eval(Interp& in) const override;
};

// ---- statements

/// What an assignment assigns to: a name, an attribute of a namespace, or a tuple of targets.
struct Target {
  Symbol symbol = 0;
  std::string attribute;      ///< of a namespace; empty: the name itself
  std::vector<Target> items;  ///< of a tuple
  bool is_tuple = false;
};

struct TextStmt : Stmt {
  std::string text;
  Flow exec(Interp& in) const override;
};
struct PrintStmt : Stmt {
  ExprPtr value;
  Flow exec(Interp& in) const override;
};
struct IfStmt : Stmt {
  std::vector<std::pair<ExprPtr, Body>> branches;
  Body otherwise;
  Flow exec(Interp& in) const override;
};
struct ForNode : Stmt {
  Target target;
  ExprPtr items, condition;  ///< no `condition`: all items
  Body body, otherwise;
  bool recursive = false;
  Flow exec(Interp& in) const override;
  /// Runs the loop over given items, one call deeper for each `depth0`.
  Flow run(Interp& in, const Value& over, int depth0) const;
};
struct SetStmt : Stmt {
  Target target;
  ExprPtr value;
  Flow exec(Interp& in) const override;
};
struct SetBlockStmt : Stmt {
  Target target;
  ExprPtr value;  ///< filters around a CapturedExpr
  Body body;
  Flow exec(Interp& in) const override;
};
struct FilterBlockStmt : Stmt {
  ExprPtr value;  ///< filters around a CapturedExpr
  Body body;
  Flow exec(Interp& in) const override;
};
struct WithStmt : Stmt {
  std::vector<std::pair<Target, ExprPtr>> values;
  Body body;
  Flow exec(Interp& in) const override;
};
struct JumpStmt : Stmt {
  Flow flow = Flow::Break;
  Flow exec(Interp& in) const override;
};

struct MacroNode : Stmt {
  struct Parameter {
    Symbol symbol;
    std::string name;
    ExprPtr value;  ///< the default, or null
  };
  Symbol symbol = 0;
  std::string name;
  std::vector<Parameter> parameters;
  Body body;
  bool uses_caller = false, uses_varargs = false, uses_kwargs = false;
  Flow exec(Interp& in) const override;
};
struct CallBlockStmt : Stmt {
  std::unique_ptr<const CallExpr> call;
  std::unique_ptr<const MacroNode> macro;  ///< the block's body
  Flow exec(Interp& in) const override;
};

}  // namespace sluice::text::jinja
