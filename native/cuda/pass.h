// What the host hands to the kernels of a call, and what the kernels hand to each other: one struct, passed
// by value to each.
//
// The batch is cut into spans of flat tokens, each the work of one warp, whatever rows lie in it; so long
// rows and short ones, padded and packed ones keep all warps equally busy, and every span begins at an
// address that is aligned for 16-byte loads. A row that several spans share leaves a part in each.
#pragma once

#include <cstdint>

#include "cuda/cuda.h"
#include "engine/registry.h"

namespace policy_loss::cuda {

constexpr int kThreads = 256;
constexpr int kWarp = 32;
constexpr int kWarps = kThreads / kWarp;
// Four tokens a lane: 16 bytes of a float32 column.
constexpr int kQuad = 4;
constexpr int kSpanStep = kWarp * kQuad;
// So long that what a warp does once a span costs nothing, so short that a lane's float32 sums keep their
// digits.
constexpr int kMaxSpan = 8192;
// Blocks of the token pass that a multiprocessor is to hold at once: enough loads in flight to keep memory
// busy, and registers enough for the arithmetic.
constexpr int kBlocksPerMultiprocessor = 3;

// The place of the policy loss where a function has none, or where a pass need not know it.
struct NoLoss {
  using Row = NoRow;
  static constexpr int token_metrics = 0;

  PL_FN TokenTerm token(const NoRow&, const Token&) const { return {0.0f, 0.0f}; }
};

// The row pass's finding about a row, or about a span's share of one.
struct RowPart {
  double sum = 0;
  int64_t tokens = 0;
  int64_t negatives = 0;
};

// What the token pass must know of a row. The weights are those of the reported sums; the float32 ones are
// those of the gradient.
template <class Row>
struct RowState {
  double loss_weight, kl_weight, entropy_weight;
  float grad_weight, kl_grad_weight, entropy_grad_weight;
  int kind;
  Row row;
};

// Integers, so that atomic additions give the same sums in any order. All zero between calls: the last block
// of the pass that reads them leaves them so.
struct Totals {
  unsigned long long tokens[2];
  unsigned long long rows[2];
  unsigned row_ticket;
  unsigned token_ticket;
};

// Sums of the token pass that its blocks leave behind for the last of them.
constexpr int kTokenSums = 2 + kMaxTokenMetrics + 2;

struct Pass {
  BatchView batch;  // pointers to device memory
  int64_t tokens;
  int64_t span, spans;
  unsigned columns;  // those that the function reads

  bool has_loss;
  int kl;
  bool entropy, entropy_of_usual_rows_only;
  Aggregation loss_aggregation[2], kl_aggregation, entropy_aggregation;
  Coefficients coefficients;

  Totals* totals;
  RowPart* rows;           // of rows that lie within one span
  RowPart* heads;          // of each span's first row, where that began before the span
  RowPart* tails;          // of each span's last row, where that goes on after the span
  void* states;            // a RowState of each row
  double* pair_sums;       // of each row, for a loss over pairs
  double* row_partials;    // [blocks of the weights pass][kMaxRowMetrics]
  double* token_partials;  // [blocks of the token pass][kTokenSums]
  Result* result;
  float* grad;
  float* grad_entropy;
};

// The output of the KL values' pass.
struct KlOutput {
  const float* base;
  float scale;
  float* out;
};

}  // namespace policy_loss::cuda
