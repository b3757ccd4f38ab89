#include "profile/trace.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "program/op_info.h"

namespace sluice::profile {
namespace {

using Json = nlohmann::ordered_json;

/// Microseconds whose thousandfold, cut off, is ns: so Perfetto reads them. A slice that came out a
/// nanosecond too early or too long would overlap its neighbour, and Perfetto drops slices that do.
double microseconds(int64_t ns) {
  double us = 1e-3 * static_cast<double>(ns);
  while (static_cast<int64_t>(us * 1000.0) < ns) us = std::nextafter(us, HUGE_VAL);
  return us;
}

Json slice(const std::string& name, const char* category, int track, int64_t begin_ns, int64_t end_ns,
           int64_t origin_ns) {
  return {{"name", name},
          {"cat", category},
          {"ph", "X"},
          {"pid", 1},
          {"tid", track},
          {"ts", microseconds(begin_ns - origin_ns)},
          {"dur", microseconds(end_ns - begin_ns)}};
}

Json track_name(int track, const std::string& name) {
  return {{"name", "thread_name"}, {"ph", "M"}, {"pid", 1}, {"tid", track}, {"args", {{"name", name}}}};
}

}  // namespace

std::string trace_json(const program::Program& program, std::span<const program::BoundKernel> kernels,
                       std::span<const program::StepTimes> steps) {
  Json events = Json::array();
  int workers = 0;
  const size_t ops = program.ops().size();
  for (size_t step = 0; step < steps.size(); ++step) {
    const program::StepTimes& times = steps[step];
    workers = std::max(workers, times.workers);
    const int64_t origin = steps.front().begin_ns;
    events.push_back(slice("step " + std::to_string(step), "step", 0, times.begin_ns, times.end_ns, origin));
    for (int worker = 0; worker < times.workers; ++worker) {
      for (size_t i = 0; i < ops; ++i) {
        const auto& part = times.parts[static_cast<size_t>(worker) * ops + i];
        Json event = slice(program.op_name(program.ops()[i]), program::info(program.ops()[i]).name,
                           worker + 1, part.begin_ns, part.end_ns, origin);
        if (i < kernels.size()) event["args"] = {{"kernel", kernels[i].name}};
        events.push_back(std::move(event));
      }
    }
  }
  events.push_back(track_name(0, "steps"));
  for (int worker = 0; worker < workers; ++worker) {
    events.push_back(track_name(worker + 1, "worker " + std::to_string(worker)));
  }
  return Json{{"displayTimeUnit", "ns"}, {"traceEvents", std::move(events)}}.dump();
}

}  // namespace sluice::profile
