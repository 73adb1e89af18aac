// What the row pass computes for losses without row sums: the numbers of unmasked tokens, and the steps of
// each span that the token pass skips. It follows from the mask and the layout of a batch. So the first call
// on a resident batch keeps it for later calls, which launch no row pass.
#pragma once

#include "cuda/context.h"

namespace policy_loss::cuda {

struct MaskPass {
  int64_t span = 0;  // the length of the spans; 0 if no call has used this object
  Buffer rows, heads, tails, span_states;
  BatchCounts counts;
  bool is_complete = false;  // whether a call that computes the other members has succeeded

  // Makes a call read what an earlier call has computed or, if none has, compute it here.
  void share_with(Context& context, Pass* pass) {
    const auto room = [&](Buffer* buffer, int64_t n, size_t size) {
      const int64_t bytes = n * static_cast<int64_t>(size);
      if (buffer->bytes() < bytes) *buffer = context.allocate(bytes);
    };
    room(&rows, pass->batch.layout.rows, sizeof(RowPart));
    room(&heads, pass->spans, sizeof(RowPart));
    room(&tails, pass->spans, sizeof(RowPart));
    room(&span_states, pass->spans, sizeof(SpanState));
    pass->parts = {rows.as<RowPart>(), heads.as<RowPart>(), tails.as<RowPart>()};
    pass->span_states = span_states.as<SpanState>();
    if (is_complete) pass->known = {true, counts};
  }
};

// The mask passes of a resident batch, which its updates share. The length of the spans depends on how many
// blocks of the token kernel a multiprocessor runs at once, so a batch has at most this many. Only calls that
// compute use them, and these run one after another.
struct MaskPasses {
  MaskPass passes[kFedBlocksPerMultiprocessor];

  MaskPass& of_span(int64_t span) {
    MaskPass* pass = passes;
    while (pass->span != 0 && pass->span != span) ++pass;
    pass->span = span;
    return *pass;
  }
};

}  // namespace policy_loss::cuda
