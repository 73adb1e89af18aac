// The losses of supervised fine-tuning from logits, as the frameworks compute them.
import { choice, flag, integer, number } from '../base/option.js';
import type { Expression } from '../program/expression.js';
import { atTarget, expected, klTerm, listSum, logSoftmax } from './distillation-terms.js';
import type { EntrySymbols } from './entries.js';
import { logitsLoss } from './logits-loss.js';
import {
  ALL,
  byItems,
  dynamic,
  ITEMS,
  isRight,
  LABEL_ALONE,
  LABELS,
  labelSmoothing,
  maskUnlabelled,
  NUMERICS,
  SMOOTHING,
  smoothed,
} from './sft-terms.js';
import { FRACTION, LOSS, NATS } from './units.js';

const DFT = {
  summary: 'ℓ = −sg(p)·ln p of the label, divided by the number of labels',
  reads: LABELS,
  options: ITEMS,
  metrics: {},
  numerics: NUMERICS,
  mask: maskUnlabelled,
  entries: () => LABEL_ALONE,
  weights: byItems,
  formula: (symbols: EntrySymbols) => {
    const { student, batchWeights, weighted } = symbols;
    return { loss: weighted(batchWeights[0], dynamic(symbols, atTarget(symbols, student))), metrics: {} };
  },
} as const;

/** Dynamic fine-tuning as in LLaMA-Factory. */
export class LlamaFactoryDFTLossFn extends logitsLoss({
  name: 'llamafactory/dft',
  source: ['arXiv 2508.05629', 'LLaMA-Factory'],
  ...DFT,
}) {}

/** Dynamic fine-tuning as in axolotl. */
export class AxolotlDFTLossFn extends logitsLoss({
  name: 'axolotl/dft',
  source: ['arXiv 2508.05629', 'axolotl'],
  ...DFT,
}) {}

/** The loss of TRL's SFTTrainer. */
export class TRLSFTLossFn extends logitsLoss({
  name: 'trl/sft',
  summary: 'nll: ℓ = −ln p of the label; dft: ℓ = −sg(p)·ln p; divided by the number of labels',
  details: ['label_smoothing_factor has no effect with dft.'],
  source: ['TRL'],
  reads: LABELS,
  options: {
    lossType: choice(['nll', 'chunked_nll', 'dft'], {
      default: 'nll',
      help: 'the loss of a label; chunked_nll is the same as nll',
    }),
    labelSmoothingFactor: labelSmoothing,
    ...ITEMS,
  },
  metrics: { entropy: NATS, mean_token_accuracy: FRACTION },
  numerics: NUMERICS,
  mask: maskUnlabelled,
  entries: (options) =>
    isSmoothed(options) ? ALL : { over: 'student', count: 1, target: true, entropy: true, top: true },
  weights: byItems,
  formula: (symbols, options) => {
    const { student, batchWeights, weighted, mean, isTop, entropy } = symbols;
    if (isSmoothed(options)) {
      const s = logSoftmax(symbols, student);
      return {
        loss: weighted(batchWeights[0], smoothed(symbols, s, options.labelSmoothingFactor)),
        metrics: {
          entropy: mean(entropyOf(symbols, s)),
          mean_token_accuracy: mean(isRight(symbols, student)),
        },
      };
    }
    const label = atTarget(symbols, student);
    const nll = options.lossType === 'dft' ? dynamic(symbols, label) : label.neg();
    return {
      loss: weighted(batchWeights[0], nll),
      metrics: { entropy: mean(entropy), mean_token_accuracy: mean(atTarget(symbols, isTop)) },
    };
  },
}) {}

function isSmoothed({
  lossType,
  labelSmoothingFactor,
}: {
  readonly lossType: string;
  readonly labelSmoothingFactor: number;
}): boolean {
  return lossType !== 'dft' && labelSmoothingFactor > 0;
}

function entropyOf(symbols: EntrySymbols, s: Expression): Expression {
  return symbols.rowSum(expected(symbols, symbols.exp(s), s)).neg();
}

/** Anchored fine-tuning as in LLaMA-Factory. */
export class LlamaFactoryASFTLossFn extends logitsLoss({
  name: 'llamafactory/asft',
  summary: 'ℓ = −sg(p)·ln p of the label + asft_alpha·KL(ref‖p), the mean over the labels',
  source: ['arXiv 2509.23753', 'LLaMA-Factory'],
  reads: ['ref_logits', ...LABELS],
  options: {
    asftAlpha: number({ default: 0.1, atLeast: 0, typical: [0, 1], help: 'multiplies the KL term' }),
  },
  metrics: {},
  numerics: NUMERICS,
  mask: maskUnlabelled,
  entries: () => ({ ...ALL, reference: true }),
  weights: (symbols) => byItems(symbols, {}),
  formula: (symbols, { asftAlpha }) => {
    const { student, reference, batchWeights, weighted, rowSum } = symbols;
    const s = logSoftmax(symbols, student);
    const kl = rowSum(klTerm(symbols, logSoftmax(symbols, reference), s));
    const loss = dynamic(symbols, atTarget(symbols, s)).add(kl.mul(asftAlpha));
    return { loss: weighted(batchWeights[0], loss), metrics: {} };
  },
}) {}

const EAFT_ALPHA = number({
  default: 1,
  atLeast: 0,
  typical: [0.5, 2],
  help: 'α: the power to which the entropy is raised',
});

// Returns the log-probabilities of the largest logits, renormalized, precisely also where one probability is nearly 1.
function logsOfLargest(symbols: EntrySymbols): Expression {
  const { student, exp, log1p, rowMax, select, isListed } = symbols;
  const shifted = student.sub(rowMax(select(isListed, student, -1e30)));
  const smaller = listSum(symbols, select(shifted.lt(0), exp(shifted), 0));
  return shifted.sub(log1p(smaller.add(listSum(symbols, shifted.ge(0)).sub(1))));
}

/** Entropy-adaptive fine-tuning as in LLaMA-Factory. */
export class LlamaFactoryEAFTLossFn extends logitsLoss({
  name: 'llamafactory/eaft',
  summary: 'ℓ = −(H/3)^eaft_alpha·ln p of the label, divided by the number of labels',
  details: ['H is the entropy of the 20 largest logits, renormalized, as a constant.'],
  source: ['arXiv 2601.02151', 'LLaMA-Factory'],
  reads: LABELS,
  options: { eaftAlpha: EAFT_ALPHA, ...ITEMS },
  metrics: {},
  numerics: NUMERICS,
  mask: maskUnlabelled,
  entries: () => ({ over: 'student', count: 20, target: true }),
  weights: byItems,
  formula: (symbols, { eaftAlpha }) => {
    const { student, exp, pow, sg, batchWeights, weighted } = symbols;
    const s = logsOfLargest(symbols);
    const entropy = listSum(symbols, expected(symbols, exp(s), s)).neg();
    const weight = sg(pow(entropy.div(3), eaftAlpha));
    return { loss: weighted(batchWeights[0], weight.mul(atTarget(symbols, student)).neg()), metrics: {} };
  },
}) {}

/** Entropy-adaptive fine-tuning as in axolotl. */
export class AxolotlEAFTLossFn extends logitsLoss({
  name: 'axolotl/eaft',
  summary: 'ℓ = −H^eaft_alpha·ln p of the label, divided by the number of labels',
  details: ['H is the entropy of the eaft_k largest logits, renormalized, as a constant.'],
  source: ['arXiv 2601.02151', 'axolotl'],
  unlike: { 'llamafactory/eaft': 'the entropy is not divided by 3' },
  reads: LABELS,
  options: {
    eaftAlpha: EAFT_ALPHA,
    eaftK: integer({ default: 20, atLeast: 1, typical: [1, 30], help: 'the number of largest logits' }),
    ...ITEMS,
  },
  metrics: {},
  numerics: NUMERICS,
  mask: maskUnlabelled,
  entries: ({ eaftK }) => ({ over: 'student', count: eaftK, target: true }),
  weights: byItems,
  formula: (symbols, { eaftAlpha }) => {
    const { student, exp, log1p, pow, sg, max, min, batchWeights, weighted } = symbols;
    const s = logsOfLargest(symbols);
    // ln(p + 1e-10), precisely also where p is nearly 1. It does not matter where p is less than e^−80.
    const logP = s.add(log1p(exp(min(s.neg(), 80)).mul(1e-10)));
    const entropy = max(listSum(symbols, expected(symbols, exp(s), logP)).neg(), 0);
    const weight = sg(pow(entropy, eaftAlpha));
    return { loss: weighted(batchWeights[0], weight.mul(atTarget(symbols, student)).neg()), metrics: {} };
  },
}) {}

/** The loss of Transformers' LabelSmoother. */
export class HFLabelSmoothingLossFn extends logitsLoss({
  name: 'hf/label_smoothing',
  summary: 'ℓ = −(1 − ε)·ln p of the label − ε·(the mean of ln p over the vocabulary)',
  source: ['Transformers'],
  reads: LABELS,
  options: { labelSmoothingFactor: number({ ...SMOOTHING, required: true }), ...ITEMS },
  metrics: {},
  numerics: NUMERICS,
  mask: maskUnlabelled,
  entries: ({ labelSmoothingFactor }) => (labelSmoothingFactor > 0 ? ALL : LABEL_ALONE),
  weights: byItems,
  formula: (symbols, { labelSmoothingFactor }) => {
    const { student, batchWeights, weighted } = symbols;
    const s = labelSmoothingFactor > 0 ? logSoftmax(symbols, student) : student;
    return { loss: weighted(batchWeights[0], smoothed(symbols, s, labelSmoothingFactor)), metrics: {} };
  },
}) {}

/** Liger's cross-entropy. */
export class LigerCrossEntropyLossFn extends logitsLoss({
  name: 'liger/cross_entropy',
  summary: 'ℓ = the NLL with label smoothing + lse_square_scale·(ln Σ e^x)², the mean over the labels',
  source: ['Liger-Kernel'],
  reads: LABELS,
  options: {
    labelSmoothing,
    lseSquareScale: number({
      default: 0,
      atLeast: 0,
      typical: [0, 0.1],
      help: 'multiplies the square of ln Σ e^x, which is called the z-loss',
    }),
    softcap: number({ above: 0, typical: [3, 50], help: 'c: c·tanh(x/c) replaces the logit x' }),
    reduction: choice(['mean', 'sum'], { default: 'mean', help: 'the mean over the labels, or the sum' }),
    useTokenScaling: flag({
      default: false,
      help: 'multiplies the loss by sg(p), as dynamic fine-tuning does',
    }),
  },
  metrics: { z_loss: LOSS, token_accuracy: FRACTION },
  numerics: NUMERICS,
  mask: maskUnlabelled,
  entries: () => ALL,
  weights: (symbols, { reduction }) => (reduction === 'sum' ? [symbols.constant(1)] : byItems(symbols, {})),
  formula: (symbols, { softcap, useTokenScaling, ...options }) => {
    const { student, tanh, exp, sg, square, constant, batchWeights, weighted, total, mean } = symbols;
    const logit = softcap === undefined ? student : tanh(student.mul(1 / softcap)).mul(softcap);
    const s = logSoftmax(symbols, logit);
    const label = atTarget(symbols, s);
    const zLoss = square(atTarget(symbols, logit).sub(label)).mul(options.lseSquareScale);
    const scale = useTokenScaling ? sg(exp(label)) : constant(1);
    const reduced = (x: Expression) => weighted(batchWeights[0], x.mul(scale));
    return {
      loss: reduced(smoothed(symbols, s, options.labelSmoothing).add(zLoss)),
      metrics: { z_loss: total(reduced(zLoss)), token_accuracy: mean(isRight(symbols, logit)) },
    };
  },
}) {}

/** The loss of ms-swift, with weights of tokens. */
export class SwiftSFTLossFn extends logitsLoss({
  name: 'swift/sft',
  summary:
    'ℓ = −w·ln p of the label or, with enable_dft_loss, −w·sg(p)·ln p; divided by the number of labels',
  details: ['token_weights are what ms-swift calls loss_scale. The loss is not divided by their sum.'],
  source: ['ms-swift'],
  reads: [...LABELS, 'token_weights'],
  options: {
    enableDftLoss: flag({ default: false, help: 'multiplies the loss of a label by its probability' }),
    ...ITEMS,
  },
  metrics: {},
  numerics: NUMERICS,
  mask: maskUnlabelled,
  entries: () => LABEL_ALONE,
  weights: byItems,
  formula: (symbols, { enableDftLoss }) => {
    const { student, batchWeights, weighted } = symbols;
    const label = atTarget(symbols, student);
    const nll = enableDftLoss ? dynamic(symbols, label) : label.neg();
    return { loss: weighted(batchWeights[0], nll), metrics: {} };
  },
}) {}
