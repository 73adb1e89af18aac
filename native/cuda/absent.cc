// Implements cuda.h in a build without CUDA: every call that needs a device fails and reports that CUDA is
// missing.
#include <cstdio>

#include "cuda/cuda.h"

namespace policy_loss::cuda {
namespace {

Status no_device(Problem* problem) {
  std::snprintf(problem->message, sizeof problem->message, "this build of policy-loss was made without CUDA");
  return Status::kNoDevice;
}

}  // namespace

DeviceCount count_devices(Problem* problem) {
  no_device(problem);
  return {0, Obstacle::kBuiltWithout, 0, 0};
}

void share_work_by(ShareWork) {}
void keep_current_device() {}
Status device_info(int, DeviceInfo*, Problem* problem) {
  return no_device(problem);
}
Status trim(int, Problem*) {
  return Status::kOk;
}
Status upload(int, const BatchView&, const AdvantageInputs&, const DeviceColumns&, const int32_t*, Resident**,
              Problem* problem) {
  return no_device(problem);
}
Status update(const Resident*, const BatchView&, const BatchView&, const DeviceColumns&, const int32_t*,
              Resident**, Problem* problem) {
  return no_device(problem);
}
void release(Resident*) {}
ResidentInfo resident_info(const Resident*) {
  return {};
}
DeviceArray* make_array(int, int64_t, bool) {
  return nullptr;
}
void release(DeviceArray*) {}
ArrayInfo array_info(const DeviceArray*) {
  return {};
}
Status export_array(const DeviceArray*, IpcHandle*, Problem* problem) {
  return no_device(problem);
}
Status read_array(const DeviceArray*, float*, Problem* problem) {
  return no_device(problem);
}
Status make_pinned(int, int64_t, PinnedRegion**, Problem* problem) {
  return no_device(problem);
}
void* pinned_data(const PinnedRegion*) {
  return nullptr;
}
void release(PinnedRegion*) {}
Status evaluate(const Resident*, const Request&, const Call&, Problem* problem) {
  return no_device(problem);
}
Status evaluate_host(int, const BatchView&, const Request&, const Call&, Problem* problem) {
  return no_device(problem);
}
Status advantages(const Resident*, const AdvantageRequest&, const AdvantageCall&, Problem* problem) {
  return no_device(problem);
}
Status advantages_host(int, const AdvantageInputs&, const AdvantageRequest&, const AdvantageCall&,
                       Problem* problem) {
  return no_device(problem);
}
Status kl(const Resident*, const KlCall&, Problem* problem) {
  return no_device(problem);
}
Status kl_host(int, const BatchView&, const KlCall&, Problem* problem) {
  return no_device(problem);
}
Status logits(int, const DeviceLogits&, Problem* problem) {
  return no_device(problem);
}
Status head(int, const DeviceHead&, Problem* problem) {
  return no_device(problem);
}
#if defined(POLICY_LOSS_BENCH)
Status copy_bandwidth(int, int64_t, double*, Problem* problem) {
  return no_device(problem);
}
#endif

}  // namespace policy_loss::cuda
