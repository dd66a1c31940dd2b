"""Images with another number of channels: colour as grey, grey as colour."""

from dataclasses import dataclass

import torch
from torch import Tensor

from sla.errors import InputError
from sla.images.store import Images, Pixels, Rows

LUMA = (0.299, 0.587, 0.114)  # ITU-R 601: the grey that Pillow's mode L shows


def convert_channels(images: Tensor, count: int) -> Tensor:
    """uint8 (B, C, H, W) -> (B, count, H, W): grey for one channel, equal channels from one."""
    if images.shape[1] == count:
        return images
    if images.shape[1] == 1:
        return images.expand(-1, count, -1, -1)
    if count != 1:
        raise InputError(f"images with {images.shape[1]} channels for a model of {count}")
    grey = images.float() * torch.tensor(LUMA, device=images.device)[:, None, None]
    return grey.sum(1, keepdim=True).round().to(torch.uint8)


@dataclass(frozen=True)
class ConvertedImages:
    """A store whose images are converted to a number of channels on read."""

    store: Images
    channels: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of every image."""
        return self.channels, *self.store.shape[1:]

    @property
    def in_memory(self) -> bool:
        """As the store that it converts."""
        return self.store.in_memory

    def __len__(self) -> int:
        return len(self.store)

    def read(self, rows: Rows) -> Pixels:
        """The images of these rows, in their order."""
        images, aspect = self.store.read(rows)
        return Pixels(convert_channels(images, self.channels).contiguous(), aspect)

    def name(self, row: int) -> str:
        """As in the store."""
        return self.store.name(row)
