// The interface of the CUDA engine: devices, resident batches, and calls on them.
//
// Its functions and structs use no types of the C++ library, because nvcc's host compiler may use a different
// C++ library from the addon's.
//
// Every function may be called from any thread. It blocks until it is done, so it is meant for worker
// threads. Calls on one device run one after another.
#pragma once

#include <cstdint>

#include "engine/advantage_batch.h"
#include "engine/sums.h"
#include "engine/terms.h"

namespace policy_loss::cuda {

enum class Status : int { kOk, kAborted, kNoDevice, kOutOfMemory, kFailed };

// The error message of a call that failed.
struct Problem {
  char message[256] = {};
};

// Why there is no device.
enum class Obstacle : int { kNone, kBuiltWithout, kNoDriver, kOldDriver, kNoDevice, kFailed };

// The number of devices that the driver knows, including those for which this build has no code. Versions are
// CUDA versions as 1000·major + 10·minor, or 0 if there is none. driver_version is the newest version that
// the driver supports. It must not be older than build_version.
struct DeviceCount {
  int count = 0;
  Obstacle obstacle = Obstacle::kNone;
  int driver_version = 0, build_version = 0;
};
DeviceCount count_devices(Problem* problem);

// Compute capabilities are 10·major + minor.
struct DeviceInfo {
  char name[256] = {};
  int64_t memory = 0;  // bytes
  int capability = 0;
  int least_capability = 0;  // the lowest for which this build has code
};
Status device_info(int device, DeviceInfo* info, Problem* problem);

// A function that shares work among threads. It calls piece(what, 0) to piece(what, pieces - 1) and returns
// when all calls are done. It may make the calls on any threads and several at once, but they must begin in
// order.
using ShareWork = void (*)(int64_t pieces, void (*piece)(void* what, int64_t index), void* what);
// Sets the function that shares the copying of host memory among threads. By default, the calling thread
// copies everything.
void share_work_by(ShareWork share);

// A view of Groups (engine/groups.h).
struct GroupsView {
  int64_t size = 0, units = 0;
  const int64_t* offsets = nullptr;  // null: the batch has no groups
  const int64_t* members = nullptr;
  const int64_t* last_row = nullptr;
  const int64_t* unit_rows = nullptr;
  const int64_t* unit_of_row = nullptr;  // null: every row is a unit
  double batch_std = 1;                  // the sample deviation of all units' rewards
};

// An AdvantageBatch with the groups that find_groups() made from its numbers.
struct AdvantageInputs {
  BatchView tokens;                   // its columns are AdvantageColumns
  const double* rewards = nullptr;    // per row
  const double* baselines = nullptr;  // per row
  GroupsView groups;                  // groups whose units are rows
  GroupsView runs;                    // groups whose units are runs of rows
};

// A resident batch: one that stays on a device, unchanged, until release(). It also holds the inputs of
// advantage functions that upload() received. Their sampled log-probabilities are the batch's old_logprob
// column.
struct Resident;
Status upload(int device, const BatchView& host, const AdvantageInputs& inputs, const int32_t* abort,
              Resident** resident, Problem* problem);
void release(Resident* resident);

struct ResidentInfo {
  int device;
  int64_t rows, columns, tokens;
  unsigned present;  // bit c: the batch has column c
  bool mask, expert;
  unsigned advantage_present;  // bit c: the batch has AdvantageColumn c
  bool rewards, baselines, groups, runs;
  int64_t group_count;
};
ResidentInfo resident_info(const Resident* resident);

// A PreparedFunction (engine/function.h) as plain data, with the coefficients of one call.
struct Request {
  Terms terms;
  const void* loss = nullptr;  // the loss object; its type is entry terms.loss of Losses
  unsigned columns = 0;        // columns_of(terms)
  Coefficients coefficients;
  Normalizer normalizer;
};

struct Result {
  BatchCounts counts;  // of the batch itself, even if the request has a normalizer
  Sums sums;
  double pair_loss = 0;
  double pair_metric[3] = {};
};

// An AdvantageFunction (engine/advantages.h) and its seed.
struct AdvantageRequest {
  AdvantageShape shape = AdvantageShape::kGroup;
  int index = 0;
  const double* options = nullptr;
  uint64_t seed = 0;
};

// What one group contributes to the metrics of a group function.
struct GroupOutcome {
  double metric[3] = {};
  double rows = 0;
  bool kept = true;
};

// The arrays in host memory that receive an advantage function's results. A null pointer means that the
// result is not wanted.
struct AdvantageCall {
  // Receives the first input value that is not finite. If there is one, nothing else is written.
  NonFiniteValue* not_finite = nullptr;
  float* advantages = nullptr;        // per token
  float* returns = nullptr;           // per token; recurrences only
  float* scores = nullptr;            // per row; group functions only
  uint32_t* repeats = nullptr;        // per row; group functions only
  GroupOutcome* groups = nullptr;     // per group; group functions only
  double* row_divergences = nullptr;  // per row; distillation only
  double* row_advantages = nullptr;   // per row; distillation only
  const int32_t* abort = nullptr;
};

// The arrays in host memory that receive an evaluation's results, and the options of the call.
struct Call {
  Result* result = nullptr;
  float* grad = nullptr;          // per token; null if not wanted
  float* grad_entropy = nullptr;  // per token; null if not wanted
  // Computes the gradient even if grad is null, and leaves it on the device. For benchmarks.
  bool grad_stays = false;
  // How often each row of a resident batch counts, as in BatchView::repeats. A host batch uses its own
  // BatchView::repeats.
  const uint32_t* repeats = nullptr;
  // For a resident batch: first computes these advantages, and evaluates the loss with them. A group function
  // also sets the repeats. If an input value is not finite, only *advantage_call.not_finite is written.
  // advantage_call.abort is not used.
  const AdvantageRequest* advantage = nullptr;
  AdvantageCall advantage_call;
  // The call ends early if *abort becomes non-zero.
  const int32_t* abort = nullptr;
  // Receive the device's time for all passes except those for advantages, and for the token pass alone. Null
  // if not wanted.
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

// A computation of KL values per token. With a base, it computes base − scale·m·kl instead, where m is the
// mask. The arrays are in host memory.
struct KlCall {
  int estimator = -1;
  unsigned columns = 0;  // the columns that the estimator reads
  const float* base = nullptr;
  double scale = 0;
  float* out = nullptr;
  // Receives the average over rows of each row's mean m·kl, or 0 without a base. Null if not wanted.
  double* mean_kl = nullptr;
  const int32_t* abort = nullptr;
};
Status kl(const Resident* resident, const KlCall& call, Problem* problem);
Status kl_host(int device, const BatchView& host, const KlCall& call, Problem* problem);

// Measures how many bytes per second the device copies within its own memory. Benchmarks compare the token
// pass with it. A byte counts twice, since it is read and written. Only the bench build (POLICY_LOSS_BENCH)
// has this function.
Status copy_bandwidth(int device, int64_t bytes, double* bytes_per_second, Problem* problem);

}  // namespace policy_loss::cuda
