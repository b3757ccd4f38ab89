#include "backend/cuda/host/resources.h"

#include <cxxabi.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "backend/cuda/host/on_device.h"

namespace sluice::backend::cuda {

namespace {

std::string function_name(const void* kernel) {
#if CUDART_VERSION >= 12030
  const char* mangled = nullptr;
  if (cudaFuncGetName(&mangled, kernel) != cudaSuccess || mangled == nullptr) return "";
  const std::unique_ptr<char, void (*)(void*)> name(abi::__cxa_demangle(mangled, nullptr, nullptr, nullptr),
                                                    std::free);
  return own_name(name ? name.get() : mangled);
#else
  static_cast<void>(kernel);
  return "";
#endif
}

}  // namespace

std::string own_name(const std::string& demangled) {
  const std::string nowhere = "(anonymous namespace)";
  std::string name = demangled;
  for (size_t at = name.find(nowhere); at != std::string::npos; at = name.find(nowhere))
    name.erase(at, nowhere.size());
  name.resize(std::min(name.find_first_of("<("), name.size()));
  return name.substr(name.find_last_of(": ") + 1);
}

void LaunchLog::add(const void* kernel, int64_t blocks, int threads, int64_t shared_bytes) {
  cudaFuncAttributes attributes = {};
  check(cudaFuncGetAttributes(&attributes, kernel));
  LaunchResources launch;
  launch.function = function_name(kernel);
  launch.blocks = blocks;
  launch.threads = threads;
  launch.registers = attributes.numRegs;
  launch.shared_bytes = static_cast<int64_t>(attributes.sharedSizeBytes) + shared_bytes;
  launch.spilled_bytes = static_cast<int64_t>(attributes.localSizeBytes);
  check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&launch.blocks_at_once, kernel, threads,
                                                      static_cast<size_t>(shared_bytes)));
  int most_threads = 0;
  check(cudaDeviceGetAttribute(&most_threads, cudaDevAttrMaxThreadsPerMultiProcessor, current_device()));
  launch.occupancy = static_cast<double>(launch.blocks_at_once) * threads / most_threads;
  list_.push_back(launch);
}

std::string LaunchResources::text() const {
  std::string text = function.empty() ? "" : function + ", ";
  text += fmt::format("{} block{} of {} threads, {} registers, {:.1f} KB shared", blocks,
                      blocks == 1 ? "" : "s", threads, registers, static_cast<double>(shared_bytes) / 1024);
  if (spilled_bytes > 0) text += fmt::format(", {} B of local memory", spilled_bytes);
  return text + fmt::format(", {} block{} an SM ({:.0f} % of its threads)", blocks_at_once,
                            blocks_at_once == 1 ? "" : "s", 100 * occupancy);
}

}  // namespace sluice::backend::cuda
