// The kernels of distillation functions. They compute one advantage per token and, for the metrics, each
// row's sums of divergences and of advantages.
#pragma once

#include "cuda/chunks.cuh"
#include "engine/advantage_registry.h"

namespace policy_loss::cuda {

constexpr unsigned kDistillColumns = reads(kOldLogprobInput) | reads(kTeacherLogprobInput);

template <class F>
__global__ void __launch_bounds__(kThreads, kFedBlocksPerMultiprocessor)
    distill_kernel(const AdvantagePass pass, const F f) {
  const Feed<kDistillColumns> feed(pass, kDistillColumns);
  for (int64_t chunk = first_warp(); chunk < pass.chunks; chunk += all_warps())
    sum_rows(
        feed, pass, pass.distill_partials, chunk,
        [&](int64_t, int64_t i, unsigned which, unsigned unmasked, const auto& quads,
            DistillTotals* partial) {
          const Quad old = quads.template column<kOldLogprobInput>();
          const Quad teacher = quads.template column<kTeacherLogprobInput>();
          float value[kQuad];
#pragma unroll
          for (int j = 0; j < kQuad; ++j) {
            const DistillTerm term = f.token(old[j], teacher[j]);
            const bool counts = (unmasked & which) >> j & 1;
            value[j] = counts ? term.advantage : 0.0f;
            partial->divergence += counts ? term.divergence : 0.0f;
            partial->advantage += counts ? term.advantage : 0.0f;
          }
          store_quad(pass.advantages, i, which, value);
        },
        [](int64_t, const DistillTotals&) {});
}

// Computes the two sums of each row by adding up the row's partials (pass.h).
static __global__ void __launch_bounds__(kThreads) row_distill_kernel(const AdvantagePass pass) {
  for_whole_rows(pass, pass.distill_partials, [&](int64_t row, const DistillTotals& totals) {
    pass.row_divergences[row] = totals.divergence;
    pass.row_advantages[row] = totals.advantage;
  });
}

}  // namespace policy_loss::cuda
