#include "cli/cuda_library.h"

#include <dlfcn.h>

#include <filesystem>
#include <system_error>

namespace sluice::cli {

std::unique_ptr<program::Backend> load_cuda_backend(int device, std::string& why) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path path = fs::read_symlink("/proc/self/exe", error).parent_path() / "libsluice_cuda.so";
  if (error || !fs::exists(path, error)) {
    why = "this build has no CUDA backend (preset cuda; libsluice_cuda.so lies beside the program)";
    return nullptr;
  }
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);  // stays for as long as the program
  if (library == nullptr) {
    why = ::dlerror();
    return nullptr;
  }
  using Make = program::Backend* (*)(int device, char* why, size_t why_size);
  const auto make = reinterpret_cast<Make>(::dlsym(library, "sluice_make_cuda_backend"));
  if (make == nullptr) {
    why = path.string() + " is of another version";
    return nullptr;
  }
  char reason[256] = "";
  std::unique_ptr<program::Backend> backend(make(device, reason, sizeof reason));
  why = reason;
  return backend;
}

}  // namespace sluice::cli
