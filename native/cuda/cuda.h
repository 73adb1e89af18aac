// The interface of the CUDA engine: devices, batches that stay on a device, and calls that compute on them.
//
// The functions and structs use no types of the C++ standard library, because nvcc's host compiler may use a
// different standard library than the addon.
//
// Every function may be called from any thread. It returns only when its work is done, so it should be called
// from a worker thread. Calls that compute on one device run one after another, and so do upload() and
// update(). The two kinds do not wait for each other.
#pragma once

#include <cstdint>

#include "engine/advantage_batch.h"
#include "engine/sums.h"
#include "engine/terms.h"
#include "logits/head.h"
#include "program/program.h"

namespace policy_loss::cuda {

// kBadPointer: an address that the caller gave is not in the memory of the device.
enum class Status : int { kOk, kAborted, kNoDevice, kOutOfMemory, kFailed, kBadPointer };

// The error message of a call that failed.
struct Problem {
  char message[512] = {};
};

// The reason why no device can be used, or kNone if one can.
enum class Obstacle : int { kNone, kBuiltWithout, kNoDriver, kOldDriver, kNoDevice, kFailed };

// The devices of this machine. `count` is the number of devices that the driver knows, including those for
// which this build has no code. Versions are CUDA versions as 1000·major + 10·minor; a missing driver or
// runtime has version 0. driver_version is the newest version that the driver supports, and build_version the
// version with which the addon was built.
struct DeviceCount {
  int count = 0;
  Obstacle obstacle = Obstacle::kNone;
  int driver_version = 0, build_version = 0;
};
DeviceCount count_devices(Problem* problem);

// The properties of a device. Compute capabilities are given as 10·major + minor.
struct DeviceInfo {
  char name[256] = {};
  int64_t memory = 0;  // bytes
  int capability = 0;
  int least_capability = 0;  // the lowest for which this build has code
};
Status device_info(int device, DeviceInfo* info, Problem* problem);

// A function that divides work among threads. It must call item(what, i) once for each i in [0, items), and
// return when all these calls are done. It may use any threads and make several calls at once, but the calls
// must begin in the order of i.
using ShareWork = void (*)(int64_t items, void (*item)(void* what, int64_t index), void* what);
// Sets the function that divides the copying of host memory among threads. Until it is set, the calling
// thread copies everything itself.
void share_work_by(ShareWork share);

// Gives the memory of a device that no batch or array occupies back to the driver, and the pinned memory of
// the host that serves for copies. Later calls allocate what they need again. Waits for calls in progress.
Status trim(int device, Problem* problem);

// Tells that the calling thread uses no other CUDA code. Calls on other threads restore the current device of
// the thread when they end.
void keep_current_device();

// The groups of a batch as plain pointers. engine/groups.h explains the arrays.
struct GroupsView {
  int64_t size = 0, member_count = 0;
  const int64_t* offsets = nullptr;  // null: the batch has no groups
  const int64_t* members = nullptr;
  const int64_t* last_row = nullptr;
  const int64_t* member_rows = nullptr;
  const int64_t* member_of_row = nullptr;  // null: every row is a member
  double batch_std = 1;                    // the sample deviation of all members' rewards
};

// The inputs of advantage functions, as in AdvantageBatch. The groups that find_groups() found replace the
// numbers that tell to which group and run each row belongs.
struct AdvantageInputs {
  BatchView tokens;                   // its columns are AdvantageColumns
  const double* rewards = nullptr;    // per row
  const double* baselines = nullptr;  // per row
  // As in AdvantageBatch. A resident batch has none.
  const double* named_rewards = nullptr;
  const double* reward_weights = nullptr;
  int64_t named = 0;
  GroupsView groups;  // groups whose members are rows
  GroupsView runs;    // groups whose members are runs of rows
};

// A resident batch: one that stays on a device, unchanged, until release(). It also holds the inputs of
// advantage functions that were passed to upload(). They do not include the log-probabilities of the sampling
// policy and of the teacher, because the batch already has these as columns of losses.
struct Resident;
// A stream of the caller (a cudaStream_t). If it is given, the work of the call waits for the work that is on
// the stream when the call begins.
struct CallerStream {
  bool given = false;
  uint64_t handle = 0;
};
// Memory that another process has exported: the bytes of a cudaIpcMemHandle_t.
struct IpcHandle {
  bool given = false;
  unsigned char bytes[64] = {};
};
// Columns in memory of the device that computes. They replace those of the host batch.
struct ColumnsThere {
  ColumnView column[kColumns];
  // Where a handle is given, the address of the column is an offset in that memory.
  IpcHandle handle[kColumns];
};
// Columns that upload() and update() copy from memory of the same device.
struct DeviceColumns {
  ColumnsThere losses;
  ColumnsThere advantages;  // AdvantageColumns
  CallerStream stream;
};
Status upload(int device, const BatchView& host, const AdvantageInputs& inputs, const DeviceColumns& there,
              const int32_t* abort, Resident** resident, Problem* problem);
// Makes another resident batch, in which the given columns replace those of `resident`. The two share the
// memory of everything else, and each must be released. Of the host batches, only the columns and the layout
// are read. The layout must be that of `resident`. The columns of advantage_columns are AdvantageColumns.
Status update(const Resident* resident, const BatchView& columns, const BatchView& advantage_columns,
              const DeviceColumns& there, const int32_t* abort, Resident** updated, Problem* problem);
void release(Resident* resident);

struct ResidentInfo {
  int device;
  int64_t rows, columns, tokens;
  unsigned present;  // bit c: the batch has column c
  bool mask, expert;
  unsigned row_present;        // bit c: the batch has RowColumn c
  unsigned advantage_present;  // bit c: the batch has AdvantageColumn c
  bool rewards, baselines, groups, runs;
  int64_t group_count;
};
ResidentInfo resident_info(const Resident* resident);

// Float32 values that a call leaves in the memory of a device, such as a gradient. The array has no memory
// until the first call that writes it. The caller keeps it until all calls that write it have returned.
struct DeviceArray;
// Other processes can open the array's memory if `shareable` is set.
DeviceArray* make_array(int device, int64_t length, bool shareable);
void release(DeviceArray* array);
struct ArrayInfo {
  int device;
  int64_t length;
  const void* address;  // null before a call has written the array, and if its length is 0
};
ArrayInfo array_info(const DeviceArray* array);
// Exports a shareable array that a call has written.
Status export_array(const DeviceArray* array, IpcHandle* handle, Problem* problem);
// Copies an array that a call has written to the host.
Status read_array(const DeviceArray* array, float* out, Problem* problem);

// Page-locked memory of the host. Calls copy arrays in it directly to and from any device, without staging.
struct PinnedRegion;
// Allocates memory while `device` is the current one.
Status make_pinned(int device, int64_t bytes, PinnedRegion** region, Problem* problem);
void* pinned_data(const PinnedRegion* region);
void release(PinnedRegion* region);

// What a call evaluates: a PreparedFunction (engine/function.h) as plain data, and the coefficients and the
// normalizer of the call.
struct Request {
  Terms terms;
  const void* loss = nullptr;    // the loss object; its type is entry terms.loss of Losses
  program::ProgramView program;  // the loss, if terms.loss is kProgram; its arrays are in host memory
  // The loss's other program: that of calls with a gradient if this call has none, and vice versa.
  program::ProgramView other_program;
  unsigned columns = 0;        // columns_of() the function
  bool batch_metrics = false;  // whether the program's metrics of the batch are wanted
  Coefficients coefficients;
  Normalizer normalizer;
};

struct Result {
  BatchCounts counts;  // of the batch itself, even if the request has a normalizer
  Sums sums;
  double pair_loss = 0;
  double pair_metric[3] = {};
  // The metrics of the batch that a program outputs, if the request wants them.
  bool has_batch_metrics = false;
  double batch_metrics[program::kMaxBatchMetrics] = {};
};

// What a call computes: an AdvantageFunction (engine/advantages.h) as plain data, and the seed of its random
// choices.
struct AdvantageRequest {
  AdvantageShape shape = AdvantageShape::kGroup;
  int index = 0;
  const double* options = nullptr;
  uint64_t seed = 0;
};

// The contribution of one group to the metrics of a group function.
struct GroupOutcome {
  double metric[3] = {};
  double rows = 0;
  bool kept = true;
};

// The arrays, in host memory, that receive the results of an advantage function. A null pointer means that
// the result is not wanted.
struct AdvantageCall {
  // Receives the input and the row of the first value that is not finite. If there is such a value, no other
  // result is written.
  NonFiniteValue* not_finite = nullptr;
  float* advantages = nullptr;        // per token
  float* returns = nullptr;           // per token; functions that compute returns only
  float* scores = nullptr;            // per row; group functions only
  uint32_t* repeats = nullptr;        // per row; group functions only
  GroupOutcome* groups = nullptr;     // per group; group functions only
  double* row_divergences = nullptr;  // per row; distillation only
  double* row_advantages = nullptr;   // per row; distillation only
  CallerStream stream;
  const int32_t* abort = nullptr;
};

// The arrays, in host memory unless it says otherwise, that receive the results of an evaluation, and the
// options of the call.
struct Call {
  Result* result = nullptr;
  GradientView grad, grad_entropy;
  float* grad_log_z = nullptr;  // per row; null if not wanted
  // For a host batch: columns in memory of the device, or null. They may be the memory of the gradient.
  const ColumnsThere* columns = nullptr;
  // For a host batch: whether `grad` is in memory of the device. With a handle, its address is an offset in
  // that memory.
  bool grad_there = false;
  IpcHandle grad_handle;
  // Arrays on the device of the call, with one element per token, that receive gradients instead of the
  // arrays above. Null if the gradient is not wanted there.
  DeviceArray* device_grad = nullptr;
  DeviceArray* device_grad_entropy = nullptr;
  // If true, the gradient is computed even if grad is null, and it stays on the device. Only benchmarks use
  // this.
  bool grad_stays = false;
  // For a resident batch: how often each row counts, as in BatchView::repeats. Ignored for a host batch,
  // which has its own BatchView::repeats.
  const uint32_t* repeats = nullptr;
  // For a resident batch: a mask and log-probabilities that replace the batch's own, and the column
  // kTokenWeights. They have one element per token. A null pointer means that there is no such array.
  const uint8_t* mask = nullptr;
  const float* weights = nullptr;
  const float* logprob = nullptr;
  // For a resident batch: an advantage function that is computed first, or null. The loss then uses its
  // advantages and, if it is a group function, also its repeats. advantage_call receives the results; its
  // members `stream` and `abort` are not used. If an input value is not finite, only
  // *advantage_call.not_finite is written.
  const AdvantageRequest* advantage = nullptr;
  AdvantageCall advantage_call;
  CallerStream stream;
  // If *abort becomes non-zero, the call ends early with the status kAborted.
  const int32_t* abort = nullptr;
  // Receive times that are measured on the device, in milliseconds. passes_ms is the time of all passes,
  // without the kernels of an advantage function. token_pass_ms is the time of the token pass alone. A
  // pointer is null if the time is not wanted.
  float* passes_ms = nullptr;
  float* token_pass_ms = nullptr;
};

Status evaluate(const Resident* resident, const Request& request, const Call& call, Problem* problem);
Status evaluate_host(int device, const BatchView& host, const Request& request, const Call& call,
                     Problem* problem);

Status advantages(const Resident* resident, const AdvantageRequest& request, const AdvantageCall& call,
                  Problem* problem);
Status advantages_host(int device, const AdvantageInputs& host, const AdvantageRequest& request,
                       const AdvantageCall& call, Problem* problem);

// A computation of one KL value per token. If `base` is not null, the result is base − scale·kl for unmasked
// tokens, and base for masked tokens. The arrays are in host memory.
struct KlCall {
  int estimator = -1;
  unsigned columns = 0;  // the columns that the estimator reads
  const float* base = nullptr;
  double scale = 0;
  float* out = nullptr;
  // Receives the mean KL value: the mean over each row's unmasked tokens, averaged over the rows. It is 0 if
  // `base` is null. The pointer is null if the mean is not wanted.
  double* mean_kl = nullptr;
  CallerStream stream;
  const int32_t* abort = nullptr;
};
Status kl(const Resident* resident, const KlCall& call, Problem* problem);
Status kl_host(int device, const BatchView& host, const KlCall& call, Problem* problem);

// A call that computes from logits. Its arrays are in host memory, unless it says otherwise.
struct DeviceLogits {
  LogitsCall call;
  // Whether the logits, and the gradient, are in memory of the device. Where a handle is given, the address
  // is an offset in that memory.
  bool data_there = false, out_there = false;
  IpcHandle data_handle, out_handle;
  CallerStream stream;
  const int32_t* abort = nullptr;
  // Receives the time of the kernels, which the device measures, in milliseconds. If logits or their gradient
  // are copied, it includes the copies. Null if it is not wanted.
  float* kernels_ms = nullptr;
};
Status logits(int device, const DeviceLogits& logits, Problem* problem);

// A call on the output head. The hidden states, grad_hidden and the bias are in host memory.
struct DeviceHead {
  HeadCall call;
  // The weight of the call is copied to this array, unless an earlier call has done so.
  DeviceArray* weight = nullptr;
  DeviceArray* logits = nullptr;
  // Take the place of those of the call; null if they are not wanted.
  DeviceArray* grad_weight = nullptr;
  DeviceArray* grad_bias = nullptr;
  CallerStream stream;
  const int32_t* abort = nullptr;
};
Status head(int device, const DeviceHead& head, Problem* problem);

// Measures how many bytes per second the device copies within its own memory. Every byte counts twice,
// because it is read and written. Benchmarks compare the speed of the token pass with this. Only the bench
// build (POLICY_LOSS_BENCH) has this function.
Status copy_bandwidth(int device, int64_t bytes, double* bytes_per_second, Problem* problem);

}  // namespace policy_loss::cuda
