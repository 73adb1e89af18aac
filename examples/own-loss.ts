// Writes a policy loss as an expression, checks its gradient, and compares it with the built-in PPO:
//
//   npx tsx examples/own-loss.ts
//
// The other forms of a loss of your own are in my-losses.mjs (a class) and own-loss.sh (the command line).
import { type Batch, checkLoss, lossFromExpression, PPOPolicyLossFn } from 'policy-loss';

// PPO without its dual clip, and with a wider range above 1 than below it.
const lossFn = lossFromExpression('max(-A*r, -A*clip(r, 1-low, 1+high))', {
  options: { low: 0.2, high: 0.28 },
  metrics: { pg_clipfrac: 'A > 0 ? r > 1 + high : r < 1 - low', approx_kl: '-d' },
});

const batch: Batch = {
  shape: [2, 3], // two rollouts of three tokens
  logprob: new Float32Array([-1.1, -0.4, -2.0, -0.3, -0.9, 0]),
  oldLogprob: new Float32Array([-1.0, -0.7, -2.1, -0.3, -1.2, 0]),
  advantages: new Float32Array([0.8, -0.8]), // per row
  actionMask: new Uint8Array([1, 1, 1, 1, 1, 0]), // the last token is padding
};

const builtIn = new PPOPolicyLossFn({ clipRangeLow: 0.2, clipRangeHigh: 0.28 });
for (const [name, fn] of Object.entries({ expression: lossFn, 'built-in PPO': builtIn })) {
  const { loss, metrics, grad } = await fn.compute(batch, { grad: true });
  console.log(name, { loss, pg_clipfrac: metrics.pg_clipfrac, grad });
}

// The gradient must agree with finite differences, masked values must not matter, and micro-batches must add up.
console.log(String(await checkLoss(lossFn)));
