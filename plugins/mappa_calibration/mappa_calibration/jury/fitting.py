"""Fitting of calibrations: multinomial logistic regression with a ridge, from the best members outwards.

The features are of three kinds, and the kind decides how strongly a weight is shrunk to zero:

- the vote of the *anchor*: the members that may be the best as far as the labels can tell (`weigh_members`), which is
  hardly shrunk, and to which a few made-up actions are added where the anchor is right;
- every member's own vote, and that of the anchor on the actions around, which are shrunk by a ridge;
- the same in each stratum, which is shrunk twice as hard.

So with few labels the jury repeats its best members, and with more it departs from them where that pays. One regression
over all members is what accounts for their dependence: a member that repeats another gets nothing on top. The strength
of the ridge is chosen by cross-validation over questions, and where the anchor alone gets more of those labels right,
it is taken at its word.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold

from mappa_calibration import Calibration
from mappa_calibration.actions import Bool, Float64, Int64
from mappa_calibration.jury.anchors import LABELS, Anchors

RIDGES = (0.003, 0.01, 0.03)
"""Inverse strengths of the ridge to choose from: variances of a weight, in squared log-odds."""
ANCHOR_SCALE = 30.0
STRATUM_SCALE = 0.5
"""How much less and more than a member's own vote the others are shrunk."""
PRIOR_ACTIONS = 2.0
"""Weight of the made-up actions of each label: so many actions on which the anchor is known to be right."""
INNER_FOLDS = 3
_NEAR = 3
_AROUND = 5
"""Features per member, and features before those: 1 and the vote on the actions around."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fit:
    """A fitted jury: log-odds `weights` (strata, f, k) of `labels` (k,) on `Calibration.features` for `anchor` (m,),
    and the `ridge` that was chosen, None for the anchor at its word."""

    labels: Int64
    anchor: Float64
    weights: Float64
    ridge: float | None

    def probabilities(self, anchors: Anchors, rows: Bool) -> Float64:
        """Probability (rows, k) of each label on the actions of whole runs, a mask (n,)."""
        features = build_features(anchors, self.anchor)[rows]
        odds = np.einsum("nf,nfk->nk", features, self.weights[anchors.stratum[rows]])
        odds = np.exp(odds - odds.max(axis=1, keepdims=True))
        chances: Float64 = odds / odds.sum(axis=1, keepdims=True)
        return chances


def fit_jury(anchors: Anchors, rows: Bool) -> Fit:
    """Fit a jury on the labelled actions among `rows`, a mask (n,) of whole runs."""
    rows = rows & anchors.labelled
    anchor = weigh_members(anchors, rows)
    features = build_features(anchors, anchor)
    maps = [_map_features(anchor, stratum, len(anchors.strata)) for stratum in range(len(anchors.strata))]
    design = np.empty((len(features), maps[0].shape[1]))
    for stratum, linear in enumerate(maps):
        design[anchors.stratum == stratum] = features[anchors.stratum == stratum] @ linear
    training = _Training(
        design=design[rows],
        labels=anchors.labels[rows].astype(np.int64),
        question=anchors.question[rows],
        prior=_prior_actions(anchor, maps[0].shape[1]),
    )
    ridge = training.choose_ridge()
    model = training.fit(np.ones(int(rows.sum()), dtype=np.bool_), ridge)
    odds, intercept = model.coef_.T, model.intercept_
    if len(model.classes_) == 2:  # Then the model has the odds of the second label alone.
        odds, intercept = np.append(-odds, odds, axis=1) / 2, np.append(-intercept, intercept) / 2
    weights = np.stack([linear @ odds for linear in maps])
    weights[:, 0] += intercept
    return Fit(
        labels=model.classes_, anchor=anchor, weights=_centre(weights, features[rows], anchors, rows), ridge=ridge
    )


def build_features(anchors: Anchors, anchor: Float64) -> Float64:
    """`Calibration.features` (n, f) of all actions, run by run."""
    ends = np.flatnonzero(np.diff(anchors.run)) + 1
    return np.concatenate([Calibration.features(points, anchor.tolist()) for points in np.split(anchors.points, ends)])


def weigh_members(anchors: Anchors, rows: Bool) -> Float64:
    """How well each member could be the best one, (m,), adding up to 1, by the labels of `rows` (n,).

    A member whose share of right labels is z standard errors (over questions, paired) below the highest one weighs
    exp(-z^2 / 2) of it. A missing verdict is not right.
    """
    right = (anchors.votes[rows] == anchors.labels[rows, None]).astype(np.float64)
    best = int(right.mean(axis=0).argmax())
    behind = right[:, [best]] - right
    deficit = behind.mean(axis=0)
    _, question = np.unique(anchors.question[rows], return_inverse=True)
    sums = np.zeros((int(question.max()) + 1, right.shape[1]))
    np.add.at(sums, question, behind - deficit)
    error = np.sqrt((sums**2).sum(axis=0)) / len(right)
    z = np.divide(deficit, error, out=np.where(deficit > 0, np.inf, 0.0), where=error > 0)
    weight = np.exp(-(z**2) / 2)
    shares: Float64 = weight / weight.sum()
    return shares


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Training:
    """Rows of the regression: `design` (n, d), `labels` (n,), `question` (n,), and made-up rows `prior` (k, d)."""

    design: Float64
    labels: Int64
    question: Int64
    prior: Float64

    def fit(self, rows: Bool, ridge: float | None) -> LogisticRegression:
        """Fit on `rows` (n,); without a ridge on the made-up actions alone, which takes the anchor at its word."""
        known = [label for label in LABELS if label in self.labels]
        prior = self.prior[np.searchsorted(LABELS, known)]
        rows = rows & (ridge is not None)
        weight = np.append(np.ones(int(rows.sum())), np.full(len(known), PRIOR_ACTIONS))
        model = LogisticRegression(C=ridge or RIDGES[-1], solver="newton-cholesky", tol=1e-3)
        return model.fit(np.append(self.design[rows], prior, axis=0), np.append(self.labels[rows], known), weight)

    def choose_ridge(self) -> float | None:
        """The ridge with the highest likelihood of the labels of questions that were left out; None if it gets fewer of
        them right than the anchor at its word, or if there are too few questions to leave any out."""
        if len(np.unique(self.question)) < INNER_FOLDS:
            return None
        chances = {ridge: self._predict_left_out(ridge) for ridge in (*RIDGES, None)}
        place = np.searchsorted(np.unique(self.labels), self.labels)
        best = max(RIDGES, key=lambda ridge: float(chances[ridge][np.arange(len(place)), place].sum()))
        right = {ridge: int((chances[ridge].argmax(axis=1) == place).sum()) for ridge in (best, None)}
        return best if right[best] >= right[None] else None

    def _predict_left_out(self, ridge: float | None) -> Float64:
        """Log-probability (n, k) of each label, by fits that left out its question."""
        chances = np.empty((len(self.labels), len(np.unique(self.labels))))
        for train, test in GroupKFold(INNER_FOLDS).split(self.design, groups=self.question):
            model = self.fit(np.isin(np.arange(len(self.labels)), train), ridge)
            chances[test] = model.predict_log_proba(self.design[test])
        return chances


def _map_features(anchor: Float64, stratum: int, strata: int) -> Float64:
    """The linear map (f, d) from features to the design of a stratum, in which all are shrunk equally."""
    members, width = len(anchor), _AROUND + _NEAR * len(anchor)
    votes = ANCHOR_SCALE * np.kron(anchor[:, None], np.eye(_NEAR))
    shared = np.zeros((width, _NEAR + width - 1))
    shared[_AROUND:, :_NEAR], shared[1:, _NEAR:] = votes, np.eye(width - 1)
    lean = np.zeros((width, _AROUND + members + 1))
    lean[:_AROUND, :_AROUND] = np.eye(_AROUND)
    lean[_AROUND:, _AROUND:-1] = STRATUM_SCALE * np.kron(np.eye(members), np.array([[-1.0], [0.0], [1.0]]))
    lean[_AROUND:, -1] = lean[_AROUND:, _AROUND:-1] @ anchor * 2
    own = np.zeros((width, strata * lean.shape[1]))
    own[:, stratum * lean.shape[1] : (stratum + 1) * lean.shape[1]] = lean
    return np.concatenate([shared, own], axis=1)


def _prior_actions(anchor: Float64, width: int) -> Float64:
    """Made-up rows (3, d): the anchor says -1, 0 and 1, and nothing else is known."""
    rows = np.zeros((len(LABELS), width))
    rows[:, :_NEAR] = ANCHOR_SCALE * np.eye(_NEAR)
    return rows


def _centre(weights: Float64, features: Float64, anchors: Anchors, rows: Bool) -> Float64:
    """Move each member's mean contribution to the intercept, so that a missing vote counts as its average one."""
    weights = weights.copy()
    for stratum in range(len(weights)):
        inside = features[anchors.stratum[rows] == stratum]
        votes = (inside if len(inside) else features)[:, _AROUND:]
        present = votes.reshape(len(votes), -1, _NEAR).sum(axis=2).sum(axis=0)
        share = votes.sum(axis=0).reshape(-1, _NEAR) / np.maximum(present, 1)[:, None]
        own = weights[stratum, _AROUND:].reshape(len(present), _NEAR, -1)
        mean = np.einsum("mv,mvk->mk", share, own)
        weights[stratum, _AROUND:] = (own - mean[:, None, :]).reshape(-1, weights.shape[2])
        weights[stratum, 0] += mean.sum(axis=0)
    centred: Float64 = weights - weights.mean(axis=2, keepdims=True)
    return centred
