// The task and the policy of the example train-policy.ts. This file does not use the policy-loss package.
//
// The task is to count with letters. A prompt gives the first letter, the step and the number of letters. A response is
// a sequence of letters that ends with a stop token. Its reward is the fraction of the right answer that comes before
// the response's first mistake. The policy is a table of logits.

const LETTERS = 7;
/** The token that ends a response. The letters are the tokens 0 to LETTERS − 1. */
const STOP = LETTERS;
const TOKENS = LETTERS + 1;
const LONGEST = 8;

/** The prompts. After the last letter, counting continues with the first one. */
export const PROMPTS = [
  { first: 0, step: 1, count: 2 },
  { first: 3, step: 2, count: 3 },
  { first: 5, step: 3, count: 4 },
  { first: 6, step: 5, count: 5 },
] as const;

/** Returns the tokens of the right answer to a prompt. */
export function answerTo(prompt: number): number[] {
  const { first, step, count } = PROMPTS[prompt]!;
  return [...Array.from({ length: count }, (_, i) => (first + i * step) % LETTERS), STOP];
}

/** Returns the reward of a response to a prompt, from 0 to 1. */
export function rewardOf(prompt: number, tokens: readonly number[]): number {
  const right = answerTo(prompt);
  const mistake = right.findIndex((token, t) => token !== tokens[t]);
  return mistake < 0 ? 1 : mistake / right.length;
}

/** A response of the policy. `prompt` is the index of the prompt that it answers. */
export interface Response {
  prompt: number;
  tokens: readonly number[];
}

/**
 * A policy that has a softmax over the next token for each prompt and previous token. In a new policy, all tokens are
 * equally probable.
 */
export class Policy {
  /**
   * One row of logits for each prompt and previous token. For the first token of a response, STOP counts as the
   * previous token.
   */
  readonly logits = new Float64Array(PROMPTS.length * TOKENS * TOKENS);

  /**
   * Returns a policy that prefers the right answers: the logit of each right token is `bonus`, and all others are 0.
   */
  static knowing(bonus: number): Policy {
    const policy = new Policy();
    for (const prompt of PROMPTS.keys())
      for (const { row, token } of steps({ prompt, tokens: answerTo(prompt) }))
        policy.logits[row + token] = bonus;
    return policy;
  }

  copy(): Policy {
    const copy = new Policy();
    copy.logits.set(this.logits);
    return copy;
  }

  /**
   * Samples a response to a prompt.
   * @param random returns a random number in [0, 1) at each call.
   */
  respond(prompt: number, random: () => number): Response {
    const tokens: number[] = [];
    while (tokens.length < LONGEST && tokens.at(-1) !== STOP) {
      let rest = random();
      const token = this.#softmax(rowOf(prompt, tokens.at(-1))).findIndex((p) => {
        rest -= p;
        return rest < 0;
      });
      tokens.push(token < 0 ? STOP : token);
    }
    return { prompt, tokens };
  }

  /** Returns the expected reward of a response, averaged over all prompts. It is computed exactly, not from samples. */
  expectedReward(): number {
    let sum = 0;
    for (const prompt of PROMPTS.keys()) {
      const right = answerTo(prompt);
      let chance = 1;
      for (const { row, token } of steps({ prompt, tokens: right })) {
        chance *= this.#softmax(row)[token]!;
        sum += chance / right.length;
      }
    }
    return sum / PROMPTS.length;
  }

  /**
   * Returns the log-probability and the entropy at each token of the responses, packed one after another as in a batch.
   */
  columns(responses: readonly Response[]): { logprob: Float32Array; entropy: Float32Array } {
    const logprob: number[] = [];
    const entropy: number[] = [];
    for (const { row, token } of responses.flatMap(steps)) {
      const p = this.#softmax(row);
      logprob.push(Math.log(p[token]!));
      entropy.push(entropyOf(p));
    }
    return { logprob: Float32Array.from(logprob), entropy: Float32Array.from(entropy) };
  }

  /**
   * Returns ∂loss/∂logits by the chain rule. With the softmax's probabilities p_k and its entropy H:
   *
   *   ∂logprob/∂logit_k = 1 − p_k if k is the token itself, and −p_k otherwise
   *   ∂H/∂logit_k = −p_k·(ln p_k + H)
   *
   * @param grad ∂loss/∂logprob at each token of the packed responses.
   * @param gradEntropy ∂loss/∂entropy at each token of the packed responses.
   */
  backward(responses: readonly Response[], grad: Float32Array, gradEntropy: Float32Array): Float64Array {
    const gradLogits = new Float64Array(this.logits.length);
    responses.flatMap(steps).forEach(({ row, token }, i) => {
      const p = this.#softmax(row);
      const entropy = entropyOf(p);
      for (let k = 0; k < TOKENS; k++) {
        const ofLogprob = (k === token ? 1 : 0) - p[k]!;
        const ofEntropy = -p[k]! * (Math.log(p[k]!) + entropy);
        gradLogits[row + k]! += grad[i]! * ofLogprob + gradEntropy[i]! * ofEntropy;
      }
    });
    return gradLogits;
  }

  #softmax(row: number): Float64Array {
    const logits = this.logits.subarray(row, row + TOKENS);
    const most = Math.max(...logits);
    const p = logits.map((logit) => Math.exp(logit - most));
    const sum = p.reduce((a, b) => a + b);
    return p.map((x) => x / sum);
  }
}

function rowOf(prompt: number, before = STOP): number {
  return (prompt * TOKENS + before) * TOKENS;
}

// Returns the tokens of a response. `row` is the index in Policy.logits at which the token's row of logits begins.
function steps({ prompt, tokens }: Response): { row: number; token: number }[] {
  return tokens.map((token, t) => ({ row: rowOf(prompt, tokens[t - 1]), token }));
}

function entropyOf(p: Float64Array): number {
  return -p.reduce((sum, x) => sum + x * Math.log(x), 0);
}
