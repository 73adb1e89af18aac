// Runs suites on every instruction set of this machine, except on the best one, which `npm test` uses. Also tests the
// exponential and the other elementary functions on every instruction set. Each instruction set needs its own process,
// because the native module chooses the instruction set when it is loaded. The longest rows of the reference are left
// out.
import { spawnSync } from 'node:child_process';

const files = (names) => names.map((name) => `test/${name}.test.ts`);
const SUITES = files(['losses/advantages/functions', 'logits/logits', 'define/random']);
// SSE4 has no fused multiply-adds. All sets with them give the same bits, which `npm test` compares, so what holds on one
// holds on the others.
const UNFUSED = files(['matrix/golden', 'matrix/reference', 'matrix/bits']);

/** Returns the instruction set that a process uses if its environment variables are `env`. */
function isaOf(env) {
  const print = 'import("./lib/index.ts").then(({ devices }) => console.log(devices()[0].isa))';
  const { stdout } = spawnSync(process.execPath, ['--import', 'tsx', '--eval', print], { env, encoding: 'utf8' });
  return stdout.trim();
}

function testFunctions(isa) {
  const tests = [`elementary_test_${isa}`, `exp_test_${isa}`];
  const build = spawnSync('cmake', ['--build', 'build', '--target', ...tests], { encoding: 'utf8' });
  if (build.status !== 0) process.stderr.write(build.stdout + build.stderr);
  return (
    build.status === 0 && tests.every((test) => spawnSync(`build/emulated/${test}`, { stdio: 'inherit' }).status === 0)
  );
}

const best = isaOf(process.env);
let failed = false;
for (const isa of ['sse4', 'avx2', 'avx512', 'neon']) {
  const env = { ...process.env, POLICY_LOSS_ISA: isa };
  if (isaOf(env) !== isa) {
    console.log(`${isa}: not on this machine`);
    continue;
  }
  console.log(`${isa}:`);
  if (isa !== best) {
    const leftOut = ['--grep', ': long rows$', '--invert'];
    const suites = isa === 'sse4' ? [...UNFUSED, ...SUITES] : SUITES;
    const words = ['mocha', '--parallel', '--reporter', 'dot', ...leftOut, ...suites];
    const run = spawnSync('npx', words, { env, stdio: 'inherit' });
    failed ||= run.status !== 0;
  }
  failed ||= !testFunctions(isa);
}
process.exitCode = failed ? 1 : 0;
