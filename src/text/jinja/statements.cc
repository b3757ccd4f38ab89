// What each kind of statement does.
#include "text/jinja/ast.h"
#include "text/jinja/failure.h"
#include "text/jinja/interp.h"

namespace sluice::text::jinja {

Flow TextStmt::exec(Interp& in) const {
  in.write(text);
  return Flow::Next;
}

Flow PrintStmt::exec(Interp& in) const {
  in.write(in.eval(*value));
  return Flow::Next;
}

Flow IfStmt::exec(Interp& in) const {
  for (const auto& [condition, body] : branches) {
    if (in.test(*condition)) return in.exec(body);
  }
  return in.exec(otherwise);
}

Flow ForNode::exec(Interp& in) const { return run(in, in.eval(*items), 0); }

namespace {

/// The items for which the condition holds, each tried in a scope of its own.
std::vector<Value> accepted(Interp& in, const ForNode& node, std::vector<Value> values) {
  std::vector<Value> out;
  for (Value& value : values) {
    const Interp::Enter enter(in, in.inner_scope());
    in.assign(node.target, value);
    if (in.test(*node.condition)) out.push_back(std::move(value));
  }
  return out;
}

}  // namespace

Flow ForNode::run(Interp& in, const Value& over, int depth0) const {
  std::vector<Value> values = items_of(in.heap(), over);
  if (condition) values = accepted(in, *this, std::move(values));
  const Value list = in.heap().list(std::move(values));
  const Value loop_value = in.heap().loop({&list.as_list(), 0, depth0});
  Loop& loop = loop_value.as_loop();
  if (recursive) {
    loop.node = this;
    loop.scope = in.scope();
  }
  bool finished = false;  // Jinja runs `else` unless some pass got to the end of the body
  for (; loop.index0 < loop.items->items.size(); ++loop.index0) {
    in.heap().step();
    const Interp::Enter enter(in, in.inner_scope());
    in.set(in.symbols().loop, loop_value);
    in.assign(target, loop.items->items[loop.index0]);
    const Flow flow = in.exec(body);
    finished |= flow == Flow::Next;
    if (flow == Flow::Break) break;
  }
  return finished ? Flow::Next : in.exec_scoped(otherwise);
}

Flow SetStmt::exec(Interp& in) const {
  in.assign(target, in.eval(*value));
  return Flow::Next;
}

Flow SetBlockStmt::exec(Interp& in) const {
  Value text;
  const Flow flow = in.capture(body, text);
  if (flow == Flow::Next) in.assign(target, in.filtered(*value, std::move(text)));
  return flow;
}

Flow FilterBlockStmt::exec(Interp& in) const {
  Value text;
  const Flow flow = in.capture(body, text);
  if (flow == Flow::Next) in.write(in.filtered(*value, std::move(text)));
  return flow;
}

Flow WithStmt::exec(Interp& in) const {
  std::vector<Value> given;  // seen from outside: one value does not see the others' names
  for (const auto& entry : values) given.push_back(in.eval(*entry.second));
  const Interp::Enter enter(in, in.inner_scope());
  for (size_t i = 0; i < given.size(); ++i) in.assign(values[i].first, given[i]);
  return in.exec(body);
}

Flow JumpStmt::exec(Interp&) const { return flow; }

namespace {

Value macro_value(Interp& in, const MacroNode& node) {
  Function function;
  function.name = node.name;
  function.macro = &node;
  function.scope = in.scope();
  return in.heap().function(std::move(function));
}

}  // namespace

Flow MacroNode::exec(Interp& in) const {
  in.set(symbol, macro_value(in, *this));
  return Flow::Next;
}

Flow CallBlockStmt::exec(Interp& in) const {
  const Value caller = macro_value(in, *macro);
  in.write(call->call(in, &caller));
  return Flow::Next;
}

}  // namespace sluice::text::jinja
