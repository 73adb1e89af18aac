// Advantage functions over the rest of a row. From the last token of a row to the first, they compute x_t =
// term_t + decay·x_{t+1}. The return and the advantage of token t follow from x_t. The functions compute in
// float64, because errors accumulate along the row.
//
// GAE: arXiv 1506.02438; REINFORCE++: arXiv 2501.03262; ReMax: arXiv 2310.10505. As in these papers and in
// Trinity-RFT, GAE and REINFORCE++ include every token of a row, masked or not.
#pragma once

#include <cmath>

#include "advantage/advantage.h"

namespace policy_loss {

// Statistics of the unmasked advantages in a batch or in a part of it: their count, their mean, and the sum
// of their squared deviations from the mean. The struct is not in the namespace POLICY_LOSS_TARGET, because
// builds for different instruction sets exchange it.
struct Spread {
  double count = 0, mean = 0, squares = 0;

  PL_FN void add(const Spread& part) {
    if (part.count == 0) return;
    const double total = count + part.count;
    const double difference = part.mean - mean;
    squares += part.squares + difference * difference * count * part.count / total;
    mean += difference * part.count / total;
    count = total;
  }

  // Returns the factor for whitening: 1 / (standard deviation), or 0 if there are no advantages. Whitening
  // subtracts the mean and then multiplies by this factor.
  PL_FN double whitening() const {
    const double variance = count > 1 ? squares / (count - 1) : 0.0;
    return count > 0 ? 1.0 / ::sqrt(variance + 1e-8) : 0.0;
  }
};

// The properties of a recurrence.
struct RecurrenceTraits {
  bool reads_values = false;    // reads the column of values
  bool reads_baseline = false;  // reads the row's baseline
  bool reads_masked = false;    // also uses the rewards of masked tokens, which must then be finite
  bool whitened = false;        // advantages are whitened over the unmasked tokens of the batch
  bool zeroes_masked = false;   // the advantages of masked tokens are 0
};

}  // namespace policy_loss

namespace policy_loss::inline POLICY_LOSS_TARGET {

// What a recurrence reads at one token. next_value is the value of the next token, or 0 at the row's end.
struct RecurrenceToken {
  double reward, value, next_value;
  bool unmasked;
};

// Generalised advantage estimation (GAE): x is the advantage.
struct Gae {
  static constexpr const char* name = "ppo";
  struct Options {
    double gamma, lam;
  };
  static constexpr Field<Options> fields[] = {{"gamma", &Options::gamma}, {"lam", &Options::lam}};
  static constexpr RecurrenceTraits traits{.reads_values = true, .reads_masked = true, .whitened = true};

  double gamma, decay;

  explicit Gae(const Options& o) : gamma(o.gamma), decay(o.gamma * o.lam) {}

  PL_FN double term(const RecurrenceToken& t) const { return t.reward + gamma * t.next_value - t.value; }
  PL_FN double advantage(double x, const RecurrenceToken&, double) const { return x; }
  PL_FN double returns(double x, const RecurrenceToken& t) const { return x + t.value; }
};

// REINFORCE++: x is the discounted sum of the rewards from this token to the row's end.
struct ReinforcePlusPlus {
  static constexpr const char* name = "reinforceplusplus";
  struct Options {
    double gamma;
  };
  static constexpr Field<Options> fields[] = {{"gamma", &Options::gamma}};
  static constexpr RecurrenceTraits traits{.reads_masked = true, .whitened = true, .zeroes_masked = true};

  double decay;

  explicit ReinforcePlusPlus(const Options& o) : decay(o.gamma) {}

  PL_FN double term(const RecurrenceToken& t) const { return t.reward; }
  PL_FN double advantage(double x, const RecurrenceToken&, double) const { return x; }
  PL_FN double returns(double x, const RecurrenceToken&) const { return x; }
};

// ReMax: the advantage is the sum of the rewards from this token to the row's end, minus the row's baseline.
// The baseline is the reward of the greedy answer to the same prompt.
struct Remax {
  static constexpr const char* name = "remax";
  using Options = NoOptions;
  static constexpr RecurrenceTraits traits{.reads_baseline = true};

  static constexpr double decay = 1.0;

  explicit Remax(const Options&) {}

  PL_FN double term(const RecurrenceToken& t) const { return t.unmasked ? t.reward : 0.0; }
  PL_FN double advantage(double x, const RecurrenceToken& t, double baseline) const {
    return t.unmasked ? x - baseline : x;
  }
  PL_FN double returns(double x, const RecurrenceToken&) const { return x; }
};

}  // namespace policy_loss::inline POLICY_LOSS_TARGET
