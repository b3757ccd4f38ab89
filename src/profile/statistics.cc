#include "profile/statistics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace sluice::profile {

double mean(const std::vector<double>& values) {
  if (values.empty()) return 0;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double deviation(const std::vector<double>& values) {
  if (values.size() < 2) return 0;
  const double middle = mean(values);
  double squares = 0;
  for (const double value : values) squares += (value - middle) * (value - middle);
  return std::sqrt(squares / static_cast<double>(values.size() - 1));
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double spread(std::vector<double> values) {
  if (values.size() < 4) return 0;
  std::sort(values.begin(), values.end());
  const double middle = median(values);
  return middle > 0 ? (values[values.size() * 3 / 4] - values[values.size() / 4]) / middle : 0;
}

double noise_of_median(const std::vector<double>& values) {
  if (values.size() < 2) return 0;
  const double middle = median(values);
  std::vector<double> distances;
  for (const double value : values) distances.push_back(std::abs(value - middle));
  return 2 * 1.2533 * 1.4826 * median(distances) / std::sqrt(static_cast<double>(values.size()));
}

double noise_of_mean(const std::vector<double>& values) {
  return values.empty() ? 0 : 2 * deviation(values) / std::sqrt(static_cast<double>(values.size()));
}

}  // namespace sluice::profile
