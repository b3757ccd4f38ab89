// A fuzz target without its fuzzer: what a fuzzer once found worth keeping, as a test of every build.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <string>

#include "base/file.h"

namespace sluice::test {

using FuzzTarget = int (*)(const uint8_t* data, size_t size);

/// Gives a fuzz target each file of tests/fuzz/corpus/`name`; returns how many there are.
inline int run_corpus(FuzzTarget target, const std::string& name) {
  int files = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(SLUICE_SOURCE_DIR "/tests/fuzz/corpus/" + name)) {
    SCOPED_TRACE(entry.path());
    const std::string bytes = read_file(entry.path());
    target(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
    ++files;
  }
  return files;
}

}  // namespace sluice::test
