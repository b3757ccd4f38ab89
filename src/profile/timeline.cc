#include "profile/timeline.h"

#include <algorithm>

namespace sluice::profile {

StepParts take_apart(const program::StepTimes& times, size_t ops) {
  StepParts parts;
  parts.op_ns.resize(ops);
  parts.gap_ns.resize(ops + 1);
  const auto workers = static_cast<size_t>(times.workers);
  int64_t ended = times.begin_ns;  // the predecessor, by all workers
  int64_t waited = 0;              // all workers together
  for (size_t i = 0; i < ops; ++i) {
    const program::StepTimes::Part* last = &times.parts[i];  // of the worker that ended last
    for (size_t worker = 0; worker < workers; ++worker) {
      const auto& part = times.parts[worker * ops + i];
      if (part.end_ns > last->end_ns) last = &part;
      waited += part.begin_ns - (i == 0 ? times.begin_ns : times.parts[worker * ops + i - 1].end_ns);
    }
    parts.gap_ns[i] = std::max<int64_t>(0, last->begin_ns - ended);
    parts.op_ns[i] = last->end_ns - std::max(last->begin_ns, ended);
    parts.wait_ns -= parts.gap_ns[i];
    ended = last->end_ns;
  }
  parts.gap_ns[ops] = times.end_ns - ended;
  parts.wait_ns = std::max<int64_t>(0, parts.wait_ns + waited / std::max<int64_t>(1, times.workers));
  return parts;
}

}  // namespace sluice::profile
