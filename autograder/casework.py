"""What the exercises modules share: random arrays that tell mistakes apart, tables of mistakes."""

import numpy as np

from autograder.exercise import Mistake

# `right` of a mistake that only eps can show
ORDINARY = "all but eps: it shows most where the variance is small"


def columns(rng, n, *shapes):
    """(n, D): each column starts near `centre` and spreads over `spread`, in shuffled order."""
    skewed = (np.arange(n) / (n - 1)) ** 2
    steps = [rng.permutation(skewed + rng.uniform(-0.04, 0.04, n)) for _ in shapes]
    made = [
        (centre + spread * s).round(2 if abs(spread) > 0.1 else 4)
        for (centre, spread), s in zip(shapes, steps, strict=True)
    ]
    return np.stack(made, axis=1)


def near(rng, *values):
    """An array close to `values`: within 15 percent."""
    return (np.array(values) * rng.uniform(0.85, 1.15, len(values))).round(2)


def images(rng, shape, *channels):
    """(N, C, H, W) for shape (N, H, W): a channel starts at `centre` and spreads over `spread`."""
    n = int(np.prod(shape))
    made = []
    for centre, spread in channels:
        values = (np.arange(n) / max(n - 1, 1)) ** 2 + rng.uniform(-0.04, 0.04, n)
        grid = 8 if abs(spread) > 0.1 else 1024
        values = np.round((centre + spread * rng.permutation(values)) * grid) / grid
        made.append(values.reshape(shape))
    return np.stack(made, axis=1)


def arriving(rng, x):
    """A gradient that arrives at the output: no two entries alike, no sum zero."""
    n = x.size
    values = rng.permutation(np.arange(n) - 0.3 * n) / n * 4 + rng.uniform(-0.1, 0.1, n)
    return values.reshape(x.shape).round(2)


def at(criterion):
    """A maker of mistakes at one criterion: name, diagnosis, next, then (old, new) patches."""

    def mistake(name, diagnosis, next, *patch, **more):
        return Mistake(name, criterion, diagnosis, next, patch, **more)

    return mistake


def group(mistake, next, patches, table, **more):
    """Mistakes with one next step: rows of name, diagnosis and what `patches` makes patches of."""
    return tuple(mistake(name, text, next, *patches(new), **more) for name, text, new in table)


# What `group` makes patches with: from one row's new text to its (old, new) pairs.


def as_is(patches):
    """The row holds the patches themselves."""
    return patches


def replacing(*olds):
    """Patches of these texts, from one new text for each (or one for the only text)."""
    return lambda new: list(zip(olds, [new] if isinstance(new, str) else new, strict=True))


def over(axes, old, *texts):
    """Sums and means over other axes than the old ones."""
    return [(text, text.replace(old, axes)) for text in texts]


def summed(*texts, by):
    """Sums over the same axes, divided by another count."""
    return [(text, f"{text.replace('.mean(', '.sum(')} / {by}") for text in texts]
