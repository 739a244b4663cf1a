# %% [markdown]
# # 07 · Instance, Group and Switchable Normalization
#
# **Goal.** See one reduction in many norms: choose the company that a number keeps, and you have
# chosen what the layer is blind to. Then let the network choose.
#
# **Time** 150 minutes: 110 for the parts below, 40 for reading. **Difficulty** 3 of 5.
#
# **You need** lessons 03, 04 and 06 (the forward functions are given below) and, for the last part,
# modules in PyTorch.
#
# | part | points | minutes |
# |---|---|---|
# | `instancenorm_forward` | 8 | 10 |
# | `instancenorm_backward` | 7 | 10 |
# | `spatial_groupnorm_forward` | 20 | 20 |
# | `spatial_groupnorm_backward` | 20 | 20 |
# | `SwitchNorm2d` | 30 | 30 |
# | written question | 15 | 20 |
#
# A `check` stands below each exercise and judges what you wrote; `hint("instancenorm_forward")`
# gives one more rung of help each time you call it, and `progress()` shows where you stand.
#
# **Convention.** All variances are biased, and $\epsilon$ stands inside the root. The numpy
# functions keep CS231n's signatures, the module keeps PyTorch's `momentum` (it weights the *new*
# value).

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

# %% kind="given" name="batchnorm_forward"

# %% kind="given" name="spatial_batchnorm_forward"

# %% kind="given" name="layernorm_forward"

# %% kind="given" name="layernorm_chw_forward"

# %% [markdown]
# ## The question
#
# A program is to repaint photographs in the manner of a painter. What comes in was taken at noon or
# at dusk, with a good camera or a bad one. What goes out shall look the same every time: light and
# colours are the painter's business. So somewhere inside, the network should forget how bright, how
# rich in contrast and how yellow the photograph was.
#
# Here is one picture three times: as taken, underexposed (all numbers times 0.35), and as an old
# print that has faded and gone yellow (each *channel* multiplied and shifted by numbers of its
# own). A flower keeps them company in the batch.
#
# Two norms that you know: BatchNorm, one mean a channel, and LayerNorm over C, H and W, one mean an
# image. **Which of the two makes the three alike?** Guess before you run.

# %% kind="demo"
from sklearn.datasets import load_sample_image


def photo(name):
    pixels = load_sample_image(name)[:424:4, ::4] / 255
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))  # (3, 106, 160)


def toned(image, scale, shift):
    """Each channel of (3, H, W) multiplied and shifted by numbers of its own."""
    return np.array(scale)[:, None, None] * image + np.array(shift)[:, None, None]


def viewable(image, scale=5):
    """A normalized image, (3, H, W), squeezed into the range of a picture."""
    return np.clip(0.5 + image.transpose(1, 2, 0) / scale, 0, 1)


china, flower = photo("china.jpg"), photo("flower.jpg")
print_tone = (0.5, 0.5, 0.3), (0.45, 0.4, 0.2)
versions = {"as taken": china, "underexposed": 0.35 * china, "yellowed": toned(china, *print_tone)}
album = np.stack([*versions.values(), flower])  # (4, 3, 106, 160)


def bn(x):
    """BatchNorm in training mode, without gamma and beta."""
    channels = x.shape[1]
    ones, zeros = np.ones(channels), np.zeros(channels)
    return spatial_batchnorm_forward(x, ones, zeros, {"mode": "train"})[0]


def ln(x):
    """LayerNorm over C, H and W, without gamma and beta."""
    return layernorm_chw_forward(x, np.ones(x.shape[1:]), np.zeros(x.shape[1:]), {})[0]


def apart(outputs):
    """How far the underexposed and the yellowed version are from the first, relative to it."""
    return [np.linalg.norm(o - outputs[0]) / np.linalg.norm(outputs[0]) for o in outputs[1:3]]


def show_album(rows):
    names = [*versions, "the company"]
    fig, panels = plt.subplots(len(rows), 4, figsize=(8.4, 1.45 * len(rows) + 0.3), squeeze=False)
    for line, (title, images) in zip(panels, rows.items(), strict=True):
        for panel, image in zip(line, images, strict=True):
            panel.imshow(image)
            panel.set_xticks([])
            panel.set_yticks([])
            panel.spines[:].set_visible(False)
        line[0].set_ylabel(title)
    for panel, name in zip(panels[0], names, strict=True):
        panel.set_title(name, fontsize=9)
    fig.tight_layout()
    plt.show()


show_album(
    {
        "in": [image.transpose(1, 2, 0) for image in album],
        "BatchNorm": [viewable(image) for image in bn(album)],
        "LayerNorm": [viewable(image) for image in ln(album)],
    }
)
for name, out in (("in", album), ("BatchNorm", bn(album)), ("LayerNorm", ln(album))):
    dark, yellow = apart(out)
    print(f"{name:10s} underexposed differs by {dark:7.2%}, yellowed by {yellow:7.2%}")

# %% [markdown]
# ### See: neither of them
#
# **BatchNorm** gives all images of the batch one and the same change of tone. What was dark stays
# dark, what was yellow stays yellow. (And all four would look different in other company.)
#
# **LayerNorm** takes out what all channels of an image have in common: the underexposed version
# comes out right, to 0.03 %. Yellow does not go away, for it is a difference *between* channels,
# and those LayerNorm keeps: the yellowed print is still 82 % off.
#
# BatchNorm compares a channel with itself in the other images, LayerNorm an image's channels with
# one another. What other company is there?
#
# ### Picture: which entries share a mean
#
# Wu and He drew it as cubes in 2018. We draw our own. The cube holds a
# batch of N = 4 images with C = 6 channels of H · W = 4 pixels, a layer an image. The blue entries
# share one mean with the entry at the front's upper right corner. Before you run: InstanceNorm
# gives each channel of each image its own mean, GroupNorm does so for each group of C/G
# neighbouring channels of each image, here G = 2. How many means does each of the five compute?

# %% kind="demo"
N4, C6, P4 = np.indices((4, 6, 4))  # image, channel and pixel of each entry


def draw_cube(axis, members, colour, title):
    """The three visible sides of (N, C, H * W); what belongs to `members` is coloured."""
    images, channels, pixels = members.shape
    lean = np.array([0.5, 0.42])  # where the next image lies
    right, down = np.array([1, 0]), np.array([0, -1])
    sides = [
        ((0, c, p), c * right + p * down, right, down)
        for c in range(channels)
        for p in range(pixels)
    ]
    sides += [
        ((n, c, 0), c * right + n * lean, right, lean)
        for n in range(images)
        for c in range(channels)
    ]
    for n in range(images):
        for p in range(pixels):
            sides.append(((n, -1, p), channels * right + p * down + n * lean, lean, down))
    for entry, corner, one, other in sides:
        outline = [corner, corner + one, corner + one + other, corner + other]
        face = colour if members[entry] else "#EDEDED"
        axis.add_patch(plt.Polygon(outline, facecolor=face, edgecolor="white", linewidth=0.8))
    axis.text(channels / 2, -pixels - 0.3, "C", ha="center", va="top")
    axis.text(-0.3, -pixels / 2, "H·W", ha="right", va="center", rotation=90)
    axis.text(0.6, 1.1, "N", ha="right")
    axis.set(xlim=(-1.2, 8.2), ylim=(-4.9, 1.9), aspect="equal")
    axis.set_title(title, fontsize=9)
    axis.set_axis_off()


own_image, own_channel = N4 == 0, C6 == 5
company = {
    "BatchNorm": own_channel,
    "LayerNorm": own_image,
    "LayerNorm over C": own_image & (P4 == 0),
    "InstanceNorm": own_image & own_channel,
    "GroupNorm, G = 2": own_image & (C6 // 3 == 5 // 3),
}
fig, panels = plt.subplots(1, 5, figsize=(10.4, 2))
for panel, (name, members) in zip(panels, company.items(), strict=True):
    count = members.sum()
    draw_cube(panel, members, BLUE, f"{name}\n{members.size // count} means of {count}")
fig.tight_layout()
plt.show()

# %% [markdown]
# ### See: a choice of company
#
# | | when, and arXiv number | one mean for | numbers in it | means |
# |---|---|---|---|---|
# | BatchNorm | February 2015, 1502.03167 | a channel | N·H·W | C |
# | LayerNorm | July 2016, 1607.06450 | an image | C·H·W | N |
# | (LayerNorm over C) | | a pixel of an image | C | N·H·W |
# | InstanceNorm | July 2016, 1607.08022 | a channel of an image | H·W | N·C |
# | GroupNorm | March 2018, 1803.08494 | a group of an image | (C/G)·H·W | N·G |
#
# (The first four digits of an arXiv number are its year and month. The notes this course grew from
# give the years like this, and they are right.)
#
# Only BatchNorm's blue reaches into other images. InstanceNorm is the smallest company here, and
# GroupNorm stands between it and LayerNorm.
#
# ## The mathematics, with shapes
#
# Let $S$ be any set of $n$ entries that share a mean. Every norm of the picture computes
#
# $$\mu_S = \frac{1}{n}\sum_{i\in S} x_i, \qquad
# \sigma_S^2 = \frac{1}{n}\sum_{i\in S}(x_i-\mu_S)^2, \qquad
# \hat{x}_i = \frac{x_i-\mu_S}{\sqrt{\sigma_S^2+\epsilon}}, \qquad
# \mathrm{out}_i = \gamma_{c(i)}\,\hat{x}_i + \beta_{c(i)}$$
#
# where $c(i)$ is the channel of entry $i$. Only the sets change. And note what does *not* change:
#
# | name | shape | what |
# |---|---|---|
# | `x`, `out`, `dout`, `dx` | (N, C, H, W) | images |
# | `mean`, `var` of InstanceNorm | (N, C, 1, 1) | one number a channel of an image |
# | `mean`, `var` of GroupNorm | N·G numbers | one number a group of an image |
# | `gamma`, `beta`, `dgamma`, `dbeta` | (C,) or (1, C, 1, 1) | one number a *channel*, in both |
#
# `gamma` follows the channels, whatever the sets are. (In lesson 06's LayerNorm over C, H and W it
# had the shape (C, H, W). That is LayerNorm's habit, and the written question comes back to it.)
#
# No set reaches into another image, so neither norm needs running averages: training and
# evaluation compute the same.
#
# ## Your turn: instancenorm_forward
#
# *8 points.* One mean and one variance for each channel of each image.
#
# - Which two indices does the mean keep? Average over the other two.
# - `gamma` and `beta` have the shape (C,), and against (N, C, H, W) numpy lines up from the right:
#   (C,) would meet W. If C and W differ you get an error, if they are equal a wrong result (lesson
#   01's square table).
# - Variances subtract the mean first, and the inputs stay as they are.


# %% kind="exercise" name="instancenorm_forward"
def instancenorm_forward(x, gamma, beta, in_param):
    """InstanceNorm: every channel of every image has its own mean and variance.

    x: (N, C, H, W). gamma, beta: (C,). in_param: {"eps": 1e-5 where not given}.
    Returns out (N, C, H, W) and a cache for the backward pass.
    """
    ### BEGIN SOLUTION
    eps = in_param.get("eps", 1e-5)
    mean = x.mean(axis=(2, 3), keepdims=True)
    var = ((x - mean) ** 2).mean(axis=(2, 3), keepdims=True)
    std = np.sqrt(var + eps)
    x_hat = (x - mean) / std
    out = gamma[:, None, None] * x_hat + beta[:, None, None]
    cache = x_hat, std, gamma
    return out, cache
    ### END SOLUTION


# %% [markdown]
# ## The photographs again
#
# Your function on the same four images. Then a game: `gamma` and `beta` are one number a channel,
# so give the pagoda the flower's standard deviations and means. What will you see?


# %% kind="demo"
def inorm(x, eps=1e-5):
    """Your InstanceNorm, without gamma and beta."""
    return instancenorm_forward(x, np.ones(x.shape[1]), np.zeros(x.shape[1]), {"eps": eps})[0]


show_album({"your IN": [viewable(image) for image in inorm(album)]})
for eps in (1e-5, 1e-12):
    dark, yellow = apart(inorm(album, eps))
    print(f"eps {eps:g}: underexposed differs by {dark:.1e}, yellowed by {yellow:.1e}")
mates = album.copy()
mates[1:] = np.random.default_rng(70).uniform(size=mates[1:].shape)
for name, norm in (("BatchNorm", bn), ("InstanceNorm", inorm)):
    moved = np.abs(norm(mates)[0] - norm(album)[0]).max()
    moved = f"{moved:.2f}" if moved else "nothing at all"
    print(f"other batch-mates move {name}'s first image by {moved}")


def in_the_colours_of(content, style):
    mean, std = style.mean(axis=(1, 2)), style.std(axis=(1, 2))
    return instancenorm_forward(content[None], std, mean, {})[0][0]


fig, panels = plt.subplots(1, 4, figsize=(8.4, 1.9))
pictures = {
    "pagoda": china,
    "flower": flower,
    "pagoda with the flower's\nmeans and stds": in_the_colours_of(china, flower),
    "flower with the pagoda's\nmeans and stds": in_the_colours_of(flower, china),
}
for panel, (name, image) in zip(panels, pictures.items(), strict=True):
    panel.imshow(np.clip(image, 0, 1).transpose(1, 2, 0))
    panel.set_title(name, fontsize=9)
    panel.set_axis_off()
fig.tight_layout()
plt.show()

# %% [markdown]
# ### See: brightness, contrast and tint are gone
#
# **First figure.** The three versions come out alike, to 0.03 % with the default $\epsilon$, and
# the gap shrinks with it: for any image,
#
# $$\mathrm{IN}(a_c\,x + b_c) = \mathrm{IN}(x) \qquad \text{for } a_c > 0 \quad (\epsilon = 0)$$
#
# with its own $a_c$ and $b_c$ for each channel. And the batch-mates? "Nothing at all" is exact: the
# notes' "independent instances" holds to the last bit.
#
# **Second figure.** Means and standard deviations of the channels are the light and the tint of a
# picture; through `gamma` and `beta` you can paint with them. Here it is done with red, green and
# blue. Inside a network a channel answers to strokes and textures, and its mean and spread say how
# much of them there is: *style is per-channel statistics* is the idea behind Huang and Belongie
# (2017), whose AdaIN layer takes `gamma` and `beta` from a second picture as we did.
#
# Ulyanov, Vedaldi and Lempitsky (2016) gave contrast as the reason why a stylizing network wants
# this layer. Huang and Belongie report that it helped as well when all training images had been
# given the same contrast, and little when they had been given the same style.
#
# **"IN speeds up convergence"**, say the notes. For that task it is reported (by the same authors,
# against BatchNorm, in one network). As a general statement it is not: below you train on digits,
# and InstanceNorm will come last.
#
# ## A switch that should stay off
#
# PyTorch's `InstanceNorm2d` has an option `track_running_stats`, off by default. BatchNorm has the
# same option, on by default, and people copy it. Train both kinds for a while on pieces of the
# flower, call `eval()`, and show them the three versions of the pagoda. What will the one with the
# switch on do with the dark one?

# %% kind="demo"
torch.set_num_threads(1)  # for arrays as small as ours one thread is the fastest
pieces_rng = np.random.default_rng(71)


def pieces(count):
    """Random pieces of the flower, (count, 3, 32, 32), each with its own exposure."""
    rows, columns = pieces_rng.integers(0, 74, size=count), pieces_rng.integers(0, 128, size=count)
    cut = [flower[:, r : r + 32, c : c + 32] for r, c in zip(rows, columns, strict=True)]
    return torch.from_numpy(np.stack(cut) * pieces_rng.uniform(0.3, 1, size=(count, 1, 1, 1)))


double = {"dtype": torch.float64}
layers = {
    "as it comes": nn.InstanceNorm2d(3, **double),
    "track_running_stats=True": nn.InstanceNorm2d(3, track_running_stats=True, **double),
}
for _ in range(100):
    for layer in layers.values():
        layer(pieces(8))
pagodas = torch.from_numpy(album)
print("                            train(): dark, yellow        eval(): dark, yellow      buffers")
for name, layer in layers.items():
    told = [apart(layer.train(mode)(pagodas).numpy()) for mode in (True, False)]
    text = "".join(f"{dark:14.1%} {yellow:7.1%}      " for dark, yellow in told)
    print(f"{name:26s}{text} {len(list(layer.buffers()))}")
tracked = layers["track_running_stats=True"]
batchnorm = nn.BatchNorm2d(3, affine=False, **double).eval()
batchnorm.load_state_dict(tracked.state_dict())
same = torch.equal(batchnorm(pagodas), tracked.eval()(pagodas))
print("in eval() the tracked one and a BatchNorm with its averages give equal outputs:", same)

# %% [markdown]
# ### See: it turns into BatchNorm
#
# In training mode nothing can be noticed. In `eval()` the tracked layer puts one fixed mean and
# variance a channel in place of each image's own, and so *is* a BatchNorm in test mode: the dark
# version stays dark (off by 85 %), the yellow one yellow. What the layer was chosen for is gone,
# and there is no error. The authors of CycleGAN switched it off when a user asked (issue #395);
# StarGAN's users stumbled on it as well (#140), and PyTorch's (#58843).
#
# Two ways to notice: an InstanceNorm has no buffers, and its `eval()` equals its `train()`.
#
# ## InstanceNorm's way back
#
# The set is one channel of one image, H·W entries. Nudge one pixel, and these H·W outputs move
# together, through their mean and their variance. So the formula of lessons 03 and 06 holds once
# more. With $g = \mathrm{dout}\cdot\gamma$, $s=\sqrt{\sigma^2+\epsilon}$ and the bar for the mean
# over *the set*:
#
# $$\mathrm{dx} = \frac{1}{s}\Big(g - \bar{g} - \hat{x}\;\overline{g\,\hat{x}}\Big), \qquad
# \mathrm{dgamma}_c = \sum_{n,h,w} \mathrm{dout}\cdot\hat{x}, \qquad
# \mathrm{dbeta}_c = \sum_{n,h,w} \mathrm{dout}$$
#
# Two directions again: `dx` averages over the set, `dgamma` sums over everybody who used this
# `gamma`, all images included.
#
# All entries of a set have the same $\gamma_c$, as in BatchNorm, so here `gamma` may stand inside
# the means or outside. Put it inside all the same: in the next exercise it matters.
#
# ## Your turn: instancenorm_backward
#
# *7 points.* The means run over the same axes as in the forward pass. `dgamma` and `dbeta` have the
# shape (C,).


# %% kind="exercise" name="instancenorm_backward"
def instancenorm_backward(dout, cache):
    """The gradients of instancenorm_forward.

    dout: (N, C, H, W). Returns dx (N, C, H, W), dgamma (C,) and dbeta (C,).
    """
    ### BEGIN SOLUTION
    x_hat, std, gamma = cache
    dgamma = (dout * x_hat).sum(axis=(0, 2, 3))
    dbeta = dout.sum(axis=(0, 2, 3))
    g = dout * gamma[:, None, None]
    g_mean = g.mean(axis=(2, 3), keepdims=True)
    projection = (g * x_hat).mean(axis=(2, 3), keepdims=True)
    dx = (g - g_mean - x_hat * projection) / std
    return dx, dgamma, dbeta
    ### END SOLUTION


# %% [markdown]
# ## Groups
#
# InstanceNorm takes out each channel's strength in each image. For a painter that is the point. For
# a network that must *recognize* something it may be a loss: "is there much of this texture?" is
# what it no longer can ask. And where the maps are small, H·W numbers make a poor mean. LayerNorm
# keeps the strengths relative to one another, but throws all channels together, whatever they mean.
#
# GroupNorm (Wu and He 2018) goes between: C/G channels share a mean. The authors' reason is that
# channels are not independent, just as the classical features of images (SIFT, HOG) came in groups
# that were normalized together.
#
# Which channels make a group? *Neighbours*: with C = 6 and G = 2 channels 0, 1, 2 and channels
# 3, 4, 5. Here is one image of 6 channels of 2 × 3 pixels, and four ways in which somebody has read
# this. Equal numbers share a mean. Only the first is GroupNorm. What went wrong in the others?

# %% kind="demo"
C_of, H_of, W_of = np.indices((6, 2, 3))
last = np.arange(36).reshape(2, 3, 6)  # one image in memory, channels last: (H, W, C)
readings = {
    "neighbours": C_of // 3,
    "interleaved": C_of % 2,
    "each pixel by itself": (H_of * 3 + W_of) * 2 + C_of // 3,
    "channels last, reshaped to (G, ...)": (last // 18).transpose(2, 0, 1),
}
fig, panels = plt.subplots(4, 1, figsize=(6.6, 4.4))
for panel, (name, group) in zip(panels, readings.items(), strict=True):
    tints = [(0.75, 0.87, 0.95), (0.98, 0.85, 0.75)]
    tints = tints if group.max() < 2 else plt.cm.cividis(np.linspace(0.6, 1, 12))[:, :3]
    canvas = np.ones((2, 23, 3))
    for (c, h, w), number in np.ndenumerate(group):
        canvas[h, 4 * c + w] = tints[number]
        panel.text(4 * c + w, h, number, ha="center", va="center", fontsize=7)
    panel.imshow(canvas)
    panel.set_yticks([])
    panel.set_xticks([4 * c + 1 for c in range(6)], [f"channel {c}" for c in range(6)], fontsize=7)
    panel.tick_params(length=0)
    panel.spines[:].set_visible(False)
    panel.set_title(f"{name}: {group.max() + 1} means of {36 // (group.max() + 1)}", fontsize=9)
fig.tight_layout()
plt.show()


def misread(x, group):
    """Normalize each image of x (N, C, H, W) over the sets of `group` (C, H, W)."""
    out = np.empty_like(x)
    for number in range(group.max() + 1):
        chosen = x[:, group == number]
        centred = chosen - chosen.mean(axis=1, keepdims=True)
        out[:, group == number] = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-5)
    return out


groups_rng = np.random.default_rng(72)
noise = groups_rng.normal(size=(50, 6, 2, 3))
level, spread = groups_rng.normal(size=(1, 6, 1, 1)), groups_rng.uniform(0.5, 2, size=(1, 6, 1, 1))
right_one = nn.GroupNorm(2, 6, affine=False)
names = ("neighbours", "interleaved", "each pixel", "channels last")
for kind, x in (("channels alike", noise), ("channels differ", level + spread * noise)):
    truth = right_one(torch.from_numpy(x)).numpy()
    off = [np.linalg.norm(misread(x, g) - truth) for g in readings.values()] / np.linalg.norm(truth)
    told = (f"{name} {gap:.0%}" for name, gap in zip(names, off, strict=True))
    print(f"{kind}: " + ", ".join(told))

# %% [markdown]
# ### See: three layers that are not GroupNorm
#
# - **Interleaved.** The right number of means, each of the right number of entries, of the wrong
#   channels. You get it by putting the G behind the C/G where channels are split. For a network
#   with fresh weights it is as good a layer, since the order of its channels means nothing yet. But
#   weights that were trained with one reading are wrong for the other.
# - **Each pixel by itself.** H and W were forgotten when the mean was taken: a mean of three
#   numbers, one for each pixel and group. We met it in two public solutions of CS231n's assignment.
# - **Channels last.** Where memory holds (H, W, C), the same `reshape` cuts the *picture* into
#   pieces: here the upper row and the lower one, all channels in each. Lesson 04's warning, once
#   more. TensorFlow Addons shipped it (issue #751), and a Keras layer had it too (issue #6 there).
#
# The last lines give the error, relative to the output: 28 to 70 %. Every one of the four has mean
# 0 and variance 1 in sets of its own, so a test of moments passes if it asks the wrong sets.
#
# ## Your turn: spatial_groupnorm_forward
#
# *20 points: groups 11, the cases of one group and of C groups 4, large means 2, form 3.*
#
# - Memory holds channel after channel, so neighbouring channels lie side by side. Which shape of
#   five axes splits the channel axis in two, groups first? And which of the five does a mean
#   *keep*?
# - `gamma` and `beta` have the shape (1, C, 1, 1) here, as CS231n has it: they line up with (N, C,
#   H, W) by themselves, so there is nothing to index. One number a *channel*, not a group.
# - They come after the way back to four axes.


# %% kind="exercise" name="spatial_groupnorm_forward"
def spatial_groupnorm_forward(x, gamma, beta, G, gn_param):
    """GroupNorm: in each image, every group of C / G neighbouring channels shares its statistics.

    x: (N, C, H, W). gamma, beta: (1, C, 1, 1), one entry a channel. G: the number of groups, which
    divides C. gn_param: {"eps": 1e-5 where not given}.
    Returns out (N, C, H, W) and a cache for the backward pass.
    """
    ### BEGIN SOLUTION
    eps = gn_param.get("eps", 1e-5)
    N, C, H, W = x.shape
    groups = x.reshape(N, G, C // G, H, W)
    mean = groups.mean(axis=(2, 3, 4), keepdims=True)
    var = ((groups - mean) ** 2).mean(axis=(2, 3, 4), keepdims=True)
    std = np.sqrt(var + eps)
    x_hat = ((groups - mean) / std).reshape(x.shape)
    out = gamma * x_hat + beta
    cache = x_hat, std, gamma, G
    return out, cache
    ### END SOLUTION


# %% [markdown]
# ## Nudge one entry, and see who moves
#
# The cubes of the first picture were drawn from formulas. Now ask the functions: change the same
# entry as there and colour every output that moves. BatchNorm and LayerNorm are those of lessons 04
# and 06, the other two are yours. Do you expect the same picture?


# %% kind="demo"
def gn(x, G, eps=1e-5):
    """Your GroupNorm, without gamma and beta."""
    shape = (1, x.shape[1], 1, 1)
    return spatial_groupnorm_forward(x, np.ones(shape), np.zeros(shape), G, {"eps": eps})[0]


def ln_over_c(x):
    tokens = x.transpose(0, 2, 3, 1)
    ones, zeros = np.ones(x.shape[1]), np.zeros(x.shape[1])
    return layernorm_forward(tokens, ones, zeros, {})[0].transpose(0, 3, 1, 2)


norms = {
    "BatchNorm": bn,
    "LayerNorm": ln,
    "LayerNorm over C": ln_over_c,
    "InstanceNorm": inorm,
    "GroupNorm, G = 2": lambda x: gn(x, 2),
}
nudge_rng = np.random.default_rng(73)
x = nudge_rng.normal(size=(4, 6, 2, 2))
nudged = x.copy()
nudged[0, 5, 0, 0] += 0.5
fig, panels = plt.subplots(1, 5, figsize=(10.4, 2))
for panel, (name, norm) in zip(panels, norms.items(), strict=True):
    moved = (norm(nudged) != norm(x)).reshape(4, 6, 4)
    agrees = "as drawn" if np.array_equal(moved, company[name]) else "NOT as drawn"
    draw_cube(panel, moved, ORANGE, f"{name}\n{moved.sum()} outputs move: {agrees}")
fig.tight_layout()
plt.show()

more = np.concatenate([x, 5 + 3 * nudge_rng.normal(size=(12, 6, 2, 2))])
print("the first 4 images alone, and with 12 brighter ones behind them; largest change")
for name, norm in norms.items():
    gap = np.abs(norm(more)[:4] - norm(x)).max()
    print(f"    {name:18s}" + (f"{gap:.2f}" if gap else "none at all"))

# %% [markdown]
# ### See: the same picture
#
# What shares a mean moves together, and nothing else moves. (`!=` is exact: outside the coloured
# part not one bit has changed.)
#
# The last lines put the first four images into a larger batch. For GroupNorm, as for InstanceNorm
# and LayerNorm, it makes no difference at all. The notes say that GroupNorm does not depend on the
# batch size, and that is right in the strictest sense: the batch does not enter the computation. (A
# network may still *train* differently with small batches, since its gradients are noisier.)
#
# ## One reduction, many norms
#
# You have written four norms for images by now, with transposes, tables and groups. As lesson 01's
# list foretold, all of them are three lines: look at the array in some shape, standardize over some
# axes, go back to the old shape.

# %% kind="demo"


def standardize(x, shape, axes, eps=1e-5):
    blocks = x.reshape(shape)
    centred = blocks - blocks.mean(axis=axes, keepdims=True)
    return (centred / np.sqrt((centred**2).mean(axis=axes, keepdims=True) + eps)).reshape(x.shape)


x = 2 + 3 * np.random.default_rng(74).normal(size=(4, 6, 5, 7))
recipes = {
    "BatchNorm": ((4, 6, 5, 7), (0, 2, 3)),
    "LayerNorm": ((4, 6, 5, 7), (1, 2, 3)),
    "LayerNorm over C": ((4, 6, 5, 7), (1,)),
    "InstanceNorm": ((4, 6, 5, 7), (2, 3)),
    "GroupNorm, G = 2": ((4, 2, 3, 5, 7), (2, 3, 4)),
}
for name, (shape, axes) in recipes.items():
    gap = np.abs(standardize(x, shape, axes) - norms[name](x)).max()
    verdict = "agrees with the function" if gap < 1e-12 else f"differs by {gap:.0e}"
    print(f"{name:18s} shape {shape!s:16s} axes {axes!s:11s} {verdict}")
theirs = {
    "InstanceNorm": nn.InstanceNorm2d(6),
    "GroupNorm, G = 2": nn.GroupNorm(2, 6, affine=False),
}
for name, layer in theirs.items():
    gap = np.abs(layer(torch.from_numpy(x)).numpy() - norms[name](x)).max()
    print(f"{name:18s} and PyTorch's:", "agree" if gap < 1e-12 else f"differ by {gap:.0e}")

# %% [markdown]
# ### See: shape, axes, done
#
# A norm is a shape and a tuple of axes. (Its affine, and what stands in for a batch at test time,
# come on top.) Whoever invents the next one has to answer one question: *who keeps company with
# whom?*
#
# ## GroupNorm's way back
#
# The same three terms, with means over the group:
#
# $$\mathrm{dx} = \frac{1}{s}\Big(g - \bar{g} - \hat{x}\;\overline{g\,\hat{x}}\Big), \qquad
# g = \gamma\cdot\mathrm{dout}$$
#
# But now a set holds C/G channels, each with its own $\gamma_c$. In
#
# $$\bar{g} = \frac{1}{n}\sum_{i\in S} \gamma_{c(i)}\,\mathrm{dout}_i$$
#
# $\gamma$ has an index that the sum runs over. It cannot come out. Multiply first, then average.
#
# ## Your turn: spatial_groupnorm_backward
#
# *20 points: `dx` 12, `dgamma` and `dbeta` 5, form 3.* Split the channels as before, average over
# the group, and go back to four axes. `dgamma` and `dbeta` belong to channels, so they do not care
# for groups at all; their shape is that of `gamma`, (1, C, 1, 1).
#
# Test with different `gamma`, $\epsilon=0.1$ and a random `dout`.


# %% kind="exercise" name="spatial_groupnorm_backward"
def spatial_groupnorm_backward(dout, cache):
    """The gradients of spatial_groupnorm_forward.

    dout: (N, C, H, W). Returns dx (N, C, H, W), dgamma (1, C, 1, 1) and dbeta (1, C, 1, 1).
    """
    ### BEGIN SOLUTION
    x_hat, std, gamma, G = cache
    dgamma = (dout * x_hat).sum(axis=(0, 2, 3), keepdims=True)
    dbeta = dout.sum(axis=(0, 2, 3), keepdims=True)
    N, C, H, W = dout.shape
    g = (dout * gamma).reshape(N, G, C // G, H, W)
    x_hat = x_hat.reshape(g.shape)
    g_mean = g.mean(axis=(2, 3, 4), keepdims=True)
    projection = (g * x_hat).mean(axis=(2, 3, 4), keepdims=True)
    dx = (g - g_mean - x_hat * projection) / std
    return dx.reshape(dout.shape), dgamma, dbeta
    ### END SOLUTION


# %% [markdown]
# ## How much does the slip cost?
#
# Twelve channels, `gamma` from 0.5 to 2. Suppose somebody averages `dout` without `gamma` and
# multiplies afterwards. For each number of groups, how wrong is `dx`? Where is it not wrong at all?

# %% kind="demo"
slip_rng = np.random.default_rng(75)
x, dout = slip_rng.normal(size=(2, 50, 12, 2, 2))
ramp, flat = np.linspace(0.5, 2, 12).reshape(1, 12, 1, 1), np.ones((1, 12, 1, 1))
counts, errors = (1, 2, 3, 4, 6, 12), {"gamma from 0.5 to 2": [], "gamma all ones": []}
for G in counts:
    for name, gamma in zip(errors, (ramp, flat), strict=True):
        _, cache = spatial_groupnorm_forward(x, gamma, 0 * gamma, G, {})
        _, bare = spatial_groupnorm_forward(x, flat, 0 * flat, G, {})
        truth = spatial_groupnorm_backward(dout, cache)[0]
        pulled = gamma * spatial_groupnorm_backward(dout, bare)[0]
        errors[name].append(np.linalg.norm(pulled - truth) / np.linalg.norm(truth))
fig, axis = plt.subplots(figsize=(5.6, 2.7))
for (name, values), mark, colour in zip(errors.items(), "o^", (ORANGE, BLUE), strict=True):
    axis.plot(range(6), values, "-" + mark, color=colour, label=name)
    told = (f"G = {G}: {error:.3f}" for G, error in zip(counts, values, strict=True))
    print(f"{name:20s}" + "  ".join(told))
axis.set_xticks(range(6), counts)
axis.set(xlabel="groups G, of 12 channels", ylabel="relative error of dx")
axis.legend()
fig.tight_layout()
plt.show()

leaves = [torch.tensor(a, requires_grad=True) for a in (x, ramp.ravel(), 0 * ramp.ravel())]
back = torch.autograd.grad(F.group_norm(leaves[0], 3, *leaves[1:]), leaves, torch.from_numpy(dout))
_, cache = spatial_groupnorm_forward(x, ramp, 0 * ramp, 3, {})
for name, mine, their in zip(
    ("dx", "dgamma", "dbeta"), spatial_groupnorm_backward(dout, cache), back, strict=True
):
    gap = np.abs(mine - their.numpy().reshape(mine.shape)).max()
    verdict = "agrees with autograd" if gap < 1e-11 else f"differs from autograd by {gap:.0e}"
    print(f"G = 3: {name:6s} {mine.shape!s:14s} {verdict}")

# %% [markdown]
# ### See: free of charge only where one channel is alone
#
# With all `gamma` equal nobody notices, whatever G. With different ones the error is largest where
# everything is one group (10 % of `dx`), and vanishes with twelve groups of one channel: there a
# set has a single $\gamma_c$. Yours agrees with autograd.
#
# ## "For batches below 16"
#
# The notes say of BatchNorm that it does poorly when batches are small, and of GroupNorm: use it
# for batches of fewer than 16. Where does the 16 come from? Here is a table that we did *not*
# measure: ResNet-50 on ImageNet, top-1 accuracy on the validation set, 8 GPUs, from the README of
# the Switchable Normalization repository. The statistics of BatchNorm are those of one GPU's
# images. Look for the crossing.

# %% kind="demo"
per_gpu = (2, 4, 8, 16, 32)
quoted = {
    "BN": (65.3, 72.7, 75.2, 76.3, 76.4),
    "GN": (75.9, 75.8, 76.0, 75.8, 75.9),
    "SN": (75.6, 75.9, 76.7, 76.7, 76.9),
}
LOOKS = {
    "BN": (ORANGE, "-", "^"),
    "GN": (BLUE, "-", "o"),
    "SN": ("black", "--", "x"),
    "LN": (GREY, ":", "s"),
    "IN": (GREY, "-.", "v"),
}
fig, axis = plt.subplots(figsize=(5.6, 2.8))
for name, values in quoted.items():
    colour, style, mark = LOOKS[name]
    axis.plot(per_gpu, values, style, marker=mark, color=colour, label=name)
axis.set_xscale("log", base=2)
axis.set_xticks(per_gpu, per_gpu)
axis.set(xlabel="images per GPU", ylabel="top-1 accuracy, %", title="ResNet-50, ImageNet (quoted)")
axis.legend()
fig.tight_layout()
plt.show()
pairs = zip(quoted["GN"], quoted["BN"], per_gpu, strict=True)
print("GN - BN: " + ", ".join(f"{g - b:+.1f} at {size}" for g, b, size in pairs))

# %% [markdown]
# ### See: one crossing, of one network
#
# From 16 images on BatchNorm is ahead by half a point, at 8 GroupNorm by 0.8, at 4 by 3.1, at 2 by
# 10.6. So the rule is a fair reading of *this* table. (Wu and He's own abstract has the same 10.6
# at a batch of 2, and says "comparably good" for usual sizes.) GroupNorm hardly moves.
#
# But it is one network on one data set. The README has more columns: on a *single* GPU with 8
# images it gives 75.4 for BatchNorm and 75.5 for GroupNorm, a gap of 0.1 where the eight GPUs had
# 0.8. And what BatchNorm averages over is not N but N·H·W numbers, more or less alike (lesson 04).
# Sixteen is a rule of thumb. You will look for the crossing yourself, on digits, when you have
# built the layer of the third curve.
#
# ## Switchable Normalization: let the network choose
#
# InstanceNorm for painting, LayerNorm for small batches, BatchNorm for large ones. Must a person
# decide, once and for all layers? Luo and others (2018) hand the choice to gradient descent:
# compute the statistics of all three and mix them, with weights that are learned.
#
# $$\mu = \sum_{k} w_k\,\mu_k, \qquad \sigma^2 = \sum_{k} w'_k\,\sigma^2_k, \qquad
# k \in \{\mathrm{IN}, \mathrm{LN}, \mathrm{BN}\}$$
#
# $$w = \mathrm{softmax}(\lambda_{\mathrm{IN}}, \lambda_{\mathrm{LN}}, \lambda_{\mathrm{BN}}),
# \qquad
# w' = \mathrm{softmax}(\lambda'_{\mathrm{IN}}, \lambda'_{\mathrm{LN}}, \lambda'_{\mathrm{BN}})$$
#
# The softmax makes shares of them: positive, with sum 1. The notes say that SN puts weights on
# BatchNorm, LayerNorm and InstanceNorm and learns them. Right; add that there are **two** sets of
# weights, one for the means and one for the variances, six numbers a layer, and that *statistics*
# are mixed, not outputs.
#
# | name | shape | what |
# |---|---|---|
# | `mean_in`, `var_in` | (N, C, 1, 1) | a channel of an image |
# | `mean_ln`, `var_ln` | (N, 1, 1, 1) | an image |
# | `mean_bn`, `var_bn` | (1, C, 1, 1) | a channel; in evaluation the running averages |
# | `mean`, `var` | (N, C, 1, 1) | the mixtures; broadcasting makes them |
# | `mean_weight`, `var_weight` | (3,) | $\lambda$ and $\lambda'$, in the order IN, LN, BN |
#
# ### Three for the price of one
#
# Must you run over `x` three times? No. Once you have InstanceNorm's means and variances, the
# others follow, since the mean of the squares in a channel is $\sigma^2_{\mathrm{IN}} +
# \mu^2_{\mathrm{IN}}$:
#
# $$\mu_{\mathrm{LN}} = \frac{1}{C}\sum_c \mu_{\mathrm{IN}}, \qquad
# \sigma^2_{\mathrm{LN}} = \frac{1}{C}\sum_c
# \big(\sigma^2_{\mathrm{IN}} + \mu^2_{\mathrm{IN}}\big) - \mu^2_{\mathrm{LN}}$$
#
# and the same over N in place of C for BatchNorm. Which of these would you trust: with the biased
# variances, with unbiased ones (PyTorch's default), without the $\mu^2_{\mathrm{IN}}$ in the
# bracket?

# %% kind="demo"
identity_rng = np.random.default_rng(77)
level, spread = identity_rng.normal(size=(6, 1, 1)), identity_rng.uniform(0.5, 2, size=(6, 1, 1))
print("variance of LayerNorm by way of InstanceNorm, over the true one (6 channels)")
print(" H·W    biased     unbiased    without mean_in ** 2")
for side in ((1, 1), (2, 2), (5, 6), (16, 16)):
    x = torch.from_numpy(level + spread * identity_rng.normal(size=(8, 6, *side)))
    truth = x.var(dim=(1, 2, 3), correction=0)
    mean_in = x.mean(dim=(2, 3))
    told = []
    for correction, square in ((0, mean_in**2), (1, mean_in**2), (0, 0 * mean_in)):
        flat = x.flatten(2)
        var_in = flat.var(dim=2, correction=correction) if correction < flat.shape[2] else np.nan
        var_ln = (var_in + square).mean(dim=1) - mean_in.mean(dim=1) ** 2
        told.append((var_ln / truth).mean().item())
    print(f"{side[0] * side[1]:4d}" + "".join(f"{ratio:12.4f}" for ratio in told))
far = x + 1e9
mean_in, var_in = far.mean(dim=(2, 3)), far.var(dim=(2, 3), correction=0)
short_cut = (var_in + mean_in**2).mean(dim=1) - mean_in.mean(dim=1) ** 2
print(f" 256, 1e9 added to x: {(short_cut / truth).mean().item():.4g}, biased")

# %% [markdown]
# ### See: exact, if biased, and if the means are not too large
#
# - **Biased**, the identity is exact. **Unbiased**, each channel's variance is larger by n/(n−1)
#   with $n$ = H·W, 3.4 % at 30, and nothing cancels it (the table shows the part that reaches
#   LayerNorm's variance). At 1 × 1 it is 0/0.
# - **Without the squares** the spread *between* channels is missing, and with it a good part of the
#   variance; it can even become negative.
# - The last line adds $10^9$, and not one digit survives: mean of squares minus square of the mean
#   is lesson 02's short cut again. In your exercise take each variance of its own set directly; it
#   costs more, and is right for any mean.
#
# ### Which version is asked for
#
# Paper and official code differ. The identity above is the paper's, and holds for biased variances
# only; the code (`switchable_norm.py` in the authors' repository) lets PyTorch's default, unbiased,
# into InstanceNorm's variance and derives the others from it. It also starts `running_var` at 0,
# and its `momentum` of 0.9 weights the *old* value.
#
# | | InstanceNorm's variance | `running_var` starts at | momentum |
# |---|---|---|---|
# | official code (2d) | unbiased | 0 | 0.9, the old value's weight |
# | **asked for here** | biased, as the paper's identity needs | 1 | 0.1, the new value's weight |
#
# What enters `running_var` here is the biased variance, too, unlike in your `BatchNorm2d` of lesson
# 04. (One public port forgot the running averages altogether: issue #2 of the TensorFlow version.)
#
# ## Your turn: SwitchNorm2d
#
# *30 points: training 9, running averages 5, evaluation 6, gradients 5, state 3, form 2.*
#
# 1. `__init__`: four parameters, two buffers. Names and shapes are in the docstring. Why buffers?
#    (Lesson 04.)
# 2. Three pairs of statistics, each with its own dimensions kept, so that they broadcast.
# 3. In training BatchNorm's pair comes from the batch, and enters the diary, outside of autograd.
#    In evaluation it comes from the diary. The other two pairs are always those of `x`.
# 4. Two softmaxes, over three numbers each. Mix the statistics, normalize once, then `weight` and
#    `bias`.
#
# What to watch:
#
# - The mixing weights go through the softmax *before* they are used. Raw ones, all 1 at the start,
#   would add the three means up.
# - Mix variances, not standard deviations; $\epsilon$ comes once, at the end.
# - The gradient must reach the mixing weights: no `.item()`, no `.data`.


# %% kind="exercise" name="SwitchNorm2d"
class SwitchNorm2d(nn.Module):
    """Switchable Normalization: learned mixtures of three means and of three variances.

    Parameters weight (ones) and bias (zeros), both (num_features,), and the mixing weights
    mean_weight and var_weight, both (3,) ones: through a softmax each, they weight the statistics
    of InstanceNorm, LayerNorm (over C, H and W) and BatchNorm, in this order. All variances are
    biased, as in the paper. Buffers running_mean (zeros) and running_var (ones), (num_features,):
    in training, BatchNorm's mean and biased variance of the batch enter them with the weight
    momentum, as PyTorch has it. In evaluation they stand in for the batch's; the statistics of
    InstanceNorm and LayerNorm are always those of x.
    """

    def __init__(self, num_features, eps=1e-5, momentum=0.1):
        super().__init__()
        self.eps = eps
        self.momentum = momentum
        ### BEGIN SOLUTION
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))
        self.mean_weight = nn.Parameter(torch.ones(3))
        self.var_weight = nn.Parameter(torch.ones(3))
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))
        ### END SOLUTION

    def forward(self, x):
        """x: (N, C, H, W). Returns the same shape."""
        ### BEGIN SOLUTION
        shape = (1, -1, 1, 1)
        mean_in = x.mean(dim=(2, 3), keepdim=True)
        var_in = x.var(dim=(2, 3), keepdim=True, unbiased=False)
        mean_ln = x.mean(dim=(1, 2, 3), keepdim=True)
        var_ln = x.var(dim=(1, 2, 3), keepdim=True, unbiased=False)
        if self.training:
            mean_bn = x.mean(dim=(0, 2, 3), keepdim=True)
            var_bn = x.var(dim=(0, 2, 3), keepdim=True, unbiased=False)
            with torch.no_grad():
                self.running_mean += self.momentum * (mean_bn.flatten() - self.running_mean)
                self.running_var += self.momentum * (var_bn.flatten() - self.running_var)
        else:
            mean_bn = self.running_mean.view(shape)
            var_bn = self.running_var.view(shape)
        mean_share = torch.softmax(self.mean_weight, dim=0)
        var_share = torch.softmax(self.var_weight, dim=0)
        mean = mean_share[0] * mean_in + mean_share[1] * mean_ln + mean_share[2] * mean_bn
        var = var_share[0] * var_in + var_share[1] * var_ln + var_share[2] * var_bn
        x_hat = (x - mean) / torch.sqrt(var + self.eps)
        return self.weight.view(shape) * x_hat + self.bias.view(shape)
        ### END SOLUTION


# %% [markdown]
# ## Turn the switch
#
# With one $\lambda$ far above the others a softmax is a switch. Set both to each of the three in
# turn, and your module should be the layer of that name. Then four small questions: what happens if
# 7 is added to all three $\lambda$? What do their gradients add up to? Is mixing the outputs the
# same as mixing the statistics? And does it matter whether the module is in training or evaluation?

# %% kind="demo"
switch_rng = np.random.default_rng(78)
x = 1 + 2 * switch_rng.normal(size=(3, 4, 5, 6)) * np.array([0.5, 1, 2, 3]).reshape(1, 4, 1, 1)
tensor = torch.from_numpy(x)
switch = SwitchNorm2d(4).double()
for place, (name, norm) in enumerate((("IN", inorm), ("LN", ln), ("BN", bn))):
    with torch.no_grad():
        for mixing in (switch.mean_weight, switch.var_weight):
            mixing.copy_(torch.where(torch.arange(3) == place, 40.0, 0.0))
    gap = np.abs(switch(tensor).detach().numpy() - norm(x)).max()
    print(f"switched to {name}:", "the same layer" if gap < 1e-10 else f"differs by {gap:.0e}")

fresh = SwitchNorm2d(4).double()
out = fresh(tensor).detach()
with torch.no_grad():
    fresh.mean_weight += 7
moved = (fresh(tensor) - out).abs().max().item()
print(f"7 added to all three: the output moves by {moved:.0e}")
loss = (fresh(tensor) * torch.from_numpy(switch_rng.normal(size=x.shape))).sum()
for name, slope in zip(
    ("mean_weight", "var_weight"),
    torch.autograd.grad(loss, [fresh.mean_weight, fresh.var_weight]),
    strict=True,
):
    print(f"gradient of {name:11s}", slope.numpy().round(3), f"sum {slope.sum().item():.0e}")
mixed_outputs = (inorm(x) + ln(x) + bn(x)) / 3
gap = np.linalg.norm(mixed_outputs - out.numpy()) / np.linalg.norm(out.numpy())
print(f"the mean of the three outputs differs from SN's output by {gap:.0%}")
evaluated = fresh.eval()(tensor).detach()
gap = ((evaluated - out).norm() / out.norm()).item()
print(f"evaluation after a few batches differs from training by {gap:.0%}")

print("\nofficial code's variances (unbiased IN, the others by the identity), shares of 1/3 each:")
for side in ((16, 16), (5, 6), (2, 2), (1, 1)):
    x = torch.from_numpy(switch_rng.normal(size=(3, 4, *side)))
    flat = x.flatten(2)
    mean_in = flat.mean(2, keepdim=True)
    var_in = flat.var(2, keepdim=True) if flat.shape[2] > 1 else torch.full_like(mean_in, torch.nan)
    square = var_in + mean_in**2
    mean_ln, mean_bn = mean_in.mean(1, keepdim=True), mean_in.mean(0, keepdim=True)
    var_ln = square.mean(1, keepdim=True) - mean_ln**2
    var_bn = square.mean(0, keepdim=True) - mean_bn**2
    var = (var_in + var_ln + var_bn) / 3
    official = (flat - (mean_in + mean_ln + mean_bn) / 3) / torch.sqrt(var + 1e-5)
    yours = SwitchNorm2d(4).double()(x).detach().flatten(2)
    ratio = (yours.norm() / official.norm()).item()
    print(f"    H·W = {flat.shape[2]:3d}: your output is {ratio:.4f} times as large")

# %% [markdown]
# ### See: six numbers, four of them free
#
# - Your module *contains* the three norms: switched to one, it is that layer.
# - A common shift of all three $\lambda$ does nothing, and so their gradients add up to 0. Three
#   numbers, two that can be learned; six, and four.
# - **Statistics are mixed, not outputs.** The mean of the three outputs is another layer, 24 % away
#   here. And $\hat{x}$ of a mixture has mean 0 and variance 1 over no set at all.
# - **Two modes**, since BatchNorm's part has them: whatever share it has, the layer in evaluation
#   uses the diary for it, here after three batches only.
# - **The official variances** make the denominator larger: 1.7 % at 5 × 6 pixels with equal shares,
#   14 % at 2 × 2, and NaN at 1 × 1. `weight` can make up for it as long as the maps keep their
#   size. With a checkpoint from one version and code from the other, mind it.
#
# ## Does the crossing show on digits?
#
# A small network: three convolutions, a norm and a ReLU behind each, one linear layer. The maps are
# small on purpose: 4 × 4 pixels with 8 channels, then twice 2 × 2 with 16. Four groups for
# GroupNorm, LayerNorm over C, H and W. 150 steps of plain gradient descent with batches of 2, 4 or
# 16, four learning rates, eight seeds, the same first weights and batches for every arm. At the end
# BatchNorm takes its statistics from training images, so what is wrong with it has gone wrong in
# *training*. 400 images choose each arm's rate, 397 others are the test.
#
# Five arms: BatchNorm, GroupNorm, SN, LayerNorm, InstanceNorm. (SN's share of BatchNorm is treated
# in the same way at the end.)
#
# A count for your guess: how many numbers share a mean in the last two layers?
#
# | | LN | GN | IN | BN, batch of 2 | 4 | 16 |
# |---|---|---|---|---|---|---|
# | numbers in a mean | 64 | 16 | 4 | 8 | 16 | 64 |

# %% kind="demo"
from itertools import pairwise

from sklearn.datasets import load_digits

RATES, SEEDS, BATCHES, STEPS = (0.01, 0.03, 0.1, 0.3), 8, (2, 4, 16), 150
RUNS, WIDTHS = len(RATES) * SEEDS, (1, 8, 16, 16)
pixels, digit = load_digits(return_X_y=True)
seeded = [np.random.default_rng([76, seed]) for seed in range(SEEDS)]
orders = np.array([rng.permutation(1797) for rng in seeded])
digits8 = torch.from_numpy(pixels[orders].reshape(SEEDS, 1797, 8, 8) / 16).float()
labels = torch.from_numpy(digit[orders])


def normal(*shape, fan_in):
    """He's initialization for every seed, (SEEDS, *shape)."""
    draws = [rng.normal(0, np.sqrt(2 / fan_in), shape) for rng in seeded]
    return torch.from_numpy(np.stack(draws)).float()


filters = [normal(o, i, 3, 3, fan_in=9 * i) for i, o in pairwise(WIDTHS)]
readout = normal(10, 64, fan_in=64)
chosen = {
    size: torch.from_numpy(np.stack([rng.integers(0, 1000, (STEPS, size)) for rng in seeded], 1))
    for size in BATCHES
}


def moments(h, axes):
    mean = h.mean(axes, keepdim=True)
    return mean, (h - mean).square().mean(axes, keepdim=True)


def apply_norm(name, h, mixing, measured):
    """Normalize h (N, runs, C, H, W); BatchNorm's statistics are those of the measured images."""
    blocks = h.view(*h.shape[:2], 4, -1, *h.shape[3:]) if name == "GN" else h
    if name == "SN":  # both softmaxes; mixing: (2, runs, 3)
        shares = torch.softmax(mixing, dim=-1)[..., None, None, None]
        parts = [moments(h, (3, 4)), moments(h, (2, 3, 4)), moments(h[measured], (0, 3, 4))]
        mean = sum(shares[0, :, k] * part[0] for k, part in enumerate(parts))
        var = sum(shares[1, :, k] * part[1] for k, part in enumerate(parts))
    elif name == "BN":
        mean, var = moments(h[measured], (0, 3, 4))
    else:
        mean, var = moments(blocks, {"LN": (2, 3, 4), "IN": (3, 4), "GN": (3, 4, 5)}[name])
    return ((blocks - mean) * torch.rsqrt(var + 1e-5)).view(h.shape)


def train_digits(name, size):
    """Validation and test accuracy, (rate, seed) each, and SN's shares, (layer, 2, rate, seed, 3).

    All runs side by side: as many convolutions in one, as groups of channels.
    """
    kernels = [w.repeat(len(RATES), 1, 1, 1, 1) for w in filters]
    gains = [torch.ones(RUNS, c, 1, 1) for c in WIDTHS[1:]]
    shifts = [torch.zeros(RUNS, c, 1, 1) for c in WIDTHS[1:]]
    last, bias = readout.repeat(len(RATES), 1, 1), torch.zeros(RUNS, 10)
    mixing = [torch.ones(2, RUNS, 3) for _ in kernels]
    learned = [*kernels, *gains, *shifts, last, bias, *(mixing if name == "SN" else [])]
    rate = torch.tensor(RATES).repeat_interleave(SEEDS)
    rates = [  # the axis of the runs comes first, in mixing second
        rate.view(1, -1, 1) if len(p) == 2 else rate.view(-1, *[1] * (p.dim() - 1)) for p in learned
    ]
    for parameter in learned:
        parameter.requires_grad_()

    def network(h, measured=slice(None)):
        for k, stride in enumerate((2, 2, 1)):
            flat = h.flatten(1, 2) if k else h
            h = F.conv2d(flat, kernels[k].flatten(0, 1), stride=stride, padding=1, groups=RUNS)
            h = h.view(len(h), RUNS, -1, *h.shape[2:])
            h = torch.relu(apply_norm(name, h, mixing[k], measured) * gains[k] + shifts[k])
        return torch.einsum("nrc,roc->nro", h.flatten(2), last) + bias

    def pick(rows):
        images = digits8[torch.arange(SEEDS)[:, None], rows].transpose(0, 1)
        wanted = labels[torch.arange(SEEDS)[:, None], rows].T
        return images.repeat(1, len(RATES), 1, 1), wanted.repeat(1, len(RATES))

    for rows in chosen[size]:
        images, wanted = pick(rows)
        scores = network(images).flatten(0, 1)
        loss = F.cross_entropy(scores, wanted.flatten(), reduction="sum") / size
        slopes = torch.autograd.grad(loss, learned)
        with torch.no_grad():
            torch._foreach_sub_(learned, torch._foreach_mul(slopes, rates))
    with torch.no_grad():
        images, wanted = pick(torch.arange(500, 1797).repeat(SEEDS, 1))
        right = (network(images, slice(500)).argmax(dim=2) == wanted).float()
        right = right.view(-1, len(RATES), SEEDS).numpy()
        shares = torch.softmax(torch.stack(mixing), -1).view(-1, 2, len(RATES), SEEDS, 3).numpy()
    return right[500:900].mean(axis=0), right[900:].mean(axis=0), shares


results = {(name, size): train_digits(name, size) for size in BATCHES for name in LOOKS}

fig, axes = plt.subplots(1, 3, figsize=(8.8, 2.8), sharey=True)
print("test accuracy at each arm's best rate, mean +- standard deviation of eight seeds")
for axis, size in zip(axes, BATCHES, strict=True):
    told = []
    for place, (name, (colour, _, mark)) in enumerate(LOOKS.items()):
        valid, tested, _ = results[name, size]
        top = valid.mean(axis=1).argmax()
        axis.plot(place + np.linspace(-0.2, 0.2, SEEDS), tested[top], mark, ms=4, color=colour)
        axis.plot([place - 0.3, place + 0.3], [tested[top].mean()] * 2, color=colour)
        told.append(f"{name} {tested[top].mean():.3f} +- {tested[top].std():.3f} ({RATES[top]:g})")
    axis.set_xticks(range(len(LOOKS)), LOOKS)
    axis.set_title(f"batches of {size}", fontsize=9)
    print(f"batches of {size:2d}:  " + "   ".join(told))
axes[0].set_ylabel("test accuracy")
fig.tight_layout()
plt.show()

# %% [markdown]
# ### See: count the numbers, not the images
#
# In single precision processors round differently, so your numbers may differ a little from ours.
#
# - **The collapse of BatchNorm is not here.** With batches of 2 it is level with GroupNorm (0.716
#   and 0.724, and each scatters by 0.05); with 4 and with 16 it is ahead of it, by 0.05 and 0.02.
#   In two repetitions with other seeds it was ahead by 0.00 and 0.03 at 2, by 0.05 and 0.06 at 4.
#   With `STEPS` at 600, and batches of 2, it is 0.893 against 0.872, and the spread is 0.03.
# - **InstanceNorm is last, at every batch size**, in all these runs. Its last two layers take
#   the mean and the variance of *four* numbers. A large batch does not help, since the batch does
#   not enter.
# - In lesson 06 BatchNorm collapsed with batches of 2, was last with 4 and first with 8: there the
#   batch was all it had, n = 2, 4, 8. Here a batch of 2 means n = 8. Both lessons agree if you
#   count the *numbers in a mean*: four or fewer hurt, eight do not yet. (What counts are
#   independent ones, and pixels are not quite that: lesson 04.) It holds for these two small
#   networks. ResNet-50 has at least 98 at a batch of 2 (its last maps are 7 × 7) and suffers all
#   the same; but its neighbouring pixels are alike, it is fifty layers deep, and it is trained for
#   far longer. Our digits cannot tell which of these matters.
# - Compare within a panel only. All arms saw 150 batches, so with 16 images they saw eight times as
#   many as with 2; that is why everybody is better on the right.
# - "GroupNorm does not depend on the batch size" is true of what it computes, and still it goes
#   from 0.72 to 0.92: so much for reading a batch independent *layer* as a batch independent
#   *result*.
#
# What becomes of BatchNorm at small batches, and what can be done for it, is lesson 10.
#
# ## What does it choose?
#
# The authors of SN report that it prefers BatchNorm when the batch is large enough and LayerNorm
# when it is small, and that for style transfer it chooses InstanceNorm (the first quoted from a
# summary of the paper, the second from its introduction). In the run on digits, does the share of
# BatchNorm grow with the batch size?
#
# There are two honest ways to compare: each batch size at its own best learning rate, or all at the
# same rate. Here is the last of the three layers. Every share began at 1/3.

# %% kind="demo"
probe = torch.from_numpy(np.random.default_rng(79).normal(size=(6, 1, 4, 2, 2)))
trial = SwitchNorm2d(4).double()
with torch.no_grad():
    trial.mean_weight.copy_(torch.tensor([0.2, -0.5, 1.0]))
    trial.var_weight.copy_(torch.tensor([-1.0, 0.3, 0.1]))
both = torch.stack([trial.mean_weight, trial.var_weight]).view(2, 1, 3)
gap = (apply_norm("SN", probe, both, slice(None))[:, 0] - trial(probe[:, 0])).abs().max().item()
print("the arm SN is your module" if gap < 1e-12 else f"the arm SN differs from yours by {gap:.0e}")

kinds = (("IN", BLUE, "o"), ("LN", GREY, "s"), ("BN", ORANGE, "^"))
fig, axes = plt.subplots(1, 4, figsize=(9.8, 2.9), sharey=True)
for axis, (what, fixed) in zip(axes, ((0, None), (1, None), (0, 3), (1, 3)), strict=True):
    statistic = "mean" if what == 0 else "variance"
    for place, size in enumerate(BATCHES):
        valid, _, shares = results["SN", size]
        rate = valid.mean(axis=1).argmax() if fixed is None else fixed
        for k, (name, colour, mark) in enumerate(kinds):
            values = shares[2, what, rate, :, k]
            where = place + 0.25 * (k - 1) + np.linspace(-0.07, 0.07, SEEDS)
            axis.plot(where, values, mark, ms=3, color=colour, label=name if place == 0 else None)
            axis.plot([where[0] - 0.04, where[-1] + 0.04], [values.mean()] * 2, color=colour)
    axis.axhline(1 / 3, color="black", linestyle=":", linewidth=0.8)
    axis.set_xticks(range(3), BATCHES)
    title = "own best rate" if fixed is None else f"rate {RATES[fixed]:g} for all"
    axis.set(xlabel="batch size", title=f"{statistic}, {title}")
    axis.title.set_fontsize(9)
axes[0].set_ylabel("share in the last layer")
axes[0].legend(fontsize=8, loc="upper left", ncols=3, columnspacing=0.6, handletextpad=0)
fig.tight_layout()
plt.show()
print("shares in the last layer, mean +- standard deviation of eight seeds, batches of 2, 4, 16")
print(f"{'':12s}{'BN in the mean':35s}{'IN in the mean':35s}BN in the variance")
for index, rate in enumerate(RATES):
    told = []
    for what, k in ((0, 2), (0, 0), (1, 2)):
        row = [results["SN", size][2][2, what, index, :, k] for size in BATCHES]
        told.append(", ".join(f"{v.mean():.2f}±{v.std():.2f}" for v in row))
    print(f"rate {rate:<5g}  {told[0]}    {told[1]}    {told[2]}")

# %% [markdown]
# ### See: it depends on how you ask
#
# - **At its own best rate** (left half) BatchNorm's share in the mean goes from 0.33 to 0.36 and
#   0.35. That looks a little like the paper. But the best rate went from 0.03 to 0.1 meanwhile, and
#   the $\lambda$ learn at that rate as well: the faster the learning, the further the shares have
#   moved.
# - **At one rate for all** there is no such order: 0.40, 0.47, 0.45 at a rate of 0.3, and 0.35,
#   0.36, 0.35 at 0.1. BatchNorm's share is largest at a batch of 4. Both repetitions agree.
# - What does follow the batch size is *InstanceNorm's* share in the mean. It falls at every rate
#   from 0.03 on: 0.33, 0.30, 0.28 at 0.1, and 0.33, 0.27, 0.24 at 0.3, in both repetitions too.
#   Why, this experiment does not say. (Its mean is that of four numbers.)
# - More training? With `STEPS` at 600 BatchNorm's share in the mean was 0.32, 0.33, 0.34 at a rate
#   of 0.03; 0.37, 0.40, 0.37 at 0.1; and 0.44, 0.59, 0.51 at 0.3. A hint at the smallest rate, no
#   order at the others.
#
# So SN does learn, and what it prefers can be seen. That BatchNorm's share grows with the batch
# size we cannot show with this network, and a comparison at tuned rates alone would have fooled us.
# As a layer it does well: first with batches of 2, and 0.01 and 0.02 behind the best with 4 and 16.
#
# ## A bench for the written question
#
# Your GroupNorm on the maps of two images, and PyTorch's layers beside it. Add cells as you like:
# with other maps, with `ln` and `inorm`, with a backward pass.

# %% kind="demo"
bench_rng = np.random.default_rng(80)
bench = bench_rng.normal(size=(2, 6, 4, 5))  # (N, C, H, W)
gamma_c = np.linspace(0.5, 2, 6).reshape(1, 6, 1, 1)  # GroupNorm's: one number a channel
for G in (1, 2, 6):
    out, cache = spatial_groupnorm_forward(bench, gamma_c, 0 * gamma_c, G, {})
    print(f"G = {G}: output 0, 0, 0 is", out[0, 0, 0].round(3))
print("nn.GroupNorm(1, 6), parameters:", [tuple(p.shape) for p in nn.GroupNorm(1, 6).parameters()])
layer = nn.LayerNorm((6, 4, 5))
print("nn.LayerNorm((6, 4, 5)):       ", [tuple(p.shape) for p in layer.parameters()])

# %% [markdown]
# ## Written question: the two ends of GroupNorm
#
# *15 points, graded by hand.* (Working alone? In a checkout,
# `autograder solution group_norm_limits` shows a model answer.)
#
# PyTorch's documentation of `GroupNorm` calls the case of one group "equivalent with LayerNorm" and
# the case of C groups "equivalent with InstanceNorm".
#
# 1. Which sets share a mean for G = 1, which for G = C, and which norms of this lesson have these
#    very sets?
# 2. In what does GroupNorm with G = 1 still differ from LayerNorm over C, H and W? How many
#    parameters has each, for C = 64 and maps of 32 × 32? Can each imitate the other with a
#    suitable choice of its parameters? And G = C with InstanceNorm?
# 3. What does GroupNorm with G = C return on maps of 1 × 1, and what gradient does it send back to
#    `x`? And with C/G = 4?
# 4. One image, N = 1. Which of BatchNorm (in training), LayerNorm, InstanceNorm and GroupNorm
#    notice that the rest of the batch is missing? With which of the others does BatchNorm then
#    coincide, and does that remain so in evaluation?
# 5. The C/G channels of a group have different $\gamma_c$. Show from the formula why `gamma` must
#    stay inside the means of the backward pass, and for which G it may come out.
#
# Show 2 or 3 with numbers, and say what came out.

# %% [markdown] kind="written" name="group_norm_limits" points=15
# ### BEGIN SOLUTION
# **Model answer.**
#
# *1.* G = 1: all C·H·W entries of an image share a mean, LayerNorm over C, H and W. G = C: the H·W
# entries of one channel of one image, InstanceNorm. The statistics, and so $\hat{x}$, are the same
# to rounding.
#
# *2.* GroupNorm's `gamma` and `beta` have one number a channel, LayerNorm's one for each entry (C,
# H, W). For C = 64 and 32 × 32 that is 2 · 64 = 128 parameters against 2 · 64 · 1024 = 131,072.
# LayerNorm can imitate GroupNorm: let its `gamma` and `beta` be constant over H and W. GroupNorm
# can imitate LayerNorm only if LayerNorm's do not vary within a channel, which after training they
# do. LayerNorm is tied to one size of map, GroupNorm takes any. So "equivalent" is true of the
# statistics, and of the whole layer as long as nothing is learned. With G = C the affine is
# InstanceNorm's as well, one number a channel, so the two are the same layer. (In PyTorch
# `InstanceNorm2d` has no affine unless asked for one, `GroupNorm` has.)
#
# *3.* A set is a single number. It is its own mean, so $\hat{x}=0$ and the output is `beta`,
# whatever came in. The gradient: $g-\bar g=0$ and $\hat x=0$, so dx = 0: nothing below the layer
# learns, and `dgamma` = 0. (In our run `nn.GroupNorm(6, 6)` on (2, 6, 1, 1) returned `beta` up to
# rounding, 4e-5, with no complaint; on (1, 6, 1, 1), and `nn.InstanceNorm2d` on both, raise a
# ValueError.) With C/G = 4 a set has four numbers and the layer works: it is LayerNorm over four
# features. Two of four degrees of freedom are lost, and the gradient is not zero. (With C/G = 2
# only ±1 is left.)
#
# *4.* Only BatchNorm notices; the sets of the others lie within one image. With N = 1 BatchNorm's
# set is the H·W entries of a channel, so in training it coincides with InstanceNorm and with
# GroupNorm, G = C. In evaluation it does not: BatchNorm takes its running averages, the others the
# image at hand.
#
# *5.* For a group $S$ of $n$ entries $\bar g = \frac1n\sum_{c\in
# S}\gamma_c\sum_{h,w}\mathrm{dout}_{chw}$: the sum runs over $c$, and $\gamma_c$ has that index. In
# words: a nudge of one entry moves the group's mean, hence the $\hat x$ of *all* its channels, and
# each of those reaches the loss through its own $\gamma_c$. The same holds for $\overline{g\hat
# x}$. $\gamma$ may come out where a set has only one: G = C (or where all `gamma` of a group happen
# to be equal, as at the start). In the lesson the error of the slip is 10 % at G = 1, 4 % at G = 6
# and 0 at G = C = 12.
#
# **Rubric:**
#
# - 3 points: the sets of G = 1 and G = C (1); LayerNorm over C, H, W (1); InstanceNorm (1).
# - 4 points: affine a channel against (C, H, W) (1); 128 and 131,072 (1); LayerNorm can imitate
#   GroupNorm, not the other way round in general (1); with G = C the same layer as InstanceNorm
#   (1).
# - 3 points: `beta`, whatever came in (1); dx = 0 (1); with C/G = 4 a set of four numbers, which
#   works (1).
# - 2 points: only BatchNorm notices, and equals InstanceNorm or GroupNorm with G = C in training
#   (1); not in evaluation (1).
# - 2 points: `gamma` has the index that is summed, or the argument in words (1); out only for G = C
#   or equal `gamma` (1).
# - 1 point: numbers of one's own for 2 or 3.
#
# "64 and 65,536" (`gamma` alone) gets its point if it says so. "LayerNorm over C only" for G = 1 is
# wrong, unless the maps are 1 × 1.
# ### END SOLUTION

# %% [markdown]
# ## What to remember
#
# - A norm is a choice of sets. Whoever shares a mean moves together, and what all of a set have in
#   common is what the layer is blind to.
# - InstanceNorm: a channel of an image. Brightness, contrast and tint are gone, batch-mates do not
#   matter, and `track_running_stats` stays off.
# - GroupNorm: C/G *neighbouring* channels of an image, in the batch or alone. `gamma` has one
#   number a channel, so on the way back it stays inside the group's means.
# - The last step of every norm is the same three terms; `dgamma` is summed over all who used it.
# - "Below 16" is one table's crossing. Ask how many independent numbers make a mean: count them
#   (N·H·W, H·W, ...), and ask how alike they are.
# - SN mixes three means and three variances, with a softmax each. The variances must be biased for
#   the identity between them to hold.
#
# `progress()` shows what is left. Next: lesson 08, which normalizes weights.
#
# ## Sources
#
# - D. Ulyanov, A. Vedaldi, V. Lempitsky, *Instance Normalization: The Missing Ingredient for Fast
#   Stylization*, 2016, [arXiv 1607.08022](https://arxiv.org/abs/1607.08022): contrast as the
#   reason, the same at training and test time (abstract and public summaries).
# - X. Huang, S. Belongie, *Arbitrary Style Transfer in Real-time with Adaptive Instance
#   Normalization*, 2017, [arXiv 1703.06868](https://arxiv.org/abs/1703.06868): sections 4 and 5,
#   style as per-channel statistics, InstanceNorm against BatchNorm in training.
# - `track_running_stats`: [CycleGAN and pix2pix
#   #395](https://github.com/junyanz/pytorch-CycleGAN-and-pix2pix/issues/395), [StarGAN
#   #140](https://github.com/yunjey/stargan/issues/140), [PyTorch
#   #58843](https://github.com/pytorch/pytorch/issues/58843). Maps of 1 × 1: PyTorch
#   [#19250](https://github.com/pytorch/pytorch/issues/19250) and
#   [#45687](https://github.com/pytorch/pytorch/issues/45687).
# - Y. Wu, K. He, *Group Normalization*, 2018, [arXiv 1803.08494](https://arxiv.org/abs/1803.08494):
#   the figure of the cubes, groups in sequential order, SIFT and HOG, 10.6 points at a batch of 2
#   (abstract and public summaries).
# - The wrong reshape: [TensorFlow Addons #751](https://github.com/tensorflow/addons/issues/751),
#   [Keras-Group-Normalization
#   #6](https://github.com/titu1994/Keras-Group-Normalization/issues/6).
# - P. Luo, J. Ren, Z. Peng, R. Zhang, J. Li, *Differentiable Learning-to-Normalize via Switchable
#   Normalization*, 2018, [arXiv 1806.10779](https://arxiv.org/abs/1806.10779): abstract and
#   introduction; the preference for BatchNorm and LayerNorm from [S.-H. Tsang's
#   review](https://sh-tsang.medium.com/brief-review-differentiable-learning-to-normalize-via-switchable-normalization-d0d48b40d548).
#   The table, and the code that we compare with:
#   [Switchable-Normalization](https://github.com/switchablenorms/Switchable-Normalization); a port
#   without running averages,
#   [#2](https://github.com/taki0112/Switchable_Normalization-Tensorflow/issues/2).
# - PyTorch, [GroupNorm](https://docs.pytorch.org/docs/stable/generated/torch.nn.GroupNorm.html) and
#   [InstanceNorm2d](https://docs.pytorch.org/docs/stable/generated/torch.nn.InstanceNorm2d.html):
#   biased variances, shapes of the affine, the two "equivalent" cases.
# - Stanford CS231n, assignment 2: the signatures of the group norm functions.
# - scikit-learn: the photographs `china.jpg` and `flower.jpg`, and `load_digits`.
