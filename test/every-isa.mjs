// Runs the golden and the cross-validation suites through every instruction set of the CPU engine that this
// machine has, each in a process of its own, since the choice is made at load; and its exponentials over all float32.
// The best instruction set is what `npm test` runs.
import { spawnSync } from 'node:child_process';

const suites = ['test/golden.test.ts', 'test/cross-validation.test.ts', 'test/masking.test.ts', 'test/determinism.test.ts'];
function exponentials(isa) {
  const build = spawnSync('cmake', ['--build', 'build', '--target', `exp_test_${isa}`], { encoding: 'utf8' });
  if (build.status !== 0) process.stderr.write(build.stdout + build.stderr);
  return build.status === 0 && spawnSync(`build/emulated/exp_test_${isa}`, { stdio: 'inherit' }).status === 0;
}

let failed = false;
for (const isa of ['sse4', 'avx2', 'avx512', 'neon']) {
  const env = { ...process.env, POLICY_LOSS_ISA: isa };
  const load = 'import("./lib/index.ts").then(({ devices }) => console.log(devices()[0].isa))';
  const probe = spawnSync(process.execPath, ['--import', 'tsx', '--eval', load], { env, encoding: 'utf8' });
  if (probe.stdout.trim() !== isa) {
    console.log(`${isa}: not on this machine`);
    continue;
  }
  console.log(`${isa}:`);
  const run = spawnSync('npx', ['mocha', '--reporter', 'dot', ...suites], { env, stdio: 'inherit' });
  failed ||= run.status !== 0;
  failed ||= !exponentials(isa);
}
process.exitCode = failed ? 1 : 0;
