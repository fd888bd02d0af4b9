"""Whisper in PyTorch with the published shapes of the model "tiny" (Radford et al. 2022, arXiv:2212.04356): 384
channels, 6 heads, 4 layers, 80 mel bins and 51865 tokens."""

import torch
import torch.nn.functional as F
from torch import nn

from nets.image import attention


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(width, width)
        self.k = nn.Linear(width, width, bias=False)
        self.v = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(self, x, source, mask=None):
        return self.out(attention(self.q(x), self.k(source), self.v(source), self.heads, mask))


class Layer(nn.Module):
    def __init__(self, width, heads, cross):
        super().__init__()
        self.attn_norm = nn.LayerNorm(width)
        self.attn = Attention(width, heads)
        if cross:
            self.cross_norm = nn.LayerNorm(width)
            self.cross_attn = Attention(width, heads)
        self.mlp_norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x, audio=None, mask=None):
        y = self.attn_norm(x)
        x = x + self.attn(y, y, mask)
        if audio is not None:
            x = x + self.cross_attn(self.cross_norm(x), audio)
        return x + self.down(F.gelu(self.up(self.mlp_norm(x))))


class Encoder(nn.Module):
    """mel [n, 80, frames], positions [frames / 2, 384] (sinusoids) -> audio [n, frames / 2, 384]"""

    def __init__(self, width=384, heads=6, layers=4, bins=80):
        super().__init__()
        self.conv1 = nn.Conv1d(bins, width, 3, padding=1)
        self.conv2 = nn.Conv1d(width, width, 3, stride=2, padding=1)
        self.layers = nn.ModuleList(Layer(width, heads, cross=False) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, mel, positions):
        x = F.gelu(self.conv2(F.gelu(self.conv1(mel)))).transpose(1, 2) + positions
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class Decoder(nn.Module):
    """tokens [n, t], audio [n, s, 384] -> logits [n, t, 51865]"""

    def __init__(self, width=384, heads=6, layers=4, tokens=51865, context=448):
        super().__init__()
        self.token_embedding = nn.Embedding(tokens, width)
        self.positions = nn.Parameter(torch.empty(context, width))
        self.layers = nn.ModuleList(Layer(width, heads, cross=True) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens, audio):
        length = tokens.shape[1]
        mask = torch.full((length, length), -torch.inf).triu(1)
        x = self.token_embedding(tokens) + self.positions[:length]
        for layer in self.layers:
            x = layer(x, audio, mask)
        return self.norm(x) @ self.token_embedding.weight.T
