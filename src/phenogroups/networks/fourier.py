"""Convolutions with large kernels as products of Fourier transforms, which a CPU computes faster."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

IMAGES = 64  # transformed at a time: their spectra stay near the processor
FEWEST_CHANNELS = 16  # of the input: with fewer, sums over the kernel are as fast
LARGEST_SIDE = 64  # of a map: the spectra of the kernels are as large as the map


class FourierConv2d(nn.Conv2d):
    """A convolution of stride 1 whose output is as large as its input: `nn.Conv2d` to 1e-5 of the largest number.

    A kernel of 7 x 7 multiplies 49 times for each pixel and pair of channels; spectra multiply about 2.5 times, and
    transforms are of single channels.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int) -> None:
        if kernel_size % 2 == 0:
            raise ValueError(
                f"Expected an odd kernel, which has a middle. Received: {kernel_size}. Use nn.Conv2d for even ones."
            )
        super().__init__(in_channels, out_channels, kernel_size, padding=kernel_size // 2)

    def forward(self, input: Tensor) -> Tensor:
        if not self.is_faster_for(input):
            return super().forward(input)
        of = transforms(*input.shape[2:], self.kernel_size[0])
        kernels = self.weight.permute(2, 3, 1, 0).flatten(0, 1).flatten(1)
        kernels = [(m @ kernels).view(len(of.width) // 2, -1, self.in_channels, self.out_channels) for m in of.kernel]
        columns = list(zip(*(part.unbind() for part in kernels), strict=True))
        pixels = input.permute(2, 3, 0, 1)
        found = torch.cat([self._convolved(some, columns, of) for some in pixels.split(IMAGES, dim=2)], dim=2)
        return found.permute(2, 3, 0, 1)

    def is_faster_for(self, x: Tensor) -> bool:
        images = x.ndim == 4 and len(x) > 0 and max(x.shape[2:]) <= LARGEST_SIDE
        single = x.device.type == "cpu" and x.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
        return images and single and self.in_channels >= FEWEST_CHANNELS

    def _convolved(self, x: Tensor, kernels: Sequence[tuple[Tensor, Tensor]], of: "Transforms") -> Tensor:
        """Real and imaginary parts are matrices of their own; images and channels are their last dimensions.

        One frequency of the width after the other, so that what is computed of it stays near the processor.
        """
        height, width, n, channels = x.shape
        rows = torch.matmul(of.width, x.reshape(height, width, n * channels))
        found = []
        for column, kernel in zip(rows.view(height * 2, -1, n * channels).unbind(1), kernels, strict=True):
            spectra = ((matrix @ column).view(-1, n, channels) for matrix in of.height)
            parts = ComplexProduct.apply(*spectra, *kernel)
            real, imaginary = (part.view(len(part), -1) for part in parts)  # pyright: ignore
            found.append((of.back_height[0] @ real).addmm_(of.back_height[1], imaginary))
        rows = torch.stack(found).view(-1, height, n * self.out_channels).transpose(0, 1)
        y = torch.matmul(of.back_width, rows).view(height, width, n, self.out_channels)
        return y.add_(self.bias)  # pyright: ignore[reportArgumentType]


class PixelsFirstNorm2d(nn.BatchNorm2d):
    """Batch normalisation that leaves the output of `FourierConv2d` as it lies in memory: pixels, images, channels.

    It does not matter which dimension is called images: with the rows of pixels in their place, channels are last,
    which torch normalises without laying the array out anew.
    """

    def forward(self, input: Tensor) -> Tensor:
        rows = input.permute(2, 1, 3, 0)
        if input.is_contiguous() or not rows.is_contiguous(memory_format=torch.channels_last):
            return super().forward(input)
        return super().forward(rows).permute(3, 1, 0, 2)


class ComplexProduct(torch.autograd.Function):
    """Products of complex matrices, frequency by frequency: (frequencies, images, channels) with (.., in, out).

    Written out, so that sums of products are formed in place.
    """

    @staticmethod
    def forward(ctx: Any, x_real: Tensor, x_imaginary: Tensor, w_real: Tensor, w_imaginary: Tensor) -> Any:
        ctx.save_for_backward(x_real, x_imaginary, w_real, w_imaginary)
        real = torch.bmm(x_real, w_real).baddbmm_(x_imaginary, w_imaginary, alpha=-1)
        return real, torch.bmm(x_real, w_imaginary).baddbmm_(x_imaginary, w_real)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (real, imaginary), (x_real, x_imaginary, w_real, w_imaginary) = gradients, ctx.saved_tensors
        of_x = of_w = (None, None)
        if ctx.needs_input_grad[0]:
            of_x = (
                torch.bmm(real, w_real.mT).baddbmm_(imaginary, w_imaginary.mT),
                torch.bmm(imaginary, w_real.mT).baddbmm_(real, w_imaginary.mT, alpha=-1),
            )
        if ctx.needs_input_grad[2]:
            of_w = (
                torch.bmm(x_real.mT, real).baddbmm_(x_imaginary.mT, imaginary),
                torch.bmm(x_real.mT, imaginary).baddbmm_(x_imaginary.mT, real, alpha=-1),
            )
        return *of_x, *of_w


class Transforms(NamedTuple):
    """Matrices of the discrete Fourier transform: of an image of this size there and back, and of a kernel.

    As matrices and not by `torch.fft`: the products are as fast, and no array has to be laid out anew between them.
    """

    width: Tensor  # (real and imaginary frequencies, pixels)
    height: tuple[Tensor, Tensor]  # real and imaginary part: (frequencies, pixels with real and imaginary part)
    back_height: tuple[Tensor, Tensor]  # (real and imaginary pixels, frequencies)
    back_width: Tensor  # (pixels, frequencies with real and imaginary part)
    kernel: tuple[Tensor, Tensor]  # (frequencies of width and height, elements of the kernel)


@lru_cache(maxsize=16)
@torch.inference_mode(False)  # a network may first embed and then be trained: what is kept must serve both
def transforms(height: int, width: int, kernel: int) -> Transforms:
    # so large that what is folded back falls on pixels beyond the image
    n_down, n_along = height + kernel // 2, width + kernel // 2
    y, x, element = torch.arange(height), torch.arange(width), torch.arange(kernel) - kernel // 2
    # an image is real: the other half of the frequencies along its width is conjugate
    down, along = torch.arange(n_down), torch.arange(n_along // 2 + 1)
    times = torch.full((len(along),), 2.0).double()
    times[0] = 1.0
    if n_along % 2 == 0:
        times[-1] = 1.0
    forth = _angles(along, x, n_along)
    cos, sin = (part(_angles(down, y, n_down)) for part in (torch.cos, torch.sin))
    of_kernel = _angles(along, element, n_along)[:, None, None, :] + _angles(down, element, n_down)[None, :, :, None]
    of_kernel = of_kernel.reshape(-1, kernel * kernel)

    return Transforms(
        width=_single(torch.cat([forth.cos(), -forth.sin()])),
        height=(_single(torch.stack([cos, sin], -1).flatten(1)), _single(torch.stack([-sin, cos], -1).flatten(1))),
        back_height=(_single(torch.cat([cos.T, sin.T]) / n_down), _single(torch.cat([-sin.T, cos.T]) / n_down)),
        back_width=_single(torch.stack([forth.T.cos() * times, -forth.T.sin() * times], -1).flatten(1) / n_along),
        kernel=(_single(of_kernel.cos()), _single(of_kernel.sin())),  # conjugate: networks correlate
    )


def _single(matrix: Tensor) -> Tensor:
    return matrix.float().contiguous()


def _angles(rows: Tensor, columns: Tensor, size: int) -> Tensor:
    return 2 * torch.pi / size * torch.outer(rows.double(), columns.double())
