"""The fit of pairs: what each node, each round and each link has to do with the bandwidth of two nodes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from validator.cluster.levels import Ints, Mask, center_of, levels, median_of, spread_of
from validator.model.result import Floats

_NODE_PRIOR, _ROUND_PRIOR = 0.03, 0.005
"""How far nodes, and rounds, are expected to differ: what pairs cannot separate otherwise (few nodes) is shared out by
these. A node's is wide, so that a slow one is hardly drawn to the others."""

_LINK_SPREAD = 0.003
"""How much healthy links differ at least. Of more exact repeats the fit would rather believe in slow nodes and a slow
round than in one slow link."""

_FAR = 2.0
"""Times its prior from which a node has none: it is an outlier, and not drawn to the others at all."""

_FREE_PAIRS = 3
"""Pairs of a node from which most of them show that it is the node, and neither a partner nor a link."""

_HUBER = 1.5
_FAR_OFF = 10.0
"""Times the usual rest from which a row says nothing of its nodes: it is a link's. Of four nodes a slow link is as good
an explanation as the opposite one being fast, so that even a little weight moves all nodes."""

_FIT_STEPS = 30
_POLISH_STEPS = 16


@dataclass(frozen=True, eq=False)
class PairRows:
    """Pairs: `ends [rows, 2]` and round `at [rows]` as numbers, `values [rows, repeats]`; `fresh` ones confirm."""

    ends: Ints
    at: Ints
    values: Floats
    fresh: Mask

    def only(self, mask: Mask) -> PairRows:
        """Some of the rows."""
        return PairRows(self.ends[mask], self.at[mask], self.values[mask], self.fresh[mask])

    def touches(self, node: int) -> Mask:
        """The rows with this node at an end."""
        return np.asarray((self.ends == node).any(axis=1))

    def parts(self, nodes: int, rounds: int) -> Ints:
        """What each row consists of `[rows, 4]`, as numbers of parts: two nodes, a round and the level."""
        return np.column_stack([self.ends, self.at + nodes, np.full_like(self.at, nodes + rounds)])


@dataclass(frozen=True, eq=False)
class PairFit:
    """log(bandwidth) = node a + node b + round + level + rest, with the `parts` in the order of the design.

    `node [n]`, less the `middle` of all nodes, and its `error` are NaN for a node without a row; `share [parts]` makes
    up that middle. `noise` is the standard deviation of a row's rest, with `df` degrees of freedom, `repeat` that
    between repeats of a row.
    """

    parts: Floats
    covariance: Floats
    share: Floats
    middle: float
    node: Floats
    error: Floats
    rest: Floats
    noise: float
    df: float
    repeat: float


def fit_pairs(rows: PairRows, nodes: int, rounds: int) -> PairFit:
    """Huber's robust regression over all rows."""
    found, size = levels(rows.values), nodes + rounds + 1
    usable = np.isfinite(found.mean)
    x, y, width = rows.parts(nodes, rounds)[usable], found.mean[usable], max(1, rows.values.shape[1])
    weight = (found.count - found.slow)[usable] / width
    repeat = found.pooled if math.isfinite(found.pooled) else 0.0
    floor = scale = max(repeat / math.sqrt(width), _LINK_SPREAD)
    rough, rest = _polished(x[:, :2], y, nodes)
    expected = np.repeat([_NODE_PRIOR, _ROUND_PRIOR, math.inf], [nodes, rounds, 1])
    often = np.bincount(x[:, :2].ravel(), minlength=nodes) >= _FREE_PAIRS
    expected[:nodes][often & (np.abs(rough) > _FAR * _NODE_PRIOR)] = math.inf

    def normal(weights: Floats, scale: float) -> Floats:
        both = (x[:, :, None] * size + x[:, None, :]).ravel()
        matrix = np.bincount(both, np.repeat(weights, 16), size * size).reshape(size, size)
        return np.asarray(matrix + np.diag((scale / expected) ** 2 + 1e-12))

    bound = np.linalg.inv(normal(weight, scale)) * (scale / expected) ** 2  # how far the priors decide each part
    df = max(1.0, len(y) - (size - float(np.diag(bound).sum())))
    parts: Floats = np.zeros(size)
    robust = weight
    for _ in range(_FIT_STEPS):
        scale = max(floor, spread_of(rest) * math.sqrt(len(y) / df) if df > 1 else floor)
        robust = weight * np.minimum(1.0, _HUBER * scale / np.maximum(np.abs(rest), 1e-12))
        robust = np.where(np.abs(rest) > _FAR_OFF * scale, 1e-6 * weight, robust)
        right = np.bincount(x.ravel(), np.repeat(robust * y, 4), size)
        before, parts = parts, np.asarray(np.linalg.solve(normal(robust, scale), right), dtype=np.float64)
        rest = np.asarray(y - parts[x].sum(axis=1), dtype=np.float64)
        if float(np.abs(parts - before).max()) < 0.02 * scale:
            break
    covariance = np.asarray(scale**2 * np.linalg.inv(normal(robust, scale)), dtype=np.float64)
    seen = np.isin(np.arange(size), x[:, :2])
    share = np.where(seen, 1.0, 0.0) / max(1, int(seen.sum()))
    # Pairs cannot separate the level from what all nodes share: a node's error is that of its distance to the middle.
    variance = np.diag(covariance) - 2 * covariance @ share + share @ covariance @ share
    middle, all_rest = center_of(parts[seen]), np.full(len(usable), np.nan)
    all_rest[usable] = rest
    node = np.where(seen, parts - middle, np.nan)[:nodes]
    error = np.where(seen, np.sqrt(np.maximum(variance, 0.0)), np.nan)[:nodes]
    return PairFit(parts, covariance, share, middle, node, error, all_rest, scale, df, repeat)


def _polished(ends: Ints, y: Floats, nodes: int) -> tuple[Floats, Floats]:
    """How far each node is from the middle, by medians over its pairs, and what that leaves of the rows.

    The fit starts here: from nodes that are all alike a very slow one would look like noise, of which its prior then
    explains as much as is needed to stay there.
    """
    order = np.argsort(ends.ravel(), kind="stable")
    count = np.bincount(ends.ravel(), minlength=nodes)
    place = np.arange(order.size) - np.repeat(np.cumsum(count) - count, count)
    touching = np.full((nodes, max(1, int(count.max(initial=0)))), np.nan)
    away, rest = np.zeros(nodes), y - (np.median(y) if y.size else 0.0)
    for _ in range(_POLISH_STEPS if y.size else 0):
        touching[ends.ravel()[order], place] = rest[order // 2]
        away = away + np.nan_to_num(median_of(touching, 1)) / 2  # the other end takes its half
        away = away - np.median(away[count > 0])
        rest = y - away[ends].sum(axis=1)
        rest = rest - np.median(rest)
    return away, np.asarray(rest, dtype=np.float64)
