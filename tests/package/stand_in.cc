// Stands in for libsluice_cuda.so where packages are tried and none was compiled: it has no device, and says
// so.
#include <cstddef>
#include <cstdio>

extern "C" void* sluice_make_cuda_backend(int /*device*/, char* why, std::size_t why_size) {
  std::snprintf(why, why_size, "no device: a library that stands in");
  return nullptr;
}
