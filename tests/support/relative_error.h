// How far numbers are from what they should be.
#pragma once

#include <cmath>
#include <vector>

namespace sluice::test {

/// The error's norm in the expected numbers'.
template <typename Number>
double relative_error(const std::vector<float>& actual, const std::vector<Number>& expected) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const auto wanted = static_cast<double>(expected[i]), off = static_cast<double>(actual[i]) - wanted;
    error += off * off;
    norm += wanted * wanted;
  }
  return std::sqrt(error / norm);
}

}  // namespace sluice::test
