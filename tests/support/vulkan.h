// The Vulkan backend for tests that need a device (a software one will do): they are skipped, by name, where
// there is none.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>

#include "backend/vulkan/vulkan_backend.h"

namespace sluice::test {

/// One backend for all tests of a program, so that pipelines are made once. SLUICE_TEST_VULKAN names another
/// device than the first.
struct VulkanForTest {
  VulkanForTest() {
    const char* number = std::getenv("SLUICE_TEST_VULKAN");
    backend = backend::make_vulkan_backend({.device = number != nullptr ? std::atoi(number) : 0}, why);
  }
  static VulkanForTest& get() {
    static VulkanForTest one;
    return one;
  }
  std::unique_ptr<program::Backend> backend;
  std::string why;
};

}  // namespace sluice::test

/// In a test's body: `vulkan`, a backend, or the test is skipped.
#define VULKAN_OR_SKIP(vulkan)                                                                  \
  auto& vulkan##_for_test = ::sluice::test::VulkanForTest::get();                               \
  if (!vulkan##_for_test.backend) GTEST_SKIP() << "skipped: vulkan: " << vulkan##_for_test.why; \
  ::sluice::program::Backend& vulkan = *vulkan##_for_test.backend
