"""Stable Diffusion 1.5 in PyTorch: the outermost level of the U-Net, and the decoder of the VAE. All shapes are the
published shapes (Rombach et al. 2022, arXiv:2112.10752, and the configuration of the published model). The level of the
U-Net has one layer per block, and the inner levels are absent."""

import torch
import torch.nn.functional as F
from torch import nn


def conv(inputs, outputs, size=3, stride=1):
    return nn.Conv2d(inputs, outputs, size, stride, padding=size // 2)


def heads_of(x, heads):
    """[n, t, heads * d] -> [n, heads, t, d]"""
    return x.unflatten(2, (heads, -1)).transpose(1, 2)


def attention(q, k, v, heads, mask=None):
    q, k, v = (heads_of(x, heads) for x in (q, k, v))
    scores = q @ k.transpose(2, 3) * q.shape[-1] ** -0.5
    if mask is not None:
        scores = scores + mask
    return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


class Resnet(nn.Module):
    def __init__(self, inputs, outputs, time=0, eps=1e-5):
        super().__init__()
        self.norm1 = nn.GroupNorm(32, inputs, eps)
        self.conv1 = conv(inputs, outputs)
        self.time = nn.Linear(time, outputs) if time else None
        self.norm2 = nn.GroupNorm(32, outputs, eps)
        self.conv2 = conv(outputs, outputs)
        self.shortcut = conv(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x, time=None):
        h = self.conv1(F.silu(self.norm1(x)))
        if self.time is not None:
            h = h + self.time(F.silu(time))[:, :, None, None]
        return self.shortcut(x) + self.conv2(F.silu(self.norm2(h)))


class Attention(nn.Module):
    def __init__(self, width, heads, context=None):
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(context or width, width, bias=False)
        self.v = nn.Linear(context or width, width, bias=False)
        self.out = nn.Linear(width, width)

    def forward(self, x, context):
        return self.out(attention(self.q(x), self.k(context), self.v(context), self.heads))


class Transformer(nn.Module):
    def __init__(self, width, heads, context):
        super().__init__()
        self.norm = nn.GroupNorm(32, width, 1e-6)
        self.proj_in = conv(width, width, 1)
        self.norm1 = nn.LayerNorm(width)
        self.self_attn = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.cross_attn = Attention(width, heads, context)
        self.norm3 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.gate = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.proj_out = conv(width, width, 1)

    def forward(self, image, context):
        x = self.proj_in(self.norm(image)).flatten(2).transpose(1, 2)
        y = self.norm1(x)
        x = x + self.self_attn(y, y)
        x = x + self.cross_attn(self.norm2(x), context)
        y = self.norm3(x)
        x = x + self.down(self.up(y) * F.gelu(self.gate(y)))
        return image + self.proj_out(x.transpose(1, 2).unflatten(2, image.shape[2:]))


def upsample(x):
    return F.interpolate(x, scale_factor=2.0, mode="nearest")


class UNet(nn.Module):
    """latent [n, 4, h, w], frequencies [n, 320] (the sinusoidal embedding of the time step), context [n, 77, 768] ->
    noise [n, 4, h, w]"""

    def __init__(self, width=320, heads=8, context=768):
        super().__init__()
        time = 4 * width
        self.time1 = nn.Linear(width, time)
        self.time2 = nn.Linear(time, time)
        self.conv_in = conv(4, width)
        self.down_resnet = Resnet(width, width, time)
        self.down_transformer = Transformer(width, heads, context)
        self.downsample = conv(width, width, stride=2)
        self.upsample = conv(width, width)
        self.up_resnets = nn.ModuleList(Resnet(2 * width, width, time) for _ in range(2))
        self.up_transformers = nn.ModuleList(Transformer(width, heads, context) for _ in range(2))
        self.norm_out = nn.GroupNorm(32, width)
        self.conv_out = conv(width, 4)

    def forward(self, latent, frequencies, context):
        time = self.time2(F.silu(self.time1(frequencies)))
        skips = [self.conv_in(latent)]
        skips.append(self.down_transformer(self.down_resnet(skips[0], time), context))
        x = self.upsample(upsample(self.downsample(skips[1])))
        for resnet, transformer in zip(self.up_resnets, self.up_transformers):
            x = transformer(resnet(torch.cat([x, skips.pop()], 1), time), context)
        return self.conv_out(F.silu(self.norm_out(x)))


class VaeAttention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.GroupNorm(32, width, 1e-6)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, image):
        x = self.norm(image).flatten(2).transpose(1, 2)
        x = self.out(attention(self.q(x), self.k(x), self.v(x), 1))
        return image + x.transpose(1, 2).unflatten(2, image.shape[2:])


class VaeDecoder(nn.Module):
    """latent [n, 4, h, w] -> image [n, 3, 8 h, 8 w]"""

    def __init__(self, widths=(512, 512, 256, 128), layers=3):
        super().__init__()
        width = widths[0]
        self.post_quant = conv(4, 4, 1)
        self.conv_in = conv(4, width)
        self.mid_resnet1 = Resnet(width, width, eps=1e-6)
        self.mid_attn = VaeAttention(width)
        self.mid_resnet2 = Resnet(width, width, eps=1e-6)
        inputs = (width, *widths)
        self.blocks = nn.ModuleList(
            nn.ModuleList(Resnet(i if first else o, o, eps=1e-6) for first in [True] + [False] * (layers - 1))
            for i, o in zip(inputs, widths)
        )
        self.upsamples = nn.ModuleList(conv(w, w) for w in widths[:-1])
        self.norm_out = nn.GroupNorm(32, widths[-1], 1e-6)
        self.conv_out = conv(widths[-1], 3)

    def forward(self, latent):
        x = self.conv_in(self.post_quant(latent))
        x = self.mid_resnet2(self.mid_attn(self.mid_resnet1(x)))
        for index, block in enumerate(self.blocks):
            for resnet in block:
                x = resnet(x)
            if index < len(self.upsamples):
                x = self.upsamples[index](upsample(x))
        return self.conv_out(F.silu(self.norm_out(x)))
