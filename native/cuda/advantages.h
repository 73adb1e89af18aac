// Runs one call of an advantage function on a device: sends the inputs, launches the kernels and fetches the
// results.
#pragma once

#include "cuda/context.h"

namespace policy_loss::cuda {

// Groups of rows in the memory of a device. `view` points into the buffers.
struct DeviceGroups {
  GroupsView view;
  Buffer offsets, members, last_row, member_rows, member_of_row;
};

// The inputs of advantage functions in the memory of a device. `view` points into the buffers below, and into
// a DeviceBatch, which holds the columns and the mask.
struct DeviceInputs {
  AdvantageInputs view;
  int64_t tokens = 0;
  Buffer rewards, baselines, named_rewards, reward_weights;
  DeviceGroups groups, runs;
  // The first reward and the first baseline that are not finite. The host looks for them when it sends the
  // arrays to the device.
  NonFiniteValue bad_rewards, bad_baselines;
};
// Sends the arrays with one number per row, and the groups, to the device. The caller must set view.tokens
// and `tokens`.
DeviceInputs send_inputs(Channel& channel, const AdvantageInputs& host);

// Returns the set of columns (AdvantageColumn) that a function reads if the batch has them.
unsigned columns_of_advantage(const AdvantageRequest& request);

class AdvantageEvaluation {
 public:
  // Launches all kernels. A group function always computes scores per row. If per_token is set, it also
  // computes advantages per token.
  AdvantageEvaluation(Context& context, const DeviceInputs& inputs, const AdvantageRequest& request,
                      bool per_token, bool returns);

  // Returns the advantages as a column for a loss: one number per token if it computed advantages per
  // token, otherwise one score per row.
  ColumnView column() const;
  // Returns the number of times that each row counts, or null if the function is not a group function.
  const uint32_t* repeats() const { return pass_.repeats; }

  // Waits for the results, copies them to the host and returns true. If an input value was not finite, it
  // sets only *call.not_finite and returns false.
  bool fetch(const AdvantageCall& call, const int32_t* abort);

 private:
  template <class F>
  void launch_group(const F& f, bool per_token);
  template <class F>
  void launch_row_values(const F& f);
  // Returns whether the warps of the GPU share the rows of a recurrence (long_rows.cuh). This changes no bit
  // of the sums along rows.
  bool shares_rows() const;
  // Returns a grid of this many warps, but with at most as many blocks as the GPU runs at once.
  Grid grid_of_recurrence(int64_t warps) const;
  template <class F>
  void launch_recurrence(const F& f);
  template <bool measured, class F>
  void launch_rows_of(const F& f);
  template <class F>
  void launch_distill(const F& f);
  template <class F>
  void launch_baselines(const F& f);
  // Allocates an array of n elements on the device, which lives as long as this object.
  template <class T>
  T* room(int64_t n);
  template <class Total>
  Partials<Total> partials();

  Context& context_;
  const DeviceInputs& inputs_;
  AdvantageShape shape_;
  int64_t rows_;
  AdvantagePass pass_{};
  NonFiniteValue bad_;  // what send_inputs() found in the arrays that the function reads
  // The maximum number of arrays that one can allocate. It is enough for every function.
  static constexpr int kMostRooms = 16;
  Buffer rooms_[kMostRooms];
  int rooms_in_use_ = 0;
};

}  // namespace policy_loss::cuda
