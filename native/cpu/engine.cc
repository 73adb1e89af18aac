#include "cpu/engine.h"

#include <algorithm>
#include <cmath>

namespace policy_loss::cpu {

namespace {

// The most rows of a chunk. Only rows of less than four tokens reach this limit before kChunkTokens.
constexpr int64_t kChunkRows = 4096;
// The chunks of an item of a pass that computes no tokens.
constexpr int64_t kQuickChunks = 16;

}  // namespace

bool is_small(const Layout& layout) {
  return layout.tokens() <= kChunkTokens && layout.rows <= kChunkRows;
}

std::vector<Chunk> plan_chunks(const Layout& layout, bool whole_rows) {
  std::vector<Chunk> chunks;
  chunks.reserve(layout.tokens() / kChunkTokens + 1);
  int64_t first_row = 0;
  int64_t tokens = 0;
  for (int64_t row = 0; row < layout.rows; ++row) {
    const int64_t length = layout.length(row);
    const bool is_split = !whole_rows && length > 2 * kChunkTokens;
    const bool is_full = tokens + length > kChunkTokens || row - first_row == kChunkRows;
    if (first_row < row && (is_split || is_full)) {
      chunks.push_back({first_row, row, 0, -1});
      first_row = row;
      tokens = 0;
    }
    if (is_split) {
      for (int64_t token = 0; token < length; token += kChunkTokens)
        chunks.push_back({row, row + 1, token, std::min(length, token + kChunkTokens)});
      first_row = row + 1;
      tokens = 0;
    } else {
      tokens += length;
    }
  }
  if (first_row < layout.rows) chunks.push_back({first_row, layout.rows, 0, -1});
  return chunks;
}

const Target* target() {
  static const Target* const chosen = choose_target();
  return chosen;
}

Evaluation::Evaluation(std::shared_ptr<const PreparedFunction> function, const BatchView& batch,
                       const Coefficients& coefficients, const Normalizer& normalizer, const Outputs& outputs)
    : function_(std::move(function)),
      batch_(batch),
      coefficients_(coefficients),
      normalizer_(normalizer),
      outputs_(outputs) {}

int64_t Evaluation::open_phase() {
  if (check_abort()) return end();
  if (phase_ == Phase::kBegin) {
    phase_ = Phase::kPlan;
    return 1;
  }
  const bool computes = !function_->function().counts_only();
  const auto items = static_cast<int64_t>(work_.chunks.size());
  if (phase_ == Phase::kPlan) {
    phase_ = Phase::kRows;
    if (items > 0 && (computes || outputs_.counts)) return items;
  }
  if (phase_ == Phase::kRows) weights();
  if (phase_ < Phase::kTokens) {
    if (items > 0 && !check_abort() && next_program_pass()) return program_items();
    phase_ = Phase::kTokens;
    const bool tokens_wanted = computes || outputs_.grad || outputs_.grad_entropy;
    if (items > 0 && tokens_wanted && !check_abort()) return items;
  }
  if (wants_batch_metrics() && !check_abort()) {
    pass_.program.last_segment = program_.segment_count - 1;
    const bool selects = phase_ == Phase::kSelectMetrics ? selections_.next(pass_) : selections_.begin(pass_);
    phase_ = Phase::kSelectMetrics;
    if (selects) return program_items();
  }
  if (!check_abort()) fold();
  return end();
}

// Ends the task. Releases its memory, because otherwise the JavaScript thread would do so.
int64_t Evaluation::end() {
  phase_ = Phase::kEnd;
  selections_.clear();
  work_ = {};
  return 0;
}

void Evaluation::plan() {
  plan_program();
  const Layout& layout = batch_.layout;
  const LossInfo* const loss = function_->info();
  work_.chunks = plan_chunks(layout, program_.segment_count > 1);
  const bool pairs = loss && loss->traits.by_pairs;
  const std::vector<Chunk>& chunks = work_.chunks;
  const bool splits_rows =
      std::any_of(chunks.begin(), chunks.end(), [](const Chunk& c) { return c.is_within_row(); });
  const bool sums_rows = loss && loss->traits.row_sums != RowSums::kNever && (pairs || splits_rows);
  work_.row_tokens.assign(layout.rows, 0);
  work_.row_ends.assign(layout.rows, 0);
  work_.sums.resize(std::max<size_t>(chunks.size(), 1));
  for (ExactSums& sums : work_.sums) sums.clear();
  work_.partials.assign(splits_rows ? chunks.size() : 0, {});
  work_.row_sums.assign(sums_rows ? layout.rows : 0, 0.0);
  work_.row_negatives.assign(sums_rows ? layout.rows : 0, 0.0);
}

void Evaluation::plan_program() {
  const program::Program* const program = function_->program(outputs_.has_grad());
  if (!program) return;
  program_ = program->view();
  const bool stores = program_.has_batch_segment;
  const Layout& layout = batch_.layout;
  const int64_t tokens = layout.tokens();
  const int64_t scanned_stride = program_.has_several_passes ? scanned_begin(layout, layout.rows) : 0;
  work_.batch_values.assign(program_.batch_values, 0.0);
  work_.batch_metrics.assign(program_.batch_metrics, 0.0);
  // Also without rows, the reductions over rows have an address.
  const int64_t rows = std::max<int64_t>(layout.rows, 1);
  pass_.program = {&program_,
                   0,
                   0,
                   stores ? work_.row_values.resize(rows * row_stride(program_)) : nullptr,
                   work_.batch_values.data(),
                   work_.batch_metrics.data(),
                   stores ? work_.gathered.resize(program_.gathered * tokens) : nullptr,
                   tokens,
                   work_.scanned.resize(program_.scanned * scanned_stride),
                   scanned_stride,
                   nullptr};
}

// Goes on to the next pass over the rows before the outputs: over segments that end with a batch segment, or
// over the values that such segments have gathered. Returns false if there is none.
bool Evaluation::next_program_pass() {
  if (!pass_.program.program) return false;
  ProgramPass& pass = pass_.program;
  if (phase_ != Phase::kRows) {
    const bool selects = phase_ == Phase::kProgram ? selections_.begin(pass_) : selections_.next(pass_);
    phase_ = Phase::kSelect;
    if (selects) return true;
    target()->program_batch(pass_);
    pass.first_segment = pass.last_segment + 1;
  }
  phase_ = Phase::kProgram;
  pass.last_segment = pass.first_segment;
  while (pass.last_segment < program_.output_segment) {
    if (program_.segments[pass.last_segment].kind == program::Op::k_batch) return true;
    ++pass.last_segment;
  }
  return false;
}

// Returns how many chunks an item of the current program pass has.
int64_t Evaluation::chunks_per_item() const {
  const ProgramPass& p = pass_.program;
  return phase_ == Phase::kProgram && program_.has_tokens(p.first_segment, p.last_segment) ? 1 : kQuickChunks;
}

int64_t Evaluation::program_items() const {
  const auto chunks = static_cast<int64_t>(work_.chunks.size());
  return (chunks + chunks_per_item() - 1) / chunks_per_item();
}

// Returns the chunks of an item as one, which has whole rows.
Chunk Evaluation::program_chunk(int64_t item) const {
  const auto chunks = static_cast<int64_t>(work_.chunks.size());
  const int64_t first = item * chunks_per_item(), last = std::min(first + chunks_per_item(), chunks);
  return {work_.chunks[first].first_row, work_.chunks[last - 1].last_row, 0, -1};
}

bool Evaluation::wants_batch_metrics() const {
  return program_.batch_metrics > 0 && !normalizer_.given && !outputs_.part;
}

// Computes the metrics of the batch, which the last segment of a program outputs. Returns null if there are
// none, or if the batch is a part.
const double* Evaluation::batch_metrics() {
  if (!wants_batch_metrics()) return nullptr;
  target()->program_batch(pass_);
  return work_.batch_metrics.data();
}

void Evaluation::work(int64_t item) {
  if (check_abort()) return;
  switch (phase_) {
    case Phase::kPlan:
      return plan();
    case Phase::kRows:
      return rows(item);
    case Phase::kProgram:
      return program_pass(program_chunk(item));
    case Phase::kSelect:
    case Phase::kSelectMetrics:
      return selections_.run(pass_, program_chunk(item));
    default:
      return tokens(work_.chunks[item], &work_.sums[item]);
  }
}

void Evaluation::tokens(const Chunk& chunk, ExactSums* sums) {
  with_row_memory(chunk, [&](const TokenPass& pass) { target()->token_pass(pass, chunk, sums); });
}

void Evaluation::program_pass(const Chunk& chunk) {
  with_row_memory(chunk, [&](const TokenPass& pass) { target()->program_pass(pass, chunk); });
}

// Calls compute(pass) for a pass over a chunk. Values that no other pass needs get memory of their own.
template <class Compute>
void Evaluation::with_row_memory(const Chunk& chunk, const Compute& compute) {
  TokenPass pass = pass_;
  RowMemory memory;
  memory.give(&pass, chunk);
  compute(pass);
}

void Evaluation::write_gradients(int64_t first, int64_t last) {
  const Layout& layout = batch_.layout;
  ExactSums unused;
  for (int64_t row = layout.row_of(first); first < last; ++row) {
    const int64_t begin = layout.begin(row);
    const int64_t end = std::min(begin + layout.length(row), last);
    if (first < end) tokens({row, row + 1, first - begin, end - begin}, &unused);
    first = std::max(first, end);
  }
}

void Evaluation::rows(int64_t item) {
  const Chunk& chunk = work_.chunks[item];
  const Function& f = function_->function();
  const bool sum = !work_.row_sums.empty();
  if (chunk.is_within_row()) {
    work_.partials[item] = target()->row_pass(batch_, f.loss, function_->loss(), sum, chunk.first_row,
                                              chunk.first_token, chunk.last_token);
    return;
  }
  // The rows of this chunk are whole. Usually the token pass will compute their row sums itself, while each
  // row is in the cache. Only a loss over pairs of rows needs the row sums before the token pass.
  const bool pairs = sum && function_->info()->traits.by_pairs;
  for (int64_t row = chunk.first_row; row < chunk.last_row; ++row) {
    const RowTotals found =
        target()->row_pass(batch_, f.loss, function_->loss(), pairs, row, 0, batch_.layout.length(row));
    work_.row_tokens[row] = found.tokens;
    work_.row_ends[row] = found.end;
    if (pairs) work_.row_sums[row] = found.sum;
  }
}

void Evaluation::weights() {
  for (size_t i = 0; i < work_.partials.size(); ++i) {
    if (!work_.chunks[i].is_within_row()) continue;
    const int64_t row = work_.chunks[i].first_row;
    work_.row_tokens[row] += work_.partials[i].tokens;
    work_.row_ends[row] = std::max(work_.row_ends[row], work_.partials[i].end);
    if (work_.row_sums.empty()) continue;
    work_.row_sums[row] += work_.partials[i].sum;
    work_.row_negatives[row] += work_.partials[i].negatives;
  }
  BatchCounts& counts = pass_.counts;
  counts.row_length = static_cast<double>(batch_.layout.row_length);
  for (int64_t row = 0; row < batch_.layout.rows; ++row) {
    const int kind = batch_.kind(row);
    const double repeats = batch_.repeats_of(row);
    counts.tokens[kind] += repeats * static_cast<double>(work_.row_tokens[row]);
    counts.rows[kind] += repeats;
  }
  if (outputs_.counts) write_counts(counts, outputs_.counts);
  if (normalizer_.given) counts = normalizer_.counts;
  if (function_->info() && function_->info()->traits.by_pairs)
    add_pairs(*function_, batch_, std::floor(counts.all().rows / 2), work_.row_sums.data(),
              &work_.sums.front());

  pass_.task = this;
  pass_.terms = &function_->function();
  pass_.batch = &batch_;
  pass_.loss = function_->loss();
  pass_.scales = kind_scales(*function_, counts, coefficients_);
  pass_.coefficients = coefficients_;
  pass_.row_tokens = work_.row_tokens.data();
  pass_.row_ends = work_.row_ends.data();
  pass_.row_sums = work_.row_sums.data();
  pass_.row_negatives = work_.row_negatives.data();
  pass_.grad = outputs_.grad;
  pass_.grad_entropy = outputs_.grad_entropy;
  pass_.grad_log_z = outputs_.grad_log_z;
  // Only rows that take part in a program write theirs.
  if (pass_.grad_log_z) std::fill_n(pass_.grad_log_z, batch_.layout.rows, 0.0f);
}

void Evaluation::fold() {
  ExactSums& total = work_.sums.front();
  for (size_t i = 1; i < work_.sums.size(); ++i) total.add(work_.sums[i]);
  if (outputs_.part) write_part(*function_, total, coefficients_, outputs_.part);
  outputs_.present =
      finish(*function_, pass_.counts, coefficients_, total.rounded(), batch_metrics(), outputs_.values);
}

KlEvaluation::KlEvaluation(int estimator, const BatchView& batch, const float* base, double scale, float* out)
    : pass_{estimator, nullptr, base, scale, out, nullptr}, batch_(batch) {}

int64_t KlEvaluation::open_phase() {
  if (check_abort()) return 0;
  ++phase_;
  if (phase_ == 1) return 1;
  return phase_ == 2 ? static_cast<int64_t>(chunks_.size()) : 0;
}

void KlEvaluation::work(int64_t item) {
  if (check_abort()) return;
  if (phase_ == 1)
    plan();
  else
    target()->kl_pass(pass_, chunks_[item], &partials_[item]);
}

void KlEvaluation::plan() {
  pass_.batch = &batch_;
  chunks_ = plan_chunks(batch_.layout);
  partials_.resize(chunks_.size());
  if (!pass_.base) return;
  row_means_.resize(batch_.layout.rows);
  pass_.row_means = row_means_.data();
}

void KlEvaluation::done() {
  if (row_means_.empty()) return;
  RowTotals row;
  for (size_t i = 0; i < chunks_.size(); ++i) {
    if (!chunks_[i].is_within_row()) continue;
    if (chunks_[i].first_token == 0) row = {};
    row.sum += partials_[i].sum;
    row.tokens += partials_[i].tokens;
    row_means_[chunks_[i].first_row] = row.sum / (static_cast<double>(row.tokens) + 1e-8);
  }
  for (const double mean : row_means_) mean_kl_ += mean;
  mean_kl_ /= static_cast<double>(row_means_.size());
}

}  // namespace policy_loss::cpu
