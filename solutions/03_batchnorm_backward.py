# %% [markdown]
# # 03 · BatchNorm, backward
#
# **Goal.** Walk the gradient back through BatchNorm, first along its graph, node by node, then in
# one line, and know what each term of that line is for.
#
# **Time** 150 minutes: 110 for the parts below, 40 for reading. **Difficulty** 4 of 5.
#
# **You need** lesson 02's `batchnorm_forward` and lesson 01's `numeric_grad` (both are given
# below), and the chain rule.
#
# | part | points | minutes |
# |---|---|---|
# | `batchnorm_backward` | 45 | 45 |
# | `batchnorm_backward_alt` | 30 | 25 |
# | `affine_bn_relu_forward` | 4 | 5 |
# | `affine_bn_relu_backward` | 6 | 10 |
# | written question | 15 | 25 |
#
# A `check` stands below each exercise and judges what you wrote; `hint("batchnorm_backward")` gives
# one more rung of help each time you call it, and `progress()` shows where you stand.
#
# **Convention.** As in lesson 02: the variance is the biased one, and $\epsilon$ stands inside the
# root. For any array `a` of the forward pass, `da` is the gradient of the loss with respect to it,
# and has the shape of `a`. `dout` is the one that arrives from above.

# %% kind="setup"
import matplotlib.pyplot as plt
import numpy as np

from autograder import check, hint, progress

BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#666666"  # told apart by colour-blind readers too
plt.rcParams.update({"figure.dpi": 100, "font.size": 9, "axes.spines.top": False})
plt.rcParams.update({"axes.spines.right": False, "legend.frameon": False})

# %% [markdown]
# ## Given: the forward pass, and a referee
#
# The forward pass of lesson 02. Its cache is `(x, x_hat, mean, var, gamma, eps)`. Run your own
# below it if you like; then unpack in this lesson what *yours* puts into the cache. And lesson 01's
# `numeric_grad(f, x, dout)`, which measures a gradient.

# %% kind="given" name="batchnorm_forward"

# %% kind="given" name="numeric_grad"


# %% [markdown]
# ## The question
#
# Back to the patients of lesson 02. A batch of them passes through BatchNorm, and you nudge *one*
# number just before the layer: one patient's blood pressure, up by a hair. **Whose outputs
# move?**
#
# In test mode: that patient's. In training the nudge also shifts the batch's mean and standard
# deviation, and *every* patient is measured against those.
#
# Now walk the other way. The loss sends a gradient to *each* output, `dout`. If the nudged number
# has moved N outputs, its own gradient must hear from all N of them. But the formula that first
# comes to mind,
#
# $$\mathrm{dx} = \frac{\mathrm{dout}\cdot\gamma}{\sqrt{\sigma^2+\epsilon}}$$
#
# hears from one. (The notes this course grew from differentiate like this: they treat the batch's
# mean and standard deviation as constants.) **How does the gradient learn about the others?**
#
# ### Picture: one nudge
#
# A batch of 6 samples with 3 features. We nudge feature 1 of sample 2 and measure how fast every
# output moves, by a central difference. Then the same for each sample in turn.
#
# Decide before you run: which of the 18 outputs move? Do the others move up or down?

# %% kind="demo"
BLUE_TO_ORANGE = plt.matplotlib.colors.LinearSegmentedColormap.from_list(
    "", [BLUE, "white", ORANGE]
)
nudge_table = np.random.default_rng(30).normal(size=(6, 3)).round(1)
calm = {"gamma": np.ones(3), "beta": np.zeros(3)}
diary = {"running_mean": nudge_table.mean(axis=0), "running_var": nudge_table.var(axis=0)}


def moves(sample, feature, mode):
    """How fast each output moves when one entry of the table does, (6, 3)."""
    nudge = np.zeros((6, 3))
    nudge[sample, feature] = 1e-5
    up, _ = batchnorm_forward(nudge_table + nudge, **calm, bn_param=diary | {"mode": mode})
    down, _ = batchnorm_forward(nudge_table - nudge, **calm, bn_param=diary | {"mode": mode})
    return (up - down) / 2e-5


panels = (
    ("training: nudge\nsample 2, feature 1", moves(2, 1, "train")),
    (
        "training, feature 1:\nnudge each sample in turn",
        np.array([moves(k, 1, "train")[:, 1] for k in range(6)]).T,
    ),
    (
        "test mode, feature 1:\nnudge each sample in turn",
        np.array([moves(k, 1, "test")[:, 1] for k in range(6)]).T,
    ),
)
fig, axes = plt.subplots(1, 3, figsize=(9, 3.1), width_ratios=(1, 1.7, 1.7))
for axis, (title, table) in zip(axes, panels, strict=True):
    axis.imshow(table, cmap=BLUE_TO_ORANGE, vmin=-1.2, vmax=1.2, aspect="auto")
    for (row, column), value in np.ndenumerate(table.round(2) + 0.0):
        axis.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=8)
    axis.set_title(title, fontsize=9)
    axis.set(ylabel="output of sample", xlabel="nudged sample", yticks=range(6))
    axis.set_xticks(range(table.shape[1]))
    axis.tick_params(length=0)
axes[0].set(xlabel="feature")
axes[0].add_patch(plt.Rectangle((0.5, 1.5), 1, 1, fill=False, linewidth=2))
fig.tight_layout()
plt.show()
sums = np.abs([panels[1][1].sum(axis=0), panels[1][1].sum(axis=1)]).max()
print("the rows and columns of the middle table sum to", sums.round(6))
x_hat_1 = batchnorm_forward(nudge_table, **calm, bn_param={"mode": "train"})[0][:, 1]
print("x_hat of feature 1:", x_hat_1.round(2))

# %% [markdown]
# ### See: everyone in the column moves
#
# **Left.** All six outputs of feature 1 move, none of features 0 and 2. Statistics run down a
# column, so the backward pass will never mix columns either.
#
# **Middle.** A column of this picture is one nudge. Most of the others go down, since the mean
# that they lose went up. But samples 1 and 2 lift *each other* (0.21). They lie far out on
# opposite sides (`x_hat` is −1.29 and 1.40): nudge 2 further out, and the standard deviation
# grows, which draws everyone to the middle; for sample 1 that is up. So there are two effects, one
# through the mean and one through the standard deviation.
#
# The gradient of sample $k$ is column $k$ times `dout`, added up. And see what the numbers under
# the figure say: each row adds up to zero (push all six inputs alike, and no output moves), and so
# does each column (no nudge ever moves the outputs' mean).
#
# **Right.** Test mode: one number, $\gamma/\sqrt{v^{\mathrm{run}}+\epsilon}$, down the diagonal.
# That is the formula of the first thought. In training it is wrong on the diagonal too.
#
# The middle table is the whole answer, but N × N numbers a feature is no way to compute it. We
# get it by walking back along the graph.
#
# ## Picture: the graph, and the ways back
#
# The forward pass, one small step an arrow. Count the ways from `x_hat` back to `x`. How many do
# you find?

# %% kind="demo"
from itertools import pairwise

spots = {
    "x": (0, 0),
    "centred": (3.6, 0),
    "x_hat": (8.2, 0),
    "out": (11, 0),
    "mean": (1.8, 1.5),
    "var": (4.9, -1.5),
    "std": (6.9, -1.5),
    "gamma": (10, 1.5),
    "beta": (12, 1.5),
}
edges = (
    "x centred,centred x_hat,x_hat out,x mean,mean centred,"
    "centred var,var std,std x_hat,gamma out,beta out"
)
paths = (  # the way back, its colour, its style, how far beside the forward arrow it is drawn
    ("direct", "x_hat centred x", BLUE, "-", 0.2),
    ("through the mean", "x_hat centred mean x", ORANGE, "--", 0.4),
    ("through the variance", "x_hat std var centred x", GREY, "-.", -0.2),
)


def draw_edge(axis, start, end, shift=0.0, **style):
    """An arrow from node to node, `shift` beside the straight line."""
    start, end = np.array(spots[start], float), np.array(spots[end], float)
    along = (end - start) / np.linalg.norm(end - start)
    beside = shift * np.array([along[1], -along[0]])
    gap = 0.55 * along
    axis.annotate("", end - gap + beside, start + gap + beside, arrowprops=style)


fig, axis = plt.subplots(figsize=(9, 3.6))
for edge in edges.split(","):
    draw_edge(axis, *edge.split(), arrowstyle="->", linewidth=0.8, color="black", shrinkA=0)
axis.plot([], [], color="black", linewidth=0.8, label="forward")
for label, way, colour, style, shift in paths:
    stops = way.split()
    look = {"arrowstyle": "-|>", "linewidth": 1.8, "color": colour, "linestyle": style}
    for start, end in pairwise(stops):
        draw_edge(axis, start, end, shift, **look)
    axis.plot([], [], color=colour, linestyle=style, linewidth=1.8, label=label)
for name, (right, up) in spots.items():
    shape = "(N, D)" if name in ("x", "centred", "x_hat", "out") else "(D,)"
    box = {"boxstyle": "round,pad=0.35", "facecolor": "white", "edgecolor": "black"}
    axis.text(right, up, f"{name}\n{shape}", ha="center", va="center", fontsize=8, bbox=box)
small = {"fontsize": 7, "ha": "center", "va": "center", "style": "italic"}
axis.text(-0.05, 1.3, "sum\n(N, D) → (D,)", **small)
axis.text(3.95, 1.3, "broadcast\n(D,) → (N, D)", **small)
axis.text(3.45, -1.05, "sum\n(N, D) → (D,)", **small)
axis.text(8.5, -0.95, "broadcast\n(D,) → (N, D)", **small)
axis.legend(loc="lower right", fontsize=8)
axis.set(xlim=(-0.7, 12.8), ylim=(-2.1, 2.0))
axis.set_axis_off()
fig.tight_layout()
plt.show()

# %% [markdown]
# ### See: three paths in colour, and a fourth
#
# - **Direct** (solid): through `centred`. This is the path of the first thought.
# - **Through the mean** (dashed): every sample was centred with it.
# - **Through the variance** (dash-dotted): every sample was divided by its root.
# - There is a fourth way, uncoloured. Find it now: the written question is about it.
#
# Look at the four places where the shape changes. Where many rows are summed into one number, or
# one number is handed to many rows, the backward pass must do something about the shape. What?
#
# ## The mathematics, with shapes
#
# Three rules carry you along any graph.
#
# 1. **Elementwise steps multiply.** If `b = f(a)` entry by entry, then `da = db * f'(a)`.
# 2. **Used twice, added twice.** If `a` goes into two places, `da` is the sum of what comes back
#    from both. (`centred` is used twice here, and so is `x`.)
# 3. **Broadcast and sum are each other's backward pass.** If one number `s` of shape (D,) went to
#    N rows, all N rows report back: `ds = db.sum(axis=0)`. If N rows were summed into `s`, each
#    gets the same `ds` back: the broadcast.
#
# Rule 3 is where most errors of shape come from, and it needs no memory: `ds` has the shape of
# `s`, so an axis that is too many has to be summed away.
#
# | step | shape | its local slopes |
# |---|---|---|
# | `mean = x.sum(axis=0) / N` | (D,) | by each `x`: `1 / N` |
# | `centred = x - mean` | (N, D) | by `x`: 1; by `mean`: −1 |
# | `var = (centred**2).sum(axis=0) / N` | (D,) | by each `centred`: `2 * centred / N` |
# | `std = np.sqrt(var + eps)` | (D,) | by `var`: `1 / (2 * std)` |
# | `x_hat = centred / std` | (N, D) | by `centred`: `1 / std`; by `std`: `-centred / std**2` |
# | `out = gamma * x_hat + beta` | (N, D) | by `x_hat`: `gamma`; by `gamma`: `x_hat`; by `beta`: 1 |
#
# One node in full, `std`. It is one number a feature and divides N rows, so by rules 1 and 3
#
# $$\mathrm{dstd}_j = \sum_{i=1}^{N} \mathrm{dx\_hat}_{ij}\cdot
# \Big(-\frac{\mathrm{centred}_{ij}}{\mathrm{std}_j^2}\Big), \qquad \text{shape } (D,)$$
#
# You do the others. (The paper gives them as six equations at the end of its section 3, "before
# simplification" as it says.)
#
# ## A ladder to hold on to
#
# Lesson 01's `numeric_grad` can measure `dx`. And not only `dx`! To measure `dstd`, start the
# forward pass at `std`: nudge it, and let only what comes after it follow. So every rung of your
# way back can be checked on its own. Here they are for a tiny batch with eps = 1, chosen so that
# you can follow with pencil and paper: `std` is 3 and 2.


# %% kind="demo"
tiny_x = np.array([[7.0, 0.0], [-1.0, 0.0], [3.0, 4.0], [3.0, 0.0]])
tiny_gamma, tiny_beta, tiny_eps = np.array([3.0, 2.0]), np.array([1.0, -1.0]), 1.0
tiny_dout = np.array([[1.0, 0.0], [0.0, 2.0], [2.0, 3.0], [-1.0, 1.0]])


# the forward pass, started at one node after the other: each line hands over to the one before
def from_x_hat(x_hat):
    return tiny_gamma * x_hat + tiny_beta


def from_std(std):
    return from_x_hat((tiny_x - tiny_x.mean(axis=0)) / std)


def from_var(var):
    return from_std(np.sqrt(var + tiny_eps))


def from_centred(centred):
    return from_x_hat(centred / np.sqrt((centred**2).mean(axis=0) + tiny_eps))


def from_mean(mean):
    return from_centred(tiny_x - mean)


tiny_mean, tiny_var = tiny_x.mean(axis=0), tiny_x.var(axis=0)
tiny_std = np.sqrt(tiny_var + tiny_eps)
tiny_hat = (tiny_x - tiny_mean) / tiny_std
ladder = {
    "dbeta": numeric_grad(lambda beta: tiny_gamma * tiny_hat + beta, tiny_beta, tiny_dout),
    "dgamma": numeric_grad(lambda gamma: gamma * tiny_hat + tiny_beta, tiny_gamma, tiny_dout),
    "dx_hat": numeric_grad(from_x_hat, tiny_hat, tiny_dout),
    "dstd": numeric_grad(from_std, tiny_std, tiny_dout),
    "dvar": numeric_grad(from_var, tiny_var, tiny_dout),
    "dcentred": numeric_grad(from_centred, tiny_x - tiny_mean, tiny_dout),
    "dmean": numeric_grad(from_mean, tiny_mean, tiny_dout),
    "dx": numeric_grad(lambda x: from_centred(x - x.mean(axis=0)), tiny_x, tiny_dout),
}
for name, measured in ladder.items():
    rows = str(measured.round(4) + 0.0).replace("\n", "\n" + " " * 18)
    print(f"{name:8s} {measured.shape!s:8s} {rows}")

# %% [markdown]
# ### See: eight rungs, no calculus
#
# Check one with a pencil. Feature 0 has `centred` = 4, −4, 0, 0 and `std` = 3; `dx_hat` is
# `dout * gamma` = 3, 0, 6, −3. So `dstd` = −(3·4)/9 = −1.3333.
#
# `dcentred` is all that arrives at `centred`, from both of its uses. If you go path by path
# and never compute it, skip that rung.
#
# Nothing here is graded. Use the ladder when your `dx` is wrong and you want to know where.
#
# ## Your turn: batchnorm_backward
#
# *45 points: dx 28, dgamma 10, dbeta 5, form 2.*
#
# Two ways to write it, both right: *node by node*, in the reverse order of the table above; or
# *path by path*, three terms added at the end. In either case go from easy to hard and run the
# check after each step.
#
# 1. `dbeta` and `dgamma`. Which shape does `gamma` have? Then that is the shape of `dgamma`.
# 2. `dx_hat`, then what hangs on `var`.
# 3. What hangs on `mean`.
# 4. `dx`, the sum of what comes back on every path.
#
# What to watch:
#
# - $\epsilon$ is part of `std` on the way back as well. It is in the cache for that.
# - Two steps of the graph divide by N, so N is needed on the way back, too.
# - Make new arrays. The caller still needs `dout`.
# - In numpy an array of shape (1, D) or (D,) broadcasts where you meant a sum, and says nothing.


# %% kind="exercise" name="batchnorm_backward"
def batchnorm_backward(dout, cache):
    """The gradients of BatchNorm in training mode, along the graph.

    dout: (N, D), the gradient that arrives at out. cache: what batchnorm_forward returned.
    Returns dx (N, D), dgamma (D,) and dbeta (D,).
    """
    x, x_hat, mean, var, gamma, eps = cache
    ### BEGIN SOLUTION
    N = dout.shape[0]
    std = np.sqrt(var + eps)
    dbeta = dout.sum(axis=0)
    dgamma = (dout * x_hat).sum(axis=0)
    dx_hat = dout * gamma
    dvar = (dx_hat * (x - mean)).sum(axis=0) * -0.5 / std**3
    dmean = -(dx_hat / std).sum(axis=0)
    dx = dx_hat / std + dvar * 2 * (x - mean) / N + dmean / N
    return dx, dgamma, dbeta
    ### END SOLUTION


# %% [markdown]
# ## Your dx, taken apart
#
# One feature, six samples. Each path can be measured alone: let the nudged `x` act through that
# path only, and hold the others still. How large is each contribution?
#
# Guess two things. Which path gives every sample the same? And sample 4 has `dout` = 0: is its
# `dx` zero?

# %% kind="demo"
part_x = np.array([[0.0], [1.0], [2.0], [3.0], [4.0], [8.0]])
part_dout = np.array([[1.0], [-1.0], [2.0], [0.5], [0.0], [1.5]])
part_gamma, part_beta, part_eps = np.array([2.0]), np.array([0.0]), 0.1
part_mean, part_var = part_x.mean(axis=0), part_x.var(axis=0)


def part_out(x, mean, var):
    return part_gamma * (x - mean) / np.sqrt(var + part_eps) + part_beta


parts = (
    numeric_grad(lambda x: part_out(x, part_mean, part_var), part_x, part_dout),
    numeric_grad(lambda x: part_out(part_x, x.mean(axis=0), part_var), part_x, part_dout),
    numeric_grad(lambda x: part_out(part_x, part_mean, x.var(axis=0)), part_x, part_dout),
)
part_setting = {"mode": "train", "eps": part_eps}
_, part_cache = batchnorm_forward(part_x, part_gamma, part_beta, part_setting)
part_dx, _, _ = batchnorm_backward(part_dout, part_cache)

fig, axis = plt.subplots(figsize=(7.5, 3.2))
names = ("direct", "through the mean", "through the variance")
looks = ((BLUE, ""), (ORANGE, "//"), (GREY, ".."))
for place, (part, name, (colour, hatch)) in enumerate(zip(parts, names, looks, strict=True)):
    spots_x = np.arange(6) + (place - 1) * 0.2
    axis.bar(spots_x, part[:, 0], 0.2, color=colour, hatch=hatch, edgecolor="white", label=name)
axis.plot(np.arange(6) + 0.38, part_dx[:, 0], "D", color="black", ms=5, label="your dx")
axis.axhline(0, color="black", linewidth=0.8)
labels = [f"{k}\nx = {part_x[k, 0]:g}\ndout = {part_dout[k, 0]:g}" for k in range(6)]
axis.set_xticks(range(6), labels)
axis.set(xlabel="sample", ylabel="contribution to dx")
axis.legend(fontsize=8, ncols=4, loc="upper center", columnspacing=1)
axis.set_ylim(-1.3, 2.1)
fig.tight_layout()
plt.show()

print("sample   direct     mean  variance      sum  your dx")
for k in range(6):
    numbers = [part[k, 0] for part in parts]
    print(f"{k:6d} " + " ".join(f"{n:8.4f}" for n in [*numbers, sum(numbers), part_dx[k, 0]]))
total = [part.sum() for part in (*parts, part_dx)]
print("   all " + " ".join(f"{n + 0:8.4f}" for n in total[:3]), " " * 8, f"{total[3] + 0:8.4f}")

# %% [markdown]
# ### See: three bars and a diamond
#
# - The bars of each sample add up to its diamond: the last two columns agree.
# - **Direct**: `dout * gamma / std`, whatever the others do.
# - **Through the mean**: the same for all six, and just so large that the column's total is zero
#   (last line).
# - **Through the variance**: proportional to `x_hat`. Sample 3 sits on the mean and gets nothing;
#   sample 5 is far out and is pulled most.
# - Sample 4: its own output does not matter to the loss, and its `dx` is −0.60 all the same. It
#   moves the others.
#
# So each path has a simple form. Hold on to that; it is the one-line formula.
#
# ## A test that cannot fail
#
# You want to be sure of your backward pass, so you compare it with `numeric_grad`. Lesson 01 warned
# you of a `dout` of ones, that is, of `out.sum()` as the loss. Would `(out**2).sum()` do, that is,
# `dout = 2 * out`?
#
# Four suspects stand beside yours: one returns zeros, one forgets gamma, one forgets the
# variance's path, one treats both statistics as constants. Which loss finds whom? Guess, then
# run. (The tolerance is 1e-3, eps the default.)

# %% kind="demo"
suspect_rng = np.random.default_rng(31)
suspect_x = 2 + 3 * suspect_rng.normal(size=(8, 3))
suspect_gamma, suspect_beta = np.array([0.5, 1.0, 2.0]), np.array([1.0, -1.0, 0.5])


def suspect_forward(x):
    return batchnorm_forward(x, suspect_gamma, suspect_beta, {"mode": "train"})[0]


def suspects(dout):
    """dx by your function, and by four wrong ones."""
    _, cache = batchnorm_forward(suspect_x, suspect_gamma, suspect_beta, {"mode": "train"})
    std, g = suspect_x.std(axis=0), dout * suspect_gamma
    dx = batchnorm_backward(dout, cache)[0]
    return {
        "yours": dx,
        "all zeros": np.zeros_like(dx),
        "forgets gamma": dx / suspect_gamma,
        "forgets the variance's path": (g - g.mean(axis=0)) / std,
        "treats both as constants": g / std,
    }


suspect_out = suspect_forward(suspect_x)
losses = {
    "ones": np.ones_like(suspect_out),
    "2 * out": 2 * suspect_out,
    "random": suspect_rng.normal(size=suspect_out.shape),
}
print(f"{'dout':30s}" + "  ".join(f"{name:>14s}" for name in losses))
errors = {}
for incoming in losses.values():
    truth = numeric_grad(suspect_forward, suspect_x, incoming)
    errors.setdefault("(the largest |dx|)", []).append(np.abs(truth).max())
    for who, claimed in suspects(incoming).items():
        errors.setdefault(who, []).append(np.abs(claimed - truth).max())
for who, row in errors.items():
    verdicts = ("passes" if error < 1e-3 else "caught" for error in row)
    told = [f"{verdict} ({error:.0e})" for verdict, error in zip(verdicts, row, strict=True)]
    if who == "(the largest |dx|)":
        told = [f"{size:.0e}" for size in row]
    print(f"{who:30s}" + "  ".join(f"{text:>14s}" for text in told))

# %% [markdown]
# ### See: a gradient that is zero proves nothing
#
# `out.sum()` is $N\beta_j$ in every column, whatever `x` is. A constant has the gradient zero, so
# zeros pass, and with them a formula that lacks a path and one that lacks gamma.
#
# `(out**2).sum()` looks better and is the same trap: a column's sum of squares is
# $N(\gamma^2\,\mathrm{Var}[\hat{x}]+\beta^2)$, and lesson 02 showed that
# $\mathrm{Var}[\hat{x}] = \sigma^2/(\sigma^2+\epsilon)$, all but constant. Zeros pass again.
#
# Both happen. One project met the zeros of a `dout` of ones, looked for a bug in a formula that
# was right, found the reason some months later and put a warning into its guide; one of its new
# tests then took the sum of squares (Odyssey, issue #3282 and pull request #3662).
#
# A random `dout` finds all four, as in lesson 01's recipe. **Never test a normalization layer with
# a constant `dout`**, nor with its own output; and look how large the gradient was.
#
# ## One line
#
# Write $g = \mathrm{dout}\cdot\gamma$, $s=\sqrt{\sigma^2+\epsilon}$, and a bar for the mean over
# the batch. The paths, for one column:
#
# | path | contribution to $\mathrm{dx}_i$ |
# |---|---|
# | direct | $g_i/s$ |
# | through the mean | $\frac{1}{N}\sum_k(-g_k/s) = -\bar{g}/s$ |
# | through the variance | $\frac{2(x_i-\mu)}{N}\cdot\frac{-1}{2s^3}\sum_k g_k\,(x_k-\mu)$ |
#
# The last one looks worse than it is. Put $x-\mu = s\,\hat{x}$ into it, twice: two of the three
# $s$ cancel, so do the 2 and the ½, and $-\hat{x}_i\,\overline{g\hat{x}}/s$ is left. Together
#
# $$\mathrm{dx} = \frac{1}{s}\Big(\underbrace{g}_{(N,D)} - \underbrace{\bar{g}}_{(D,)}
# - \underbrace{\hat{x}}_{(N,D)}\,\underbrace{\overline{g\,\hat{x}}}_{(D,)}\Big)$$
#
# Read it as geometry. A column of a batch is a vector with N entries. $\bar{g}$ is the part of $g$
# along the vector of ones, and $\hat{x}\,\overline{g\hat{x}}$ is the part along $\hat{x}$, because
# $\overline{\hat{x}^2}$ is (nearly) 1. The formula takes both parts out: **dx is $g$, projected,
# and divided by $s$**.
#
# It has to be so. Add a constant to a column, and BatchNorm takes it away again; stretch the
# column, and BatchNorm shrinks it back. Along these two directions the loss is flat, so the
# gradient has no part along them:
#
# $$\sum_i \mathrm{dx}_i = 0 \quad\text{exactly}, \qquad
# \sum_i \mathrm{dx}_i\,\hat{x}_i = \frac{\epsilon}{\sigma^2+\epsilon}\cdot
# \frac{1}{s}\sum_i g_i\,\hat{x}_i \quad\text{zero, up to } \epsilon$$
#
# With N = 3 one can draw it: after the mean is taken out, a plane is left, and BatchNorm puts
# every column on a circle in it.

# %% kind="demo"
plane = np.array([[1, -1, 0], [1, 1, -2]]) / np.sqrt([[2], [6]])  # two axes, both across (1, 1, 1)
trio_x = np.array([[5.0], [2.0], [3.0]])
trio_g = np.array([[2.5], [1.0], [0.0]])
trio_setting = {"mode": "train", "eps": 1e-12}
trio_hat, trio_cache = batchnorm_forward(trio_x, np.ones(1), np.zeros(1), trio_setting)
trio_step = batchnorm_backward(trio_g, trio_cache)[0] * trio_x.std()
hat, centred_g, kept = ((plane @ v)[:, 0] for v in (trio_hat, trio_g, trio_step))

fig, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.7))
turn = np.linspace(0, 2 * np.pi, 200)
left.plot(np.sqrt(3) * np.cos(turn), np.sqrt(3) * np.sin(turn), color=GREY, linewidth=0.8)
for start, way, colour in (((0, 0), hat, "black"), (hat, centred_g, BLUE), (hat, kept, ORANGE)):
    look = {"angles": "xy", "scale_units": "xy", "scale": 1, "width": 0.01}
    left.quiver(*start, *way, color=colour, **look)
left.plot(*np.transpose([hat + centred_g, hat + kept]), ":", color=GREY)
left.text(0.5, -0.3, "x_hat")
left.text(2.9, 1.2, "g minus\nits mean", color=BLUE)
left.text(0.65, 1.65, "s · dx", color=ORANGE)
left.text(1.3, 1.95, "what was taken out", color=GREY)
left.set(xlim=(-2.1, 4.2), ylim=(-2.1, 2.6), aspect="equal", title="N = 3, seen along (1, 1, 1)")

scale_rng = np.random.default_rng(32)
scale_x, scale_dout = scale_rng.normal(size=(64, 1)), scale_rng.normal(size=(64, 15))
spreads = np.logspace(-5, 2, 15)
wide_x = spreads * (scale_x - scale_x.mean()) / scale_x.std()
setting = {"mode": "train", "eps": 1e-5}
_, scale_cache = batchnorm_forward(wide_x, np.ones(15), np.zeros(15), setting)
scale_dx = batchnorm_backward(scale_dout, scale_cache)[0]
gains = np.sqrt((scale_dx**2).mean(axis=0) / (scale_dout**2).mean(axis=0))
right.loglog(spreads, 1 / spreads, "--", color=GREY, linewidth=1, label="1/σ")
right.loglog(spreads, gains, "o", color=BLUE, ms=4, label="your dx")
right.axhline(1e-5**-0.5, color=ORANGE, linestyle=":", label="$1/\\sqrt{\\epsilon}$ = 316")
right.set(xlabel="standard deviation σ of the feature", ylabel="size of dx / size of dout")
right.set(ylim=(3e-3, 3e3))
right.legend(fontsize=8)
fig.tight_layout()
plt.show()

print("    sigma    sum(dx)*s    sum(dx*x_hat)*s / sum(g*x_hat)    eps/(var+eps)")
for k in (0, 2, 5, 7, 9, 12):
    s = np.sqrt(spreads[k] ** 2 + 1e-5)
    hat_k = wide_x[:, k] / s
    share = (scale_dx[:, k] * hat_k).sum() * s / (scale_dout[:, k] * hat_k).sum()
    total = abs(scale_dx[:, k].sum() * s)
    total = "< 1e-12" if total < 1e-12 else f"{total:.1e}"
    print(f"{spreads[k]:9.1e} {total:>12s} {share:32.6f} {1e-5 / s**2:16.6f}")

# %% [markdown]
# ### See: along the circle, and no further than 316
#
# **Left.** `x_hat` ends on the circle of radius $\sqrt{3}$. What arrives, $g$ without its mean,
# points in any direction (blue). What leaves (orange, times $s$) is tangent to the circle: the
# dotted part, along `x_hat`, has been taken out. No step inside or outside the circle is asked
# for, since BatchNorm would bring it back.
#
# **Right.** The size of the gradient goes as $1/\sigma$: divide a feature by ten on its way in,
# and its gradient is ten times as large. A feature that hardly moves is where $\epsilon$ helps
# again: it stops at $1/\sqrt{\epsilon}$.
#
# **Numbers.** The column's sum is zero to rounding, at every $\sigma$. The part along `x_hat` is
# what the formula promises: one part in 10,000 at $\sigma=0.32$, half at
# $\sigma=\sqrt{\epsilon}$, and everything when $\epsilon$ rules and the feature is not normalized
# any more.
#
# (For LayerNorm the notes report that the gradients of mean and variance re-centre and re-scale
# the gradient. It is this projection, along a row. Lesson 06 measures it.)
#
# ## Your turn: batchnorm_backward_alt
#
# *30 points.* The same three gradients, `dx` in one expression: from the formula above. Then
# compare with your first one: they must agree to rounding. If they do not, take $\epsilon = 0.1$,
# where mistakes are loud.


# %% kind="exercise" name="batchnorm_backward_alt"
def batchnorm_backward_alt(dout, cache):
    """The same gradients, dx in one expression.

    dout: (N, D). cache: what batchnorm_forward returned. Returns dx (N, D), dgamma, dbeta (D,).
    """
    x, x_hat, mean, var, gamma, eps = cache
    ### BEGIN SOLUTION
    dbeta = dout.sum(axis=0)
    dgamma = (dout * x_hat).sum(axis=0)
    g = dout * gamma
    dx = (g - g.mean(axis=0) - x_hat * (g * x_hat).mean(axis=0)) / np.sqrt(var + eps)
    return dx, dgamma, dbeta
    ### END SOLUTION


# %% [markdown]
# ## How loud is a mistake?
#
# Four slips in the one line, in two settings: a comfortable one, 64 samples with $\sigma=3$ and
# the default $\epsilon$, and a harsh one, 4 samples with $\sigma=0.3$ and $\epsilon=0.1$. The
# table gives the error relative to the largest entry of the true `dx`. Which slip would you never
# notice in the first?
#
# (The second slip is no invention. In Karpathy's makemore lectures the forward pass divides the
# variance by N − 1, and there the factor N/(N − 1) is right. Carry the formula over to a forward
# pass that divides by N, and it is wrong.)


# %% kind="demo"
def slips(dout, cache):
    """dx with one slip each."""
    _, x_hat, _, var, gamma, eps = cache
    count, std, g = len(dout), np.sqrt(var + eps), dout * gamma
    rest, last = g - g.mean(axis=0), x_hat * (g * x_hat).mean(axis=0)
    sums = g.sum(axis=0) + x_hat * (g * x_hat).sum(axis=0)
    return {
        "sqrt(var) for sqrt(var + eps)": (rest - last) / np.sqrt(var),
        "N/(N-1) before the last term": (rest - last * count / (count - 1)) / std,
        "gamma missing in the last term": (rest - last / gamma) / std,
        "sums where means belong": (g - sums) / std,
    }


loud_rng = np.random.default_rng(33)
loud, agreement = {}, []
for count, spread, eps in ((64, 3.0, 1e-5), (4, 0.3, 0.1)):
    loud_x = 2 + spread * loud_rng.normal(size=(count, 5))
    loud_gamma = np.array([0.5, 0.8, 1.0, 1.5, 2.0])
    setting = {"mode": "train", "eps": eps}
    _, loud_cache = batchnorm_forward(loud_x, loud_gamma, np.zeros(5), setting)
    loud_dout = loud_rng.normal(size=(count, 5))
    truth = batchnorm_backward_alt(loud_dout, loud_cache)[0]
    agreement.append(np.abs(truth - batchnorm_backward(loud_dout, loud_cache)[0]).max())
    for who, claimed in slips(loud_dout, loud_cache).items():
        loud.setdefault(who, []).append(np.abs(claimed - truth).max() / np.abs(truth).max())
print("relative error of dx             64 samples, eps 1e-5    4 samples, eps 0.1")
for who, (mild, harsh) in loud.items():
    print(f"{who:32s} {mild:21.1e} {harsh:22.1e}")
agrees = "agree to rounding" if max(agreement) < 1e-12 else f"differ by {max(agreement):.0e}"
print("your two functions", agrees)

try:
    import torch
except ImportError:
    print("PyTorch is not installed: skip the comparison")
else:
    theirs = torch.nn.BatchNorm1d(5, eps=0.1, dtype=torch.float64)
    with torch.no_grad():
        theirs.weight.copy_(torch.from_numpy(loud_gamma))
    x_torch = torch.tensor(loud_x, requires_grad=True)
    theirs(x_torch).backward(torch.from_numpy(loud_dout))
    ours = batchnorm_backward_alt(loud_dout, loud_cache)
    pairs = zip(ours, (x_torch.grad, theirs.weight.grad, theirs.bias.grad), strict=True)
    gap = max(np.abs(our - their.numpy()).max() for our, their in pairs)
    print("PyTorch's autograd", "agrees" if gap < 1e-12 else f"differs by {gap:.0e}")

# %% [markdown]
# ### See: the default epsilon hides a lot
#
# In the comfortable setting the forgotten $\epsilon$ is off by less than one part in a million: no
# test with a sensible tolerance finds it. The N/(N − 1) costs half a percent there, easily taken
# for noise. In the harsh one $\epsilon$ alone makes an error larger than `dx` itself, and the
# other three are plain as well. `check` uses harsh settings. Do the same in tests of your own: few
# samples, $\epsilon$ as large as the variance, `gamma` different in each column.
#
# The last two lines: both of your functions agree, and PyTorch's automatic differentiation agrees
# with them.
#
# ## Three layers in a row
#
# BatchNorm rarely stands alone. The usual company is an affine layer before it and a ReLU behind:
#
# | step | shapes |
# |---|---|
# | `a = x @ w + b` | (N, D) @ (D, M) + (M,) → (N, M) |
# | `normalized = BatchNorm(a)` | (N, M) |
# | `out = max(normalized, 0)` | (N, M) |
#
# On the way back, in reverse order: ReLU lets through what went through (its slope is 1 where
# `out` is positive, else 0); BatchNorm you have; the affine layer by rules 1 to 3, in a shape that
# you can read off: `dw` must be (D, M), so it is `x.T @ da`.
#
# Before you write it, a guess: how large will `db` be?
#
# ## Your turn: affine_bn_relu_forward
#
# *4 points.* Use your `batchnorm_forward` (or the given one), and put into the cache what the way
# back will want.


# %% kind="exercise" name="affine_bn_relu_forward"
def affine_bn_relu_forward(x, w, b, gamma, beta, bn_param):
    """An affine layer, BatchNorm and ReLU in a row.

    x: (N, D). w: (D, M). b, gamma, beta: (M,). bn_param: as in batchnorm_forward.
    Returns out (N, M) and a cache for the backward pass.
    """
    ### BEGIN SOLUTION
    normalized, bn_cache = batchnorm_forward(x @ w + b, gamma, beta, bn_param)
    out = np.maximum(normalized, 0)
    return out, (x, w, bn_cache, out)
    ### END SOLUTION


# %% [markdown]
# ## Your turn: affine_bn_relu_backward
#
# *6 points.* Use one of your two backward passes.


# %% kind="exercise" name="affine_bn_relu_backward"
def affine_bn_relu_backward(dout, cache):
    """The gradients of affine_bn_relu_forward in training mode.

    dout: (N, M). Returns dx (N, D), dw (D, M), db, dgamma, dbeta (M,).
    """
    ### BEGIN SOLUTION
    x, w, bn_cache, out = cache
    da, dgamma, dbeta = batchnorm_backward(dout * (out > 0), bn_cache)
    return da @ w.T, x.T @ da, da.sum(axis=0), dgamma, dbeta
    ### END SOLUTION


# %% [markdown]
# ## The bias that BatchNorm eats
#
# The notes say: since normalization subtracts the mean, the bias may be left out,
# $\mathrm{BN}(Wx+b)=\mathrm{BN}(Wx)$. Try it, in both modes.

# %% kind="demo"
bias_rng = np.random.default_rng(34)
bias_x, bias_w = bias_rng.normal(size=(32, 6)), bias_rng.normal(size=(6, 4))
bias_dout, ones_4, zeros_4 = bias_rng.normal(size=(32, 4)), np.ones(4), np.zeros(4)
kept = {
    "running_mean": (bias_x @ bias_w).mean(axis=0),
    "running_var": (bias_x @ bias_w).var(axis=0),
}


def with_bias(b, mode):
    setting = kept | {"mode": mode}
    return affine_bn_relu_forward(bias_x, bias_w, np.full(4, b), ones_4, zeros_4, setting)


_, bias_cache = with_bias(0.0, "train")
bias_gradients = affine_bn_relu_backward(bias_dout, bias_cache)
for name, gradient in zip(("dw", "dgamma", "dbeta", "db"), (1, 3, 4, 2), strict=True):
    size = np.abs(bias_gradients[gradient]).max()
    print(f"largest |{name}|", "below 1e-13" if size < 1e-13 else f"{size:.2f}")
for mode in ("train", "test"):
    gap = np.abs(with_bias(100.0, mode)[0] - with_bias(0.0, mode)[0]).max()
    print(f"b = 100 in place of 0, {mode:5s} mode: outputs move by", end=" ")
    print("less than 1e-11" if gap < 1e-11 else f"{gap:.1f}")
kept["running_mean"] = kept["running_mean"] + 100  # as after training with this b
gap = np.abs(with_bias(100.0, "test")[0] - with_bias(100.0, "train")[0]).max()
text = "less than 1e-11" if gap < 1e-11 else f"{gap:.1e}"
print("the same once running_mean has seen b:  test and train differ by", text)

# %% [markdown]
# ### See: db is zero, and test mode needs a diary that knows
#
# `db` is the column sum of BatchNorm's `dx`, and that is zero: the projection again. All the other
# gradients are near 8. So a bias in front of BatchNorm is never trained. It costs memory and does
# nothing, which is why one writes `bias=False` there. `beta` does its work.
#
# The notes are right, for training. In test mode nothing subtracts the *batch's* mean; the stored
# one is subtracted. Change `b` afterwards, and the outputs run away (last line but one). The
# identity holds there if the running mean was collected with the same `b` (last line).
#
# ## What if the gradient did not know?
#
# Suppose you leave a path out. The code runs, the loss often goes down. What goes wrong?
#
# The paper that introduced BatchNorm has an answer (Ioffe and Szegedy 2015, section 2). A layer
# adds a learned bias, $x = u + b$, and subtracts the mean, $\hat{x} = x - \bar{x}$. A gradient
# that ignores how $\bar{x}$ depends on $b$ says: change $b$. So $b$ is changed; the mean changes
# with it; and the output is what it was. The next step says the same again. They expect $b$ to
# grow without end while the loss stays put, and report that in first experiments a model whose
# statistics were computed outside the gradient step blew up.
#
# Here is that layer, with eight inputs $u$, the loss $\frac{1}{2}$ mean$((\hat{x} - t)^2)$, and
# targets $t$ whose mean is 1. Then the whole of BatchNorm with a learned weight, $x = wu + b$, and
# targets that would like outputs twice as wide. What will the true gradient do to $b$ and $w$?

# %% kind="demo"
u = np.array([[-1.5], [-1.0], [-0.5], [0.0], [0.0], [0.5], [1.0], [1.5]])  # its mean is 0
target = 2 * u / u.std() + 1


def descend(norm, cut, learn_affine=False, steps=1000, rate=0.1):
    """Gradient descent on w and b; returns w, b and the loss at every step, (steps, 3)."""
    w, b, gamma, beta, log = 1.0, 0.0, np.ones(1), np.zeros(1), []
    setting = {"mode": "train", "eps": 1e-12}
    for _ in range(steps):
        x = w * u + b
        out, cache = batchnorm_forward(x, gamma, beta, setting)
        dx_hat_to_dx = 1 / x.std()
        if norm == "mean only":
            out, dx_hat_to_dx = gamma * (x - x.mean()) + beta, 1.0
        log.append((w, b, ((out - target) ** 2).mean() / 2))
        dout = (out - target) / len(u)
        if cut:
            dx = dout * gamma * dx_hat_to_dx
        elif norm == "mean only":
            dx = (dout - dout.mean()) * gamma
        else:
            dx = batchnorm_backward_alt(dout, cache)[0]
        if norm == "BatchNorm":
            w = w - rate * (dx * u).sum()
        b = b - rate * dx.sum()
        if learn_affine:
            gamma = gamma - rate * (dout * (out - beta) / gamma).sum(axis=0)
            beta = beta - rate * dout.sum(axis=0)
    return np.array(log)


runs = {
    name: (descend("mean only", *arm), descend("BatchNorm", *arm))
    for name, arm in (
        ("true gradient", (False,)),
        ("statistics held constant", (True,)),
        ("held constant, learned gamma and beta", (True, True)),
    )
}
fig, (left, middle, right) = plt.subplots(1, 3, figsize=(9, 2.9))
looks = ((BLUE, "-"), (ORANGE, "--"), (GREY, ":"))
for (name, (centring, full)), (colour, style) in zip(runs.items(), looks, strict=True):
    left.plot(centring[:, 1], style, color=colour, label=name)
    middle.plot(full[:, 1], style, color=colour)
    right.plot(full[:, 0], style, color=colour)
left.set(xlabel="step", ylabel="b", title="x = u + b, mean only")
middle.set(xlabel="step", ylabel="b", title="x = wu + b, BatchNorm")
right.set(xlabel="step", ylabel="w", title="x = wu + b, BatchNorm")
fig.legend(*left.get_legend_handles_labels(), loc="lower center", ncols=3)
fig.tight_layout(rect=(0, 0.08, 1, 1))
plt.show()

print(
    "                                          mean only: b     loss  BatchNorm: w      b     loss"
)
for name, logs in runs.items():
    for when, k in (("first", 0), ("last", -1)):
        (_, b_1, loss_1), (w_2, b_2, loss_2) = logs[0][k], logs[1][k]
        line = f"{name:38s}{when:>6s} {b_1 + 0:9.2f} {loss_1:8.4f} {w_2:13.2f} {b_2 + 0:6.2f}"
        print(f"{line} {loss_2:8.4f}")

# %% [markdown]
# ### See: as predicted, b grows and the loss stays
#
# **Left.** With the mean held constant `b` grows by 0.1 at every step, the learning rate, and the
# loss does not move in its fourth digit. The true gradient of `b` is zero: it has nothing to gain
# and stays.
#
# **Middle and right.** With the whole of BatchNorm held constant, `w` grows too. It wants a wider
# output, which no `w` can buy. Each step is proportional to $1/s$, and $s$ grows with `w`, so the
# growth slows down like a root: $w^2 = 1 + 0.2\,t$, hence 14.2 after 1,000 steps. Slower, and
# still without end. So here it is not "worse" with the scale, as the paper found for its model; it
# is milder, in this one small layer.
#
# **The dotted line** is why this bug can live long in real networks. A learned `gamma` and
# `beta` give the loss what it wants; then `dout` goes to zero, and the growth stops. Wrong
# gradient, perfect loss (0.0000). You will not see it by looking at the loss.
#
# ## What cutting a path does to the weights
#
# One more line of algebra, before a network. Let an affine layer stand in front, $a = Xw + b$, so
# that $\mathrm{dw} = X^{\top}\mathrm{da}$. What does the mean's path contribute to `dw`?
#
# $$X^{\top}(g-\bar{g}) = (X-\bar{X})^{\top} g$$
#
# It centres the inputs! ($\bar{X}$ is their mean, repeated in every row.) Without it the weights
# get an extra $\bar{X}^{\top}g$, a push along the inputs' mean. For the most part that shifts $a$,
# and BatchNorm takes the shift away again; the rest, since no two inputs are equally bright, is a
# change that the loss did not ask for. This predicts something you can test: **cutting the mean's
# path should hurt when the inputs have a mean far from zero, and hurt little when they are
# centred.** Digits are a fair test: pixels from 0 to 1. (Behind a ReLU the inputs of the next
# layer have a positive mean again. So the cure can be partial only.)
#
# The variance's path removes the part along `x_hat`, that is, the push on the *size* of `w`.
# Without it the prediction is growth, as above.
#
# ## Training with paths cut
#
# A network of three affine-BatchNorm-ReLU layers of 24 units and an affine layer, on 8 × 8 digits:
# 1,000 images to train on, 400 to choose the learning rate, 397 for the last word. Four arms: no
# path cut, the mean's, the variance's, both. Each arm gets the same five learning rates and the
# same five seeds (a seed sets the split, the batches and the first weights), 200 steps of plain
# gradient descent, batches of 32. The reported test accuracy is at the arm's own best rate.
#
# In the figure a point is the mean of the seeds, and its bar reaches from the best to the worst.
#
# Then everything once more with centred pixels. All the networks train side by side in one array,
# so the cell has its own BatchNorm with a switch for each path.

# %% kind="demo"
from itertools import pairwise

from sklearn.datasets import load_digits
from threadpoolctl import threadpool_limits  # comes with scikit-learn

pixels, digits = load_digits(return_X_y=True)
pixels = (pixels / 16).astype(np.float32)
ARMS = ("none cut", "mean cut", "variance cut", "both cut")
RATES = np.array([0.03, 0.1, 0.3, 1, 3], np.float32)
SEEDS, DEPTH, WIDTH, STEPS = 5, 3, 24, 200
# all 4 x 5 x 5 networks train side by side: the axes are (arm, rate, seed, row, column)
rate = RATES.reshape(1, 5, 1, 1, 1)
keep_mean = np.array([1, 0, 1, 0], np.float32).reshape(4, 1, 1, 1, 1)
keep_var = np.array([1, 1, 0, 0], np.float32).reshape(4, 1, 1, 1, 1)


def normalize(a):
    mean, var = a.mean(axis=-2, keepdims=True), a.var(axis=-2, keepdims=True)
    std = np.sqrt(var + np.float32(1e-5))
    return (a - mean) / std, std


def back_by_routes(g, x_hat, std):
    """The one-line formula, with a switch at each of its last two terms."""
    by_mean = g.mean(axis=-2, keepdims=True)
    by_var = x_hat * (g * x_hat).mean(axis=-2, keepdims=True)
    return (g - keep_mean * by_mean - keep_var * by_var) / std


def start(seed):
    """What belongs to a seed: the order of the images, the batches, the first weights."""
    rng = np.random.default_rng((35, seed))
    sizes = [64] + [WIDTH] * DEPTH + [10]
    weights = [
        rng.normal(size=(rows, columns)) * np.sqrt(2 / rows) for rows, columns in pairwise(sizes)
    ]
    return rng.permutation(len(digits)), rng.integers(0, 1000, size=(STEPS, 32)), weights


def turned(matrix):
    return np.swapaxes(matrix, -1, -2)


def train(centre=False):
    """Accuracies, growth of the hidden weights and size of the hidden biases, (4, 5, 5) each."""
    orders, batches, weights = zip(*(start(seed) for seed in range(SEEDS)), strict=True)
    x_all, y_all = pixels[np.array(orders)], digits[np.array(orders)]
    if centre:  # each pixel minus its mean over the seed's 1,000 training images
        x_all = x_all - x_all[:, :1000].mean(axis=1, keepdims=True)
    w = [np.tile(np.float32(layer), (4, 5, 1, 1, 1)) for layer in zip(*weights, strict=True)]
    b = [np.zeros((4, 5, SEEDS, 1, layer.shape[-1]), np.float32) for layer in w]
    gamma, beta = [np.ones_like(layer) for layer in b[:-1]], [layer.copy() for layer in b[:-1]]
    size_at_start = sum((layer**2).sum(axis=(-1, -2)) for layer in w[:-1])
    for step in range(STEPS):
        rows = np.arange(SEEDS)[:, None], np.array([chosen[step] for chosen in batches])
        h, caches = x_all[rows], []
        for k in range(DEPTH):
            x_hat, std = normalize(h @ w[k] + b[k])
            out = np.maximum(gamma[k] * x_hat + beta[k], 0)
            caches.append((h, x_hat, std, out))
            h = out
        logits = h @ w[-1] + b[-1]
        odds = np.exp(logits - logits.max(axis=-1, keepdims=True))
        da = odds / odds.sum(axis=-1, keepdims=True) - np.eye(10, dtype=np.float32)[y_all[rows]]
        da /= 32
        for k in reversed(range(DEPTH + 1)):
            dh = da @ turned(w[k])
            w[k] -= rate * (turned(h) @ da)
            b[k] -= rate * da.sum(axis=-2, keepdims=True)
            if k > 0:
                h, x_hat, std, out = caches[k - 1]
                dout = dh * (out > 0)
                da = back_by_routes(dout * gamma[k - 1], x_hat, std)
                gamma[k - 1] -= rate * (dout * x_hat).sum(axis=-2, keepdims=True)
                beta[k - 1] -= rate * dout.sum(axis=-2, keepdims=True)

    h = x_all  # test mode: the statistics are those of the 1,000 training images
    for k in range(DEPTH):
        a = h @ w[k] + b[k]
        mean, var = (f(a[..., :1000, :], axis=-2, keepdims=True) for f in (np.mean, np.var))
        h = np.maximum(gamma[k] * (a - mean) / np.sqrt(var + 1e-5) + beta[k], 0)
    right = (h @ w[-1] + b[-1]).argmax(axis=-1) == y_all
    size = sum((layer**2).sum(axis=(-1, -2)) for layer in w[:-1])
    return {
        "error": 1 - right[..., 1000:1400].mean(axis=-1),  # on the validation images
        "test": right[..., 1400:].mean(axis=-1),
        "growth": np.sqrt(size / size_at_start),
        "bias": np.mean([np.abs(layer).mean(axis=(-1, -2)) for layer in b[:-1]], axis=0),
    }


trial_x, trial_dout = np.random.default_rng(37).normal(size=(2, 32, 6))
_, trial_cache = batchnorm_forward(trial_x, np.ones(6), np.zeros(6), {"mode": "train"})
none_cut = back_by_routes(trial_dout, *normalize(trial_x))[0]
gap = np.abs(none_cut - batchnorm_backward_alt(trial_dout, trial_cache)[0]).max()
print("none cut", "is your one line" if gap < 1e-8 else f"differs from your one line by {gap:.0e}")

# small matrices are multiplied faster by one thread; the largest rate may diverge
with threadpool_limits(1), np.errstate(over="ignore", invalid="ignore"):
    trained = {"pixels": train(), "centred": train(centre=True)}

fig, axes = plt.subplots(1, 3, figsize=(9, 3.1))
panels = (
    ("pixels", "error", "pixels from 0 to 1", "validation error", (0.03, 0.1, 0.3, 0.9)),
    ("centred", "error", "pixels minus their mean", "validation error", (0.03, 0.1, 0.3, 0.9)),
    ("pixels", "growth", "pixels from 0 to 1", "weights, end / start", (1, 2, 4)),
)
looks = ((BLUE, "-", "o"), (ORANGE, "--", "^"), (GREY, "-.", "s"), ("black", ":", "D"))
for axis, (which, what, title, label, ticks) in zip(axes, panels, strict=True):
    for arm, (name, (colour, style, mark)) in enumerate(zip(ARMS, looks, strict=True)):
        values = trained[which][what][arm]  # (rate, seed)
        middle = values.mean(axis=-1)
        spread = np.abs([values.min(axis=-1) - middle, values.max(axis=-1) - middle])
        look = {"color": colour, "linestyle": style, "marker": mark, "ms": 4, "capsize": 2}
        axis.errorbar(RATES * 1.05 ** (arm - 1.5), middle, spread, label=name, **look)
    axis.set(xscale="log", yscale="log", xlabel="learning rate", ylabel=label, title=title)
    axis.set_xticks(RATES, [f"{r:g}" for r in RATES])
    axis.set_yticks(ticks, ticks)
    axis.minorticks_off()
fig.legend(*axes[0].get_legend_handles_labels(), loc="lower center", ncols=4)
fig.tight_layout(rect=(0, 0.08, 1, 1))
plt.show()

for which, results in trained.items():
    print(
        f"{which:8s}      best rate    test accuracy   seeds below |   rate 0.1: test  growth  |b|"
    )
    tops = results["error"].mean(axis=-1).argmin(axis=-1)  # each arm's best rate
    whole = results["test"][0, tops[0]]
    for arm, name in enumerate(ARMS):
        final, tenth = results["test"][arm, tops[arm]], results["test"][arm, 1]
        print(
            f"{name:13s} {RATES[tops[arm]]:9g}   {final.mean():.3f} +- {final.std():.3f}"
            f"    {(final < whole).sum():10d} |     {tenth.mean():.3f} +- {tenth.std():.3f}"
            f"  {results['growth'][arm, 1].mean():6.2f} {results['bias'][arm, 1].mean():5.2f}"
        )

# %% [markdown]
# ### See: trained all the same, only worse
#
# Your numbers may differ a little from ours: in single precision, different processors round
# differently.
#
# - **Nothing blows up** at ordinary rates. The forward pass still normalizes, `gamma` and `beta`
#   learn, and each arm has a rate at which it gets above 90 %. A missing path is a quiet bug.
# - **Mean cut** (left, dashed): at rate 0.1 about 86 % in place of 95 %. Tuned, two points are
#   missing, and all five seeds lie below those of the whole gradient. The hidden biases, which
#   should stay at zero, have moved by 0.35 on average.
# - **The prediction** (middle): with centred pixels most of that handicap is gone. At rate 0.1 one
#   point is left; tuned, half a point, less than the seeds spread (4 of 5 seeds are below, so a
#   rest may be real). The arms that keep the mean's path do not care about centring at all: their
#   rows are the same in both tables but for rounding, as $(X-\bar{X})^{\top} g$ says they must be.
# - **Variance cut** (dash-dotted): at the best rate we see **no difference** in accuracy, neither
#   here nor with five other seeds. What we do see is the growth (right): at rate 0.1 the weights
#   have grown by 13 %, with the whole gradient by 1 %. And at rate 3 it often fails (left), where
#   the whole gradient still works.
# - **Both cut**: the largest growth, 47 % at rate 0.1, and about the accuracy of the mean's cut.
#
# The handicap is one of speed. Set `STEPS` to 1,000, and in our run the gaps at the best rates are
# within the spread of the seeds (96.4 to 97.2 %), while at rate 0.1 the mean's cut is still
# behind, with 91 against 97 %. So this small network shows no catastrophe. It shows slower
# learning, weights that drift, and fewer learning rates that work; on a larger one we have no
# experiment.
#
# It is a real bug, too: a pull request of November 2019 adds what comes through mean and variance
# to the backward pass of deeplearning4j (#8379).
#
# ## A bench for the written question
#
# Two ways to write a variance as a function of `x` *and* of `mean`, as if the two could be moved
# one at a time. `numeric_grad` measures what each does when you do. Add cells as you like.

# %% kind="demo"
bench_rng = np.random.default_rng(36)
bench_x, bench_dout = 5 + bench_rng.normal(size=(64, 1)), bench_rng.normal(size=(64, 1))
bench_mean = bench_x.mean(axis=0)


def by_deviations(x, mean):
    return ((x - mean) ** 2).mean(axis=0)


def by_squares(x, mean):
    return (x**2).mean(axis=0) - mean**2


print("by deviations", by_deviations(bench_x, bench_mean))
print("by squares   ", by_squares(bench_x, bench_mean))

# %% [markdown]
# ## Written question: the silent path
#
# *15 points, graded by hand.* (Working alone? In a checkout, `autograder solution silent_path`
# shows a model answer.)
#
# Four paths lead back from `x_hat` to `x` in the graph. One of them contributes nothing, whatever
# `x` and `dout` are.
#
# 1. Which one? Prove it, and give the shapes on the way.
# 2. Somebody computes `var = (x**2).mean(axis=0) - mean**2`, the same number on paper. Which
#    paths are there now, and is the one from `var` to `mean` still silent? What becomes of `dx`
#    if it is left out, and when would that do no harm?
# 3. In floating point, what does the silent path add in the first way? And what happens in the
#    second way when the mean is far larger than the standard deviation?
# 4. Three colleagues each leave one path out of a backward pass that is otherwise right: the
#    silent one, the mean's (dashed in the graph), the variance's (dash-dotted). What will each see
#    in training? Support it with an experiment, of this lesson or your own.

# %% [markdown] kind="written" name="silent_path" points=15
# ### BEGIN SOLUTION
# **Model answer.**
#
# *1.* The path `x_hat` → `std` → `var` → `centred` → `mean` → `x`: the variance's own use of the
# mean. With $\mathrm{var}_j = \frac{1}{N}\sum_i (x_{ij}-\mu_j)^2$, and $\mu_j$ moved alone,
#
# $$\frac{\partial\,\mathrm{var}_j}{\partial \mu_j} = -\frac{2}{N}\sum_{i=1}^{N} (x_{ij}-\mu_j) = 0,
# \qquad \text{shape } (D,)$$
#
# because $\mu_j$ *is* the mean: deviations from it add up to zero. On the way `dvar` is (D,), goes
# to all rows of `centred` as `dvar * 2 * centred / N` (N, D), and is summed over the rows at
# `mean`, (D,): there it vanishes, whatever `dvar` is. (Put differently: the mean is the point from
# which the squared deviations are smallest, and at a minimum the slope is zero.)
#
# *2.* Now `x` reaches `var` by its squares, with slope $2x_{ij}/N$, and by the mean, with slope
# $-2\mu_j$. That path is not silent, unless $\mu_j = 0$. With both,
#
# $$\mathrm{dvar}_j\,\Big(\frac{2x_{ij}}{N} - \frac{2\mu_j}{N}\Big)
# = \mathrm{dvar}_j\,\frac{2(x_{ij}-\mu_j)}{N},$$
#
# the same `dx` as before, as it must be. Leave it out, and every sample of the column gets
# $2\mu_j\,\mathrm{dvar}_j/N$ too much: the column of `dx` no longer adds up to zero. On the bench
# (mean near 5, standard deviation near 1) `dx` is wrong by more than half of its largest entry. It
# does no harm where the column's mean is near zero.
#
# *3.* First way: rounding. The deviations add up to some 1e-14 in place of 0, so it adds noise of
# the size of rounding to `dmean`; leaving it out is, if anything, more exact, and cheaper. Second
# way: two large terms, each proportional to $\mu/s$, are subtracted and nearly cancel. In float64
# with $\mu/s = 10^4$ the error of `dx` is about 1e-13, by deviations 1e-16; in float32 it is
# about 1e-4 of `dx`, on top of what the variance itself has lost (lesson 02: there is
# nothing left of it when $\mu^2$ drowns it).
#
# *4.* *Silent path out:* nothing. The same `dx` to rounding, so the same training; it is right to
# leave it out. *Mean's path out:* `dx` no longer adds up to zero, so `db` is not zero, and biases
# and weights are pushed where BatchNorm takes the push away: in the paper's layer `b` grew by 0.1
# a step and the loss stayed; on digits at rate 0.1, 86 % in place of 95 %, mean |b| 0.35 in place
# of 0, cured in part by centred pixels. *Variance's path out:* `dx` has a part along `x_hat`, the
# weights are pushed to another size although their size has no effect: 13 % growth in place of 1 %
# at rate 0.1, no visible loss of accuracy at the best rate, trouble at the largest. In none of the
# cases does the loss alone give it away.
#
# **Rubric:**
#
# - 2 points: names the path from the variance to the mean (`var` → `centred` → `mean`).
# - 3 points: the proof: slope $-\frac{2}{N}\sum(x-\mu)$ (1), zero by the definition of the mean
#   (1), for any `dout`, with the shapes (1).
# - 2 points: by squares, slope $-2\mu$, not silent unless the mean is zero.
# - 2 points: with it `dx` is unchanged (1); without it `dx` is off by a constant per column, in
#   proportion to the mean (1).
# - 2 points: rounding noise in the first way (1), cancellation of large terms in the second (1).
# - 3 points: the three trainings: unchanged (1), push along the constant direction, `b` drifts,
#   slower (1), push along `x_hat`, weights grow (1).
# - 1 point: an experiment with its outcome.
#
# "The mean's path, because the column of `dx` adds up to zero" confuses the two: no points for
# naming, the rest as it stands.
# ### END SOLUTION

# %% [markdown]
# ## What to remember
#
# - In training every output of a column depends on every input of it, so `dx` of one sample hears
#   from all.
# - Forward broadcast, backward sum; forward sum, backward broadcast; used twice, added twice.
# - $\mathrm{dx} = (g - \bar{g} - \hat{x}\,\overline{g\hat{x}})/s$ with
#   $g=\mathrm{dout}\cdot\gamma$: take out the parts along ones and along `x_hat`, divide by $s$.
# - Columns of `dx` add up to zero, so a bias in front of BatchNorm gets no gradient.
# - Test with a random `dout`, few samples and a large $\epsilon$. With a `dout` of ones, or twice
#   `out`, the true gradient is next to nothing, and zeros pass.
# - A lost path does not raise an error and need not stop the loss. It pushes weights and biases
#   where the output cannot follow.
#
# `progress()` shows what is left. Next: lesson 04, images, and a layer with a state.
#
# ## Sources
#
# - S. Ioffe, C. Szegedy, *Batch Normalization: Accelerating Deep Network Training by Reducing
#   Internal Covariate Shift*, 2015, [arXiv 1502.03167](https://arxiv.org/abs/1502.03167): section
#   2 (the growing bias), section 3 (the six gradients).
# - Stanford CS231n, assignment 2: the names and the exercise of two backward passes.
# - J. Xu et al., *Understanding and Improving Layer Normalization*, 2019, [arXiv
#   1911.07013](https://arxiv.org/abs/1911.07013): cited by way of the notes.
# - A. Karpathy, *Neural Networks: Zero to Hero*, notebook
#   [makemore part 4](https://github.com/karpathy/nn-zero-to-hero/tree/master/lectures/makemore):
#   the backward pass of a BatchNorm that divides by N − 1.
# - E. Alpaydin, C. Kaynak, *Optical Recognition of Handwritten Digits*, UCI: the digits, as
#   scikit-learn's `load_digits` ships them.
# - deeplearning4j, pull request
#   [#8379](https://github.com/deeplearning4j/deeplearning4j/pull/8379): the gradient gets what
#   comes through mean and variance.
# - Odyssey, issue [#3282](https://github.com/HomericIntelligence/Odyssey/issues/3282) and pull
#   request [#3662](https://github.com/HomericIntelligence/Odyssey/pull/3662): a `dout` of ones,
#   and the sum of squares.
# - People ask about the fourth path again and again. Answer the written question first, then read
#   Caffe [#3878](https://github.com/BVLC/caffe/issues/3878), Darknet
#   [#29](https://github.com/pjreddie/darknet/pull/29) and TensorFlow
#   [#19609](https://github.com/tensorflow/tensorflow/pull/19609).
