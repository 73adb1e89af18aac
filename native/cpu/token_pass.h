// The token pass on one chunk of a batch. For every unmasked token it computes the policy loss, the KL loss
// and the entropy loss. It sums these losses and their metrics, and writes the gradients.
#pragma once

#include "cpu/narrow.h"
#include "cpu/program_rows.h"
#include "cpu/row_sums.h"
#include "cpu/target.h"
#include "engine/row_weights.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

class TokenPassOfChunk {
 public:
  // `program` is null unless the function's loss is user-defined.
  TokenPassOfChunk(const cpu::TokenPass& pass, const cpu::Chunk& chunk, ExactSums* sums, ProgramRows* program)
      : pass_(pass),
        chunk_(chunk),
        batch_(*pass.batch),
        terms_(*pass.terms),
        loss_(terms_.has_loss() && !program ? &loss_loops(terms_.loss) : nullptr),
        program_(program),
        kl_(terms_.has_kl() ? &kl_loops(terms_.kl) : nullptr),
        token_metrics_(program ? program->metrics()
                       : loss_ ? loss_->traits.token_metrics
                               : 0),
        tile_size_(tile_size_of(program)),
        loop_tokens_(loop_tokens_of(terms_, program, batch_.layout.tokens())),
        mask_use_(pass.grad && !program && !terms_.weighted ? MaskUse::kLanesIfMasked : MaskUse::kLanes),
        reader_(batch_, columns_of_loops(pass), program != nullptr),
        columns_of_rows_(columns_of_rows()),
        sums_(sums) {}

  void run() {
    for (int64_t row = chunk_.first_row; row < chunk_.last_row; ++row) {
      begin_ = batch_.layout.begin(row);
      const int64_t first = chunk_.first_token_of_row();
      const int64_t last = chunk_.last_token_of_row(batch_.layout, row);
      if (batch_.repeats_of(row) == 0 || terms_.counts_only()) {
        clear(pass_.grad, first, last);
        clear(pass_.grad_entropy, first, last);
        continue;
      }
      start_row(row, first, last);
      const int64_t end = end_of_tiles(row, first, last);
      for (int64_t at = first; at < end; at += tile_size_) {
        const int n = size_of_tile(at, end);
        if (columns_of_rows_ != 0 && row + 1 < chunk_.last_row)
          reader_.fetch_columns(columns_of_rows_, row + 1, at, n);
        compute_tile(at, n, end);
        if (ends_sum(at + n, end, kSumTokens)) take_sums();
        if (ends_sum(at + n, end, kChunkTokens)) add_sums();
      }
      clear(pass_.grad, end, last);
      clear(pass_.grad_entropy, end, last);
      // The segments after the outputs belong to whole rows.
      if (program_ && !chunk_.is_within_row() && takes_part(pass_, row))
        program_->finish_row(reader_, batch_.layout.length(row), sums_);
    }
  }

  // Returns the set of columns that the loops for a pass read.
  static unsigned columns_of_loops(const cpu::TokenPass& pass) {
    const Terms& terms = *pass.terms;
    unsigned columns = terms.has_kl() ? kl_loops(terms.kl).columns : 0u;
    if (terms.entropy) columns |= reads(kEntropy);
    if (terms.weighted) columns |= reads(kTokenWeights);
    if (pass.program.program) return columns | pass.program.program->columns;
    return columns | (terms.has_loss() ? loss_loops(terms.loss).traits.token_columns() : 0u);
  }

 private:
  unsigned columns_of_rows() const {
    if (chunk_.is_within_row()) return 0;
    if (program_) return program_->columns_before_outputs();
    const bool has_sums = loss_ && !loss_->traits.by_pairs && loss_->needs_row_sums(pass_.loss);
    return has_sums ? loss_->row_sum_columns : 0;
  }

  static int tile_size_of(const ProgramRows* program) { return program ? program->tile_size() : kTile; }

  // If several loops read a tile, they alternate after some tokens. Each prefetches other columns, and if
  // one of them prefetched those of too many tokens at once, it would wait for memory while the others did
  // not. Alternating costs time, which does not pay if the columns are in the cache.
  static int loop_tokens_of(const Terms& terms, const ProgramRows* program, int64_t tokens) {
    constexpr int64_t kCachedTokens = 1 << 19;
    if (terms.has_loss() + terms.has_kl() + terms.entropy == 1) return kTile;
    return program || tokens <= kCachedTokens ? kSharedTile : 2 * kGranule;
  }

  void clear(const GradientView& grad, int64_t first, int64_t last) const {
    if (grad) memset(grad.at(begin_ + first), 0, (last - first) * size_of(grad.dtype));
  }

  // Returns whether the next tile, which begins at `at`, has no unmasked tokens or does not exist.
  bool is_masked(int64_t at, int64_t last) const {
    return at == last || reader_.unmasked_length(at, size_of_tile(at, last)) == 0;
  }

  int size_of_tile(int64_t at, int64_t last) const {
    return static_cast<int>(last - at < tile_size_ ? last - at : tile_size_);
  }

  // Returns where the tiles of a row end that have unmasked tokens. A row has at least one tile, with which
  // its metrics are added.
  int64_t end_of_tiles(int64_t row, int64_t first, int64_t last) const {
    int64_t end = first + tile_size_;
    while (end < pass_.row_ends[row]) end += tile_size_;
    return end < last ? end : last;
  }

  // Begins a row: computes its weights and the statistics that the loss needs.
  void start_row(int64_t row, int64_t first, int64_t last) {
    const double tokens = static_cast<double>(pass_.row_tokens[row]);
    reader_.start_row(row, cpu::solid_tokens(pass_, row));
    row_ = {0.0, tokens, batch_.kind(row)};
    repeats_ = batch_.repeats_of(row);
    weights_ = {};
    const WeightedRow weighted{row_.kind, repeats_, tokens};
    weigh_kl_and_entropy(terms_, pass_.counts, pass_.coefficients, weighted, &weights_);
    if (program_) {
      weigh_loss(terms_, false, pass_.counts, pass_.scales, weighted, &weights_);
      program_->start_row(row, tokens, weights_.loss_grad, repeats_);
      if (takes_part(pass_, row)) program_->run_pass(reader_, batch_.layout.length(row));
    }
    if (!loss_) return;
    const LossTraits& traits = loss_->traits;
    if (traits.by_pairs) {
      weights_.loss_grad = pass_.row_sums[row];
      return;
    }
    weigh_loss(terms_, traits.two_kinds, pass_.counts, pass_.scales, weighted, &weights_);
    if (!loss_->needs_row_sums(pass_.loss)) return;
    double negatives = 0;
    if (chunk_.is_within_row()) {
      row_.sum = pass_.row_sums[row];
      negatives = pass_.row_negatives[row];
    } else {
      row_.sum = sum_row(*loss_, pass_.loss, reader_, first, last);
      if (traits.counts_negatives) negatives = count_negative_advantages(reader_, first, last);
    }
    if (first == 0) loss_->row_metric(pass_.loss, row_, negatives, row_sums_.row_metric);
  }

  // Moves the float32 sums to the float64 sums.
  void take_sums() {
    if (terms_.has_loss()) {
      row_sums_.loss[row_.kind] += loss_sums_.loss.take();
      for (int i = 0; i < token_metrics_; ++i) row_sums_.metric[i] += loss_sums_.metric[i].take();
    }
    if (program_) program_->end_sums();
    if (kl_) row_sums_.kl += kl_sum_.take();
    if (terms_.has_entropy(row_.kind)) row_sums_.entropy += entropy_sum_.take();
  }

  // Adds the float64 sums, times the row's weights, to the sums of the chunk.
  void add_sums() {
    // The factors of a row without tokens may be infinite.
    if (program_ && row_.count > 0) program_->apply_factors(row_.kind, &row_sums_);
    add(ExactSums::kLoss + row_.kind, row_sums_.loss[row_.kind] * weights_.loss);
    for (int i = 0; i < token_metrics_; ++i) add(ExactSums::kMetric + i, row_sums_.metric[i] * repeats_);
    for (int i = 0; i < kMaxRowMetrics; ++i)
      add(ExactSums::kRowMetric + i, row_sums_.row_metric[i] * repeats_);
    add(ExactSums::kKl, row_sums_.kl * weights_.kl);
    add(ExactSums::kEntropy, row_sums_.entropy * weights_.entropy);
    row_sums_ = {};
  }

  // Adds x to sum k of the chunk. Few rows have all sums, and 0 changes none.
  void add(int k, double x) {
    if (x != 0) sums_->add(k, x);
  }

  // Computes the tokens [at, at + n) of a row whose tiles end at `last`. Leaves out the masked tokens at the
  // end if many more follow. If only few did, leaving them out would cost more than computing them, because
  // the processor would no longer prefetch the columns.
  void compute_tile(int64_t at, int n, int64_t last) {
    reader_.fetch_mask(at + n, n);
    int length = reader_.unmasked_length(at, n);
    if (0 < length && length < n && !is_masked(at + n, last)) length = n;
    reader_.tiles(at, length, mask_use_, [&](const TileColumns& in, int padded, int64_t position, int real) {
      compute_padded(in, padded, position, real);
    });
    clear(pass_.grad, at + length, at + n);
    clear(pass_.grad_entropy, at + length, at + n);
  }

  // Computes a tile. Only the first `real` of its `padded` tokens exist. If that is not all of
  // them, or if gradients are not float32, the gradients are written to buffers first. Then only those of the
  // real tokens are copied or converted.
  void compute_padded(const TileColumns& in, int padded, int64_t position, int real) {
    const bool direct = real == padded;
    const int64_t first = begin_ + position;
    float* const g = floats_for(pass_.grad, first, direct, grad_buffer_);
    float* const h = floats_for(pass_.grad_entropy, first, direct, entropy_buffer_);
    if (padded <= loop_tokens_) {
      compute_terms(in, padded, position, g, h);
    } else {
      for (int at = 0; at < padded; at += loop_tokens_)
        compute_terms(in.from(at), padded - at < loop_tokens_ ? padded - at : loop_tokens_, position + at,
                      g ? g + at : g, h ? h + at : h);
    }
    if (g == grad_buffer_) store_numbers(g, real, pass_.grad.dtype, pass_.grad.data, first);
    if (h == entropy_buffer_)
      store_numbers(h, real, pass_.grad_entropy.dtype, pass_.grad_entropy.data, first);
  }

  // Computes n tokens. Writes their gradients to g and h, unless these are null.
  void compute_terms(const TileColumns& in, int n, int64_t position, float* g, float* h) {
    if (loss_)
      loss_->loss_tile(pass_.loss, row_, in, n, static_cast<float>(weights_.loss_grad), g, &loss_sums_);
    if (terms_.has_entropy(row_.kind))
      entropy_tile(in, n, static_cast<float>(weights_.entropy_grad), h, &entropy_sum_);
    else if (h)
      memset(h, 0, n * sizeof(float));
    if (program_) program_->output(in, n, position, g, h, &loss_sums_);
    if (kl_) kl_->tile(in, n, static_cast<float>(weights_.kl_grad), g, terms_.has_loss(), &kl_sum_);
    if (g && !terms_.has_loss() && !kl_) memset(g, 0, n * sizeof(float));
  }

  // Returns where the loops write a gradient.
  static float* floats_for(const GradientView& grad, int64_t first, bool direct, float* buffer) {
    if (!grad) return nullptr;
    return direct && grad.dtype == DType::kFloat32 ? grad.floats() + first : buffer;
  }

  const cpu::TokenPass& pass_;
  const cpu::Chunk& chunk_;
  const BatchView& batch_;
  const Terms& terms_;
  const LossLoops* const loss_;  // null for a user-defined loss
  ProgramRows* const program_;
  const KlLoops* const kl_;
  const int token_metrics_;  // how many metrics the loops of the loss sum
  const int tile_size_;
  // How many tokens of a tile the loop of one term computes before that of the next one.
  const int loop_tokens_;
  const MaskUse mask_use_;
  TileReader reader_;
  // The columns that are read for a row before its tokens are computed. While those of one row are computed,
  // the next row's are prefetched.
  const unsigned columns_of_rows_;
  ExactSums* const sums_;

  // The state for the row that is being computed.
  int64_t begin_ = 0;
  RowStatistics row_{};
  double repeats_ = 0;
  RowWeights weights_;

  // The float32 sums of the last kSumTokens tokens, and the float64 sums of the last kChunkTokens.
  LossSums loss_sums_;
  LaneSum<float> kl_sum_, entropy_sum_;
  Sums row_sums_;

  // Padded like the buffers of TileReader.
  alignas(64) float grad_buffer_[kTile + 48];
  alignas(64) float entropy_buffer_[kTile + 48];
};

inline void token_pass(const cpu::TokenPass& pass, const cpu::Chunk& chunk, ExactSums* sums) {
  if (pass.program.program) {
    ProgramRows program(pass);
    return TokenPassOfChunk(pass, chunk, sums, &program).run();
  }
  TokenPassOfChunk(pass, chunk, sums, nullptr).run();
}

}  // namespace policy_loss::inline POLICY_LOSS_TARGET
