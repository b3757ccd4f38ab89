#!/usr/bin/python3
"""Oracle of structured output: python3-jsonschema.

schema_oracle.py generate SEED COUNT   prints lines {"schema", "documents": [texts]}: fixed schemas and random ones, each
                                       with documents that jsonschema accepts, in compact, usual and indented form
schema_oracle.py validate FILE         FILE has lines {"schema", "text"}; prints "ok", what is wrong or "unjudged: WHY" (a
                                       pattern that Python has not), a line each

Documents keep to what the masks promise to let through: properties in the schema's order, no properties that the
schema does not mention unless it says that there may be some.
"""
import datetime
import json
import random
import re
import sys
import urllib.parse
import uuid

import jsonschema

PATTERNS = {
    r"^[A-Z]{3}-[0-9]{4}$": ["ABC-1234", "ZZZ-0000"],
    r"^(red|green|blue)$": ["red", "blue"],
    r"^\w+@\w+\.com$": ["a@b.com", "me_1@x.com"],
    r"o+": ["foo", "o", "xo\"\\y", "水o"],
    r"^[^\"a-z]*$": ["", "ABC \\ \n 水"],
    r"^\d{1,3}(\.\d+)?$": ["1", "123.456"],
    r"^.{2,4}$": ["ab", "水車\"x"],
    r"^(?:a|b(?=))?x".replace("(?=)", ""): ["x", "ax12", "bx\t"],
    r"\.(jpg|png)$": ["a.jpg", ".png"],
}
FORMATS = {
    "date": ["2024-02-29", "1999-12-31"],
    "time": ["12:34:56Z", "00:00:00.123+01:00"],
    "date-time": ["2024-02-29T12:34:56Z", "2023-01-01T00:00:00.5-05:30"],
    "uuid": ["123e4567-e89b-12d3-a456-426614174000"],
    "ipv4": ["127.0.0.1", "255.250.199.0"],
    "ipv6": ["::1", "fe80::1:2", "1:2:3:4:5:6:7:8"],
    "email": ["someone@example.org"],
    "hostname": ["a.example.org", "x"],
    "uri": ["https://example.org/a?b=c#d"],
    "duration": ["P1DT2H", "P3W"],
}
WORDS = ["name", "age", "x", "tags", "naïve", "quo\"ted", "na", "items", "水", "long property name"]


class Generator:
    def __init__(self, seed):
        self.random = random.Random(seed)

    def pick(self, values):
        return self.random.choice(values)

    def text(self, least=0, most=12):
        alphabet = "abc xyz 019 \"\\/<>{}[]:,\n\t\u00e9\u6c34\U0001f600"
        return "".join(self.pick(alphabet) for _ in range(self.random.randint(least, most)))

    # A schema and a function that makes values of it.
    def schema(self, depth):
        kinds = ["string", "string", "pattern", "format", "enum", "const", "integer", "number", "range", "float range",
                 "multiple", "boolean", "null", "types"]
        if depth > 0:
            kinds += ["array", "array", "tuple", "object", "object", "object", "map", "open", "anyOf", "oneOf", "allOf",
                      "any", "patterned"]
        return getattr(self, "make_" + self.pick(kinds).replace(" ", "_"))(depth)

    def make_string(self, depth):
        least = self.pick([0, 0, 1, 3])
        most = self.pick([None, least + 2, 20])
        schema = {"type": "string"}
        if least:
            schema["minLength"] = least
        if most is not None:
            schema["maxLength"] = most
        return schema, lambda: self.text(least, 12 if most is None else most)

    def make_pattern(self, depth):
        pattern = self.pick(sorted(PATTERNS))
        return {"type": "string", "pattern": pattern}, lambda: self.pick(PATTERNS[pattern])

    def make_format(self, depth):
        name = self.pick(sorted(FORMATS))
        return {"type": "string", "format": name}, lambda: self.pick(FORMATS[name])

    def make_enum(self, depth):
        values = self.random.sample(["a", "b", 1, 2.5, None, True, "two words", "a\"b", [1, "x"], {"k": 1, "l": []}], 3)
        return {"enum": values}, lambda: self.pick(values)

    def make_const(self, depth):
        value = self.pick(["only", 7, None, False, {"a": [1, 2]}, []])
        return {"const": value}, lambda: value

    def make_integer(self, depth):
        return {"type": "integer"}, lambda: self.random.randint(-10**self.pick([1, 6, 18]), 10**self.pick([1, 6, 18]))

    def make_number(self, depth):
        return {"type": "number"}, lambda: self.pick([0, -1.5, 3.25e-7, 12345.678, 1e20, -0.0, 10**15, 2.5e+33])

    def make_range(self, depth):
        low = self.random.randint(-1200, 1200)
        high = low + self.random.randint(0, 2500)
        schema = {"type": "integer", self.pick(["minimum", "exclusiveMinimum"]): low,
                  self.pick(["maximum", "exclusiveMaximum"]): high}
        low += "exclusiveMinimum" in schema
        high -= "exclusiveMaximum" in schema
        if low > high:
            return self.make_range(depth)
        return schema, lambda: self.pick([low, high, self.random.randint(low, high)])

    def make_float_range(self, depth):
        low = round(self.random.uniform(-30, 30), self.random.randint(0, 3))
        high = round(low + self.random.uniform(1, 99), self.random.randint(0, 3))
        schema = {"type": "number", "minimum": low, "maximum": high}
        if self.random.random() < 0.3:
            del schema[self.pick(["minimum", "maximum"])]
        return schema, lambda: self.pick([low, high, round(self.random.uniform(low, high), 3)])

    def make_multiple(self, depth):
        factor = self.pick([2, 5, 7, 100])
        return {"type": "integer", "multipleOf": factor}, lambda: factor * self.random.randint(-500, 500)

    def make_boolean(self, depth):
        return {"type": "boolean"}, lambda: self.pick([True, False])

    def make_null(self, depth):
        return {"type": "null"}, lambda: None

    def make_types(self, depth):
        return {"type": ["string", "null", "integer"]}, lambda: self.pick([None, 5, "text", -1])

    def make_any(self, depth):
        return self.pick([{}, True]), lambda: self.value(2)

    def value(self, depth):
        kind = self.random.randint(0, 6 if depth else 4)
        if kind == 5:
            return [self.value(depth - 1) for _ in range(self.random.randint(0, 3))]
        if kind == 6:
            return {self.text(0, 5): self.value(depth - 1) for _ in range(self.random.randint(0, 3))}
        return [None, True, self.random.randint(-99, 99), 0.5, self.text()][kind]

    def make_array(self, depth):
        items, make = self.schema(depth - 1)
        least = self.pick([0, 0, 1, 2])
        most = self.pick([None, least, least + 1, 40])
        schema = {"type": "array", "items": items}
        if least:
            schema["minItems"] = least
        if most is not None:
            schema["maxItems"] = most
        return schema, lambda: [make() for _ in range(self.random.randint(least, 4 if most is None else min(most, 5)))]

    def make_tuple(self, depth):
        parts = [self.schema(depth - 1) for _ in range(self.random.randint(1, 3))]
        schema = {"type": "array", "prefixItems": [part[0] for part in parts]}
        rest = self.pick([None, False, self.schema(0)])
        if rest is not None:
            schema["items"] = rest if rest is False else rest[0]
        schema["minItems"] = self.random.randint(0, len(parts))

        def make():
            values = [part[1]() for part in parts]
            if rest:
                values += [rest[1]() for _ in range(self.random.randint(0, 2))]
            else:
                values = values[:self.random.randint(schema["minItems"], len(values))]
            return values
        return schema, make

    def make_object(self, depth, open_to=None):
        names = self.random.sample(WORDS, self.random.randint(0, 4))
        parts = {name: self.schema(depth - 1) for name in names}
        schema = {"type": "object", "properties": {name: part[0] for name, part in parts.items()}}
        required = [name for name in names if self.random.random() < 0.5]
        if required:
            schema["required"] = required
        further = self.pick([None, False]) if open_to is None else open_to
        if further is not None:
            schema["additionalProperties"] = further if isinstance(further, bool) else further[0]

        def make():
            value = {name: parts[name][1]() for name in names if name in required or self.random.random() < 0.5}
            if further not in (None, False):
                for _ in range(self.random.randint(0, 2)):
                    name = self.text(1, 6)
                    if name not in parts:
                        value[name] = self.value(1) if further is True else further[1]()
            return value
        return schema, make

    def make_open(self, depth):
        return self.make_object(depth, self.pick([True, self.schema(depth - 1)]))

    def make_map(self, depth):
        items, make = self.schema(depth - 1)
        schema = {"type": "object", "additionalProperties": items}
        if self.random.random() < 0.5:
            schema["minProperties"] = 1
        return schema, lambda: {self.text(1, 5): make() for _ in range(self.random.randint(1, 3))}

    def make_patterned(self, depth):
        items, make = self.schema(depth - 1)
        schema = {"type": "object", "patternProperties": {"^x-": items}, "additionalProperties": False}
        return schema, lambda: {"x-" + self.text(0, 4): make() for _ in range(self.random.randint(0, 3))}

    def make_anyOf(self, depth):
        parts = [self.schema(depth - 1) for _ in range(self.random.randint(1, 3))]
        return {"anyOf": [part[0] for part in parts]}, lambda: self.pick(parts)[1]()

    def make_oneOf(self, depth):
        text, number = self.make_string(0), self.make_integer(0)
        kinds = []
        for kind in "cat", "dog":
            schema, make = self.make_object(depth)
            schema["properties"] = {"kind": {"const": kind}, **schema["properties"]}
            schema["required"] = ["kind"] + schema.get("required", [])
            kinds.append((schema, lambda kind=kind, make=make: {"kind": kind, **make()}))
        parts = self.pick([[text, number], kinds, kinds + [number]])
        return {"oneOf": [part[0] for part in parts]}, lambda: self.pick(parts)[1]()

    def make_allOf(self, depth):
        first, make_first = self.make_object(depth)
        second, make_second = self.make_object(depth)
        for schema in first, second:
            schema.pop("additionalProperties", None)
        for name in first["properties"]:
            if name in second["properties"]:
                return self.make_allOf(depth)
        return {"allOf": [first, second]}, lambda: {**make_first(), **make_second()}


FIXED = [
    ({"type": "object", "properties": {"value": {"type": "string"}, "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
      "required": ["value", "next"], "additionalProperties": False},
     [{"value": "a", "next": None}, {"value": "a", "next": {"value": "b", "next": {"value": "c", "next": None}}}]),
    ({"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "object", "properties": {
        "name": {"type": "string"}, "children": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}, "required": ["name"]}}},
     [{"name": "x"}, {"name": "x", "children": [{"name": "y"}, {"name": "z", "children": [{"name": "", "children": []}]}]}]),
    ({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
      "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, [{"a": 1}, {"b": 2}, {"a": 1, "b": 2}]),
    ({"allOf": [{"type": "string", "minLength": 2}, {"maxLength": 4}, {"pattern": "^[a-z]"}]}, ["ab", "a水車\n"]),
    ({"type": "array", "items": {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}},
     [[[1, 2], [0.5, -3]], []]),
    ({"definitions": {"p": {"properties": {"d": {"type": "string", "format": "date"}}, "required": ["d"]}},
      "properties": {"p": {"$ref": "#/definitions/p"}, "q": {"allOf": [{"$ref": "#/definitions/p"}], "description": "d"}},
      "title": "T", "$schema": "https://json-schema.org/draft/2020-12/schema"}, [{"p": {"d": "2020-02-29"}}, {"q": {"d": "2020-01-31"}}, {}]),
    ({"type": "integer", "minimum": 0}, [0, 5, 10**18]),
    ({"type": "number", "exclusiveMinimum": 0}, [0.001, 5, 100.25]),
    ({"type": "number", "maximum": -0.5}, [-0.5, -0.51, -1, -20.25]),
    ({"enum": ["a", 1, None, "abcd"], "type": "string", "maxLength": 2}, ["a"]),
    ({"type": "string", "maxLength": 300}, ["x" * 300, "\U0001f600" * 120, ""]),
    ({"type": "string", "minLength": 40}, ["word " * 8, "y" * 500]),
]


def writings(value):
    plain = dict(ensure_ascii=False)
    return [json.dumps(value, separators=(",", ":"), **plain), json.dumps(value, **plain),
            json.dumps(value, indent=2, **plain), json.dumps(value, indent="\t", **plain)]


CHECKER = jsonschema.FormatChecker()


def iso(pattern, read):
    def check(text):
        return not isinstance(text, str) or bool(re.fullmatch(pattern, text)) and read(text.replace("Z", "+00:00")) is not None
    return check


CLOCK = r"\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)"
CHECKER.checks("time", ValueError)(iso(CLOCK, datetime.time.fromisoformat))
CHECKER.checks("date-time", ValueError)(iso(r"\d{4}-\d\d-\d\dT" + CLOCK, datetime.datetime.fromisoformat))
CHECKER.checks("uuid", ValueError)(lambda text: not isinstance(text, str) or str(uuid.UUID(text)) == text.lower())
CHECKER.checks("uri", ValueError)(
    lambda text: not isinstance(text, str) or bool(urllib.parse.urlsplit(text).scheme) and " " not in text)


def validator(schema):
    drafts = [jsonschema.Draft202012Validator, jsonschema.Draft7Validator, jsonschema.Draft4Validator]
    kind = jsonschema.validators.validator_for(schema, default=None)
    for draft in [kind] if kind else drafts:  # the newest that the schema is one of
        try:
            draft.check_schema(schema)
            return draft(schema, format_checker=CHECKER)
        except jsonschema.SchemaError:
            if draft in (kind, drafts[-1]):
                raise


def generate(seed, count):
    for schema, values in FIXED:
        emit(schema, values)
    generator = Generator(seed)
    for _ in range(count):
        schema, make = generator.schema(3)
        emit(schema, [make() for _ in range(4)])


def emit(schema, values):
    check = validator(schema)
    values = [value for value in values if check.is_valid(value)]
    print(json.dumps({"schema": schema, "documents": sum((writings(value) for value in values), [])}))


def validate(path):
    with open(path, encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            try:
                value = json.loads(row["text"])
                errors = sorted(validator(row["schema"]).iter_errors(value), key=str)
                print(json.dumps(str(errors[0].message)) if errors else "ok")
            except ValueError as error:
                print("not JSON:", error)
            except (re.error, jsonschema.RefResolutionError) as error:
                print("unjudged:", str(error).replace("\n", " "))


if __name__ == "__main__":
    if sys.argv[1] == "generate":
        generate(int(sys.argv[2]), int(sys.argv[3]))
    else:
        validate(sys.argv[2])
