"""The table of kinds: a file each, which names encoder, head and rule. A new kind is a file here
and a line of `AnyPolicy`."""

from collections.abc import Mapping
from typing import Annotated, get_args

from pydantic import Field

from service.bandits.kinds.auto import Auto
from service.bandits.kinds.base import Kind
from service.bandits.kinds.bootstrap_ensemble import BootstrapEnsemble
from service.bandits.kinds.epsilon_greedy import EpsilonGreedy
from service.bandits.kinds.greedy import Greedy
from service.bandits.kinds.lints import LinTs
from service.bandits.kinds.linucb import LinUcb
from service.bandits.kinds.mc_dropout import McDropout
from service.bandits.kinds.neural_glm_ts import NeuralGlmTs
from service.bandits.kinds.neural_linear_ts import NeuralLinearTs
from service.bandits.kinds.neural_linucb import NeuralLinUcb
from service.bandits.kinds.neural_ts import NeuralTs
from service.bandits.kinds.neural_ucb import NeuralUcb
from service.bandits.kinds.popularity import Popularity
from service.bandits.kinds.random import Random
from service.bandits.kinds.squarecb import SquareCb
from service.bandits.kinds.static import Static

AnyPolicy = Annotated[
    Auto
    | LinUcb
    | LinTs
    | NeuralLinearTs
    | NeuralLinUcb
    | NeuralUcb
    | NeuralTs
    | NeuralGlmTs
    | BootstrapEnsemble
    | McDropout
    | Greedy
    | EpsilonGreedy
    | SquareCb
    | Static
    | Popularity
    | Random,
    Field(discriminator="kind"),
]

KINDS: Mapping[str, type[Kind]] = {
    get_args(model.model_fields["kind"].annotation)[0]: model
    for model in get_args(get_args(AnyPolicy)[0])
}
"""Kinds by name, in the order of `AnyPolicy`."""
