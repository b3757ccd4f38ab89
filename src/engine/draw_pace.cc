#include "engine/draw_pace.h"

#include <algorithm>
#include <tuple>
#include <vector>

namespace sluice::engine {

namespace {

struct Unit {
  double seconds = 0;
  std::vector<DrawPace::Answer*> answers;  ///< that may rest
};

/// Those first on whose requests the least was spent, and of one request those that have waited longest.
void sort_by_need(std::vector<DrawPace::Answer*>& answers) {
  std::map<uint64_t, double> spent;
  for (const DrawPace::Answer* answer : answers) spent[answer->call] += answer->spent;
  std::ranges::sort(answers, {}, [&spent](const DrawPace::Answer* answer) {
    return std::tuple(spent[answer->call], answer->call, answer->last_ns);
  });
}

}  // namespace

void DrawPace::drew(const std::string& client, uint64_t call, double seconds) {
  owe(client, call, seconds);
  if (call != 0) owe(client, 0, seconds);
}

// Names and nodes are used again: a token allocates nothing.
void DrawPace::owe(const std::string& client, uint64_t call, double seconds) {
  name_.first = client, name_.second = call;
  if (const auto debt = debts_.find(name_); debt != debts_.end()) {
    debt->second += seconds;
  } else if (spare_.empty()) {
    debts_.emplace(name_, seconds);
  } else {
    spare_.back().key() = name_, spare_.back().mapped() = seconds;
    debts_.insert(std::move(spare_.back()));
    spare_.pop_back();
  }
}

void DrawPace::pay(double seconds) {
  for (auto debt = debts_.begin(); debt != debts_.end();) {
    debt->second -= seconds;
    const auto paid = debt++;
    if (paid->second > 0) continue;
    if (spare_.size() < kMostSpare) {
      spare_.push_back(debts_.extract(paid));
    } else {
      debts_.erase(paid);
    }
  }
}

void DrawPace::choose(std::span<Answer> answers, double step_seconds) {
  step_seconds = std::max(step_seconds, kLeastStep);
  double all = 0;
  for (const Answer& answer : answers) all += answer.seconds;
  pay(step_seconds);
  if (all <= step_seconds && debts_.empty()) return;
  limit(answers, step_seconds, false);
  limit(answers, step_seconds, true);
  if (!std::ranges::all_of(answers, &Answer::rests)) return;
  for (Answer& answer : answers) answer.rests = false;
}

// Every unit may draw for as long as the step takes, its own draws aside. The cheap ones come first: those
// that keep to that make the step longer for the others.
void DrawPace::limit(std::span<Answer> answers, double step_seconds, bool by_client) {
  std::map<Name, Unit> units;
  for (Answer& answer : answers) {
    Unit& unit = units[{*answer.client, by_client ? 0 : answer.call}];
    if (!answer.draws || answer.rests) continue;
    unit.seconds += answer.seconds;
    unit.answers.push_back(&answer);
  }
  if (units.size() < 2) return;
  std::vector<std::pair<const Name, Unit>*> sorted;
  for (auto& unit : units) sorted.push_back(&unit);
  std::ranges::stable_sort(sorted, {}, [](const auto* unit) { return unit->second.seconds; });
  double others = 0;
  for (auto* named : sorted) {
    Unit& unit = named->second;
    const double allowed = step_seconds + others;
    const auto debt = debts_.find(named->first);
    if (debt != debts_.end()) debt->second -= others;  // the rest is paid
    const bool owes = debt != debts_.end() && debt->second > 0;
    if (unit.seconds <= allowed && !owes) {
      others += unit.seconds;
      continue;
    }
    sort_by_need(unit.answers);
    double left = owes ? 0 : allowed;
    for (size_t i = 0; Answer * answer : unit.answers) {
      answer->rests = owes || (i++ > 0 && answer->seconds > left);
      if (!answer->rests) left -= answer->seconds;
    }
  }
}

}  // namespace sluice::engine
