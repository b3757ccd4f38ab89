#!/usr/bin/env python3
"""What the output of GLM models and of Qwen3-Coder means, by the plainest reading of its rules: the whole
text at once.

usage: output_oracle.py CASES    a JSON object a line: {format, tools, starts_in_thinking, text}

Prints one result a line: {reasoning_content, content, tool_calls, incomplete}. Takes quadratic time.
"""

import json
import re
import sys

SPACE = " \t\n\v\f\r"
NOT_IN_NAMES = SPACE + "<>{}\"'`"
FAILED, CUT = "failed", "cut"
TYPES = ["null", "boolean", "integer", "number", "string", "array", "object"]


def skip_space(text, at):
    while at < len(text) and text[at] in SPACE:
        at += 1
    return at


def read_tags(text, at, tags):
    """(tag, position behind it), or FAILED or CUT, after white space."""
    at = skip_space(text, at)
    for tag in tags:
        if text.startswith(tag, at):
            return tag, at + len(tag)
    return CUT if any(tag.startswith(text[at:]) for tag in tags) else FAILED


def read_call(text, at, opens):
    """The call whose opening tag ends at `at`: (name, pairs, end, whole), or FAILED or CUT. With `opens` a call
    whose first value has begun is one, whatever follows."""
    begin = at = skip_space(text, at)
    while at < len(text) and text[at] not in NOT_IN_NAMES:
        at += 1
    if at == len(text):
        return CUT
    if at == begin:
        return FAILED
    name, pairs, end = text[begin:at], [], 0
    while True:
        read = read_tags(text, at, ["<arg_key>", "</tool_call>"])
        if read == FAILED and opens and pairs:
            return name, pairs, end, True
        if read in (FAILED, CUT):
            return read
        tag, at = read
        if tag == "</tool_call>":
            return name, pairs, at, True
        close = text.find("</arg_key>", at)
        if close < 0:
            return CUT
        key = text[at:close].strip(SPACE)
        read = read_tags(text, close + len("</arg_key>"), ["<arg_value>"]) if key else FAILED
        if read == FAILED and opens and pairs:
            return name, pairs, end, False
        if read in (FAILED, CUT):
            return read
        at = read[1]
        close = text.find("</arg_value>", at)
        if close < 0:
            return CUT
        pairs.append((key, text[at:close]))
        end = at = close + len("</arg_value>")


def read_qwen_call(text, at, opens, may_end):
    """The same for Qwen3-Coder. With `may_end` a call that lacks only </tool_call> may end the text."""
    at = skip_space(text, at)
    if not text.startswith("<function=", at):
        return CUT if "<function=".startswith(text[at:]) else FAILED
    begin = at = at + len("<function=")
    while at < len(text) and text[at] not in NOT_IN_NAMES:
        at += 1
    if at == len(text):
        return CUT
    if at == begin or text[at] != ">":
        return FAILED
    name, pairs, end, at = text[begin:at], [], 0, at + 1
    while True:
        read = read_tags(text, at, ["<parameter=", "</function>", "</tool_call>"])
        if read == FAILED and opens and pairs:
            return name, pairs, end, True
        if read in (FAILED, CUT):
            return read
        tag, at = read
        if tag == "</tool_call>":
            return name, pairs, at, True
        if tag == "</function>":
            read = read_tags(text, at, ["</tool_call>"])
            if read == CUT:
                return (name, pairs, len(text), True) if may_end else CUT
            if read == FAILED and not opens:
                return FAILED
            return name, pairs, at if read == FAILED else read[1], True
        key = re.match("[^<>\n]*", text[at:]).group()
        at += len(key)
        if at == len(text):
            return CUT
        if text[at] != ">" or not key.strip(SPACE):
            return (name, pairs, end, False) if opens and pairs else FAILED
        at += 2 if text.startswith(">\n", at) else 1
        closes = {tag: text.find(tag, at) for tag in ("</parameter>", "\n<parameter=", "</function>\n</tool_call>")}
        closes = {tag: place for tag, place in closes.items() if place >= 0}
        if not closes:
            return CUT
        tag, place = min(closes.items(), key=lambda one: one[1])
        value = text[at:place]
        pairs.append((key.strip(SPACE), value[:-1] if value.endswith("\n") else value))
        end = at = place + (len(tag) if tag == "</parameter>" else 0)


def types_of_value(value):
    if value is None:
        return {"null"}
    if isinstance(value, bool):
        return {"boolean"}
    if isinstance(value, (int, float)):
        return {"number", "integer"} if value == int(value) else {"number"}
    return {"array"} if isinstance(value, list) else {"object"} if isinstance(value, dict) else {"string"}


def types_of_schema(schema, root):
    types = set()
    if not isinstance(schema, dict):
        return types
    if "$ref" in schema:
        target = root
        for part in schema["$ref"].split("/")[1:]:
            target = target.get(part, {})
        types = types_of_schema(target, root)
    elif "type" in schema:
        types = {schema["type"]} if isinstance(schema["type"], str) else set(schema["type"])
    elif "enum" in schema:
        types = set().union(*map(types_of_value, schema["enum"]))
    elif "const" in schema:
        types = types_of_value(schema["const"])
    else:
        for word in ("anyOf", "oneOf", "allOf"):
            for member in schema.get(word, []):
                types |= types_of_schema(member, root)
    return types | {"null"} if types and schema.get("nullable") is True else types


def typed(text, types):
    value = text.strip(SPACE)
    if not types or "string" in types:
        return None if "null" in types and value == "null" else text
    value = {"True": "true", "False": "false", "None": "null"}.get(value, value)

    def refuse(constant):
        raise ValueError(constant)

    try:
        read = json.loads(value, parse_constant=refuse)
    except ValueError:
        return text
    return read if types_of_value(read) & (types | {"null"}) else text


class Answer:
    def __init__(self, tools, form):
        self.parameters = {t["function"]["name"]: t["function"].get("parameters", {}) for t in reversed(tools)}
        self.qwen = form == "qwen3coder"
        self.calls, self.incomplete = [], False

    def make_call(self, name, pairs):
        root = self.parameters.get(name, {})
        properties = root.get("properties", {})
        self.calls.append({"name": name, "arguments": {
            key: typed(value, types_of_schema(properties.get(key), root)) for key, value in pairs}})

    def next_tag(self, text, at):
        """(place, behind it, whether it is a call without its first tag)"""
        places = [(text.find("<tool_call>", at), len("<tool_call>"), False)]
        if self.qwen:
            places.append((text.find("<function=", at), 0, True))
        places = [one for one in places if one[0] >= 0]
        return (lambda one: (one[0], one[0] + one[1], one[2]))(min(places)) if places else None

    def read(self, text, in_reasoning, closed=False):
        """The text that is left when calls are taken out. `closed`: there is more text behind it."""
        parts, at, begin = [], 0, 0
        while self.parameters:
            tag = self.next_tag(text, at)
            if tag is None:
                break
            tag, at, bare = tag
            if self.qwen:
                call = read_qwen_call(text, at, not in_reasoning, not closed)
            else:
                call = read_call(text, at, not in_reasoning)
            if bare:
                at += len("<function=")
                name = re.match("[^" + re.escape(NOT_IN_NAMES) + "]*", text[at:]).group()
                if name not in self.parameters:
                    continue
            if call == CUT and not in_reasoning:
                self.incomplete = True
                named = not self.qwen or re.match(r"\s*<function=[^\s<>{}\"'`]", text[at - 10 * bare:])
                if named or not text[at:].strip(SPACE):
                    text = text[:tag]
                break
            if call in (FAILED, CUT) or in_reasoning and call[0] not in self.parameters:
                continue
            if call[3]:
                self.make_call(*call[:2])
            else:
                self.incomplete = True
            parts.append(text[begin:tag])
            begin = at = call[2]
        parts.append(text[begin:])
        return "\n".join(p for p in (part.strip(SPACE) for part in parts) if p)


def result(case):
    text, thinking = case["text"].lstrip(SPACE), case["starts_in_thinking"]
    if text.startswith("<think>"):
        text, thinking = text[len("<think>"):], True
    elif text.startswith("</think>") and not thinking:
        text = text[len("</think>"):]
    answer = Answer(case["tools"], case["format"])
    reasoning, content = "", text
    if thinking:
        reasoning, close, content = text.partition("</think>")
        reasoning = answer.read(reasoning, True, close != "")
    content = answer.read(content, False)
    return {"reasoning_content": reasoning, "content": content, "tool_calls": answer.calls,
            "incomplete": answer.incomplete}


def main():
    with open(sys.argv[1], encoding="utf-8") as cases:
        for line in cases:
            print(json.dumps(result(json.loads(line))))


if __name__ == "__main__":
    main()
