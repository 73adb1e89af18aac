// From a model's logits to a policy loss, and the gradient back to the logits: npx tsx examples/logits.ts
import { logprobs, logprobsBackward, PPOPolicyLossFn } from 'policy-loss';

const [B, T, V] = [2, 3, 1000]; // rows, tokens per row, the size of the vocabulary
const logits = Float32Array.from({ length: B * T * V }, (_, i) => 3 * Math.sin(i * i)); // your model's
const targets = [17, 4, 830, 17, 65, -100]; // the sampled tokens; −100 for padding and prompts
const actionMask = targets.map((target) => target !== -100);
const options = { shape: [B * T, V], targets, temperature: 0.7 } as const;

const { logprob, logsumexp, entropy } = await logprobs(logits, { ...options, entropy: true });
const { loss, grad } = await new PPOPolicyLossFn({ clipRange: 0.2 }).compute(
  {
    shape: [B, T],
    logprob,
    oldLogprob: logprob.map((x) => x - 0.1), // those of the policy that sampled the tokens
    advantages: [0.5, -0.25], // one per row
    actionMask,
  },
  { grad: true },
);
// The gradient replaces the logits. Without `out`, it comes in a new Float32Array.
await logprobsBackward(logits, { ...options, logsumexp, gradLogprob: grad, out: logits });

console.log({ loss, entropy, gradient: logits.subarray(17, 18) });
