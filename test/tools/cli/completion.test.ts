/** Tests the scripts that complete the command line in a shell. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { Command } from 'commander';
import { LOSS_FN } from '../../../lib/index.js';
import { addCommands } from '../../../lib/tools/cli/commands.js';
import { Files, fails, run } from './support.js';

describe('policy-loss completion', () => {
  const files = new Files();
  after(() => files.remove());

  const scriptFor = async (shell: string) => {
    const { code, stdout, stderr } = await run('completion', shell);
    assert.deepEqual({ code, stderr }, { code: 0, stderr: '' });
    return stdout;
  };

  it('completes commands, flags and names in bash', async () => {
    const script = files.write('completion.bash', [await scriptFor('bash')]);
    /** Returns what the last of the words is completed to. */
    const completed = (...words: string[]) => {
      const body = `source ${script}; COMP_WORDS=(policy-loss ${words.map((word) => `'${word}'`).join(' ')}); COMP_CWORD=${words.length}; _policy_loss; printf '%s\\n' "\${COMPREPLY[@]}"`;
      const { stdout, stderr, status } = spawnSync('bash', ['-c', body], { encoding: 'utf8' });
      assert.deepEqual({ status, stderr }, { status: 0, stderr: '' });
      return stdout.trim().split('\n');
    };
    assert.deepEqual(completed('ev'), ['evaluate']);
    assert.deepEqual(completed('evaluate', 'x.jsonl', '--micro'), ['--micro-batches']);
    assert.deepEqual(completed('sweep', '--loss', 'verl/van'), ['verl/vanilla']);
    assert.deepEqual(completed('evaluate', '--loss', ''), LOSS_FN.names());
    assert.deepEqual(completed('gradients', '--dtype', 'b'), ['bfloat16']);
    assert.deepEqual(completed('list', 'algo'), ['algorithm']);
    assert.deepEqual(completed('completion', 'z'), ['zsh']);
    assert.deepEqual(completed('evaluate', ''), [''], 'files');
  });

  it('knows all commands and flags in every shell', async () => {
    const program = new Command('policy-loss');
    await addCommands(program, []);
    const flags = new Set(program.commands.flatMap(({ options }) => options.map(({ long }) => long!)));
    assert.ok(flags.size > 40);
    for (const shell of ['bash', 'zsh', 'fish']) {
      const script = await scriptFor(shell);
      for (const command of program.commands) assert.ok(script.includes(command.name()), command.name());
      for (const flag of flags)
        assert.ok(script.includes(shell === 'fish' ? `-l ${flag.slice(2)} ` : flag), `${shell}: ${flag}`);
    }
  });

  it('refuses other shells', () => fails(2, ['completion', 'tcsh'], /Allowed choices are bash, zsh, fish/));
});
