// A hash that clients of a hub know contents by.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace sluice::hub {

class Sha256 {
 public:
  Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;
  ~Sha256();
  void add(std::string_view bytes);
  /// Of all that was added, in hexadecimal digits; the next one begins anew.
  std::string finish();
  void restart();

 private:
  struct Free {
    void operator()(void* context) const;
  };
  std::unique_ptr<void, Free> context_;
};

}  // namespace sluice::hub
