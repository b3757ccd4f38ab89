// A CUDA runtime without a device, for the host's side of the CUDA backend where no GPU is: device memory is
// the host's, kernels and graphs do nothing. What chooses kernels, places memory, reckons costs and fills
// launches runs as on a GPU of compute capability 9.0.
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace {

constexpr int kSmCount = 132, kOptInShared = 227 * 1024;
constexpr size_t kAlign = 256, kFree = size_t{12} << 30, kAll = size_t{14} << 30;

/// An event: when it was recorded, in milliseconds.
using Event = double;
double now_ms() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}
/// Zeroes, so that what no kernel has computed is a number and a token; only what is touched takes memory.
int allocate(void** at, size_t bytes) {
  void* const block = std::calloc(1, bytes + 2 * kAlign);
  if (block == nullptr) return 2;
  char* const aligned = static_cast<char*>(block) + 2 * kAlign - reinterpret_cast<size_t>(block) % kAlign;
  std::memcpy(aligned - sizeof block, &block, sizeof block);
  *at = aligned;
  return 0;
}
void release(void* at) {
  void* block = nullptr;
  if (at != nullptr) std::memcpy(&block, static_cast<char*>(at) - sizeof block, sizeof block);
  std::free(block);
}
int token(void** at) { return allocate(at, 1); }

/// The driver's resource of SMs, as far as it is read: how many there are. Shares are whole eights.
void set_sms(char* resource, unsigned sms) {
  constexpr size_t kAt = 96;
  std::memcpy(resource + kAt, &sms, sizeof sms);
}
int all_sms(int /*device*/, char* resource, int /*type*/) {
  set_sms(resource, kSmCount);
  return 0;
}
int share_of_sms(char* share, unsigned* /*groups*/, const char* /*all*/, char* /*rest*/, unsigned /*flags*/,
                 unsigned least) {
  set_sms(share, (least + 7) / 8 * 8);
  return 0;
}

}  // namespace

#define NOTHING(name) \
  int name(...) { return 0; }

extern "C" {
void** __cudaRegisterFatBinary(void*) {
  static void* handle;
  return &handle;
}
NOTHING(__cudaRegisterFatBinaryEnd)
NOTHING(__cudaUnregisterFatBinary)
NOTHING(__cudaRegisterFunction)
NOTHING(__cudaRegisterVar)
NOTHING(__cudaPopCallConfiguration)
NOTHING(__cudaPushCallConfiguration)
NOTHING(__cudaLaunchKernel)
int __cudaGetKernel(void** kernel, const void* function) {
  *kernel = const_cast<void*>(function);
  return 0;
}
NOTHING(cudaLaunchKernelExC)
NOTHING(cudaFuncSetAttribute)
NOTHING(cudaSetDevice)
NOTHING(cudaStreamSynchronize)
NOTHING(cudaStreamWaitEvent)
NOTHING(cudaStreamQuery)
NOTHING(cudaStreamBeginCapture)
NOTHING(cudaDeviceSynchronize)
NOTHING(cudaGetLastError)
NOTHING(cudaEventSynchronize)
NOTHING(cudaEventQuery)
NOTHING(cudaGraphLaunch)
NOTHING(cudaGraphUpload)
NOTHING(cudaIpcCloseMemHandle)
int cudaIpcGetMemHandle(...) { return 1; }
int cudaIpcOpenMemHandle(...) { return 1; }
const char* cudaGetErrorString(int) { return "no device"; }
int cudaGetDevice(int* device) { return *device = 0; }
int cudaGetDeviceCount(int* count) {
  *count = 1;
  return 0;
}
int cudaGetDeviceProperties(char* name, int) {
  std::strcpy(name, "no device");
  return 0;
}
int cudaDeviceGetAttribute(int* value, int attribute, int) {
  constexpr int kMostSharedOptIn = 97, kMajor = 75, kMinor = 76;
  *value = attribute == kMajor             ? 9
           : attribute == kMinor           ? 0
           : attribute == kMostSharedOptIn ? kOptInShared
                                           : kSmCount;
  return 0;
}
/// struct cudaFuncAttributes as far as it is read: three sizes, then registers and versions.
int cudaFuncGetAttributes(void* attributes, const void*) {
  const struct {
    size_t sizes[3];
    int threads, registers, ptx_version, binary_version;
  } known{{}, 1024, 64, 90, 90};
  std::memcpy(attributes, &known, sizeof known);
  return 0;
}
int cudaFuncGetName(const char** name, const void*) {
  *name = "kernel";
  return 0;
}
int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, ...) {
  *blocks = 2;
  return 0;
}
int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, ...) {
  *blocks = 2;
  return 0;
}
int cudaOccupancyMaxActiveClusters(int* clusters, ...) {
  *clusters = 32;
  return 0;
}
int cudaGetDriverEntryPointByVersion(const char* name, void** function, ...) {
  const auto is = [name](const char* other) { return std::strcmp(name, other) == 0; };
  *function = is("cuDeviceGetDevResource")        ? reinterpret_cast<void*>(&all_sms)
              : is("cuDevSmResourceSplitByCount") ? reinterpret_cast<void*>(&share_of_sms)
              : is("cuGreenCtxStreamCreate")      ? reinterpret_cast<void*>(&token)
                                                  : reinterpret_cast<void*>(&cudaGetLastError);
  return 0;
}
int cudaMalloc(void** at, size_t bytes) { return allocate(at, bytes); }
int cudaMallocHost(void** at, size_t bytes) { return allocate(at, bytes); }
int cudaFree(void* at) {
  release(at);
  return 0;
}
int cudaFreeHost(void* at) { return cudaFree(at); }
int cudaMemGetInfo(size_t* free, size_t* all) {
  *free = kFree, *all = kAll;
  return 0;
}
int cudaMemcpy(void* to, const void* from, size_t bytes, int) {
  std::memcpy(to, from, bytes);
  return 0;
}
int cudaMemcpyAsync(void* to, const void* from, size_t bytes, int, void*) {
  std::memcpy(to, from, bytes);
  return 0;
}
int cudaMemcpy2DAsync(char* to, size_t to_pitch, const char* from, size_t from_pitch, size_t width,
                      size_t height, int, void*) {
  for (size_t i = 0; i < height; ++i) std::memcpy(to + i * to_pitch, from + i * from_pitch, width);
  return 0;
}
int cudaMemset(void* at, int value, size_t bytes) {
  std::memset(at, value, bytes);
  return 0;
}
int cudaMemsetAsync(void* at, int value, size_t bytes, void*) { return cudaMemset(at, value, bytes); }
int cudaStreamCreateWithFlags(void** stream, unsigned) { return token(stream); }
int cudaStreamDestroy(void* stream) { return cudaFree(stream); }
int cudaStreamEndCapture(void*, void** graph) { return token(graph); }
int cudaGraphInstantiate(void** graph, ...) { return token(graph); }
int cudaGraphExecDestroy(void* graph) { return cudaFree(graph); }
int cudaGraphDestroy(void* graph) { return cudaFree(graph); }
int cudaEventCreateWithFlags(Event** event, unsigned) {
  *event = new Event(now_ms());
  return 0;
}
int cudaEventCreate(Event** event) { return cudaEventCreateWithFlags(event, 0); }
int cudaEventDestroy(Event* event) {
  delete event;
  return 0;
}
int cudaEventRecord(Event* event, void*) {
  if (event != nullptr) *event = now_ms();
  return 0;
}
int cudaEventElapsedTime(float* ms, const Event* begin, const Event* end) {
  *ms = static_cast<float>(*end - *begin) + 1e-3f;
  return 0;
}
}
