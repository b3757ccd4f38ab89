// What happens when a mapped file shrinks while it is in use: the system answers a read past its new end with
// SIGBUS. A table of all mappings lets the handler tell that from every other SIGBUS, and name the file.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace sluice {

/// From here on a SIGBUS inside these bytes writes "sluice: NAME: the file was truncated while it was in use"
/// to standard error and ends the process with exit code 1; any other SIGBUS does what it did before. The
/// first call installs the handler. The table has room for kGuardedMappings; those beyond go unguarded.
void guard_mapping(std::span<const std::byte> bytes, const std::string& name);

/// Forgets the mapping that begins here; to be called before it is unmapped.
void unguard_mapping(const std::byte* begin);

inline constexpr size_t kGuardedMappings = 1024;  ///< of files in many parts, each is one

}  // namespace sluice
