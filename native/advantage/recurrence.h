// Advantage functions over the rest of a row: x_t = term_t + decay·x_{t+1}, from the row's end to its
// beginning, and from x_t the token's return and advantage. In float64, as errors would run along the row.
//
// GAE: arXiv 1506.02438; REINFORCE++: arXiv 2501.03262; ReMax: arXiv 2310.10505. As in the sources (and in
// Trinity-RFT), GAE and REINFORCE++ run over every column of a row, masked or not.
#pragma once

#include <cmath>

#include "advantage/advantage.h"

namespace policy_loss {

// How far numbers lie from their mean: of the unmasked advantages of a batch, or of a part of one. One type
// for all builds, which pass it to each other.
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

  // What whitening multiplies by; 0 where there is nothing to be whitened.
  PL_FN double whitening() const {
    const double variance = count > 1 ? squares / (count - 1) : 0.0;
    return count > 0 ? 1.0 / ::sqrt(variance + 1e-8) : 0.0;
  }
};

}  // namespace policy_loss

namespace policy_loss::inline POLICY_LOSS_TARGET {

// One token of a recurrence; next_value is 0 at the row's end.
struct RecurrenceToken {
  double reward, value, next_value;
  bool unmasked;
};

// Generalised advantage estimation: x is the advantage.
struct Gae {
  static constexpr const char* name = "ppo";
  struct Options {
    double gamma, lam;
  };
  static constexpr Field<Options> fields[] = {{"gamma", &Options::gamma}, {"lam", &Options::lam}};
  static constexpr unsigned columns = reads(static_cast<Column>(kValues));
  static constexpr bool whitened = true;
  static constexpr bool masked = false;  // whether advantages are 0 under the mask
  static constexpr bool reads_masked = true;

  double gamma, decay;

  explicit Gae(const Options& o) : gamma(o.gamma), decay(o.gamma * o.lam) {}

  PL_FN double term(const RecurrenceToken& t) const { return t.reward + gamma * t.next_value - t.value; }
  PL_FN double advantage(double x, const RecurrenceToken&, double) const { return x; }
  PL_FN double returns(double x, const RecurrenceToken& t) const { return x + t.value; }
};

// REINFORCE++: x is the discounted reward to go.
struct ReinforcePlusPlus {
  static constexpr const char* name = "reinforceplusplus";
  struct Options {
    double gamma;
  };
  static constexpr Field<Options> fields[] = {{"gamma", &Options::gamma}};
  static constexpr unsigned columns = 0;
  static constexpr bool whitened = true;
  static constexpr bool masked = true;
  static constexpr bool reads_masked = true;

  double decay;

  explicit ReinforcePlusPlus(const Options& o) : decay(o.gamma) {}

  PL_FN double term(const RecurrenceToken& t) const { return t.reward; }
  PL_FN double advantage(double x, const RecurrenceToken&, double) const { return x; }
  PL_FN double returns(double x, const RecurrenceToken&) const { return x; }
};

// ReMax: the reward to go less the reward of the greedy answer, the row's baseline.
struct Remax {
  static constexpr const char* name = "remax";
  struct Options {};
  static constexpr unsigned columns = 0;
  static constexpr bool whitened = false;
  static constexpr bool masked = false;
  static constexpr bool reads_masked = false;
  static constexpr bool reads_baseline = true;

  static constexpr double decay = 1.0;

  explicit Remax(const Options&) {}

  PL_FN double term(const RecurrenceToken& t) const { return t.unmasked ? t.reward : 0.0; }
  PL_FN double advantage(double x, const RecurrenceToken& t, double baseline) const {
    return t.unmasked ? x - baseline : x;
  }
  PL_FN double returns(double x, const RecurrenceToken&) const { return x; }
};

}  // namespace policy_loss::inline POLICY_LOSS_TARGET
