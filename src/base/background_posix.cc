#include "base/background.h"

namespace sluice {

int64_t thread_id() { return 0; }
void to_background(int64_t) {}
void share_heaps() {}
void give_back_freed_memory() {}

}  // namespace sluice
