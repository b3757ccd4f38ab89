// Python's operators on values. Failures carry no line: the node that asked adds it.
#pragma once

#include <optional>
#include <vector>

#include "text/jinja/heap.h"
#include "text/jinja/value.h"

namespace sluice::text::jinja {

enum class BinaryOp { Add, Subtract, Multiply, Divide, FloorDivide, Modulo, Power };
enum class CompareOp { Equal, NotEqual, Less, LessEqual, Greater, GreaterEqual, In, NotIn };

/// Exact, whatever the mix of bool, int and float.
bool numbers_equal(const Value& a, const Value& b);

/// Python's ==. Throws Failure only for a limit.
bool equal(Heap& heap, const Value& a, const Value& b);

/// a OP b as a boolean. Throws Failure where Python raises TypeError.
bool compare(Heap& heap, CompareOp op, const Value& a, const Value& b);

/// Throws Failure for operand types that Python refuses, division by zero, and integers beyond 64 bits.
Value arithmetic(Heap& heap, BinaryOp op, const Value& a, const Value& b);
Value negated(const Value& value);

/// What iterating over the value gives: items, keys of a dict, characters; nothing for undefined.
/// A Generator is used up. Throws Failure "'int' object is not iterable".
std::vector<Value> items_of(Heap& heap, const Value& value);
bool is_iterable(const Value& value);

/// Python's len(); nothing for what has none.
std::optional<size_t> length_of(Heap& heap, const Value& value);

/// An element of a list by index, negative ones from the end; null when it is not there.
const Value* element(const List& list, int64_t index);

/// object[start:stop:step] of a string, list or tuple; none or undefined means left out.
Value slice(Heap& heap, const Value& object, const Value& start, const Value& stop, const Value& step);

}  // namespace sluice::text::jinja
