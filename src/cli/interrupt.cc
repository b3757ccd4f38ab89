#include "cli/interrupt.h"

namespace sluice::cli {

InterruptFlag::InterruptFlag() {
  raised_ = false;
  struct sigaction action {};
  action.sa_handler = [](int) { raised_ = true; };  // without SA_RESTART: reading must end
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGINT, &action, &before_);
}

InterruptFlag::~InterruptFlag() { ::sigaction(SIGINT, &before_, nullptr); }

}  // namespace sluice::cli
