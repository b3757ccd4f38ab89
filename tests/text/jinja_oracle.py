#!/usr/bin/env python3
"""Renders small templates with jinja2, set up as transformers does, and prints one JSON object a line:
{"source", "variables", "text"} or {"source", "variables", "error"}.

Needs jinja2 (Debian: python3-jinja2).
"""

import datetime
import json

import jinja2.ext
from jinja2.exceptions import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = datetime.datetime(2025, 7, 15, 14, 30, 5)

VARIABLES = {
    "s": "Hello, Wörld", "empty": "", "n": 7, "neg": -7, "zero": 0, "f": 2.5, "whole": 3.0, "t": True, "no": False,
    "nothing": None, "l": [3, 1, 2], "words": ["b", "A", "c", "a", "B"], "nested": [[1, 2], [3, 4], [5, 6]],
    "d": {"b": 1, "a": {"x": [1, 2.0, None, True, "q"]}, "items": "shadowed", "get": 5}, "quote": "it's \"x\" \\ \n",
    "users": [{"name": "Ann", "age": 30, "tags": ["x"]}, {"name": "bob", "age": 25, "tags": []},
              {"name": "Cid", "age": 30, "tags": ["y", "z"]}, {"name": "dan"}],
    "uni": "é😀中\u00a0\u200b\u2028\x07\x7f", "tree": [{"v": 1, "c": [{"v": 2, "c": []}, {"v": 3, "c": [{"v": 4, "c": []}]}]}],
    "lines": "one\n\n  two\r\nthree\u2028four", "big": 9007199254740993, "floats": [0.1, 1e-7, 1e22, 1e16, 123456789.125, -0.0, 1e15, 0.0001, 5e-324],
}

# Expressions, each rendered as {{ ... }}.
EXPRESSIONS = r"""
1 + 2 * 3 - 4
7 // 2, -7 // 2, 7 // -2, -7 % 3, 7 % -3, 7.5 % 2, -7.5 % 2, -7.5 // 2
7 / 2, 4 / 2, 2 ** 10, 2 ** -1, 2 ** 3 ** 2, 2.0 ** 0.5
-2 ** 2, -n|abs, (-n)|abs, +n, -f, - -n
1_000 + 0x1F + 0b101 + 0o17, 1e3, 2.5e-3, 1_0.5
1 == 1.0, 1 == true, 0 == false, "1" == 1, none == false, [1, 2] == [1.0, 2], (1, 2) == [1, 2]
1 < 2 < 3, 1 < 3 < 2, "a" < "b", "Z" < "a", [1, 2] < [1, 3], (1,) < (1, 0), 1 < 1.5, "é" > "z"
1 in [1, 2], 3 not in [1, 2], "ell" in s, "b" in d, "zz" in d, 1 in (1,), not 1 in [2]
true and 0, 0 or "x", not "", none or empty or 5, 1 and 2 and 3
n if t else f, n if no, (n if no) is defined, 1 if no else 2 if t else 3
"a" ~ 1 ~ 2.0 ~ none ~ true ~ [1, "x"] ~ missing
"con" "cat" 'ed'
"a\tb\n\x41\u00e9\U0001F600\\ \'\" \q \101"
'it\'s', "say \"hi\""
"ab" * 3, 3 * "ab", [1] * 3, "x" * -1, (1, 2) * 2
[1, 2] + [3], (1,) + (2,), s + "!"
s[0], s[-1], s[1:4], s[::-1], s[-3:], s[:-3], s[::2], s[7:9], s[100:], s[10:2]
l[0], l[-1], l[1:], l[::-1], l[:-1], l[5:], l[-100:2], l[::2], l[2:0:-1]
l[5], l[5] is defined, d.zzz is defined, d["b"], d.b, d["a"].x[4], d.items is callable, d["items"]
users[0].name, users.0.age, users[-1].age is defined, nested[1][0], "abc".1
[1, "a", none, true, 1.5, {"k": (1,)}], (), (1,), {}, {1: 2, "a": [], none: 1, true: 3}
quote, [quote], ["it's", 'say "x"', "both ' and \"", "tab\t\x01"], [uni]
floats, [1.0, 100.0, 1e5, 1.5e300, 3.14159]
1e16, 1e15, 123456789012345680.0, 0.1 + 0.2, 1/3, 1e-5, 0.0001, 1e100
5 is odd, 4 is even, 9 is divisibleby 3, 9 is divisibleby(4), n is number, t is number, t is integer, n is integer, f is float
s is string, l is iterable, d is mapping, l is sequence, s is iterable, n is iterable, nothing is none, missing is iterable, missing is sequence
missing is defined, missing is undefined, t is true, no is false, n is true, 1 is true, t is boolean
"abc" is lower, "ABC" is upper, "A1" is upper, "1" is lower, n is eq 7, n is gt(3), n is in [7], n is ne 8, 3 is lt 4, 3 is ge 3
"upper" is filter, "nope" is filter, "odd" is test, range is callable, s is callable, n is sameas 7, none is sameas none
n is not none, l is not string and not no, not missing is defined
s|upper, s|lower, s|title, "hello wORLD foo-bar"|title, "hello"|capitalize, "ÀÉ ß"|lower, "straße é"|upper
s|length, l|length, d|length, missing|length, s|count, "é😀"|length
s|replace("l", "L"), s|replace("l", "L", 1), "aaa"|replace("a", "b", 2), "abc"|replace("", "-")
"  x y \n"|trim ~ "|", "xxaxx"|trim("x"), uni|trim|length
l|join, l|join(", "), l|join("-")|upper, users|join(",", attribute="name"), [1, none, "x"]|join("|"), s|join("."), [1,2]|join(d=",")
missing|default("x"), empty|default("x"), empty|default("x", true), nothing|default("x"), missing|d(5), no|default(1, boolean=true), d.q|default("none")
l|first, l|last, s|first, s|last, []|first is defined, (l|first) + 1
l|sort, l|sort(reverse=true), words|sort, words|sort(case_sensitive=true), users[:3]|sort(attribute="age")|map(attribute="name")|list
users[:3]|sort(attribute="age,name", reverse=true)|map(attribute="name")|join(",")
l|reverse|list, s|reverse, d|list, s|list|length, nested|map("first")|list, l|sum, nested|sum(start=[])
[1.5, 2]|sum, users[:3]|sum(attribute="age"), l|sum(start=10), []|sum
l|min, l|max, words|min, words|max, words|max(case_sensitive=true), []|min is defined, users[:3]|max(attribute="age")
words|unique|list, words|unique(case_sensitive=true)|list, [1, 1.0, true, "1"]|unique|list
users|selectattr("tags")|map(attribute="name")|list, users|rejectattr("tags")|map(attribute="name")|list
users|selectattr("age", "equalto", 30)|map(attribute="name")|list, users|selectattr("age", "defined")|list|length
users|map(attribute="age", default=0)|list, users|map(attribute="tags.0", default="-")|list, words|map("upper")|list, words|map("replace", "a", "z")|join
l|select("odd")|list, l|reject("odd")|list, [0, 1, "", "x"]|select|list, l|select("gt", 1)|list, l|reject("in", [1])|list, [1, none]|reject("none")|list
d|items|list, d|dictsort, {"b": 1, "A": 2, "c": 0}|dictsort, {"b": 1, "A": 2}|dictsort(true), {"b": 1, "A": 0}|dictsort(by="value"), {"b": 1, "a": 2}|dictsort(reverse=true)
"3.7"|int, "x"|int, "x"|int(5), "0x1f"|int(base=16), 3.99|int, -3.99|int, " 42 "|int, none|int, t|int, "1e3"|int, "1_000"|int, "101"|int(0, 2)
"3.7"|float, "x"|float, "x"|float(1.5), 3|float, " 1e3 "|float, ".5"|float, "5."|float, "inf"|float, none|float
2.5|round, 3.5|round, 2.675|round(2), 42|round, 42.55|round(1, "floor"), 42.51|round(1, "ceil"), 1234|round(-2), 1234.5|round(-2), 7|round(method="ceil")
-5|abs, (-5.5)|abs, (-5)|abs, true|abs
"a b c d"|wordcount, "foo bar baz qux"|truncate(9), "foo bar baz qux"|truncate(9, true), "foo bar baz qux"|truncate(11), "foo bar baz qux"|truncate(11, false, "..", 0)
"a\nb\n\nc"|indent, "a\nb"|indent(2, true), "a\n\nb"|indent(2, blank=true), "a\nb"|indent("> "), lines|indent(1), "a\n"|indent ~ "|"
"x"|center(5) ~ "|", "ab"|center(5) ~ "|", "<a href='x'>&\""|escape ~ "x"|safe, 5|string + "5", "a b/c?é"|urlencode
l|batch(2)|list, l|batch(2, "x")|list, range(7)|slice(3)|list, range(7)|slice(3, "-")|list
users[:3]|groupby("age")|map("first")|list, users|groupby("age", default=0)|map("last")|map("length")|list
d|tojson, l|tojson, s|tojson, quote|tojson, uni|tojson, none|tojson, true|tojson, 1.0|tojson, floats|tojson, (1, 2)|tojson
d|tojson(indent=2), []|tojson(indent=4), {"a": []}|tojson(indent=1), d|tojson(sort_keys=true), uni|tojson(ensure_ascii=true), {1: 2, none: 3, true: 4, 1.5: 5}|tojson
[1, {"a": 2}]|tojson(separators=(",", ":")), [1, {"a": 2}]|tojson(indent=0), [1, 2]|tojson(indent="--"), d|tojson(true), d|tojson(false, 3)
"<a>&'/"|tojson, big|tojson, big + 1, 9223372036854775807, -9223372036854775807
"a,b,,c".split(","), "a b  c".split(), "a,b,c".split(",", 1), "a,b,c".rsplit(",", 1), " a b c ".split(none, 1), " a b c ".rsplit(none, 1), "".split(), "".split(",")
"xxabxx".strip("x"), "xxabxx".lstrip("x"), "xxabxx".rstrip("x"), " a ".strip() ~ "|", "\u00a0a\u2003".strip(), "abc".strip("ca")
s.startswith("He"), s.endswith(("x", "d")), s.startswith("e", 1), s.find("l"), s.rfind("l"), s.find("zz"), s.index("W"), s.count("l"), s.find("l", 4), "aéa".rfind("a")
s.upper(), s.lower(), s.title(), "they're bill's".title(), s.swapcase(), "éa".capitalize(), "x".center(4, "*"), "x".ljust(3) ~ "|", "x".rjust(3, "."), "-5".zfill(4)
"a-b-c".partition("-"), "a-b-c".rpartition("-"), "abc".partition("x"), "prefix-x".removeprefix("prefix-"), "a.py".removesuffix(".py")
"a\nb\r\nc\x0bd\n".splitlines(), "a\nb".splitlines(true), ",".join(["a", "b"]), "-".join("abc"), lines.splitlines()
"12".isdigit(), "a1".isalnum(), "ab".isalpha(), " \n".isspace(), "".isdigit(), "Ab".islower(), "AB".isupper(), "é".isalpha()
"{} {}".format(1, "x"), "{0}{1}{0}".format("a", "b"), "{n:>5}|{n:<5}|{n:^5}|{n:05d}".format(n=7), "{:.2f} {:,} {:e} {:x} {:+d}".format(3.14159, 1234567, 12345.678, 255, 5), "{!r} {a[k]} {{}}".format("x", a={"k": 1})
"{:10}|{:<4}|{:*^7}|{:.2}".format("ab", 1, "x", "abc"), "{:%}".format(0.25), "{:g} {}".format(1e10, 1.0), "{:>{w}}".format("x", w=4)
"%s %d %5.2f %x %r %%" % (1, 2.9, 3.14159, 255, "x"), "%s" % "a", "%-5s|%05d|%+d" % ("a", 42, 7), "%(a)s-%(b)03d" % {"a": 1, "b": 2}, "%s" % none, "%s %s"|format(1, "z"), "%e %g %G" % (1234.5, 0.00001, 1e20)
d.get("b"), d.get("zz"), d.get("zz", 9), d.keys()|list, d.values()|list|length, d.items()|list|length, {"a": 1}.items(), {"a": 1}.keys(), {"a": 1}.values(), d.copy() == d
l.index(1), l.count(2), (1, 2, 1).count(1), l.copy(), "ab".join([]) ~ "|"
range(5)|list, range(2, 8, 3)|list, range(5, 0, -2)|list, range(0)|list, range(3), range(2, 9, 3)|length, range(3)[1], range(3) == range(0, 3), 2 in range(3), range(3)|last
dict(a=1, b=2), dict([("x", 1)]), dict({"a": 1}, b=2), namespace(a=1).a, namespace().zz is defined
strftime_now("%Y-%m-%d %H:%M:%S %A %B %j %d %b %y %p %I %%"), strftime_now("plain")
missing, missing ~ "x", [missing], missing|upper, missing|list, missing == missing2, missing == none, missing|join, missing|string
nothing.foo is defined, n.foo is defined, s.foo is defined, l.foo is defined, "".__class__, d.__class__, nothing["x"] is defined
d["a"]["x"][1:3], {"a": 1}["a"], [1, 2][1], (1, 2)[0], "abc"[1], {"a": {"b": 2}}.a.b
l|map("string")|join("+"), l|map("int")|sum, words|map("lower")|unique|sort|join, [[1, [2]], 3]|string, {"a": {"b": [1]}}|string
words|select("in", ["a", "b"])|list, users|map(attribute="name")|map("lower")|list, users|selectattr("name", "in", ["Ann", "dan"])|map(attribute="name")|list
nested|map("sum")|list, nested|map("join", "-")|list, [[3, 1], [2, 4]]|map("sort")|list, [[3, 1], [2]]|map("length")|sum
d|length > 3 and s|length == 12, l|length - 1, n|string|length * 2, not l|length
(1, 2, 3)|list, ("a" "b")|upper, (1), [1,], (1,2,), {"a": 1,}
"a" if "x" in s and not empty else "b", n + 1 if t else 0
s|attr("upper") is callable, d|attr("b") is defined, ns is defined
["a", "b"]|last ~ ["a"]|first, (l|sort)[0], l|sort|first, "x"|upper|lower, s|replace("Wörld", "x")|length
true, false, none, True, False, None, [true, none], {"a": none}
1.0, 2.50, 1e2, 10.0 / 2, 3 * 1.0, 7 // 2.0, 2 ** 0.5, 1 + true, true + true, -true
uni, uni|length, [uni[0], uni[1]], uni|upper, "ǆ"|title, "ΑΣ"|lower|length
lines|length, lines.split("\n"), lines|replace("\n", "\\n"), "\r\n" == "\n"
joiner is callable, cycler("a", "b").current, loop is defined, caller is defined, varargs is defined
t == 1, [true] == [1], {"a": 1} == {"a": 1.0}, {"a": 1, "b": 2} == {"b": 2, "a": 1}, "a" != "b", 1 != 1.0, [] == (), "" == none
"abc" > "abd", "ab" < "abc", [1] > [], 1.5 >= 1, -1 <= -1.0
""".strip("\n")

# Expressions that must fail.
FAILING = r"""
missing.x
missing.x.y
missing + 1
missing()
missing["x"]
-missing
missing < 1
1 + "a"
"a" + 1
"a" + none
1 - "a"
[1] + (2,)
{} + {}
1 / 0
1 // 0
1 % 0
1.0 / 0
0 ** -1
1 < "a"
none < 1
[1] < ["a"]
{} < {}
1 in 5
1 in "1"
none|length
5|length
5|list
none|join
none|first
d|nope
n is nope
d()
s()
n.foo.bar
nothing.foo.bar
s.nope()
l.nope()
"".__class__.__mro__
l.append(4) if false else l.insert(0, 1)
d.update({})
d.pop("b")
d.clear()
range(1000000)
range(1, 2, 0)
range("a")
range(1.5)
"a".split("")
"abc".index("z")
[1, 2].index(9)
missing|tojson
[missing]|tojson
range(3)|tojson
d.keys()|tojson
raise_exception("no: " ~ n)
raise_exception()
strftime_now()
"x"|replace("a")
"x"|replace
"x"|upper(1)
"x".upper(1)
"x"|default(1, 2, 3, 4)
"x"|indent(foo=1)
[1, "a"]|sort
["a", none]|sort
[1, "a"]|max
[1, "a"]|sum
{}|dictsort("x", "y")
[[1]]|unique|list
{[1]: 2}
d[[1]].x
l["a"].x
l[9].x
"%d" % "a"
"%s %s" % (1,)
"%s" % (1, 2)
"{} {}".format(1)
"{x}".format(1)
"{:d}".format("x")
missing|int
missing|float
missing|abs
"x"|round
namespace(1)
dict(1)
dict([1])
s|map("nope")|list
l|select("nope")|list
l|map|list
l|selectattr|list
words|map(attribute="x", foo=1)|list
l|batch
(l|map("string")).x.y
l|map("string")|length
{"a": 1}.items()[0].x
l[::0]
l["a":]
s["a":"b"]
cycler()
5.split(",")
none|items|list
[1]|items|list
s|sum
5 is divisibleby(0)
"a" is odd
none is even
"a".join([1])
"a".startswith(1)
"a".center("x")
l|join(attribute="a.b.c")
[{}]|sum(attribute="a")
""".strip("\n")

# Whole templates. A tag, `\` at the end of a line, and white space matter.
TEMPLATES = [
    "a\n", "a\n\n", "\n", "", "a\r\nb\r\n", "{{ 1 }}\n{{ 2 }}\n", "{{ 1 }}\r\nx",
    "  {% if t %}\n  yes\n  {% endif %}\nend", "x {% if t %} y {% endif %} z", "{%- if t -%}  a  {%- endif -%}  b",
    "a  \n  {%- if t %}\n b {% endif +%}\n c", "a\n  {%+ if t %}b{% endif %}\n\nc", "  {{ 1 }}  {{- 2 -}}  3", "a {#- c -#} b",
    "a\n  {# c #}\nb", "a\n  {#+ c +#}\nb", "x{# a\n b #}\n\ny", "{# {{ no }} #}{{ 1 }}", "\t{% set x = 1 %}\t\n\tz",
    "{% raw %}{{ a }} {% if %}{% endraw %}", "a\n  {% raw %}\n  {{ x }}\n  {% endraw %}\nb", "a {%- raw -%}  {{ x }}  {%- endraw -%}  b",
    "{% raw %}{# c #}{% endraw -%}\n  x", "{{ '{{' }} {{ '%}' }}", "{{ {'a': {'b': 1}} }}", "{{ {'a': {'b': 1}}['a'] }}", "{ {x} {% set a = {'b': {}} %}{{ a }}",
    "{% if 0 %}a{% elif n == 7 %}b{% elif 1 %}c{% else %}d{% endif %}", "{% if missing %}a{% else %}b{% endif %}", "{% if not l %}a{% endif %}",
    "{% for x in l %}{{ x }}{% if not loop.last %}, {% endif %}{% endfor %}", "{% for x in [] %}a{% else %}none{% endfor %}",
    "{% for x in l if x > 1 %}{{ loop.index }}:{{ x }} {% else %}-{% endfor %}", "{% for x in l if x > 9 %}{{ x }}{% else %}-{% endfor %}",
    "{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }} {% endfor %}",
    "{% for x in l %}{{ loop.previtem|default('-') }}{{ x }}{{ loop.nextitem|default('+') }} {% endfor %}",
    "{% for x in l %}{{ loop.cycle('a', 'b') }}{% endfor %}", "{% for x in [1,1,2,2,1] %}{{ loop.changed(x) }} {% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "{% for k in d %}{{ k }}{% endfor %}", "{% for c in 'aé😀' %}[{{ c }}]{% endfor %}",
    "{% for a, b in nested %}{{ a * b }} {% endfor %}", "{% for (a, b), c in [((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}", "{% for a, b in [[1]] %}{% endfor %}",
    "{% for a, b in [[1, 2, 3]] %}{% endfor %}", "{% for x in 5 %}{% endfor %}", "{% for x in none %}{% endfor %}", "{% for x in missing %}a{% else %}b{% endfor %}",
    "{% for x in range(10) %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 5 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in l %}{% for y in l %}{% if y == x %}{% break %}{% endif %}{{ loop.index }}{% endfor %}|{% endfor %}", "{% for x in l %}{% break %}{% else %}no{% endfor %}", "{% for x in l %}{% if x > 1 %}{% continue %}{% endif %}{% else %}no{% endfor %}", "{% for x in l %}{% continue %}{% else %}no{% endfor %}",
    "{% for i in tree recursive %}{{ i.v }}{% if i.c %}({{ loop(i.c) }}){% endif %}{{ loop.depth }}{% endfor %}", "{% for i in l %}{{ loop(l) }}{% endfor %}",
    "{% set x = 1 %}{% for i in l %}{{ x }}{% set x = i %}{{ x }}{% endfor %}{{ x }}", "{% set x = 1 %}{% if t %}{% set x = 2 %}{% endif %}{{ x }}",
    "{% for i in l %}{% set y = i %}{% endfor %}{{ y is defined }}", "{% set ns = namespace(x=0) %}{% for i in l %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}",
    "{% set ns = namespace({'a': 1}, b=2) %}{% set ns.c = ns.a + ns.b %}{{ ns.c }}{{ ns.zz }}|{{ ns['a'] }}", "{% set d2 = {} %}{% set d2.x = 1 %}", "{% set a, b = 1, 2 %}{{ a }}{{ b }}",
    "{% set a = 1, 2 %}{{ a }}", "{% set (a, b) = [3, 4] %}{{ a + b }}", "{% set a, b = [1] %}", "{% set x %}a {{ n }} b{% endset %}[{{ x }}]", "{% set x | upper | trim %} a {% endset %}[{{ x }}]",
    "{% set ns = namespace() %}{% set ns.x %}block{% endset %}{{ ns.x }}", "{% set x %}{% set y = 1 %}{% endset %}{{ y is defined }}", "{% set loop_messages = l[1:] %}{{ loop_messages }}",
    "{% macro m(a, b=2, c=a) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }} {{ m(1, 3) }} {{ m(a=5, c=6) }} {{ m() }}", "{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{% endmacro %}{{ m(b=2) }}",
    "{% macro m(a) %}{% endmacro %}{{ m(1, a=2) }}", "{% macro m(a, b=1, c) %}{% endmacro %}", "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, x=3) }}", "{% macro m(n) %}{% if n > 0 %}{{ n }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(5) }}",
    "{% macro m() %}{{ x }}{% endmacro %}{% set x = 5 %}{{ m() }}", "{% macro m() %}{% set x = 9 %}{{ x }}{% endmacro %}{% set x = 5 %}{{ m() }}{{ x }}", "{% macro m(x) %}{{ x|upper }}{% endmacro %}{{ m('a') ~ m('b') }}{{ m('q')|lower }}",
    "{% macro m() %}[{{ caller() }}]{% endmacro %}{% call m() %}in {{ n }}{% endcall %}", "{% macro m(l) %}{% for x in l %}{{ caller(x) }}{% endfor %}{% endmacro %}{% call(v) m(l) %}<{{ v }}>{% endcall %}",
    "{% macro m() %}{{ caller is defined }}{% endmacro %}{{ m() }}", "{% macro m() %}{% endmacro %}{% call m() %}x{% endcall %}", "{% macro m() %}x{% endmacro %}{{ m.name }}{{ m is callable }}{{ m is defined }}", "{% macro loud(s) %}{{ s }}!{% endmacro %}{{ l|map('string')|join }}{{ loud(*['a']) }}{{ loud(**{'s': 'b'}) }}",
    "{% macro r(n) %}{{ r(n) }}{% endmacro %}{{ r(1) }}", "{% for i in l %}{% macro k() %}{{ i }}{% endmacro %}{{ k() }}{% endfor %}", "{% for x in l %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}",
    "{% filter upper %}a {{ s }} b{% endfilter %}", "{% filter replace('a', 'b')|upper %}aXa{% endfilter %}", "{% with a = 1, b = n %}{{ a + b }}{% endwith %}{{ a is defined }}", "{% set a = 5 %}{% with a = 1, b = a %}{{ b }}{% endwith %}", "{% with %}{% set q = 1 %}{% endwith %}{{ q is defined }}",
    "{% set j = joiner('; ') %}{% for x in l %}{{ j() }}{{ x }}{% endfor %}", "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.reset() }}{{ c.next() }}",
    "{% set g = l|map('string') %}{{ g|join }}|{{ g|join }}|{{ g is iterable }}{% if g %}y{% endif %}", "{% set g = l|select('odd') %}{{ g|first }}{{ g|list }}", "{% for g, items in users[:3]|groupby('age') %}{{ g }}:{{ items|length }} {% endfor %}", "{% for g in users[:3]|groupby('age') %}{{ g.grouper }}{{ g.list|length }}{% endfor %}",
    "{% for b in l|batch(2) %}{{ b }}{% endfor %}", "{{ 'a' if missing else 'b' }}{{ 'x' if no }}", "{% set x = none %}{% if x is none %}N{% endif %}{% if x is not none %}S{% endif %}", "{% if s is string and s|length > 3 or missing.x %}ok{% endif %}", "{{ (missing|default({})).x is defined }}",
    "{% set m = {'role': 'user'} %}{{ 'content' in m }}{{ m.content is defined }}{{ m.content }}|{{ m['content'] is none }}", "{%- for m in users -%}\n  {{- m.name }}\n{% endfor -%}\nx", "{% for m in users %}\n{{ m.name }}\n{% endfor %}\nx", "    {%- set x = 1 %}   \n  {{ x }}\n", "a{% set x = 1 -%}\n\n b", "a\n\n{%- set x = 1 %}\n\nb",
    "{{ 'a\\n' }}\n{{- 'b' }}", "{% if t %}\n\n\nx\n{% endif %}\n\ny", "<|im_start|>{{ 'x' }}<|im_end|>\n", "{{ \"<think>\\n\\n</think>\\n\\n\" }}", "{{- '' -}}\n\n", "a\x0b \x1f{%- if t %}b{% endif %}", "{{ 1 }}{{ 2 }}\n\n{{- 3 }}",
    "{% if t: %}x{% endif %}", "{%if t%}x{%endif%}{%-if t-%}y{%-endif-%}", "{{1}}{{-2-}}{{ - 3 }}", "{{ n\n + \n1 }}", "{% set x = [\n1,\n2\n] %}{{ x }}", "{% set x = 1 %}{% set x = x + 1 %}{{ x }}{% for i in l %}{% if loop.first %}{% set x = 100 %}{% endif %}{{ x }} {% endfor %}",
    "{{ 'a\\\nb' }}", "é{{ 'ü' }}{# ö #}ä", "{{ s.split(',')[-1].strip() }}", "{{ 'a</think>b'.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') }}",
    # syntax that must fail
    "{{", "{{ 1", "{{ }}", "{% %}", "{% if %}{% endif %}", "{% if t %}", "{% endif %}", "{% for x in l %}", "{% for in l %}{% endfor %}", "{% for x l %}{% endfor %}", "{{ 1 + }}", "{{ (1 }}", "{{ [1 }}", "{{ 1) }}", "{{ {1 2} }}", "{{ 'a }}", "{# x", "{% raw %}x",
    "{% nope %}", "{% else %}", "{% break %}", "{% set %}", "{% set 1 = 2 %}", "{% set true = 1 %}", "{% macro %}{% endmacro %}", "{% macro m %}{% endmacro %}", "{{ f(a=1, 2) }}", "{{ f(**a, b=1) }}", "{{ a is }}", "{{ a | }}", "{{ a. }}", "{{ a[ }}", "{{ a[] }}", "{{ ! }}", "{{ a ? b }}", "{{ 1 2 }}", "{{ x is string is none }}", "{{ 007 }}", "{% call 1 %}{% endcall %}", "{{ a b }}", "{% if t %}{% endfor %}", "{% set x = %}", "{{ @ }}", "{{ '\\x4' }}", "{% for x in l %}{% endif %}", "{% filter %}{% endfilter %}",
]


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message):
    raise TemplateError(message)


def main():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    expressions = (EXPRESSIONS + "\n" + FAILING).split("\n")
    print(json.dumps({"variables": VARIABLES}))
    for source in ["{{ " + e + " }}" for e in expressions] + TEMPLATES:
        row = {"source": source}
        try:
            row["text"] = env.from_string(source).render(**VARIABLES)
            row["text"].encode()
        except Exception as error:  # whatever Python raises, a failure is the expected result
            row.pop("text", None)
            row["error"] = f"{type(error).__name__}: {error}"
        print(json.dumps(row))


if __name__ == "__main__":
    main()
