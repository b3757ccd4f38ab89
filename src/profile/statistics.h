// Means, deviations and medians of samples.
#pragma once

#include <vector>

namespace sluice::profile {

double mean(const std::vector<double>& values);
/// The sample's standard deviation; 0 for fewer than two values.
double deviation(const std::vector<double>& values);
/// The middle value, or the mean of the two in the middle; 0 for none.
double median(std::vector<double> values);
/// How far apart the quarters at both ends begin, as a share of the median; 0 for fewer than four values.
double spread(std::vector<double> values);
/// How far a median of such samples may be off by chance: twice its standard error, the spread taken from the
/// median distance to the median, which outliers do not move (1.4826 and 1.2533: a normal distribution's).
double noise_of_median(const std::vector<double>& values);
/// How far a mean of such samples may be off by chance: twice its standard error. What moves the mean counts
/// here, too: one outlier among n samples moves it by less than this.
double noise_of_mean(const std::vector<double>& values);

}  // namespace sluice::profile
