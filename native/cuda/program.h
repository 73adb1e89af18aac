// Runs a user-defined loss, which is a program (program/program.h), on a device.
//
// The segments of a program are divided into stages. A stage ends with a batch segment, because that needs
// the values of all rows. The segment with the outputs is a stage of its own, because it needs no reductions:
// its rows are divided among many warps. The rows of other segments are divided only if they are few and long
// (program_rows.cuh).
#pragma once

#include "cuda/context.h"

namespace policy_loss::cuda {

struct Selection;  // program_select.cuh
union RowPartial;  // program_rows.cuh

// The arguments of the kernels that interpret a program.
struct ProgramPass : Pass {
  program::ProgramView program;  // its arrays are in device memory
  double* row_values;            // [program.row_values][rows]
  double* batch_values;          // [program.batch_values]
  float* scanned;                // [program.scanned][tokens]
  float* kept;                   // [program.kept][tokens]: the values that tokens keep, by position
  Selection* selection;          // null if the program keeps no values
  unsigned* ties;                // [rows]; null if the program keeps no values
  // [reductions of a segment][piece_count]: the results of the pieces of rows. Null if one warp computes a
  // row.
  RowPartial* pieces;
  int64_t piece_count;
};

// The segments [first, last) of a program, which one launch computes.
struct Stage {
  // What a launch for rows computes: rows, the pieces of rows, or rows whose pieces were computed. Only a
  // token segment has pieces.
  enum Work { kRows, kPieces, kJoin };

  int first, last;
  unsigned columns = 0;  // the columns that their instructions read
  Work work = kRows;
};

// A program in the memory of a device, with room for the values that it computes.
class ProgramRun {
 public:
  // Sends the program to the device. `request` must outlive this object.
  ProgramRun(Context& context, const Request& request, const DeviceBatch& batch);

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
  Stage stage_of(int first, int last) const;
  void launch_rows(const ProgramPass& pass, int first, int last) const;
  // Returns the dynamic shared memory of a kernel with a RowReducer, in bytes per block.
  int reducer_memory(const Stage& stage) const;
  // Launches program_rows_kernel with at least this many warps, if the GPU runs so many at once.
  void launch_stage(const ProgramPass& pass, const Stage& stage, int64_t warps) const;
  void launch_shared_rows(const ProgramPass& pass, int first, int last) const;
  // Launches the selections over all rows of a stage.
  void launch_selections(const ProgramPass& pass, int first, int last) const;
  void launch_outputs(const ProgramPass& pass) const;

  Context& context_;
  const program::ProgramView& host_;
  const program::ProgramView& other_;  // Request::other_program
  program::ProgramView view_;
  const bool batch_metrics_;
  Buffer instructions_, segments_, constants_, uniforms_, row_values_, batch_values_;
  Buffer scanned_, kept_, selection_, ties_, pieces_;
};

}  // namespace policy_loss::cuda
