#include "cli/line_input.h"

#include <iostream>

namespace sluice::cli {
namespace {

class PipedInput : public LineInput {
 public:
  Status read(const char*, std::string& line) override {
    if (!std::getline(std::cin, line)) return Status::End;
    if (line.ends_with('\r')) line.pop_back();
    return Status::Line;
  }
  bool is_terminal() const override { return false; }
};

}  // namespace

std::unique_ptr<LineInput> make_piped_input() { return std::make_unique<PipedInput>(); }

}  // namespace sluice::cli
