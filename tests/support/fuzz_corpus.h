// A fuzz target without its fuzzer: what a fuzzer once found worth keeping, as a test of every build.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <string>

#include "base/file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace sluice::test {

/// Gives the linked fuzz target each file of tests/fuzz/corpus/`name`; returns how many there are.
inline int run_corpus(const std::string& name) {
  int files = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(SLUICE_SOURCE_DIR "/tests/fuzz/corpus/" + name)) {
    SCOPED_TRACE(entry.path());
    const std::string bytes = read_file(entry.path());
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
    ++files;
  }
  return files;
}

}  // namespace sluice::test
