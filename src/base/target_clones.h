// SLUICE_CLONES before a function: g++ compiles it for wider vectors, too, and the processor chooses when the
// program starts. The order of a sum stays what it is. Sanitizers do not run what chooses.
#pragma once

#include <climits>  // says which C library this is

#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__clang__) && !defined(SLUICE_SANITIZED)
#define SLUICE_CLONES [[gnu::target_clones("avx512f", "avx2", "default")]]
#else
#define SLUICE_CLONES
#endif
