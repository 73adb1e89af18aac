// CUDA's face: devices, batches that lie on them, and the evaluation of a function there. Plain functions and
// plain structs, nothing of the C++ library, because nvcc's host compiler may be another than the addon's and
// bring another library.
//
// Every call may be made from any thread, blocks until it is done, and is meant for a worker thread. Calls on
// one device run one after another.
#pragma once

#include <cstdint>

#include "engine/advantage_batch.h"
#include "engine/sums.h"
#include "engine/terms.h"

namespace policy_loss::cuda {

enum class Status : int { kOk, kAborted, kNoDevice, kOutOfMemory, kFailed };

// Why a call did not succeed, in CUDA's words.
struct Problem {
  char message[256] = {};
};

// Why there is no device.
enum class Obstacle : int { kNone, kBuiltWithout, kNoDriver, kOldDriver, kNoDevice, kFailed };

// The devices that the driver knows, whether they can be used or not. Versions are of CUDA, as 1000·major +
// 10·minor, and 0 where there is none: the newest that the driver knows, and that of this build, which a
// driver must know at least.
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
  int least_capability = 0;  // that this build has code for
};
Status device_info(int device, DeviceInfo* info, Problem* problem);

// Does work in pieces, piece(what, 0) and so on, and returns when all are done. They may be done by any
// threads and side by side, but are begun in their order.
using ShareWork = void (*)(int64_t pieces, void (*piece)(void* what, int64_t index), void* what);
// By what the copying of the host's memory is shared out from now on; unless told, the calling thread does
// all.
void share_work_by(ShareWork share);

// engine/groups.h's Groups in plain words, and the sample deviation of all their units' rewards.
struct GroupsView {
  int64_t size = 0, units = 0;
  const int64_t* offsets = nullptr;  // null: there are none
  const int64_t* members = nullptr;
  const int64_t* last_row = nullptr;
  const int64_t* unit_rows = nullptr;
  const int64_t* unit_of_row = nullptr;  // null: rows are units
  double batch_std = 1;
};

// AdvantageBatch with its rows' groups found.
struct AdvantageInputs {
  BatchView tokens;                   // columns are AdvantageColumns
  const double* rewards = nullptr;    // per row
  const double* baselines = nullptr;  // per row
  GroupsView groups;                  // of rows
  GroupsView runs;                    // of runs of rows
};

// A batch on a device, whole and unchanging until release(). Of the inputs of advantage functions it also has
// what is given: their columns other than old_logprob, which is the batch's own, and what is per row.
struct Resident;
Status upload(int device, const BatchView& host, const AdvantageInputs& inputs, const int32_t* abort,
              Resident** resident, Problem* problem);
void release(Resident* resident);

struct ResidentInfo {
  int device;
  int64_t rows, columns, tokens;
  unsigned present;  // bit c: the batch has column c
  bool mask, expert;
  unsigned advantage_present;  // bit c: it has AdvantageColumn c
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

// engine/advantages.h's AdvantageFunction in plain words.
struct AdvantageRequest {
  AdvantageShape shape = AdvantageShape::kGroup;
  int index = 0;
  const double* options = nullptr;
  uint64_t seed = 0;
};

// What the metrics of a group function are made of: a GroupRule's part in them.
struct GroupOutcome {
  double metric[3] = {};
  double rows = 0;
  bool kept = true;
};

// Where an advantage function's results go, all in host memory; null: not asked for.
struct AdvantageCall {
  // Where it names an array, nothing else has been written.
  NonFiniteValue* not_finite = nullptr;
  float* advantages = nullptr;        // per token
  float* returns = nullptr;           // per token, of recurrences
  float* scores = nullptr;            // per row, of group functions
  uint32_t* repeats = nullptr;        // per row, of group functions
  GroupOutcome* groups = nullptr;     // per group, of group functions
  double* row_divergences = nullptr;  // per row, of distillation
  double* row_advantages = nullptr;   // likewise
  const int32_t* abort = nullptr;
};

// Where a call's results go, and what may end it early.
struct Call {
  Result* result = nullptr;
  float* grad = nullptr;          // in host memory; null: not asked for
  float* grad_entropy = nullptr;  // likewise
  // Computes the gradient as if grad were given, and leaves it behind on the device.
  bool grad_stays = false;
  // BatchView::repeats of a resident batch, in host memory. A host batch has its own.
  const uint32_t* repeats = nullptr;
  // Of a resident batch: computes these advantages first, and evaluates with them and, of a group function,
  // with how often they let rows count. Where a number was not finite, that is the only result. Its abort is
  // this call's.
  const AdvantageRequest* advantage = nullptr;
  AdvantageCall advantage_call;
  // Where *abort becomes non-zero, what is left is skipped.
  const int32_t* abort = nullptr;
  // Milliseconds on the device of all passes but the advantages' and of the token pass alone; null: not
  // measured.
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

// KL values per token, or base − scale·m·kl and the mean over rows of the mean of m·kl in each; out and base
// are in host memory.
struct KlCall {
  int estimator = -1;
  unsigned columns = 0;  // those that the estimator reads
  const float* base = nullptr;
  double scale = 0;
  float* out = nullptr;
  double* mean_kl = nullptr;  // null: not asked for, as without a base
  const int32_t* abort = nullptr;
};
Status kl(const Resident* resident, const KlCall& call, Problem* problem);
Status kl_host(int device, const BatchView& host, const KlCall& call, Problem* problem);

// Bytes per second that the device copies within its own memory, each byte counted as read and as written:
// what the token pass is measured against.
Status copy_bandwidth(int device, int64_t bytes, double* bytes_per_second, Problem* problem);

}  // namespace policy_loss::cuda
