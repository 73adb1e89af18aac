// One advantage function on a device: its inputs there, its kernels in their order, its results.
#pragma once

#include "cuda/context.h"

namespace policy_loss::cuda {

// Groups on a device. `view` points into the buffers.
struct DeviceGroups {
  GroupsView view;
  Buffer offsets, members, last_row, unit_rows, unit_of_row;
};

// What advantage functions read, on a device: beside columns and mask, which others hold, the arrays per row.
struct DeviceInputs {
  AdvantageInputs view;
  int64_t tokens = 0;
  Buffer rewards, baselines;
  DeviceGroups groups, runs;
  // The first number that is not finite; it is row-sized work, and found as they are sent.
  NonFiniteValue bad_rewards, bad_baselines;
};
// Sends what is per row. The view of tokens, and their number, are for the caller to fill in.
DeviceInputs send_inputs(Context& context, const AdvantageInputs& host);

// The AdvantageColumns that a function reads where they are there.
unsigned columns_of_advantage(const AdvantageRequest& request);

class AdvantageRun {
 public:
  // Launches all kernels. Of a group function the advantages are per row; with per_token per token as well.
  AdvantageRun(Context& context, const DeviceInputs& inputs, const AdvantageRequest& request, bool per_token,
               bool returns);

  // What a loss reads: advantages per token where they were asked for, else per row; and how often rows
  // count.
  ColumnView column() const;
  const uint32_t* repeats() const { return pass_.repeats; }

  // Waits for the results and copies them out. False where a number was not finite, and nothing else is told.
  bool fetch(const AdvantageCall& call, const int32_t* abort);

 private:
  template <class F>
  void launch_group(const F& f, bool per_token);
  template <class F>
  void launch_recurrence(const F& f);
  template <bool measured, class F>
  void launch_rows_of(const F& f);
  template <class F>
  void launch_distill(const F& f);
  template <class T>
  T* room(int64_t n);
  template <class Part>
  Parts<Part> parts();

  Context& context_;
  const DeviceInputs& inputs_;
  AdvantageShape shape_;
  int64_t rows_;
  AdvantagePass pass_{};
  NonFiniteValue bad_;  // as found when the inputs were sent
  // As many as the function takes that needs most.
  static constexpr int kMostRooms = 16;
  Buffer rooms_[kMostRooms];
  int rooms_in_use_ = 0;
};

}  // namespace policy_loss::cuda
