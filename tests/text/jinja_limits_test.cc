// Templates that mean harm, or are merely wrong: each ends in an error that says what and where.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "text/jinja/template.h"
#include "text/support.h"

namespace sluice::text::jinja {
namespace {

using Json = nlohmann::ordered_json;
using testing::HasSubstr;

Limits small_limits() {
  Limits limits;
  limits.steps = 2'000'000;
  limits.memory_bytes = size_t{32} << 20;
  limits.output_bytes = size_t{1} << 20;
  return limits;
}

/// What the template says when it fails; fails the test when it does not.
std::string failure(const std::string& source, const Json& variables = Json::object()) {
  RenderOptions options;
  options.limits = small_limits();
  try {
    const std::string text = Template::parse(source).render(variables, options);
    ADD_FAILURE() << source.substr(0, 200) << "\nrendered " << text.size() << " bytes";
  } catch (const TemplateError& error) {
    return error.what();
  }
  return {};
}

std::string render(const std::string& source, const Json& variables = Json::object()) {
  return Template::parse(source).render(variables);
}

std::string times(size_t count, const std::string& unit) { return repeated(unit, count * unit.size()); }

TEST(JinjaErrors, NameTheLine) {
  EXPECT_EQ(failure("a\nb\n{{ x.y }}"), "line 3: 'x' is undefined");
  EXPECT_EQ(failure("{% if true %}\n{{ d.a.b }}{% endif %}", {{"d", Json::object()}}),
            "line 2: 'dict object' has no attribute 'a'");
  EXPECT_EQ(failure("{{ 1 }}\n\n{% set x = 1 +\n 'a' %}"),
            "line 3: unsupported operand type(s) for +: 'int' and 'str'");
  EXPECT_EQ(failure("{#\n\n#}{% macro m() %}\n{{ 1 / 0 }}{% endmacro %}\n{{ m() }}"),
            "line 4: division by zero");
  EXPECT_EQ(failure("a\n{% if x %}\nb"), "line 2: the block has no 'endif'");
  EXPECT_EQ(failure("a\n\n{{ 1 + }}"), "line 3: unexpected '}}'");
  EXPECT_EQ(failure("\n{{ 'abc }}"), "line 2: the string has no end");
  EXPECT_EQ(failure("\n\n{# abc"), "line 3: the comment has no end");
  EXPECT_EQ(failure("\n{% nope %}"), "line 2: unknown tag 'nope'");
  EXPECT_EQ(failure("\n{{ 1|nope }}"), "line 2: there is no filter 'nope'");
  EXPECT_EQ(failure("\r\n\r{{ 1 is nope }}"), "line 3: there is no test 'nope'");
}

TEST(JinjaErrors, KeepTheWordsOfTheTemplate) {
  try {
    render("\n{{ raise_exception('Only user and assistant roles!') }}");
    FAIL();
  } catch (const TemplateError& error) {
    EXPECT_TRUE(error.raised());
    EXPECT_EQ(error.line(), 2);
    EXPECT_EQ(error.message(), "Only user and assistant roles!");
    EXPECT_STREQ(error.what(), "line 2: Only user and assistant roles!");
  }
}

TEST(JinjaErrors, RefuseIntegersBeyond64Bits) {
  for (const char* source : {"{{ 9223372036854775808 }}", "{{ 9223372036854775807 + 1 }}", "{{ 2 ** 64 }}",
                             "{{ -9223372036854775807 - 2 }}", "{{ 4294967296 * 4294967296 }}",
                             "{{ (-9223372036854775807 - 1) // -1 }}", "{{ -(-9223372036854775807 - 1) }}",
                             "{{ (-9223372036854775807 - 1)|abs }}", "{{ 1e300|int }}", "{{ '%d' % 1e300 }}"})
    EXPECT_THAT(failure(source), HasSubstr("64 bits"));
  // What comes from outside is shown, and calculated with as a float.
  EXPECT_EQ(render("{{ x }} {{ x|tojson }}", {{"x", 18446744073709551615u}}),
            "18446744073709551615 18446744073709551615");
  EXPECT_EQ(render("{{ x - x }} {{ x > 1 }} {{ x is number }}", {{"x", 18446744073709551615u}}),
            "0.0 True True");
  EXPECT_EQ(render("{{ (-9223372036854775807 - 1) % -1 }}"), "0");
}

TEST(JinjaLimits, BoundMemory) {
  for (const char* source :
       {"{{ 'a' * 10**9 }}",
        "{{ 10**18 * 'abc' }}",
        "{{ [1] * 10**9 }}",
        "{{ [[]] * 10**17 }}",
        "{{ 'a'.ljust(10**12) }}",
        "{{ 'a'|center(10**12) }}",
        "{{ 'a'.zfill(10**12) }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%*d' % (10**10, 1) }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ 'a'|indent(10**12) }}",
        "{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor "
        "%}",
        "{% set ns = namespace(s=['a']) %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{% set ns = namespace(s='ab') %}{% for i in range(60) %}{% set ns.s = ns.s|replace('', ns.s) %}{% "
        "endfor %}",
        "{% set ns = namespace(s='ab') %}{% for i in range(60) %}{% set ns.s = ns.s.join([ns.s, ns.s]) %}{% "
        "endfor %}",
        "{% set x = 'a' * 1000000 %}{{ ((x ~ ',') * 20).split(',') }}",
        "{{ ('a' * 10000000)|list }}",
        "{% set l = [] %}{% for i in range(100000) %}{% for j in range(100) %}{{ l.append('x' ~ i ~ j) }}{% "
        "endfor "
        "%}{% endfor %}",
        "{{ [1]|batch(10**12, 'x')|list }}",
        "{{ [1]|slice(10**12)|list }}",
        "{{ '%.1000000000f' % 1.5 }}"})
    EXPECT_THAT(failure(source), testing::AnyOf(HasSubstr("too much memory"), HasSubstr("too many steps"),
                                                HasSubstr("too large"), HasSubstr("too long")))
        << source;
}

TEST(JinjaLimits, BoundSteps) {
  const std::string loop = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}";
  EXPECT_THAT(failure(loop), HasSubstr("too many steps"));
  // A small graph of lists that is a huge tree: printing, comparing and JSON walk the tree.
  const std::string doubled =
      "{% set ns = namespace(a=[], b=[]) %}{% for i in range(40) %}{% set ns.a = [ns.a, ns.a] %}"
      "{% set ns.b = [ns.b, ns.b] %}{% endfor %}";
  for (const char* use : {"{{ ns.a == ns.b }}", "{{ ns.a < ns.b }}", "{{ ns.a|string|length }}",
                          "{{ ns.a|tojson }}", "{{ ns.a in [ns.b] }}", "{{ [ns.a, ns.b]|sort }}"})
    EXPECT_THAT(failure(doubled + use),
                testing::AnyOf(HasSubstr("too many steps"), HasSubstr("too much memory")))
        << use;
  EXPECT_THAT(failure("{{ range(100001) }}"), HasSubstr("100000"));
  EXPECT_THAT(failure("{{ range(10**12) }}"), HasSubstr("100000"));
  EXPECT_EQ(render("{{ range(-9223372036854775807, 9223372036854775807, 9223372036854775806)|list }}"),
            "[-9223372036854775807, -1, 9223372036854775805]");
  EXPECT_EQ(render("{{ range(9223372036854775807, -9223372036854775807, -9223372036854775806)|list }}"),
            "[9223372036854775807, 1, -9223372036854775805]");
  EXPECT_EQ(render("{{ range(-9223372036854775807, 9223372036854775807, 9223372036854775807)|list }}"),
            "[-9223372036854775807, 0]");
}

TEST(JinjaLimits, BoundOutput) {
  EXPECT_THAT(failure("{% for i in range(1000) %}{{ 'a' * 10000 }}{% endfor %}"),
              HasSubstr("output is too long"));
  EXPECT_THAT(failure("{{ s }}", {{"s", times(1 << 20, "ab")}}), HasSubstr("output is too long"));
  EXPECT_THAT(failure(times(1 << 20, "ab")), HasSubstr("more than 1048576 bytes"));
}

TEST(JinjaLimits, BoundRecursion) {
  for (const char* source :
       {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "{% macro m(a=m()) %}{% endmacro %}{{ m() }}",
        "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}",
        "{% macro m() %}{% call m() %}{{ caller() }}{% endcall %}{% endmacro %}{{ m() }}",
        "{% set l = [1] %}{{ l.append(l) }}{% for i in l recursive %}{{ loop(l) }}{% endfor %}",
        "{% set l = [1] %}{{ l.append(l) }}{{ l }}", "{% set l = [1] %}{{ l.append(l) }}{{ l|tojson }}",
        "{% set l = [1] %}{% set k = [1] %}{{ l.append(k) }}{{ k.append(l) }}{{ l == k }}",
        "{% set n = namespace() %}{% set n.n = n %}{{ n }}",
        "{% set ns = namespace(l=[]) %}{% for i in range(100000) %}{% set ns.l = [ns.l] %}{% endfor %}{{ "
        "ns.l }}"})
    EXPECT_THAT(failure(source), HasSubstr("too deeply")) << source;
  // Deep data that is only held does no harm.
  EXPECT_EQ(
      render(
          "{% set ns = namespace(l=[]) %}{% for i in range(100000) %}{% set ns.l = [ns.l] %}{% endfor %}x"),
      "x");
}

TEST(JinjaLimits, BoundNestingOfTheTemplate) {
  const size_t many = 20000;
  const std::pair<std::string, std::string> around[] = {
      {"(", ")"},   {"[", "]"},   {"{1:", "}"},         {"-", ""},     {"not ", ""},     {"x(", ")"},
      {"x[", "]"},  {"1+(", ")"}, {"1 if 1 else ", ""}, {"x|f(", ")"}, {"x is f(", ")"}, {"x is f [", "]"},
      {"f(a=", ")"}};
  for (const auto& [open, close] : around)
    EXPECT_THAT(failure("{{ " + times(many, open) + "1" + times(many, close) + " }}"), HasSubstr("deeply"))
        << open;
  for (const std::string open : {"{% if 1 %}", "{% for a in b %}", "{% macro m() %}", "{% set x %}",
                                 "{% filter f %}", "{% with %}", "{% call m() %}"})
    EXPECT_THAT(failure(times(many, open)), HasSubstr("deeply")) << open;
  for (const std::string chain :
       {"+1", ".a", "[0]", "()", "|f", " and 1", " or 1", "*2", "**2", " if 1", "-1"})
    EXPECT_THAT(failure("{{ x" + times(many, chain) + " }}"), HasSubstr("deeply")) << chain;
  EXPECT_THAT(failure("{% for " + times(many, "(") + "a" + times(many, ")") + " in b %}"),
              HasSubstr("deeply"));
  // Long but flat is fine.
  EXPECT_EQ(render("{{ 'a'" + times(20000, "~1") + " }}").size(), 20001u);
  EXPECT_EQ(render("{% if 0 %}" + times(20000, "{% elif 0 %}") + "{% else %}x{% endif %}"), "x");
  EXPECT_EQ(render("{{ [" + times(20000, "1,") + "]|length }}"), "20000");
  EXPECT_EQ(render("{{ 1" + times(300, "+1") + " }}"), "301");
}

TEST(JinjaLimits, BoundNestingOfTheVariables) {
  Json deep = Json::array();
  for (int i = 0; i < 5000; ++i) deep = Json::array({std::move(deep)});
  EXPECT_THAT(failure("{{ x }}", {{"x", deep}}), HasSubstr("too deeply"));
  EXPECT_EQ(render("y", {{"x", deep}}), "y");  // variables that are never mentioned are never looked at
}

TEST(JinjaLimits, HoldOnASmallStack) {
  // Threads of a server have 8 MB; a quarter of that is enough at the default depth.
  std::string said;
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, static_cast<size_t>((kSlowdown > 1 ? 8 : 2) << 20));
  pthread_t thread;
  const auto work = [](void* out) -> void* {
    const std::string nested = times(20, "{% if 1 %}{% for a in [1] %}{% filter upper %}") + "{{ " +
                               times(20, "[") + "m()" + times(20, "]") + " }}" +
                               times(20, "{% endfilter %}{% endfor %}{% endif %}");
    *static_cast<std::string*>(out) = failure("{% macro m() %}" + nested + "{% endmacro %}{{ m() }}");
    *static_cast<std::string*>(out) += failure("{{ " + times(90, "(x(1)["));
    return nullptr;
  };
  ASSERT_EQ(pthread_create(&thread, &attributes, work, &said), 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
  EXPECT_THAT(said, HasSubstr("too deeply"));
}

TEST(JinjaLimits, EndSoon) {
  // Work that is hidden in one node counts too.
  const double time = seconds([] {
    failure(
        "{% set s = 'a' * 1000000 %}{% for i in range(99999) %}{{ s.count('b') }}{{ s == s ~ '' }}{% endfor "
        "%}");
    failure("{% set s = 'ab' * 500000 %}{% for i in range(99999) %}{{ s[i] }}{% endfor %}");
    failure("{% set l = range(99999)|list %}{% for i in l %}{{ -1 in l }}{% endfor %}");
  });
  EXPECT_LT(time, 5 * kSlowdown);
}

// Of what a number asks for, nothing is made where it cannot fit; a server's limits are large.
TEST(JinjaLimits, RefuseAtOnceWhatANumberAsksFor) {
  for (const char* use :
       {"[1]|slice(10**12)", "[]|slice(10**8, 'x')", "range(9)|slice(9223372036854775807)"}) {
    const double time = seconds([&] {
      try {
        render("{{ " + std::string(use) + "|list|length }}");
        ADD_FAILURE() << use;
      } catch (const TemplateError& error) {
        EXPECT_THAT(error.what(), HasSubstr("too much memory")) << use;
      }
    });
    EXPECT_LT(time, 0.1 * kSlowdown) << use;
  }
  EXPECT_EQ(render("{{ [1, 2]|slice(-1)|list }}{{ [1, 2, 3]|slice(2, 0)|list }}"), "[][[1, 2], [3, 0]]");
}

// What one call of a method does is paid for, whatever is looked for in what.
TEST(JinjaLimits, EndSoonInEveryMethod) {
  const std::string many = "{% set t = 'a' * 1000000 %}{% set w = 'a' * 500000 + 'b' %}";
  for (const char* use :
       {"t.count(w)", "t.find(w)", "t.rfind('b' + 'a' * 500000)", "t.split(w)|length", "t.rsplit(w)|length",
        "t.replace(w, '')|length", "t|replace(w, '')|length", "w in t", "t.partition(w)|length",
        "t.rpartition('b' + w)|length", "t.strip('b' * 100000 + 'a')|length",
        "t|trim('b' * 100000 + 'a')|length", "('a ' * 500000).rsplit()|length",
        "('a ' * 500000).rsplit(none, 3)|length", "('a ' * 500000).split()|length", "(t ~ t).endswith(w)",
        "t.index('a' * 400000)", "t.lstrip('é' * 50000 ~ 'a')|length"}) {
    RenderOptions options;  // those of a server
    const double once =
        seconds([&] { EXPECT_NE(Template::parse(many + "{{ " + use + " }}").render({}, options), ""); });
    EXPECT_LT(once, 0.5 * kSlowdown) << use;
    // A hundred thousand times: an error, after a time that steps bound.
    const std::string loop =
        many + "{% for i in range(100000) %}{% if " + use + " == 5.5 %}{% endif %}{% endfor %}";
    double all = 0;
    all = seconds([&] {
      EXPECT_THAT(failure(loop), testing::AnyOf(HasSubstr("too many steps"), HasSubstr("too long"),
                                                HasSubstr("too much memory")))
          << use;
    });
    EXPECT_LT(all, 7 * kSlowdown) << use;
  }
  std::string variables;
  for (int i = 0; i < 20'000; ++i) variables += "{% set v" + std::to_string(i) + " = 1 %}";
  const double looking = seconds([&] {
    EXPECT_THAT(failure(variables + "{% for i in range(100000) %}{{ v19999 }}{% endfor %}"),
                HasSubstr("too many steps"));
  });
  EXPECT_LT(looking, 5 * kSlowdown);
  EXPECT_EQ(render("{{ ' a b  c '.rsplit() }}{{ ' a b  c '.rsplit(none, 1) }}{{ ' a  b c d'.rsplit(none, 2) "
                   "}}{{ 'a b'.rsplit(none, 0) }}{{ ' '.rsplit(none, 0) }}"),
            "['a', 'b', 'c'][' a b', 'c'][' a  b', 'c', 'd']['a b'][]");
  const std::string long_part(40, 'x');
  EXPECT_EQ(render("{{ (p ~ 'y' ~ p).rfind(p) }} {{ ('z' ~ p).rfind(p ~ 'q') }} {{ (p ~ p).rsplit(p, 1) }}",
                   {{"p", long_part}}),
            "41 -1 ['" + long_part + "', '']");
}

// Steps are of many kinds; time is one.
TEST(JinjaLimits, BoundTime) {
  RenderOptions options;
  options.limits.seconds = 0.1;
  const Template slow =
      Template::parse("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}");
  std::string said;
  const double time = seconds([&] {
    try {
      slow.render({}, options);
    } catch (const TemplateError& error) {
      said = error.what();
    }
  });
  EXPECT_THAT(said, HasSubstr("takes too long"));
  EXPECT_LT(time, 1 * kSlowdown);
}

TEST(JinjaTemplate, RendersFromSeveralThreads) {
  const Template shared =
      Template::parse("{% macro m(x) %}<{{ x }}{{ 'é' * 3 }}>{% endmacro %}{{ m(a) }}{{ m(a ~ 1) }}");
  std::vector<std::string> out(4);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < out.size(); ++i)
    threads.emplace_back([&, i] {
      for (int n = 0; n < 200; ++n) out[i] = shared.render({{"a", "v" + std::to_string(i)}});
    });
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < out.size(); ++i)
    EXPECT_EQ(out[i], "<v" + std::to_string(i) + "ééé><v" + std::to_string(i) + "1ééé>");
}

TEST(JinjaTemplate, AllowsTheChangesThatPublishedTemplatesMake) {
  EXPECT_EQ(render("{% set l = [] %}{% set _ = l.append(1) %}{{ l.append(2) }}{{ l.pop(0) }}{{ l }}"),
            "None1[2]");
  EXPECT_EQ(render("{% generation %}x{% endgeneration %}"), "x");
  EXPECT_THAT(failure("{{ {}.update({'a': 1}) }}"), HasSubstr("may not change"));
}

TEST(JinjaTemplate, PassesBytesThatAreNoTextThrough) {
  EXPECT_EQ(render("\xFF{{ '\xC3' }}{{ '\xE4\xB8'|length }}"),
            "\xFF\xC3"
            "2");
}

// Under the sanitizer for undefined behaviour no sum of theirs may overflow.
TEST(JinjaLimits, NumbersAtTheirEndsAreNumbers) {
  for (const std::string number : {"(-9223372036854775807-1)", "9223372036854775807"}) {
    for (const char* pattern : {"'x'.ljust(#)",
                                "'x'.rjust(#)",
                                "'x'.center(#)",
                                "'x'|center(#)",
                                "'x'.zfill(#)",
                                "'xy'[#:]",
                                "'xy'[:#]",
                                "'xy'[::#]",
                                "[1, 2][#:#:#]",
                                "'xy'.find('y', #)",
                                "'xy'.find('y', 0, #)",
                                "'xy'.count('y', #, #)",
                                "'xy'.startswith('x', #)",
                                "'x y'.split(' ', #)",
                                "'x y'.rsplit(' ', #)",
                                "'xx'.replace('x', 'y', #)",
                                "'xy'|truncate(#)",
                                "'xy'|truncate(3, true, '', #)",
                                "'x\ny'|indent(#)",
                                "[1, 2]|batch(#)|list",
                                "[1, 2]|slice(#)|list",
                                "range(#)|list",
                                "range(0, #, #)|list",
                                "range(#, 0, #)",
                                "1.5|round(#)",
                                "# + #",
                                "# - 1",
                                "# * #",
                                "# // -1",
                                "# % -1",
                                "# ** 2",
                                "-#",
                                "#|abs",
                                "'%d' % #",
                                "'{:d}'.format(#)",
                                "[1].insert(#, 2)",
                                "[1].pop(#)",
                                "[1][#]",
                                "{'a': 1}[#]",
                                "#|string",
                                "#|tojson",
                                "'x' * #"}) {
      std::string source = "{{ " + std::string(pattern) + " }}";
      for (size_t at = source.find('#'); at != std::string::npos; at = source.find('#', at))
        source.replace(at, 1, number);
      RenderOptions options;
      options.limits = small_limits();
      try {
        Template::parse(source).render(Json::object(), options);
      } catch (const TemplateError& error) {
        EXPECT_GE(error.line(), 1) << source;
      }
    }
  }
  for (const char* pad : {"ljust", "rjust", "center", "zfill"})
    EXPECT_EQ(render("{{ 'x'." + std::string(pad) + "(-9223372036854775807-1) }}"), "x");
}

}  // namespace
}  // namespace sluice::text::jinja
