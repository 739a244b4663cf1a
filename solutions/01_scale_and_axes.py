# %% [markdown]
# # 01 · Scale and axes
#
# **Goal.** Know to whom the scale of a feature matters, and why; take a mean over the right axes;
# and measure a gradient so that you can trust it for the rest of the course.
#
# **Time** 100 minutes: 65 for the parts below, 35 for reading. **Difficulty** 1 of 5.
#
# **You need** Python, numpy arrays, and what a derivative is. (For some of the reading, and for
# the written question, it helps to have met eigenvalues and logistic regression.)
#
# | part | points | minutes |
# |---|---|---|
# | `moments` | 20 | 10 |
# | `standardize_fit` | 13 | 10 |
# | `standardize_apply` | 12 | 5 |
# | `numeric_grad` | 35 | 20 |
# | written question | 20 | 20 |
#
# ## How this course works
#
# Welcome! You are going to write every normalization layer with your own hands, and find out by
# experiment what each of them is good for. Start at the top and run one cell after the other.
#
# - **Guess, then run.** Most figures ask you something first; a wrong guess is worth more than
#   none. The long code cells only draw: run them, no need to read them.
# - **Your turn.** A function waits there whose docstring says what it must do. Write it in place
#   of the line that raises `NotImplementedError`. The figures behind it use *your* function.
# - **Check.** Below each exercise stands `check("moments")` or the like. Run it as often as you
#   want: a failure costs nothing. It shows a tiny input, what was expected and what you returned,
#   and names the misconception where it recognizes one.
# - **Stuck?** `hint("moments")` gives one more rung of help each time you call it, free of charge,
#   and `progress()` shows where you stand.
# - **The written question** at the end is graded by hand. If you work alone, a model answer waits.
#
# Now and then we correct **the notes this course grew from**: two honest study notes, in Chinese,
# which said some things loosely and a few things wrongly. You will find out which by experiment.
#
# Lessons 01 to 08 are here. Where we point to lesson 09 or a later one, that one is still to come.

# %% kind="setup"
import matplotlib.pyplot as plt
import numpy as np

from autograder import check, hint, progress

BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#666666"  # told apart by colour-blind readers too
plt.rcParams.update({"figure.dpi": 100, "font.size": 9, "axes.spines.top": False})
plt.rcParams.update({"axes.spines.right": False, "legend.frameon": False})

# %% [markdown]
# ## The question
#
# Somebody has measured 178 wines: alcohol, acids, colour and so on, 13 numbers each. Three growers
# made them. A new wine comes in. Who made it?
#
# A simple way to answer: find the five known wines whose 13 numbers are nearest, and let them
# vote.
#
# One of the 13 is proline, an amino acid. Its numbers run from 278 to 1680. (The data set names no
# units; these fit milligrams per litre.) Now suppose the laboratory had written grams per litre,
# 0.278 to 1.68. Not a drop of wine has changed. **Should the answer change?**
#
# ### Picture: the same wines in other units
#
# We show the vote 118 of the wines and ask it about the other 60, with 20 ways of drawing the 118.
# Then the same with proline in another unit, and another. Draw the curve in your head first: flat,
# rising, falling?

# %% kind="demo"
from sklearn.datasets import load_wine

wine, grower = load_wine(return_X_y=True)  # (178, 13) and (178,)
FEATURES = load_wine().feature_names


def split(seed, rows, known):
    """Row numbers in random order: `known` of them to learn from, the others to be asked about."""
    order = np.random.default_rng((10, seed)).permutation(rows)
    return order[:known], order[known:]


def vote(known, labels, asked, k=5):
    """The label that most of the k nearest known rows have, for each row that is asked about."""
    distance = (known**2).sum(axis=1) - 2 * asked @ known.T  # squared, up to a constant per row
    nearest = np.argpartition(distance, k, axis=1)[:, :k]
    votes = (labels[nearest][:, :, None] == np.arange(labels.max() + 1)).sum(axis=1)
    return votes.argmax(axis=1)


def accuracy(X, y, seed, prepare=None, known=None, k=5):
    """The share of right votes; `prepare` may rescale both parts first."""
    learn, ask = split(seed, len(X), known or 2 * len(X) // 3)
    known_rows, asked_rows = X[learn], X[ask]
    if prepare:
        known_rows, asked_rows = prepare(known_rows, asked_rows)
    return (vote(known_rows, y[learn], asked_rows, k) == y[ask]).mean()


def in_unit(factor):
    """The wines with proline multiplied by `factor`."""
    return wine * np.where(np.array(FEATURES) == "proline", factor, 1.0)


def draw_units(axis, curves):
    """Accuracy against the unit: mean and range of the splits, (units, splits) a curve."""
    for label, table, colour, style in curves:
        axis.semilogx(UNITS, table.mean(axis=1), style, color=colour, label=label)
        axis.fill_between(UNITS, table.min(axis=1), table.max(axis=1), color=colour, alpha=0.2)
    axis.set_xticks([1e-6, 1e-3, 1, 1e3], ["kg/l", "g/l", "mg/l", "µg/l"])
    axis.minorticks_off()
    axis.set(xlabel="unit of proline", ylabel="share of right votes", ylim=(0.35, 1.02))
    axis.axhline(71 / 178, color=GREY, linestyle=":")


UNITS = 10.0 ** np.arange(-6, 3.5, 0.5)
as_measured = np.array([[accuracy(in_unit(u), grower, s) for s in range(20)] for u in UNITS])
fig, axis = plt.subplots(figsize=(6, 2.9))
draw_units(axis, [("five nearest wines", as_measured, ORANGE, "o-")])
axis.legend(loc="lower left", bbox_to_anchor=(0, 0.15))
fig.tight_layout()
plt.show()
for unit, name in ((1.0, "mg/l"), (1e-2, "dg/l"), (1e-3, "g/l")):
    row = as_measured[np.isclose(UNITS, unit)][0]
    print(f"proline in {name:8s} {row.mean():.2f} right, from {row.min():.2f} to {row.max():.2f}")
stds = dict(zip(FEATURES, wine.std(axis=0), strict=True))
for name in ("proline", "magnesium", "color_intensity", "hue"):
    print(f"{name:16s} standard deviation {stds[name]:8.3f}, squared {stds[name] ** 2:12.3f}")

# %% [markdown]
# ### See: the unit votes
#
# **In milligrams** 70 % of the votes are right, **in grams** 82 %, in between 89 %. So yes, the
# answer changes, with nothing changed but the ruler. (Points are means over the 20 splits, the
# band reaches from the worst to the best. Always naming the commonest grower gives the dotted
# line.)
#
# The numbers below the figure say why. A squared distance adds up squared differences, and with
# proline in milligrams its share is near 500 times that of magnesium and almost two million times
# that of the hue. The vote listens to proline alone. In grams proline is too quiet to be heard,
# and magnesium has the word.
#
# No unit is right for all 13. We want an answer that does not depend on units at all, and there is
# a simple way: measure each feature in *its own standard deviations*, from its own mean. That is
# standardizing, and the layers of this course are its children.
#
# All of them begin with a mean and a variance. The whole difficulty is: **of which numbers?**
#
# ## Picture: which entries are averaged
#
# `x.mean(axis=0)`. Is that the mean of row 0? Of each row? Of each column? Decide before you run.

# %% kind="demo"
EDGE = {"edgecolor": "white", "linewidth": 2}
TINTS = [(0.75, 0.87, 0.95), (0.98, 0.85, 0.75), (0.88, 0.88, 0.88), (0.98, 0.95, 0.7)]


def draw_cells(axis, corner, values, groups):
    """A table of numbers whose cells have the colours of their groups; empty text for nan."""
    for (row, column), group in np.ndenumerate(groups):
        place = (corner[0] + column, corner[1] - row - 1)
        axis.add_patch(plt.Rectangle(place, 1, 1, facecolor=TINTS[group], **EDGE))
        if values is not None:
            text = f"{values[row, column]:g}"
            axis.text(place[0] + 0.5, place[1] + 0.5, text, ha="center", va="center")


little = np.array([[1, 0, 5], [3, 2, 4], [5, 4, 6], [7, 6, 5]])
rows, columns = np.indices((4, 3))
fig, (left, middle, right) = plt.subplots(1, 3, figsize=(9, 3.5), width_ratios=(4, 5, 8))
draw_cells(left, (0, 4), little, columns)
draw_cells(left, (0, -0.5), little.mean(axis=0, keepdims=True), columns[:1])
left.set_title("axis=0: down a column\n(4, 3) → (1, 3)")
draw_cells(middle, (0, 4), little, rows)
draw_cells(middle, (3.5, 4), little.mean(axis=1, keepdims=True), rows[:, :1])
middle.set_title("axis=1: along a row\n(4, 3) → (4, 1)")
for image in range(2):
    for channel in range(3):
        corner = (2.5 * channel, 4.5 - 2.5 * image)
        draw_cells(right, corner, None, np.full((2, 2), channel))
    right.text(-0.2, 3.5 - 2.5 * image, f"image {image}", ha="right", va="center")
for channel in range(3):
    draw_cells(right, (2.5 * channel + 0.5, -1), None, np.full((1, 1), channel))
    right.text(2.5 * channel + 1, -1.5, "of 8", ha="center", va="center")
    right.text(2.5 * channel + 1, 4.7, f"channel {channel}", ha="center")
right.set_title("axis=(0, 2, 3)\n(2, 3, 2, 2) → (1, 3, 1, 1)")
for panel, limits in ((left, (0, 3)), (middle, (0, 4.6)), (right, (-1.6, 7))):
    panel.set(xlim=limits, ylim=(-2.1, 5.2), aspect="equal")
    panel.set_axis_off()
fig.tight_layout()
plt.show()

# %% [markdown]
# ### See: the axis that you name is the axis that goes
#
# Entries of one colour share one mean; the mean stands below or beside them.
#
# **Left.** `axis=0` counts the rows, so averaging over it walks *down* and leaves one mean per
# column. **Middle.** `axis=1` walks along a row and leaves one mean per row. **Right.** Several
# axes at once: images, rows and columns of pixels are averaged away, the channel stays. Two images
# of 2 × 2 pixels make 8 numbers a mean.
#
# Do not ask which axis you want. Ask **which index the mean should still have**. Keep that one,
# and name all the others.
#
# ### Shapes that fit
#
# With `keepdims=True` an averaged axis stays, with length 1. You want that when you write `x -
# mean`, where shapes must fit. Numpy writes them one above the other, flush right; two lengths fit
# if they are equal, or if one of them is 1 or missing: then it is repeated. This is called
# broadcasting.
#
# | `x` | `mean` | fits? |
# |---|---|---|
# | (4, 3) | (3,) | yes: every row minus the same three numbers |
# | (4, 3) | (4,) | no: 3 stands above 4 |
# | (4, 3) | (4, 1) | yes: every column minus the same four numbers |
#
# Now subtract from each row *its own* mean, and forget `keepdims`. With 4 × 3 numbers numpy
# complains. And with 3 × 3?

# %% kind="demo"
for table in (little, little[:3]):
    print(f"x of shape {table.shape}: each row minus its own mean {table.mean(axis=1)}")
    for keep in (False, True):
        try:
            centred = table - table.mean(axis=1, keepdims=keep)
            shown = np.array2string(centred, prefix=" " * 30).replace("-0.", " 0.")
            print(f"  keepdims={keep!s:5s}  gives     {shown}")
            print(f"  {'':14s}  the rows' means are now {centred.mean(axis=1).round(2) + 0}")
        except ValueError as error:
            print(f"  keepdims={keep!s:5s}  ValueError: {error}")

# %% [markdown]
# ### See: a square table does not complain
#
# With 4 × 3 the mistake announces itself. With 3 × 3 it *runs*: shape (3,) fits again, and each
# entry loses the mean of the row whose number is its *column*. The rows' means are not zero, and
# nobody says a word.
#
# A batch of 64 samples with 64 features is nothing unusual. In your own tests choose N ≠ D: then
# numpy finds such mistakes for you.
#
# ## Your turn: moments
#
# *20 points.*
#
# Mean and variance over whatever axes you are given, for an array with any number of them:
#
# $$\mu = \frac{1}{n}\sum x, \qquad \sigma^2 = \frac{1}{n}\sum (x-\mu)^2$$
#
# where each sum runs over the $n$ entries that share a colour in the picture.
#
# What to watch:
#
# - `axes` may be one number or a tuple. Numpy takes both.
# - Both results keep all axes of `x`, so that they broadcast.
# - Divide by $n$, not $n-1$: that is numpy's default. PyTorch's is the other one.
# - Subtract the mean *first*, then square. On paper, the mean of the squares minus the square of
#   the mean is the same; with a large mean it loses every digit. (Lesson 02 lets you watch.)


# %% kind="exercise" name="moments"
def moments(x, axes):
    """The mean and the variance of x over some of its axes.

    x: array of any shape. axes: one axis or a tuple of axes, negative ones counted from the end.
    Returns mean and var. Both keep x's axes, with length 1 where they were averaged over, so that
    x - mean and x / np.sqrt(var) broadcast. var is the plain average of the squared deviations
    (divided by the count n, not n - 1), and it is right for large means as well.
    """
    ### BEGIN SOLUTION
    mean = x.mean(axis=axes, keepdims=True)
    var = ((x - mean) ** 2).mean(axis=axes, keepdims=True)
    return mean, var
    ### END SOLUTION


# %% [markdown]
# ## One function, many layers
#
# Take 8 images with 6 channels of 5 × 4 pixels: `x` has shape (N, C, H, W) = (8, 6, 5, 4). Only
# the axes change from line to line. How many means will each layer have?

# %% kind="demo"
images = np.random.default_rng(11).normal(3, 2, size=(8, 6, 5, 4))
in_groups = images.reshape(8, 2, 3, 5, 4)  # the 6 channels as 2 groups of 3
for layer, array, axes in (
    ("BatchNorm", images, (0, 2, 3)),
    ("LayerNorm, over C, H and W", images, (1, 2, 3)),
    ("LayerNorm, over C only", images, 1),
    ("InstanceNorm", images, (2, 3)),
    ("GroupNorm, 2 groups", in_groups, (2, 3, 4)),
):
    mean, var = moments(array, axes)
    new_mean, new_var = moments((array - mean) / np.sqrt(var), axes)
    fine = np.allclose(new_mean, 0) and np.allclose(new_var, 1)
    print(
        f"{layer:26s} axes {axes!s:9s} → {mean.shape!s:15s} {mean.size:3d} means of "
        f"{array.size // mean.size:3d} numbers{'; mean 0, var 1' if fine else ''}"
    )

# %% [markdown]
# ### See: a choice of axes is a choice of company
#
# Five layers, one function. They differ in who is compared with whom: a channel with itself in the
# other images (BatchNorm), or an image only with itself (the rest). Much of this course is about
# what follows from that choice.
#
# ## Standardizing, with shapes
#
# Back to the wines: a table, a sample a row, a feature a column.
#
# | name | shape | what |
# |---|---|---|
# | `X` | (N, D) | the training set |
# | `mean`, `std` | (D,) | one number per feature, *from the training set* |
# | `(X - mean) / std` | (N, D) | pure numbers: standard deviations from the mean |
#
# $$z_{ij} = \frac{x_{ij}-\mu_j}{\sigma_j}$$
#
# There are two functions, because there are two moments in time. *Fit* looks at the training set
# and writes down what it saw. *Apply* uses that, on the training set, on test rows, and on the
# single wine that comes in next year. (Could you standardize *one* wine by its own mean and
# spread?)
#
# ### A column that never moves
#
# If all values of a feature are equal, $\sigma_j=0$, and you divide by zero. So people test for
# `std == 0`. Does that catch this column of seven times 0.1?

# %% kind="demo"
stuck = np.full((7, 1), 0.1)
told = (stuck - stuck.mean(axis=0)) / stuck.std(axis=0)
print("mean:              ", stuck.mean(axis=0)[0])
print("standard deviation:", stuck.std(axis=0)[0])
print("standardized:      ", told.ravel())
arrival = (0.100001 - stuck.mean(axis=0)) / stuck.std(axis=0)
print(f"a new row with 0.100001 becomes {arrival[0]:.0e}")

# %% [markdown]
# ### See: the last digit, blown up
#
# Sums are rounded. So the mean is off in its last digit, and the standard deviation is 1e-17 and
# not 0. The column comes out as ones, though it should be 0. Worse, a new row with 0.100001 comes
# out at 70 billion, and will drown everything else.
#
# Scikit-learn's `StandardScaler` once did exactly this (issue #17794: a column of 14.62 became
# −1). What is a *safe* way to ask whether a column never moves? Not by its computed mean, not by
# its computed standard deviation. Ask the values themselves.
#
# (The layers of this course take another way: they add a small $\epsilon$ under the root. Lesson
# 02 shows what that costs.)
#
# ## Your turn: standardize_fit
#
# *13 points.* Plain vectors of shape (D,) this time. For a column that never moves `std` is 1: its
# deviations are all 0, and dividing them by 1 leaves 0.


# %% kind="exercise" name="standardize_fit"
def standardize_fit(X):
    """What the training set says about each feature.

    X: (N, D), the training set. Returns mean (D,) and std (D,), the standard deviation with n in
    the denominator. A feature that has the same value in every row gets std 1, so that
    standardizing makes it 0 and not nan. Beware: for three rows of 0.1 numpy's std is 1e-17, not 0.
    """
    ### BEGIN SOLUTION
    mean = X.mean(axis=0)
    std = X.std(axis=0)
    constant = X.max(axis=0) == X.min(axis=0)
    return mean, np.where(constant, 1.0, std)
    ### END SOLUTION


# %% [markdown]
# ## Your turn: standardize_apply
#
# *12 points.* One line. It must not look at its own rows' mean or spread: it may be asked about a
# single row.


# %% kind="exercise" name="standardize_apply"
def standardize_apply(X, mean, std):
    """Standardize any rows, of the training set or not, with what standardize_fit returned.

    X: (N, D). mean, std: (D,). Returns (N, D).
    """
    ### BEGIN SOLUTION
    return (X - mean) / std
    ### END SOLUTION


# %% [markdown]
# ## The question, answered by your own functions
#
# The wines again, in all their units, with and without your two functions. Then three more data
# sets that scikit-learn ships: cells of a tumour (radius, area, smoothness …: 30 features of all
# sizes), iris flowers (4 lengths, all in centimetres), and digits (64 pixels, all from 0 to 16).
# Will standardizing help everywhere?

# %% kind="demo"
from sklearn.datasets import load_breast_cancer, load_digits, load_iris


def by_training_rows(known, asked):
    """Both parts, standardized with what the known rows say."""
    fitted = standardize_fit(known)
    return standardize_apply(known, *fitted), standardize_apply(asked, *fitted)


rescaled = np.array(
    [[accuracy(in_unit(u), grower, s, by_training_rows) for s in range(20)] for u in UNITS]
)
fig, (left, right) = plt.subplots(1, 2, figsize=(8.6, 3), width_ratios=(3, 2))
curves = [("as measured", as_measured, ORANGE, "o-"), ("standardized", rescaled, BLUE, "^-")]
draw_units(left, curves)
left.legend(loc="lower left", bbox_to_anchor=(0, 0.15))
told = rescaled.mean(axis=1)
print(f"wines in any unit, standardized: {told.min():.3f} to {told.max():.3f} right")
loaders = {"wines": load_wine, "tumours": load_breast_cancer, "iris": load_iris}
loaders["digits"] = load_digits
for place, (name, loader) in enumerate(loaders.items()):
    data, labels = loader(return_X_y=True)
    pair = [[accuracy(data, labels, s, way) for s in range(10)] for way in (None, by_training_rows)]
    gain = np.subtract(pair[1], pair[0])
    print(
        f"{name:8s} as measured {np.mean(pair[0]):.3f}, standardized {np.mean(pair[1]):.3f}:",
        end="",
    )
    print(
        f" gain {gain.mean():+.3f}; better in {(gain > 0).sum()}, worse in {(gain < 0).sum()} of 10"
    )
    for shift, row, colour, mark in ((-0.12, pair[0], ORANGE, "o"), (0.12, pair[1], BLUE, "^")):
        reach = [[np.mean(row) - np.min(row)], [np.max(row) - np.mean(row)]]
        right.errorbar(place + shift, np.mean(row), reach, fmt=mark, color=colour, capsize=3)
right.set_xticks(range(4), loaders)
right.set(ylim=(0.35, 1.02))
fig.tight_layout()
plt.show()

spreads = np.array([0.1, 1.0, 10.0])
three = 5 + spreads * np.random.default_rng(12).normal(size=(1000, 3))
after = standardize_apply(three, *standardize_fit(three))


def loud_only(known, asked):
    """Standardized, without the pixels whose standard deviation is below 4."""
    loud = standardize_fit(known)[1] > 4
    return by_training_rows(known[:, loud], asked[:, loud])


pixels, digit = load_digits(return_X_y=True)
row = [accuracy(pixels, digit, s, loud_only) for s in range(10)]
print(f"digits without the quiet pixels, standardized {np.mean(row):.3f}")
print("three features, variances before:", three.var(axis=0).round(3), " after:", after.var(axis=0))

# %% [markdown]
# ### See: flat at last, and not always higher
#
# **Left.** Your curve is flat: 95.5 % in any unit. Divide a feature by a thousand, and its
# standard deviation is divided by a thousand as well; nothing is left of the unit.
#
# **Right.** The notes say that methods which use distances need scaling. For wines and tumours,
# measured in many units, they are right: it helps in each of ten splits. But the digits get
# *worse* in nine of ten, the irises in eight. Their features share one unit already, and there
# size is information. A pixel near the border is almost always 0 and tells little, until
# standardizing blows its rare flecks up to the size of everything else; without the quiet pixels
# the loss is gone (last line but one). So: **scale what has different units; think first where the
# unit is shared.**
#
# **The last line.** One of the notes says that the aim of normalization is to *lower* each
# dimension's variance. Feed it $\sigma=0.1$: the variance rises from 0.01 to 1, a hundredfold. The
# aim is not low. The aim is *alike*.
#
# ## May I peek?
#
# Fit on the training set only, everybody says. If you fit on all rows, the test rows have had a
# say in their own preparation: a leak. How much does it matter? Three experiments:
#
# 1. Peek at the test rows' means and spreads, with 6 to 118 wines to learn from (the nearest one
#    votes, 200 splits).
# 2. Let the test rows come one grower at a time. Fit on the training rows, or on all, or
#    standardize each lot *by itself*.
# 3. Peek at the *labels*: among 5,000 random features choose the 100 that go best with the label,
#    once with all 50 rows, once with the 40 training rows. The labels are coin flips. (After
#    Hastie, Tibshirani and Friedman 2009, section 7.10.2.)

# %% kind="demo"


def by_all_rows(known, asked):
    fitted = standardize_fit(np.vstack([known, asked]))
    return standardize_apply(known, *fitted), standardize_apply(asked, *fitted)


def by_their_own(known, asked):
    own = standardize_apply(asked, *standardize_fit(asked))
    return standardize_apply(known, *standardize_fit(known)), own


print("known wines   fit on training   fit on all    what peeking gained (± standard error)")
for count in (6, 9, 15, 30, 118):
    fair, peeked = (
        np.array([accuracy(wine, grower, s, way, count, k=1) for s in range(200)])
        for way in (by_training_rows, by_all_rows)
    )
    gain = peeked - fair
    told = f"{count:11d}   {fair.mean():15.3f}   {peeked.mean():10.3f}"
    print(f"{told}    {gain.mean():+.4f} ± {gain.std() / np.sqrt(200):.4f}")

print("test rows come one grower at a time, 20 splits:")
for label, way in (
    ("fit on training", by_training_rows),
    ("fit on all", by_all_rows),
    ("each lot by itself", by_their_own),
):
    right_ones = []
    for seed in range(20):
        learn, ask = split(seed, 178, 118)
        for who in range(3):
            lot = ask[grower[ask] == who]
            known_rows, asked_rows = way(wine[learn], wine[lot])
            right_ones.append((vote(known_rows, grower[learn], asked_rows) == who).mean())
    print(f"   {label:19s} {np.mean(right_ones):.3f} right")

coins = np.random.default_rng(13)
peek_rates, fair_rates = [], []
for _ in range(20):
    noise, flips = coins.normal(size=(50, 5000)), coins.permutation(np.repeat([0, 1], 25))
    learn, ask = np.arange(40), np.arange(40, 50)
    for rates, seen in ((peek_rates, np.arange(50)), (fair_rates, learn)):
        z = noise[seen] - noise[seen].mean(axis=0)
        tie = np.abs(z.T @ (flips[seen] - flips[seen].mean())) / z.std(axis=0)
        best = np.argsort(tie)[-100:]
        told = vote(noise[learn][:, best], flips[learn], noise[ask][:, best], k=1)
        rates.append((told == flips[ask]).mean())
print("coin flips, 20 repeats:", end=" ")
print(f"features chosen with all rows {np.mean(peek_rates):.2f} right,", end=" ")
print(f"with the training rows {np.mean(fair_rates):.2f}")

# %% [markdown]
# ### See: a small leak, a broken ruler, a flood
#
# **A small leak.** With six wines to learn from, peeking gains a point; from 15 on, nothing that
# 200 splits can tell from zero. Means and spreads give little away. But the peek is never needed
# either, and the next two are the same habit.
#
# **A broken ruler.** Measure each lot by itself, and the vote falls from 96 % to 37 %, hardly more
# than a guess among three. The wines of one grower differ from the others by their mean, and just
# that was subtracted. (Remember it when BatchNorm does this to a batch that is not mixed.) At work
# you may have one row: its mean is all there is of it. So the ruler must come from the training
# set.
#
# **A flood.** 97 % of the coin flips are foretold! With the training rows alone it is 45 %, about
# half, as it should be. Nothing but the choice of features has seen the test labels. Fit whatever
# is fitted inside the training set, and you need not ask which kind of leak you have.
#
# ## Why gradient descent wants one scale
#
# The notes also say that features of large scale dominate, and that scaling speeds up gradient
# descent. Least squares is the case that one can work out:
#
# $$L(w) = \frac{1}{2N}\lVert \underbrace{X}_{(N,D)}\underbrace{w}_{(D,)} - \underbrace{y}_{(N,)}
# \rVert^2, \qquad \nabla L = \tfrac{1}{N}X^{\top}(Xw-y), \qquad H = \tfrac{1}{N}X^{\top}X \quad
# (D,D)$$
#
# $L$ is a bowl, and the eigenvalues $\lambda$ of $H$ say how steep it is in its directions. A step
# $w \leftarrow w-\eta\nabla L$ multiplies what is still wrong in such a direction by
# $1-\eta\lambda$. The steepest forbids $\eta > 2/\lambda_{\max}$, or it explodes; the flattest
# then creeps. The best compromise shrinks both by
#
# $$\frac{\kappa-1}{\kappa+1} \text{ a step,} \qquad \kappa =
# \frac{\lambda_{\max}}{\lambda_{\min}}, \text{ the condition number,}$$
#
# so the number of steps grows like $\kappa$. And in a unit ten times smaller, a feature's numbers
# are ten times larger and its $\lambda$ is a *hundred* times larger.
#
# We measure it: 200 samples, two features, one of them in larger and larger numbers. Each arm gets
# its own best of 40 learning rates. How many steps until a millionth of the excess loss is left?

# %% kind="demo"
RATES = 2 * (1 - np.logspace(-4.5, -0.05, 40))  # in units of 1 / lambda_max; 2 would not converge


def least_squares(seed, unit, correlation=0.0):
    """200 samples of two features, the second in numbers `unit` times as large."""
    rng = np.random.default_rng((14, seed))
    X = rng.normal(size=(200, 2))
    X[:, 1] = correlation * X[:, 0] + np.sqrt(1 - correlation**2) * X[:, 1]
    y = X @ rng.uniform(0.5, 1.5, 2) * rng.choice([-1, 1]) + 0.5 * rng.normal(size=200)
    X = X * np.array([1, unit])
    return X - X.mean(axis=0), y - y.mean()


def descend(X, y, most=40_000):
    """kappa, the fewest steps of 40 learning rates, and the way of the best one."""
    H, c = X.T @ X / len(X), X.T @ y / len(X)
    lowest, (low, *_, high) = np.linalg.solve(H, c), np.linalg.eigvalsh(H)
    w, ways = np.zeros((40, 2)), []
    for steps in range(most):
        ways.append(w)
        away = w - lowest
        excess = ((away @ H) * away).sum(axis=1)
        if steps == 0:
            start = excess[0]
        if excess.min() < 1e-6 * start:
            break
        w = w - (RATES / high)[:, None] * (away @ H)
    return high / low, steps, np.array(ways)[:, excess.argmin()], lowest, H


def draw_bowl(axis, X, y, title):
    kappa, steps, way, lowest, H = descend(X, y)
    reach = 1.2 * np.abs(way - lowest).max() * np.linspace(-1, 1, 80)
    grid = np.meshgrid(lowest[0] + reach, lowest[1] + reach)
    off = np.stack(grid, axis=-1) - lowest
    height = ((off @ H) * off).sum(axis=-1)
    axis.contour(*grid, height, levels=height.max() * np.linspace(0.03, 1, 8) ** 2, colors="0.75")
    axis.plot(*way.T, "o-", color=ORANGE, ms=3, linewidth=1)
    axis.plot(*lowest, "*", color="black", ms=8)
    axis.set(xlabel="$w_0$", ylabel="$w_1$", aspect="equal")
    axis.set_title(f"{title}: κ = {kappa:.1f}, {steps} steps", fontsize=9)


fig, (left, middle, right) = plt.subplots(1, 3, figsize=(9.4, 3.4))
stretched = least_squares(0, 5)
draw_bowl(left, *stretched, "as measured")
ruler = standardize_fit(stretched[0])
draw_bowl(middle, standardize_apply(stretched[0], *ruler), stretched[1], "standardized")

arms = {"as measured": [], "standardized": [], "correlated, standardized": []}
for seed in range(5):
    for unit in (1, 2, 4, 8, 16, 32):
        X, y = least_squares(seed, unit)
        arms["as measured"].append((unit, *descend(X, y)[:2]))
        X = standardize_apply(X, *standardize_fit(X))
        arms["standardized"].append((unit, *descend(X, y)[:2]))
    for correlation in (0.9, 0.99, 0.998):
        X, y = least_squares(seed, 1, correlation)
        X = standardize_apply(X, *standardize_fit(X))
        arms["correlated, standardized"].append((correlation, *descend(X, y)[:2]))
line = np.logspace(0.2, 3.1, 50)
expected = np.log(1e6) / 2 / np.log((line + 1) / (line - 1))
right.loglog(line, expected, color="black", linewidth=0.8, label="theory, at worst")
looks = ((ORANGE, "o"), (BLUE, "^"), (GREY, "s"))
for (label, rows), (colour, mark) in zip(arms.items(), looks, strict=True):
    _, kappas, counts = np.transpose(rows)
    right.loglog(kappas, counts, mark, color=colour, ms=4, label=label, fillstyle="none")
right.set(xlabel="condition number κ", ylabel="steps")
right.legend(fontsize=7.5, loc="upper left")
fig.tight_layout()
plt.show()
for label, rows in arms.items():
    for setting in dict.fromkeys(row[0] for row in rows):
        alike = [row[1:] for row in rows if row[0] == setting]
        (k_low, s_low), (k_high, s_high) = np.min(alike, axis=0), np.max(alike, axis=0)
        print(f"{label:25s} {setting:6g}: κ {k_low:7.1f} to {k_high:7.1f}", end="")
        print(f", steps {s_low:5.0f} to {s_high:5.0f}")

# %% [markdown]
# ### See: steps go with kappa
#
# **Left and middle.** The same data. In the stretched bowl even the best learning rate bounces
# between the steep walls while it creeps along the valley. In the round bowl every step points
# home.
#
# **Right.** Five data sets of each kind. Numbers 32 times as large make κ about a thousand and
# cost 2,800 to 4,400 steps; the circles lie on the line that theory draws, some 3.4 κ.
# Standardized (triangles), each of these data sets takes 3 to 5 steps, whatever the unit. The
# notes are right.
#
# **Grey squares** are the small print. Their two features have one scale but say nearly the same:
# correlations 0.9, 0.99, 0.998. Standardizing cannot help them, for it looks at one column at a
# time. Whitening can: lesson 09. (The line is for the worst start; the lowest square had a lucky
# one.)
#
# ## Logistic regression, with and without a penalty
#
# A statement from the notes to test: *standardizing is not necessary if you do not regularize; if
# you do, it is.*
#
# **Left figure: no penalty.** Three features of the tumour cells: radius (14 ± 3.5), texture (19 ±
# 4.3), smoothness (0.096 ± 0.014), and an intercept. Newton's method finds the lowest loss. Then
# 2,000 steps of gradient descent in four ways: as measured, divided by `std` only, centred only,
# and both. Each way has its own best of 21 learning rates.
#
# **Right figure: a penalty** $\frac{\lambda}{2}\lVert w\rVert^2$ (this $\lambda$ is its strength
# and no eigenvalue). All 30 features, 100 cells to learn from, the rest to test, eight splits.
# Newton again, so speed plays no part.

# %% kind="demo"
cells, benign = load_breast_cancer(return_X_y=True)  # (569, 30); 1 where the tumour is benign


def logistic(A, y, penalty, rounds=60):
    """The lowest point of the penalized logistic loss, by Newton's method. A: (N, D)."""
    w = np.zeros(A.shape[1])
    for _ in range(rounds):
        p = 1 / (1 + np.exp(-np.clip(A @ w, -500, 500)))
        slope = A.T @ (p - y) / len(y) + penalty * w
        step = np.linalg.solve((A.T * (p * (1 - p))) @ A / len(y) + np.diag(penalty), slope)
        w = w - step * min(1, 5 / np.abs(A @ step).max())  # no wild leaps
    return w


def with_intercept(X):
    return np.column_stack([np.ones(len(X)), X])


def log_loss(scores, y):
    return np.logaddexp(0, np.where(y == 1, -scores.T, scores.T)).mean(axis=-1)


few = cells[:, [0, 1, 4]]
few_mean, few_std = standardize_fit(few)
FOUR = {
    "as measured": (few, ORANGE, "-"),
    "divided by std only": (few / few_std, ORANGE, "--"),
    "centred only": (few - few_mean, GREY, "-."),
    "standardized": (standardize_apply(few, few_mean, few_std), BLUE, "-"),
}
fig, (left, right) = plt.subplots(1, 2, figsize=(8.8, 3.2))
tried, answers = 2.0 ** np.arange(-3, 7.5, 0.5), {}
for label, (X, colour, style) in FOUR.items():
    A = with_intercept(X)
    lowest = logistic(A, benign, np.zeros(4))
    answers[label] = 1 / (1 + np.exp(-A @ lowest))
    floor = log_loss(A @ lowest, benign)
    H = (A.T * (answers[label] * (1 - answers[label]))) @ A / len(A)
    rates = tried * 4 / np.linalg.eigvalsh(A.T @ A / len(A))[-1]
    w, log = np.zeros((4, len(rates))), []
    for _ in range(2001):
        scores = A @ w
        log.append(log_loss(scores, benign) - floor)
        p = 1 / (1 + np.exp(-np.clip(scores, -500, 500)))
        w = w - rates * (A.T @ (p - benign[:, None])) / len(A)
    log = np.array(log)
    quick = np.where((log < 1e-6).any(axis=0), (log < 1e-6).argmax(axis=0), len(log))
    best = quick.argmin() if quick.min() < len(log) else log[-1].argmin()
    shown = np.maximum(log[:, best], 1e-12)
    left.loglog(np.arange(1, 2002), shown, style, color=colour, label=label)
    reached = f"{quick.min()} steps" if quick.min() < len(log) else "not yet"
    print(f"{label:20s} κ {np.linalg.cond(H):7.1e}  lowest loss {floor:.6f}", end="  ")
    print(f"within 1e-6: {reached:18s}  after 2,000: {max(log[-1, best], 0):.2f} above")
gap = max(np.abs(p - answers["standardized"]).max() for p in answers.values())
print(f"Newton's four answers differ by {'less than 1e-6' if gap < 1e-6 else f'{gap:.0e}'}")
left.set(xlabel="gradient steps", ylabel="loss above the lowest", ylim=(1e-9, 10))
left.set_title("no penalty")
left.legend(fontsize=8)

PENALTIES = 10.0 ** np.arange(-4, 3)
for label, scaled, colour, mark in (
    ("as measured", False, ORANGE, "o"),
    ("standardized", True, BLUE, "^"),
):
    losses = []
    for seed in range(8):
        learn, ask = split(seed, len(cells), 100)
        at, spread = standardize_fit(cells[learn])
        spread = spread if scaled else np.ones(30)
        A, B = (with_intercept(standardize_apply(cells[r], at, spread)) for r in (learn, ask))
        fits = [logistic(A, benign[learn], np.r_[0, np.full(30, size)]) for size in PENALTIES]
        losses.append([log_loss(B @ w, benign[ask]) for w in fits])
    losses = np.array(losses)
    right.loglog(PENALTIES, losses.mean(axis=0), mark + "-", color=colour, label=label)
    right.fill_between(PENALTIES, losses.min(axis=0), losses.max(axis=0), color=colour, alpha=0.2)
    best = losses.mean(axis=0).argmin()
    row = losses[:, best]
    print(f"penalized, {label:12s}: best λ {PENALTIES[best]:g}, test loss", end="")
    print(f" {row.mean():.3f}, from {row.min():.3f} to {row.max():.3f}")
right.set(xlabel="penalty λ", ylabel="loss on the test cells", title="with a penalty")
right.legend(fontsize=8)
fig.tight_layout()
plt.show()

# %% [markdown]
# ### See: the same optimum, another road
#
# **Left.** Newton finds the same lowest loss four times, to the last printed digit, and the four
# models give every cell the same probability. So the notes are right about *where* the optimum is.
# Gradient descent has to *get* there. Standardized, it is within a millionth after 47 steps; in
# the other three ways it is nowhere near after 2,000. κ tells you beforehand. (Scikit-learn's
# guide says it too: scaling eases the convergence of an unpenalized logistic regression.)
#
# And it takes both halves. Divided by `std` alone, a feature of mean 4 and spread 1 looks much
# like the intercept; centred alone, the units are still there. (LeCun, Kanter and Solla justified
# centring by these eigenvalues in 1990.)
#
# **Right.** With a penalty the two ways find *different* models. Each at its own best λ, the
# standardized one has a test loss of 0.096, the other of 0.152. (Best on the test cells, for both
# alike: a small peek, but a fair comparison.) *Why* they differ, you work out in the written
# question.
#
# ## Who else reads the ruler?
#
# Two more statements of the notes.
#
# - *PCA uses distances*, and so needs scaling. PCA looks for the direction in which the data vary
#   most. Which one will it find among the wines?
# - *Scaling makes coefficients interpretable.* A regression of the progress of diabetes on ten
#   measurements of 442 patients. The ± is the standard deviation over 200 resamplings of the
#   patients.
#
# Last, a small world of which we know the truth. Stress makes people drink coffee *and* sleep
# badly; coffee does nothing. We regress bad sleep on coffee; then we *give* people coffee at
# random.

# %% kind="demo"
from sklearn.datasets import load_diabetes


def first_component(X):
    """The direction of largest variance, and its share of all variance."""
    sizes, directions = np.linalg.eigh(np.cov(X, rowvar=False))
    return directions[:, -1], sizes[-1] / sizes.sum()


print("PCA: the first component, and the features that make it")
for label, X in (
    ("proline in mg/l", wine),
    ("proline in g/l", in_unit(1e-3)),
    ("standardized", standardize_apply(wine, *standardize_fit(wine))),
):
    direction, share = first_component(X)
    top = np.argsort(-np.abs(direction))[:3]
    told = ", ".join(f"{FEATURES[j]} {abs(direction[j]):.2f}" for j in top)
    print(f"   {label:16s} {share:6.1%} of the variance: {told}")

diabetes = load_diabetes(scaled=False)
patients, progressed = diabetes.data, diabetes.target


def coefficients(X, y):
    return np.linalg.lstsq(with_intercept(X), y, rcond=None)[0][1:]


at, spread = standardize_fit(patients)
own_units = coefficients(patients, progressed)
per_std = coefficients(standardize_apply(patients, at, spread), progressed)
resampling, again = np.random.default_rng(15), []
for _ in range(200):
    chosen = resampling.integers(0, 442, 442)
    rows = standardize_apply(patients[chosen], at, spread)
    again.append(coefficients(rows, progressed[chosen]))
doubt = np.std(again, axis=0)
print("\nregression      in its own unit      per standard deviation")
for j in np.argsort(-np.abs(own_units)):
    told = f"   {diabetes.feature_names[j]:10s} {own_units[j]:15.2f}"
    print(f"{told} {per_std[j]:18.1f} ± {doubt[j]:.1f}")
cholesterol = np.corrcoef(patients[:, 4], patients[:, 5])[0, 1]
print(f"   correlation of s1 and s2: {cholesterol:.2f}")

people = np.random.default_rng(16)
stress = people.normal(size=5000)
coffee = stress + 0.5 * people.normal(size=5000)
sleepless = stress + 0.5 * people.normal(size=5000)
given = people.normal(size=5000)  # coffee by lot; it does not touch sleep
for label, cups in (("as people drink it", coffee), ("given by lot", given)):
    X = standardize_apply(cups[:, None], *standardize_fit(cups[:, None]))
    told = coefficients(X, sleepless)[0]
    print(f"bad sleep on coffee, {label}: {told:.2f} per standard deviation of coffee")

# %% [markdown]
# ### See: variance, comparison, cause
#
# **PCA** in milligrams is proline, in grams it is magnesium; standardized, several features share
# it. So it needs scaling, but not because it measures distances between samples, as the vote does.
# It maximizes *variance*, and a unit multiplies variance by its square.
#
# **Coefficients.** 68 per unit of `s5` (a logarithm) and 5.6 per unit of body mass index: that
# says nothing. Per standard deviation they can be compared, and so far the notes are right. But
# look at `s1` and `s2`: large, of opposite sign, ± 20 and ± 16. These two have a correlation of
# 0.90, and the regression cannot tell whose work it is. A common scale makes coefficients
# comparable, not certain.
#
# **Nor causal.** The coefficient of coffee is 0.89 per standard deviation. Given by lot, coffee
# does nothing. No ruler can know about the stress. (Scikit-learn's guide has a page of such
# pitfalls.)
#
# ## Where a sigmoid still listens
#
# Now into a network. A neuron computes $a = x\cdot w$ and passes it through $\mathrm{sigmoid}(a) =
# 1/(1+e^{-a})$. What it learns is proportional to the *slope* there: 1/4 in the middle, next to
# nothing far out.
#
# The notes say that a feature of large scale drives the sigmoid into its flat ends, and that
# inputs of mean 0 and variance 1 stay out of them. (Elsewhere one of them says the opposite. Keep
# that for the written question.) Two measurements:
#
# - **Left:** inputs $a$ from $N(0,\sigma^2)$. How many lie beyond ±2, and what is left of the
#   slope?
# - **Right:** 200 neurons with random weights of variance 1/13 look at the wines, as measured and
#   standardized. What do they answer?

# %% kind="demo"


def sigmoid(a):
    return 1 / (1 + np.exp(-np.clip(a, -500, 500)))


def slope(a):
    return sigmoid(a) * (1 - sigmoid(a))


neurons = np.random.default_rng(17)
standard = neurons.normal(size=100_000)
sigmas = np.logspace(-1, 2, 25)
outside = [(np.abs(s * standard) > 2).mean() for s in sigmas]
left_over = [4 * slope(s * standard).mean() for s in sigmas]
weights = neurons.normal(size=(13, 200)) / np.sqrt(13)
views = {
    "as measured": (wine, ORANGE),
    "standardized": (standardize_apply(wine, *standardize_fit(wine)), BLUE),
}
fig, (left, right) = plt.subplots(1, 2, figsize=(8.6, 3))
left.semilogx(sigmas, outside, "o-", ms=3, color=ORANGE, label="share beyond ±2")
left.semilogx(sigmas, left_over, "^-", ms=3, color=BLUE, label="mean slope / largest")
left.axvline(1, color=GREY, linestyle=":")
left.set(xlabel="σ of the sigmoid's input", ylim=(-0.03, 1.03))
left.legend(fontsize=8, loc="center right")
for label, (X, colour) in views.items():
    a = X @ weights
    kind = "stepfilled" if colour == BLUE else "step"
    look = {"histtype": kind, "color": colour, "linewidth": 1.5, "alpha": 0.8, "density": True}
    right.hist(sigmoid(a).ravel(), np.linspace(0, 1, 41), label=label, **look)
    far, flat = (np.abs(a) > 2).mean(axis=0), slope(a).mean(axis=0)
    print(f"{label:12s} |a| > 2: {far.mean():4.0%}   mean slope {flat.mean():.4f}", end="")
    print(f", half of the neurons below {np.median(flat):.4f}")
right.set(xlabel="answer of the neuron", ylabel="density")
right.legend(fontsize=8, loc="upper center")
fig.tight_layout()
plt.show()
for s in (0.1, 1, 3, 10):
    print(f"σ = {s:4g}: |a| > 2 {(np.abs(s * standard) > 2).mean():6.1%}, ", end="")
    print(f"mean slope {slope(s * standard).mean():.3f} of 0.250")

# %% [markdown]
# ### See: at sigma 1 it listens
#
# **Left.** At σ = 1 one input in twenty lies beyond 2, and 83 % of the largest slope is left. At σ
# = 10 it is the other way round. So large inputs do saturate a sigmoid, and inputs of variance 1
# do not. (Nothing special happens at 2: it fades.)
#
# **Right.** As measured, the neurons say 0 or 1 and hardly anything else, whichever wine they see;
# half of them have no slope left at all. Standardized, they answer anything from 0.1 to 0.9.
#
# Lesson 02 asks about the other end: can inputs be *too* tame?
#
# ## A gradient you can measure
#
# Most lessons have a gradient in them, worked out with a pencil. How do you know that it is right?
# You *measure* it. Nudge one number of `x` up by a small $h$, then down, and see what the loss
# does:
#
# $$\frac{\partial L}{\partial x_k} \approx \frac{L(x+h\,e_k)-L(x-h\,e_k)}{2h}$$
#
# ($e_k$ is 1 at entry $k$ and 0 elsewhere.) It takes two evaluations per entry, far too slow to
# train with. As a referee it is hard to beat: it knows no calculus, so it does not share your
# mistakes.
#
# A layer has no loss of its own. It has an output `f(x)`, and gets from above `dout`, the gradient
# of the loss with respect to that output. One number that has exactly this gradient is
#
# $$L(x) = \sum \mathrm{dout}\cdot f(x)$$
#
# | name | shape |
# |---|---|
# | `x`, and the gradient you return | any, say (N, D) |
# | `f(x)` and `dout` | another one, say (N, M) |
# | $L$ | one number, to which every output contributes with its own weight |
#
# ## Your turn: numeric_grad
#
# *35 points.*
#
# What to watch:
#
# - One entry at a time; all others stay where they were. `np.ndindex(*x.shape)` gives you every
#   index, whatever the number of axes.
# - One nudge may move *all* outputs.
# - `x` could hold integers, where adding 0.00001 changes nothing, or float32, where it changes too
#   little. Work on a float64 copy, and leave the caller's `x` alone.


# %% kind="exercise" name="numeric_grad"
def numeric_grad(f, x, dout, h=1e-5):
    """The gradient of sum(dout * f(x)) with respect to x, by central differences.

    f: a function of one array, which returns an array of dout's shape. x: an array of any shape.
    dout: the gradient that arrives at f's output. h: the step. Returns an array of x's shape, in
    float64. x is the same afterwards as before.
    """
    ### BEGIN SOLUTION
    grad = np.zeros(x.shape)
    for index in np.ndindex(*x.shape):
        ahead, behind = x.astype(float), x.astype(float)
        ahead[index] += h
        behind[index] -= h
        grad[index] = np.sum(dout * (f(ahead) - f(behind))) / (2 * h)
    return grad
    ### END SOLUTION


# %% [markdown]
# ## How small a step?
#
# A derivative is a limit, so the smaller $h$ the better? And would $(L(x+h)-L(x))/h$ not do, at
# half the price?
#
# We take tanh, whose slope we know to be $1-\tanh^2$, and measure with $h$ from 1 down to 1e-14:
# one-sided; with your function; and with your function and a tanh that computes in float32. (Five
# random `x` and `dout`. A line is the middle error of the five.) Draw the three curves in the air
# before you run.

# %% kind="demo"


def one_sided(f, x, dout, h):
    gradient = np.zeros(x.shape)
    for index in np.ndindex(*x.shape):
        ahead = x.copy()
        ahead[index] += h
        gradient[index] = np.sum(dout * (f(ahead) - f(x))) / h
    return gradient


def relative_error(claimed, measured):
    """The largest difference, beside the largest entry of the two."""
    return np.abs(claimed - measured).max() / max(
        np.abs(claimed).max(), np.abs(measured).max(), 1e-300
    )


def tanh_in_float32(x):
    return np.tanh(x.astype(np.float32)).astype(float)


STEPS_H = 10.0 ** np.arange(-14, 0.5, 0.5)
WAYS = {
    "one-sided": (lambda x, dout, h: one_sided(np.tanh, x, dout, h), ORANGE, "o-"),
    "your numeric_grad": (lambda x, dout, h: numeric_grad(np.tanh, x, dout, h), BLUE, "^-"),
    "yours, f in float32": (
        lambda x, dout, h: numeric_grad(tanh_in_float32, x, dout, h),
        GREY,
        "s-",
    ),
}
fig, axis = plt.subplots(figsize=(6.6, 3.4))
for label, (way, colour, style) in WAYS.items():
    errors = []
    for seed in range(5):
        rng = np.random.default_rng((18, seed))
        x, dout = rng.normal(size=(2, 4, 3))
        truth = dout * (1 - np.tanh(x) ** 2)
        errors.append([relative_error(way(x, dout, h), truth) for h in STEPS_H])
    low, middle, high = np.quantile(errors, (0, 0.5, 1), axis=0)
    axis.loglog(STEPS_H, np.maximum(middle, 1e-13), style, ms=3, color=colour, label=label)
    axis.fill_between(STEPS_H, np.maximum(low, 1e-13), high, color=colour, alpha=0.15)
    best = middle.argmin()
    at_default = middle[np.isclose(STEPS_H, 1e-5)][0]
    print(f"{label:20s} best h {STEPS_H[best]:.0e}, error {middle[best]:.0e}", end="")
    print(f"; at h = 1e-5 {at_default:.0e}; at 1e-12 {middle[np.isclose(STEPS_H, 1e-12)][0]:.0e}")
axis.axvline(1e-5, color="black", linestyle=":", linewidth=0.8)
axis.set(xlabel="step h", ylabel="relative error", ylim=(1e-12, 20))
axis.legend(loc="upper left", bbox_to_anchor=(0.0, 0.35), fontsize=8)
fig.tight_layout()
plt.show()

# %% [markdown]
# ### See: a valley with two walls
#
# **The right wall** is mathematics. A large step sees the curve and not the slope: by Taylor's
# series the error is of order $h$ one-sided, and of order $h^2$ for the central difference, where
# the terms in $h$ cancel. On log-log paper: slope 1 and slope 2.
#
# **The left wall** is the computer. The smaller $h$, the more digits `f(x+h)` and `f(x-h)` share,
# and what their difference keeps is rounding: an error of order $10^{-16}/h$. So a smaller step is
# *worse*.
#
# The floor of the valley lies near $\sqrt{10^{-16}} = 10^{-8}$ one-sided and near
# $\sqrt[3]{10^{-16}} \approx 5\cdot 10^{-6}$ for yours, two to three digits deeper. That is where
# $h = 10^{-5}$ comes from. In float32 that step leaves an error of a thousandth, and a nudge of
# $10^{-8}$ is not noticed at all. **Check gradients in float64.**
#
# ## A check that cannot fail
#
# You have a formula and a referee, and compare them; best by the *relative* error, since 1e-4 is
# little beside 1 and a lot beside 1e-5. What can go wrong? The choice of `dout`. The handiest loss
# is the sum of all outputs, that is, a `dout` of ones.
#
# Two layers. Softmax turns each row into positive numbers with sum 1, $s_j = e^{x_j}/\sum_k
# e^{x_k}$; its gradient is $s\,(\mathrm{dout} - \sum_k \mathrm{dout}_k\, s_k)$. And a batch
# standardized by its own mean and standard deviation. Its right formula is the work of lesson 03;
# here are wrong ones only. Who gets caught?

# %% kind="demo"


def softmax(x):
    powers = np.exp(x - x.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def by_itself(x):
    """Each column of the batch, standardized by its own mean and standard deviation."""
    mean, var = moments(x, 0)
    return (x - mean) / np.sqrt(var)


def claims(layer, x, dout):
    """What various formulas say about the gradient."""
    if layer is softmax:
        s = softmax(x)
        right = s * (dout - (dout * s).sum(axis=1, keepdims=True))
        wrong = {"twice that": 2 * right, "its negative": -right, "all zeros": 0 * x}
        return {"the right one": right} | wrong | {"only the diagonal": dout * s * (1 - s)}
    centred, std = dout - dout.mean(axis=0), x.std(axis=0)
    return {
        "all zeros": 0 * x,
        "dout minus its mean": centred,
        "that, over std": centred / std,
        "dout over std": dout / std,
    }


judge = np.random.default_rng(19)
batch = 2 + 3 * judge.normal(size=(6, 4))
arrivals = {"ones": np.ones((6, 4)), "random": judge.normal(size=(6, 4))}
print(f"{'':36s}dout of ones             random dout")
print(f"{'':32s}difference  relative     difference  relative")
for layer, name in ((softmax, "softmax"), (by_itself, "standardizing")):
    measured = {kind: numeric_grad(layer, batch, dout) for kind, dout in arrivals.items()}
    sizes = "              ".join(f"{np.abs(m).max():9.0e}" for m in measured.values())
    print(f"{name + ', largest measured entry':33s}{sizes}")
    table = {kind: claims(layer, batch, dout) for kind, dout in arrivals.items()}
    for formula in table["ones"]:
        told = []
        for kind, truth in measured.items():
            claimed = table[kind][formula]
            gap = np.abs(claimed - truth).max()
            told.append(f"{gap:9.0e} {relative_error(claimed, truth):9.0e}")
        print(f"   {formula:30s}" + "    ".join(told))

# %% [markdown]
# ### See: acquitted together, condemned together
#
# **Random `dout`.** Every wrong formula is off by a large part of the gradient, the right one by
# less than one part in a billion. That is how a check should look: nothing in between.
#
# **Ones.** By the difference nearly everybody is right: twice the gradient, its negative, zeros.
# By the relative error everybody is wrong, the right formula too! (Only zeros may get away, if your
# sums happen to cancel exactly.) Both have one cause, in the lines above: the gradient itself is
# *zero*, up to noise. A row of softmax has the sum 1, a standardized column the sum 0, whatever `x`
# is; no nudge can change their total.
#
# It happens. A user of Torch found that its BatchNorm failed a gradient check by 1.000000001736,
# where 1e-8 was asked; the loss was the sum of the outputs (issue torch/nn#744). In lesson 03 you
# will meet a test that zeros passed.
#
# Every normalization layer takes something out of its input, and a constant `dout` mostly asks
# about just that. **So make `dout` random, and look how large the gradient is before you believe
# that two agree.**
#
# ## Near a kink
#
# ReLU, $\max(x, 0)$, has slope 0 on the left and 1 on the right. What does a central difference
# say when `x` is nearer to 0 than $h$?

# %% kind="demo"
import math


def relu(x):
    return np.maximum(x, 0)


near = np.linspace(-2.5, 2.5, 101)
told = [numeric_grad(relu, np.array([d * 1e-5]), np.ones(1))[0] for d in near]
fig, axis = plt.subplots(figsize=(5, 2.4))
axis.plot(near, told, color=BLUE, label="your numeric_grad")
axis.plot([-2.5, 0, 0, 2.5], [0, 0, 1, 1], "--", color=ORANGE, linewidth=1, label="slope of ReLU")
axis.set(xlabel="x / h", ylabel="slope")
axis.legend()
fig.tight_layout()
plt.show()

x, dout = np.random.default_rng(20).normal(size=(2, 200))
x[7] = 2e-6
gap = np.abs(numeric_grad(relu, x, dout) - dout * (x > 0))
for h in (1e-5, 1e-3, 1e-1):
    share = math.erf(h / math.sqrt(2))
    print(f"h = {h:.0e}: {share:8.4%} of standard normal inputs lie within h of 0")
print("200 inputs, x[7] = 2e-06: entries that disagree", np.flatnonzero(gap > 1e-7))

# %% [markdown]
# ### See: a ramp where there should be a step
#
# Within $h$ of the kink the measurement mixes both slopes: here the formula is right and the
# referee is not. With $h = 10^{-5}$ it is rare, one input in 125,000, but networks have many
# inputs. You know it by this: *a single* entry disagrees, and with another $h$ or a slightly
# different `x` the trouble is gone. A wrong formula does not go away.
#
# ### The recipe
#
# From now on we judge gradients like this.
#
# 1. float64, and $h=10^{-5}$.
# 2. A few rows, N ≠ D, entries of ordinary size, none near a kink.
# 3. A random `dout`, of the output's shape.
# 4. The largest difference beside the largest entry. Below 1e-7: content. Above 1e-4: look for a
#    mistake. In between: try another $h$. (CS231n's notes give much the same thresholds.)
# 5. How large is the largest entry? Near zero, you have tested nothing.
#
# ## A bench for the written question
#
# `logistic` returns the intercept and the weights of the lowest loss; `sigmoid` and `slope` you
# know. Add cells as you like.

# %% kind="demo"
finer = few * np.array([1.0, 1.0, 1000.0])  # smoothness in a unit a thousand times smaller
for penalty in (0.0, 0.1):
    for label, X in (("as measured", few), ("smoothness × 1000", finer)):
        w = logistic(with_intercept(X), benign, np.r_[0, np.full(3, penalty)], rounds=200)
        told = 1 / (1 + np.exp(-with_intercept(X) @ w))
        print(f"penalty {penalty:3g}, {label:18s} weights {w[1:].round(4)}, ", end="")
        print(f"first cell benign: {told[0]:.3f}")
print("their standard deviations:", few_std.round(4))

unit_inputs = np.random.default_rng(21).normal(size=(20_000, 100))  # mean 0, variance 1
print("sigmoid, largest slope", slope(0.0), " tanh, largest slope", 1 - np.tanh(0.0) ** 2)

# %% [markdown]
# ## Written question: scaling and saturation
#
# *20 points, graded by hand.* Two statements of the notes, in our words.
#
# **A.** *For logistic regression standardizing is not necessary, unless you regularize; then it
# is.*
#
# 1. Let $w, b$ be the optimum for `X`, without a penalty. Which weights and which intercept give
#    the same predictions from $z_j=(x_j-\mu_j)/\sigma_j$? What follows for the optimum?
# 2. Now with the penalty $\frac{\lambda}{2}\lVert w\rVert^2$. A feature goes from grams to
#    milligrams. Is it punished more than before, or less? So what does a penalty do to features
#    *as measured*?
# 3. "Not necessary": for what is that true, and for what false? Give a number, from this lesson or
#    your own.
#
# **B.** *Inputs with mean 0 and variance 1 easily fall into the saturated ends of sigmoid and
# tanh.*
#
# 4. Right or wrong? Decide by numbers, for sigmoid and tanh. (Say what you count as saturated.)
# 5. The *inputs of a layer* are standardized, and all the same its sigmoids are saturated. How can
#    that be? Show it with `unit_inputs`, or by a formula.
# 6. The authors of BatchNorm did worry about normalized inputs of a sigmoid, for another reason.
#    What could it be? (Look at the curve where such inputs lie.)
#
# (Working alone? In a checkout, `autograder solution scaling_and_saturation` shows a model
# answer.)

# %% [markdown] kind="written" name="scaling_and_saturation" points=20
# ### BEGIN SOLUTION
# **Model answer.**
#
# *1.* $w\cdot x+b = \sum_j (w_j\sigma_j)\,z_j + (b+\sum_j w_j\mu_j)$. So $v_j=w_j\sigma_j$ and
# $c=b+\sum_j w_j\mu_j$ predict the same. Every pair $(w,b)$ has one such partner with the same
# loss, so the lowest loss is the same, and so are the predictions there: the optimum is only
# written in other units. (If the classes can be separated there is no optimum, the weights grow
# for ever, and the direction that gradient descent takes *does* depend on the units: Soudry and
# others, 2018.)
#
# *2.* From grams to milligrams the numbers grow a thousandfold. A weight a thousand times smaller
# does the same work, and its square costs a millionth: the feature is punished less. In general
# $w_j^2 = v_j^2/\sigma_j^2$. As measured, features with small numbers are suppressed and those
# with large numbers go free, for no reason but their unit. In the bench the first cell has the
# same probability in both units without a penalty, and 0.36 and 0.10 with $\lambda=0.1$. In the
# lesson the test loss is 0.096 standardized and 0.152 as measured. (Standardizing is a choice as
# well, though a sensible one.)
#
# *3.* True of the optimum, and of methods that do not depend on units, such as Newton's. False of
# gradient descent's speed: 47 steps standardized, and as measured 2,000 were not enough (κ is
# 6.5e6 against 14). Whoever stops early gets another *result* as well.
#
# *4.* Wrong. Let "saturated" be a slope below a tenth of the largest one. Of $N(0,1)$ that is 0.03
# % for the sigmoid (beyond 3.6) and 7 % for tanh (beyond 1.8). Mean slope: sigmoid 0.21 of 0.25,
# tanh 0.61 of 1. At $\sigma=10$ it is 72 % and 86 %. (Tanh is more sensitive: $\tanh a =
# 2\,\mathrm{sigmoid}(2a)-1$.) The statement also contradicts what the notes say elsewhere.
#
# *5.* The sigmoid does not see $x$ but $a=\sum_j w_jx_j$, and for independent inputs of variance 1
# $\mathrm{Var}[a]=\sum_j w_j^2$. With 100 inputs and weights of size 1, $\sigma_a=10$, and 84 %
# lie beyond 2. Weights of variance 1/100 bring $\sigma_a$ back to 1. So keep the weights small, or
# normalize *behind* them, where BatchNorm stands.
#
# *6.* Near 0 the sigmoid is almost a straight line: within $|a|<1$, two thirds of the inputs, it
# differs from its tangent by 0.019 at most. A network of straight lines is a straight line. The
# worry was too *little* curvature (Ioffe and Szegedy 2015, section 3); a learned scale and shift
# answer it.
#
# **Rubric:**
#
# - 3 points: $v_j=w_j\sigma_j$ (1), the intercept (1), hence the same lowest loss and predictions
#   (1).
# - 4 points: less punished (1), because a smaller weight does the same work (1); features with
#   small numbers are suppressed, the unit decides (1); a number that shows it (1).
# - 3 points: true of the optimum (1); false of gradient descent's speed, or of stopping early (1);
#   a number (1).
# - 5 points: wrong (1); what counts as saturated (1); a number for the sigmoid (1) and for tanh
#   (1); compared with a large σ, or with what the notes say elsewhere (1).
# - 3 points: the weights stand between (1); $\mathrm{Var}[a]=\sum w_j^2$, or an experiment (1); a
#   remedy (1).
# - 2 points: nearly linear there (1), so the network loses expressive power (1).
#
# Any sensible meaning of "saturated" will do, also $|a|>2$ (4.6 % for both).
# ### END SOLUTION

# %% [markdown]
# ## What to remember
#
# - Ask which index a statistic should keep, and average over all the others. Keep the dimensions,
#   and test with N ≠ D: a square table hides the mistake.
# - Standardizing takes the unit out. For distances, PCA and penalties that changes the answer, for
#   gradient descent the speed. Where features share a unit, their size may be worth keeping.
# - Fit on the training set, apply everywhere. Find a column that never moves by its values.
# - Gradient descent takes a multiple of κ steps. Standardizing mends units and means, not
#   correlations.
# - A sigmoid learns where it is steep, and inputs of variance 1 keep it there.
# - Trust a gradient after a check in float64, by central differences, with a random `dout`, and an
#   eye on its size.
#
# `progress()` shows what is left. Next: lesson 02, where standardizing moves inside the network.
#
# ## Sources
#
# - Data and guides: scikit-learn, [toy
#   datasets](https://scikit-learn.org/stable/datasets/toy_dataset.html), [importance of feature
#   scaling](https://scikit-learn.org/stable/auto_examples/preprocessing/plot_scaling_importance.html)
#   (neighbours, PCA, unpenalized logistic regression), [pitfalls with
#   coefficients](https://scikit-learn.org/stable/auto_examples/inspection/plot_linear_model_coefficient_interpretation.html),
#   [leaks](https://scikit-learn.org/stable/common_pitfalls.html). Constant columns: issue
#   [#17794](https://github.com/scikit-learn/scikit-learn/issues/17794).
# - Stanford CS231n, [gradient checks](https://cs231n.github.io/neural-networks-3/#gradcheck):
#   central differences, relative error, kinks, thresholds.
# - torch/nn, issue [#744](https://github.com/torch/nn/issues/744): a gradient check with the sum
#   as loss.
# - The statement on logistic regression, and the debate on it: [Cross Validated
#   48360](https://stats.stackexchange.com/questions/48360).
# - Y. LeCun, I. Kanter, S. Solla, [NIPS
#   1990](https://papers.neurips.cc/paper_files/paper/1990/hash/758874998f5bd0c393da094e1967a72b-Abstract.html):
#   learning time from the eigenvalues of the Hessian, centred variables. Read in abstract.
# - T. Hastie, R. Tibshirani, J. Friedman, *The Elements of Statistical Learning*, 2nd edition,
#   2009, section 7.10.2. Known to us from others' accounts of the experiment.
# - D. Soudry and others, *The Implicit Bias of Gradient Descent on Separable Data*, [arXiv
#   1710.10345](https://arxiv.org/abs/1710.10345). Read in abstract.
# - S. Ioffe, C. Szegedy, *Batch Normalization*, [arXiv
#   1502.03167](https://arxiv.org/abs/1502.03167), section 3.
