"""The losses that PyTorch has, by family and name. A loss that is missing here is benchmarked without PyTorch."""

from torch_losses import ENTROPY, EXPRESSION, HIDDEN, KL, LOGITS, OBJECTIVE, POLICY
from torch_papers import PAPERS
from torch_preference import PREFERENCE
from torch_supervised import DISTILLATION, SUPERVISED
from torch_trl import TRL
from torch_values import REWARD, VALUE
from torch_verl import VERL

FUNCTIONS = {
    "policy": POLICY,
    "framework": {**VERL, **TRL, **PAPERS, **PREFERENCE, **SUPERVISED},
    "kl": KL,
    "entropy": ENTROPY,
    "value": VALUE,
    "reward": REWARD,
    "objective": OBJECTIVE,
    "expression": EXPRESSION,
    "logits": {**LOGITS, **DISTILLATION},
    "hidden": HIDDEN,
}
