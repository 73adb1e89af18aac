// Advantage functions over the rest of a row. From the last token of a row to the first, they compute x_t =
// term_t + decay·x_{t+1}. The return and the advantage of token t follow from x_t. The functions compute in
// float64, because errors accumulate along the row.
//
// GAE: arXiv 1506.02438; REINFORCE++: arXiv 2501.03262; ReMax: arXiv 2310.10505. As in these papers and in
// Trinity-RFT, GAE and REINFORCE++ include every token of a row, masked or not. verl's forms skip masked
// tokens.
#pragma once

#include <cmath>

#include "advantage/advantage.h"

namespace policy_loss {

// Whitening replaces an advantage a by (a − mean + bias)·scale.
struct Whitening {
  double mean = 0, bias = 0, scale = 0;

  PL_FN double shift() const { return mean - bias; }
  // Computes the difference from the mean first. This keeps the bias, which may be much smaller than the
  // mean, if all advantages are equal.
  PL_FN double whiten(double advantage) const { return (advantage - mean + bias) * scale; }
};

// Statistics of the unmasked advantages in a batch, or in some of its tokens: their count, their mean, and
// the sum of their squared deviations from the mean. The struct is not in the namespace POLICY_LOSS_TARGET,
// because builds for different instruction sets exchange it.
struct Spread {
  double count = 0, mean = 0, squares = 0;

  PL_FN void add(const Spread& other) {
    if (other.count == 0) return;
    const double total = count + other.count;
    const double difference = other.mean - mean;
    squares += other.squares + difference * difference * count * other.count / total;
    mean += difference * other.count / total;
    count = total;
  }

  // Returns how to whiten the advantages: 1 / (standard deviation) is the factor, or 0 if there are no
  // advantages. `tokens` is added to the count when the mean is taken, which shifts the mean a little.
  PL_FN Whitening whitening(double tokens) const {
    if (count == 0) return {};
    const double bias = mean * (tokens / (count + tokens));
    const double spread = squares + count * (bias * bias);
    const double variance = count > 1 ? spread / ((count + tokens) / count * (count - 1)) : 0.0;
    return {mean, bias, 1.0 / ::sqrt(variance + 1e-8)};
  }
};

// The properties of a recurrence.
struct RecurrenceTraits {
  bool reads_values = false;    // reads the column of values
  bool reads_baseline = false;  // reads the row's baseline
  bool reads_masked = false;    // also uses the rewards of masked tokens, which must then be finite
  bool whitened = false;        // advantages are whitened over the unmasked tokens of the batch
  double whitening_tokens = 0;  // the argument of Spread::whitening()
  bool zeroes_masked = false;   // the advantages of masked tokens are 0
  bool skips_masked =
      false;  // a masked token gets the x of the next unmasked token, whose value is next_value
};

}  // namespace policy_loss

namespace policy_loss::inline POLICY_LOSS_TARGET {

// What a recurrence reads at one token. next_value is the value of the next token, or 0 at the row's end. If
// the function skips masked tokens, it is the value of the next unmasked token.
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

// verl's GAE, which skips masked tokens. Like verl, it gives advantages and returns to them too.
struct VerlGae : Gae {
  static constexpr const char* name = "verl/gae";
  static constexpr RecurrenceTraits traits{
      .reads_values = true, .whitened = true, .whitening_tokens = kVerlTokens, .skips_masked = true};

  using Gae::Gae;
};

// verl's REINFORCE++, which skips masked tokens. Their returns are 0.
struct VerlReinforcePlusPlus : ReinforcePlusPlus {
  static constexpr const char* name = "verl/reinforce_plus_plus";
  static constexpr RecurrenceTraits traits{
      .whitened = true, .whitening_tokens = kVerlTokens, .zeroes_masked = true, .skips_masked = true};

  using ReinforcePlusPlus::ReinforcePlusPlus;

  PL_FN double returns(double x, const RecurrenceToken& t) const { return t.unmasked ? x : 0.0; }
};

}  // namespace policy_loss::inline POLICY_LOSS_TARGET
