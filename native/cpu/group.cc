#include "cpu/group.h"

#include <algorithm>

namespace policy_loss::cpu {

Evaluation& EvaluationGroup::add(std::unique_ptr<Evaluation> evaluation) {
  members_.push_back({std::move(evaluation)});
  return *members_.back().evaluation;
}

void EvaluationGroup::abort() {
  for (const Member& member : members_) member.evaluation->abort();
}

int64_t EvaluationGroup::open_phase() {
  int64_t most = 0;
  for (Member& member : members_) {
    if (!begun_ || member.pieces > 0) member.pieces = member.evaluation->next_phase();
    most = std::max(most, member.pieces);
  }
  begun_ = true;
  return most;
}

void EvaluationGroup::work(int64_t piece) {
  for (const Member& member : members_)
    if (piece < member.pieces) member.evaluation->run(piece);
}

void EvaluationGroup::done() {
  for (const Member& member : members_) member.evaluation->done();
}

}  // namespace policy_loss::cpu
