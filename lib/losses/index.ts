// All functions. Each table is a module of statements; the order of the tables and of their statements is the order of the
// registries.

import { CombinedRegistry, type Registry } from '../base/registry.js';
import { ADVANTAGE_FN as ADVANTAGES, type AdvantageFn } from './advantage-fn.js';
import * as advantages from './advantages.js';
import {
  REWARD_LOSS_FN as REWARD_LOSSES,
  RewardLossFn,
  VALUE_LOSS_FN as VALUE_LOSSES,
  ValueLossFn,
} from './column-loss-fn.js';
import { CORRECTION_FN as CORRECTIONS, type CorrectionFn } from './correction-fn.js';
import * as distillation from './distillation.js';
import * as distillationAdvantages from './distillation-advantages.js';
import * as distillationGold from './distillation-gold.js';
import * as distillationLists from './distillation-lists.js';
import * as distillationTRL from './distillation-trl.js';
import * as distillationTRLLists from './distillation-trl-lists.js';
import * as distillationTRLSelf from './distillation-trl-self.js';
import * as distillationVerl from './distillation-verl.js';
import type { EntropyLossFn } from './entropy.js';
import * as entropy from './entropy.js';
import { ENTROPY_LOSS_FN as ENTROPY_LOSSES } from './entropy.js';
import * as kl from './kl.js';
import { KL_FN as KL_FUNCTIONS, type KLFn } from './kl-fn.js';
import { LOGITS_LOSS_FN as LOGITS_LOSSES, LogitsLossFn } from './logits-loss-fn.js';
import * as clipping from './papers-clipping.js';
import * as context from './papers-context.js';
import * as offPolicy from './papers-off-policy.js';
import { POLICY_LOSS_FN as POLICY_LOSSES, type PolicyLossFn } from './policy-loss-fn.js';
import * as preference from './preference.js';
import * as families from './preference-families.js';
import * as openrlhf from './preference-openrlhf.js';
import * as processRewards from './process-rewards.js';
import * as rewards from './rewards.js';
import * as sft from './sft.js';
import { type ByName, type NamedRegistry, register } from './statement.js';
import * as supervised from './supervised.js';
import * as trinity from './trinity.js';
import * as rows from './trinity-rows.js';
import * as trl from './trl.js';
import * as trlPreference from './trl-preference.js';
import * as trainers from './trl-trainers.js';
import * as values from './values.js';
import * as verl from './verl.js';
import * as verlAdvantages from './verl-advantages.js';
import * as corrections from './verl-corrections.js';
import * as recipes from './verl-recipes.js';

register(
  POLICY_LOSSES,
  trinity,
  rows,
  verl,
  recipes,
  trl,
  trainers,
  offPolicy,
  clipping,
  context,
  supervised,
  trlPreference,
  preference,
  openrlhf,
  families,
);
register(VALUE_LOSSES, values);
register(REWARD_LOSSES, rewards);
register(
  LOGITS_LOSSES,
  distillationVerl,
  distillationTRL,
  distillation,
  distillationLists,
  distillationTRLLists,
  distillationTRLSelf,
  distillationGold,
  sft,
  processRewards,
);
register(CORRECTIONS, corrections);
register(KL_FUNCTIONS, kl);
register(ENTROPY_LOSSES, entropy);
register(ADVANTAGES, advantages, verlAdvantages, distillationAdvantages);

/** The policy losses by name. */
export interface PolicyLosses
  extends ByName<
    typeof trinity &
      typeof rows &
      typeof verl &
      typeof recipes &
      typeof trl &
      typeof trainers &
      typeof offPolicy &
      typeof clipping &
      typeof context &
      typeof supervised &
      typeof trlPreference &
      typeof preference &
      typeof openrlhf &
      typeof families
  > {}
/** The value losses by name. */
export interface ValueLosses extends ByName<typeof values> {}
/** The losses of reward models by name. */
export interface RewardLosses extends ByName<typeof rewards> {}
/** The losses of logits by name. */
export interface LogitsLosses
  extends ByName<
    typeof distillationVerl &
      typeof distillationTRL &
      typeof distillation &
      typeof distillationLists &
      typeof distillationTRLLists &
      typeof distillationTRLSelf &
      typeof distillationGold &
      typeof sft &
      typeof processRewards
  > {}
/** All losses by name. Where losses of several kinds have the same alias, that of the first kind counts. */
export interface Losses
  extends PolicyLosses,
    ValueLosses,
    RewardLosses,
    Omit<LogitsLosses, keyof PolicyLosses> {}
/** The corrections by name. */
export interface Corrections extends ByName<typeof corrections> {}
/** The KL functions by name. */
export interface KLFunctions extends ByName<typeof kl> {}
/** The entropy losses by name. */
export interface EntropyLosses extends ByName<typeof entropy> {}
/** The advantage functions by name. */
export interface Advantages
  extends ByName<typeof advantages & typeof verlAdvantages & typeof distillationAdvantages> {}

type AnyMetrics = Partial<Record<string, number>>;

/** The registry of the policy losses. */
export const POLICY_LOSS_FN = POLICY_LOSSES as NamedRegistry<PolicyLossFn<AnyMetrics>, PolicyLosses>;
/** The registry of the value losses. */
export const VALUE_LOSS_FN = VALUE_LOSSES as NamedRegistry<ValueLossFn<AnyMetrics>, ValueLosses>;
/** The registry of the losses of reward models. */
export const REWARD_LOSS_FN = REWARD_LOSSES as NamedRegistry<RewardLossFn<AnyMetrics>, RewardLosses>;
/** The registry of the losses that are computed from logits. */
export const LOGITS_LOSS_FN = LOGITS_LOSSES as NamedRegistry<LogitsLossFn<AnyMetrics>, LogitsLosses>;
/** A loss of any kind. */
export type AnyLossFn =
  | PolicyLossFn<AnyMetrics>
  | ValueLossFn<AnyMetrics>
  | RewardLossFn<AnyMetrics>
  | LogitsLossFn<AnyMetrics>;
/** The registry of all losses: policy losses, value losses, losses of reward models and losses of logits. It has what theirs have. */
export const LOSS_FN = new CombinedRegistry<AnyLossFn>(
  'loss',
  [POLICY_LOSSES, VALUE_LOSSES, REWARD_LOSSES, LOGITS_LOSSES],
  (cls) =>
    cls.prototype instanceof ValueLossFn
      ? (VALUE_LOSSES as Registry<AnyLossFn>)
      : cls.prototype instanceof RewardLossFn
        ? (REWARD_LOSSES as Registry<AnyLossFn>)
        : cls.prototype instanceof LogitsLossFn
          ? (LOGITS_LOSSES as Registry<AnyLossFn>)
          : POLICY_LOSSES,
) as NamedRegistry<AnyLossFn, Losses>;
/** The registry of the corrections. */
export const CORRECTION_FN = CORRECTIONS as NamedRegistry<CorrectionFn<AnyMetrics>, Corrections>;
/** The registry of the KL functions. */
export const KL_FN = KL_FUNCTIONS as NamedRegistry<KLFn, KLFunctions>;
/** The registry of the entropy losses. */
export const ENTROPY_LOSS_FN = ENTROPY_LOSSES as NamedRegistry<EntropyLossFn, EntropyLosses>;
/** The registry of the advantage functions. */
export const ADVANTAGE_FN = ADVANTAGES as NamedRegistry<AdvantageFn, Advantages>;

export type { AdvantageOutputs } from './advantage-arrays.js';
export type {
  AdvantageComputeOptions,
  AdvantageComputeSyncOptions,
  AdvantageDeclaration,
  AdvantageOptions,
  AdvantageResult,
} from './advantage-fn.js';
export { AdvantageFn } from './advantage-fn.js';
export type { NormalisationOptions, StdCalLevel } from './advantage-options.js';
export * from './advantages.js';
export {
  ColumnLossFn,
  type ColumnLossOptions,
  RewardLossFn,
  ValueLossFn,
} from './column-loss-fn.js';
export {
  type CorrectionClass,
  type CorrectionComputeOptions,
  CorrectionFn,
  type CorrectionFnOptions,
  type CorrectionResult,
} from './correction-fn.js';
export * from './distillation.js';
export * from './distillation-advantages.js';
export * from './distillation-gold.js';
export * from './distillation-lists.js';
export * from './distillation-trl.js';
export * from './distillation-trl-lists.js';
export * from './distillation-trl-self.js';
export * from './distillation-verl.js';
export {
  DefaultEntropyLossFn,
  DummyEntropyLossFn,
  type EntropyComputeOptions,
  type EntropyComputeSyncOptions,
  type EntropyLossDeclaration,
  EntropyLossFn,
  type EntropyLossOptions,
  type EntropyMetrics,
  MixEntropyLossFn,
} from './entropy.js';
export * from './kl.js';
export {
  type KLDeclaration,
  KLFn,
  type KLMetrics,
  type KLOptions,
  type KlLossOptions,
  type KlLossSyncOptions,
  type KlPenaltyResult,
} from './kl-fn.js';
export type {
  LogitsLossBatch,
  LogitsLossBatchSync,
  LogitsLossComputeOptions,
  LogitsLossComputeSyncOptions,
  LogitsLossOptions,
  LogitsLossResult,
} from './logits-call.js';
export { LogitsLossFn } from './logits-loss-fn.js';
export type { CorrectionOption, LossCorrectionOptions, MaskOptions } from './loss-correction.js';
export * from './papers-clipping.js';
export * from './papers-context.js';
export * from './papers-off-policy.js';
export type {
  AggregatedLossOptions,
  PolicyLossDeclaration,
  PolicyLossOptions,
} from './policy-loss-declaration.js';
export { PolicyLossFn } from './policy-loss-fn.js';
export * from './preference.js';
export * from './preference-families.js';
export * from './preference-openrlhf.js';
export * from './process-rewards.js';
export * from './rewards.js';
export * from './sft.js';
export type { MetricsOf, NamedRegistry, OptionsOf } from './statement.js';
export * from './supervised.js';
export type { ClipRangeOptions } from './surrogate.js';
export * from './trinity.js';
export * from './trinity-rows.js';
export * from './trl.js';
export * from './trl-preference.js';
export * from './trl-trainers.js';
export * from './values.js';
export * from './verl.js';
export * from './verl-advantages.js';
export * from './verl-corrections.js';
export * from './verl-recipes.js';
