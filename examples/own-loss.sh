#!/bin/sh
# Evaluates losses of our own on the example rollouts. Run it in the folder of the repository: sh examples/own-loss.sh
set -e

# An expression. --set gives its names their values.
npx policy-loss evaluate examples/rollouts.jsonl \
  --loss-expr 'max(-A*r, -A*clip(r, 1-low, 1+high))' --set low=0.2 --set high=0.28

# Compares a built-in loss, an expression with a name, and a loss from a module.
npx policy-loss compare examples/rollouts.jsonl --loss-file examples/my-losses.mjs \
  --loss ppo \
  --loss-expr 'squared: -A*r + beta*square(d)' --set beta=0.1 \
  --loss penalised --beta 0.2

# Every value of a range.
npx policy-loss sweep examples/rollouts.jsonl \
  --loss-expr 'clipped: max(-A*r, -A*clip(r, 1-low, 1+low))' --set low=0.1:0.3:0.05
