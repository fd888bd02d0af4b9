#include "machine/expert_load.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace shoal::machine {
namespace {

/// Above this number of (token, expert) pairs, a normal distribution replaces the exact distribution.
constexpr int64_t kMostCounted = 64;
/// Half of the integration range (in standard deviations), and number of integration steps.
constexpr double kDeviations = 8;
constexpr int kSteps = 400;

double real(int64_t number) {
  return static_cast<double>(number);
}

double log_choose(double n, double k) {
  return std::lgamma(n + 1) - std::lgamma(k + 1) - std::lgamma(n - k + 1);
}

/// Random draws without replacement from a population of experts. `drawn` is the number of draws. Each device has one
/// part of the population.
struct Draw {
  std::vector<double> parts;  ///< size of each device's part
  std::vector<double> seconds;
  double population = 0;
  int64_t drawn = 0;

  double mean(size_t part) const { return real(drawn) * parts[part] / population; }
  double slowest_mean() const {
    double most = 0;
    for (size_t d = 0; d < parts.size(); ++d) most = std::max(most, seconds[d] * mean(d));
    return most;
  }
};

/// Models the (token, selected expert) pairs of T tokens as draws from T copies of the experts. The mean is the same as
/// with a separate draw for each token. The variance is nearly the same.
Draw draw_of(std::span<const int64_t> experts, std::span<const double> seconds, int64_t used, int64_t tokens) {
  Draw draw;
  for (const int64_t count : experts) draw.parts.push_back(real(count * tokens));
  draw.seconds.assign(seconds.begin(), seconds.end());
  draw.population = std::accumulate(draw.parts.begin(), draw.parts.end(), 0.0);
  draw.drawn = std::min(used * tokens, static_cast<int64_t>(draw.population));
  return draw;
}

/// Returns the largest number of draws from `part` for which the device of `part` takes at most `limit` seconds.
int64_t most_within(const Draw& draw, size_t part, double limit) {
  const double most = std::min(draw.parts[part], real(draw.drawn));
  if (draw.seconds[part] <= 0) return static_cast<int64_t>(most);
  return static_cast<int64_t>(std::min(most, std::floor(limit / draw.seconds[part] * (1 + 1e-12))));
}

/// Returns the probability that no device takes more than `limit` seconds. This probability is the number of
/// combinations within the limit, divided by the number of all combinations. The combinations are counted part by part.
/// `ways` is working memory.
double probability_within(const Draw& draw, double limit, std::vector<double>& ways) {
  const auto drawn = static_cast<size_t>(draw.drawn);
  ways.assign(drawn + 1, 0.0);
  ways[0] = 1;
  // The term for n draws from a part is scaled by (drawn / population)^n * exp(-mean), so sums of terms stay near 1.
  const double odds = std::log(real(draw.drawn) / draw.population);
  for (size_t part = 0; part < draw.parts.size(); ++part) {
    const auto most = static_cast<size_t>(most_within(draw, part, limit));
    std::vector<double> of_part(most + 1);
    for (size_t n = 0; n <= most; ++n) {
      of_part[n] = std::exp(log_choose(draw.parts[part], static_cast<double>(n)) + static_cast<double>(n) * odds -
                            draw.mean(part));
    }
    for (size_t sum = drawn + 1; sum-- > 0;) {
      double all = 0;
      for (size_t n = 0; n <= std::min(most, sum); ++n) all += of_part[n] * ways[sum - n];
      ways[sum] = all;
    }
  }
  const double count = real(draw.drawn);
  return ways[drawn] / std::exp(log_choose(draw.population, count) + count * odds - count);
}

/// The exact expectation of the maximum: a sum over all values that the maximum can have.
double counted(const Draw& draw) {
  std::vector<double> values;
  for (size_t d = 0; d < draw.parts.size(); ++d) {
    const auto most = static_cast<int64_t>(std::min(draw.parts[d], real(draw.drawn)));
    for (int64_t n = 0; n <= most; ++n) values.push_back(draw.seconds[d] * real(n));
  }
  std::sort(values.begin(), values.end());
  const auto same = [](double a, double b) { return b - a <= 1e-12 * b; };
  values.erase(std::unique(values.begin(), values.end(), same), values.end());
  double expected = values.back();
  std::vector<double> ways;
  for (size_t i = 0; i + 1 < values.size(); ++i) {
    expected -= (values[i + 1] - values[i]) * std::min(1.0, probability_within(draw, values[i], ways));
  }
  return expected;
}

/// The expectation of the maximum with normal distributions: n[d] = mean[d] + deviation[d] * z[d], and z[d] is standard
/// normal. A correction of the variance accounts for the fixed sum of all n[d]. The correction is exact if the devices
/// are equally busy.
double integrated(const Draw& draw) {
  const double correction = (draw.population - real(draw.drawn)) / std::max(draw.population - 1, 1.0);
  std::vector<double> means, deviations;
  double first = 0, last = 0;
  for (size_t d = 0; d < draw.parts.size(); ++d) {
    if (draw.parts[d] <= 0 || draw.seconds[d] <= 0) continue;
    means.push_back(draw.seconds[d] * draw.mean(d));
    deviations.push_back(draw.seconds[d] * std::sqrt(draw.mean(d) * correction));
    first = std::max(first, means.back() - kDeviations * deviations.back());
    last = std::max(last, means.back() + kDeviations * deviations.back());
  }
  double expected = first;
  const double step = (last - first) / kSteps;
  for (int i = 0; i < kSteps; ++i) {
    const double x = first + (i + 0.5) * step;
    double within = 1;
    for (size_t d = 0; d < means.size(); ++d) {
      if (deviations[d] > 0) within *= 0.5 * std::erfc((means[d] - x) / deviations[d] * M_SQRT1_2);
    }
    expected += (1 - within) * step;
  }
  return expected;
}

}  // namespace

double expected_busiest(std::span<const int64_t> experts, std::span<const double> seconds, int64_t used,
                        int64_t tokens) {
  const Draw draw = draw_of(experts, seconds, used, tokens);
  const double least = draw.population > 0 ? draw.slowest_mean() : 0;
  if (least <= 0) return 0;
  const bool has_one = std::count_if(experts.begin(), experts.end(), [](int64_t count) { return count > 0; }) == 1;
  if (has_one) return least;
  return std::max(least, draw.drawn <= kMostCounted ? counted(draw) : integrated(draw));
}

double expected_excess(std::span<const int64_t> experts, std::span<const double> seconds, int64_t used,
                       int64_t tokens) {
  const Draw draw = draw_of(experts, seconds, used, tokens);
  if (draw.population <= 0) return 0;
  return expected_busiest(experts, seconds, used, tokens) - draw.slowest_mean();
}

}  // namespace shoal::machine
