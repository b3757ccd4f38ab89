// The formats of strings that schemas name, as patterns.
#include <fmt/format.h>

#include <map>
#include <string>

#include "text/grammar/pattern.h"

namespace sluice::text::grammar {
namespace {

// Days that exist, leap years included.
constexpr std::string_view kDate =
    R"((?:(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|)"
    R"(02-(?:0[1-9]|1[0-9]|2[0-8]))|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|)"
    R"((?:0[48]|[2468][048]|[13579][26])00)-02-29))";
constexpr std::string_view kTime =
    R"((?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9]))";
constexpr std::string_view kByte = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
constexpr std::string_view kName = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?";

// RFC 3986, without addresses in brackets; something stands behind the colon.
constexpr std::string_view kHostCharacter = R"([A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})";
constexpr std::string_view kPathCharacter = R"([A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})";
constexpr std::string_view kUri =
    R"([A-Za-z][A-Za-z0-9+.-]*:)"
    R"((?://(?:(?:{0}|:)*@)?(?:{0})*(?::[0-9]*)?(?:/(?:{1})*)*|/(?:(?:{1})+(?:/(?:{1})*)*)?|(?:{1})+(?:/(?:{1})*)*))"
    R"((?:\?(?:{1}|[/?])*)?(?:#(?:{1}|[/?])*)?)";

std::string ipv6_pattern() {
  const std::string part = "[0-9A-Fa-f]{1,4}";
  std::string out = fmt::format("(?:{}:){{7}}{}", part, part);
  for (int before = 0; before <= 7; ++before) {  // "::" stands for at least one part of zeros
    const int after = 7 - before;
    out += before == 0 ? "|:" : fmt::format("|(?:{}:){{1,{}}}", part, before);
    out += after == 0 ? ":" : fmt::format("(?::{}){{1,{}}}", part, after);
  }
  return out + "|::";
}

std::string format_pattern(std::string_view format) {
  if (format.starts_with("uuid") && format.size() == 5 && format[4] >= '1' && format[4] <= '8')
    format = "uuid";
  const std::map<std::string_view, std::string> known = {
      {"date", std::string(kDate)},
      {"time", std::string(kTime)},
      {"date-time", fmt::format("{}T{}", kDate, kTime)},
      {"duration",
       R"(P(?:[0-9]{1,9}W|(?:[0-9]{1,9}Y(?:[0-9]{1,9}M(?:[0-9]{1,9}D)?)?|[0-9]{1,9}M(?:[0-9]{1,9}D)?|[0-9]{1,9}D))"
       R"((?:T(?:[0-9]{1,9}H(?:[0-9]{1,9}M(?:[0-9]{1,9}S)?)?|[0-9]{1,9}M(?:[0-9]{1,9}S)?|[0-9]{1,9}S))?|)"
       R"(T(?:[0-9]{1,9}H(?:[0-9]{1,9}M(?:[0-9]{1,9}S)?)?|[0-9]{1,9}M(?:[0-9]{1,9}S)?|[0-9]{1,9}S)))"},
      {"uuid", "[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}"},
      {"ipv4", fmt::format(R"((?:{}\.){{3}}{})", kByte, kByte)},
      {"ipv6", ipv6_pattern()},
      {"hostname", fmt::format(R"({}(?:\.{})*)", kName, kName)},
      {"email",
       fmt::format(R"([A-Za-z0-9!#$%&'*+/=?^_`{{|}}~-]+(?:\.[A-Za-z0-9!#$%&'*+/=?^_`{{|}}~-]+)*@{}(?:\.{})*)",
                   kName, kName)},
      {"uri", fmt::format(kUri, kHostCharacter, kPathCharacter)},
  };
  const auto found = known.find(format);
  return found == known.end() ? std::string() : found->second;
}

}  // namespace

ExpressionPtr format_expression(std::string_view format, Budget& budget) {
  const std::string pattern = format_pattern(format);
  return pattern.empty() ? nullptr : pattern_expression("^(?:" + pattern + ")$", budget);
}

}  // namespace sluice::text::grammar
