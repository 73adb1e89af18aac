// Runs a user-defined loss, which is a program (program/program.h), on a device.
//
// The segments of a program are divided into ranges. A range ends with a batch segment, because that needs
// the values of all rows. The segment with the outputs is a range of its own, because it needs no reductions:
// its rows are divided among many warps. The rows of other segments are divided only if they are few and long
// (program_rows.cuh).
#pragma once

#include "cuda/context.h"

namespace policy_loss::cuda {

struct Selection;  // program_select.cuh
union Partial;     // program_rows.cuh

// The arguments of the kernels that interpret a program.
struct ProgramPass : Pass {
  program::ProgramView program;  // its arrays are in device memory
  double* row_values;            // [program.row_values][rows]
  double* batch_values;          // [program.batch_values]
  float* scanned;                // [program.scanned][tokens]
  float* gathered;               // [program.gathered][tokens]: the gathered values, by position
  Selection* selection;          // null if the program keeps no values
  unsigned* ties;                // [rows]; null if the program keeps no values
  unsigned* sorted;              // [2][tokens]: positions of tokens by rank; null without ranks
  // [reductions of a segment][tile_count]: the results of the tiles of rows. Null if one warp computes a
  // row.
  Partial* tiles;
  int64_t tile_count;
};

// The segments [first, last) of a program, which one launch computes.
struct SegmentRange {
  // What a launch for rows computes: rows, the tiles of rows, or rows whose tiles were computed. Only a
  // token segment has tiles.
  enum Work { kRows, kTiles, kJoin };

  int first, last;
  unsigned columns = 0;  // the columns that their instructions read
  Work work = kRows;
};

// A program in the memory of a device, with room for the values that it computes.
class ProgramEvaluation {
 public:
  // Sends the program to the device. `request` must outlive this object.
  ProgramEvaluation(Context& context, const Request& request, const DeviceBatch& batch);

  // Returns how much dynamic shared memory the kernel of the outputs needs at most, in bytes per block. The
  // result is the same for calls with and without a gradient. Their tokens are therefore divided in the same
  // way, and their sums have the same bits.
  int memory() const;

  // Launches all kernels of the program, after the weights pass. If the call has a KL loss, the token pass
  // must have stored its gradient before; the program's gradient is added to it. Writes the program's sums
  // and metrics to *pass.result, and clears the sums of terms that the call does not have. The last
  // kernel copies the result to *host_result, unless that is null.
  void run(const Pass& pass, Result* host_result) const;

 private:
  SegmentRange range_of(int first, int last) const;
  void launch_rows(const ProgramPass& pass, int first, int last) const;
  // Returns the dynamic shared memory of a kernel with a RowReducer, in bytes per block.
  int reducer_memory(const SegmentRange& range) const;
  // Launches program_rows_kernel with at least this many warps, if the GPU runs so many at once.
  void launch_range(const ProgramPass& pass, const SegmentRange& range, int64_t warps) const;
  void launch_shared_rows(const ProgramPass& pass, int first, int last) const;
  // Launches the selections over all rows of a range.
  void launch_selections(const ProgramPass& pass, int first, int last) const;
  void launch_outputs(const ProgramPass& pass) const;

  Context& context_;
  const program::ProgramView& host_;
  const program::ProgramView& other_;  // Request::other_program
  program::ProgramView view_;
  const bool batch_metrics_;
  Buffer instructions_, segments_, constants_, uniforms_, row_values_, batch_values_;
  Buffer scanned_, gathered_, selection_, ties_, sorted_, tiles_;
};

}  // namespace policy_loss::cuda
