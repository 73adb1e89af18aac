// The command-line flags that `--algorithm NAME` accepts. They choose the algorithm's functions and set the options and
// coefficients of these functions. The values of the flags make the configuration of the algorithm.
import { Option } from 'commander';
import { ALGORITHM_TYPE, ENTROPY_LOSS_FN, KL_FN, type ObjectiveConfig } from '../../index.js';
import { optionValue } from './flags.js';
import { advantageOptions, lossOptions, numberOption, takeAdvantageArgs } from './function-options.js';

/** An algorithm's configuration and seed, as set by flags. */
export interface AlgorithmArguments {
  config: ObjectiveConfig;
  /** The seed for random draws of the advantage function; absent if the command line does not set it. */
  seed?: number;
}

/**
 * Returns the flags of an algorithm. They set the names of its functions, their coefficients, and the options of its
 * policy loss and advantage function.
 * @param words the arguments of the command line. They may name a policy loss or an advantage function to use instead
 * of the algorithm's default one.
 * @param taken the command's own flags. Options of the policy loss that would have the same flags are left out.
 * @throws LossError `ERR_UNKNOWN_NAME` for an unknown algorithm, policy loss or advantage function.
 */
export function algorithmOptions(
  algorithm: string,
  words: readonly string[],
  taken: ReadonlySet<string>,
): Option[] {
  const { policyLoss, advantage } = functionsOf(
    algorithm,
    optionValue('--policy-loss-fn', words),
    optionValue('--advantage-fn', words),
  );
  const own = ownOptions(algorithm);
  if (advantage !== undefined) own.push(...advantageOptions(advantage));
  const known = new Set([...taken, ...own.map((option) => option.long!)]);
  return [
    ...own,
    ...lossOptions(policyLoss, known).map((option) =>
      option.helpGroup(`Options of its policy loss ${policyLoss}:`),
    ),
  ];
}

/**
 * Returns the configuration and the seed that the flags of an algorithm set.
 * @param values the values of the flags from {@link algorithmOptions}, under commander's names for them (camelCase).
 * @throws LossError `ERR_INVALID_OPTION` if the advantage function does not accept its arguments.
 */
export function algorithmArguments(
  algorithm: string,
  values: Readonly<Record<string, unknown>>,
): AlgorithmArguments {
  const { policyLossFn, advantageFn, klLossFn, klPenaltyFn, entropyLossFn, ...others } = values;
  const { klCoef, entropyCoef, lossAggMode, seed, ...given } = others;
  const { advantage } = functionsOf(algorithm, policyLossFn, advantageFn);
  const config: ObjectiveConfig & Record<string, unknown> = {};
  for (const [key, name] of Object.entries({
    policyLossFn,
    advantageFn,
    klLossFn,
    klPenaltyFn,
    entropyLossFn,
  }))
    if (name !== undefined) config[key] = name;
  if (advantage !== undefined) config.advantage_fn_args = takeAdvantageArgs(advantage, given);
  if (klCoef !== undefined) config.kl_loss_fn_args = { kl_coef: klCoef as number };
  if (entropyCoef !== undefined) config.entropy_loss_fn_args = { entropy_coef: entropyCoef as number };
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
    name('--advantage-fn', 'its advantage function', config.advantage_fn),
    name('--kl-loss-fn', 'its KL loss', kl),
    number('--kl-coef', 'the coefficient of the KL loss', KL_FN.get(kl).defaultArgs().kl_coef),
    name(
      '--kl-penalty-fn',
      'the KL penalty that is subtracted from its rewards',
      config.kl_penalty_fn ?? 'none',
    ),
    name('--entropy-loss-fn', 'its entropy loss', entropy),
    number(
      '--entropy-coef',
      'the coefficient of the entropy loss',
      ENTROPY_LOSS_FN.get(entropy).defaultArgs().entropy_coef,
    ),
    new Option('--loss-agg-mode <value>', 'how the token values of each loss are combined into one number'),
    numberOption('--seed <number>', 'the seed for random draws').default(0),
  ].map((option) => option.helpGroup(`Options of ${algorithm}:`));
}
