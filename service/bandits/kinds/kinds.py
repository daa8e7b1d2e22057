"""Every kind of policy: its rule, and the head that it learns in."""

from typing import assert_never

from service.bandits.best_mean import BestMean, Uniform
from service.bandits.encoder import Encoder
from service.bandits.heads import (
    BetaHead,
    DisjointRidgeHead,
    EnsembleHead,
    GradientHead,
    Head,
    LogisticHead,
    RidgeHead,
)
from service.bandits.kinds.mc_dropout import Masks
from service.bandits.net import net_of
from service.bandits.policy import Policy, Rule
from service.bandits.thompson import ThompsonSampling
from service.bandits.ucb import UpperBound
from service.definition.policies import (
    AnyPolicy,
    BootstrapEnsemble,
    EpsilonGreedy,
    Gradient,
    Greedy,
    LinTs,
    LinUcb,
    McDropout,
    Network,
    NeuralGlmTs,
    NeuralLinearTs,
    NeuralLinUcb,
    NeuralTs,
    NeuralUcb,
    Popularity,
    Random,
    Retrieving,
    Ridge,
    Static,
    Thompson,
)


def policy_of(settings: AnyPolicy) -> Policy:
    """The settings of a kind, converted once: a missing attribute of a model costs 10 us."""
    draws, bank = 1, 0
    if isinstance(settings, Thompson):
        draws, bank = settings.draws, settings.bank
    elif isinstance(settings, McDropout):
        draws, bank = settings.masks, settings.bank
    return Policy(
        rule=rule_of(settings),
        has_head=not isinstance(settings, Static | Random),
        predicts=isinstance(settings, Gradient | McDropout | Static),
        net=net_of(settings),
        training=settings.training if isinstance(settings, Network) else None,
        per_arm=settings.per_arm,
        disjoint=isinstance(settings, Ridge) and settings.disjoint,
        draws=draws,
        bank_seed=bank,
        retrieve=settings.retrieve if isinstance(settings, Retrieving) else None,
    )


def rule_of(settings: AnyPolicy) -> Rule:
    match settings:
        case LinUcb() | NeuralLinUcb() | NeuralUcb():
            return _bound(settings)
        case LinTs() | NeuralLinearTs() | NeuralTs() | NeuralGlmTs() | Popularity():
            return ThompsonSampling(settings.draws, settings.scale)
        case BootstrapEnsemble():
            return ThompsonSampling(settings.members) if _draws(settings) else _bound(settings)
        case McDropout():
            if _draws(settings):
                return Masks(ThompsonSampling(settings.masks), None)
            return Masks(_bound(settings), _bound(settings))
        case Greedy() | EpsilonGreedy() | Static():
            return BestMean()
        case Random():
            return Uniform()
        case _:
            assert_never(settings)


def _draws(settings: BootstrapEnsemble | McDropout) -> bool:
    return settings.rule == "thompson"


def _bound(
    settings: LinUcb | NeuralLinUcb | NeuralUcb | BootstrapEnsemble | McDropout,
) -> UpperBound:
    alpha = None if settings.alpha == "anytime" else settings.alpha
    return UpperBound(alpha, net=settings.has_net, per_arm=settings.per_arm)


def head_of(settings: AnyPolicy, encoder: Encoder, rows: int, key: str) -> Head | None:
    """An empty head for an encoder over rows of a width; None: nothing is learned between
    trainings. key: what the members of an ensemble are drawn by."""
    size = encoder.features(rows)
    match settings:
        case Static() | Random():
            return None
        case Popularity():
            return BetaHead()
        case NeuralGlmTs():
            return LogisticHead(size, settings.ridge, settings.batch)
        case BootstrapEnsemble():
            return EnsembleHead(size, settings.ridge, settings.noise, settings.members, key)
        case Gradient() if settings.form != "last_layer":
            layout = encoder.layout
            return GradientHead(size, layout, settings.form, settings.ridge, settings.noise)
        case Greedy() | EpsilonGreedy() if not settings.sees_features:
            return BetaHead()
        case Ridge() if settings.disjoint:
            return DisjointRidgeHead(size, settings.ridge, settings.noise)
        case _:
            return RidgeHead(size, settings.ridge, settings.noise)
