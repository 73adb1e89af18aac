// Fuzzes the computation of log-probabilities from logits, and of the gradient with respect to the logits.
#include "cpu/logits.h"

#include "test/fuzz/targets.h"
#include "test/fuzz/tasks.h"

namespace fuzz {
namespace {

// Logits, the memory between their rows, and all that a call reads. `call` points into the other members.
struct Rows {
  cpu::LogitsCall call;
  Array<uint16_t> half;
  Array<float> wide;
  Array<int32_t> targets, token_ids, offsets;
  Array<double> temperatures, grad_logprob, grad_entropy;

  int64_t size() const { return call.rows == 0 ? 0 : (call.rows - 1) * call.row_stride + call.vocabulary; }
  bool is_wide() const { return call.dtype == DType::kFloat32; }
};

// The memory of one array of logits or gradients, in either width.
struct Matrix {
  Array<uint16_t> half;
  Array<float> wide;

  Matrix(int64_t size, DType dtype, int shift)
      : half(dtype == DType::kFloat32 ? 0 : size, shift), wide(dtype == DType::kFloat32 ? size : 0, shift) {
    for (uint16_t& x : half) x = 1;
    for (float& x : wide) x = 1;
  }
  void* data() { return wide.size() > 0 ? static_cast<void*>(wide.data()) : half.data(); }
  bool same_bits(const Matrix& other) const {
    return half.same_bits(other.half) && wide.same_bits(other.wide);
  }
};

void read_support(Bytes& in, Random& random, Rows* rows) {
  cpu::LogitsCall& call = rows->call;
  if (!in.flag() || call.vocabulary == 0) return;
  rows->offsets = Array<int32_t>(call.rows + 1);
  rows->offsets[0] = 0;
  const bool whole = in.flag();
  for (int64_t row = 0; row < call.rows; ++row)
    rows->offsets[row + 1] =
        rows->offsets[row] +
        static_cast<int32_t>(whole ? call.vocabulary : random.below(call.vocabulary + 1));
  rows->token_ids = Array<int32_t>(rows->offsets[call.rows]);
  // Some ids are wrong, as if the caller had changed them during the call.
  const bool wrong = in.flag();
  for (int32_t& id : rows->token_ids)
    id = static_cast<int32_t>(wrong && random.below(8) == 0 ? random.next() : random.below(call.vocabulary));
  call.token_ids = rows->token_ids.data();
  call.offsets = rows->offsets.data();
}

void read_logits(Bytes& in, Random& random, Rows* rows) {
  cpu::LogitsCall& call = rows->call;
  call.dtype = static_cast<DType>(in.below(3));
  const int shift = in.byte();
  const bool any = in.below(3) == 2;
  rows->wide = Array<float>(rows->is_wide() ? rows->size() : 0, shift);
  rows->half = Array<uint16_t>(rows->is_wide() ? 0 : rows->size(), shift);
  for (float& x : rows->wide) {
    const uint32_t bits = static_cast<uint32_t>(random.next());
    x = static_cast<float>(random.between(-30, 30));
    if (any) std::memcpy(&x, &bits, sizeof x);
  }
  for (uint16_t& x : rows->half) x = static_cast<uint16_t>(any ? random.next() : random.next() & 0xc3ff);
  call.data = rows->is_wide() ? static_cast<const void*>(rows->wide.data()) : rows->half.data();
}

void read_rows(Bytes& in, Rows* rows) {
  cpu::LogitsCall& call = rows->call;
  const int most[] = {5, 300, 9000, 70000};
  const int size = in.below(4);
  call.rows = in.below(size == 3 ? 3 : 9);
  call.vocabulary = in.below(most[size]);
  call.row_stride = call.vocabulary + in.below(4);
  Random random(in.word());
  read_logits(in, random, rows);
  rows->targets = Array<int32_t>(call.rows, in.byte());
  for (int32_t& target : rows->targets)
    target = static_cast<int32_t>(
        call.vocabulary == 0 || random.below(4) == 0 ? cpu::kIgnoredTarget : random.below(call.vocabulary));
  call.targets = rows->targets.data();
  call.softcap = in.flag() ? in.between(0.1, 50) : 0;
  call.temperature = in.between(0.1, 3);
  if (in.flag()) {
    rows->temperatures = Array<double>(call.rows);
    for (double& x : rows->temperatures) x = random.between(0.1, 3);
    call.temperatures = rows->temperatures.data();
  }
  read_support(in, random, rows);
  for (Array<double>* grad : {&rows->grad_logprob, &rows->grad_entropy}) {
    *grad = Array<double>(call.rows);
    for (double& x : *grad) x = random.between(-2, 2);
  }
}

struct Results {
  Array<float> logprob, entropy;
  Array<double> logsumexp;

  bool same_bits(const Results& other) const {
    return logprob.same_bits(other.logprob) && entropy.same_bits(other.entropy) &&
           logsumexp.same_bits(other.logsumexp);
  }
};

Results compute(const Rows& rows, Where where) {
  cpu::LogitsCall call = rows.call;
  Results results{to_be_written<float>(call.rows, where, 0), to_be_written<float>(call.rows, where, 1),
                  to_be_written<double>(call.rows, where, 0)};
  call.logprob = results.logprob.data();
  call.entropy = results.entropy.data();
  call.logsumexp = results.logsumexp.data();
  perform(where, std::make_shared<cpu::LogitsEvaluation>(call));
  return results;
}

// Computes a KL loss and an entropy loss from the logits, with the gradient with respect to them, and
// requires the same bits everywhere.
void compute_loss(const Rows& rows, DType out_dtype, int shift) {
  Function function;
  function.kl = 0;
  function.entropy = true;
  const auto prepared = std::make_shared<const PreparedFunction>(function);
  const int64_t tokens = rows.call.rows;
  Array<uint8_t> mask(tokens);
  Array<float> ref_logprob(tokens);
  for (int64_t i = 0; i < tokens; ++i) {
    mask[i] = rows.call.targets[i] != cpu::kIgnoredTarget;
    ref_logprob[i] = static_cast<float>(rows.grad_logprob[i]);
  }
  const auto gradient = [&](Where where) {
    Array<float> logprob = to_be_written<float>(tokens, where, shift);
    Array<float> entropy = to_be_written<float>(tokens, where, 0);
    Array<float> grad = to_be_written<float>(tokens, where, shift);
    Array<float> grad_entropy = to_be_written<float>(tokens, where, 1);
    BatchView batch;
    batch.layout = {1, tokens};
    batch.mask = mask.data();
    batch.column[kLogprob].data = logprob.data();
    batch.column[kRefLogprob].data = ref_logprob.data();
    batch.column[kEntropy].data = entropy.data();
    Outputs outputs;
    outputs.grad = grad.data();
    outputs.grad_entropy = grad_entropy.data();
    Matrix result(rows.size(), out_dtype, shift);
    cpu::LogitsCall call = rows.call;
    call.logprob = logprob.data();
    call.entropy = entropy.data();
    call.out = result.data();
    call.out_dtype = out_dtype;
    call.out_stride = call.row_stride;
    perform(where, std::make_shared<cpu::LogitsGradient>(prepared, batch, Coefficients{0, 0.5, -0.1},
                                                         Normalizer{}, outputs, call, 0));
    return result;
  };
  const Matrix expected = gradient(kHere);
  for (const Where where : {kOneThread, kTwoThreads})
    require(gradient(where).same_bits(expected), "the same gradient of a loss on the pool's threads");
}

}  // namespace

void fuzz_logits(Bytes& in) {
  subject = "logits";
  Rows rows;
  read_rows(in, &rows);
  Results expected = compute(rows, kHere);
  for (const Where where : {kOneThread, kTwoThreads})
    require(compute(rows, where).same_bits(expected), "the same bits on the pool's threads");

  cpu::LogitsCall call = rows.call;
  call.grad_logprob = rows.grad_logprob.data();
  call.grad_entropy = in.flag() ? rows.grad_entropy.data() : nullptr;
  call.out_dtype = in.flag() ? call.dtype : DType::kFloat32;
  const int shift = in.byte();
  const auto gradient = [&](Where where, bool again) {
    Matrix grad(rows.size(), call.out_dtype, shift);
    cpu::LogitsCall own = call;
    own.out = grad.data();
    own.out_stride = call.row_stride;
    own.logsumexp = again ? nullptr : expected.logsumexp.data();
    own.entropy = again ? nullptr : expected.entropy.data();
    perform(where, std::make_shared<cpu::LogitsEvaluation>(own));
    return grad;
  };
  const Matrix grad = gradient(kHere, false);
  for (const Where where : {kOneThread, kTwoThreads})
    require(gradient(where, false).same_bits(grad), "the same gradient on the pool's threads");
  require(gradient(kTwoThreads, true).same_bits(grad), "the same gradient without the results");
  compute_loss(rows, call.out_dtype, shift);
}

}  // namespace fuzz
