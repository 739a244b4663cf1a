# %% [markdown]
# # 04 · BatchNorm as a module
#
# **Goal.** Take BatchNorm to images, where you must first say what a sample is. Then build it as
# a PyTorch module that trains, evaluates, saves and loads like the real one.
#
# **Time** 125 minutes: 95 for the parts below, 30 for reading. **Difficulty** 3 of 5.
#
# **You need** lessons 02 and 03 (their functions are given below) and a little PyTorch: tensors,
# autograd, `nn.Module`.
#
# | part | points | minutes |
# |---|---|---|
# | `spatial_batchnorm_forward` | 22 | 20 |
# | `spatial_batchnorm_backward` | 18 | 15 |
# | `BatchNorm2d` | 45 | 40 |
# | written question | 15 | 20 |
#
# A `check` stands below each exercise and judges what you wrote; `hint("BatchNorm2d")` gives one
# more rung of help each time you call it, and `progress()` shows where you stand.
#
# **Two conventions.** The numpy functions keep lesson 02's: `momentum` weights the *old* average,
# and the running variance is biased. The module keeps PyTorch's. A table before the module sets
# one beside the other.

# %% kind="setup"
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.colors import LinearSegmentedColormap
from torch import nn
from torch.nn import functional as F

from autograder import check, hint, progress

BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#666666"  # told apart by colour-blind readers too
plt.rcParams.update({"figure.dpi": 100, "font.size": 9, "axes.spines.top": False})
plt.rcParams.update({"axes.spines.right": False, "legend.frameon": False})

# %% kind="given" name="batchnorm_forward"

# %% kind="given" name="batchnorm_backward"

# %% [markdown]
# ## The question
#
# In lesson 02 the batch was a table. A sample was a row, a feature was a column, and BatchNorm
# took one mean per column.
#
# Now the batch holds images. `x` has four axes: N images, C channels, H rows and W columns of
# pixels. There is no table any more, so **what is a sample here, and what is a feature?** (Lesson
# 01 named BatchNorm's axes, (0, 2, 3). It did not say why.)
#
# One answer: an image is a sample, so each pixel of each channel is a feature. Another: each
# *pixel* is a sample, and its channels are the features. Both turn the images into a table, and
# both run.
#
# Take two small images: N = 2, C = 3, H = 4, W = 5. That makes 120 numbers. Before you run the
# cell: how many means does each answer compute, and how many numbers share one?
#
# ### Picture: two ways to read images as a table

# %% kind="demo"
TINTS = [(0.75, 0.87, 0.95), (0.98, 0.85, 0.75), (0.88, 0.88, 0.88)]


def draw_sharing(axis, group, title):
    """Draw (N, C, H, W) group numbers, an image a row: equal numbers share one mean."""
    samples, channels, height, width = group.shape
    colours = TINTS if group.max() < 3 else plt.cm.cividis(np.linspace(0.6, 1, group.max() + 1))
    canvas = np.ones((samples * (height + 1) - 1, channels * (width + 1) - 1, 3))
    for (n, c, h, w), number in np.ndenumerate(group):
        row, column = n * (height + 1) + h, c * (width + 1) + w
        canvas[row, column] = colours[number][:3]
        axis.text(column, row, number, ha="center", va="center", fontsize=6)
    axis.imshow(canvas, aspect="equal")
    axis.set_xticks([c * (width + 1) + (width - 1) / 2 for c in range(channels)])
    axis.set_xticklabels([f"channel {c}" for c in range(channels)])
    axis.set_yticks([n * (height + 1) + (height - 1) / 2 for n in range(samples)])
    axis.set_yticklabels([f"image {n}" for n in range(samples)])
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    axis.set_title(title)


sizes = (2, 3, 4, 5)
by_pixel = np.broadcast_to(np.arange(60).reshape(1, 3, 4, 5), sizes)
by_channel = np.broadcast_to(np.arange(3).reshape(1, 3, 1, 1), sizes)
fig, (left, right) = plt.subplots(1, 2, figsize=(8.6, 2.6))
draw_sharing(left, by_pixel, "an image is a sample: 60 means of 2 numbers")
draw_sharing(right, by_channel, "a pixel is a sample: 3 means of 40 numbers")
fig.tight_layout()
plt.show()

# %% [markdown]
# ### See: which entries share a mean
#
# Equal numbers share one mean.
#
# **Left.** A mean for each place: 60 of them, each shared by two numbers, one per image. You know
# from lesson 02 what a batch of two does: every output is +1 or −1.
#
# **Right.** A mean for each channel: 3 of them, each shared by 40 numbers, from every place in
# every image. This is BatchNorm for images (Ioffe and Szegedy 2015, section 3.2; the notes this
# course grew from say the same), and "batch size" now means N·H·W.
#
# A mean of many numbers is steadier than a mean of two. But if that were all, one mean for all
# 120 would be better still. So why stop at the channel?
#
# ## Why per channel?
#
# Because of what a convolution does. *One kernel makes one channel*: it slides over the image and
# asks the same question at every place. Its answers belong together. Another kernel asks
# something else.
#
# The notes say so too, and add that there are as many kernels as channels. Which channels: those
# that come in or those that go out? And what would be lost with a mean for each place? Three
# little pokes. First decide what each will change.

# %% kind="demo"
poke_rng = np.random.default_rng(40)
photos = torch.from_numpy(poke_rng.normal(size=(4, 3, 8, 8)))  # 4 images, 3 channels
kernels = torch.from_numpy(poke_rng.normal(size=(8, 3, 3, 3)))


def convolve(images, weights):
    """Convolution whose image goes on at the opposite edge, so that it can be shifted."""
    return F.conv2d(F.pad(images, (1, 1, 1, 1), mode="circular"), weights)


def normalize(x, axes):
    variance, mean = torch.var_mean(x, dim=axes, correction=0, keepdim=True)
    return (x - mean) / torch.sqrt(variance + 1e-5)


def changed(first, second):
    return [c for c in range(first.shape[1]) if not torch.allclose(first[:, c], second[:, c])]


maps = convolve(photos, kernels)
for name, tensor in (("images in", photos), ("kernels", kernels), ("images out", maps)):
    print(f"{name:11s}{tuple(tensor.shape)}")
poked = kernels.clone()
poked[5] += 1
print("kernel 5 changed:        these output channels", changed(maps, convolve(photos, poked)))
poked = photos.clone()
poked[:, 1] += torch.from_numpy(poke_rng.normal(size=(4, 8, 8)))
print("input channel 1 changed: these output channels", changed(maps, convolve(poked, kernels)))

moved = photos.clone()
moved[0] = photos[0].roll((2, 3), dims=(1, 2))  # image 0 moves 2 down and 3 to the right
for name, axes in (("one mean a channel", (0, 2, 3)), ("one mean a place  ", (0,))):
    before = normalize(maps, axes)
    after = normalize(convolve(moved, kernels), axes)
    own = (after[0] - before[0].roll((2, 3), dims=(1, 2))).abs().max()
    others = (after[1:] - before[1:]).abs().max()
    print(f"image 0 shifted, {name}: image 0 off by {own:.0e}, the others by {others:.0e}")

# %% [markdown]
# ### See: a channel is one kernel's answers
#
# - The kernels have the shape (8, 3, 3, 3): eight kernels for eight *output* channels. Each kernel
#   spans all three input channels, so it is a little block of 3 × 3 × 3 (in lesson 08 such a block
#   is called a filter). "As many kernels as channels" holds for what goes out.
# - Change one kernel and one output channel changes. Change one input channel and all eight do.
# - Shift an image. With a mean for each channel its output shifts along, and nobody else notices:
#   the same 256 numbers are averaged, in another order. With a mean for each place its output
#   becomes a different one, and its neighbours in the batch change too.
#
# A convolution treats all places alike, and the paper's reason for one mean a channel is to keep
# it so.
#
# ## The mathematics, with shapes
#
# | name | shape | what |
# |---|---|---|
# | `x`, `out`, `dout`, `dx` | (N, C, H, W) | images |
# | `mean`, `var`, running averages | (C,) | one number a channel |
# | `gamma`, `beta`, `dgamma`, `dbeta` | (C,) | one number a channel |
# | $n$ | | how many numbers share a mean: $n = N \cdot H \cdot W$ |
#
# For channel $c$:
#
# $$\mu_c = \frac{1}{n}\sum_{i=1}^{N}\sum_{h=1}^{H}\sum_{w=1}^{W} x_{ichw}, \qquad
# \sigma_c^2 = \frac{1}{n}\sum_{i,h,w} (x_{ichw}-\mu_c)^2$$
#
# $$\mathrm{out}_{ichw} = \gamma_c\,
# \frac{x_{ichw}-\mu_c}{\sqrt{\sigma_c^2+\epsilon}} + \beta_c$$
#
# Three indices are summed away, and $c$ stays. Nothing else is new. In lesson 02 one index was
# summed away and $j$ stayed; so if you lay the images out as a table of $n$ rows and C columns,
# the function you already have does the rest.
#
# ### A table, but which?
#
# The notes want a table of the shape (C, B·H·W), B being their N, and write
#
# ```python
# x.permute(1, 0, 2, 3).view(3, -1).mean(dim=1)
# ```
#
# The formulas above are theirs, and right. This line is *nearly* right. And their sentence, read
# as it stands ("reshape to C, BHW"), would be `x.reshape(C, -1)`, without the `permute`. Which of
# these lines give the C means of the formula? For which N and C?

# %% kind="demo"
trap_rng = np.random.default_rng(41)


def try_out(line, x):
    channels = x.shape[1]
    try:
        means = line(x, channels)
    except RuntimeError as error:
        return "error: " + str(error).split(" (")[0][:30] + "..."
    if len(means) != channels:
        return f"{len(means)} means, not {channels}"
    return f"off by {(means - x.mean(dim=(0, 2, 3))).abs().max():.1g}"


lines = {
    "permute, view(3, -1)": lambda x, channels: x.permute(1, 0, 2, 3).view(3, -1).mean(dim=1),
    "permute, reshape(C, -1)": lambda x, C: x.permute(1, 0, 2, 3).reshape(C, -1).mean(dim=1),
    "reshape(C, -1)": lambda x, channels: x.reshape(channels, -1).mean(dim=1),
}
for N, C in ((1, 3), (2, 3), (1, 6), (4, 6)):
    levels = torch.arange(1.0, C + 1).view(1, C, 1, 1)  # channel c lies at c + 1
    trial = levels + torch.from_numpy(trap_rng.normal(size=(N, C, 4, 5)))
    for name, line in lines.items():
        print(f"N = {N}, C = {C}   {name:24s} {try_out(line, trial)}")

print()
shape = (4, 6, 8, 8)
noise = trap_rng.normal(size=shape)
spread, level = trap_rng.uniform(0.5, 2, (1, 6, 1, 1)), trap_rng.normal(size=(1, 6, 1, 1))
for name, images in (("channels alike ", noise), ("channels differ", level + spread * noise)):
    right_one = normalize(torch.from_numpy(images), (0, 2, 3)).numpy()
    table = images.reshape(6, -1)
    table = (table - table.mean(axis=1, keepdims=True)) / table.std(axis=1, keepdims=True)
    wrong_one = table.reshape(shape)
    error = np.linalg.norm(wrong_one - right_one) / np.linalg.norm(right_one)
    rows, channels = np.abs(table.mean(axis=1)).max(), np.abs(wrong_one.mean(axis=(0, 2, 3))).max()
    print(f"{name}: reshape(C, -1) changes the output by {error:4.0%} of its norm;")
    print(f"    largest mean of a row {rows:.0e}, largest mean of a channel {channels:.2f}")

fig, (left, right) = plt.subplots(1, 2, figsize=(8.6, 3.2))
for panel, count in ((left, 2), (right, 3)):
    panel.set_anchor("N")
    group = np.repeat(np.arange(3), count * 20).reshape(count, 3, 4, 5)
    draw_sharing(panel, group, f"the rows of x.reshape(3, -1), N = {count}")
fig.tight_layout()
plt.show()

# %% [markdown]
# ### See: reshape does not know what an axis means
#
# - The notes' line works for one image of three channels. For N > 1 it stops with an error, since
#   `view` asks for a memory layout that `permute` has destroyed. With one image of six channels
#   it runs and gives three means: the 3 is the notes' RGB, cast in concrete.
# - `permute` and then `reshape(C, -1)` is what they meant. It is right everywhere.
# - `reshape(C, -1)` alone is right for N = 1 only. It cuts memory into C equal pieces, and memory
#   holds image 0 with all its channels, then image 1, and so on. In the figure equal numbers
#   share a mean: at N = 2 the second mean is half image 0, half image 1. At N = 3 = C each mean
#   belongs to one *image*. That is another layer altogether; you meet it in lesson 06.
#
# How much damage? That depends on how different the channels are. In the cell's batch of 4 images
# and 6 channels the error is 9 % of the output's norm when the channels are alike, and 76 % when
# their means scatter by about 1 and their spreads lie between 0.5 and 2. And look at the second
# line of each pair: *every row of the wrong table has mean 0.* A self-test on the rows that it
# has just made will pass. Ask for the mean of each channel of the result.
#
# ## Your turn: spatial_batchnorm_forward
#
# *22 points.*
#
# Lay the images out as the table that your `batchnorm_forward` wants, let it work, and lay the
# result back.
#
# - `batchnorm_forward` wants one *column* a feature. What is the shape of the table, then, and
#   which axis of `x` has to come last?
# - The way back takes the same steps in the opposite order. A `reshape` straight to (N, C, H, W)
#   has the right shape and the wrong numbers, for the reason you have just seen.
# - `bn_param` needs nothing new: it goes through as it is, and its averages come out as (C,).
#   If you loop over channels instead, ask which dictionary each channel writes into.


# %% kind="exercise" name="spatial_batchnorm_forward"
def spatial_batchnorm_forward(x, gamma, beta, bn_param):
    """BatchNorm for images: one mean and one variance for each channel.

    x: (N, C, H, W). gamma, beta: (C,). bn_param: as in batchnorm_forward, running averages (C,).
    Returns out (N, C, H, W) and a cache for the backward pass.
    """
    ### BEGIN SOLUTION
    N, C, H, W = x.shape
    flat = x.transpose(0, 2, 3, 1).reshape(-1, C)
    out, cache = batchnorm_forward(flat, gamma, beta, bn_param)
    return out.reshape(N, H, W, C).transpose(0, 3, 1, 2), cache
    ### END SOLUTION


# %% [markdown]
# ## How many samples is that, really?
#
# $n = N\cdot H\cdot W$ numbers go into one variance. Lesson 02 found that a biased variance comes
# out as $\frac{n-1}{n}\sigma^2$ on average, *for independent samples*, and left you with a line
# about twins. Neighbouring pixels are more than a little alike.
#
# In general, with $\rho_{ab}$ for the correlation of entries $a$ and $b$ of a channel (not lesson
# 02's momentum),
#
# $$\mathbb{E}[\sigma_B^2] = \sigma^2 - \mathrm{Var}[\mu_B] = \sigma^2 (1-\bar\rho), \qquad
# \bar\rho = \frac{1}{n^2}\sum_{a,b}\rho_{ab}$$
#
# Independent entries have $\bar\rho = 1/n$. For others $1/\bar\rho$ takes the place of $n$: so
# many independent numbers would estimate the mean as well. Call it $n_{\mathrm{eff}}$.
#
# PyTorch corrects the variance by $n/(n-1)$ before it goes into the running average. Take 8×8
# images of four kinds: independent noise, noise blurred by a box of 3×3, pieces of a photograph,
# and scikit-learn's handwritten digits. With `momentum` 0 the diary holds the last batch's
# variance, so your function does the measuring. Where will the correction suffice?

# %% kind="demo"
from sklearn.datasets import load_digits, load_sample_image

count_rng = np.random.default_rng(42)
photo = load_sample_image("china.jpg").mean(axis=2)[:424, :640]  # grey, (424, 640)
crops = photo.reshape(53, 8, 80, 8).transpose(0, 2, 1, 3).reshape(-1, 8, 8)
digit_images = load_digits().images


def blurred(count, replicas, box):
    """Noise of variance 1, averaged over a box that goes on at the opposite edge."""
    field = count_rng.normal(size=(count, replicas, 8, 8))
    for axis in (2, 3):
        field = sum(np.roll(field, step, axis=axis) for step in range(box))
    return field / box


def draw(name, count, replicas):
    """(count, replicas, 8, 8): as many batches as there are channels."""
    if name.startswith("noise"):
        return blurred(count, replicas, box=int(name[-1]))
    pool = crops if name == "photograph" else digit_images
    return pool[count_rng.integers(0, len(pool), size=(count, replicas))]


def worth(name):
    """The variance of all entries, and n_eff for one image."""
    if name.startswith("noise"):
        return 1.0, 64 / int(name[-1]) ** 2
    pool = crops if name == "photograph" else digit_images
    return pool.var(), pool.var() / pool.mean(axis=(1, 2)).var()


def batch_variances(x):
    """The biased variance of each channel, (C,), as your function stores it."""
    channels, kept = x.shape[1], {"mode": "train", "momentum": 0.0}
    spatial_batchnorm_forward(x, np.ones(channels), np.zeros(channels), kept)
    return kept["running_var"]


image_counts = np.array([1, 2, 4, 8, 16])
marks = {"noise, box 1": "o", "noise, box 3": "s", "photograph": "^", "digits": "D"}
colours = (BLUE, GREY, ORANGE, "black")
fig, axis = plt.subplots(figsize=(6.4, 3.2))
print("corrected variance / true variance; in brackets 1 - 1/n_eff")
print("images in the batch" + "".join(f"{count:15d}" for count in image_counts))
for (name, mark), colour in zip(marks.items(), colours, strict=True):
    truth, one_image = worth(name)
    ratios = []
    for count in image_counts:
        n = count * 64
        corrected = batch_variances(draw(name, count, 1000)) * n / (n - 1)
        ratios.append(corrected.mean() / truth)
    expected = 1 - 1 / (one_image * image_counts)
    axis.plot(image_counts, expected, color=colour, linewidth=1)
    axis.plot(image_counts, ratios, mark, ms=5, color=colour, label=name)
    told = "".join(f"  {r:5.3f} ({e:5.3f})" for r, e in zip(ratios, expected, strict=True))
    print(f"{name:12s}       {told}")
    print(f"    64 pixels of one image are worth {one_image:.1f} independent numbers")
axis.set(xlabel="images in the batch", ylabel="corrected variance / true variance")
axis.set_xscale("log", base=2)
axis.set_xticks(image_counts, image_counts)
axis.legend(loc="lower right")
fig.tight_layout()
plt.show()

# %% [markdown]
# ### See: pixels are not samples
#
# - Independent noise: right for every batch size. This is the case that the correction is for.
# - Blur by 3×3, and 64 pixels are worth 7. One image then gives 0.87 of the variance.
# - The photograph: 64 neighbouring pixels are worth *one*, for a small piece of a picture is all
#   sky or all roof. From one piece the variance comes out at 0.09 of the truth, from two at 0.54.
#   The correction by $n/(n-1)$ is 64/63 there, next to nothing. It counts pixels, and what counts
#   is images.
# - The digits turn it round: 64 pixels are worth 125 independent ones. Every digit has about as
#   much ink as the next, so image means vary *less* than by chance.
#
# So the notes' $\frac{n-1}{n}$ is true of independent samples, and $n = N\cdot H\cdot W$ pixels
# are not that. PyTorch's correction understates where neighbours resemble one another over the
# whole image. With many images in the batch it hardly matters: even the photograph is at 0.95
# with 16.

# %% [markdown]
# ## The way back
#
# Lesson 03's formula holds as it stands, with three summed indices in place of one. With
# $g = \gamma_c\,\mathrm{dout}$ and every mean taken over the $n$ entries of channel $c$:
#
# $$dx = \frac{1}{\sqrt{\sigma_c^2+\epsilon}}
# \left[g - \overline{g} - \hat{x}\,\overline{g\,\hat{x}}\right], \qquad
# d\beta_c = \sum_{i,h,w}\mathrm{dout}_{ichw}, \qquad
# d\gamma_c = \sum_{i,h,w}\mathrm{dout}_{ichw}\,\hat{x}_{ichw}$$
#
# Suppose the loss looks at *one* pixel of one image. Which pixels get a gradient?
#
# ## Your turn: spatial_batchnorm_backward
#
# *18 points.*
#
# `dout` comes as images, and the cache remembers a table. So `dout` has to become the same table,
# row for row, as `x` did; `dx` has to become images again; `dgamma` and `dbeta` are (C,) already.


# %% kind="exercise" name="spatial_batchnorm_backward"
def spatial_batchnorm_backward(dout, cache):
    """The gradients of spatial_batchnorm_forward in training mode.

    dout: (N, C, H, W). Returns dx (N, C, H, W), dgamma (C,) and dbeta (C,).
    """
    ### BEGIN SOLUTION
    N, C, H, W = dout.shape
    flat = dout.transpose(0, 2, 3, 1).reshape(-1, C)
    dx, dgamma, dbeta = batchnorm_backward(flat, cache)
    return dx.reshape(N, H, W, C).transpose(0, 3, 1, 2), dgamma, dbeta
    ### END SOLUTION


# %% [markdown]
# ## One pixel's gradient
#
# Two blurred images of three channels. `dout` is 1 at one pixel (image 0, channel 1) and 0
# everywhere else. Then your gradients beside PyTorch's, for a `dout` full of noise.

# %% kind="demo"
one_rng = np.random.default_rng(43)
pair = one_rng.normal(size=(2, 3, 8, 8))
for turn in (2, 3):
    pair = pair + np.roll(pair, 1, axis=turn) + np.roll(pair, -1, axis=turn)
gamma3, beta3 = np.array([1.0, 2.0, 0.5]), np.array([0.0, 1.0, -1.0])
dout = np.zeros_like(pair)
dout[0, 1, 3, 4] = 1
_, cache = spatial_batchnorm_forward(pair, gamma3, beta3, {"mode": "train"})
dx, _, _ = spatial_batchnorm_backward(dout, cache)

both = LinearSegmentedColormap.from_list("both", (BLUE, "white", ORANGE))
limit = np.sort(np.abs(dx).ravel())[-2]  # the pixel itself is off the scale
fig, panels = plt.subplots(2, 3, figsize=(6.2, 3.8), layout="constrained")
for (n, c), panel in np.ndenumerate(panels):
    shown = panel.imshow(dx[n, c], cmap=both, vmin=-limit, vmax=limit)
    panel.set(xticks=[], yticks=[])
    panel.set_title(f"image {n}, channel {c}", fontsize=8)
    panel.spines[:].set_visible(True)
panels[0, 1].plot(4, 3, "k*", ms=6)
fig.colorbar(shown, ax=panels, label="dx", shrink=0.8)
plt.show()

print(f"dx at the pixel itself {dx[0, 1, 3, 4]:.3f}; largest elsewhere {limit:.3f}")
for n, c in ((0, 1), (1, 1), (0, 0), (1, 2)):
    touched, total = np.count_nonzero(dx[n, c]), dx[n, c].sum()
    print(f"image {n}, channel {c}: {touched:2d} of 64 pixels have a gradient, sum {total:6.3f}")

dout = one_rng.normal(size=pair.shape)
yours = spatial_batchnorm_backward(dout, cache)
leaves = [torch.tensor(array, requires_grad=True) for array in (pair, gamma3, beta3)]
out = F.batch_norm(leaves[0], None, None, leaves[1], leaves[2], training=True, eps=1e-5)
theirs = torch.autograd.grad(out, leaves, torch.from_numpy(dout))
for name, mine, their in zip(("dx", "dgamma", "dbeta"), yours, theirs, strict=True):
    gap = np.abs(mine - their.numpy()).max()
    print(f"{name:6s} {mine.shape!s:13s} differs from PyTorch's by {gap:.0e}")

# %% [markdown]
# ### See: a channel shares its gradient, too
#
# The star is the pixel that the loss looks at. The map is scaled to the others; the star itself
# is 25 times off the scale.
#
# All 128 pixels of channel 1 get a gradient, those of image 1 included: they took part in the
# mean and the variance that normalized the star. The two images' sums cancel (0.143 and −0.143),
# since adding one number to the whole channel would change nothing. Channels 0 and 2 get exactly
# 0.
#
# And PyTorch's own BatchNorm gives the same gradients, to rounding.
#
# ## From two functions to a module
#
# Your functions work, and leave a lot to whoever calls them: carry `gamma` and `beta` about, keep
# a dictionary for each of the network's fifty layers, set its `mode`, save all this with the
# weights. A module carries its own.
#
# - **Parameters** (`nn.Parameter`): what the optimizer learns. `weight` and `bias` are PyTorch's
#   names for `gamma` and `beta`.
# - **Buffers** (`self.register_buffer(name, tensor)`): tensors that are part of the module's
#   state, yet not learned. `running_mean`, `running_var`, `num_batches_tracked`. Registered with
#   `None`, a buffer is a name without a tensor.
# - **Settings**: plain attributes, like `eps`.
# - **The mode**: `model.train()` and `model.eval()` set `self.training` in every module inside.
#   Nothing else sets it. (What lesson 02 calls test mode is *evaluation* in PyTorch.)
#
# Why the running averages are not parameters, and why a plain attribute will not do, is the
# written question. Keep it in mind while you type.
#
# | | lesson 02 and the functions above | PyTorch, and your module |
# |---|---|---|
# | learned | `gamma`, `beta` | `weight`, `bias`; none if `affine=False` |
# | `momentum` weights | the old average (0.9) | the new value (0.1) |
# | `momentum=None` | | the plain average of all batches so far |
# | normalizes with | the biased variance | the biased variance |
# | keeps an average of | the biased variance | the unbiased one, times $n/(n-1)$ |
# | averages start at | mean 0, variance 0 | mean 0, variance 1 |
# | no averages | | `track_running_stats=False`: the batch's own, in eval too |
# | one value a channel | everything becomes `beta` | refused in training, `ValueError` |
#
# One row deserves a second look: *two* variances are in use, one to normalize this batch and one
# for the diary. (In lesson 02 you saw what the second is for.) With $n=1$ the second would be
# 0/0.
#
# ### Half the bits
#
# Networks are often run in 16-bit numbers: float16 has 11 significant bits and ends at 65,504;
# bfloat16 has 8 and ends near 3e38. What happens to a mean and a variance in them? The cell
# computes BatchNorm in the input's own format, then with the statistics in float32, and compares
# both with float64 *on the same 16-bit inputs*.

# %% kind="demo"
half_rng = np.random.default_rng(44)
F16, BF16 = torch.float16, torch.bfloat16
print("300 squared in float16:", (torch.tensor(300.0, dtype=F16) ** 2).item())
print("300 squared in bfloat16:", (torch.tensor(300.0, dtype=BF16) ** 2).item())
extreme = torch.tensor([0.0, 600.0], dtype=F16).view(2, 1, 1, 1)
print("inputs 0 and 600, all in float16: ", normalize(extreme, (0, 2, 3)).flatten().tolist())
print(
    "the same in float32:              ", normalize(extreme.float(), (0, 2, 3)).flatten().tolist()
)

print("\nroot mean square error of the output, std 1, batch (32, 64, 8, 8)")
print("   mean    float16   statistics float32      bfloat16   statistics float32")
for offset in (0, 10, 100, 1000):
    errors = []
    for dtype in (F16, BF16):
        x = torch.from_numpy(offset + half_rng.normal(size=(32, 64, 8, 8))).to(dtype)
        exact = normalize(x.double(), (0, 2, 3))
        for out in (normalize(x, (0, 2, 3)), normalize(x.float(), (0, 2, 3)).to(dtype)):
            errors.append((out - exact).square().mean().sqrt().item())
    print("{:7d}   {:8.5f}   {:18.5f}      {:8.5f}   {:18.5f}".format(offset, *errors))

print("\na diary at 100, all batches say 101, 2000 steps")
for share in (0.1, 0.01):
    for dtype in (torch.float32, F16, BF16):
        kept = torch.tensor(100.0, dtype=dtype)
        for _ in range(2000):
            kept += share * (101 - kept)
        print(f"momentum {share:<4}  {dtype!s:14s}  arrives at {kept.item():.2f}")

# %% [markdown]
# ### See: statistics want float32
#
# - 300² is past the end of float16. The variance becomes infinite, the outputs become 0 where
#   they should be ±1, and there is no NaN to warn you. Deviations of 256 suffice.
# - In the middle of the range it is the *mean* that suffers. Near 100 float16 numbers lie 1/16
#   apart, and near 1000 half a standard deviation. The inputs are rounded in any case, and both
#   columns see the same ones; but a rounded mean shifts a whole channel. From a mean of 100 on
#   the error is about a hundred times that with float32 statistics; in bfloat16, about twelve
#   times. What is left in the float32 columns is the rounding of the output.
# - A diary in 16 bits stops writing. Each step adds a tenth of the gap, and when that is less
#   than half the distance to the next number, nothing is added: float16 stops a quarter short,
#   bfloat16 never starts. With momentum 0.01 neither does.
#
# Hence the rule in your exercise: go to float32 for float16 and bfloat16 inputs, compute, come
# back to the input's format at the very end. (float64 stays float64.)
#
# ## Your turn: BatchNorm2d
#
# *45 points.*
#
# Write `__init__` first, then `forward` in training mode, then evaluation, then the exceptions.
# Run the check after each.
#
# - The diary takes no part in the gradient. If it did, every batch's graph would hang on it.
# - Only `self.training` says which mode it is. `torch.no_grad()` means that nobody wants
#   gradients, and people also use it in training mode.
# - Statistics are (C,), and `x` is (N, C, H, W). Broadcasting lines shapes up from the right:
#   with which axis would (C,) be lined up? When C = W no error tells you.
# - Two variances, one $n$: which one normalizes, and which goes into the diary?
# - `momentum=None`: after the $t$-th batch the diary is the average of $t$ batches, with equal
#   weights. What weight must the $t$-th get? Count it before you ask.
# - Write the arithmetic yourself. `nn.BatchNorm2d` and `F.batch_norm` earn nothing here.


# %% kind="exercise" name="BatchNorm2d"
class BatchNorm2d(nn.Module):
    """BatchNorm for images as a PyTorch module, with PyTorch's conventions.

    momentum weights the NEW value, and None means the plain average of all batches so far; the
    running variance is the unbiased one. Parameters weight and bias (num_features,) if affine,
    else None; buffers running_mean (zeros), running_var (ones) and num_batches_tracked if
    track_running_stats, else None. Without running averages, eval mode uses the batch as well.
    Half precision is computed in float32, also under torch.autocast (which runs einsum and matmul
    in half), and returned in x's dtype. In training mode a channel with one value only
    (N * H * W = 1) raises ValueError.
    """

    def __init__(self, num_features, eps=1e-5, momentum=0.1, affine=True, track_running_stats=True):
        super().__init__()
        self.num_features = num_features
        self.eps = eps
        self.momentum = momentum
        self.affine = affine
        self.track_running_stats = track_running_stats
        ### BEGIN SOLUTION
        self.weight = nn.Parameter(torch.ones(num_features)) if affine else None
        self.bias = nn.Parameter(torch.zeros(num_features)) if affine else None
        tracked = track_running_stats
        self.register_buffer("running_mean", torch.zeros(num_features) if tracked else None)
        self.register_buffer("running_var", torch.ones(num_features) if tracked else None)
        self.register_buffer("num_batches_tracked", torch.tensor(0) if tracked else None)
        ### END SOLUTION

    def forward(self, x):
        """x: (N, C, H, W). Returns the same shape and dtype."""
        ### BEGIN SOLUTION
        wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        if self.training or not self.track_running_stats:
            count = x.numel() // x.shape[1]
            if self.training and count == 1:
                raise ValueError(f"one value per channel in training: {tuple(x.shape)}")
            mean = wide.mean(dim=(0, 2, 3))
            var = wide.var(dim=(0, 2, 3), unbiased=False)
            if self.training and self.track_running_stats:
                self.num_batches_tracked += 1
                share = self.momentum
                if share is None:
                    share = 1 / self.num_batches_tracked.item()
                with torch.no_grad():
                    unbiased = var * count / (count - 1)
                    self.running_mean += share * (mean - self.running_mean)
                    self.running_var += share * (unbiased - self.running_var)
        else:
            mean, var = self.running_mean, self.running_var
        shape = (1, -1, 1, 1)
        out = (wide - mean.view(shape)) / torch.sqrt(var.view(shape) + self.eps)
        if self.affine:
            out = out * self.weight.view(shape) + self.bias.view(shape)
        return out.to(x.dtype)
        ### END SOLUTION


# %% [markdown]
# ## Your module beside PyTorch's
#
# PyTorch's module trains for three batches; yours loads its `state_dict`; then both train on ten
# more, and both are evaluated. For each setting the cell prints the largest differences.

# %% kind="demo"
beside_rng = np.random.default_rng(45)
settings = [{}, {"momentum": None}, {"momentum": 0.3, "eps": 0.01}, {"affine": False}]
settings += [{"track_running_stats": False}]
print("setting                            keys   training   evaluation   diary")
for setting in settings:
    theirs = nn.BatchNorm2d(5, **setting).double()
    mine = BatchNorm2d(5, **setting).double()
    if theirs.affine:
        theirs.weight.data += torch.from_numpy(beside_rng.normal(size=5))
        theirs.bias.data += torch.from_numpy(beside_rng.normal(size=5))
    stream = torch.from_numpy(3 + 2 * beside_rng.normal(size=(14, 4, 5, 6, 7)))
    for batch in stream[:3]:
        theirs(batch)
    mine.load_state_dict(theirs.state_dict())
    training = max((mine(batch) - theirs(batch)).abs().max().item() for batch in stream[3:13])
    mine.eval()
    theirs.eval()
    evaluation = (mine(stream[13]) - theirs(stream[13])).abs().max().item()
    saved = mine.state_dict()
    diary = max(
        (saved[key] - value).abs().max().item() for key, value in theirs.state_dict().items()
    )
    print(
        f"{setting!s:32s}   {len(saved):4d}   {training:8.0e}   {evaluation:10.0e}   {diary:5.0e}"
    )

for layer in (nn.BatchNorm2d(5), BatchNorm2d(5)):
    try:
        layer(torch.ones(1, 5, 1, 1))
    except ValueError as error:
        print("one value a channel, training:  ", error)
    shape = tuple(layer.eval()(torch.ones(1, 5, 1, 1)).shape)
    print("one value a channel, evaluation:", shape)

print("\nwhat decides?          batch's own statistics   diary written")
crowd = torch.from_numpy(5 + beside_rng.normal(size=(8, 5, 4, 4))).float()
for training in (True, False):
    for gradients in (True, False):
        layer = BatchNorm2d(5).train(training)
        with torch.set_grad_enabled(gradients):
            centred = bool(layer(crowd).mean().abs() < 0.1)
        written = bool(layer.running_mean.abs().max() > 0)
        mode = ("train()" if training else "eval()") + ("" if gradients else ", no_grad()")
        print(f"{mode:20s}   {centred!s:22s}   {written}")

# %% [markdown]
# ### See: the same layer, the same state
#
# Differences are rounding in every row: the keys fit, so a checkpoint of one loads into the
# other. Without `affine` two keys are missing, without running averages the other three.
#
# Both refuse to train on one value a channel and evaluate it without complaint. (Without running
# averages PyTorch refuses in evaluation too; the exercise asks it of training only.)
#
# The last table: `train()` and `eval()` decide, `no_grad()` changes nothing. A well-known
# textbook, *Dive into Deep Learning*, asks in its own layer whether gradients are enabled. By
# that rule the third row would use the batch and write into the diary, although `eval()` was
# called: so would any layer that is fine-tuned with its averages at rest.
#
# ## Which average?
#
# `momentum=0.1` forgets, `momentum=None` remembers everything. Which is the better diary? Two
# streams of batches: in the first the activations keep their distribution, in the second their
# mean climbs from 0 to 5 during the first hundred steps, as it may while weights are learned.

# %% kind="demo"
average_rng = np.random.default_rng(46)
steady = np.full(200, 5.0)
climbing = np.minimum(np.arange(200) / 20, 5)
fig, panels = plt.subplots(1, 2, figsize=(8.4, 3), sharey=True)
print("distance of running_mean from the true mean: 20 runs, steps 181 to 200, root mean square")
for panel, means, title in zip(panels, (steady, climbing), ("at rest", "moving"), strict=True):
    # 20 channels are 20 runs; (step, image, channel, height, width)
    stream = means.reshape(-1, 1, 1, 1, 1) + 4 * average_rng.normal(size=(200, 4, 20, 2, 2))
    panel.plot(means, ":", color="black", linewidth=1, label="true mean")
    for share, colour, style in ((0.1, ORANGE, "-"), (0.01, GREY, "--"), (None, BLUE, "-")):
        layer, trace = BatchNorm2d(20, momentum=share), []
        for batch in torch.from_numpy(stream).float():
            layer(batch)
            trace.append(layer.running_mean.numpy().copy())
        trace = np.array(trace)
        panel.plot(trace[:, 0], style, color=colour, linewidth=1.3, label=f"momentum {share}")
        miss = np.sqrt(((trace[180:] - means[180:, None]) ** 2).mean())
        print(f"{title:8s} momentum {share!s:5s} {miss:.2f}")
    panel.set(xlabel="training steps", title=title)
panels[0].set_ylabel("running_mean")
panels[1].legend(loc="lower right", fontsize=8)
fig.tight_layout()
plt.show()

# %% [markdown]
# ### See: a long memory suits weights at rest
#
# **Left.** The plain average (blue) knows nothing of the start at 0. It is near the truth after a
# few batches and gets steadier with each: 0.07 off at the end, against 0.22 with momentum 0.1.
# Momentum 0.01 is smooth, too, but it starts from 0 and has not arrived after 200 steps.
#
# **Right.** While the activations move, the plain average remembers its youth with full weight. A
# hundred steps after the mean has come to rest it is still 1.3 off, and momentum 0.1 is 0.2 off.
#
# So `momentum=None` is for the time when the weights stand still. Lesson 05 makes use of it.
#
# ## Does BatchNorm forgive a bad start?
#
# The notes say that BatchNorm makes a network less sensitive to how it is initialized. We test it
# with a small convnet on scikit-learn's 8×8 digits: three convolutions, each followed by a ReLU,
# and a linear readout. One arm has your `BatchNorm2d` after each convolution, the other has none.
# All convolutions start at He's initialization (random weights of variance $2/n$, where each output
# is a sum over $n$ inputs) *times a scale*, anything from 0.00000001 to 10.
#
# Every scale is tried with the same five learning rates and three seeds, in both arms. That makes
# 135 networks an arm. They are trained **side by side, as groups of channels of one network**: a
# convolution with `groups=135` never mixes the groups, and your layer treats each channel for
# itself anyway.
#
# ### First, without training
#
# Let $\sigma'$ be the standard deviation of a channel before BatchNorm. Afterwards it is
# $\sigma'/\sqrt{\sigma'^2+\epsilon}$ (lesson 02), where 1 was promised: the output shrinks by
#
# $$1-\frac{\sigma'}{\sqrt{\sigma'^2+\epsilon}}$$
#
# What does a scale of 0.0001 do to layer 1, and what to layer 3?

# %% kind="demo"
from sklearn.datasets import load_digits

torch.set_num_threads(1)
WIDTH, SEEDS, RATES = 6, (0, 1, 2), (0.001, 0.01, 0.1, 0.3, 1.0)
SCALES = (1e-8, 1e-6, 1e-4, 0.01, 0.1, 0.3, 1.0, 3.0, 10.0)
runs = [(scale, rate, seed) for scale in SCALES for rate in RATES for seed in SEEDS]
R, grid = len(runs), (len(SCALES), len(RATES), len(SEEDS))

pixels, digit = load_digits(return_X_y=True)
order = np.random.default_rng(47).permutation(len(digit))
digits8 = torch.from_numpy(pixels[order] / 16).float().view(-1, 1, 8, 8)
labels = torch.from_numpy(digit[order])


def start(shape, layer, scales):
    """He's initialization of all runs, (R * outputs, ...): one draw a seed, times the scales."""
    normal = [np.random.default_rng([48, seed, layer]).normal(size=shape) for seed in SEEDS]
    gain = np.sqrt(2 / np.prod(shape[1:]))
    drawn = [gain * scale * normal[run[2]] for scale, run in zip(scales, runs, strict=True)]
    return torch.from_numpy(np.concatenate(drawn)).float()


def side_by_side(normalized):
    """R small convnets in one: (N, 1, 8, 8) -> (N, R, 10)."""
    layers = []
    for layer, (inputs, stride) in enumerate(((1, 2), (WIDTH, 1), (WIDTH, 2))):
        groups = R if layer else 1  # all runs look at the same image
        sizes = (inputs * groups, WIDTH * R, 3, stride, 1)  # in, out, kernel, stride, padding
        conv = nn.Conv2d(*sizes, groups=groups, bias=not normalized)
        conv.weight.data = start((WIDTH, inputs, 3, 3), layer, [scale for scale, _, _ in runs])
        norm = BatchNorm2d(WIDTH * R) if normalized else nn.Identity()
        layers += [conv, norm, nn.ReLU()]
    readout = nn.Conv2d(WIDTH * R, 10 * R, 2, groups=R)
    readout.weight.data = start((10, WIDTH, 2, 2), 3, [1.0] * R)  # not scaled, in either arm
    network = nn.Sequential(*layers, readout, nn.Flatten(), nn.Unflatten(1, (R, 10)))
    for name, parameter in network.named_parameters():
        if name.endswith("bias"):
            nn.init.zeros_(parameter)
    return network


fig, axis = plt.subplots(figsize=(5.5, 3.2))
h = digits8[:64]
print(
    "std after each BatchNorm, one channel's median, scales " + " ".join(f"{s:g}" for s in SCALES)
)
for place, module in enumerate(side_by_side(normalized=True)[:9]):
    before, h = h, module(h).detach()
    if isinstance(module, BatchNorm2d):
        # the channels of the first rate and seed at each scale: (scale, channel)
        spreads = [
            a.std(dim=(0, 2, 3), correction=0).view(*grid, WIDTH)[:, 0, 0] for a in (before, h)
        ]
        layer = place // 3 + 1
        axis.plot(
            *[s.flatten() for s in spreads],
            "os^"[layer - 1],
            ms=4,
            label=f"layer {layer}",
            color=(BLUE, ORANGE, GREY)[layer - 1],
        )
        print(f"layer {layer}: " + "  ".join(f"{s:.2g}" for s in spreads[1].median(dim=1).values))
line = np.logspace(-12, 2, 200)
axis.plot(line, line / np.sqrt(line**2 + 1e-5), color="black", linewidth=1, zorder=0)
axis.axvline(np.sqrt(1e-5), color="black", linestyle=":", linewidth=1)
axis.text(5e-3, 1e-8, "$\\sqrt{\\epsilon}$")
axis.set(xscale="log", yscale="log", xlim=(1e-12, 1e2), ylim=(1e-10, 10))
axis.set(xlabel="std of a channel before the layer, $\\sigma'$", ylabel="std after")
axis.legend(loc="upper left")
fig.tight_layout()
plt.show()

# %% [markdown]
# ### See: below the root of epsilon
#
# Every channel lies on the curve. To the right of $\sqrt{\epsilon} = 0.0032$ the layer hands on a
# standard deviation of 1, whatever came in. To the left it only multiplies by
# $1/\sqrt{\epsilon} = 316$.
#
# And it does so again in each layer. At a scale of 0.0001 layer 1 hands on 0.012, layer 2 of that
# 0.00037, layer 3 next to nothing (and what lies beyond the picture's corner is smaller still).
# At 0.01 a fifth is missing in layer 1. From 0.1 on all is as promised.
#
# So the claim has a limit, and $\epsilon$ sets it. Is the network lost below it?
#
# ### Then, with training
#
# 100 steps of plain gradient descent on batches of 32. At each scale 400 images set aside choose
# the rate, and 397 others give the accuracy that is shown. (The cell takes about ten seconds. On
# another processor some accuracies may differ a little from those quoted below it.)


# %% kind="demo"
def train(network, steps=100):
    batches = np.random.default_rng(49)
    parameters = list(network.parameters())  # the first axis of each: R groups
    each = [
        torch.tensor([r for _, r, _ in runs]).repeat_interleave(len(p) // R) for p in parameters
    ]
    for _ in range(steps):
        batch = torch.from_numpy(batches.integers(0, 1000, size=32))
        scores = network(digits8[batch]).flatten(0, 1)
        loss = R * F.cross_entropy(scores, labels[batch].repeat_interleave(R))  # a sum over runs
        slopes = torch.autograd.grad(loss, parameters)
        for parameter, slope, rate in zip(parameters, slopes, each, strict=True):
            parameter.data -= rate.view(-1, *[1] * (slope.dim() - 1)) * slope


@torch.no_grad()
def accuracy(network, part):
    right = network.eval()(digits8[part]).argmax(dim=2) == labels[part, None]
    return right.float().mean(dim=0).view(grid).numpy()


def size_of_weights(network):
    """Root mean square of the first layer's weights, (scale, rate), a mean over seeds."""
    squares = network[0].weight.detach().square().view(*grid, -1)
    return squares.mean(dim=(2, 3)).sqrt()


fig, panels = plt.subplots(1, 2, figsize=(8.4, 3.2), sharey=True)
for normalized, colour, mark in ((False, ORANGE, "^"), (True, BLUE, "o")):
    name = "with BatchNorm" if normalized else "without"
    network = side_by_side(normalized)
    at_first = size_of_weights(network)
    train(network)
    chosen = accuracy(network, slice(1000, 1400)).mean(axis=2).argmax(axis=1)
    usual = np.full(len(SCALES), chosen[SCALES.index(1.0)])
    tested = accuracy(network, slice(1400, None))
    rows = np.arange(len(SCALES))
    for panel, picks in zip(panels, (chosen, usual), strict=True):
        panel.plot(SCALES, tested[rows, picks].mean(axis=1), color=colour, linewidth=1.2)
        for seed in SEEDS:
            label = name if seed == 0 else None
            panel.plot(SCALES, tested[rows, picks, seed], mark, ms=4, color=colour, label=label)
    fixed = f"rate {RATES[usual[0]]:g} throughout"
    print(f"{name}\n    scale    rate tuned: accuracy of 3 seeds    {fixed}")
    for row, scale in enumerate(SCALES):
        told = ["  ".join(f"{a:.2f}" for a in tested[row, picks[row]]) for picks in (chosen, usual)]
        print(f"    {scale:<7g}  {RATES[chosen[row]]:<10g}  {told[0]}             {told[1]}")
now = size_of_weights(network)
print("first layer's weights with BatchNorm, root mean square before and after, rate tuned:")
for row in (2, 3, 6, 8):
    first, last = at_first[row, chosen[row]], now[row, chosen[row]]
    print(f"    scale {SCALES[row]:<7g} {first:.1e} -> {last:.1e}")
for panel, title in zip(panels, ("rate tuned at each scale", "one rate throughout"), strict=True):
    panel.set(xscale="log", xlabel="scale of the initial weights", title=title, ylim=(0, 1))
panels[0].set_ylabel("accuracy")
panels[0].legend(loc=(0.3, 0.3), fontsize=8)
fig.tight_layout()
plt.show()

# %% [markdown]
# ### See: forgiven, within limits
#
# **Without BatchNorm** there is one good scale, He's own, and a narrow strip around it. At 0.3
# one seed of three learns nothing, and below that none does at any of the five rates. At 10 the
# smallest rate saves something: 0.45 to 0.72.
#
# **With it** every scale from 0.000001 to 10 learns: 0.73 to 0.95 with the rate tuned, and 0.67
# to 0.95 with one rate for all (single seeds at the smallest scales move by a tenth with the way
# your module rounds). So the notes are right, and over a range of ten million to one.
#
# Three honest additions.
#
# - **Epsilon bites later than the forward pass suggests.** At 0.0001 layer 3 handed on next to
#   nothing, yet the network learns. The factor 316 works on gradients as well; the last lines
#   show weights that grew from 0.000047 to 0.017 in a hundred steps, out of the danger zone. Only
#   at 0.00000001 is it too late: five of the six points are at chance.
# - **Forgiven is not equal.** At scale 10 the accuracy falls behind (0.81 against 0.90 at scale
#   1, rate tuned), and the weights are as large after training as before. With one rate
#   throughout, 0.0001 and 0.01 fall behind as well (0.68 to 0.78). Why the size of the weights
#   acts on the learning rate is lesson 08.
# - The readout is scaled in neither arm, for no BatchNorm follows it and none could forgive it.
#   And this is a small network, trained for a hundred steps; a finer grid of rates from 0.0003 to
#   2, which we tried at six scales, gave the same picture.
#
# ## A bench for the written question
#
# A bare BatchNorm for tables (N, D), without `weight` and `bias`. It keeps its two averages in
# one of three ways; all three train and evaluate alike. The cell asks them some innocent
# questions. Ask your own in cells that you add: about an optimizer, about saving and loading,
# about a layer that is fine-tuned in `eval()`.

# %% kind="demo"
import copy


class KeptAs(nn.Module):
    """Normalizes (N, D); keeps its averages as "buffer", "plain" attribute or "parameter"."""

    def __init__(self, kind, width):
        super().__init__()
        averages = {"running_mean": torch.zeros(width), "running_var": torch.ones(width)}
        for name, value in averages.items():
            if kind == "buffer":
                self.register_buffer(name, value)
            elif kind == "parameter":
                self.register_parameter(name, nn.Parameter(value))
            else:
                setattr(self, name, value)

    def forward(self, x):
        mean, var = self.running_mean, self.running_var
        if self.training:
            mean, var = x.mean(dim=0), x.var(dim=0, correction=0)
            with torch.no_grad():
                self.running_mean += 0.1 * (mean - self.running_mean)
                self.running_var += 0.1 * (var - self.running_var)
        return (x - mean) / torch.sqrt(var + 1e-5)


bench_batch = torch.from_numpy(np.random.default_rng(50).normal(5, 2, size=(64, 2))).float()
for kind in ("buffer", "plain", "parameter"):
    layer = KeptAs(kind, 2)
    for _ in range(50):
        layer(bench_batch)
    twin = copy.deepcopy(layer)
    print(f"{kind}: running_mean {layer.running_mean.detach().numpy().round(2)}")
    print(f"    in the state_dict     {list(layer.state_dict())}")
    print(f"    among the parameters  {[name for name, _ in layer.named_parameters()]}")
    print(f"    in a deep copy        {twin.running_mean.detach().numpy().round(2)}")
    print(f"    after .to(float64)    {twin.to(torch.float64).running_mean.dtype}")
    print(f"    after .to('meta')     on {twin.to('meta').running_mean.device}")  # we all have that

halved = {key: value.dtype for key, value in nn.BatchNorm2d(2).half().state_dict().items()}
print("nn.BatchNorm2d(2).half():", {key: str(dtype)[6:] for key, dtype in halved.items()})
print("2048 + 1 in float16:", (torch.tensor(2048.0, dtype=torch.float16) + 1).item())

# %% [markdown]
# ## Written question: why buffers?
#
# *15 points, graded by hand.* (Working alone? In a checkout, `autograder solution why_buffers`
# shows a model answer.)
#
# Three tensors of a BatchNorm layer are neither learned nor mere settings: `running_mean`,
# `running_var` and `num_batches_tracked`.
#
# 1. What do they share with parameters, and what sets them apart?
# 2. A colleague keeps the averages as **plain attributes**. What goes wrong, and who notices
#    when? Describe a case in which everything is right, test mode included, until the model has
#    been saved and loaded. What do you see then, and why is there no error?
# 3. Another colleague keeps the averages as **parameters**. Training looks right. When does the
#    optimizer leave them alone, when does it change them, and what follows?
# 4. Who reads `num_batches_tracked`? What happens if it alone is lost? And why is it an integer?
#
# Support 2 and 3 with an experiment each, however small, and its outcome.

# %% [markdown] kind="written" name="why_buffers" points=15
# ### BEGIN SOLUTION
# **Model answer.**
#
# *Shared and apart.* Like parameters they are state: what the layer answers in `eval()` depends
# on them, so they must be saved, loaded, copied, moved to the device and cast with the weights.
# Unlike parameters they are not learned. The forward pass writes them, no gradient does, and the
# optimizer has no business with them. A buffer is just that: in the `state_dict`, moved by
# `.to()`, not in `parameters()`.
#
# *Plain attributes.* They are not in the `state_dict` and `.to()` passes them by: on another
# device the forward pass stops with an error (loud), in another format they keep the old one
# (silent). `copy.deepcopy`, or pickling the whole model, does carry them along, so a copy is no
# test. The quiet case: train, `eval()`, accuracy right. Save the `state_dict`, load it into a new
# model: "All keys matched", for the names are missing on both sides. But the new layer has mean 0
# and variance 1, and nothing tells you but the accuracy. On digits (64-32-10, the bench's layer
# on the pixels and after the first linear layer, 300 steps, three seeds): 0.95 to 0.96 before,
# 0.86 to 0.87 after loading; with buffers there is no difference. (The mode itself is not in the
# `state_dict` either: a new model starts in training mode.)
#
# *Parameters.* In training mode the output uses the batch's statistics, so the averages take no
# part in the loss, their `.grad` is None, and PyTorch's optimizers skip them, weight decay and
# all. In `eval()` they do take part. Fine-tune a network whose BatchNorm is in `eval()` so that
# its averages rest, and they get gradients: they drift to whatever lowers the loss, weight decay
# pulls them to 0, and nothing keeps a variance positive. In the same network, fine-tuned in
# `eval()` with SGD, some `running_var` of the pixels was negative after one or two steps, at rate
# 0.1 as at 0.001, and the outputs were NaN. With the layer behind the linear one only, weight
# decay 0.01 and rate 0.1, 200 steps took 18 % off `running_var`. They are also counted, clipped,
# averaged and synchronized as parameters. (With `requires_grad=False` most of this is mended;
# then `parameters()` still lists what is none, and "unfreeze all" wakes it.)
#
# *num_batches_tracked.* Only `momentum=None` reads it: the new batch's weight is one over it. If
# it is lost the next batch counts as the first, with weight 1, and wipes out the average: after
# 100 batches of mean 5 the average was 5.08; one more batch, of mean 4.22, made it 5.07 with the
# count and 4.22 without. With a fixed momentum nothing changes. It is an integer since a count
# must stay exact: `.half()` casts floats only, and in float16 2048 + 1 = 2048. An integer cannot
# require a gradient, so it could not be an ordinary parameter anyway.
#
# **Rubric:**
#
# - 3 points: shared: state on which the output depends, so it must be saved and moved (2); apart:
#   written by the forward pass, not learned (1).
# - 5 points: plain attributes: missing from the `state_dict` (1) and passed over by `.to()` (1);
#   the case that is right until loaded: back at mean 0 and variance 1 (1), no error because the
#   names are missing on both sides (1); an experiment with its outcome (1).
# - 4 points: parameters: left alone in training, where they have no gradient (1); changed when
#   they take part in the loss, as in fine-tuning in `eval()` (1); what follows: drift, shrinking
#   by weight decay, a negative variance, or a layer that was meant to rest and does not (1); an
#   experiment with its outcome (1).
# - 3 points: the count is read for `momentum=None` (1); lost, the next batch erases the past (1);
#   an integer stays exact, is not cast, or needs no gradient: any one (1).
#
# "Weight decay shrinks them at every step of training" is not what PyTorch's optimizers do, for
# they skip what has no gradient: not the first of the four points, but the third if a case is
# named in which there is a gradient.
# ### END SOLUTION

# %% [markdown]
# ## What to remember
#
# - In images a pixel is a sample: one mean and one variance a channel, over N, H and W. One
#   kernel makes one channel, at every place alike.
# - `reshape` cuts memory; it does not know what an axis means. Move the axis first, and test the
#   channels of the result.
# - $n = N\cdot H\cdot W$ counts pixels. Neighbours that are alike are worth fewer: down to one an
#   image.
# - Two variances: the biased one normalizes, the unbiased one goes into PyTorch's diary.
# - Statistics in float32, the result in the input's format.
# - `train()` and `eval()` set the mode. `no_grad()` does not.
# - BatchNorm forgives the scale of the weights before it. Where a channel's spread falls below
#   $\sqrt{\epsilon}$ the forward pass no longer does, though training may still get away.
#
# `progress()` shows what is left. Next: lesson 05, BatchNorm at work.
#
# ## Sources
#
# - S. Ioffe, C. Szegedy, *Batch Normalization: Accelerating Deep Network Training by Reducing
#   Internal Covariate Shift*, 2015, [arXiv 1502.03167](https://arxiv.org/abs/1502.03167):
#   section 3.2, one mean a channel.
# - PyTorch,
#   [BatchNorm2d](https://docs.pytorch.org/docs/stable/generated/torch.nn.BatchNorm2d.html): biased
#   and unbiased variance, `momentum=None`, `track_running_stats`. Its module is the oracle here.
#   How `num_batches_tracked` came in: pull request
#   [#6445](https://github.com/pytorch/pytorch/pull/6445).
# - Checkpoints without the averages are an old trap:
#   [torch/nn #1165](https://github.com/torch/nn/issues/1165), from the days of Lua.
# - A. Zhang, Z. Lipton, M. Li, A. Smola, *Dive into Deep Learning*, the section on batch
#   normalization, [d2l.ai](https://d2l.ai/chapter_convolutional-modern/batch-norm.html): the mode
#   from `torch.is_grad_enabled()`; averages as plain attributes, and a proposal to mend that,
#   [d2l-zh #1265](https://github.com/d2l-ai/d2l-zh/pull/1265).
# - K. He, X. Zhang, S. Ren, J. Sun, *Delving Deep into Rectifiers*, 2015,
#   [arXiv 1502.01852](https://arxiv.org/abs/1502.01852): the initialization that the scale
#   multiplies.
# - scikit-learn: `load_digits` (from the UCI repository's optical digits) and the photograph
#   `china.jpg`.
