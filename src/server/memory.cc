#include "server/memory.h"

namespace sluice::server {

size_t Memory::used() const {
  const std::lock_guard lock(mutex_);
  return used_;
}

size_t Memory::used_by(const std::string& client) const {
  const std::lock_guard lock(mutex_);
  const auto own = clients_.find(client);
  return own == clients_.end() ? 0 : own->second;
}

// must: counts even what is too much.
bool Memory::take(const std::string& client, size_t bytes, bool must) {
  const std::lock_guard lock(mutex_);
  const auto own = clients_.find(client);
  const size_t has = own == clients_.end() ? 0 : own->second, most = limit_ / 2;
  const bool fits = used_ <= limit_ && bytes <= limit_ - used_ && has <= most && bytes <= most - has;
  if ((!fits && !must) || bytes == 0) return fits;
  clients_[client] += bytes;
  used_ += bytes;
  return fits;
}

void Memory::give_back(const std::string& client, size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto own = clients_.find(client);
  if (own == clients_.end()) return;
  if ((own->second -= bytes) == 0) clients_.erase(own);
  used_ -= bytes;
}

bool MemoryShare::grow(size_t bytes) {
  if (!memory_) return true;
  if (!memory_->take(client_, bytes, false)) return false;
  bytes_ += bytes;
  return true;
}

bool MemoryShare::set(size_t bytes) {
  if (!memory_) return true;
  bool fits = true;
  if (bytes > bytes_) {
    fits = memory_->take(client_, bytes - bytes_, true);
  } else if (bytes < bytes_) {
    memory_->give_back(client_, bytes_ - bytes);
  }
  bytes_ = bytes;
  return fits;
}

}  // namespace sluice::server
