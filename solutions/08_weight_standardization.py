# %% [markdown]
# # 08 · Weight Standardization and scale
#
# **Goal.** Normalize weights instead of activations, and know what happens to the gradient of
# weights whose length does not matter.
#
# **Time** 120 minutes: 80 for the parts below, 40 for reading. **Difficulty** 3 of 5.
#
# **You need** lesson 03 (the backward pass in one line, and its geometry) and a little PyTorch.
# Lessons 04 and 07 help: kernels and channels, GroupNorm.
#
# | part | points | minutes |
# |---|---|---|
# | `weight_standardize` | 20 | 15 |
# | `weight_standardize_backward` | 20 | 15 |
# | `StdConv2d` | 25 | 15 |
# | `effective_lr` | 15 | 10 |
# | written question | 20 | 25 |
#
# A `check` stands below each exercise and judges what you wrote; `hint("weight_standardize")`
# gives one more rung of help each time you call it, and `progress()` shows where you stand.
#
# **Convention.** Weights lie as in PyTorch: (O, I) or (O, I, kH, kW), and the first axis counts the
# outputs. (The affine layers of lessons 03 and 06 were (I, O); lesson 05 wrote C for O and C_in for
# I.) The variance is the biased one and
# $\epsilon$ stands inside the root.

# %% kind="setup"
import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from autograder import check, hint, progress

BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#666666"  # told apart by colour-blind readers too
plt.rcParams.update({"figure.dpi": 100, "font.size": 9, "axes.spines.top": False})
plt.rcParams.update({"axes.spines.right": False, "legend.frameon": False})

# %% [markdown]
# ## The question
#
# All norms up to here measure *data*. BatchNorm asks the batch, LayerNorm the token, GroupNorm the
# image. The weights make those numbers, and nobody has asked the weights.
#
# So: **what if we normalize the weights rather than the activations?** There is no batch in them,
# so none can be too small. No padding, no diary, no test mode.
#
# Qiao and others at Johns Hopkins did it in 2019 and called it *Weight Standardization*. The notes
# this course grew from list it among the normalization methods, in one line: the name, the year,
# the university. Right; it only does not say that this one leaves the activations alone. You will
# build it, and see what it can do and what it cannot.
#
# A second question will come out of the first. Divide the weights by their own size, and their
# size no longer matters. **What does the gradient do, when nothing depends on how long the weights
# are?** A BatchNorm has put every convolution in front of it into this position all along, and the
# answer decides how fast your network learns.
#
# ### Picture: which entries share a mean
#
# A layer has three outputs. On the left it is linear, with four inputs; on the right a convolution
# over two input channels with kernels of 2 × 2. How many means?

# %% kind="demo"
TINTS = [(0.75, 0.87, 0.95), (0.98, 0.85, 0.75), (0.88, 0.88, 0.88)]


def draw_filters(axis, inputs, height, width, title):
    """Draw three filters, a row each: equal numbers share one mean."""
    canvas = np.ones((3 * (height + 1) - 1, inputs * (width + 1) - 1, 3))
    for o, i, h, w in np.ndindex(3, inputs, height, width):
        row, column = o * (height + 1) + h, i * (width + 1) + w
        canvas[row, column] = TINTS[o]
        axis.text(column, row, o, ha="center", va="center", fontsize=8)
    axis.imshow(canvas, aspect="equal")
    middles = [i * (width + 1) + (width - 1) / 2 for i in range(inputs)]
    axis.set_xticks(middles, [f"input {i}" for i in range(inputs)])
    middles = [o * (height + 1) + (height - 1) / 2 for o in range(3)]
    axis.set_yticks(middles, [f"output {o}" for o in range(3)])
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    axis.set_title(title, fontsize=9)


fig, (left, right) = plt.subplots(1, 2, figsize=(8, 2.9))
draw_filters(left, 4, 1, 1, "(O, I) = (3, 4): 3 means of 4")
draw_filters(right, 2, 2, 2, "(O, I, kH, kW) = (3, 2, 2, 2): 3 means of 8")
fig.tight_layout()
plt.show()

# %% [markdown]
# ### See: one filter, one mean
#
# Equal numbers share a mean. A *filter* is all the weights that make one output: a row on the left,
# and on the right a block that spans all input channels (lesson 04 called it a kernel). Three
# outputs, three means and three variances, whatever else the layer looks like.
#
# There is no N in the picture. The statistics are ready before the first image arrives.
#
# ## The mathematics, with shapes
#
# | name | shape | what |
# |---|---|---|
# | `W` | (O, I, kH, kW) or (O, I) | the raw weights: what the optimizer holds and changes |
# | `mean`, `var` | (O, 1, 1, 1) or (O, 1) | one number a filter |
# | `W_hat` | as `W` | the standardized weights: what the layer computes with |
#
# Let $n = I\cdot k_H\cdot k_W$, the number of weights in a filter, its *fan-in*. For filter $o$:
#
# $$\mu_o = \frac{1}{n}\sum_{k=1}^{n} W_{ok}, \qquad
# \sigma_o^2 = \frac{1}{n}\sum_{k=1}^{n} (W_{ok}-\mu_o)^2, \qquad
# \hat{W}_{ok} = \frac{W_{ok}-\mu_o}{\sqrt{\sigma_o^2+\epsilon}}$$
#
# Then the layer does what it always does, with $\hat{W}$ in place of $W$. There is no `gamma` and
# no `beta`: the authors expect a normalization layer behind, which has its own.
#
# ## Your turn: weight_standardize
#
# *20 points.*
#
# - All axes but the first. `tuple(range(1, W.ndim))` serves (O, I) and (O, I, kH, kW) alike, and
#   `keepdims=True` lines `mean` up with `W` again.
# - Not for each input channel by itself: the picture.
# - A new array. `W` itself is what will be trained.
# - Subtract the mean, then square (lesson 02).


# %% kind="exercise" name="weight_standardize"
def weight_standardize(W, eps):
    """Weight Standardization: each output filter gets mean 0 and variance 1 over its entries.

    W: (O, I, kH, kW) of a convolution or (O, I) of a linear layer; the first axis counts the output
    filters. eps: added to the biased variance, inside the root.
    Returns W_hat (W's shape) and a cache for the backward pass.
    """
    ### BEGIN SOLUTION
    axes = tuple(range(1, W.ndim))
    mean = W.mean(axis=axes, keepdims=True)
    var = ((W - mean) ** 2).mean(axis=axes, keepdims=True)
    std = np.sqrt(var + eps)
    W_hat = (W - mean) / std
    cache = W_hat, std
    return W_hat, cache
    ### END SOLUTION


# %% [markdown]
# ## What comes out of such a filter
#
# The paper promises no variance of 1 for the *outputs*. What can we say? If the n inputs of a
# filter are independent, each of variance 1, then variances add:
#
# $$\mathrm{Var}[y] = \sum_{k=1}^{n}\hat{W}_k^2\cdot 1 = n\,\frac{\sigma^2}{\sigma^2+\epsilon}
# \approx n \qquad\text{so}\qquad \mathrm{std}[y] \approx \sqrt{n}$$
#
# That is a sentence with two ifs. The left panel tries it with four kinds of inputs, through your
# function: independent ones; the same plus 3; inputs that share a common part, so that any two
# have correlation 0.75; and the independent ones, times 10. The raw weights are lopsided on
# purpose, with mean 0.5 and standard deviation 0.1. The right panel shows the *means* of the
# outputs of 64 filters when each input has mean 3, as after a ReLU one has. Which of the four
# lands on the line?

# %% kind="demo"
out_rng = np.random.default_rng(80)
fan_ins = np.array([4, 16, 64, 256, 1024])
kinds = {
    "independent": ("o", BLUE, lambda own, common: own),
    "independent, plus 3": ("x", "black", lambda own, common: own + 3),
    "any two correlated, 0.75": ("^", ORANGE, lambda own, common: 0.5 * own + 0.75**0.5 * common),
    "independent, times 10": ("s", GREY, lambda own, common: 10 * own),
}
fig, (left, right) = plt.subplots(1, 2, figsize=(8.6, 3.2))
spreads, shifted = {name: [] for name in kinds}, []
for n in fan_ins:
    raw = 0.5 + 0.1 * out_rng.normal(size=(64, n))
    W_hat = weight_standardize(raw, 1e-5)[0]
    own, common = out_rng.normal(size=(2000, n)), out_rng.normal(size=(2000, 1))
    for name, (_, _, make) in kinds.items():
        spreads[name].append((make(own, common) @ W_hat.T).std(axis=0).mean())
    shifted.append([((own + 3) @ w.T).mean(axis=0) for w in (raw, W_hat)])
for name, (mark, colour, _) in kinds.items():
    size = 7 if mark == "x" else 5
    left.loglog(fan_ins, spreads[name], mark, color=colour, ms=size, label=name)
    told = "  ".join(f"{s / n**0.5:6.3f}" for s, n in zip(spreads[name], fan_ins, strict=True))
    print(f"std of the output / sqrt(n), {name:25s} {told}")
left.loglog(fan_ins, fan_ins**0.5, color=GREY, linewidth=0.8, zorder=0)
left.text(300, 12, "$\\sqrt{n}$")
left.set(xlabel="fan-in n", ylabel="std of the outputs")
left.legend(fontsize=7)
for place, (before, after) in enumerate(shifted):
    jitter = out_rng.uniform(-0.15, 0.15, size=(2, 64))
    names = (None, None) if place else ("raw", "yours")
    right.plot(place + jitter[0], before, "^", color=ORANGE, ms=3, label=names[0])
    right.plot(place + jitter[1], after, "o", color=BLUE, ms=3, label=names[1])
    print(f"n = {fan_ins[place]:4d}, inputs of mean 3: means of the outputs, raw", end=" ")
    print(f"{before.mean():7.1f} +- {before.std():5.1f}, yours {after.mean():5.2f}", end=" ")
    print(f"+- {after.std():.2f}")
right.set(yscale="symlog", xlabel="fan-in n", ylabel="mean of a filter's output")
right.set_xticks(range(5), fan_ins)
right.legend(fontsize=8, loc="upper left")
fig.tight_layout()
plt.show()

# %% [markdown]
# ### See: the mean is gone, the size is not
#
# **Left.** Independent inputs land on $\sqrt{n}$, and adding 3 to all of them changes nothing: a
# filter whose weights sum to zero does not see what is added to all its inputs. Correlated inputs
# come out half as large: on average over random filters it is $\sqrt{n(1-\rho)}$, and the
# correlation is $\rho = 0.75$. Their common part is filtered out, too. (Filters that have been
# trained are not random, and neighbouring pixels are correlated: take $\sqrt{n}$ for an
# orientation.) And inputs ten times as large make outputs ten times as large. **Nothing here has
# normalized the activations.**
#
# **Right.** What standardizing does take away is the offset. The raw filters multiply the inputs'
# mean, 3, by the sum of their weights, and end at 1535 for n = 1024. Yours stay at zero; what
# scatters there is the noise of 2,000 samples.

# %% [markdown]
# ## The way back
#
# The optimizer holds $W$, so the gradient must come to $W$, through $\hat{W}$. Nudge one weight:
# its filter's mean and variance move, and with them all the filter's standardized weights. You know
# this. It is lesson 03 once more, with a filter where the column was. With $g = \mathrm{dW\_hat}$,
# $s = \sqrt{\sigma^2+\epsilon}$ and a bar for the mean over a *filter*:
#
# $$\mathrm{dW} = \frac{1}{s}\Big(g - \underbrace{\bar{g}}_{(O,1,1,1)}
# - \hat{W}\,\underbrace{\overline{g\,\hat{W}}}_{(O,1,1,1)}\Big)$$
#
# So two things are taken out of whatever arrives: the part along ones, and the part along the
# filter itself. A filter is neither told to shift nor told to grow.
#
# ## Your turn: weight_standardize_backward
#
# *20 points.* The same axes as on the way there. No `gamma`, so no question where it stands.


# %% kind="exercise" name="weight_standardize_backward"
def weight_standardize_backward(dW_hat, cache):
    """The gradient of weight_standardize.

    dW_hat: the gradient that arrives at W_hat, of its shape. Returns dW, of the same shape.
    """
    ### BEGIN SOLUTION
    W_hat, std = cache
    axes = tuple(range(1, dW_hat.ndim))
    mean = dW_hat.mean(axis=axes, keepdims=True)
    projection = (dW_hat * W_hat).mean(axis=axes, keepdims=True)
    return (dW_hat - mean - W_hat * projection) / std
    ### END SOLUTION


# %% [markdown]
# ## What the optimizer gets to hear
#
# First against autograd. Then filters of 18 weights at five sizes, and a random gradient: how much
# of `dW` lies along ones, how much along $\hat{W}$ (as a cosine: 1 is "all of it"), and how long is
# `dW`? Guess the last column before you run the cell: what does a filter ten times as small get?

# %% kind="demo"
back_rng = np.random.default_rng(81)
W, dW_hat = back_rng.normal(size=(2, 5, 2, 3, 3))
_, cache = weight_standardize(W, 0.1)
mine = weight_standardize_backward(dW_hat, cache)
leaf = torch.tensor(W, requires_grad=True)
by_torch = F.batch_norm(leaf.view(1, 5, -1), None, None, training=True, eps=0.1).view(leaf.shape)
theirs = torch.autograd.grad(by_torch, leaf, torch.from_numpy(dW_hat))[0].numpy()
gap = np.abs(mine - theirs).max()
print("autograd", "agrees" if gap < 1e-12 else f"differs by {gap:.0e}")


def cosine(a, b):
    """The cosine between two filters, for each output: (O, ...) -> (O,)."""
    a, b = (f.reshape(len(f), -1) for f in (a, b))
    return (a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


ones = np.ones_like(W)
print("random gradient: |cosine| with ones", end=" ")
print(f"{np.abs(cosine(dW_hat, ones)).mean():.2f}, with W_hat", end=" ")
print(f"{np.abs(cosine(dW_hat, W - W.mean(axis=(1, 2, 3), keepdims=True))).mean():.2f}")
print(
    "std of W    |cosine| of dW with ones    with W_hat    eps/(var+eps)    length of dW a filter"
)
for size in (10, 1, 0.1, 0.01, 0.001):
    sized = (
        size * (W - W.mean(axis=(1, 2, 3), keepdims=True)) / W.std(axis=(1, 2, 3), keepdims=True)
    )
    W_hat, cache = weight_standardize(sized + 3, 1e-5)
    dW = weight_standardize_backward(dW_hat, cache)
    along = np.abs(cosine(dW, ones)).max()
    along = "below 1e-11" if along < 1e-11 else f"{along:.0e}"
    share, length = np.abs(cosine(dW, W_hat)).mean(), np.sqrt((dW**2).sum() / 5)
    print(f"{size:8g}    {along:>24s} {share:13.1e} {1e-5 / (size**2 + 1e-5):16.1e} {length:24.3g}")

# %% [markdown]
# ### See: no shift, no growth, and small filters hear more
#
# - Along ones nothing is left, at any size. Of the part along $\hat{W}$, 0.08 before, a share of
#   $\epsilon/(\sigma^2+\epsilon)$ is left, as in lesson 03: nothing to speak of until a filter is
#   as small as $\sqrt{\epsilon} = 0.003$.
# - The last column: **ten times as small a filter gets ten times as large a gradient**, since it is
#   divided by $s$. Ten times the push on a tenth of the length: hold on to that.
#
# The authors make more of it. Their theorem says that WS lowers the Lipschitz constants of the loss
# and of its gradient, in other words that it smooths the landscape (from their abstract; lesson 12
# looks at landscapes).
#
# ## One method, four conventions
#
# | code | variance divides by | $\epsilon$ |
# |---|---|---|
# | Qiao et al., PyTorch | n − 1 | 1e-5, added to the std |
# | Qiao et al., TensorFlow (`keras.backend.std`) | n | 1e-5, added to the std |
# | timm, `StdConv2d` | n | 1e-6, inside the root |
# | BiT (from copies of its PyTorch code) | n | 1e-10, inside the root |
# | **ours, and graded here** | n | 1e-5, inside the root |
#
# A reader asked about the $\epsilon$ outside the root in the repository's first issue (#1): is the
# gradient not a division by zero when a filter is constant? One of the authors agreed, and later
# another wrote that they had met NaNs in their own experiments (#16). Lesson 06 has shown what
# such an $\epsilon$ does to tokens. What does it do to filters? Two ways to write the same formula,
# beside ours, at a filter of four equal weights (a pruned one, say, or one that starts at zero).


# %% kind="demo"
def standardized_as(name, w):
    """The filter w (n,) standardized in one of four ways."""
    centred = w - w.mean()
    if name == "n - 1, torch.std, eps outside":
        return centred / (w.std() + 1e-5)
    if name == "n - 1, root of torch.var, eps outside":
        return centred / (w.var().sqrt() + 1e-5)
    if name == "n, eps 1e-6 inside (timm)":
        return centred / torch.sqrt(w.var(correction=0) + 1e-6)
    return centred / torch.sqrt(w.var(correction=0) + 1e-5)


print(" " * 38 + "gradient at a constant filter     W_hat of [1, 0, 0, 0]")
names = "n - 1, torch.std, eps outside", "n - 1, root of torch.var, eps outside"
for name in (*names, "n, eps 1e-6 inside (timm)", "n, eps 1e-5 inside (ours)"):
    flat = torch.ones(4, requires_grad=True)
    slope = torch.autograd.grad(standardized_as(name, flat)[0], flat)[0].abs().max().item()
    peak = standardized_as(name, torch.tensor([1.0, 0, 0, 0]))
    print(f"{name:38s}{slope:20g}            ", peak.numpy().round(3))

for n in (27, 1152, 4608):  # 3 x 3 kernels on 3, 128 and 512 channels
    var = 1 / (3 * n)
    told = ", ".join(f"eps {eps:g} {(var / (var + eps)) ** 0.5:.3f}" for eps in (1e-5, 1e-6, 1e-10))
    print(f"n = {n:4d}: PyTorch starts at std {var**0.5:.4f}; std of W_hat with {told}")
sizes_rng = np.random.default_rng(82)
for n in (9, 27, 144, 1152):
    w = torch.from_numpy(sizes_rng.normal(size=(1, n)))
    x = torch.from_numpy(sizes_rng.normal(size=(64, n)))
    outs = [x @ standardized_as(name, w[0]) for name in (names[0], "ours")]
    told = [F.batch_norm(o[:, None], None, None, training=True)[:, 0] for o in outs]
    before, after = ((a - b).norm() / b.norm() for a, b in (outs, told))
    print(f"n = {n:4d}: n - 1 in place of n makes outputs {before:.2%} smaller;", end=" ")
    print(f"behind a BatchNorm they differ by {after:.0e}")

# %% [markdown]
# ### See: outside the root is a cliff, the divisor is not
#
# - **$\epsilon$ outside:** 75,000 where ours says 237, for a filter that computes nothing. Written
#   with the root of the variance it is NaN, and one NaN is enough to lose the model. (`torch.std`
#   once returned NaN here as well: PyTorch, issue #4320. The version we ran does not.)
# - **How large an $\epsilon$?** A wide convolution starts small: with 512 input channels PyTorch's
#   own initialization has a standard deviation of 0.0085, and $10^{-5}$ takes 6 % off; timm's
#   $10^{-6}$ takes 0.7 %. The class you write has `eps` as an attribute, to be changed.
# - **n − 1** makes outputs smaller by $1-\sqrt{1-1/n}$: 5.7 % for a 3 × 3 kernel on one channel. A
#   normalization layer behind divides it away again, up to *its* $\epsilon$. So checkpoints survive
#   a change of divisor.
#
# ## Your turn: StdConv2d
#
# *25 points.* A convolution that computes with standardized filters and trains the raw ones. It has
# all the arguments of `nn.Conv2d`, and `nn.Conv2d` has already stored them: `self.stride`,
# `self.padding`, `self.dilation`, `self.groups`.
#
# - Standardize in `forward`, each time: the raw filters have changed since the last call.
# - Not through `.data`, not under `no_grad`, not into `self.weight`. Autograd must see the way from
#   `self.weight` to the output, for there lies the projection you have just derived.
# - `torch.var` divides by n − 1 unless told otherwise. $\epsilon$ is `self.eps`.
# - With `groups`, `self.weight` is (O, I / groups, kH, kW). Does anything change for a filter?
# - Write the arithmetic: `F.batch_norm` or `F.layer_norm` on the weight, as some libraries do it,
#   earns nothing here.


# %% kind="exercise" name="StdConv2d"
class StdConv2d(nn.Conv2d):
    """A convolution that standardizes its filters each time it is used.

    The arguments and the parameters are nn.Conv2d's: weight keeps the raw filters, which training
    changes, through the standardization, and bias is not standardized. padding_mode is "zeros".
    Biased variance, eps inside the root.
    """

    eps = 1e-5

    def forward(self, x):
        """x: (N, in_channels, H, W). Returns (N, out_channels, H_out, W_out)."""
        ### BEGIN SOLUTION
        mean = self.weight.mean(dim=(1, 2, 3), keepdim=True)
        var = self.weight.var(dim=(1, 2, 3), keepdim=True, unbiased=False)
        weight = (self.weight - mean) / torch.sqrt(var + self.eps)
        return F.conv2d(x, weight, self.bias, self.stride, self.padding, self.dilation, self.groups)
        ### END SOLUTION


# %% [markdown]
# ## Your layer at work, alone and in company
#
# The table changes a layer's raw filters and asks how far the output moves. Then the figure: ten
# convolutions of 16 channels with ReLUs between them, digits at the bottom. What becomes of the
# size of the activations when the convolutions are plain ones (He's initialization), when they are
# yours, and when a GroupNorm stands behind each of yours? Sketch the three curves first.

# %% kind="demo"
from sklearn.datasets import load_digits

torch.set_num_threads(1)
pixels, digit = load_digits(return_X_y=True)
pixels = pixels / 16
first_digits = torch.from_numpy(pixels[:64]).float().view(-1, 1, 8, 8)

work_rng = np.random.default_rng(83)
x = torch.from_numpy(work_rng.normal(size=(4, 3, 8, 8)))
raw = torch.from_numpy(work_rng.normal(size=(8, 3, 3, 3)) / 9)
conv = StdConv2d(3, 8, 3, bias=False).double()


def output_with(filters):
    """The layer's output when it holds these raw filters."""
    with torch.no_grad():
        conv.weight.copy_(filters)
    return conv(x)


before = output_with(raw).detach()
for name, changed in (
    ("plus 5", raw + 5),
    ("times 3", 3 * raw),
    ("times 0.1", 0.1 * raw),
    ("times 0.001", 0.001 * raw),
    ("times -1", -raw),
):
    moved = ((output_with(changed) - before).norm() / before.norm()).item()
    told = "less than 1e-12" if moved < 1e-12 else f"{moved:.2g}"
    print(f"raw filters {name:12s} output moves by {told} of itself")
out = output_with(raw)
loss = out[:, :, 2:].square().sum() + out.sum()
slope = torch.autograd.grad(loss, conv.weight)[0].numpy()
print(f"x times 10: output times {(conv(10 * x).std() / conv(x).std()).item():.1f}")
print("largest |cosine| of the gradient with ones and with the filter:", end=" ")
lined = (np.abs(cosine(slope, other)).max() for other in (np.ones_like(slope), raw.numpy()))
print(*(f"{c:.0e}" if c > 1e-12 else "below 1e-12" for c in lined))


def tower(kind):
    """Standard deviations of the activations after each of ten convolutions."""
    h, seen = first_digits, []
    for k in range(10):
        conv = (nn.Conv2d if kind == "plain" else StdConv2d)(16 if k else 1, 16, 3, padding=1)
        he = work_rng.normal(0, (2 / conv.weight[0].numel()) ** 0.5, conv.weight.shape)
        conv.weight.copy_(torch.from_numpy(he))
        nn.init.zeros_(conv.bias)
        h = conv(h)
        if kind == "yours, GroupNorm behind":
            h = F.group_norm(h, 4)
        seen.append(h.std().item())
        h = torch.relu(h)
    return seen


fig, axis = plt.subplots(figsize=(6.2, 3))
looks = {
    "plain": (GREY, "s"),
    "yours": (ORANGE, "^"),
    "yours, GroupNorm behind": (BLUE, "o"),
}
with torch.no_grad():
    for kind, (colour, mark) in looks.items():
        runs = np.array([tower(kind) for _ in range(10)])
        axis.semilogy(range(1, 11), runs.T, "-", color=colour, linewidth=0.5)
        axis.semilogy(range(1, 11), np.median(runs, axis=0), mark, color=colour, ms=5, label=kind)
        told = f"std after layer 1 {np.median(runs[:, 0]):.2f}, after layer 10"
        growth = np.median(runs[:, 9] / runs[:, 1]) ** (1 / 8)
        print(f"{kind:24s} {told} {np.median(runs[:, 9]):8.3g}; a layer multiplies by {growth:.2f}")
axis.set(xlabel="convolution", ylabel="std of its output")
axis.set_xticks(range(1, 11))
axis.legend(fontsize=8)
fig.tight_layout()
plt.show()

# %% [markdown]
# ### See: a layer that wants company
#
# **The table.** Adding 5 to every raw weight changes nothing. Three times the filter: four parts in
# ten thousand. A tenth of it: 4.5 %; a thousandth, and the output is gone, for its variance is then
# far below $\epsilon$. Minus the filter is minus the output. The inputs' size comes through
# untouched. And what autograd sends to the raw filters has no part along ones and next to none
# along the filter (0.003, $\epsilon$ again): the projection is in it.
#
# **The figure.** Alone, each of your layers multiplies the activations by 6.8, and after ten of
# them their standard deviation is 29 million. You can predict it: n = 16·9 = 144, so $\sqrt{n}$ =
# 12; a ReLU leaves $\frac{1}{2}-\frac{1}{2\pi}$ = 0.34 of a normal variance; 12·√0.34 = 7.0, but
# for the zeros of the padding. (He's initialization has the factor for this in its weights; the
# slow decline of the grey curves is the padding.) With GroupNorm behind, nothing grows.
#
# So: **WS is no replacement for a normalization of activations.** The authors say it in their
# README: replace only convolutions that a normalization layer follows. (Brock et al. 2021 do
# without one, and divide the filter by $\sqrt{n}$ as well: timm's `ScaledStdConv2d`.)

# %% [markdown]
# ## Two images at a time
#
# WS was made for *micro-batches*: one or two images on each GPU, in detection and segmentation.
# There, the authors report, GroupNorm with WS reaches what BatchNorm reaches with large batches, or
# more (abstract, ImageNet and other tasks). The notes say that BatchNorm fares badly with small
# batches, and lesson 06 saw it fail: 0.22 on digits with two images at a time.
#
# That network was fully connected, so BatchNorm had two numbers for each mean. Here is a convnet:
# four convolutions of 8 channels with ReLUs, 64 pixels down to 4, a linear readout. Batches of
# **two**, 400 steps of plain gradient descent. Arms: WS alone, BatchNorm, GroupNorm (two groups),
# and GroupNorm behind your `StdConv2d`. Each arm gets six learning rates and six seeds, the same
# images and first weights; 400 images choose the rate, 397 others are the test. WS alone learns
# nothing at the rates of the others, so it gets six of its own, from 0.00001 to 0.003. At the end
# BatchNorm takes its statistics from the 1,000 training images.
#
# How many numbers make one of BatchNorm's means in the first layer (4 × 4 pixels after its stride),
# and how many in the last (2 × 2)? Then guess the order of the arms.

# %% kind="demo"
SEEDS, STEPS, BATCH, WIDTH = range(6), 400, 2, 8
RATES, SMALL_RATES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0), (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3)
grid, RUNS = (len(RATES), len(SEEDS)), len(RATES) * len(SEEDS)
seeded = [np.random.default_rng([84, seed]) for seed in SEEDS]
orders = np.array([rng.permutation(1797) for rng in seeded])
images = torch.from_numpy(pixels[orders]).float().view(len(SEEDS), 1797, 8, 8)
labels = torch.from_numpy(digit[orders])
chosen = np.array([rng.integers(0, 1000, (STEPS, BATCH)) for rng in seeded])
every_seed = np.arange(len(SEEDS))[:, None]


def convnet(arm):
    """36 small convnets as groups of channels of one: (N, 36, 8, 8) -> (N, 36, 10)."""
    kind = StdConv2d if "WS" in arm else nn.Conv2d
    layers = []
    for k, stride in enumerate((2, 1, 1, 2)):
        inputs = WIDTH if k else 1
        sizes = (inputs * RUNS, WIDTH * RUNS, 3, stride, 1)  # in, out, kernel, stride, padding
        conv = kind(*sizes, groups=RUNS, bias=arm == "WS alone")
        start = [rng.normal(0, (2 / 9 / inputs) ** 0.5, (WIDTH, inputs, 3, 3)) for rng in fresh()]
        conv.weight.data = torch.from_numpy(np.concatenate(start * len(RATES))).float()
        if arm == "BN":
            norm = nn.BatchNorm2d(WIDTH * RUNS)
        else:
            norm = nn.Identity() if arm == "WS alone" else nn.GroupNorm(2 * RUNS, WIDTH * RUNS)
        layers += [conv, norm, nn.ReLU()]
    readout = nn.Conv2d(WIDTH * RUNS, 10 * RUNS, 2, groups=RUNS)
    start = [rng.normal(0, (1 / 4 / WIDTH) ** 0.5, (10, WIDTH, 2, 2)) for rng in fresh()]
    readout.weight.data = torch.from_numpy(np.concatenate(start * len(RATES))).float()
    for module in (*layers, readout):
        if getattr(module, "bias", None) is not None:
            nn.init.zeros_(module.bias)
    return nn.Sequential(*layers, readout, nn.Flatten(), nn.Unflatten(1, (RUNS, 10)))


def fresh():
    """The generators of the first weights, one a seed."""
    return [np.random.default_rng([85, seed]) for seed in SEEDS]


def for_all(a):
    """(seed, N, ...) -> (N, run, ...), the runs being all rates of all seeds."""
    return a.transpose(0, 1).repeat(1, len(RATES), *[1] * (a.dim() - 2))


def train_convnet(arm):
    """Validation and test accuracy, (rate, seed) each."""
    network = convnet(arm)
    rates = torch.tensor(SMALL_RATES if arm == "WS alone" else RATES)
    parameters = list(network.parameters())  # the first axis of each: 36 groups
    each = [
        rates.repeat_interleave(len(SEEDS) * len(p) // RUNS).view(-1, *[1] * (p.dim() - 1))
        for p in parameters
    ]
    for step in range(STEPS):
        now = every_seed, chosen[:, step]
        scores = network(for_all(images[now])).flatten(0, 1)
        loss = F.cross_entropy(scores, for_all(labels[now]).flatten(), reduction="sum") / BATCH
        slopes = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for parameter, slope, rate in zip(parameters, slopes, each, strict=True):
                parameter -= rate * slope
    with torch.no_grad():
        for module in network:
            if isinstance(module, nn.BatchNorm2d):
                module.momentum = 1.0  # the next batch's statistics alone
        network(for_all(images[:, :1000]))
        network.eval()
        right = network(for_all(images[:, 1000:])).argmax(2) == for_all(labels[:, 1000:])
    right = right.float().view(-1, *grid).numpy()
    return right[:400].mean(axis=0), right[400:].mean(axis=0)


looks = {
    "WS alone": ("black", ":", "x"),
    "BN": (ORANGE, "-", "^"),
    "GN": (GREY, "--", "s"),
    "GN, WS": (BLUE, "-", "o"),
}
fig, axis = plt.subplots(figsize=(6.2, 3.2))
at_best = {}
print("arm         best rate   test accuracy    validation accuracy at each rate")
for arm, (colour, style, mark) in looks.items():
    valid, tested = train_convnet(arm)
    rates, middle = SMALL_RATES if arm == "WS alone" else RATES, valid.mean(axis=1)
    reach = np.abs([valid.min(axis=1) - middle, valid.max(axis=1) - middle])
    look = {"color": colour, "linestyle": style, "marker": mark, "ms": 4, "capsize": 2}
    axis.errorbar(rates, middle, reach, linewidth=1.2, elinewidth=0.7, label=arm, **look)
    at_best[arm] = final = tested[middle.argmax()]
    told = " ".join(f"{m:.2f}" for m in middle)
    print(
        f"{arm:10s} {rates[middle.argmax()]:10g}   {final.mean():.3f} +- {final.std():.3f}", end=""
    )
    print(f"    {told}")
gain = at_best["GN, WS"] - at_best["GN"]
print("gain of WS over GN alone, seed by seed:", " ".join(f"{g:+.3f}" for g in gain), end="")
print(f"; mean {gain.mean():+.3f} +- {gain.std(ddof=1) / 6**0.5:.3f}")
axis.set(xscale="log", ylim=(0, 1), xlabel="learning rate", ylabel="validation accuracy")
axis.legend(fontsize=8, loc="upper left")
fig.tight_layout()
plt.show()

# %% [markdown]
# ### See: a gain for GroupNorm, and no disaster to repair
#
# In single precision processors round differently, so your numbers may differ a little from ours.
#
# - **WS alone** reaches 0.58 at its best rate, which is a hundredth of the others' best one.
# - **WS with GroupNorm** is ahead of GroupNorm alone, 0.853 against 0.828, on five of six seeds;
#   the mean gain, 0.025, is about twice its own uncertainty. And it stands more: at rate 0.3
#   GroupNorm alone falls to 0.40, with WS it is 0.68. Three repetitions with other seeds gave gains
#   of 0.015, 0.008 and 0.042. With batches of 8, which we tried once, it was 0.019, on all six
#   seeds.
# - It is a gain in speed. After 1,500 steps (set `STEPS`) nothing was left of it in our run: 0.924
#   without, 0.918 with WS.
# - **BatchNorm does not fail here.** It is level with the best. Each mean has 2·16 = 32 numbers in
#   the first three layers and 2·4 = 8 in the last, not 2: pixels are samples, if dependent ones
#   (lesson 04). Lesson 07 saw the same with 8, and lesson 06 the failure with 2.
#
# So this small network shows something of what WS does for GroupNorm, and **not** the published
# reason for it: on ImageNet BatchNorm with two images a GPU is 10.6 points behind GroupNorm (Wu and
# He 2018), and that gap is what WS helps to close. Whether small batches hurt BatchNorm depends on
# how many independent numbers make a mean. Lesson 10 goes into it.

# %% [markdown]
# ## BatchNorm had it all along
#
# Scale a raw filter, and WS takes the scale away. So does a BatchNorm *behind* the filter; you met
# that in lesson 04, where every initialization from 0.000001 to 10 learned, and in lesson 06. Now
# the gradient. The notes scale the weights $W$ of a layer by a number $a$ and derive three
# statements (they stand in Ioffe and Szegedy 2015, section 3.3, for a scalar $a$):
#
# $$\mathrm{BN}(aWx)=\mathrm{BN}(Wx), \qquad
# \frac{\partial\,\mathrm{BN}(aWx)}{\partial x} =
# \frac{\partial\,\mathrm{BN}(Wx)}{\partial x}, \qquad
# \frac{\partial\,\mathrm{BN}(aWx)}{\partial (aW)} =
# \frac{1}{a}\,\frac{\partial\,\mathrm{BN}(Wx)}{\partial W}$$
#
# They conclude: the larger the weights, the smaller their gradient, which ensures that the gradient
# does not depend on the scale of the parameters. **Read that sentence again. Can both halves be
# true?**
#
# Run it: 32 samples, 10 inputs, 6 outputs, one fixed random gradient arriving at the output. With
# BatchNorm ($\epsilon = 0$, then $10^{-5}$), and with nothing behind the weights.

# %% kind="demo"
scale_rng = np.random.default_rng(86)
scale_x, scale_dout = scale_rng.normal(size=(32, 10)), scale_rng.normal(size=(32, 6))
scale_x, scale_dout = torch.from_numpy(scale_x), torch.from_numpy(scale_dout)
scale_W = torch.from_numpy(scale_rng.normal(size=(6, 10)) / 10**0.5)


def bn(a, eps, measured=slice(None)):
    """BatchNorm without gamma and beta, with the statistics of the measured rows of a."""
    var, mean = torch.var_mean(a[..., measured, :], dim=-2, correction=0, keepdim=True)
    return (a - mean) / torch.sqrt(var + eps)


def scaled_layer(a, eps):
    """Output, gradient at x and gradient at aW; no BatchNorm where eps is None."""
    x, aW = scale_x.clone().requires_grad_(), (a * scale_W).requires_grad_()
    out = x @ aW.T
    if eps is not None:
        out = bn(out, eps)
    return (out.detach(), *torch.autograd.grad(out, (x, aW), scale_dout))


def apart(one, other):
    gap = ((one - other).norm() / other.norm()).item()
    return "below 1e-12" if gap < 1e-12 else f"{gap:.1e}"


print(
    "relative differences from a = 1        output     grad at x   a * grad at aW |a| * grad at aW"
)
for eps in (0.0, 1e-5):
    base = scaled_layer(1.0, eps)
    for a in (1000, 3, 0.1, 0.001, -1, -3):
        out, dx, dW = scaled_layer(a, eps)
        pairs = zip((out, dx, a * dW, abs(a) * dW), (*base, base[-1]), strict=True)
        told = "".join(f"{apart(new, old):>15s}" for new, old in pairs)
        print(f"    eps {eps:g}, a = {a:<6g}".ljust(27) + told)

factors = np.logspace(-5, 3, 17)
fig, panels = plt.subplots(1, 2, figsize=(8.6, 3.2))
looks = (
    (0.0, "BatchNorm, ε = 0", BLUE, "o", 5),
    (1e-5, "BatchNorm, ε = 0.00001", ORANGE, "^", 5),
    (None, "nothing behind", "black", "x", 5),
)
for eps, name, colour, mark, size in looks:
    grads = [scaled_layer(a, eps)[1:] for a in factors]
    for panel, which in zip(panels, (0, 1), strict=True):
        lengths = [g[which].norm().item() for g in grads]
        panel.loglog(factors, lengths, mark, color=colour, ms=size, label=name)
        slope = np.polyfit(np.log(factors[8:]), np.log(lengths[8:]), 1)[0]
        print(f"{name:24s} slope at {('x', 'aW')[which]:2s} from a = 0.1 up: {slope:+.4f}")
panels[0].set(xlabel="a", ylabel="length of the gradient at x")
panels[1].set(xlabel="a", ylabel="length of the gradient at aW")
panels[1].legend(fontsize=8)
fig.tight_layout()
plt.show()

# %% [markdown]
# ### See: one of the two gradients depends on the scale
#
# **The three statements hold**, exactly for $\epsilon=0$ and $a>0$. With $\epsilon = 10^{-5}$ they
# hold to a few parts in a million at ordinary sizes, and fail at $a = 0.001$, where the outputs'
# spread is below $\sqrt{\epsilon}$. For $a<0$ the output changes its sign (the 2.0: minus the
# vector is two lengths away), and so does the gradient at $x$; the gradient at $aW$ scales with
# $1/|a|$, not $1/a$.
#
# **Left.** The gradient handed down to $x$ does not depend on $a$ (circles). Without BatchNorm it
# grows with the weights (crosses).
#
# **Right.** The gradient of the weights themselves falls as $1/a$: a straight line of slope −1,
# over eight orders of magnitude. *Without* BatchNorm it would not depend on $a$ at all. So the
# first half of the notes' sentence is right, and the second is wrong about this gradient and right
# about the other. The paper draws another conclusion from $1/a$: larger weights get smaller
# gradients, so their growth is stabilized.
#
# Is the notes' *derivation* right? It is short: hold $\mu$ and $\sigma$ constant, so that
# $\partial\,\mathrm{BN}(aWx)/\partial(aW) = \gamma\,x/(a\sigma)$. You have spent lesson 03 on the
# paths that this leaves out. A right result from a wrong proof: that is your written question.
#
# ## A landscape made of rays
#
# Now look at it from above. One neuron with two weights, so that a point of the plane is a layer;
# 60 samples, two classes, a logistic loss. Dark is a high loss. The arrows go where gradient
# descent would go, and the orange paths are 40 steps of it (a mark every ten) from three starts:
# same direction, lengths 0.5, 1 and 2, same learning rate.
#
# What must the contours look like when the loss depends on the direction of $w$ only? And which way
# can an arrow point?

# %% kind="demo"
fan_rng = np.random.default_rng(87)
fan_x = torch.from_numpy(fan_rng.normal(size=(60, 2)) @ np.array([[1.0, 0.6], [0.0, 0.8]]) + 0.5)
fan_y = torch.where(fan_x @ torch.tensor([1.0, -0.4], dtype=torch.float64) > 0.3, 1.0, -1.0)


def plane_loss(w, normalized):
    """The loss of weights w (..., 2): logistic, of the output or of its BatchNorm."""
    a = w @ fan_x.T
    if normalized:
        a = (a - a.mean(-1, keepdim=True)) / a.std(-1, correction=0, keepdim=True)
    return F.softplus(-2 * fan_y * a).mean(-1)


def plane_slope(w, normalized):
    w = w.clone().requires_grad_()
    return torch.autograd.grad(plane_loss(w, normalized).sum(), w)[0]


PALE = plt.matplotlib.colors.LinearSegmentedColormap.from_list("", ["white", "#999999"])
side = torch.linspace(-3.2, 3.2, 161, dtype=torch.float64)
plane = torch.stack(torch.meshgrid(side, side, indexing="xy"), dim=-1)
turn = torch.arange(18, dtype=torch.float64) * (2 * torch.pi / 18)
ring = torch.stack([turn.cos(), turn.sin()], dim=-1)
fig, panels = plt.subplots(1, 2, figsize=(8.6, 4.1), sharey=True)
for panel, normalized in zip(panels, (False, True), strict=True):
    panel.contourf(side, side, plane_loss(plane, normalized), 14, cmap=PALE)
    for radius in (1, 2):
        at = radius * ring
        arrow = -plane_slope(at, normalized)
        look = {"angles": "xy", "scale_units": "xy", "scale": 1, "width": 0.006}
        panel.quiver(*at.T, *arrow.T, color=BLUE, **look)
    for radius, mark in ((0.5, "o"), (1.0, "^"), (2.0, "s")):
        w, path = radius * ring[6], []
        for _ in range(41):
            path.append(w)
            w = w - 0.5 * plane_slope(w, normalized)
        path = torch.stack(path)
        panel.plot(*path.T, "-", color=ORANGE, linewidth=1)
        panel.plot(*path[::10].T, mark, color=ORANGE, ms=4)
        panel.plot(*path[0], mark, color=ORANGE, ms=8)
        if normalized:
            angle = torch.atan2(path[:, 1], path[:, 0]).rad2deg()
            told = f"{angle[0] - angle[1]:.1f} degrees, ten by {angle[0] - angle[10]:.1f}"
            print(f"start at length {radius:g}: the first step turns it by {told};", end=" ")
            print(f"its length after 40 steps {path[40].norm():.3f}")
    panel.set(xlabel="$w_1$", aspect="equal", xlim=(-3.2, 3.2), ylim=(-3.2, 3.2))
panels[0].set(ylabel="$w_2$", title="no normalization")
panels[1].set_title("BatchNorm behind")
fig.tight_layout()
plt.show()


# %% [markdown]
# ### See: perpendicular arrows, longer near the middle
#
# **Left**, no normalization: a valley. Length matters, and all three starts go to the same place.
#
# **Right**: rays. Along a ray nothing changes, so a contour *is* a ray, and every arrow is
# perpendicular to it, that is, to $w$ itself. The arrows of the inner ring are twice as long as
# those behind them on the outer one: the $1/a$. Now count what it does to *angles*. Half the length
# and twice the step, so about four times the angle. The start at 0.5 leaps 70 degrees in one step,
# the one at 1 turns by 35, the one at 2 by 10. (The tangents of these are as 16 : 4 : 1.)
#
# Look at the leap once more. A step at a right angle to $w$ always ends *further out*: from 0.5 the
# path goes beyond 1.5. Nobody asked these weights to grow.
#
# ## Only outwards
#
# $\langle w, \partial L/\partial w\rangle = 0$: is it so in a network? One hidden layer and a
# readout, a batch of 64 digits, in float64. For each filter $w$ of the first layer and its gradient
# $g$ the cell prints their cosine, with different things behind the layer: nothing, BatchNorm (at
# three sizes of $w$), a bias on top of it, GroupNorm; and at last your WS with nothing behind.

# %% kind="demo"
dot_rng = np.random.default_rng(88)
dot_x, dot_y = torch.from_numpy(pixels[:64]), torch.from_numpy(digit[:64])
dot_first = torch.from_numpy(dot_rng.normal(size=(24, 64)) / 8)
dot_bias = torch.from_numpy(dot_rng.normal(size=24) / 2)
dot_second = torch.from_numpy(dot_rng.normal(size=(10, 24)) / 24**0.5)


def lined_up(behind, scale=1.0):
    """The first layer's weights and bias, their gradients: (W, b, dW, db)."""
    W = (scale * dot_first).requires_grad_()
    b = dot_bias.clone().requires_grad_()
    if behind == "WS":
        W_hat = (W - W.mean(1, keepdim=True)) / torch.sqrt(W.var(1, correction=0)[:, None] + 1e-5)
        a = dot_x @ W_hat.T / 8
    else:
        a = dot_x @ W.T
    if "bias" in behind:
        a = a + b
    if "BatchNorm" in behind:
        a = bn(a, 1e-5)
    if "GroupNorm" in behind:
        a = F.group_norm(a, 4)
    loss = F.cross_entropy(torch.tanh(a) @ dot_second.T, dot_y)
    if "bias" not in behind:
        loss = loss + 0 * b.sum()
    return W.detach(), b.detach(), *torch.autograd.grad(loss, (W, b))


def to_print(c):
    return "below 1e-12" if c < 1e-12 else f"{c:.0e}"


print(
    "behind the first layer       |cos(w, g)|: mean over filters, largest   a group of 6 together"
)
for behind, scale in (
    ("nothing", 1),
    ("BatchNorm", 1),
    ("BatchNorm", 0.01),
    ("BatchNorm", 0.001),
    ("bias, BatchNorm", 1),
    ("GroupNorm", 1),
    ("bias, GroupNorm", 1),
    ("WS", 1),
):
    W, b, dW, db = lined_up(behind, scale)
    each = np.abs(cosine(W.numpy(), dW.numpy()))
    group = np.abs(cosine(*(m.view(4, -1).numpy() for m in (W, dW)))).max()
    name = behind + ("" if scale == 1 else f", w times {scale:g}")
    print(f"{name:29s} {to_print(each.mean()):>20s} {to_print(each.max()):>19s}", end="")
    print(f" {to_print(group):>24s}")
W, b, dW, db = lined_up("bias, GroupNorm")
both = torch.cat([W, b[:, None]], 1).view(4, -1), torch.cat([dW, db[:, None]], 1).view(4, -1)
print("bias, GroupNorm: weights and biases of a group as one vector:", end=" ")
print(to_print(np.abs(cosine(*(m.numpy() for m in both))).max()))

# %% [markdown]
# ### See: a right angle, for the right set of weights
#
# - **Nothing behind**: no right angle. (About 0.1 is what two random directions of 64 numbers
#   have.)
# - **BatchNorm**: a right angle for each filter, up to $\epsilon$. At a hundredth of the size
#   $\epsilon$ has a say, at a thousandth it rules, and the angle is gone with the normalization.
# - **A bias** in front of BatchNorm changes nothing: BatchNorm eats it (lesson 03).
# - **GroupNorm**: a single filter has *no* right angle. Scale one channel of a group, and the
#   others shrink against it. What GroupNorm does not see is the scale of the whole group, and the
#   group's six filters as one vector have it. With a bias even they have not, since the bias would
#   have to be scaled along: weights and biases of a group together (last line).
# - **WS** makes a right angle of its own for each filter, whatever comes behind.
#
# So a bias in front of a norm is useless (BatchNorm), or one more number in the vector whose length
# does not matter (GroupNorm, LayerNorm), while `beta` does its work behind.

# %% [markdown]
# ## How fast does it turn?
#
# Only the direction $u = w/|w|$ of a filter has an effect. So ask how far a step turns it. By the
# third statement the gradient at $w$ is the one at $u$, divided by the length, $g(w) = g(u)/|w|$,
# where $|w|$ takes the place of $a$. One step of plain SGD:
#
# $$w' = w - \eta\,g(w) = |w|\,\Big(u - \frac{\eta}{|w|^2}\,g(u)\Big)$$
#
# The bracket is what a filter of length 1 would do, with the learning rate
#
# $$\eta_{\mathrm{eff}} = \frac{\eta}{|w|^2}$$
#
# the *effective learning rate* (van Laarhoven 2017, section 2). The length in front of the bracket
# has no effect. So a filter of length 10 learns a hundred times more slowly than one of length 1,
# by the same `lr`. (For your `StdConv2d` the same is true of the filter without its mean.)
#
# ## Your turn: effective_lr
#
# *15 points.* One number for each filter: (O, ...) to (O,). Square or root?


# %% kind="exercise" name="effective_lr"
def effective_lr(w, lr):
    """The effective learning rate of plain SGD for weights whose scale does not matter.

    w: (O, ...), filters in front of a BatchNorm; each of the O filters is scale-invariant on its
    own. lr: the learning rate. Returns (O,): the learning rate that would move the filter's
    direction as fast if the filter had length 1. (van Laarhoven 2017, section 2.)
    """
    ### BEGIN SOLUTION
    return lr / (w.reshape(len(w), -1) ** 2).sum(axis=1)
    ### END SOLUTION


# %% [markdown]
# ## Twins
#
# If it is true, it predicts something to the last digit. Take a network with BatchNorm, and a twin
# with all the weights in front of BatchNorm four times as large. With the *same* learning rate they
# must part. With a learning rate **16 times** as large, for these weights only, they must stay
# twins: not only at the first step, but for the whole of training.
#
# And Adam? It divides the gradient by its own size, so the $1/|w|$ in it is gone, and only the
# length of $w$ itself is left to slow the turning: the angle goes as $1/|w|$. For which rate will
# Adam's twin stay?
#
# Digits, 64-24-24-10, both hidden layers with BatchNorm ($\epsilon = 10^{-12}$), batches of 32, in
# float64; the readout has its usual rate throughout.

# %% kind="demo"
twin_rng = np.random.default_rng(89)
twin_start = [
    torch.from_numpy(twin_rng.normal(size=(n, m)) / n**0.5)
    for n, m in ((64, 24), (24, 24), (24, 10))
]
twin_rows = twin_rng.integers(0, 1000, size=(120, 32))


def twin(optimizer, rate, size=1.0, factor=1.0, steps=120):
    """Losses (steps,) and the first step's mean angle, with weights and rate scaled."""
    w = [
        (size * start if k < 2 else 1 * start).requires_grad_()
        for k, start in enumerate(twin_start)
    ]
    groups = [{"params": w[:2], "lr": factor * rate}, {"params": w[2:], "lr": rate}]
    tuned = {"eps": 1e-30} if optimizer is torch.optim.Adam else {}
    steer, losses = optimizer(groups, **tuned), []
    for rows in twin_rows[:steps]:
        h = torch.from_numpy(pixels[rows])
        for layer in w[:2]:
            h = torch.relu(bn(h @ layer, 1e-12))
        loss = F.cross_entropy(h @ w[2], torch.from_numpy(digit[rows]))
        steer.zero_grad()
        loss.backward()
        steer.step()
        losses.append(loss.item())
        if len(losses) == 1:
            now, then = (m / m.norm(dim=0) for m in (w[0].detach(), twin_start[0]))
    return np.array(losses), (now - then).norm(dim=0).mean().item()  # small angles


for size, factor in ((1, 1), (4, 1), (4, 16)):
    told = effective_lr(size * twin_start[0].T.numpy(), factor * 0.3)
    print(f"your effective_lr, {size}w, rate 0.3 times {factor:2d}: {told.mean():.4f} on average")
fig, panels = plt.subplots(1, 3, figsize=(9.6, 3))
cases = (
    ("SGD", torch.optim.SGD, 0.3, (1, 4, 16), "o"),
    ("Adam", torch.optim.Adam, 0.01, (1, 4, 16), "^"),
)
for panel, (name, optimizer, rate, factors, mark) in zip(panels, cases, strict=False):
    base = twin(optimizer, rate)[0]
    panel.semilogy(base, color="black", linewidth=1, label="w")
    for factor in factors:
        losses = twin(optimizer, rate, 4.0, factor)[0]
        colour, mark = {1: (ORANGE, "^"), 4: (GREY, "x"), 16: (BLUE, "o")}[factor]
        look = {"ms": 3, "markevery": 3, "color": colour, "label": f"4w, rate × {factor}"}
        panel.semilogy(losses, mark, **look)
        gap = np.abs(losses - base).max()
        told = "less than 1e-9" if gap < 1e-9 else f"{gap:.2f}"
        print(f"{name:5s} 4w, rate times {factor:2d}: 120 losses, largest difference {told}")
    panel.set(xlabel="step", title=name)
    panel.legend(fontsize=7)
panels[0].set(ylabel="loss of the batch")
sizes = np.logspace(-0.5, 2.5, 9)
for name, optimizer, rate, _, mark in cases:  # the first step, from many lengths
    angles = [twin(optimizer, rate / 30, size, steps=1)[1] for size in sizes]
    colour = BLUE if name == "SGD" else ORANGE
    panels[2].loglog(sizes, angles, mark, color=colour, ms=5, label=name)
    slope = np.polyfit(np.log(sizes[2:]), np.log(angles[2:]), 1)[0]
    print(f"{name:5s} the first step's angle goes as the length to the power {slope:.3f}")
panels[2].set(xlabel="length of w, relative", ylabel="angle of the first step", title="turning")
panels[2].legend(fontsize=8)
fig.tight_layout()
plt.show()

# %% [markdown]
# ### See: twins for 120 steps
#
# - **SGD.** Sixteen times the rate for four times the weights: the circles sit on the line, and the
#   losses of all 120 steps agree to a billionth. With the same rate (triangles) the large twin
#   crawls. Your `effective_lr` says why: 0.02 in place of 0.32, and 0.32 again with 16 times the
#   rate.
# - **Adam.** *Four* times the rate, for the angle goes as $1/|w|$ only; with 16 it is another
#   training. So Adam does not free you from the length of $w$, it takes away one of two powers.
#   (Van Laarhoven's abstract says "partially". We set Adam's own $\epsilon$ next to zero, since it
#   would spoil the identity where gradients are small.)
# - **Right.** The angle of one first step over the length of $w$: slopes −2 and −1.


# %% [markdown]
# ## What weight decay does here
#
# A step at a right angle is Pythagoras' case, $|w'|^2 = |w|^2 + \eta^2|g|^2$: under plain SGD a
# filter in front of BatchNorm can only grow, and its effective learning rate can only fall.
#
# Weight decay, $w' = (1-\eta\lambda)\,w - \eta\,g$, is said to prefer simple functions. But here
# the function does not depend on $|w|$. What decay can do is to stop the growth. Where do the two
# hold each other? Per step growth adds $\eta^2|g|^2$ to $|w|^2$, decay takes away about
# $2\eta\lambda|w|^2$. They balance when
#
# $$\eta^2|g|^2 = 2\eta\lambda\,|w|^2 \qquad\text{so}\qquad
# \text{angle} \approx \frac{\eta\,|g|}{|w|} = \sqrt{2\eta\lambda}$$
#
# Neither the loss, nor the data, nor the first weights are in this formula! In balance the filters
# should turn by $\sqrt{2\eta\lambda}$ a step, root mean square, whatever they do. (Wan et al. 2020
# and Kosson et al. 2023 study this equilibrium, the latter for Adam and others as well.)
#
# It is a bold claim, so test it. Digits, 64-24-24-10, BatchNorm, plain SGD with rate 0.3, batches
# of 32, 1,000 steps. First weights of three sizes; no decay, or $\lambda = 0.01$ on the two layers
# before BatchNorm; five seeds. The accuracy is that on 797 other images. Sketch the six curves of
# $|w|$.

# %% kind="demo"
DECAY, RATE, LONG, SIZES = (0.0, 0.01), 0.3, 1000, (0.3, 1.0, 3.0)
wd_seeds = [np.random.default_rng([90, seed]) for seed in range(5)]
wd_orders = np.array([rng.permutation(1797) for rng in wd_seeds])
wd_x, wd_y = torch.from_numpy(pixels[wd_orders]).float(), torch.from_numpy(digit[wd_orders])
wd_rows = np.array([rng.integers(0, 1000, size=(LONG, 32)) for rng in wd_seeds])
side_by_side = len(DECAY), len(SIZES), len(wd_seeds)  # all 30 networks train in one array
sized = torch.tensor(SIZES).view(-1, 1, 1, 1)
wd_w = []
for k, (n, m) in enumerate(((64, 24), (24, 24), (24, 10))):
    drawn = torch.from_numpy(np.array([rng.normal(0, (2 / n) ** 0.5, (n, m)) for rng in wd_seeds]))
    wd_w.append(((sized if k < 2 else 1) * drawn.float()).expand(*side_by_side, n, m).clone())
gammas = [torch.ones(*side_by_side, 1, 24) for _ in range(2)]
shifts = [torch.zeros(*side_by_side, 1, size) for size in (24, 24, 10)]
wd_learned = [p.requires_grad_() for p in (*wd_w, *gammas, *shifts)]
decay = torch.tensor(DECAY).view(-1, 1, 1, 1, 1)


def wd_network(h, measured=slice(None)):
    for k in range(2):
        h = torch.relu(gammas[k] * bn(h @ wd_w[k], 1e-5, measured) + shifts[k])
    return h @ wd_w[2] + shifts[2]


lengths, turns, pushed = [], [], 0
first_squares = wd_w[0].detach().square().sum(-2).mean(-1)
for step in range(LONG):
    now = np.arange(5)[:, None], wd_rows[:, step]
    scores, wanted = wd_network(wd_x[now]), wd_y[now].expand(*side_by_side, 32)
    loss = F.cross_entropy(scores.flatten(0, -2), wanted.flatten(), reduction="sum") / 32
    slopes = torch.autograd.grad(loss, wd_learned)
    with torch.no_grad():
        before = wd_w[0] / wd_w[0].norm(dim=-2, keepdim=True)
        for k, (p, slope) in enumerate(zip(wd_learned, slopes, strict=True)):
            p -= RATE * (slope + decay * p if k < 2 else slope)
        norm = wd_w[0].norm(dim=-2, keepdim=True)
        lengths.append(norm.mean(dim=(-1, -2)))
        turns.append((wd_w[0] / norm - before).square().sum(-2).mean(-1))
        pushed = pushed + RATE**2 * slopes[0].square().sum(-2).mean(-1)
lengths, turns = torch.stack(lengths).numpy(), torch.stack(turns).numpy()
grown = (wd_w[0].detach().square().sum(-2).mean(-1) - first_squares)[0] / pushed[0]
with torch.no_grad():
    told = wd_network(wd_x, slice(1000))[..., 1000:, :].argmax(-1)
    wd_right = (told == wd_y[:, 1000:]).float().mean(-1)

balance = (2 * RATE * DECAY[1]) ** 0.5
print(
    f"no decay: growth of |w|^2 over the sum of (lr |g|)^2: {grown.min():.3f} to {grown.max():.3f}"
)
print(f"sqrt(2 lr decay) = {balance:.4f}")
fig, panels = plt.subplots(1, 2, figsize=(9, 3.3))
angles = np.sqrt(turns.reshape(-1, 50, *side_by_side).mean(axis=1))  # root mean square of 50 steps
times = np.arange(25, LONG, 50)
for d, (colour, name) in enumerate(((ORANGE, "no decay"), (BLUE, "decay 0.01"))):
    for s, (size, style) in enumerate(zip(SIZES, (":", "-", "--"), strict=True)):
        label = f"{name}, start × {size:g}"
        for panel, x, values in (
            (panels[0], np.arange(LONG), lengths[:, d, s]),
            (panels[1], times, angles[:, d, s]),
        ):
            panel.semilogy(x, values.mean(axis=-1), style, color=colour, linewidth=1.3, label=label)
            panel.fill_between(
                x, values.min(-1), values.max(-1), color=colour, alpha=0.15, linewidth=0
            )
        last = np.sqrt(turns[-200:, d, s].mean(axis=0))
        told = f"|w| {lengths[0, d, s].mean():.2f} -> {lengths[-1, d, s].mean():.2f}, "
        told += f"angle in the last 200 steps {last.mean():.4f} +- {last.std():.4f}, "
        print(
            f"{label:24s} {told}accuracy {wd_right[d, s].mean():.3f} +- {wd_right[d, s].std():.3f}"
        )
panels[1].axhline(balance, color="black", linewidth=0.8)
panels[1].text(1010, balance, "$\\sqrt{2\\eta\\lambda}$", va="center")
panels[1].set_xlim(0, 1000)
panels[0].set_yticks([0.5, 1, 2, 4], [0.5, 1, 2, 4])
panels[0].minorticks_off()
panels[0].set(xlabel="step", ylabel="length of a filter")
panels[1].set(xlabel="step", ylabel="angle per step")
fig.legend(*panels[0].get_legend_handles_labels(), loc="lower center", ncols=3, fontsize=8)
fig.tight_layout(rect=(0, 0.13, 1, 1))
plt.show()

# %% [markdown]
# ### See: six starts, two fates
#
# The bands reach from the smallest to the largest of the five seeds. (Single precision again: your
# numbers may differ a little.)
#
# - **No decay.** Pythagoras to three digits: the growth of $|w|^2$ *is* the sum of $(\eta|g|)^2$.
#   The three starts never meet. After 1,000 steps filters of the small start turn five times as
#   fast as those of the large one, with the same learning rate, and the large start is still a
#   little behind (accuracy 0.963 against 0.971 and 0.973).
# - **Decay.** The three lengths come together at 0.8, the large start from five times that. So do
#   the angles: 0.072 to 0.077 in the last 200 steps, and the formula says 0.0775. Nothing had been
#   fitted.
# - **Is that good?** Not here: the accuracy is a point or two lower, and the seeds scatter more. A
#   filter in balance turns by 4 degrees at every step, to the end. To let it come to rest, lower
#   $\eta$; the formula says how fast it then turns.
#
# So in front of a norm weight decay is no preference for simple functions. It is a second knob of
# the learning rate (van Laarhoven's point), and it makes filters forget how long they were at the
# start.
#
# ## One word, two ideas
#
# Both halves of this lesson come from one entry of the notes. BatchNorm's first benefit, they say,
# is *better scale invariance*: however the parameters of lower layers change, the distribution of
# each layer's inputs stays relatively stable. And this makes gradient descent more efficient.
#
# Three different things stand there. That the output does not depend on the *scale* of the weights
# is exact (up to $\epsilon$), and you have run it. That the distribution stays stable *however* the
# weights change is another claim. Change the weights of a layer in two ways that are equally large,
# behind it BatchNorm: three times $W$, and $W$ plus a random matrix of the length of $2W$. Which of
# five things move? (The inputs are exponential, so that there is a shape to lose.)

# %% kind="demo"
word_rng = np.random.default_rng(91)
word_x = torch.from_numpy(word_rng.exponential(size=(4000, 10)))
word_W = torch.from_numpy(word_rng.normal(size=(6, 10)))
word_other = torch.from_numpy(word_rng.normal(size=(6, 10)))


def described(W):
    """After BatchNorm: the outputs, their means, stds, correlations and skewnesses."""
    out = bn(word_x @ W.T, 1e-5)
    return out, out.mean(0), out.std(0, correction=0), torch.corrcoef(out.T), (out**3).mean(0)


change = 2 * word_W.norm() * word_other / word_other.norm()  # as long as that of "times 3"
print("largest move of                   outputs   means    stds   correlations   skewnesses")
for name, W in (("W times 3", 3 * word_W), ("W + something as long", word_W + change)):
    moves = [
        (a - b).abs().max().item() for a, b in zip(described(W), described(word_W), strict=True)
    ]
    told = (f"{m:9.2f}" if m > 1e-3 else "  < 0.001" for m in moves)
    print(f"{name:30s}" + " ".join(told))

# %% [markdown]
# ### See: invariant to scale, not to change
#
# To the first change BatchNorm is blind. With the second the outputs move far, and while mean and
# standard deviation of each feature stay at 0 and 1, correlations move by up to 0.8, skewnesses by
# 0.9. So the two ideas should have two names: *scale invariance*, exact, of a function; and *stable
# distributions*, true of two moments a feature (lesson 12 asks what those are good for).
#
# And the third, that it makes gradient descent more efficient? What scale invariance does for
# certain is to hand out learning rates, $\eta/|w|^2$, another for each filter, falling as the
# filter grows. That can help: too large a step lengthens the filter and so makes the next steps
# smaller. It can hurt: see the large start. Faster by itself it is not.
#
# ## A bench for the written question
#
# One filter $w$ of 5 weights, a batch of 16, BatchNorm without `gamma`, `beta` and $\epsilon$. The
# cell computes $\partial L/\partial w$ twice, once truly and once as the notes derive it, with
# $\mu$ and $\sigma$ held constant, for four losses $L$. It asks whether three times the weights
# have a third of the gradient, and how far the two gradients are apart. Ask it more.

# %% kind="demo"
bench_rng = np.random.default_rng(92)
bench_x = torch.from_numpy(bench_rng.normal(size=(16, 5)) + 1)
bench_w = torch.from_numpy(bench_rng.normal(size=5))
bench_target = torch.from_numpy(bench_rng.normal(size=16))


def bench_gradient(w, frozen, loss_of, eps=0.0):
    """dL/dw of loss_of(BN(x w)), with the statistics held constant or not."""
    w = w.clone().requires_grad_()
    a = bench_x @ w
    mean, var = a.mean(), a.var(correction=0)
    if frozen:
        mean, var = mean.detach(), var.detach()
    return torch.autograd.grad(loss_of((a - mean) / torch.sqrt(var + eps)), w)[0]


losses = {
    "sum of the outputs": lambda out: out.sum(),
    "outputs times random numbers": lambda out: (out * bench_target).sum(),
    "squared distance to a target": lambda out: (out - bench_target).square().sum(),
    "sum of fourth powers": lambda out: (out**4).sum(),
}
print(" " * 35 + "is the gradient at 3w a third?      true and frozen differ by")
for name, loss_of in losses.items():
    told = []
    for frozen in (False, True):
        one, three = (bench_gradient(a * bench_w, frozen, loss_of) for a in (1, 3))
        told.append(f"off by {apart(3 * three, one)}" if one.norm() > 1e-12 else "it is 0")
    true, wrong = (bench_gradient(bench_w, frozen, loss_of) for frozen in (False, True))
    off = (wrong - true).norm() / wrong.norm()
    print(f"{name:30s} true   {told[0]}\n{'':30s} frozen {told[1]}", end="")
    print(f"{off:22.0%} of the frozen one")

# %% [markdown]
# ## Written question: repair the proof
#
# *20 points, graded by hand.* (Working alone? In a checkout, `autograder solution repair_the_proof`
# shows a model answer.)
#
# The notes scale $W$ to $aW$, call mean and variance of $Wx$ $\mu_1, \sigma_1^2$ and those of $aWx$
# $\mu_2 = a\mu_1$, $\sigma_2^2 = a^2\sigma_1^2$, leave $\epsilon$ out, and compute
#
# $$\frac{\partial\,\mathrm{BN}(aWx)}{\partial x} = \gamma\,\frac{aW}{\sqrt{\sigma_2^2}}
# = \gamma\,\frac{W}{\sqrt{\sigma_1^2}} = \frac{\partial\,\mathrm{BN}(Wx)}{\partial x}$$
#
# $$\frac{\partial\,\mathrm{BN}(aWx)}{\partial (aW)} = \gamma\,\frac{x}{\sqrt{\sigma_2^2}}
# = \gamma\,\frac{x}{a\sqrt{\sigma_1^2}}
# = \frac{1}{a}\,\frac{\partial\,\mathrm{BN}(Wx)}{\partial W}$$
#
# 1. Where does this go wrong? Name what is missing, and explain why the wrong way arrives at the
#    right result all the same. Would the bench's first question have found the error?
# 2. Prove both statements for $a>0$ from $\mathrm{BN}(aWx) = \mathrm{BN}(Wx)$ alone, by the chain
#    rule. Say at which point each derivative is taken.
# 3. What becomes of the output and of both statements for $a<0$?
# 4. Show that $\langle w, \partial L/\partial w\rangle = 0$ for each filter $w$ in front of
#    BatchNorm and any loss $L$. (Differentiate with respect to $a$.) Does the frozen gradient obey
#    it?
# 5. The small print: what does $\epsilon > 0$ change, and when does it matter?

# %% [markdown] kind="written" name="repair_the_proof" points=20
# ### BEGIN SOLUTION
# **Model answer.** Write $F(W, x)$ for $\mathrm{BN}(Wx)$ in training mode, $x$ being the whole
# batch.
#
# *1.* $\mu$ and $\sigma$ are means over $Wx$, so they depend on $W$ and on $x$; the derivation
# holds them constant. Missing are the paths through the mean and through the variance (lesson 03).
# For one filter $w$ and sample $k$, with bars for means over the batch, the true derivative is
#
# $$\frac{\partial\,\mathrm{out}_k}{\partial w} = \frac{\gamma}{\sigma}\Big(x_k - \bar{x} -
# \hat{a}_k\,\overline{\hat{a}\,x}\Big), \qquad \hat{a} = \frac{xw-\mu}{\sigma}$$
#
# where the notes have $\gamma\,x_k/\sigma$. The result is right all the same because every term has
# the same $1/\sigma$ in front and a bracket that does not change with $a$ ($\hat{a}$ is BN's
# output, and $x$ is $x$). So leaving terms out does not disturb the factor $1/a$. For this reason
# the first question of the bench cannot find the error: the frozen gradient, too, is a third at
# $3w$. It is another vector, though: 49 % of it is wrong for random weights on the outputs, all of
# it for the sum of the outputs, whose true gradient is 0.
#
# *2.* For all $W$, $x$ and a fixed $a>0$: $F(aW, x) = F(W, x)$. Differentiate both sides with
# respect to $W$. On the left $W$ comes in as $aW$, so the chain rule gives a factor $a$:
#
# $$a\,(\partial_1 F)(aW, x) = (\partial_1 F)(W, x)
# \quad\Longrightarrow\quad (\partial_1 F)(aW, x) = \frac{1}{a}\,(\partial_1 F)(W, x)$$
#
# where $\partial_1 F$ is the derivative with respect to the first argument, taken at the point $aW$
# on the left and at $W$ on the right. With respect to $x$ there is no inner factor:
# $(\partial_2 F)(aW, x) = (\partial_2 F)(W, x)$. No statistic was held constant, none was even
# mentioned: the statements are true of every function that does not see the scale of $W$. Any loss
# behind passes through: $L(aW)=L(W)$ gives the same two lines.
#
# *3.* For $a<0$, $\sigma_2 = |a|\sigma_1$, so the normalized values change sign:
# $F(aW,x) = -F(W,x)$ (with `beta` = 0; otherwise the part $\gamma\hat{a}$ does). Differentiating
# this gives
# $(\partial_1 F)(aW,x) = -\frac{1}{a}(\partial_1 F)(W,x) = \frac{1}{|a|}(\partial_1 F)(W,x)$ and
# $(\partial_2 F)(aW,x) = -(\partial_2 F)(W,x)$. The notes' lines have the wrong sign there (they
# take $a$ for the root of $a^2$). About the gradient of a loss nothing follows, since the network
# behind gets another output.
#
# *4.* Scale one filter only: $L(aw) = L(w)$ for all $a>0$, the left side is constant in $a$. So
#
# $$0 = \frac{d}{da}L(aw) = \big\langle w, (\nabla L)(aw)\big\rangle, \qquad
# \text{and at } a=1:\quad \langle w, \nabla L(w)\rangle = 0$$
#
# (Or from lesson 03: $\langle w,\mathrm{dw}\rangle = \sum_i a_i\,\mathrm{da}_i$ with $a = xw$ and
# $\mathrm{dw} = x^{\top}\mathrm{da}$, and $\mathrm{da}$ has no part along ones nor along $\hat{a}$,
# hence none along $a$.) The frozen gradient does not obey it: on the bench $\langle w,
# \text{frozen}\rangle$ is −19, −3.7, 39 and 170 for the four losses, the true one 0 to rounding.
# Training with it would push the filter's length, without effect on the output.
#
# *5.* With $\epsilon$ the denominator $\sqrt{a^2\sigma^2+\epsilon}$ does not scale along:
# $F_\epsilon(aW,x) = F_{\epsilon/a^2}(W,x)$. So all of it holds approximately as long as
# $\sigma^2\gg\epsilon$ at both sizes; the error, and what is left of $\langle w,\nabla L\rangle$,
# is of the order of $\epsilon/(\sigma^2+\epsilon)$. Around $\sigma = \sqrt{\epsilon}$ = 0.003 it
# fades, and well below nothing of it is left: there BN subtracts the mean and multiplies by a
# constant. (In test mode, where the statistics *are* constants, none of it holds either.)
#
# **Rubric:**
#
# - 5 points: $\mu$ and $\sigma$ depend on $W$ and $x$ (2); the paths through mean and variance are
#   missing (1); the result survives since all terms share the factor $1/\sigma$, or since it
#   follows from the invariance, whatever the terms are (1); the first question of the bench does
#   not find it (1).
# - 5 points: the proof for $W$: both sides of $F(aW,x)=F(W,x)$ differentiated (1), the factor $a$
#   by the chain rule (2), the points $aW$ and $W$ named (1), no statistic held constant (1).
# - 2 points: the proof for $x$.
# - 2 points: $a<0$: the output flips (1); $1/|a|$ at $W$, minus at $x$ (1).
# - 4 points: $\langle w,\nabla L\rangle = 0$: $L(aw)$ is constant in $a$ (1), its derivative by the
#   chain rule (1), at $a=1$ (1); the frozen gradient does not obey it, with a number (1).
# - 2 points: exact for $\epsilon=0$ only (1); small while $\sigma^2\gg\epsilon$, lost near
#   $\sqrt{\epsilon}$ (1).
#
# In 4 the proof by lesson 03's projection earns the same three points, one for each of:
# $\mathrm{dw} = x^{\top}\mathrm{da}$, no part along ones, no part along $\hat{a}$. A proof of 2
# that writes all three paths out and finds $1/\sigma$ in front of each is right as well: full marks
# if the bracket is shown not to change with $a$.
# ### END SOLUTION

# %% [markdown]
# ## What to remember
#
# - Weight Standardization gives each *filter* mean 0 and variance 1. It looks at no data, so it
#   needs no batch, and it does not normalize the activations: put a norm behind it.
# - Its gradient is lesson 03's along a filter: nothing along ones, nothing along the filter, and
#   $1/s$ in front. $\epsilon$ belongs inside the root.
# - BatchNorm makes the filters before it scale-invariant, too. Then the gradient at the weights
#   goes as $1/|w|$, the one handed down does not change, and $\langle w, g\rangle = 0$, up to
#   $\epsilon$.
# - Effective learning rate: $\eta/|w|^2$ for SGD; for Adam the angle goes as $1/|w|$.
# - Plain SGD only lengthens such filters. Weight decay does not make them simpler, it sets how fast
#   they turn: $\sqrt{2\eta\lambda}$ a step, in balance.
# - Ask which vector is scale-invariant: a filter (BatchNorm, WS), a group of filters with its
#   biases (GroupNorm), the whole matrix (LayerNorm).
# - A right result does not make a proof. $1/a$ comes out of the frozen gradient as well.
#
# `progress()` shows what is left. You have come to the end of what is there. Next, and to come:
# lesson 09, features that are correlated.
#
# ## Sources
#
# - S. Qiao, H. Wang, C. Liu, W. Shen, A. Yuille, *Weight Standardization*, 2019 (later
#   *Micro-Batch Training with Batch-Channel Normalization and Weight Standardization*),
#   [arXiv 1903.10520](https://arxiv.org/abs/1903.10520): read in abstract and in public summaries;
#   [their README](https://github.com/joe-siyuan-qiao/WeightStandardization) with both
#   implementations, issues
#   [#1](https://github.com/joe-siyuan-qiao/WeightStandardization/issues/1) and
#   [#16](https://github.com/joe-siyuan-qiao/WeightStandardization/issues/16).
# - timm: `StdConv2d` and `ScaledStdConv2d` in its
#   [layers](https://github.com/huggingface/pytorch-image-models/blob/main/timm/layers/std_conv.py).
#   BiT: [google-research/big_transfer](https://github.com/google-research/big_transfer), read in
#   copies of its `StdConv2d`.
# - Gradients of `std` at constant input: PyTorch
#   [#4320](https://github.com/pytorch/pytorch/issues/4320), Keras
#   [#2960](https://github.com/keras-team/keras/issues/2960).
# - S. Ioffe, C. Szegedy, *Batch Normalization*, 2015,
#   [arXiv 1502.03167](https://arxiv.org/abs/1502.03167): section 3.3, the three statements.
# - T. van Laarhoven, *L2 Regularization versus Batch and Weight Normalization*, 2017,
#   [arXiv 1706.05350](https://arxiv.org/abs/1706.05350): the effective learning rate; read in
#   abstract and in reviews that quote its formulas.
# - R. Wan et al., *Spherical Motion Dynamics*, 2020,
#   [arXiv 2006.08419](https://arxiv.org/abs/2006.08419), and A. Kosson, B. Messmer, M. Jaggi,
#   *Rotational Equilibrium*, 2023, [arXiv 2305.17212](https://arxiv.org/abs/2305.17212): the
#   equilibrium; in abstract.
# - A. Brock, S. De, S. L. Smith, *Characterizing Signal Propagation to Close the Performance Gap in
#   Unnormalized ResNets*, 2021, [arXiv 2101.08692](https://arxiv.org/abs/2101.08692): scaled WS;
#   cited by way of timm.
# - Y. Wu, K. He, *Group Normalization*, 2018, [arXiv 1803.08494](https://arxiv.org/abs/1803.08494):
#   two images a GPU.
# - scikit-learn: `load_digits` (from the UCI repository's optical digits).
