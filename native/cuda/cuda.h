// The interface of the CUDA engine: devices, resident batches, and calls on them.
//
// It consists of plain functions and plain structs without types of the C++ library, because nvcc's host
// compiler may use another library than the addon.
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

// CUDA's message about a call that failed.
struct Problem {
  char message[256] = {};
};

// The reason for having no device.
enum class Obstacle : int { kNone, kBuiltWithout, kNoDriver, kOldDriver, kNoDevice, kFailed };

// The devices that the driver knows, even those that this build has no code for. Versions are those of CUDA
// as 1000·major + 10·minor, or 0 if there is none. The driver's is the newest version that it supports, and
// it must not be older than the build's.
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
  int least_capability = 0;  // the least that this build has code for
};
Status device_info(int device, DeviceInfo* info, Problem* problem);

// Shares work among threads: calls piece(what, 0) to piece(what, pieces - 1) and returns when all are done.
// Any thread may do a piece, and several at once, but pieces must begin in order.
using ShareWork = void (*)(int64_t pieces, void (*piece)(void* what, int64_t index), void* what);
// Sets the function that shares the copying of host memory from now on. By default the calling thread does it
// all.
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

// An AdvantageBatch whose groups have been found.
struct AdvantageInputs {
  BatchView tokens;                   // its columns are AdvantageColumns
  const double* rewards = nullptr;    // per row
  const double* baselines = nullptr;  // per row
  GroupsView groups;                  // whose units are rows
  GroupsView runs;                    // whose units are runs of rows
};

// A resident batch: one that stays on a device, unchanged, until release(). It also has the inputs of
// advantage functions that upload() was given. These share the batch's old_logprob.
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

// A prepared function with the numbers of one call.
struct Request {
  Terms terms;
  const void* loss = nullptr;  // the loss object, of the type in Losses at terms.loss
  unsigned columns = 0;        // columns_of(terms)
  Coefficients coefficients;
  Normalizer normalizer;
};

struct Result {
  BatchCounts counts;  // the batch's own, whatever the normalizer
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

// One group's contribution to the metrics of a group function.
struct GroupOutcome {
  double metric[3] = {};
  double rows = 0;
  bool kept = true;
};

// The destination of an advantage function's results, in host memory. Null pointers are not wanted.
struct AdvantageCall {
  // If it names an input, nothing else has been written.
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

// The destination of an evaluation's results in host memory, and its circumstances.
struct Call {
  Result* result = nullptr;
  float* grad = nullptr;          // per token; null: not wanted
  float* grad_entropy = nullptr;  // per token; null: not wanted
  // Computes the gradient as if grad were given, but leaves it on the device. For benchmarks.
  bool grad_stays = false;
  // BatchView::repeats of a resident batch, in host memory. A host batch has its own.
  const uint32_t* repeats = nullptr;
  // With a resident batch: computes these advantages first and evaluates with them, and with the repeats of a
  // group function. If an input is not finite, advantage_call.not_finite is the only result.
  // advantage_call.abort is not used.
  const AdvantageRequest* advantage = nullptr;
  AdvantageCall advantage_call;
  // The call ends early when *abort becomes non-zero.
  const int32_t* abort = nullptr;
  // The time on the device of all passes without the advantages', and of the token pass alone. Null pointers
  // are not measured.
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

// A computation of KL values per token, or with a base of base − scale·m·kl. The arrays are in host memory.
struct KlCall {
  int estimator = -1;
  unsigned columns = 0;  // the columns that the estimator reads
  const float* base = nullptr;
  double scale = 0;
  float* out = nullptr;
  // The mean over rows of each row's mean of m·kl; 0 without a base. Null: not wanted.
  double* mean_kl = nullptr;
  const int32_t* abort = nullptr;
};
Status kl(const Resident* resident, const KlCall& call, Problem* problem);
Status kl_host(int device, const BatchView& host, const KlCall& call, Problem* problem);

// Measures how many bytes per second the device copies within its own memory, as the yardstick of the token
// pass. A byte counts twice, as read and as written. Only the bench build (POLICY_LOSS_BENCH) has this
// function.
Status copy_bandwidth(int device, int64_t bytes, double* bytes_per_second, Problem* problem);

}  // namespace policy_loss::cuda
