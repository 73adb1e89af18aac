// Builds the table of passes (see target.h) for one instruction set.
//
// CMake compiles this file, the inner loops and advantage_passes.cc once for each instruction set, with the
// compiler flags for that set. The macro POLICY_LOSS_TARGET holds the name of the set.
#include "cpu/target.h"

#include "cpu/advantage_passes.h"
#include "cpu/kl_pass.h"
#include "cpu/logits_pass.h"
#include "cpu/loops.h"
#include "cpu/product_pass.h"
#include "cpu/program_pass.h"
#include "cpu/row_sums.h"
#include "cpu/token_pass.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

const LossLoops& loss_loops(int index) {
  static_assert(kLossFiles == 2);
  return *(index % kLossFiles == 0 ? loss_loops_of_file<0>(index) : loss_loops_of_file<1>(index));
}

namespace {

cpu::RowTotals row_pass(const BatchView& batch, int loss_index, const void* loss, bool sum, int64_t row,
                        int64_t first, int64_t last) {
  cpu::RowTotals result;
  const int64_t begin = batch.layout.begin(row);
  const uint8_t* const mask = batch.mask + begin;
  result.tokens = count_mask(mask + first, last - first);
  result.end = result.tokens == 0 ? 0 : end_of_unmasked(mask, last);
  if (sum) {
    const LossLoops& loops = loss_loops(loss_index);
    TileReader reader(batch, loops.traits.all_columns());
    reader.start_row(row, result.end - first == result.tokens ? result.end : 0);
    result.sum = sum_row(loops, loss, reader, first, last);
    if (loops.traits.counts_negatives) result.negatives = count_negative_advantages(reader, first, last);
  }
  return result;
}

}  // namespace
}  // namespace policy_loss::inline POLICY_LOSS_TARGET

#define PL_JOIN_(a, b) a##b
#define PL_JOIN(a, b) PL_JOIN_(a, b)
#define PL_TEXT_(a) #a
#define PL_TEXT(a) PL_TEXT_(a)

namespace policy_loss::cpu {

extern const Target PL_JOIN(target_, POLICY_LOSS_TARGET);
const Target PL_JOIN(target_, POLICY_LOSS_TARGET) = {PL_TEXT(POLICY_LOSS_TARGET),
                                                     row_pass,
                                                     token_pass,
                                                     program_pass,
                                                     program_batch,
                                                     count_digits,
                                                     gather_keys,
                                                     count_key,
                                                     kl_pass,
                                                     find_row_statistics,
                                                     broadcast,
                                                     measure,
                                                     recur,
                                                     distill,
                                                     subtract_baselines,
                                                     sum_logits,
                                                     logits_gradient,
                                                     largest_of_groups,
                                                     multiply};

}  // namespace policy_loss::cpu
