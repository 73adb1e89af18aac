// Tests that a build without a suitable nvcc succeeds without CUDA and says why. Configures builds with programs that
// pretend to be nvcc.
import assert from 'node:assert/strict';
import { execFileSync, spawnSync } from 'node:child_process';
import { chmodSync, existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));

const versionOf = (release: string) => `echo "Cuda compilation tools, release ${release}, V${release}.89"`;
const FAKES: { what: string; script: string; warning: RegExp }[] = [
  {
    what: 'is too old',
    script: versionOf('11.8'),
    warning: /nvcc: expected nvcc 12\.4 or later, got 11\.8\. The addon is built WITHOUT CUDA\./,
  },
  {
    what: 'does not start',
    script: 'echo "cannot execute" >&2\nexit 126',
    warning: /nvcc: expected nvcc 12\.4 or later, but `nvcc --version` prints no version\./,
  },
  {
    what: 'does not compile',
    script: `case "$*" in *--version*) ${versionOf('12.6')} ;; *) exit 1 ;; esac`,
    warning: /nvcc: nvcc 12\.6 cannot compile a test program; .* CUDAHOSTCXX/,
  },
];

describe('a build with an nvcc that', () => {
  let place: string;

  before(function () {
    if (spawnSync('cmake', ['--version']).status !== 0 || process.platform === 'win32') this.skip();
  });
  beforeEach(() => {
    place = mkdtempSync(join(tmpdir(), 'policy-loss-nvcc-'));
  });
  afterEach(() => rmSync(place, { recursive: true, force: true }));

  /** Configures a build whose nvcc is the given shell script, and returns what CMake prints as one line. */
  function configure(script: string): string {
    const nvcc = join(place, 'nvcc');
    writeFileSync(nvcc, `#!/bin/sh\n${script}\n`);
    chmodSync(nvcc, 0o755);
    const ninja = spawnSync('ninja', ['--version']).status === 0 ? ['-G', 'Ninja'] : [];
    const { status, stdout, stderr } = spawnSync(
      'cmake',
      ['-S', ROOT, '-B', join(place, 'build'), ...ninja],
      {
        encoding: 'utf8',
        env: { ...process.env, PATH: `${place}:${process.env.PATH}`, CUDACXX: nvcc },
      },
    );
    assert.equal(status, 0, stderr);
    return (stdout + stderr).replace(/\s+/g, ' ');
  }

  for (const { what, script, warning } of FAKES)
    it(`${what} warns and has no CUDA`, () => {
      const output = configure(script);
      assert.match(output, warning);
      assert.match(output, /CMake Warning/);
      execFileSync('cmake', ['--build', join(place, 'build'), '--target', 'policy_loss_cuda']);
      assert.ok(existsSync(join(place, 'build/native/cuda/CMakeFiles/policy_loss_cuda.dir/absent.cc.o')));
      // The second configuration of the same folder tries again.
      assert.match(configure(script), warning);
    });
});
