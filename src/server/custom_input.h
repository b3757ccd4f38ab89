// What a tool that takes any text is called with: the text of its function's one argument, out of the JSON
// that a model writes, as it is written. Knows JSON text only.
#pragma once

#include <string>
#include <string_view>

namespace sluice::server {

class CustomInput {
 public:
  /// Takes more of the arguments, {"input":TEXT} in whole characters, and returns what they add to the text.
  std::string push(std::string_view arguments);
  /// Nothing more comes: returns the rest. Arguments of another form are the text themselves: a model that
  /// wrote something else meant that.
  std::string finish();

 private:
  std::string held_;
  bool open_ = false, closed_ = false;  ///< the string has begun, and ended
};

}  // namespace sluice::server
