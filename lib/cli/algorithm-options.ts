// The options of `--algorithm NAME`: the functions that it is made of, their arguments, and the configuration that all
// of them make.
import { Option } from 'commander';
import { ALGORITHM_TYPE, ENTROPY_LOSS_FN, KL_FN, type ObjectiveConfig } from '../index.js';
import {
  advantageOptions,
  lossOptions,
  numberOption,
  optionValue,
  takeAdvantageArgs,
} from './function-options.js';

/** What an algorithm's options come to. */
export interface AlgorithmArguments {
  config: ObjectiveConfig;
  /** What random choices depend on. */
  seed?: number;
}

/**
 * The options that a command takes for an algorithm: its functions' names and coefficients, and the arguments of its
 * policy loss and its advantage function, whichever they are by the words given.
 *
 * @param taken option names that are the command's own.
 * @throws LossError `ERR_UNKNOWN_NAME` for the algorithm or one of those two functions, `ERR_INVALID_OPTION` for a word
 * that is nobody's option.
 */
export function algorithmOptions(
  algorithm: string,
  words: readonly string[],
  taken: ReadonlySet<string>,
): Option[] {
  const named = (flag: string) => optionValue(flag, words);
  const { policyLoss, advantage } = functionsOf(
    algorithm,
    named('--policy-loss-fn'),
    named('--advantage-fn'),
  );
  const own = ownOptions(algorithm);
  if (advantage !== undefined) own.push(...advantageOptions(advantage));
  const known = new Set([...taken, ...own.map((option) => option.long!)]);
  return [
    ...own,
    ...lossOptions(policyLoss, words, known).map((option) =>
      option.helpGroup(`Options of its policy loss ${policyLoss}:`),
    ),
  ];
}

/** @param values those given on the command line for {@link algorithmOptions}, by commander's names of the options. */
export function algorithmArguments(
  algorithm: string,
  values: Readonly<Record<string, unknown>>,
): AlgorithmArguments {
  const { policyLossFn, advantageFn, klLossFn, klPenaltyFn, entropyLossFn, ...others } = values;
  const { klCoef, entropyCoef, lossAggMode, seed, ...given } = others;
  const { advantage } = functionsOf(algorithm, policyLossFn, advantageFn);
  const config: ObjectiveConfig = {};
  for (const [key, name] of Object.entries({
    policyLossFn,
    advantageFn,
    klLossFn,
    klPenaltyFn,
    entropyLossFn,
  }))
    if (name !== undefined) config[key] = name;
  if (advantage !== undefined) config.advantage_fn_args = takeAdvantageArgs(advantage, given);
  if (klCoef !== undefined) config.kl_loss_fn_args = { kl_coef: klCoef };
  if (entropyCoef !== undefined) config.entropy_loss_fn_args = { entropy_coef: entropyCoef };
  if (lossAggMode !== undefined) config.loss_agg_mode = lossAggMode as string;
  config.policy_loss_fn_args = given;
  return seed === undefined ? { config } : { config, seed: seed as number };
}

function functionsOf(algorithm: string, policyLoss: unknown, advantage: unknown) {
  const { policy_loss_fn, advantage_fn } = ALGORITHM_TYPE.get(algorithm).defaultConfig();
  return {
    policyLoss: (policyLoss as string | undefined) ?? policy_loss_fn,
    advantage: (advantage as string | undefined) ?? advantage_fn,
  };
}

function ownOptions(algorithm: string): Option[] {
  const config = ALGORITHM_TYPE.get(algorithm).defaultConfig();
  const kl = config.kl_loss_fn ?? 'none';
  const entropy = config.entropy_loss_fn ?? 'none';
  const name = (flag: string, what: string, value: string | undefined) => {
    const option = new Option(`${flag} <name>`, what);
    return value === undefined ? option : option.default(value);
  };
  const number = (flag: string, what: string, value: unknown) =>
    numberOption(`${flag} <value>`, what).default(value);
  return [
    name('--policy-loss-fn', 'its policy loss', config.policy_loss_fn),
    name('--advantage-fn', 'where its advantages come from', config.advantage_fn),
    name('--kl-loss-fn', 'its KL loss', kl),
    number('--kl-coef', "the KL loss's coefficient", KL_FN.get(kl).defaultArgs().kl_coef),
    name('--kl-penalty-fn', 'the KL penalty in its rewards', config.kl_penalty_fn ?? 'none'),
    name('--entropy-loss-fn', 'its entropy loss', entropy),
    number(
      '--entropy-coef',
      "the entropy loss's coefficient",
      ENTROPY_LOSS_FN.get(entropy).defaultArgs().entropy_coef,
    ),
    new Option('--loss-agg-mode <mode>', 'how the tokens of all its losses become one number'),
    numberOption('--seed <number>', 'what random choices depend on').default(0),
  ].map((option) => option.helpGroup(`Options of ${algorithm}:`));
}
