#include "engine/request.h"

#include "base/check.h"

namespace sluice::engine {

std::string_view finish_name(Finish finish) {
  switch (finish) {
    case Finish::EndToken: return "end_token";
    case Finish::StopString: return "stop_string";
    case Finish::Length: return "length";
    case Finish::ContextFull: return "context_full";
    case Finish::Cancelled: return "cancelled";
    case Finish::Error: return "error";
    case Finish::Shutdown: return "shutdown";
    case Finish::OutOfMemory: return "out_of_memory";
  }
  CHECK(false, "finish {}", static_cast<int>(finish));
  return "";
}

ContextExceeded::ContextExceeded(int64_t prompt, int64_t room)
    : Error(fmt::format("the prompt has {} tokens and leaves no room in a context of {}", prompt, room)),
      prompt_tokens(prompt),
      context(room) {}

}  // namespace sluice::engine
