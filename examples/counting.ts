// The task and the policy that train-policy.ts trains. This file does not use the policy-loss package.
//
// The task is to count with letters. A prompt gives the first letter, the step and the number of letters. A response is
// a sequence of letters that ends with a stop token. Its reward is the fraction of the right answer before its first
// mistake. The policy is a table of logits.

const LETTERS = 7;
/** The token that ends a response. */
const STOP = LETTERS;
const TOKENS = LETTERS + 1;
const LONGEST = 8;

/** The prompts. Counting is modulo the number of letters. */
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

/** Returns the reward of a response, from 0 to 1. */
export function rewardOf(prompt: number, tokens: readonly number[]): number {
  const right = answerTo(prompt);
  const mistake = right.findIndex((token, t) => token !== tokens[t]);
  return mistake < 0 ? 1 : mistake / right.length;
}

/** A response to the prompt with this index. */
export interface Response {
  prompt: number;
  tokens: readonly number[];
}

/** A softmax over the next token, for each prompt and previous token. A new policy is uniform. */
export class Policy {
  /** One row of logits for each prompt and previous token. The token before the first is STOP. */
  readonly logits = new Float64Array(PROMPTS.length * TOKENS * TOKENS);

  /** Returns a policy in which each right token has a logit larger by `bonus` than every wrong one. */
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
   * @param random returns numbers in [0, 1).
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

  /** Returns the mean reward of responses to all prompts, computed exactly instead of from samples. */
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

  /** Returns the log-probability and the entropy at each token of packed responses, as a batch holds them. */
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
   * Returns ∂loss/∂logits by the chain rule: ∂logprob/∂logit_k = 1[k = token] − p_k, and for the entropy H
   * ∂H/∂logit_k = −p_k·(ln p_k + H).
   *
   * @param grad ∂loss/∂logprob at each token of the packed responses.
   * @param gradEntropy ∂loss/∂entropy at each token.
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

// Returns a response's tokens, each with the position of its row of logits.
function steps({ prompt, tokens }: Response): { row: number; token: number }[] {
  return tokens.map((token, t) => ({ row: rowOf(prompt, tokens[t - 1]), token }));
}

function entropyOf(p: Float64Array): number {
  return -p.reduce((sum, x) => sum + x * Math.log(x), 0);
}
