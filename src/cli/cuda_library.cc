#include "cli/cuda_library.h"

#include <dlfcn.h>

#include <filesystem>
#include <system_error>

namespace sluice::cli {

namespace {

constexpr size_t kIdBytes = 128;
constexpr size_t kWhyBytes = 256;

/// A function of the library, which stays for as long as the program; null, and why.
void* function_of_library(const char* name, std::string& why) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path path = fs::read_symlink("/proc/self/exe", error).parent_path() / "libsluice_cuda.so";
  if (error || !fs::exists(path, error)) {
    why = "this build has no CUDA backend (preset cuda; libsluice_cuda.so lies beside the program)";
    return nullptr;
  }
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    why = ::dlerror();
    return nullptr;
  }
  void* const function = ::dlsym(library, name);
  if (function == nullptr) why = path.string() + " is of another version";
  return function;
}

}  // namespace

std::unique_ptr<program::Backend> load_cuda_backend(int device, std::string& why) {
  using Make = program::Backend* (*)(int device, char* why, size_t why_size);
  const auto make = reinterpret_cast<Make>(function_of_library("sluice_make_cuda_backend", why));
  if (make == nullptr) return nullptr;
  char reason[kWhyBytes] = "";
  std::unique_ptr<program::Backend> backend(make(device, reason, sizeof reason));
  why = reason;
  return backend;
}

bool hold_cuda_to_sms(int device, int sms, std::string& why) {
  using Hold = bool (*)(int device, int sms, char* why, size_t why_size);
  const auto hold = reinterpret_cast<Hold>(function_of_library("sluice_hold_to_sms", why));
  if (hold == nullptr) return false;
  char reason[kWhyBytes] = "";
  const bool held = hold(device, sms, reason, sizeof reason);
  why = reason;
  return held;
}

std::vector<std::byte> make_cuda_rank_id(std::string& why) {
  using Make = bool (*)(char* id, char* why, size_t why_size);
  const auto make = reinterpret_cast<Make>(function_of_library("sluice_make_rank_id", why));
  if (make == nullptr) return {};
  char reason[kWhyBytes] = "";
  std::vector<std::byte> id(kIdBytes);
  if (make(reinterpret_cast<char*>(id.data()), reason, sizeof reason)) return id;
  why = reason;
  return {};
}

std::unique_ptr<program::Backend> load_cuda_rank(int device, int rank, int ranks,
                                                 std::span<const std::byte> id, std::string& why) {
  using Make = program::Backend* (*)(int device, int rank, int ranks, const char* id, char* why, size_t);
  const auto make = reinterpret_cast<Make>(function_of_library("sluice_make_cuda_rank", why));
  if (make == nullptr) return nullptr;
  if (id.size() != kIdBytes) {
    why = "rank 0 has no name for the GPUs to find each other by";
    return nullptr;
  }
  char reason[kWhyBytes] = "";
  std::unique_ptr<program::Backend> backend(
      make(device, rank, ranks, reinterpret_cast<const char*>(id.data()), reason, sizeof reason));
  why = reason;
  return backend;
}

void abort_cuda_ranks() {
  std::string why;
  using Abort = void (*)();
  const auto abort = reinterpret_cast<Abort>(function_of_library("sluice_abort_cuda_ranks", why));
  if (abort != nullptr) abort();
}

int64_t cuda_rank_sums_ns() {
  std::string why;
  using Sums = int64_t (*)();
  const auto sums = reinterpret_cast<Sums>(function_of_library("sluice_cuda_rank_sums_ns", why));
  return sums != nullptr ? sums() : 0;
}

}  // namespace sluice::cli
