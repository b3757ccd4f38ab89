// The CUDA backend out of its shared object, libsluice_cuda.so beside this program: the program itself knows
// no CUDA and runs on machines without a driver.
#pragma once

#include <memory>
#include <string>

#include "program/backend.h"

namespace sluice::cli {

/// On a device, by its number. Null, and why in one line, where the library was not built or there is no such
/// device to use.
std::unique_ptr<program::Backend> load_cuda_backend(int device, std::string& why);

}  // namespace sluice::cli
