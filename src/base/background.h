// What long work does so that the rest of the process does not notice it.
#pragma once

#include <cstdint>

namespace sluice {

/// The calling thread, as to_background() takes it.
int64_t thread_id();
/// A thread of this process gets a processor where the others leave one, from now on: a thread may be set
/// back, but without privileges never forward again. Where the system has no such thing or refuses, nothing
/// changes.
void to_background(int64_t thread);
/// Threads begun from now on share two heaps, where the allocator would have up to eight for each processor:
/// of memory that many threads take and free in turns, each heap would keep some.
void share_heaps();
/// Gives the system what the allocator holds of memory that was freed. Takes milliseconds.
void give_back_freed_memory();

}  // namespace sluice
