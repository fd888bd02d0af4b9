"""Mappings of convolutions, pooling and resizing. shoal's axis 0 is the width, and its axis 1 is the height. A signal
[n, c, t] is an image [n, c, 1, t]."""

import math

import numpy as np

from from_onnx.graph import padded
from from_onnx.node import Unmapped

REMEDY = "use operators with 1 or 2 spatial axes"


def spatial(node, x):
    """The number of spatial axes, 1 or 2."""
    if x.rank not in (3, 4):
        raise Unmapped(f"the input {list(x.shape)} has {x.rank - 2} spatial axes, and shoal supports 1 or 2", REMEDY)
    return x.rank - 2


def image(m, x):
    if x.dtype == "i32":
        raise Unmapped("the input has integers", "cast the input to floating point")
    n, c, *lengths = x.shape
    return m.tensor(x, (n, c, *[1] * (2 - len(lengths)), *lengths))


def kernel(m, value):
    """The weights [o, i, kh, kw] of a convolution. A constant kernel may be f16."""
    o, i, *lengths = value.shape
    return m.tensor(value, (o, i, *[1] * (2 - len(lengths)), *lengths), halves=True)


def per_axis(values, default):
    """A parameter of shoal with one value per axis, width first, from an attribute of 1 or 2 values."""
    values = list(reversed(values))
    return (*values, *[default] * (2 - len(values)))


def pads_of(node, x, sizes, strides, dilations):
    """Pads before and after each spatial axis: [(before, after), ...]."""
    mode, count = node.attr("auto_pad", "NOTSET"), len(sizes)
    if mode in ("NOTSET", "VALID", ""):
        pads = node.attr("pads", [0] * 2 * count) if mode != "VALID" else [0] * 2 * count
        return list(zip(pads[:count], pads[count:]))
    pairs = []
    for length, size, stride, dilation in zip(x.shape[2:], sizes, strides, dilations):
        total = max((-(-length // stride) - 1) * stride + (size - 1) * dilation + 1 - length, 0)
        pairs.append((total // 2, total - total // 2) if mode == "SAME_UPPER" else (total - total // 2, total // 2))
    return pairs


def flat(pairs):
    """Pads in shoal's order: before and after axis 0 (width), before and after axis 1."""
    pairs = [*reversed(pairs), *[(0, 0)] * (2 - len(pairs))]
    return tuple(pad for pair in pairs for pad in pair)


def without_defaults(**params):
    defaults = {"stride": (1, 1), "pads": (0, 0, 0, 0), "dilation": (1, 1), "groups": 1, "output_pad": (0, 0),
                "count_pads": False}  # fmt: skip
    return {name: value for name, value in params.items() if defaults.get(name) != value}


def with_bias(m, node, y):
    bias = node.input(2)
    return y if bias is None else m.binary("add", y, m.reshape(bias, (bias.shape[0], *[1] * (y.rank - 2))))


def conv(m, node):
    x, w = node.input(0), node.input(1)
    count = spatial(node, x)
    sizes = w.shape[2:]
    strides, dilations = node.attr("strides", [1] * count), node.attr("dilations", [1] * count)
    pairs = pads_of(node, x, sizes, strides, dilations)
    lengths = [
        (length + sum(pads) - dilation * (size - 1) - 1) // stride + 1
        for length, size, stride, dilation, pads in zip(x.shape[2:], sizes, strides, dilations, pairs)
    ]
    params = without_defaults(stride=per_axis(strides, 1), pads=flat(pairs), dilation=per_axis(dilations, 1),
                              groups=node.attr("group", 1))  # fmt: skip
    shape = (x.shape[0], w.shape[0], *lengths)
    result = (shape[0], shape[1], *[1] * (2 - count), *lengths)
    return with_bias(
        m, node, m.value(m.graph.emit("conv_2d", [kernel(m, w), image(m, x)], padded(result), **params), shape)
    )


def conv_transpose(m, node):
    x, w = node.input(0), node.input(1)
    count, groups = spatial(node, x), node.attr("group", 1)
    strides, dilations = node.attr("strides", [1] * count), node.attr("dilations", [1] * count)
    extra = node.attr("output_padding", [0] * count)
    full = [
        (length - 1) * stride + dilation * (size - 1) + 1
        for length, size, stride, dilation in zip(x.shape[2:], w.shape[2:], strides, dilations)
    ]
    mode, wanted = node.attr("auto_pad", "NOTSET"), node.attr("output_shape")
    if wanted is not None or mode.startswith("SAME"):
        wanted = list(wanted or [length * stride for length, stride in zip(x.shape[2:], strides)])[-count:]
        totals = [length + more - want for length, more, want in zip(full, extra, wanted)]
        if min(totals) < 0:
            raise Unmapped(f"the output lengths {wanted} exceed the convolution's result", "set output_padding instead")
        upper = mode == "SAME_UPPER"
        pairs = [(t // 2, t - t // 2) if upper else (t - t // 2, t // 2) for t in totals]
    else:
        pads = node.attr("pads", [0] * 2 * count)
        pairs = list(zip(pads[:count], pads[count:]))
    lengths = [length + more - sum(pair) for length, more, pair in zip(full, extra, pairs)]
    params = without_defaults(stride=per_axis(strides, 1), pads=flat(pairs), dilation=per_axis(dilations, 1),
                              output_pad=per_axis(extra, 0), groups=groups)  # fmt: skip
    shape = (x.shape[0], w.shape[1] * groups, *lengths)
    result = (*shape[:2], *[1] * (2 - count), *lengths)
    y = m.graph.emit("conv_transpose_2d", [kernel(m, w), image(m, x)], padded(result), **params)
    return with_bias(m, node, m.value(y, shape))


def pool(m, node):
    x, is_max = node.input(0), node.op == "MaxPool"
    count, sizes = spatial(node, x), node.attr("kernel_shape")
    strides = node.attr("strides", [1] * count)
    node.expect("ceil_mode", (0,), 0, "use ceil_mode=0 and pad the input")
    node.expect("dilations", ([1] * count,), [1] * count, "use dilations of 1")
    if len([name for name in node.proto.output if name]) > 1:
        raise Unmapped("the output Indices is used", "remove the output Indices")
    pairs = pads_of(node, x, sizes, strides, [1] * count)
    if any(pad >= size for pair, size in zip(pairs, sizes) for pad in pair):
        raise Unmapped(f"attribute pads={pairs} is not shorter than the kernel {sizes}", "pad the input with Pad")
    lengths = [(n + sum(p) - k) // s + 1 for n, p, k, s in zip(x.shape[2:], pairs, sizes, strides)]
    params = without_defaults(kind="max" if is_max else "average", kernel=per_axis(sizes, 1),
                              stride=per_axis(strides, 1), pads=flat(pairs),
                              count_pads=bool(node.attr("count_include_pad", 0)))  # fmt: skip
    result = (*x.shape[:2], *[1] * (2 - count), *lengths)
    return m.value(m.graph.emit("pool_2d", [image(m, x)], padded(result), **params), (*x.shape[:2], *lengths))


# --- resize ------------------------------------------------------------------------------------------------------

COORDINATES = {
    "half_pixel": lambda i, scale, size, length: (i + 0.5) / scale - 0.5,
    "pytorch_half_pixel": lambda i, scale, size, length: (i + 0.5) / scale - 0.5 if size > 1 else 0 * i,
    "half_pixel_symmetric": lambda i, scale, size, length: length / 2 * (1 - size / (scale * length))
    + (i + 0.5) / scale
    - 0.5,
    "asymmetric": lambda i, scale, size, length: i / scale,
    "align_corners": lambda i, scale, size, length: i * (length - 1) / (size - 1) if size > 1 else 0 * i,
}
ROUNDING = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


def sizes_of(node, x):
    """Output lengths and scales of all axes."""
    if node.op == "Upsample":
        scales = node.attr("scales") or [float(scale) for scale in node.constant(1, "scales")]
        return [math.floor(n * scale) for n, scale in zip(x.shape, scales)], scales
    index = 2 if node.opset >= 11 else 1
    sizes, scales = (node.constant(3, "sizes") if node.opset >= 11 else None), node.constant(index, "scales")
    axes = [node.axis(axis, x.rank) for axis in node.attr("axes", list(range(x.rank)))]
    lengths, factors = list(x.shape), [1.0] * x.rank
    for place, axis in enumerate(axes):
        if sizes is not None and sizes.size:
            lengths[axis] = int(sizes[place])
            factors[axis] = lengths[axis] / x.shape[axis]
        else:
            factors[axis] = float(scales[place])
            lengths[axis] = math.floor(x.shape[axis] * factors[axis])
    return lengths, factors


def resize(m, node):
    x = node.input(0)
    count = spatial(node, x)
    mode = node.expect("mode", ("nearest", "linear"), "nearest", "use nearest or linear")
    node.expect("antialias", (0,), 0, "use antialias=0")
    node.expect("keep_aspect_ratio_policy", ("stretch",), "stretch", "give both sizes")
    lengths, scales = sizes_of(node, x)
    if lengths[:2] != list(x.shape[:2]):
        raise Unmapped(f"axes 0 and 1 of {list(x.shape)} become {lengths[:2]}", "resize only the spatial axes")
    default = "asymmetric" if node.opset < 11 else "half_pixel"
    name = node.expect("coordinate_transformation_mode", tuple(COORDINATES), default, "use half_pixel")
    places = [
        (n, size, COORDINATES[name](np.arange(size, dtype=np.float64), scale, size, n))
        for n, size, scale in zip(x.shape[2:], lengths[2:], scales[2:])
    ]
    kind = nearest(node, places) if mode == "nearest" else linear(name, places)
    size = per_axis(lengths[2:], 1)
    params = {"mode": kind} if kind != "nearest" else {}
    result = (*x.shape[:2], *[1] * (2 - count), *lengths[2:])
    return m.value(m.graph.emit("upsample", [image(m, x)], padded(result), size=size, **params), lengths)


def nearest(node, places):
    """Checks that shoal selects the same elements: floor(i * length / size)."""
    rounding = node.attr("nearest_mode", "floor" if node.opset < 11 else "round_prefer_floor")
    for length, size, places_of_axis in places:
        found = np.clip(ROUNDING[rounding](places_of_axis), 0, length - 1)
        if not np.array_equal(found, np.arange(size) * length // size):
            raise Unmapped(f"attribute nearest_mode={rounding} selects other elements than floor(i * {length} / {size})",
                           "use asymmetric coordinates with nearest_mode=floor")  # fmt: skip
    return "nearest"


def linear(name, places):
    """Returns the mode of shoal that interpolates at the same places."""
    for mode, function in (("bilinear", "half_pixel"), ("corners", "align_corners")):
        if all(np.allclose(np.clip(found, 0, length - 1),
                           np.clip(COORDINATES[function](np.arange(size), size / length, size, length), 0, length - 1))
               for length, size, found in places):  # fmt: skip
            return mode
    raise Unmapped(f"attribute coordinate_transformation_mode={name} interpolates at other places",
                   "use half_pixel or align_corners, and scales that give whole sizes")  # fmt: skip


MAPPINGS = {
    "Conv": conv, "ConvTranspose": conv_transpose, "MaxPool": pool, "AveragePool": pool, "Resize": resize,
    "Upsample": resize,
}  # fmt: skip
