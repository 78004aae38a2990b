"""Stage 5, result assembly and quality validation: token losses against the oracle, per slice.

Quality is the loss a run adds per token, paired with the fp32 oracle on the same tokens, and the
KL divergence from the oracle. Tokens of one passage are not independent, so the interval comes
from a bootstrap over passages.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np

from mpcore.records import Estimate, PassageScore, SliceQuality, Stage
from mpcore.workloads.language_model import LanguageModel, Linear, Step
from mpcore.workloads.passages import Window

RESAMPLES = 20_000
"""So many that the seed moves the end of an interval by less than a hundredth of it."""


@dataclass(frozen=True)
class WindowScore:
    """Scores of one window's tokens, in nats: [scored] float64 arrays."""

    window: Window
    nll: np.ndarray
    oracle_nll: np.ndarray
    kl: np.ndarray  # NaN where it was not asked for


def token_losses(
    model: LanguageModel, hidden: np.ndarray, targets: np.ndarray, linear: Linear, chunk: int
) -> np.ndarray:
    """[rows] negative log-likelihood of the targets, from final residual streams.

    Logits are made `chunk` rows at a time, so that they never take more than a few dozen MB.
    """
    losses = [
        _losses(model.logits(hidden[part], _rows_step(part), linear), targets[part])[0]
        for part in _chunks(len(targets), chunk)
    ]
    return np.concatenate(losses)


def divergences(
    model: LanguageModel,
    hidden: np.ndarray,
    targets: np.ndarray,
    linear: Linear,
    oracle_logits: Callable[[slice], np.ndarray],
    chunk: int,
) -> np.ndarray:
    """[3, rows]: loss, the oracle's loss, and KL(oracle ‖ run).

    `oracle_logits` gives the oracle's logits of a slice of the rows.
    """
    out = np.empty((3, len(targets)))
    for part in _chunks(len(targets), chunk):
        logits = model.logits(hidden[part], _rows_step(part), linear)
        oracle = oracle_logits(part)
        out[0, part], log_z = _losses(logits, targets[part])
        out[1, part], oracle_log_z = _losses(oracle, targets[part])
        # KL = Σ p (log p − log q), with log p − log q = oracle − logits + (log_z − oracle_log_z)
        probability = np.exp(oracle - oracle_log_z[:, None].astype(np.float32))
        difference = np.einsum("ij,ij->i", probability, oracle - logits)
        out[2, part] = difference + (log_z - oracle_log_z)
    return out


def _chunks(rows: int, chunk: int) -> list[slice]:
    return [slice(start, min(start + chunk, rows)) for start in range(0, rows, chunk)]


def _rows_step(part: slice) -> Step:
    """Rows of logits do not depend on each other: a step of one row a window."""
    return Step.decode(part.stop - part.start)


def _losses(logits: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(loss of the targets, log of the normaliser), each [rows] float64."""
    log_z = _log_sum_exp(logits)
    return log_z - logits[np.arange(len(targets)), targets], log_z


def _log_sum_exp(logits: np.ndarray) -> np.ndarray:
    top = logits.max(axis=1)
    total = np.exp(logits - top[:, None]).sum(axis=1)  # pairwise: good to 1e-7 of the sum
    return top + np.log(total, dtype=np.float64)


def without_first(
    scores: list[WindowScore], seen: Mapping[tuple[str, str], int]
) -> list[WindowScore]:
    """Scores without the first tokens of each passage: (slice, passage) -> how many to leave out.

    A passage's windows come in their order.
    """
    left, kept = dict(seen), []
    for score in scores:
        key = (score.window.slice, score.window.passage)
        skip = min(left.get(key, 0), len(score.nll))
        left[key] = left.get(key, 0) - skip
        if skip < len(score.nll):
            parts = (score.nll[skip:], score.oracle_nll[skip:], score.kl[skip:])
            kept.append(WindowScore(score.window, *parts))
    return kept


def per_passage(scores: list[WindowScore]) -> dict[str, list[PassageScore]]:
    """Slice -> sums over each passage's windows."""
    sums: dict = defaultdict(lambda: defaultdict(lambda: np.zeros(4)))
    for score in scores:
        sums[score.window.slice][score.window.passage] += [
            len(score.nll),
            score.nll.sum(),
            score.oracle_nll.sum(),
            score.kl.sum(),
        ]
    return {
        name: [
            PassageScore(
                passage=passage,
                tokens=int(n),
                nll=nll,
                oracle_nll=oracle,
                kl=None if np.isnan(kl) else kl,
            )
            for passage, (n, nll, oracle, kl) in passages.items()
        ]
        for name, passages in sums.items()
    }


@cache
def resample_weights(passages: int, seed: int, resamples: int = RESAMPLES) -> np.ndarray:
    """[resamples, passages] how often each passage is drawn, of as many draws with replacement.

    Sums over a resample are `weights @ values`.
    """
    drawn = np.random.default_rng(seed).integers(0, passages, (resamples, passages))
    places = drawn + passages * np.arange(resamples)[:, None]
    counts = np.bincount(places.reshape(-1), minlength=resamples * passages)
    return counts.reshape(resamples, passages).astype(np.float64)


def resampled_means(passages: list[PassageScore], seed: int, resamples: int) -> np.ndarray:
    """[resamples] loss added per token, over passages drawn anew."""
    weights = resample_weights(len(passages), seed, resamples)
    loss = np.array([p.nll - p.oracle_nll for p in passages])
    return (weights @ loss) / (weights @ np.array([p.tokens for p in passages]))


def interval(totals: np.ndarray, tokens: np.ndarray, seed: int, confidence: float) -> Estimate:
    """Mean per token of passage totals, with its interval from a bootstrap over passages.

    The percentiles are moved outwards by what a percentile interval of so few passages misses
    (Hesterberg 2015, "What Teachers Should Know About the Bootstrap", expanded percentiles).
    """
    from scipy import stats

    count = len(totals)
    mean = float(totals.sum() / tokens.sum())
    if count < 2:
        return Estimate(value=mean, low=mean, high=mean)
    weights = resample_weights(count, seed)
    means = (weights @ totals) / (weights @ tokens)
    t = stats.t.ppf((1 + confidence) / 2, count - 1)
    tail = stats.norm.cdf(-np.sqrt(count / (count - 1)) * t)
    low, high = np.quantile(means, [tail, 1 - tail])
    return Estimate(value=mean, low=float(low), high=float(high))


def quality(
    scores: list[WindowScore], step_kind: str, seed: int, confidence: float
) -> list[SliceQuality]:
    """One record a slice, in the order of the windows."""
    result = []
    for name, passages in per_passage(scores).items():
        tokens = np.array([p.tokens for p in passages])
        nll = np.array([p.nll for p in passages])
        oracle = np.array([p.oracle_nll for p in passages])
        kl = None
        if all(p.kl is not None for p in passages):
            divergence = np.array([p.kl for p in passages])
            kl = interval(divergence, tokens, seed, confidence)
        result.append(
            SliceQuality(
                slice=name,
                step_kind=step_kind,
                tokens=int(tokens.sum()),
                perplexity=float(np.exp(nll.sum() / tokens.sum())),
                oracle_perplexity=float(np.exp(oracle.sum() / tokens.sum())),
                delta_nll=interval(nll - oracle, tokens, seed, confidence),
                kl=kl,
                passages=passages,
            )
        )
    return result


def stage(qualities: list[SliceQuality]) -> Stage:
    """Loss added per token, worst slice first."""
    worst = max(qualities, key=lambda item: item.delta_nll.high)
    return Stage(
        name="assembly",
        counters={
            "slices": len({item.slice for item in qualities}),
            "scored tokens": sum(item.tokens for item in qualities),
            "worst slice": f"{worst.slice} ({worst.step_kind})",
            "worst slice loss added": worst.delta_nll.value,
            "worst slice upper end": worst.delta_nll.high,
        },
    )
