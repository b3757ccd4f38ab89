// Tells systemd, or whoever started this program in its way (sd_notify), that it is ready, that it ends, and
// that it lives. Knows the environment's NOTIFY_SOCKET and WATCHDOG_USEC; where they are not there, nothing
// happens.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"

namespace sluice::cli {

class ServiceManager {
 public:
  ServiceManager();

  /// To be called while a model is fetched and loaded: more time is asked for, now and then.
  void loading();
  void ready();
  void stopping() const { tell("STOPPING=1"); }
  /// To be called a few times a second. `busy` and `steps`: whether the engine has work, and the steps that
  /// it has done. A watchdog is told that all is well as long as an engine with work gets on with it.
  void look(bool busy, int64_t steps);

 private:
  void tell(const std::string& state) const;

  std::string socket_;       ///< empty: nobody wants to hear
  int64_t interval_ns_ = 0;  ///< between two signs of life; 0: nobody waits for any
  int64_t next_ns_ = 0;
  int64_t steps_ = -1;
};

}  // namespace sluice::cli
