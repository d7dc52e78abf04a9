#include "tests/conformance/compare.hpp"

#include <algorithm>
#include <cmath>

namespace troupe::conformance {

using sim::Constants;

namespace {

Errors errors_of(std::vector<double> errors) {
  Errors all{.count = errors.size()};
  if (errors.empty()) return all;
  std::sort(errors.begin(), errors.end());
  const std::size_t half = errors.size() / 2;
  all.median = errors.size() % 2 == 1 ? errors[half] : (errors[half - 1] + errors[half]) / 2;
  all.worst = errors.back();
  return all;
}

double off(double predicted, double measured) { return std::abs(predicted / measured - 1); }

bool is_of(const Compared& one, Part part) {
  return (one.phase == "step") == (part == Part::kSteps);
}

std::vector<double> prior_errors(const SystemResult& result, Part part) {
  std::vector<double> errors;
  for (const Compared& one : result.compared)
    if (is_of(one, part)) errors.push_back(off(one.prior_s, one.measured_s));
  return errors;
}

std::vector<double> held_out_errors(const SystemResult& result, Part part) {
  std::vector<double> errors;
  for (const Compared& one : result.compared)
    if (is_of(one, part) && !one.fit_row) errors.push_back(off(one.fitted_s, one.measured_s));
  return errors;
}

template <class Take>
Errors over_systems(const Results& results, Part part, Take take) {
  std::vector<double> all;
  for (const SystemResult& one : results.systems) {
    const std::vector<double> errors = take(one, part);
    all.insert(all.end(), errors.begin(), errors.end());
  }
  return errors_of(std::move(all));
}

/// A row's phases; the last ones are kept, since a fit asks for one after the other.
class RowPhases {
 public:
  explicit RowPhases(const Row& row) : row_(row) {}
  result<double> of(const std::string& phase, const Constants& constants) {
    if (phases_.empty() || !(constants == constants_)) {
      TROUPE_TRY(phases_, predict(row_, constants));
      constants_ = constants;
    }
    return phases_.at(phase);
  }

 private:
  const Row& row_;
  Constants constants_;
  std::map<std::string, double> phases_;
};

/// Constants with which the system's fit row comes out, from its published phases.
result<sim::FittedConstants> fit_to(const System& system, const Row& row) {
  const Constants priors;
  TROUPE_TRY(const auto phases, predict(row, priors));
  RowPhases known(row);
  std::vector<sim::Observation> observations;
  for (const auto& [phase, span] : phases)
    observations.push_back({.name = phase,
                            .measured_s = row.measured.at(phase),
                            .predict = [&known, name = phase](const Constants& constants) {
                              return known.of(name, constants);
                            }});
  return sim::fit(observations, system.constants, priors);
}

result<SystemResult> compare_system(const Published& published, const System& system) {
  SystemResult out{.system = system};
  const Row* fit_row = nullptr;
  for (const Row& row : published.rows)
    if (row.system == system.name && row.name == system.fit_row) fit_row = &row;
  if (fit_row == nullptr)
    return fail(ErrorCode::kConfig, "system {}: no row {} to fit to", system.name, system.fit_row);
  TROUPE_TRY(out.fit, fit_to(system, *fit_row));
  for (const Row& row : published.rows) {
    if (row.system != system.name) continue;
    const auto prior = predict(row, Constants{});
    if (!prior) return fail(Error(prior.error()).wrap(prior.error().code, row.name));
    TROUPE_TRY(const auto fitted, predict(row, out.fit.constants));
    for (const auto& [phase, span] : *prior)
      out.compared.push_back({.row = row.name,
                              .phase = phase,
                              .measured_s = row.measured.at(phase),
                              .prior_s = span,
                              .fitted_s = fitted.at(phase),
                              .fit_row = &row == fit_row});
  }
  return out;
}

/// Predictions of all facts of a kind, with the priors.
template <class Fact, class Prediction>
result<void> predict_all(const std::vector<Fact>& facts,
                         std::vector<std::pair<Fact, Prediction>>& into) {
  for (const Fact& fact : facts) {
    TROUPE_TRY(Prediction prediction, predict(fact, Constants{}));
    into.emplace_back(fact, std::move(prediction));
  }
  return {};
}

}  // namespace

Errors SystemResult::prior(Part part) const { return errors_of(prior_errors(*this, part)); }
Errors SystemResult::held_out(Part part) const { return errors_of(held_out_errors(*this, part)); }
Errors Results::prior(Part part) const { return over_systems(*this, part, prior_errors); }
Errors Results::held_out(Part part) const { return over_systems(*this, part, held_out_errors); }

std::string fastest(const std::map<std::string, double>& spans) {
  std::string best;
  for (const auto& [name, span] : spans)
    if (best.empty() || span < spans.at(best)) best = name;
  return best;
}

bool ties(const std::map<std::string, double>& spans, const std::string& name) {
  const auto found = spans.find(name);
  return found != spans.end() && found->second <= 1.02 * spans.at(fastest(spans));
}

int fastest(const std::map<int, double>& spans) {
  int best = 0;
  for (const auto& [size, span] : spans)
    if (best == 0 || span < spans.at(best)) best = size;
  return best;
}

double saved(const std::map<int, double>& spans, int size) {
  const auto found = spans.find(size);
  return found == spans.end() ? 0 : 1 - found->second / spans.rbegin()->second;
}

result<Results> compare(const Published& published) {
  Results results;
  for (const System& system : published.systems) {
    TROUPE_TRY(SystemResult one, compare_system(published, system));
    results.systems.push_back(std::move(one));
  }
  TROUPE_TRY_VOID(predict_all(published.blind, results.blind));
  TROUPE_TRY_VOID(predict_all(published.transitions, results.transitions));
  TROUPE_TRY_VOID(predict_all(published.generation_tp, results.generation_tp));
  TROUPE_TRY_VOID(predict_all(published.training, results.training));
  TROUPE_TRY_VOID(predict_all(published.placements, results.placements));
  TROUPE_TRY_VOID(predict_all(published.tails, results.tails));
  TROUPE_TRY_VOID(predict_all(published.memory, results.memory));
  return results;
}

}  // namespace troupe::conformance
