// What a program may tell the system about its memory. Wishes: where there is no such thing, nothing happens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace sluice {

/// Memory that will be read through few entries of page tables, or through many, whatever the system's habit.
enum class PageSize : uint8_t { Huge, Small };
/// Of all pages that these bytes lie in.
void want_pages(const void* data, size_t bytes, PageSize size);

/// Whole pages of a mapped file leave this process and, as nobody else has them, the system's cache.
void drop_file_pages(int descriptor, size_t offset, std::span<const std::byte> pages);

}  // namespace sluice
