// In which form a chat template takes messages. Templates disagree: some want a call's arguments as an
// object, some as JSON text; some show a call only where there is no text beside it, some one system message
// alone. Which it is is found out once, by showing a template small conversations and looking for their
// words. Knows templates and OpenAI's message form; control tokens and clients are not its business.
#pragma once

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>

#include "text/jinja/template.h"

namespace sluice::text {

struct MessageForm {
  bool shows_calls = false;        ///< in one form or another
  bool arguments_as_text = false;  ///< a call's arguments are JSON text, otherwise an object
  bool takes_broken_arguments =
      false;                       ///< text stands in the prompt as it is, also where objects are the rule
  bool null_beside_calls = false;  ///< a message with calls and no text has the content null, otherwise ""
  bool text_before_calls = false;  ///< a message with calls shows no text: that gets a message of its own
  std::string reasoning_key = "reasoning_content";  ///< of a message
  bool text_or_reasoning = false;                   ///< a message with calls has one of them alone
  bool one_system_message = false;                  ///< only one is shown, in front: all are joined there
  bool system_in_user_message = false;              ///< none is shown: their text leads the first user's
  bool results_need_calls = false;  ///< a result without the call before it is refused, or not shown
  bool nobody_silent = false;       ///< an answer without a text or a call is refused: it says a space
  bool turns_alternate = false;     ///< user and assistant: never one of them twice in a row
  bool nine_letter_ids = false;     ///< of calls: no others are taken
  bool tools_are_a_list = false;    ///< an empty one where there are none
  bool needs_description = false;   ///< of every tool: without one there is no prompt
  bool needs_parameters = false;    ///< the same
  std::set<std::string> parts;      ///< roles whose content is a list of parts
};

/// Finds out. `variables` are those that do not come with a conversation (bos_token, ...).
MessageForm form_of_template(const jinja::Template& chat_template, const nlohmann::ordered_json& variables);

/// A call as the template writes it, from the first `open` to the last `close`, with a name and arguments
/// that are described in their places. Empty: it writes none.
std::string call_shape(const jinja::Template& chat_template, const nlohmann::ordered_json& variables,
                       const MessageForm& form, std::string_view open, std::string_view close);

/// Puts messages into this form. Their contents are strings; their calls' arguments are objects, with the
/// JSON that they came as in "arguments_text", if it was one, or texts that are no object.
void put_in_form(const MessageForm& form, nlohmann::ordered_json& messages);

}  // namespace sluice::text
