"""Triton kernels of inverted residuals (Sandler et al. 2018): each layer with its bias, clip or mask in one pass.

A view that is attacked needs gradients of the input alone, and those need what each clip let through and nothing else.
So a layer reads its input once, writes what came out of its clip once, and the way back does the same: the least
traffic that a network computed layer by layer can have. Tensors are channels_last; sums are in fp32. Triton reads the
source itself, so nothing may be wrapped around it: hence no_type_check.
"""

from typing import no_type_check

import triton
import triton.language as tl

CLIP = tl.constexpr(6.0)


@triton.jit
@no_type_check
def _passes(h):
    """Where a value that has been clipped to [0, 6] was inside: there alone it lets a gradient through."""
    return (h > 0.0) & (h < CLIP)


@triton.jit
@no_type_check
def _clipped(y):
    """To [0, 6]; what is not a number stays none."""
    y = tl.maximum(y, 0.0, propagate_nan=tl.PropagateNan.ALL)
    return tl.minimum(y, CLIP, propagate_nan=tl.PropagateNan.ALL)


@triton.jit(do_not_specialize=["rows", "eighths_in", "eighths_out"])
@no_type_check
def multiply(
    a_of,
    weight_of,
    bias_of,
    other_of,
    y_of,
    rows,
    eighths_in,
    eighths_out,
    BACK: tl.constexpr,
    CLIPPED: tl.constexpr,
    BIASED: tl.constexpr,
    ADDED: tl.constexpr,
    MASKED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """y = a w (+ bias) (+ other) (clipped), or where `other` passes: a 1 x 1 convolution over rows of pixels."""
    # In eighths, so that the compiler knows that 16 bytes may be read at once.
    channels_in, channels_out = eighths_in * 8, eighths_out * 8
    blocks = tl.cdiv(channels_out, COLUMNS)
    row = (tl.program_id(0) // blocks).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = (tl.program_id(0) % blocks) * COLUMNS + tl.arange(0, COLUMNS)
    inside, wanted = (row < rows)[:, None], (column < channels_out)[None, :]
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for begin in range(0, channels_in, DEPTH):
        depth = begin + tl.arange(0, DEPTH)
        a = tl.load(
            a_of + row[:, None] * channels_in + depth[None, :],
            mask=inside & (depth < channels_in)[None, :],
            other=0.0,
        )
        if BACK:
            place = column[None, :] + depth[:, None] * channels_out
        else:
            place = column[None, :] * channels_in + depth[:, None]
        w = tl.load(weight_of + place, mask=wanted & (depth < channels_in)[:, None], other=0.0)
        total = tl.dot(a, w, total, input_precision="ieee")
    if BIASED:
        total += tl.load(bias_of + column, mask=column < channels_out, other=0.0).to(tl.float32)[None, :]
    place = row[:, None] * channels_out + column[None, :]
    if ADDED:
        total += tl.load(other_of + place, mask=inside & wanted, other=0.0).to(tl.float32)
    if CLIPPED:
        total = _clipped(total)
    if MASKED:
        h = tl.load(other_of + place, mask=inside & wanted, other=0.0).to(tl.float32)
        total = tl.where(_passes(h), total, 0.0)
    tl.store(y_of + place, total.to(y_of.dtype.element_ty), mask=inside & wanted)


@triton.jit
@no_type_check
def _place(height, width, channels, HIGH: tl.constexpr, WIDE: tl.constexpr, DEEP: tl.constexpr):
    """Image, first row, columns and channels of this program's block; neighbours differ in channels, then columns."""
    deep, wide, high = tl.cdiv(channels, DEEP), tl.cdiv(width, WIDE), tl.cdiv(height, HIGH)
    program = tl.program_id(0)
    channel = (program % deep) * DEEP + tl.arange(0, DEEP)
    column = ((program // deep) % wide) * WIDE + tl.arange(0, WIDE)
    top = ((program // (deep * wide)) % high) * HIGH
    return (program // (deep * wide * high)).to(tl.int64), top, column, channel


@triton.jit
@no_type_check
def _taps(weight_of, channel, channels, FIRST: tl.constexpr, STEP: tl.constexpr):
    """A row of a 3 x 3 filter, per channel."""
    inside = channel < channels
    left = tl.load(weight_of + channel * 9 + FIRST, mask=inside, other=0.0).to(tl.float32)
    middle = tl.load(weight_of + channel * 9 + FIRST + STEP, mask=inside, other=0.0).to(tl.float32)
    right = tl.load(weight_of + channel * 9 + FIRST + 2 * STEP, mask=inside, other=0.0).to(tl.float32)
    return left[None, :], middle[None, :], right[None, :]


@triton.jit
@no_type_check
def _at(x_of, row, column, channel, bottom, width, channels):
    """x[row, column, channel] of an image, and 0 outside and from row `bottom` on."""
    row = row + 0 * column  # one a column: Triton's interpreter takes no mask that a single truth was spread over
    inside = ((column >= 0) & (column < width) & (row >= 0) & (row < bottom))[:, None] & (channel < channels)[None, :]
    place = (row * width + column)[:, None] * channels + channel[None, :]
    return tl.load(x_of + place, mask=inside, other=0.0)


@triton.jit
@no_type_check
def _sum(left, middle, right, a, b, c):
    """A row of a filter on a row of an image."""
    # Made fp32 here and not where it is read: that would wait for memory to answer.
    return left.to(tl.float32) * a + middle.to(tl.float32) * b + right.to(tl.float32) * c


@triton.jit
@no_type_check
def _around(x_of, row, column, channel, bottom, width, channels):
    """x of a row's columns, and of those left and right of them."""
    left = _at(x_of, row, column - 1, channel, bottom, width, channels)
    middle = _at(x_of, row, column, channel, bottom, width, channels)
    return left, middle, _at(x_of, row, column + 1, channel, bottom, width, channels)


@triton.jit
@no_type_check
def _put(y_of, y, row, column, channel, top, height, width, channels):
    """y[row, column, channel] of an image, from row `top` on."""
    row = row + 0 * column  # as above
    inside = ((column < width) & (row >= top) & (row < height))[:, None] & (channel < channels)[None, :]
    place = (row * width + column)[:, None] * channels + channel[None, :]
    tl.store(y_of + place, y.to(y_of.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["height", "width", "eighths"])
@no_type_check
def filter_same(
    x_of,
    weight_of,
    bias_of,
    other_of,
    y_of,
    height,
    width,
    eighths,
    BACK: tl.constexpr,
    MASKED: tl.constexpr,
    HIGH: tl.constexpr,
    WIDE: tl.constexpr,
    DEEP: tl.constexpr,
):
    """3 x 3 filters of stride 1, biased and clipped; back: turned by 180 degrees, and where `other` passes."""
    channels = eighths * 8
    image, top, column, channel = _place(height, width, channels, HIGH, WIDE, DEEP)
    size = height * width * channels
    x_of, other_of, y_of = x_of + image * size, other_of + image * size, y_of + image * size
    if BACK:
        a, b, c = _taps(weight_of, channel, channels, 8, -1)
        d, e, f = _taps(weight_of, channel, channels, 5, -1)
        g, h, i = _taps(weight_of, channel, channels, 2, -1)
        bias = tl.zeros((1, DEEP), tl.float32)
    else:
        a, b, c = _taps(weight_of, channel, channels, 0, 1)
        d, e, f = _taps(weight_of, channel, channels, 3, 1)
        g, h, i = _taps(weight_of, channel, channels, 6, 1)
        bias = tl.load(bias_of + channel, mask=channel < channels, other=0.0).to(tl.float32)[None, :]
    # Row r of x is the last of output r - 1, the middle one of r and the first of r + 1: each is read once.
    above = tl.zeros((WIDE, DEEP), tl.float32)
    here = tl.zeros((WIDE, DEEP), tl.float32)
    bottom = tl.minimum(height, top + HIGH + 1)
    left, middle, right = _around(x_of, top - 1, column, channel, bottom, width, channels)
    clipped = tl.zeros((WIDE, DEEP), other_of.dtype.element_ty)
    for step in range(HIGH + 2):
        row = top - 1 + step
        # Read a row ahead: memory is slow to answer, and a program has nothing else to do meanwhile.
        next_left, next_middle, next_right = _around(x_of, row + 1, column, channel, bottom, width, channels)
        y = above + _sum(left, middle, right, g, h, i) + bias
        above = here + _sum(left, middle, right, d, e, f)
        here = _sum(left, middle, right, a, b, c)
        if MASKED:
            y = tl.where(_passes(clipped), y, 0.0)
            clipped = _at(other_of, row, column, channel, height, width, channels)
        if not BACK:
            y = _clipped(y)
        _put(y_of, y, row - 1, column, channel, top, tl.minimum(height, top + HIGH), width, channels)
        left, middle, right = next_left, next_middle, next_right


@triton.jit(do_not_specialize=["height", "width", "low", "narrow", "eighths"])
@no_type_check
def filter_down(
    x_of,
    weight_of,
    bias_of,
    y_of,
    height,
    width,
    low,
    narrow,
    eighths,
    HIGH: tl.constexpr,
    WIDE: tl.constexpr,
    DEEP: tl.constexpr,
):
    """3 x 3 filters of stride 2, biased and clipped: `height` x `width` to `low` x `narrow`."""
    channels = eighths * 8
    image, top, column, channel = _place(low, narrow, channels, HIGH, WIDE, DEEP)
    x_of, y_of = x_of + image * (height * width * channels), y_of + image * (low * narrow * channels)
    a, b, c = _taps(weight_of, channel, channels, 0, 1)
    d, e, f = _taps(weight_of, channel, channels, 3, 1)
    g, h, i = _taps(weight_of, channel, channels, 6, 1)
    bias = tl.load(bias_of + channel, mask=channel < channels, other=0.0).to(tl.float32)[None, :]
    bottom = tl.minimum(height, 2 * (top + HIGH))
    # Row 2r - 1, the first of output r, is the last of output r - 1: only it is used twice. Two rows are read ahead.
    left, middle, right = _around(x_of, 2 * top - 1, 2 * column, channel, bottom, width, channels)
    y = _sum(left, middle, right, a, b, c) + bias
    left, middle, right = _around(x_of, 2 * top, 2 * column, channel, bottom, width, channels)
    low_left, low_middle, low_right = _around(x_of, 2 * top + 1, 2 * column, channel, bottom, width, channels)
    for step in range(HIGH):
        row = top + step
        next_left, next_middle, next_right = _around(x_of, 2 * row + 2, 2 * column, channel, bottom, width, channels)
        next_a, next_b, next_c = _around(x_of, 2 * row + 3, 2 * column, channel, bottom, width, channels)
        y += _sum(left, middle, right, d, e, f) + _sum(low_left, low_middle, low_right, g, h, i)
        y = _clipped(y)
        _put(y_of, y, row, column, channel, top, low, narrow, channels)
        y = _sum(low_left, low_middle, low_right, a, b, c) + bias
        left, middle, right = next_left, next_middle, next_right
        low_left, low_middle, low_right = next_a, next_b, next_c


@triton.jit(do_not_specialize=["height", "width", "low", "narrow", "eighths"])
@no_type_check
def filter_up(
    x_of,
    weight_of,
    other_of,
    y_of,
    height,
    width,
    low,
    narrow,
    eighths,
    MASKED: tl.constexpr,
    HIGH: tl.constexpr,
    WIDE: tl.constexpr,
    DEEP: tl.constexpr,
):
    """The way back of stride 2: `low` x `narrow` to `height` x `width`, where `other` passes."""
    channels = eighths * 8
    image, top, column, channel = _place(low, narrow, channels, HIGH, WIDE, DEEP)
    size = height * width * channels
    x_of, other_of, y_of = x_of + image * (low * narrow * channels), other_of + image * size, y_of + image * size
    a, b, c = _taps(weight_of, channel, channels, 0, 1)
    d, e, f = _taps(weight_of, channel, channels, 3, 1)
    g, h, i = _taps(weight_of, channel, channels, 6, 1)
    here = _at(x_of, top, column, channel, low, narrow, channels)
    beside = _at(x_of, top, column + 1, channel, low, narrow, channels)
    below = _at(x_of, top + 1, column, channel, low, narrow, channels)
    across = _at(x_of, top + 1, column + 1, channel, low, narrow, channels)
    for step in range(HIGH):
        row = top + step
        next_below = _at(x_of, row + 2, column, channel, low, narrow, channels)
        next_across = _at(x_of, row + 2, column + 1, channel, low, narrow, channels)
        y = here.to(tl.float32) * e
        beside_y = here.to(tl.float32) * f + beside.to(tl.float32) * d
        below_y = here.to(tl.float32) * h + below.to(tl.float32) * b
        across_y = _sum(here, beside, below, i, g, c) + across.to(tl.float32) * a
        if MASKED:
            # All four before the first is used, so that memory answers them together.
            p = _at(other_of, 2 * row, 2 * column, channel, height, width, channels)
            q = _at(other_of, 2 * row, 2 * column + 1, channel, height, width, channels)
            r = _at(other_of, 2 * row + 1, 2 * column, channel, height, width, channels)
            s = _at(other_of, 2 * row + 1, 2 * column + 1, channel, height, width, channels)
            y = tl.where(_passes(p), y, 0.0)
            beside_y = tl.where(_passes(q), beside_y, 0.0)
            below_y = tl.where(_passes(r), below_y, 0.0)
            across_y = tl.where(_passes(s), across_y, 0.0)
        _put(y_of, y, 2 * row, 2 * column, channel, top, height, width, channels)
        _put(y_of, beside_y, 2 * row, 2 * column + 1, channel, top, height, width, channels)
        _put(y_of, below_y, 2 * row + 1, 2 * column, channel, top, height, width, channels)
        _put(y_of, across_y, 2 * row + 1, 2 * column + 1, channel, top, height, width, channels)
        here, beside, below, across = below, across, next_below, next_across
