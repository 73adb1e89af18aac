// The terms of a call: policy loss − entropy loss + KL loss. They are a plain struct, so that they can be
// copied to every device.
#pragma once

#include "engine/weights.h"

namespace policy_loss {

constexpr int kNone = -1;
// The value of Terms::loss for a user-defined loss, which is a program (see program/program.h).
constexpr int kProgram = -2;

struct Terms {
  int loss = kNone;                      // index in Losses, kProgram or kNone
  Aggregation loss_aggregation[2] = {};  // by kind of row
  // Whether a loss of Losses multiplies the loss of each token by the column kTokenWeights. A program reads
  // the column itself.
  bool weighted = false;

  int kl = kNone;  // index in KlEstimators, or kNone
  Aggregation kl_aggregation = {};

  bool entropy = false;
  bool entropy_of_usual_rows_only = false;
  Aggregation entropy_aggregation = {};

  PL_FN bool has_loss() const { return loss != kNone; }
  PL_FN bool has_kl() const { return kl != kNone; }
  PL_FN bool has_entropy(int kind) const { return entropy && !(entropy_of_usual_rows_only && kind == 1); }
  // Returns whether the call has none of the three terms. It then only counts the tokens and rows of the
  // batch.
  PL_FN bool counts_only() const { return !has_loss() && !has_kl() && !entropy; }
};

}  // namespace policy_loss
