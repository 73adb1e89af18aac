// biome-ignore-all lint/suspicious/noTemplateCurlyInString: variables of a shell look like this
/** Tests configurations that are pasted training commands. */
import assert from 'node:assert/strict';
import { fromConfig } from '../../lib/index.js';
import { isLossError } from '../support/loss-error.js';

const HIGH = 'actor_rollout_ref.actor.clip_ratio_high';
const SETTINGS = `algorithm.adv_estimator=grpo ${HIGH}=0.28`;
const VERL = `python3 -m verl.trainer.main_ppo ${SETTINGS}`;

/** Returns the upper clip range that a text of verl sets. */
const highOf = (text: string) => fromConfig(text).policyLossFn.nativeOptions.clip_ratio_high;

function assertRefused(text: string, says: RegExp): void {
  assert.throws(() => fromConfig(text), isLossError(['ERR_INVALID_INPUT', 'ERR_INVALID_OPTION'], says), text);
}

describe('fromConfig of a training command', () => {
  it('reads the settings, whatever stands around them', () => {
    for (const text of [
      VERL,
      `PYTHONUNBUFFERED=1 nohup ${VERL} > log 2>&1 &`,
      `cd verl && ${VERL} | tee log.txt`,
      `torchrun --nproc_per_node=8 -m ${VERL.slice(11)}`,
      `python3 -m torch.distributed.run --nproc 8 -m ${VERL.slice(11)}`,
      `(cd verl; ${VERL})`,
      `set -x\nray start --head --port=6379\n${VERL}\npython3 merge.py --backend fsdp`,
      `# my run\n${SETTINGS}  # clip higher`,
      SETTINGS.replace(' ', ' \\\n    '),
      SETTINGS.replace(' ', '\\\n'),
      `python3 -m verl.trainer.main_ppo \\\n  # ${HIGH}=0.4 \\\n  ${SETTINGS} \\ \n  "$@"`,
      `${SETTINGS} $@ \${@:2} $EXTRA`,
      `${SETTINGS} model_engine=megatron actor@actor_rollout_ref.actor=megatron_actor ref@actor_rollout_ref.ref=dp_ref`,
      `--config-path=config --config-name='ppo_megatron_trainer.yaml' ${SETTINGS}`,
      `python3 -m verl.trainer.main_ppo --config-name ppo_trainer ${SETTINGS}`,
      `${HIGH}=0.4 ~${HIGH} ${SETTINGS} ~trainer.logger`,
      `- ${SETTINGS.replace(' ', '\n- ')}`,
    ])
      assert.equal(highOf(text), 0.28, text);
    assert.equal(highOf(`${VERL} ~${HIGH}`), 0.2);
  });

  it('reads the values as Hydra does', () => {
    for (const setting of [
      `trainer.logger='["console", "wandb"]'`,
      'trainer.logger=[console,wandb]',
      `"trainer.logger=['console', 'wandb']"`,
      'data.filter="x=1"',
      '+data.apply-chat=1',
      'trainer.experiment_name="my run: 1 # not 2"',
      'trainer.default_local_dir=',
      'actor_rollout_ref.actor.loss_scale_factor=None',
      'actor_rollout_ref.actor.loss_scale_factor=NULL',
      'data.train_files=$HOME/data/*.parquet',
    ])
      assert.equal(highOf(`${VERL} ${setting}`), 0.28, setting);
    const { nativeOptions } = fromConfig(
      `${VERL} +algorithm.rollout_correction={rollout_is:token,rollout_is_threshold:3.0}`,
    ).policyLossFn;
    assert.equal(nativeOptions.rollout_is, 'token');
    assert.equal(nativeOptions.rollout_is_threshold, 3);
  });

  it('knows the variables and arrays that a script sets', () => {
    const of = (value: string) => `python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo ${value}`;
    for (const text of [
      `X=0.28\n${of(`${HIGH}=$X`)}`,
      `export X="0.28" Y=2\n${of(`"${HIGH}=\${X}"`)}`,
      of(`${HIGH}=\${X:-0.28}`),
      `ARGS=(\n  data.n=1  # rows\n)\nARGS+=(${HIGH}=0.28)\n${of('"${ARGS[@]}"')}`,
      `ARGS="data.n=1 ${HIGH}=0.28"\n${of('$ARGS')}`,
    ])
      assert.equal(highOf(text), 0.28, text);
    for (const text of [
      of(`${HIGH}=$X`),
      `if a; then\nX=0.2\nelse\nX=0.3\nfi\n${of(`${HIGH}=$X`)}`,
      of(`${HIGH}=$(head -1 clip.txt)`),
    ])
      assertRefused(text, /clip_ratio_high: expected a number.*got '\$/);
  });

  it('reads flags', () => {
    const { policyLossFn } = fromConfig(
      'accelerate launch --config_file fsdp.yaml examples/grpo.py --loss_type dr_grpo --beta 0.04 ' +
        '--epsilon-high=0.28 --use_vllm --reward_weights 1 2 --output_dir $OUT',
    );
    const { epsilon_high, beta, use_vllm } = policyLossFn.nativeOptions;
    assert.deepEqual([epsilon_high, beta, use_vllm], [0.28, 0.04, true]);
    assert.equal(fromConfig('trl dpo --loss_type sigmoid --beta 0.2').algorithm, 'trl/dpo');
  });

  it('names the word that cannot be read', () => {
    for (const [text, says] of [
      [`${VERL} oops`, /expected settings such as path=value, got the word 'oops'/],
      [`${VERL} -cn mine`, /the word '-cn'/],
      [`python3 train.py mine.yaml ${SETTINGS}`, /the word 'mine\.yaml'/],
      [`- ${HIGH}=0.28\n- 3`, /the word 'number 3'/],
      [`${SETTINGS} trainer.name='abc`, /expected a closing quote, got the word ''abc'/],
      [`${SETTINGS} trainer.name="abc`, /expected a closing quote, got the word '"abc'/],
      [`${VERL} algorithm@algorithm=mine`, /no other file is read, got the word 'algorithm@algorithm=mine'/],
      [`${VERL} algorithm=mine`, /algorithm: expected keys, because no other file is read, got 'mine'/],
      [`${VERL} --config-name=mine`, /defaults: expected only ppo_trainer.*got 'mine'/],
    ] as const)
      assertRefused(text, says);
  });

  it('is bounded by the text, not by how its variables repeat each other', () => {
    const doubled = Array.from({ length: 60 }, (_, i) => `X${i + 1}=$X${i}$X${i}\n`).join('');
    assertRefused(`X0=abcdefgh\n${doubled}${VERL}`, /expected variables of at most 65536 characters/);
    assertRefused(
      `A=(a)\n${'A+=("${A[@]}" "${A[@]}")\n'.repeat(60)}${VERL}`,
      /expected variables of at most 65536 characters/,
    );
  });
});
