// Creates objectives from the configuration files of training frameworks.
import { guarded, LossError, unknownName } from '../../base/errors.js';
import { type LossAggMode, toCamelCase, toSnakeCase } from '../../base/options.js';
import type { RegisteredClass } from '../../base/registry.js';
import { ADVANTAGE_FN, POLICY_LOSS_FN } from '../../losses/index.js';
import { verlActorLoss } from '../../losses/verl-actor.js';
import type { CheckedConfig, FunctionArgs } from '../config.js';
import { Objective } from '../objective.js';
import { trinityObjective } from '../trinity-config.js';
import type { ConfigKey, Framework, Plan } from './framework.js';
import { Settings } from './framework.js';
import { type ConfigFramework, FRAMEWORK_NAMES, frameworkOf } from './frameworks.js';
import { readConfig } from './text.js';

/** Options of {@link fromConfig}. */
export interface ConfigOptions {
  /** The framework that the configuration is for; by default the only one that has its keys. */
  framework?: ConfigFramework | null | undefined;
  /** The training framework whose batch keys are accepted in addition to Trinity's; 'verl' by default. */
  backend?: string | null | undefined;
}

/**
 * Returns the objective that a configuration of Trinity-RFT, verl, TRL (GRPO and DPO) or NeMo-RL describes. It consists
 * of that framework's functions. Keys that are absent have the framework's defaults. Keys without an effect on the loss
 * are ignored. docs/configurations.md lists the keys with an effect.
 *
 * @param config YAML or JSON, or the object that it parses to: a whole configuration or the part that was changed. Keys
 * may also be paths, such as `algorithm.gamma`. The text may also be a training command with settings such as
 * `algorithm.gamma=1`, of which nothing is executed.
 * @throws LossError `ERR_INVALID_INPUT` for text that is not YAML, or has more than 65,536 characters or 64 levels, and
 * for a configuration that is not an object. `ERR_INVALID_OPTION` for keys that have an effect and are not supported,
 * for invalid values, and if the framework cannot be told from the keys; the messages name the keys with their paths.
 * `ERR_UNKNOWN_NAME` for unknown frameworks, algorithms and functions.
 */
export function fromConfig(
  config: string | Readonly<Record<string, unknown>>,
  options?: ConfigOptions,
): Objective {
  return guarded(() => {
    const { framework: wanted, backend } = options ?? {};
    if (wanted !== undefined && wanted !== null && !FRAMEWORK_NAMES.includes(wanted))
      throw unknownName('ERR_UNKNOWN_NAME', 'framework', wanted, FRAMEWORK_NAMES);
    const { framework, root } = frameworkOf(readConfig(config), wanted ?? undefined);
    if (framework === undefined) return trinityObjective(root, backend ?? undefined);
    return objectiveOf(framework, new Settings(framework, root), backend ?? undefined);
  });
}

function objectiveOf(framework: Framework, settings: Settings, backend: string | undefined): Objective {
  settings.refuseUnknown(framework);
  const obstacle = settings.refuseUnsupported();
  const plan = framework.plan(settings);
  const creation = new Creation(framework, settings, backend);
  const lossArgs = creation.lossArgs(plan);
  const terms = termsOf(plan);
  const lossFn =
    terms && creation.checked(() => verlActorLoss(plan.policyLoss, lossArgs, terms, creation.options));
  const { functions, advantageObstacle } = advantagesOf(plan, obstacle, creation);
  const config = {
    backend: backend ?? 'verl',
    policy_loss_fn: plan.policyLoss,
    policy_loss_fn_args: lossArgs,
    ...(plan.klLoss && { kl_loss_fn: plan.klLoss.name, kl_loss_fn_args: { kl_coef: plan.klLoss.coef } }),
    ...(plan.entropyCoef && {
      entropy_loss_fn: 'default',
      entropy_loss_fn_args: { entropy_coef: plan.entropyCoef },
    }),
    ...(plan.lossAggMode !== undefined && { loss_agg_mode: plan.lossAggMode }),
    ...functions,
  };
  return creation.checked(() => new Objective(framework.name, config, { lossFn, advantageObstacle }));
}

// Returns the functions that compute advantages, or why there are none although the policy loss reads advantages.
function advantagesOf(
  { advantage, klPenalty }: Plan,
  obstacle: string | undefined,
  creation: Creation,
): { functions?: CheckedConfig; advantageObstacle?: string } {
  if (!advantage) return {};
  const found = 'obstacle' in advantage ? advantage.obstacle : obstacle;
  if (found !== undefined || 'obstacle' in advantage)
    return { advantageObstacle: `because this package does not compute them with this ${found}` };
  const { name, args } = advantage;
  const functions: CheckedConfig = {
    advantage_fn: name,
    advantage_fn_args: { ...creation.argsOf(ADVANTAGE_FN.get(name), 'advantage'), ...args },
    ...(klPenalty && { kl_penalty_fn: klPenalty.name, kl_penalty_fn_args: klPenalty.args }),
  };
  return { functions };
}

// Returns the terms that a framework adds to the policy loss, or undefined if it adds none.
function termsOf({ klLoss, entropyCoef = 0, lossAggMode, lossScaleFactor }: Plan) {
  if (klLoss === undefined && entropyCoef === 0) return undefined;
  return {
    klLossFn: klLoss?.name ?? 'k1',
    klCoef: klLoss?.coef ?? 0,
    entropyCoef,
    lossAggMode: lossAggMode as LossAggMode,
    lossScaleFactor,
  };
}

/** Creates functions with the arguments that keys set, and names the keys in errors about these arguments. */
class Creation {
  readonly options: { backend?: string };
  readonly #framework: Framework;
  readonly #settings: Settings;

  constructor(framework: Framework, settings: Settings, backend: string | undefined) {
    this.#framework = framework;
    this.#settings = settings;
    this.options = backend === undefined ? {} : { backend };
  }

  /** Returns the arguments of the policy loss: those that keys set, and those of the plan that the loss has. */
  lossArgs({ policyLoss, lossArgs = {} }: Plan): FunctionArgs {
    const cls = POLICY_LOSS_FN.get(policyLoss);
    const ofPlan = Object.entries(lossArgs).filter(([name]) => name === 'masks' || hasOption(cls, name));
    return { ...this.argsOf(cls, 'loss'), ...Object.fromEntries(ofPlan) };
  }

  /** Returns the arguments of a function that keys of one kind set. */
  argsOf(cls: RegisteredClass<unknown>, kind: 'loss' | 'advantage'): FunctionArgs {
    const keys = this.#framework.keys.filter((key) => {
      const name = argumentOf(key, kind);
      return name !== undefined && hasOption(cls, name);
    });
    const args = keys.map((key) => [argumentOf(key, kind)!, this.#settings.get(key.path)] as const);
    return Object.fromEntries(args.filter(([, value]) => value !== undefined));
  }

  /** Calls a function. In the errors about options, replaces the name of an option with the path of its key. */
  checked<T>(create: () => T): T {
    try {
      return create();
    } catch (error) {
      if (!(error instanceof LossError) || error.option === undefined) throw error;
      const { message } = error
        .with({ at: `configuration of ${this.#framework.title}` })
        .withOptionNames((option) => this.#pathOf(toSnakeCase(option)));
      throw new LossError(error.code, message, { cause: error });
    }
  }

  #pathOf(option: string): string {
    const { keys } = this.#framework;
    const key =
      keys.find((each) => argumentOf(each, 'loss') === option || argumentOf(each, 'advantage') === option) ??
      keys.find(({ path }) => path === option || path.endsWith(`.${option}`));
    return key?.path ?? option;
  }
}

function argumentOf(key: ConfigKey, kind: 'loss' | 'advantage'): string | undefined {
  if (kind === 'loss') return 'loss' in key ? key.loss : undefined;
  return 'advantage' in key ? key.advantage : undefined;
}

function hasOption({ declaration }: RegisteredClass<unknown>, name: string): boolean {
  return declaration !== undefined && Object.hasOwn(declaration.options, toCamelCase(name));
}
