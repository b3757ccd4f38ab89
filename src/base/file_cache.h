// Pages of mapped files that are not needed any more leave this process and the system's page cache; those
// that will be needed come there.
#pragma once

#include <cstddef>
#include <span>

namespace sluice {

/// Takes the pages that lie wholly within these bytes of a mapped file (know_mapping) out of this process
/// and, unless another one maps them, out of the page cache: whoever reads them again reads the file again.
/// Does nothing with other memory.
void drop_pages(std::span<const std::byte> bytes);

/// Asks the system to read these bytes of a mapped file into the page cache, and does not wait for it. Does
/// nothing with other memory.
void bring_pages(std::span<const std::byte> bytes);

/// From here on drop_pages knows these bytes, all of the file with this descriptor, which it closes in the
/// end. Of very many mappings the last are not known: each keeps a file open.
void know_mapping(std::span<const std::byte> bytes, int descriptor);

/// Forgets the mapping that begins here; to be called before it is unmapped.
void forget_mapping(const std::byte* begin);

}  // namespace sluice
