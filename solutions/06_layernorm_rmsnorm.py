# %% [markdown]
# # 06 · LayerNorm and RMSNorm
#
# **Goal.** Normalize each token by itself, forward and backward, and know of every normalization
# what it is blind to.
#
# **Time** 145 minutes: 100 for the parts below, 45 for reading. **Difficulty** 3 of 5.
#
# **You need** lessons 02 and 03 (BatchNorm, whose forward pass is given below, and its backward
# pass in one line) and, for the last two exercises, a little PyTorch.
#
# | part | points | minutes |
# |---|---|---|
# | `layernorm_forward` | 15 | 15 |
# | `layernorm_backward` | 15 | 15 |
# | `layernorm_chw_forward` | 5 | 5 |
# | `rmsnorm_forward` | 10 | 10 |
# | `rmsnorm_backward` | 10 | 10 |
# | `RepairedLayerNorm` | 15 | 15 |
# | `RMSNorm` | 10 | 10 |
# | written question | 20 | 20 |
#
# A `check` stands below each exercise and judges what you wrote; `hint("layernorm_forward")` gives
# one more rung of help each time you call it, and `progress()` shows where you stand.
#
# **Convention.** The variance is the biased one and $\epsilon$ stands inside the root, in the
# numpy functions and in the modules alike. A *token* is one row of features that is normalized
# together: a word in a sentence, a patch of an image, a sample in a table.

# %% kind="setup"
import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn

from autograder import check, hint, progress

BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#666666"  # told apart by colour-blind readers too
plt.rcParams.update({"figure.dpi": 100, "font.size": 9, "axes.spines.top": False})
plt.rcParams.update({"axes.spines.right": False, "legend.frameon": False})

# %% kind="given" name="batchnorm_forward"

# %% [markdown]
# ## The question
#
# Two sentences are in one batch. One has 5 words, the other 50. Each word is a vector of D
# numbers, a token; to make one array of them the short sentence is filled up with zeros, and `x`
# has the shape (B, T, D) = (2, 50, D).
#
# At work there will be one sentence at a time, of any length.
#
# BatchNorm wants a mean and a variance for each of the D features. **Over which tokens can it
# take them?** Here are three answers. Find what is wrong with each before you read on.
#
# 1. *Per position:* the third words of all sentences together.
# 2. *Pooled:* all 100 rows of the batch together.
# 3. *Pooled, without padding:* the 55 rows that are words.
#
# Take a sentence of five words, each a random vector, and give it 200 random partners of each
# length. What does BatchNorm in training mode say about *our first word*?

# %% kind="demo"
talk_rng = np.random.default_rng(60)
levels, spreads = talk_rng.normal(size=(40, 1)), talk_rng.uniform(0.5, 2, size=(40, 1))
words = levels + spreads * talk_rng.normal(size=(40, 8))  # a language of 40 words, D = 8
our_five = words[[3, 1, 4, 15, 9]]


def as_batch(sentences, length=0):
    """Sentences as one array (B, T, 8), each filled up with rows of zeros."""
    batch = np.zeros((len(sentences), max(length, *map(len, sentences)), 8))
    for row, sentence in zip(batch, sentences, strict=True):
        row[: len(sentence)] = sentence
    return batch


def bn(table):
    """BatchNorm in training mode, without gamma and beta."""
    width = table.shape[1]
    return batchnorm_forward(table, np.ones(width), np.zeros(width), {"mode": "train"})[0]


def say(count):
    return words[talk_rng.integers(0, 40, size=count)]


arms = {
    "per position": (GREY, "s"),
    "pooled": (ORANGE, "^"),
    "pooled, without padding": (BLUE, "o"),
}
partner_lengths = (0, 5, 20, 50, 200)
fig, axis = plt.subplots(figsize=(7.5, 3))
print("words in the partner    " + "   ".join(f"{name:>23s}" for name in arms))
for place, count in enumerate(partner_lengths):
    answers = {name: [] for name in arms}
    for _ in range(200 if count else 1):
        sentences = [our_five, say(count)] if count else [our_five]
        batch = as_batch(sentences)
        answers["per position"].append(bn(batch[:, 0])[0, 0])
        answers["pooled"].append(bn(batch.reshape(-1, 8))[0, 0])
        answers["pooled, without padding"].append(bn(np.concatenate(sentences))[0, 0])
    for shift, (name, (colour, mark)) in zip((-0.27, 0, 0.27), arms.items(), strict=True):
        jitter = place + shift + talk_rng.uniform(-0.1, 0.1, size=len(answers[name]))
        look = {"color": colour, "ms": 2.5, "label": name if place == 1 else None}
        axis.plot(jitter, answers[name], mark, **look)
    told = (f"{np.mean(a):13.2f} +- {np.std(a):.2f}" for a in answers.values())
    print(f"{count or 'none':>20}    " + "   ".join(f"{text:>23s}" for text in told))
axis.set_xticks(range(5), [count or "none" for count in partner_lengths])
axis.set(xlabel="words in the partner sentence", ylabel="our first word, feature 0, after BN")
fig.legend(*axis.get_legend_handles_labels(), loc="upper center", ncols=3, markerscale=2)
fig.tight_layout(rect=(0, 0, 1, 0.92))
plt.show()

# %% [markdown]
# ### See: every answer depends on the company
#
# - **Per position** (squares) we are in a batch of two, and you know from lesson 02 what that
#   leaves: near +1 or −1, or 0 when the partner begins with the same word. From the sixth position
#   on, the longer sentence has only padding for company. And in use a sentence longer than any in
#   training meets positions without running averages: the paper that introduced LayerNorm gives
#   this as a reason (Ba, Kiros and Hinton 2016, of recurrent networks).
# - **Pooled** (triangles) our word's value climbs with the length of the *other* sentence, from
#   0.59 to 1.15 on average. Longer partners mean more zeros behind our five words, and zeros pull
#   the means to 0 and the variances down.
# - **Without padding** (circles) the drift is gone, and the scatter remains: ±0.24 with five
#   words of company, ±0.07 with two hundred. This one can be made to work, with running averages
#   and all; you will build it in lesson 11, and lesson 14 asks how well it does on text.
#
# The notes this course grew from explain the trouble with a batch of 你好 ("hello") and 机器学习
# ("machine learning"): at the first position BatchNorm would mix 你 with 机, which have nothing in
# common. That describes the first answer. Usually BatchNorm pools, and 你 is mixed with
# *everything* in the batch, the other words of its own sentence and the padding included.
#
# Whichever you take: at work there is no batch. What if a token did not need one?
#
# ### Picture: which entries share a mean
#
# Turn BatchNorm's table by ninety degrees: let each *token* take the mean and the variance over
# its own D features. How many means will there be in a batch of two sentences, B = 2, T = 4,
# D = 3, of which the first has only two words?

# %% kind="demo"
TINTS = [(0.75, 0.87, 0.95), (0.98, 0.85, 0.75), (0.88, 0.88, 0.88)]


def draw_table(axis, group, title, pad=(), rows=(), gap=None):
    """Draw a table of group numbers: equal numbers share a mean."""
    colours = TINTS if group.max() < 3 else plt.cm.cividis(np.linspace(0.6, 1, group.max() + 1))
    canvas = np.array([[colours[g][:3] for g in row] for row in group])
    for row, line in enumerate(group):
        for column, number in enumerate(line):
            axis.text(column, row, number, ha="center", va="center", fontsize=8)
    axis.imshow(canvas, aspect="auto")
    for row in pad:
        axis.axhspan(row - 0.5, row + 0.5, hatch="////", fill=False, edgecolor=GREY, linewidth=0)
    if gap is not None:
        axis.axhline(gap, color="white", linewidth=6)
    for column in range(group.shape[1] - 1):
        axis.axvline(column + 0.5, color="white", linewidth=1)
    axis.set_xticks(range(group.shape[1]), [f"f{j}" for j in range(group.shape[1])])
    axis.set_yticks(range(len(group)), rows)
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    axis.set_title(title, fontsize=9)


spoken = [
    f"{s}, word {t}" if t < n else "padding" for s, n in (("A", 2), ("B", 4)) for t in range(4)
]
tokens_8, features_3 = np.arange(8)[:, None], np.arange(3)
fig, panels = plt.subplots(1, 4, figsize=(9.4, 3.1))
draw_table(
    panels[0],
    np.broadcast_to(np.arange(6)[:, None], (6, 3)),
    "(N, D): LayerNorm\n6 means of 3",
    rows=[f"sample {i}" for i in range(6)],
)
pictures = (
    ("BN, per position\n12 means of 2", tokens_8 % 4 * 3 + features_3),
    ("BN, pooled\n3 means of 8", 0 * tokens_8 + features_3),
    ("LayerNorm\n8 means of 3", tokens_8 + 0 * features_3),
)
for panel, (title, group) in zip(panels[1:], pictures, strict=True):
    draw_table(panel, group, f"(B, T, D): {title}", pad=(2, 3), rows=spoken, gap=3.5)
for panel in panels[2:]:
    panel.set_yticks([])
fig.tight_layout()
plt.show()

# %% [markdown]
# ### See: one mean a row
#
# Equal numbers share a mean; hatched rows are padding.
#
# **First.** A table, as in lesson 02, but now each row has its own mean. Six samples, six means,
# however many features there are.
#
# **Second and third.** The two readings of BatchNorm. Padding has a part in both.
#
# **Fourth.** LayerNorm: one mean for each token, B·T of them, shape (B, T). The padding has means
# of its own and disturbs nobody else's.
#
# The notes say in one place that the statistics are computed "for each sample", in another that
# they have the shape (B, max_len). The second is right: one for each *token* of each sample. And
# their advice to normalize "inside the sentence" needs care. A mean over a whole sentence is yet
# another layer; we shall try that one too.
#
# ## The mathematics, with shapes
#
# | name | shape | what |
# |---|---|---|
# | `x`, `out` | (..., D) | tokens: (N, D), (B, T, D) or more axes |
# | `mean`, `var` | (..., 1) | one number a token |
# | `gamma`, `beta` | (D,) | learned, one number a feature, shared by all tokens |
#
# For token $i$, over its features $j$:
#
# $$\mu_i = \frac{1}{D}\sum_{j=1}^{D} x_{ij}, \qquad
# \sigma_i^2 = \frac{1}{D}\sum_{j=1}^{D} (x_{ij}-\mu_i)^2$$
#
# $$\hat{x}_{ij} = \frac{x_{ij}-\mu_i}{\sqrt{\sigma_i^2+\epsilon}}, \qquad
# \mathrm{out}_{ij} = \gamma_j\,\hat{x}_{ij} + \beta_j$$
#
# Hold these beside lesson 02. There $i$ was summed away and $j$ stayed; here $j$ goes and $i$
# stays. **But `gamma` and `beta` kept their index $j$.** In BatchNorm there was one `gamma` for
# each mean. Here the two lie across one another, and that will matter twice: on the way back, and
# when we ask what the affine can undo. (The notes call the affine "just the same" as BatchNorm's.
# Its formula is.)
#
# Nothing else is new, and something is gone: there is no diary. A token brings its own
# statistics, so training and evaluation compute the same.
#
# The notes' formulas are these: biased variance, $\epsilon$ inside the root, `gamma` and `beta` of
# hidden size. Their code is another matter; we come to it.
#
# ## Your turn: layernorm_forward
#
# *15 points.*
#
# - The features are the *last* axis, whatever stands before it. Which axis number says that for
#   (N, D) and (B, T, D) alike?
# - `mean` must line up with `x` again. (N,) against (N, D) is an error, or, when N = D, no error
#   and a wrong result (lesson 01's square table). `keepdims=True` is for this.
# - Biased variance, $\epsilon$ inside the root, new arrays: as before.
# - The cache is yours: put into it what you want to have on the way back.


# %% kind="exercise" name="layernorm_forward"
def layernorm_forward(x, gamma, beta, ln_param):
    """LayerNorm: each token is normalized by its own mean and variance.

    x: (..., D), for example (N, D) or (B, T, D); a token is one row of D features.
    gamma, beta: (D,). ln_param: {"eps": 1e-5 where not given}.
    Returns out (x's shape) and a cache for the backward pass.
    """
    ### BEGIN SOLUTION
    eps = ln_param.get("eps", 1e-5)
    mean = x.mean(axis=-1, keepdims=True)
    var = ((x - mean) ** 2).mean(axis=-1, keepdims=True)
    std = np.sqrt(var + eps)
    x_hat = (x - mean) / std
    out = gamma * x_hat + beta
    cache = x_hat, std, gamma
    return out, cache
    ### END SOLUTION


# %% [markdown]
# ## Change the company, change the padding
#
# Our sentence of five words is back, with a partner of 50. We change one thing at a time and look
# at our first four words' outputs. Beside the two pooled BatchNorms and your LayerNorm stands the
# layer that normalizes "inside the sentence" in the literal sense: one mean for all words of a
# sentence. Which of the four will stand still?
#
# The right panel asks the notes' claim that the output has mean 0 and *variance 1*.


# %% kind="demo"
def ln(x, eps=1e-5):
    """Your LayerNorm over the last axis, without gamma and beta."""
    return layernorm_forward(x, np.ones(x.shape[-1]), np.zeros(x.shape[-1]), {"eps": eps})[0]


ways = {  # batch (B, T, 8), real (B, T): our five words' outputs, (5, 8)
    "BN, pooled": lambda batch, real: bn(batch.reshape(-1, 8))[:5],
    "BN, no padding": lambda batch, real: bn(batch[real])[:5],
    "a mean a sentence": lambda batch, real: ln(batch[0].ravel())[:40].reshape(5, 8),
    "LayerNorm": lambda batch, real: ln(batch)[0, :5],
}


def our_outputs(way, sentences, length=0):
    batch = as_batch(sentences, length)
    real = np.arange(batch.shape[1]) < np.array([len(s) for s in sentences])[:, None]
    return ways[way](batch, real)


partner, other = say(50), say(50)
last_word = our_five.copy()
last_word[4] = words[20]
changes = {
    "another partner": ([our_five, other],),
    "no partner": ([our_five],),
    "padding up to 200": ([our_five, partner], 200),
    "another last word of ours": ([last_word, partner],),
}
print("largest move among our first four words' outputs")
print(f"{'change':28s}" + "".join(f"{name:>19s}" for name in ways))
for name, change in changes.items():
    moved = (
        np.abs(our_outputs(way, *change) - our_outputs(way, [our_five, partner]))[:4].max()
        for way in ways
    )
    print(f"{name:28s}" + "".join(f"{m:19.2f}" if m else f"{'none at all':>19s}" for m in moved))

theirs = nn.LayerNorm(8, dtype=torch.float64)
sample = torch.from_numpy(as_batch([our_five, partner]))
by_torch = theirs(sample).detach()
print("\nPyTorch's LayerNorm keeps", len(list(theirs.buffers())), "running averages;", end=" ")
print("train() and eval() agree:", torch.equal(by_torch, theirs.eval()(sample).detach()))
gap = np.abs(by_torch.numpy() - ln(sample.numpy())).max()
print("yours", "agrees with it" if gap < 1e-12 else f"differs from it by {gap:.0e}")

fig, (left, right) = plt.subplots(1, 2, figsize=(8.6, 3))
lengths = np.array([50, 70, 100, 150, 200, 300, 400])
looks = ((ORANGE, "^"), (GREY, "s"), ("black", "D"), (BLUE, "o"))
for way, (colour, mark) in zip(ways, looks, strict=True):
    trace = [our_outputs(way, [our_five, partner], length)[0, 0] for length in lengths]
    left.plot(lengths, trace, "-" + mark, color=colour, ms=4, linewidth=1, label=way)
left.set(xlabel="length to which the batch is padded", ylabel="our first word, feature 0")
left.legend(fontsize=8)
spread = np.logspace(-5, 1, 25)
rows = np.random.default_rng(61).normal(size=64)
rows = spread[:, None] * (rows - rows.mean()) / rows.std()
right.semilogx(spread, spread**2 / (spread**2 + 1e-5), color=GREY, linewidth=1)
right.semilogx(spread, ln(rows).var(axis=-1), "o", color=BLUE, ms=4, label="your output")
right.axvline(np.sqrt(1e-5), color=GREY, linestyle=":")
right.text(np.sqrt(1e-5) * 0.7, 0.9, "$\\sqrt{\\epsilon}$", ha="right")
right.set(xlabel="standard deviation σ of the token", ylabel="variance of its output")
right.legend(loc="lower right", fontsize=8)
fig.tight_layout()
plt.show()
for at in (0, 8, 12, 16):
    print(f"sigma {spread[at]:7.1e}: variance of the output {ln(rows)[at].var():.6f}")

# %% [markdown]
# ### See: it does not even notice
#
# - **LayerNorm**: "none at all" is exact, not a rounding. Partner, padding, other words of the
#   same sentence: none of them enters the computation. This is what makes it fit sentences of any
#   length, as the notes say.
# - **One mean a sentence** does not mind who the partner is, but how long: what it says of a word
#   grows with the padding (left, diamonds), more than BatchNorm's does, and every word leaks into
#   the others. You get this layer from `nn.LayerNorm((T, D))`, two sizes where one was meant.
# - **BatchNorm without padding** stands still when only the padding changes, and for nothing else.
# - PyTorch's LayerNorm has no buffers and one behaviour. `train()` and `eval()` make no
#   difference, and yours agrees with it.
# - **Right.** As in lesson 02 the variance is $\sigma^2/(\sigma^2+\epsilon)$: 1 as long as the
#   token's own spread is well above $\sqrt{\epsilon}$ = 0.0032, one half there, and nothing below.
#   "Variance 1" is true of ordinary tokens. A blank row of an image is none.
#
# ## The way back
#
# Nudge one feature of one token. Whose outputs move? The token's own D outputs, through its mean
# and its variance, and nobody else's. So lesson 03's formula holds, along the other axis. With
# $g = \mathrm{dout}\cdot\gamma$, $s=\sqrt{\sigma^2+\epsilon}$, and the bar for the mean over the
# *features* of a token:
#
# $$\mathrm{dx} = \frac{1}{s}\Big(\underbrace{g}_{(...,D)} - \underbrace{\bar{g}}_{(...,1)}
# - \underbrace{\hat{x}}_{(...,D)}\,\underbrace{\overline{g\,\hat{x}}}_{(...,1)}\Big)$$
#
# One thing is not as in lesson 03. There you could compute the bracket from `dout` and multiply by
# `gamma` afterwards:
#
# $$\text{BatchNorm: } \frac{1}{N}\sum_i \gamma_j\,\mathrm{dout}_{ij}
# = \gamma_j\,\frac{1}{N}\sum_i \mathrm{dout}_{ij}, \qquad
# \text{LayerNorm: } \frac{1}{D}\sum_j \gamma_j\,\mathrm{dout}_{ij} = \;?$$
#
# On the right $\gamma_j$ has the index that is summed. It does not come out: **`gamma` belongs
# inside the means.** The slip is invisible while all `gamma` are equal, as they are at the start.
#
# `dgamma` and `dbeta` have the shape (D,). All tokens used the same `gamma`, so all tokens report
# back: the sum runs over every axis *but* the last.
#
# ## Your turn: layernorm_backward
#
# *15 points.* Two kinds of sums, in two directions. Ask of each result what shape it must have.
#
# - `dout` may have two axes or more. `tuple(range(dout.ndim - 1))` lists all but the last.
# - Test with `gamma` that differ, more than one token, and $\epsilon = 0.1$. And never with a
#   constant `dout` (lessons 01 and 03): the true gradient may then be next to nothing.


# %% kind="exercise" name="layernorm_backward"
def layernorm_backward(dout, cache):
    """The gradients of layernorm_forward.

    dout: (..., D). Returns dx (dout's shape), dgamma (D,) and dbeta (D,).
    """
    ### BEGIN SOLUTION
    x_hat, std, gamma = cache
    others = tuple(range(dout.ndim - 1))
    dgamma = (dout * x_hat).sum(axis=others)
    dbeta = dout.sum(axis=others)
    g = dout * gamma
    g_mean = g.mean(axis=-1, keepdims=True)
    projection = (g * x_hat).mean(axis=-1, keepdims=True)
    dx = (g - g_mean - x_hat * projection) / std
    return dx, dgamma, dbeta
    ### END SOLUTION


# %% [markdown]
# ## Picture: who hears from whom
#
# Two sentences of three tokens with four features: 24 inputs, 24 outputs. Entry (row, column) says
# how fast the row's output moves when the column's input is nudged; orange is up, blue is down. On
# the left BatchNorm, pooled; on the right your LayerNorm, each row being your own backward pass of
# one output. What pattern do you expect?

# %% kind="demo"
BLUE_TO_ORANGE = plt.matplotlib.colors.LinearSegmentedColormap.from_list(
    "", [BLUE, "white", ORANGE]
)
nudge_x = np.random.default_rng(62).normal(size=(2, 3, 4))  # (B, T, D)
nudge_gamma = np.array([0.5, 1.0, 1.5, 2.0])
_, nudge_cache = layernorm_forward(nudge_x, nudge_gamma, np.zeros(4), {})
ln_moves = np.array(
    [layernorm_backward(np.eye(24)[k].reshape(2, 3, 4), nudge_cache)[0].ravel() for k in range(24)]
)


def bn_out(flat):
    table = flat.reshape(6, 4)
    return batchnorm_forward(table, nudge_gamma, np.zeros(4), {"mode": "train"})[0].ravel()


flat_x = nudge_x.ravel()
bn_moves = np.array(
    [(bn_out(flat_x + nudge) - bn_out(flat_x - nudge)) / 2e-5 for nudge in 1e-5 * np.eye(24)]
).T

fig, axes = plt.subplots(1, 2, figsize=(8.2, 4))
for axis, (table, title) in zip(
    axes, ((bn_moves, "BatchNorm, pooled"), (ln_moves, "LayerNorm (your backward)")), strict=True
):
    shown = axis.imshow(table, cmap=BLUE_TO_ORANGE, vmin=-1.5, vmax=1.5)
    for edge in np.arange(3.5, 23, 4):
        axis.axhline(edge, color=GREY, linewidth=1.2 if edge == 11.5 else 0.4)
        axis.axvline(edge, color=GREY, linewidth=1.2 if edge == 11.5 else 0.4)
    labels = [f"{s}{t}" for s in "AB" for t in range(3)]
    axis.set_xticks(np.arange(1.5, 24, 4), labels)
    axis.set_yticks(np.arange(1.5, 24, 4), labels)
    axis.tick_params(length=0)
    axis.set(xlabel="nudged token (4 features each)", ylabel="output of token", title=title)
fig.tight_layout()
plt.show()

grad_rng = np.random.default_rng(63)
print("    D   largest |row sum of dx|   tokens whose gradient varies more after   share taken")
for width in (4, 64, 512):
    x, dout = grad_rng.normal(size=(2, 1000, width))
    _, cache = layernorm_forward(x, np.ones(width), np.zeros(width), {})
    dx = layernorm_backward(dout, cache)[0]
    before, after = dout.var(axis=-1), (dx * np.sqrt(x.var(axis=-1, keepdims=True) + 1e-5)).var(-1)
    total = np.abs(dx.sum(axis=-1)).max()
    total = "below 1e-11" if total < 1e-11 else f"{total:.0e}"
    taken = 1 - (after / before).mean()
    print(f"{width:5d}   {total:>23s}   {np.sum(after > before):40d}   {taken:11.2%}")

x, dout = grad_rng.normal(size=(2, 2, 5, 6))
print("\nrelative error of dx, gamma pulled out of the means")
for name, gamma in (
    ("gamma all ones", np.ones(6)),
    ("gamma from 0.5 to 2", np.linspace(0.5, 2, 6)),
):
    _, cache = layernorm_forward(x, gamma, np.zeros(6), {})
    truth, dgamma, dbeta = layernorm_backward(dout, cache)
    _, bare = layernorm_forward(x, np.ones(6), np.zeros(6), {})
    pulled = gamma * layernorm_backward(dout, bare)[0]
    print(f"    {name:20s} {np.abs(pulled - truth).max() / np.abs(truth).max():.2f}")
leaves = [torch.tensor(a, requires_grad=True) for a in (x, gamma, np.zeros(6))]
out = nn.functional.layer_norm(leaves[0], (6,), leaves[1], leaves[2])
theirs = torch.autograd.grad(out, leaves, torch.from_numpy(dout))
for name, mine, their in zip(
    ("dx", "dgamma", "dbeta"), (truth, dgamma, dbeta), theirs, strict=True
):
    gap = np.abs(mine - their.numpy()).max()
    verdict = "agrees with autograd" if gap < 1e-12 else f"differs from autograd by {gap:.0e}"
    print(f"{name:6s} {mine.shape!s:9s} {verdict}")

# %% [markdown]
# ### See: stripes and blocks
#
# **Left.** BatchNorm ties each feature to the same feature of *every* token: a stripe in each
# block, across sentences as well.
#
# **Right.** LayerNorm ties all features of one token: full blocks down the diagonal, and exact
# zeros outside. What goes wrong in one token stays in its token.
#
# **Numbers.** The row sums of `dx` are zero: add a number to all features of a token, and
# LayerNorm takes it away again. The notes report, from Xu et al. (2019), that the gradients of
# the mean and of the variance "re-centre and re-scale" the gradient. Both are this projection. The
# mean's part makes the row mean exactly zero. The variance's part takes out what lies along
# $\hat{x}$, so (the factor $1/s$ aside) it can only lower the variance, and did so for each of the
# 1,000 tokens. How much? For a random gradient about one part in D − 1: a third at D = 4, 0.2 % at
# D = 512. Gradients in training are not random, and lesson 13 measures those.
#
# **The slip.** With `gamma` pulled out of the means the error is 0 while all `gamma` are 1, and
# 29 % of the largest entry when they run from 0.5 to 2. A network would start well and go astray
# as it learns.
#
# ## Images: two layers of one name
#
# An image has C channels at each of H·W pixels. Over what is "the layer" normalized? Lesson 01
# listed two answers under the name of LayerNorm. The figure in the GroupNorm paper (Wu and He
# 2018), PyTorch's example and the notes say: over C, H and W, all the numbers of an image. Vision
# transformers and ConvNeXt say: over C, each pixel for itself. ConvNeXt's authors were asked which
# is right, and answered that the LayerNorm paper, which has no images with axes for height and
# width, does not say (issue #19).
#
# Which of the two is your `layernorm_forward`, and what is a token then?


# %% kind="demo"
def draw_images(axis, group, title):
    """Draw (N, C, H, W) group numbers, an image a row: equal numbers share one mean."""
    samples, channels, height, width = group.shape
    colours = TINTS if group.max() < 3 else plt.cm.cividis(np.linspace(0.6, 1, group.max() + 1))
    canvas = np.ones((samples * (height + 1) - 1, channels * (width + 1) - 1, 3))
    for (n, c, h, w), number in np.ndenumerate(group):
        row, column = n * (height + 1) + h, c * (width + 1) + w
        canvas[row, column] = colours[number][:3]
        axis.text(column, row, number, ha="center", va="center", fontsize=7)
    axis.imshow(canvas, aspect="equal")
    places = [c * (width + 1) + (width - 1) / 2 for c in range(channels)]
    axis.set_xticks(places, [f"channel {c}" for c in range(channels)])
    places = [n * (height + 1) + (height - 1) / 2 for n in range(samples)]
    axis.set_yticks(places, [f"image {n}" for n in range(samples)])
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    axis.set_title(title, fontsize=9)


by_image = np.broadcast_to(np.arange(2).reshape(2, 1, 1, 1), (2, 3, 3, 4))
by_pixel = np.broadcast_to(np.arange(24).reshape(2, 1, 3, 4), (2, 3, 3, 4))
fig, (left, right) = plt.subplots(1, 2, figsize=(8.6, 2.6))
draw_images(left, by_image, "over C, H and W: 2 means of 36")
draw_images(right, by_pixel, "over C only: 24 means of 3")
fig.tight_layout()
plt.show()

# %% [markdown]
# ### See: an image as one token, or as many
#
# **Left.** Over C, H and W the whole image is one token of C·H·W features. (Lesson 04 ran into
# these means by accident, with `reshape(C, -1)` and N = C.)
#
# **Right.** Over C a pixel is a token, and the channels are its features. Move the channels to the
# last axis, and it is the function you have.
#
# ## Your turn: layernorm_chw_forward
#
# *5 points.* The left one. `gamma` and `beta` have the shape (C, H, W), one number for each
# feature of that long token. Use your `layernorm_forward`: here a plain `reshape` is safe. Why,
# when it was not in lesson 04?


# %% kind="exercise" name="layernorm_chw_forward"
def layernorm_chw_forward(x, gamma, beta, ln_param):
    """LayerNorm for images as in GroupNorm's figure: statistics over C, H and W together.

    x: (N, C, H, W). gamma, beta: (C, H, W). ln_param: as in layernorm_forward.
    Returns out (N, C, H, W) and a cache for the backward pass.
    """
    ### BEGIN SOLUTION
    flat = x.reshape(len(x), -1)
    out, cache = layernorm_forward(flat, gamma.ravel(), beta.ravel(), ln_param)
    return out.reshape(x.shape), cache
    ### END SOLUTION


# %% [markdown]
# ## A photograph through both
#
# Guess what each will do to a photograph: which of them could you undo with two numbers?

# %% kind="demo"
from sklearn.datasets import load_sample_image

photo = load_sample_image("china.jpg")[4:420:2, ::2] / 255  # (208, 320, 3)
image = photo.transpose(2, 0, 1)[None]  # (1, 3, 208, 320)
ones_chw, zeros_chw = np.ones(image.shape[1:]), np.zeros(image.shape[1:])
by_chw = layernorm_chw_forward(image, ones_chw, zeros_chw, {})[0][0].transpose(1, 2, 0)
by_c = ln(photo)  # the channels are the last axis here: each pixel is a token of 3


def viewable(picture):
    return np.clip(0.5 + picture / 5, 0, 1)


fig, panels = plt.subplots(1, 3, figsize=(9, 2.3))
views = (photo, viewable(by_chw), viewable(by_c))
for panel, view, title in zip(
    panels, views, ("photograph", "over C, H, W", "over C only"), strict=True
):
    panel.imshow(view)
    panel.set_title(title, fontsize=9)
    panel.set_axis_off()
fig.tight_layout()
plt.show()
change = np.linalg.norm(by_c - by_chw) / np.linalg.norm(by_chw)
print(f"over C only differs from over C, H, W by {change:.0%} of the latter's norm")
group = nn.GroupNorm(1, 3, dtype=torch.float64)(torch.from_numpy(image)).detach().numpy()
gap = np.abs(group[0].transpose(1, 2, 0) - by_chw).max()
print(
    "GroupNorm with one group:", "the same numbers" if gap < 1e-10 else f"off by {gap:.0e}", end=""
)
print(f"; its gamma {tuple(nn.GroupNorm(1, 3).weight.shape)}, yours {ones_chw.shape}")

# %% [markdown]
# ### See: do not take one for the other
#
# **Middle.** Over C, H and W: the same picture, with another brightness and contrast. Two numbers
# would bring it back.
#
# **Right.** Over C: each pixel has lost its brightness and its contrast between channels, and
# pure hue is left, pale sky and dark roof alike. With three channels that destroys an image, as
# a puzzled user found (ConvNeXt, issue #136). With hundreds of channels, as inside a network, two
# numbers of each pixel are a small loss.
#
# The outputs differ by 129 % of their norm, so the two are not variants of one layer. GroupNorm
# with one group has the means of the middle one, and the same numbers as long as nothing is
# learned. Its `gamma` has the shape (C,), yours (C, H, W), which ties the layer to one size of
# image. Lesson 07 takes it from there.
#
# ## What is lost for good
#
# In lesson 02 `gamma` and `beta` could give BatchNorm's input back. The notes say of normalization
# in general that it throws away what is unimportant, that this hurts expressiveness, and that the
# affine restores it. Is it so here?
#
# $$\mathrm{LN}(a\,x + b) = \mathrm{LN}(x) \qquad \text{for any numbers } a>0,\; b
# \quad (\epsilon = 0)$$
#
# Two tokens that differ in scale and offset only come out *equal*. No function of the output can
# tell them apart again, and an affine least of all. In BatchNorm there is one $(\gamma_j, \beta_j)$
# for each pair $(\mu_j, \sigma_j)$ that was taken out. In LayerNorm each *token* has lost a
# $(\mu_i, \sigma_i)$, and all tokens share one set of `gamma` and `beta`, which lies across.
#
# See it on an image cut into patches of 8 × 8 pixels, as a vision transformer cuts it: 1,040
# tokens of 192 numbers. Least squares finds the best `gamma` and `beta` there are for getting the
# patches back.

# %% kind="demo"
patches = photo.reshape(26, 8, 40, 8, 3).swapaxes(1, 2).reshape(1040, 192)  # 8 x 8 pixels each


def as_image(table):
    return table.reshape(26, 40, 8, 8, 3).swapaxes(1, 2).reshape(208, 320, 3)


x_hat = ln(patches)
for eps in (1e-5, 1e-12):
    gap = np.abs(ln(3 * patches + 5, eps) - ln(patches, eps)).max()
    print(f"eps {eps:g}: LN(3x + 5) and LN(x) differ by {gap:.0e} at most")
# the best gamma and beta there are, feature by feature: least squares
best_gamma = ((x_hat - x_hat.mean(0)) * patches).mean(0) / x_hat.var(axis=0)
best_beta = patches.mean(axis=0) - best_gamma * x_hat.mean(axis=0)
ln_back = layernorm_forward(patches, best_gamma, best_beta, {})[0]
bn_gamma, bn_beta = np.sqrt(patches.var(axis=0) + 1e-5), patches.mean(axis=0)
bn_back = batchnorm_forward(patches, bn_gamma, bn_beta, {"mode": "train"})[0]
for name, back in (("LN", ln_back), ("BN", bn_back)):
    missed = ((back - patches) ** 2).mean() / patches.var(axis=0).mean()
    missed = "nothing" if missed < 1e-12 else f"{missed:.0%}"
    print(f"with the best gamma and beta {name} misses {missed} of the patches' variance")

fig, panels = plt.subplots(2, 2, figsize=(7.6, 5.2))
views = {
    "photograph": photo,
    "each 8 × 8 patch after your LN": viewable(as_image(x_hat)),
    "LN, best gamma and beta": np.clip(as_image(ln_back), 0, 1),
    "BN, best gamma and beta": np.clip(as_image(bn_back), 0, 1),
}
for panel, (title, view) in zip(panels.flat, views.items(), strict=True):
    panel.imshow(view)
    panel.set_title(title, fontsize=9)
    panel.set_axis_off()
fig.tight_layout()
plt.show()

# %% [markdown]
# ### See: brightness and contrast are gone
#
# - LN(3x + 5) = LN(x) holds as far as $\epsilon$ lets it: patches of plain sky have a variance
#   near the default $\epsilon$, and for them it is visibly off. With $\epsilon = 10^{-12}$ the
#   difference is below a millionth.
# - **Top right.** After LayerNorm a patch of sky shouts as loud as a patch of roof. What was noise
#   in the sky has become a pattern.
# - **Bottom.** BatchNorm's affine gives every patch back. The best affine that LayerNorm can have
#   misses 71 % of the patches' variance: it gives all patches the same average look.
#
# So "the affine restores it" is true of BatchNorm: two moments for each feature, all that was
# taken. Of LayerNorm it is not. Each token's mean and scale are lost to whatever comes behind,
# for good. (Gupta et al. 2024 call it LayerNorm's irreversibility.) Whether they were
# "unimportant" depends on the task: for the roof hardly anything is missing, for the question
# "is it day or night?" everything is. Transformers keep a way around the layer, the residual
# stream of lesson 13.
#
# ## Who keeps which differences
#
# The notes explain the division of labour like this: in images the differences between *channels*
# matter, and LayerNorm would lose them, so BatchNorm is used; in language the differences between
# *tokens* matter, and LayerNorm preserves them. It sounds convincing. Measure it: each row of
# eight pixels in scikit-learn's digits is a token, 14,376 of them. How long are the tokens, and
# how far does each feature spread, before and after?

# %% kind="demo"
from sklearn.datasets import load_digits

pixels, digit = load_digits(return_X_y=True)
lines = pixels.reshape(-1, 8) / 16  # each row of 8 pixels of each image is a token
kinds = {"before": lines, "after BN": bn(lines), "after LN": ln(lines)}
fig, (left, right) = plt.subplots(1, 2, figsize=(8.6, 3))
looks = ((GREY, "--"), (ORANGE, "-"), (BLUE, "-"))
for (name, table), (colour, style) in zip(kinds.items(), looks, strict=True):
    norms = np.sqrt((table**2).mean(axis=1))
    left.hist(norms, bins=np.arange(0, 3.5, 0.05), histtype="step", color=colour, linestyle=style)
    right.plot(range(8), table.std(axis=0), style, marker="o", ms=4, color=colour, label=name)
    cuts = " ".join(f"{cut:5.2f}" for cut in np.quantile(norms, (0.01, 0.5, 0.99)))
    print(f"{name:9s} norm / sqrt(D), 1, 50, 99 %: {cuts};", end="  ")
    print("features' stds", " ".join(f"{std:.2f}" for std in table.std(axis=0)))
left.set(xlabel="token's norm / $\\sqrt{D}$", ylabel="tokens", ylim=(0, 2500))
right.set(xlabel="feature", ylabel="standard deviation over tokens")
right.legend(fontsize=8)
fig.tight_layout()
plt.show()

# %% [markdown]
# ### See: each erases along its own axis
#
# **Left.** LayerNorm gives all tokens the same length, $\sqrt{D}$ (the spike). BatchNorm keeps them
# different, from 0.43 to 2.32 between the outermost percents.
#
# **Right.** BatchNorm gives all features the same spread (the first one is nearly always 0, and
# $\epsilon$ shows). LayerNorm keeps them different.
#
# So the simple part of the story is the other way round: LayerNorm erases how long a *token* is,
# BatchNorm erases how far a *channel* reaches. What survives in both is the rest, the directions.
# As an argument for one layer in vision and the other in language it is a heuristic at best;
# ConvNeXt is a vision network with LayerNorm throughout. Below you train both on digits.
#
# ## RMSNorm: without the mean
#
# If a layer can do with less, take something away. Zhang and Sennrich (2019) left out the mean:
#
# $$r_i = \sqrt{\frac{1}{D}\sum_{j=1}^{D} x_{ij}^2+\epsilon}, \qquad
# \mathrm{out}_{ij} = \gamma_j\,\frac{x_{ij}}{r_i}$$
#
# One statistic a token in place of two, no centring, no `beta`. They report results like
# LayerNorm's in 7 to 64 % less time, depending on the model (their abstract; we time nothing
# here, lesson 16 counts bytes). Today's language models, Llama and Gemma among them, use it.
#
# As $\overline{x^2} = \sigma^2+\mu^2$, it equals LayerNorm for tokens of mean zero. And for the
# others? You will measure it in a moment.
#
# Where does $\epsilon$ stand? The authors' PyTorch code adds it to the root (1e-8), their
# TensorFlow code to the mean square, and so does `torch.nn.RMSNorm`, whose own default `eps=None`
# means the spacing of the floating-point type in use, `torch.finfo(...).eps`. Ours stands inside.
#
# ## Your turn: rmsnorm_forward
#
# *10 points.* The *mean* of the squares, not the sum, and no mean is subtracted, neither from `x`
# nor by way of a variance.


# %% kind="exercise" name="rmsnorm_forward"
def rmsnorm_forward(x, gamma, rms_param):
    """RMSNorm: each token is divided by its own root mean square. No mean, no shift.

    x: (..., D). gamma: (D,). rms_param: {"eps": 1e-5 where not given}; eps stands inside the root.
    Returns out (x's shape) and a cache for the backward pass.
    """
    ### BEGIN SOLUTION
    eps = rms_param.get("eps", 1e-5)
    rms = np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps)
    x_hat = x / rms
    out = gamma * x_hat
    cache = x_hat, rms, gamma
    return out, cache
    ### END SOLUTION


# %% [markdown]
# ## RMSNorm's way back
#
# Two paths only: direct, and through $r$. Every $x_k$ of a token is divided by $r$, so $r$ hears
# from all of them:
#
# $$\mathrm{dr} = -\frac{1}{r^2}\sum_k g_k\,x_k, \qquad
# \frac{\partial r}{\partial x_j} = \frac{x_j}{D\,r} = \frac{\hat{x}_j}{D}
# \qquad\text{hence}\qquad \mathrm{dx} = \frac{1}{r}\Big(g - \hat{x}\;\overline{g\,\hat{x}}\Big)$$
#
# It is LayerNorm's formula without $\bar{g}$. Ask the geometry why: stretching a token changes
# nothing, so the part along $\hat{x}$ is taken out. Shifting a token *does* change the output, so
# nothing is taken out along ones.
#
# ## Your turn: rmsnorm_backward
#
# *10 points.* `dx` and `dgamma`; there is no `beta`. `gamma` is inside the mean again.


# %% kind="exercise" name="rmsnorm_backward"
def rmsnorm_backward(dout, cache):
    """The gradients of rmsnorm_forward.

    dout: (..., D). Returns dx (dout's shape) and dgamma (D,).
    """
    ### BEGIN SOLUTION
    x_hat, rms, gamma = cache
    dgamma = (dout * x_hat).sum(axis=tuple(range(dout.ndim - 1)))
    g = dout * gamma
    dx = (g - x_hat * (g * x_hat).mean(axis=-1, keepdims=True)) / rms
    return dx, dgamma
    ### END SOLUTION


# %% [markdown]
# ## RMSNorm beside LayerNorm
#
# First your backward pass against autograd. Then one token of four features, with a number added
# to all of them: what becomes of its four outputs? Last, how far apart are the two layers on
# average, and where do random tokens of D independent features lie?


# %% kind="demo"
def rms_norm(x, eps=1e-5):
    """Your RMSNorm over the last axis, without gamma."""
    return rmsnorm_forward(x, np.ones(x.shape[-1]), {"eps": eps})[0]


rms_rng = np.random.default_rng(64)
x, dout = rms_rng.normal(size=(2, 2, 5, 6))
gamma = np.linspace(0.5, 2, 6)
out, cache = rmsnorm_forward(x, gamma, {"eps": 0.1})
mine = rmsnorm_backward(dout, cache)
leaves = [torch.tensor(a, requires_grad=True) for a in (x, gamma)]
by_torch = leaves[0] / torch.sqrt((leaves[0] ** 2).mean(dim=-1, keepdim=True) + 0.1) * leaves[1]
their = torch.autograd.grad(by_torch, leaves, torch.from_numpy(dout))
gaps = [np.abs(a - b.numpy()).max() for a, b in zip(mine, their, strict=True)]
print("autograd", "agrees" if max(gaps) < 1e-12 else f"differs by {max(gaps):.0e}")
print("row sums of dx, the largest:", np.abs(mine[0].sum(axis=-1)).max().round(2))

token = np.array([-1.5, 0.2, 0.5, 0.8])
shifts = np.linspace(-4, 4, 161)
moved = token + shifts[:, None]
fig, (left, right) = plt.subplots(1, 2, figsize=(8.6, 3))
left.plot(shifts, rms_norm(moved), color=ORANGE, linewidth=1.3)
left.plot(shifts, ln(moved), "--", color=BLUE, linewidth=1.3)
left.plot([], [], color=ORANGE, label="RMSNorm")
left.plot([], [], "--", color=BLUE, label="LayerNorm")
left.set(xlabel="number added to all four features", ylabel="the four outputs")
left.legend(fontsize=8, loc="upper left")
ratio = np.logspace(-2, 1, 100)
right.loglog(ratio, np.sqrt(2 - 2 / np.sqrt(1 + ratio**2)), color=GREY, linewidth=1)
right.text(0.25, 0.02, "$\\sqrt{2-2/\\sqrt{1+(\\mu/\\sigma)^2}}$")
for width in (4, 16, 64, 256, 1024):
    free = rms_rng.normal(size=(1000, width))
    typical = np.sqrt((free.mean(axis=1) ** 2 / free.var(axis=1)).mean())
    gap = np.sqrt(((rms_norm(free) - ln(free)) ** 2).mean())
    right.plot(typical, gap, "o", ms=5, color=BLUE)
    right.text(typical * 0.85, gap * 1.1, f"D = {width}", ha="right", fontsize=8)
    told = f"random tokens, D = {width:4d}: mean / std about {typical:.3f};"
    print(told, f"RMSNorm and LayerNorm differ by {gap:.3f}")
right.set(xlabel="|mean| / standard deviation of a token", ylabel="difference, root mean square")
right.set(xlim=(8e-3, 10))
fig.tight_layout()
plt.show()

# %% [markdown]
# ### See: the mean bends everything
#
# - Your gradients agree with autograd. The row sums of `dx` are *not* zero any more.
# - **Left.** LayerNorm (dashed) does not see what is added to all features. RMSNorm does: the
#   further to the side, the closer all four outputs crowd towards +1 or −1, and what made the
#   features differ is squeezed out.
# - **Right.** For one token the difference depends on mean over standard deviation alone (line).
#   For D independent features of mean zero that ratio is about $1/\sqrt{D}$ (dots, an average over
#   1,000 tokens): at D = 4 the two layers are far apart, at D = 1024 they differ by 3 %. So a wide
#   layer whose tokens have no common offset can do without the mean. Gupta et al. (2024) report
#   that hidden tokens of large language models do lie nearly across the vector of ones, those
#   trained with RMSNorm too.
#
# ## The notes' class, and what it computes
#
# Each of the two notes prints a LayerNorm in PyTorch. They differ in names only: both take
# `x.std()` and add $\epsilon$ to *it*. The pattern is old and widespread: it stands in the
# Annotated Transformer (pull request #119 and issue #122 ask about it), and BERT-pytorch took it
# over from there (issue #30). Do these lines compute the formula printed above them?
# (H is the notes' hidden size, our D.)
#
# Three questions to guess at: what does `std()` divide by? What does $\epsilon$ weigh outside the
# root, compared with inside? And for which tokens does anyone notice?


# %% kind="demo"
class NotesNorm(nn.Module):
    """What both of the notes' classes compute: std() as it comes, eps added to it."""

    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(hidden_size))
        self.shift = nn.Parameter(torch.zeros(hidden_size))
        self.eps = eps

    def forward(self, x):
        centred = x - x.mean(dim=-1, keepdim=True)
        return self.scale * (centred / (x.std(dim=-1, keepdim=True) + self.eps)) + self.shift


def pair(width, eps):
    """The notes' class and PyTorch's, with the same eps, in float64."""
    return NotesNorm(width, eps).double(), nn.LayerNorm(width, eps=eps, dtype=torch.float64)


def gain(layer, x):
    """The gradient at x (..., width) when only output 0 of each token counts: its largest entry."""
    x = x.clone().requires_grad_()
    return torch.autograd.grad(layer(x)[..., 0].sum(), x)[0].abs().amax(dim=-1)


example = torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64)
for name, layer in zip(("notes  ", "PyTorch"), pair(4, 1e-6), strict=True):
    print(name, "of [1, 0, 0, 0]:", layer(example).detach().numpy().round(4))
flat_token = torch.ones(4, dtype=torch.float64)
for eps in (1e-6, 1e-5):
    told = [f"{gain(layer, flat_token).item():9.4g}" for layer in pair(4, eps)]
    print(f"constant token, H = 4, eps {eps:g}: gradient, notes {told[0]}, PyTorch {told[1]}")

notes_rng = np.random.default_rng(65)
fig, panels = plt.subplots(1, 3, figsize=(9.4, 3))
widths = [2**k for k in range(1, 13)]
for spread, mark, colour in ((1.0, "o", BLUE), (1e-4, "^", ORANGE)):
    errors = []
    for width in widths:
        x = spread * torch.from_numpy(notes_rng.normal(size=(50, width)))
        notes, right = (layer(x).detach() for layer in pair(width, 1e-6))
        errors.append(((notes - right).norm() / right.norm()).item())
    panels[0].loglog(widths, errors, mark, color=colour, ms=4, label=f"token's std {spread:g}")
    told = ", ".join(f"{errors[k - 1]:.3g} at H = {2**k}" for k in (2, 6, 9))
    print(f"forward, tokens of std {spread:g}: relative difference {told}")
panels[0].loglog(widths, 1 - np.sqrt(1 - 1 / np.array(widths)), color=GREY, linewidth=0.8, zorder=0)
panels[0].set(xlabel="hidden size H", ylabel="relative difference", title="forward, over H")
panels[0].legend(fontsize=8, loc=(0.1, 0.6))

spreads = np.logspace(-8, 0, 17)
row = notes_rng.normal(size=64)
x = torch.from_numpy(spreads[:, None] * (row - row.mean()) / row.std())
for name, layer, mark, colour in zip(
    ("notes", "PyTorch"), pair(64, 1e-6), "^o", (ORANGE, BLUE), strict=True
):
    look = {"ms": 4, "color": colour, "label": name}
    panels[1].semilogx(spreads, layer(x).detach().std(dim=-1, correction=0), mark, **look)
    panels[2].loglog(spreads, gain(layer, x), mark, **look)
for panel in panels[1:]:
    panel.set_xlabel("standard deviation of the token")
    for place, text in ((1e-6, " $\\epsilon$"), (1e-3, " $\\sqrt{\\epsilon}$")):
        panel.axvline(place, color=GREY, linestyle=":", linewidth=1)
        panel.text(place, 0.02, text, transform=panel.get_xaxis_transform())
panels[1].set(ylabel="std of its output", title="forward, H = 64")
panels[2].set(ylabel="largest gradient", title="backward, H = 64")
panels[2].legend(fontsize=8)
fig.tight_layout()
plt.show()

print("largest gradient at a constant token, times eps (notes), times sqrt(eps) (PyTorch)")
print("     eps   " + "".join(f"{f'H = {width}':>18s}" for width in (4, 64, 512)))
for eps in (1e-3, 1e-5, 1e-6, 1e-8):
    told = []
    for width in (4, 64, 512):
        ones_h = torch.ones(width, dtype=torch.float64)
        notes, right = (gain(layer, ones_h).item() for layer in pair(width, eps))
        told.append(f"{notes * eps:.4f}   {right * eps**0.5:.4f}")
    print(f"{eps:8.0e}   " + "".join(f"{text:>18s}" for text in told))
print("1 - 1/H    " + "".join(f"{1 - 1 / width:18.4f}" for width in (4, 64, 512)))

# %% [markdown]
# ### See: two slips, one of them loud
#
# - **`std()` divides by H − 1.** It is larger by $\sqrt{H/(H-1)}$, so the outputs are too small
#   by $1-\sqrt{1-1/H}$ (left, line): 13 % at H = 4, 0.1 % at H = 512. Turned round, the right
#   outputs are 15 % larger: 1.732 in place of 1.5 in the little example. In a wide layer nobody
#   will notice, and `gamma` can learn to make up for it.
# - **$\epsilon$ outside the root** is another $\epsilon$: it begins to matter at
#   $\sigma=\epsilon$, inside at $\sigma=\sqrt{\epsilon}$. Between the two, 0.000001 and 0.001, the
#   notes' class blows a nearly constant token up to full size and PyTorch's lets it be small
#   (middle; and the triangles on the left: ten times as large, whatever H).
# - **Backward** (right) is where it hurts. Both gradients grow as $1/\sigma$ until $\epsilon$
#   stops them: at $1/\sqrt{\epsilon}$ inside the root, at $1/\epsilon$ outside. At a constant
#   token, H = 4, equal $\epsilon=10^{-6}$: 750 against 750,000.
#
# The table under the figure verifies it: $(1-\frac{1}{H})/\epsilon$ against
# $(1-\frac{1}{H})/\sqrt{\epsilon}$, for every H and $\epsilon$ we tried. With PyTorch's default
# 1e-5 the right layer says 237.
#
# Are there constant tokens? Padding is one, a blank row of pixels another, a token whose ReLUs are
# all dead a third. PyTorch Geometric met NaNs in gradients with an $\epsilon$ outside, and moved it
# into the root (pull request #2917). On an ordinary token of a wide layer the two agree to a part
# in a thousand, and that may be why the pattern lives on.
#
# ## Half precision
#
# Lesson 04 showed what 16 bits do to statistics. A norm that takes squares of *tokens* meets it
# sooner: RMSNorm squares the numbers themselves, not their deviations. Tokens of 64 normal numbers
# times a size, in float16, which ends at 65,504:


# %% kind="demo"
def plain_rms(x):
    return x / torch.sqrt((x**2).mean(dim=-1, keepdim=True) + 1e-6)


def plain_ln(x):
    centred = x - x.mean(dim=-1, keepdim=True)
    return centred / torch.sqrt((centred**2).mean(dim=-1, keepdim=True) + 1e-6)


half_rng = np.random.default_rng(66)
print("300 squared in float16:", (torch.tensor(300.0, dtype=torch.float16) ** 2).item())
print("tokens of 64 numbers; root mean square of the error")
print("               float16 throughout        statistics in float32")
print("  size    LayerNorm     RMSNorm     LayerNorm     RMSNorm")
for size in (1, 10, 100, 300, 1000):
    x = torch.from_numpy(size * half_rng.normal(size=(200, 64))).half()
    told = []
    for through in (lambda f, x: f(x), lambda f, x: f(x.float()).half()):
        for f in (plain_ln, plain_rms):
            error = (through(f, x).double() - f(x.double())).square().mean().sqrt().item()
            told.append(f"{error:12.4f}")
    print(f"{size:6d} " + " ".join(told))

# %% [markdown]
# ### See: squares end early
#
# At size 100 some numbers exceed 256, their squares are infinite, and the whole token becomes 0:
# an error as large as the output itself, without a NaN to warn you. At 300 every token is lost.
# (Both norms fare alike, as these tokens have mean zero. With an offset RMSNorm goes first.)
# With the statistics in float32 only the rounding of the output is left. A Llama run in float16
# with PyTorch's own RMSNorm as it was in 2024 gave wrong answers for this reason (PyTorch, pull
# request #133085).
#
# There is a second trap at the end of the line. Parameters are often kept in float32, and float16
# times float32 is float32: the output has the wrong type, and with it what comes after
# (transformers, issue #30236). So: to float32 for the statistics, multiply, and back to `x`'s
# type at the very end. Models differ even here: Llama casts back *before* it multiplies by the
# weight, Gemma multiplies by (1 + weight) in float32 and then casts. Ours multiplies first.
#
# ## Your turn: RepairedLayerNorm
#
# *15 points.* Mend the notes' class.
#
# - Which variance, and where does $\epsilon$ stand? Look at `torch.var`'s default.
# - `weight` and `bias` are PyTorch's names; with them a `state_dict` of `nn.LayerNorm` loads. (The
#   notes call them `gamma` and `beta`, or `a_2` and `b_2`.)
# - float16 and bfloat16 go through float32 and come back. float64 stays float64.
# - Write the arithmetic: `nn.LayerNorm` and `F.layer_norm` earn nothing here.


# %% kind="exercise" name="RepairedLayerNorm"
class RepairedLayerNorm(nn.Module):
    """The notes' LayerNorm class, mended: it computes what torch.nn.LayerNorm computes.

    Parameters weight (ones) and bias (zeros), both (hidden_size,). Statistics over the last axis
    only. Half precision (float16, bfloat16) is computed in float32 and returned in x's dtype, also
    where the parameters are float32.
    """

    def __init__(self, hidden_size, eps=1e-5):
        super().__init__()
        self.eps = eps
        ### BEGIN SOLUTION
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.bias = nn.Parameter(torch.zeros(hidden_size))
        ### END SOLUTION

    def forward(self, x):
        """x: (..., hidden_size). Returns the same shape and dtype."""
        ### BEGIN SOLUTION
        wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        mean = wide.mean(dim=-1, keepdim=True)
        var = wide.var(dim=-1, keepdim=True, unbiased=False)
        out = (wide - mean) / torch.sqrt(var + self.eps)
        return (out * self.weight + self.bias).to(x.dtype)
        ### END SOLUTION


# %% [markdown]
# ## Your turn: RMSNorm
#
# *10 points.* The same care, with less to compute. One parameter, `weight`, and $\epsilon$ inside
# the root. (Its default is 1e-6 here, while your `rmsnorm_forward` had 1e-5. Defaults differ from
# code to code: pass the one you mean.) `nn.RMSNorm` and `F.rms_norm` earn nothing here.


# %% kind="exercise" name="RMSNorm"
class RMSNorm(nn.Module):
    """RMSNorm as a PyTorch module, as in today's language models.

    Parameter weight (ones), (hidden_size,); no bias. eps stands inside the root. Half precision
    (float16, bfloat16) is computed in float32, so that 300 squared does not overflow, and returned
    in x's dtype, also where the weight is float32.
    """

    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.eps = eps
        ### BEGIN SOLUTION
        self.weight = nn.Parameter(torch.ones(hidden_size))
        ### END SOLUTION

    def forward(self, x):
        """x: (..., hidden_size). Returns the same shape and dtype."""
        ### BEGIN SOLUTION
        wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        rms = torch.sqrt(wide.square().mean(dim=-1, keepdim=True) + self.eps)
        return (wide / rms * self.weight).to(x.dtype)
        ### END SOLUTION


# %% [markdown]
# ## Your two modules beside PyTorch's
#
# Each loads the `state_dict` of PyTorch's own layer and gets the same tokens, of size 300.

# %% kind="demo"
beside_rng = np.random.default_rng(67)
print("dtype       LayerNorm    RMSNorm     (largest difference from PyTorch's own)")
for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
    x = torch.from_numpy(300 * beside_rng.normal(size=(4, 10, 64))).to(dtype)
    told = []
    for mine, their in (
        (RepairedLayerNorm(64), nn.LayerNorm(64)),
        (RMSNorm(64, eps=1e-6), nn.RMSNorm(64, eps=1e-6)),
    ):
        mine.load_state_dict(their.state_dict())
        a, b = mine.to(dtype)(x), their.to(dtype)(x)
        told.append(f"{(a - b).abs().max().item():9.1e}" + ("" if a.dtype == dtype else " dtype!"))
    print(f"{str(dtype)[6:]:10s} " + "   ".join(told))
mixed = RMSNorm(64)(torch.ones(2, 64, dtype=torch.bfloat16))
print("bfloat16 in, float32 weight:", str(mixed.dtype)[6:], "out")
tiny = torch.full((1, 8), 1e-5)
implied = ((tiny / nn.RMSNorm(8)(tiny)) ** 2 - tiny**2)[0, 0].item()
spacing = torch.finfo(torch.float32).eps
print(f"torch.nn.RMSNorm's own eps in float32: {implied:.2e}; finfo says {spacing:.2e}")

# %% [markdown]
# ### See: the real thing
#
# Rounding in every row, in each type, at a size that overflows in float16 by the naive way; and
# bfloat16 stays bfloat16 beside a float32 weight. The last line reads PyTorch's own default off
# its output on tokens of 0.00001: `eps=None` adds float32's spacing, 1.2e-7, inside the root. It
# is *not* 1e-5 or 1e-6. When you load somebody's weights, load their $\epsilon$ as well.
#
# ## Who is invariant to what?
#
# Take a linear layer, `a = x @ W`, and behind it a norm without `gamma` and `beta`: 12 tokens, 6
# features in, 8 out. Now change something, in `a`, in the weights, in the data or in the company,
# and ask of the first five tokens: does their output move?
#
# The notes say that LayerNorm has all of BatchNorm's benefits and differs only in the axis. If so,
# the two columns should look alike. Ba, Kiros and Hinton gave a table of such invariances in
# their section 5.1, and Zhang and Sennrich added RMSNorm's row. We do not copy it; we *run* it,
# with your functions. First take a pencil: twelve changes, three norms, yes or no.
#
# The right panel asks how far a yes reaches: a token (for BatchNorm: a feature) of standard
# deviation 1 is multiplied by ever smaller factors.

# %% kind="demo"
table_rng = np.random.default_rng(68)
data, weights = table_rng.normal(size=(12, 6)), table_rng.normal(size=(6, 8))
norms = {"BN, training": bn, "LN": ln, "RMSNorm": rms_norm}
a = data @ weights
per_token = table_rng.uniform(0.5, 2, size=(12, 1))
per_feature = table_rng.uniform(0.5, 2, size=8)
vector = table_rng.normal(size=6)
third = np.where(np.arange(8) == 2, 3, 1)  # 3 at place 2, else 1
new_company = np.vstack([data[:5], table_rng.normal(size=(7, 6))])
changes = (  # what is changed, what then arrives at the norm, its name in the papers
    ("a: each token × its own number", per_token * a, "single case re-scaling"),
    ("a: each token + its own number", per_token + a, ""),
    ("a: each feature × its own number", per_feature * a, ""),
    ("a: each feature + its own number", per_feature + a, ""),
    ("all of W × 3", data @ (3 * weights), "weight matrix re-scaling"),
    ("each column of W + the same vector", data @ (weights + vector[:, None]), "re-centering of W"),
    ("one column of W × 3", data @ (weights * third), "weight vector re-scaling"),
    ("one row of W × 3", data @ (weights * third[:6, None]), ""),
    ("all data × 3", (3 * data) @ weights, "dataset re-scaling"),
    ("all data + the same vector", (data + vector) @ weights, "dataset re-centering"),
    ("other tokens in the company", new_company @ weights, ""),
    ("12 tokens of padding added", np.vstack([a, np.zeros((12, 8))]), ""),
)


def move(norm, changed):
    """How far the first five tokens' outputs move, relative to their size."""
    before, after = norm(a)[:5], norm(changed)[:5]
    return np.linalg.norm(after - before) / np.linalg.norm(before)


moved = np.array([[move(norm, changed) for norm in norms.values()] for _, changed, _ in changes])
stays = moved < 1e-4

fig, (left, right) = plt.subplots(1, 2, figsize=(9.4, 4.2), width_ratios=(1.15, 1))
left.imshow(np.where(stays[..., None], TINTS[0], TINTS[1]), aspect="auto")
for (row, column), value in np.ndenumerate(moved):
    text = f"✓ {value:.0e}" if stays[row, column] else f"✗ {value:.2f}"
    left.text(column, row, text if value else "✓ exactly", ha="center", va="center", fontsize=8)
left.set_yticks(range(12), [name for name, _, _ in changes], fontsize=8)
left.set_xticks(range(3), list(norms))
left.xaxis.tick_top()
left.tick_params(length=0)
left.spines[:].set_visible(False)
for edge in np.arange(0.5, 11):
    left.axhline(edge, color="white")
left.axvline(0.5, color="white")
left.axvline(1.5, color="white")

factors = np.logspace(-6, 2, 17)
unit = ln(table_rng.normal(size=(64, 64)), 1e-15)
tables = {"BN, training": unit.T, "LN": unit, "RMSNorm": unit}
marks = (("^", ORANGE, 10), ("o", BLUE, 5), ("x", "black", 5))
for (name, table), (mark, colour, size) in zip(tables.items(), marks, strict=True):
    f = norms[name]
    gaps = [np.linalg.norm(f(c * table) - f(table)) / np.linalg.norm(f(table)) for c in factors]
    right.loglog(factors, gaps, mark, color=colour, ms=size, label=name)
right.axvline(np.sqrt(1e-5), color=GREY, linestyle=":")
right.text(np.sqrt(1e-5), 1e-7, " $\\sqrt{\\epsilon}$")
right.set(xlabel="factor", ylabel="relative move of the output", ylim=(1e-7, 3))
right.legend(fontsize=8, loc="lower left")
fig.tight_layout()
plt.show()

papers = {  # BN, LN, RMSNorm: Ba et al. 2016, table 1; Zhang and Sennrich 2019
    "weight matrix re-scaling": "yyy",
    "re-centering of W": "nyn",
    "weight vector re-scaling": "ynn",
    "dataset re-scaling": "yyy",
    "dataset re-centering": "ynn",
    "single case re-scaling": "nyy",
}
ours = {
    name: "".join("ny"[int(s)] for s in row) for (*_, name), row in zip(changes, stays, strict=True)
}
for name, theirs in papers.items():
    print(f"{name:26s} papers {theirs}, measured {ours[name]}", "" if theirs == ours[name] else "!")

# %% [markdown]
# ### See: each is blind to something else
#
# - All six rows that are in the papers came out as the papers say.
# - **BatchNorm** is blind to what happens to a *feature* (rows 3, 4, 7, 10), **LayerNorm** to what
#   happens to a *token* (rows 1, 2, 6), **RMSNorm** to a token's scale only (row 1). One axis
#   more or less is not a detail. It decides what the layer cannot see.
# - All three are blind to the size of the whole weight matrix (row 5). What follows for the
#   learning rate is lesson 08.
# - Company and padding: exactly nothing for LayerNorm and RMSNorm.
# - **Right.** Scaling is forgiven up to $\epsilon$, by all three along the same curve: a few parts
#   in a million at ordinary sizes, but at $\sqrt{\epsilon}$ 29 % of the output is missing, and soon
#   all of it. What is *added* is taken away to rounding.
#
# "The same benefits" is not what the table shows. Nor are noise, running averages and folding
# shared (lessons 02 and 05): LayerNorm has no batch noise, keeps no diary, and as its
# $1/\sigma_i$ belongs to the token at hand, it cannot be folded into a weight matrix. (Its `gamma`
# and `beta` can, into the next linear layer.)
#
# ## Trained on digits
#
# The notes say that LayerNorm stabilizes and accelerates training, and that vision wants
# BatchNorm. A small test: digits, four hidden layers of 32 ReLUs, a norm before each ReLU: none,
# BatchNorm, your `RepairedLayerNorm`, your `RMSNorm`. 300 steps of plain gradient descent with
# batches of 2, 4, 8 or 32 images, six learning rates, five seeds, the same batches and first
# weights for all. At the end BatchNorm takes its statistics from the 1,000 training images, so
# whatever goes wrong with it has gone wrong in *training*. 400 images choose each arm's rate, 397
# others are the test.
#
# Write down your guess: who wins at a batch of 2, who at 32? (Count first: how many numbers make
# one of BatchNorm's means, and how many one of LayerNorm's?)

# %% kind="demo"
from functools import partial
from itertools import pairwise

torch.set_num_threads(1)
RATES, SEEDS, BATCHES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0), range(5), (2, 4, 8, 32)
STEPS, DEPTH, WIDTH = 300, 4, 32
seeded = [np.random.default_rng([69, seed]) for seed in SEEDS]
orders = np.array([rng.permutation(1797) for rng in seeded])
images = torch.from_numpy(pixels[orders] / 16).float()  # (seed, image, 64)
labels = torch.from_numpy(digit[orders])
sizes = [64] + [WIDTH] * DEPTH + [10]
first_weights = [
    torch.from_numpy(np.stack([rng.normal(0, np.sqrt(2 / n), (n, m)) for rng in seeded])).float()
    for n, m in pairwise(sizes)
]
chosen = {
    size: torch.from_numpy(np.stack([rng.integers(0, 1000, (STEPS, size)) for rng in seeded]))
    for size in BATCHES
}


def over_batch(h, measured=slice(None)):
    """BatchNorm without affine, with the statistics of the measured rows."""
    var, mean = torch.var_mean(h[..., measured, :], dim=-2, correction=0, keepdim=True)
    return (h - mean) / torch.sqrt(var + 1e-5)


def train_digits(name, size):
    """Validation and test accuracy, (rate, seed) each: 30 networks side by side."""
    normalize = NORMS[name]
    runs = (len(RATES), len(SEEDS))
    weights = [w.expand(*runs, *w.shape[1:]).clone() for w in first_weights]
    shifts = [torch.zeros(*runs, 1, w.shape[-1]) for w in weights]
    scales = [torch.ones(*runs, 1, WIDTH) for _ in range(DEPTH if name != "none" else 0)]
    learned = [p.requires_grad_() for p in (*weights, *shifts, *scales)]

    def network(h, normalize):
        for k in range(DEPTH):
            h = normalize(h @ weights[k])
            h = torch.relu((h * scales[k] if scales else h) + shifts[k])
        return h @ weights[-1] + shifts[-1]

    rate = torch.tensor(RATES).view(-1, 1, 1, 1)
    for step in range(STEPS):
        rows = torch.arange(len(SEEDS))[:, None], chosen[size][:, step]
        scores, wanted = network(images[rows], normalize), labels[rows].expand(*runs, size)
        loss = nn.functional.cross_entropy(scores.flatten(0, 2), wanted.flatten(), reduction="sum")
        slopes = torch.autograd.grad(loss / size, learned)
        with torch.no_grad():
            for parameter, slope in zip(learned, slopes, strict=True):
                parameter -= rate * slope
    if name == "BN":
        normalize = partial(over_batch, measured=slice(1000))
    with torch.no_grad():
        right = (network(images, normalize).argmax(dim=-1) == labels).float().numpy()
    return right[..., 1000:1400].mean(axis=-1), right[..., 1400:].mean(axis=-1)


NORMS = {
    "none": nn.Identity(),
    "BN": over_batch,
    "LN": RepairedLayerNorm(WIDTH).requires_grad_(False),
    "RMSNorm": RMSNorm(WIDTH, eps=1e-5).requires_grad_(False),
}
looks = ((GREY, ":", "s"), (ORANGE, "-", "^"), (BLUE, "-", "o"), ("black", "--", "x"))
fig, axes = plt.subplots(1, 4, figsize=(9.6, 2.8), sharey=True)
print("batch   norm       best rate   test accuracy    |  rates within 0.05 of the best")
for axis, size in zip(axes, BATCHES, strict=True):
    for name, (colour, style, mark) in zip(NORMS, looks, strict=True):
        valid, tested = train_digits(name, size)
        middle = valid.mean(axis=1)
        reach = np.abs([valid.min(axis=1) - middle, valid.max(axis=1) - middle])
        look = {"color": colour, "linestyle": style, "marker": mark, "ms": 4, "capsize": 2}
        axis.errorbar(RATES, middle, reach, linewidth=1.2, elinewidth=0.7, label=name, **look)
        top = middle.argmax()
        wide = ", ".join(
            f"{r:g}" for r, m in zip(RATES, middle, strict=True) if m > middle[top] - 0.05
        )
        mean, std = tested[top].mean(), tested[top].std()
        print(f"{size:5d}   {name:8s} {RATES[top]:11g}   {mean:.3f} +- {std:.3f}   |  {wide}")
    axis.set(xscale="log", xlabel="learning rate", title=f"batches of {size}", ylim=(0, 1))
    axis.minorticks_off()
axes[0].set_ylabel("validation accuracy")
fig.legend(*axes[0].get_legend_handles_labels(), loc="lower center", ncols=4)
fig.tight_layout(rect=(0, 0.08, 1, 1))
plt.show()

# %% [markdown]
# ### See: the batch decides
#
# In single precision processors round differently, so your numbers may differ a little from ours.
#
# - **Batches of 2.** BatchNorm learns next to nothing (0.22): two numbers make a mean, and it sees
#   +1 and −1, as in lesson 02. LayerNorm's means are those of 32 features, whatever the batch.
#   LayerNorm, RMSNorm and no norm at all reach 0.63 to 0.68, the same within the spread.
# - **Batches of 4.** BatchNorm is last, LayerNorm 0.05 ahead, which is about the spread. In three
#   repetitions with other random numbers BatchNorm was last as well, 0.07 to 0.11 behind LayerNorm.
# - **Batches of 8 and 32.** BatchNorm is best, 0.92 and 0.96, and stands the widest range of rates:
#   at 32 every rate from 0.03 to 1 is within 0.05 of its best one, while LayerNorm is down to 0.4
#   at 1. "Less sensitive to the learning rate" is true of both, and more so of BatchNorm, *if* the
#   batch is large enough.
# - **Faster?** At the smallest rate LayerNorm is well ahead of no norm, in each of the four panels.
#   With the rate tuned little is left: 0.944 against 0.932 at a batch of 32, about the spread.
# - **Does LayerNorm lose what vision needs?** Not that we can see. Set `STEPS` to 2,000, and in our
#   run BatchNorm and LayerNorm end at 0.985 and 0.980 with batches of 32; with batches of 2 at 0.27
#   and 0.93, and no norm at 0.94.
# - LayerNorm and RMSNorm cannot be told apart here, within the spread.
#
# It is a small network, fully connected, on easy images. Fully connected: so the batch is all that
# BatchNorm's means are made of. In a convnet pixels are averaged as well: lessons 07 and 08 will
# find that it is not the number of images that counts, but how many independent numbers make a
# mean. What does not depend on size: LayerNorm does not care how many images come along. That
# LayerNorm *stabilizes* training is reported for larger and recurrent networks (Ba et al. 2016),
# and lesson 13 looks at Transformers.
#
# ## Written question: who is invariant?
#
# *20 points, graded by hand.* (Working alone? In a checkout, `autograder solution who_is_invariant`
# shows a model answer.)
#
# The picture with the ticks has told you *what*. Now say *why*. A layer computes `a = x @ W`, and
# then one of three norms over `a`, each without `gamma` and `beta`: BatchNorm in training mode
# (pooled over all tokens), LayerNorm, RMSNorm. Let $c > 0$.
#
# 1. Make a table of seven rows and three columns. In each cell write "stays" or "moves" (do *the
#    outputs of the tokens that are looked at* move?) and the reason, in a few words: which
#    statistic takes the change up, or why none does.
#
#    - a. one token of `a` is multiplied by $c$
#    - b. one number is added to all features of one token of `a`
#    - c. one feature of `a` is multiplied by $c$ in all tokens, or a number is added to it
#    - d. all of `W` is multiplied by $c$
#    - e. the same vector is added to each column of `W`
#    - f. the *other* tokens of the batch are replaced
#    - g. the batch gets more rows of padding
# 2. Which of your "stays" are exact, which only up to $\epsilon$, and what if $c < 0$?
# 3. How does BatchNorm's column change in test mode?
# 4. "LayerNorm has all of BatchNorm's benefits and differs only in the axis." What is right about
#    it, and what is wrong? Use your table, and at least one thing that is not in it.
#
# `data`, `weights`, `norms` and `move` from the cell with the ticks are your bench.

# %% [markdown] kind="written" name="who_is_invariant" points=20
# ### BEGIN SOLUTION
# **Model answer.**
#
# *1.*
#
# | | BatchNorm, training | LayerNorm | RMSNorm |
# |---|---|---|---|
# | a. one token × c | moves | stays | stays |
# | b. one token + a number | moves | stays | moves |
# | c. one feature × c, or + a number | stays | moves | moves |
# | d. all of `W` × c | stays | stays | stays |
# | e. a vector added to each column of `W` | moves | stays | moves |
# | f. other tokens replaced | moves | stays | stays |
# | g. more padding | moves | stays | stays |
#
# - a. BatchNorm: the token is one of N entries in each feature's mean and std, and these do not
#   scale along with one entry; the other tokens move, too. LayerNorm: the token's own mean and
#   std are multiplied by c, which cancels. RMSNorm: so is its rms.
# - b. BatchNorm: a feature's mean takes up only 1/N of the number, and its std changes. LayerNorm:
#   the token's mean takes it up whole, the std does not see it. RMSNorm: no mean is subtracted,
#   and the rms changes.
# - c. BatchNorm: the feature's own mean and std scale along, its mean takes up the number.
#   LayerNorm: the feature is one of D entries in each token's mean and std, so it moves, and the
#   token's other features with it. RMSNorm: the same, through the rms.
# - d. BatchNorm: each feature is multiplied by c, as in c. LayerNorm, RMSNorm: each token is
#   multiplied by c, as in a.
# - e. With $v$ added to each column, token $i$ gets $x_i\cdot v$ on all its features. BatchNorm:
#   another number for each token, which no mean over tokens can take up. LayerNorm: one number
#   within the token, as in b. RMSNorm: as in b.
# - f. BatchNorm: they are part of the statistics. LayerNorm, RMSNorm: no statistic contains them.
# - g. BatchNorm: the zeros pull the means to 0 and change the variances. LayerNorm, RMSNorm: no
#   statistic of a word contains them.
#
# *2.* f and g are exact: no statistic contains what has changed. What is added (b, c, e) is taken
# up to rounding. What is multiplied stays only up to $\epsilon$, which does not scale along: the
# output's spread goes from $\sigma/\sqrt{\sigma^2+\epsilon}$ to
# $c\sigma/\sqrt{c^2\sigma^2+\epsilon}$. That is a few parts in a million for ordinary values, and
# 29 % when a spread of 1 is scaled down to $\sqrt{\epsilon}$. With $c<0$ the statistic is
# multiplied by $|c|$ and the values by $c$, so the outputs change sign: "stays" becomes "flips".
#
# *3.* In test mode BatchNorm is one fixed affine map for each feature and looks at nothing but the
# token itself. f and g become "stays", exactly. c and d become "moves" (the stored mean and
# variance know nothing of the change), and a, b, e still move: the column is turned round.
#
# *4.* Right: both forgive the size of the whole weight matrix (d), and within one row or column
# both subtract a mean and divide by a std. Wrong: the axis decides what the layer is blind to. c
# is BatchNorm's alone; a, b, e, f, g are LayerNorm's alone. And not in the table: LayerNorm has no
# batch noise (nor whatever regularization comes of it), no running averages and no second mode,
# it cannot be folded into the weights, since its $1/\sigma$ belongs to the token; and its affine
# cannot undo it. On digits, batches of 2: BatchNorm 0.22, LayerNorm 0.68; batches of 32: 0.96 and
# 0.94.
#
# **Rubric:**
#
# - 14 points: the table, 2 points a row: all three marks right (1), and the reasons right (1). In
#   d, f and g one reason for LayerNorm and RMSNorm together suffices; a reference to another row
#   counts as a reason.
# - 2 points: exact for f and g or for what is added, up to $\epsilon$ for what is multiplied (1);
#   for $c<0$ the sign flips (1).
# - 2 points: test mode: f and g stay (1), c and d move (1).
# - 2 points: something that is right or wrong in the sentence, from the table (1); one thing that
#   is not in the table: noise, running averages, folding, the affine, or training at small batches
#   (1).
#
# In row c an answer for one of "×" and "+" only gets the marks if it says which. In row e "W is
# shifted by one number everywhere" is a special case (v constant): full marks if the reason fits.
# In rows a and b "the token itself moves" without the other tokens is enough.
# ### END SOLUTION

# %% [markdown]
# ## What to remember
#
# - LayerNorm takes one mean and one variance for each token, over its features. It needs no batch,
#   no mask and no diary, and is the same in training and evaluation.
# - `gamma` and `beta` belong to the features. So `gamma` stays inside the means on the way back,
#   `dgamma` is summed over tokens, and no affine gives a token its mean and scale back.
# - "LayerNorm of an image" is two layers: over C, H, W (one token) or over C (each pixel one).
# - RMSNorm divides by the root mean square: LayerNorm without the mean, in both directions.
# - `std()` divides by H − 1 and $\epsilon$ outside the root is another $\epsilon$: a slip of 15 %
#   at H = 4, and a thousandfold gradient at a constant token.
# - Statistics in float32; the result in the input's type, also beside float32 parameters.
# - Each norm is blind along its own axis, up to $\epsilon$. Before you choose one, ask what it
#   must not see.
#
# `progress()` shows what is left. Next: lesson 07, instances, groups, and a layer that chooses.
#
# ## Sources
#
# - J. L. Ba, J. R. Kiros, G. E. Hinton, *Layer Normalization*, 2016,
#   [arXiv 1607.06450](https://arxiv.org/abs/1607.06450): section 5.1 and table 1, the invariances
#   (read in public summaries that quote the table; our run agrees with it).
# - B. Zhang, R. Sennrich, *Root Mean Square Layer Normalization*, 2019,
#   [arXiv 1910.07467](https://arxiv.org/abs/1910.07467): read in abstract; the authors' code and
#   the table with RMSNorm's row, [bzhangGo/rmsnorm](https://github.com/bzhangGo/rmsnorm).
# - J. Xu et al., *Understanding and Improving Layer Normalization*, 2019,
#   [arXiv 1911.07013](https://arxiv.org/abs/1911.07013): re-centring and re-scaling, in abstract.
# - A. Gupta, A. Ozdemir, G. Anumanchipalli, *Re-Introducing LayerNorm: Geometric Meaning,
#   Irreversibility and a Comparative Study with RMSNorm*, 2024,
#   [arXiv 2409.12951](https://arxiv.org/abs/2409.12951): in abstract.
# - Y. Wu, K. He, *Group Normalization*, 2018, [arXiv 1803.08494](https://arxiv.org/abs/1803.08494):
#   the figure with LayerNorm over C, H and W.
# - ConvNeXt, issues [#19](https://github.com/facebookresearch/ConvNeXt/issues/19) and
#   [#136](https://github.com/facebookresearch/ConvNeXt/issues/136): over what is "the layer"?
# - PyTorch, [LayerNorm](https://docs.pytorch.org/docs/stable/generated/torch.nn.LayerNorm.html) and
#   [RMSNorm](https://docs.pytorch.org/docs/stable/generated/torch.nn.RMSNorm.html): variance,
#   $\epsilon$, `eps=None`; float16 in RMSNorm,
#   [#133085](https://github.com/pytorch/pytorch/pull/133085).
# - The class with `std()`: annotated-transformer
#   [#119](https://github.com/harvardnlp/annotated-transformer/pull/119) and
#   [#122](https://github.com/harvardnlp/annotated-transformer/issues/122), BERT-pytorch
#   [#30](https://github.com/codertimo/BERT-pytorch/issues/30) (the example [1, 0, 0, 0]), PyTorch
#   Geometric [#2917](https://github.com/pyg-team/pytorch_geometric/pull/2917).
# - Types: transformers [#30236](https://github.com/huggingface/transformers/issues/30236) (float32
#   out), lmdeploy [#2842](https://github.com/InternLM/lmdeploy/pull/2842) (Llama's and Gemma's
#   order), vLLM [#29810](https://github.com/vllm-project/vllm/pull/29810) (Gemma's 1 + weight).
# - scikit-learn: `load_digits` (from the UCI repository's optical digits) and the photograph
#   `china.jpg`.
