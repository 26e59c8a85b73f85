"""ResNet-18 and ResNet-34 for images of 32 px: the ImageNet networks without what shrinks their input fourfold."""

from torch import nn
from torchvision.models.resnet import BasicBlock, ResNet

from robustmetric.errors import InputError
from robustmetric.types import Embeddings, Inputs

BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}
"""By depth: how many of two convolutions each, with 64, 128, 256 and 512 channels."""
FIRST = 64


class SmallResNet(nn.Module):
    """Torchvision's network behind a 3 x 3 convolution of stride 1, without pooling: as robustness on CIFAR-10 is told.

    Ends in the mean over the feature map, of an eighth of the side: the 512 features that a classifier's head reads.
    """

    def __init__(self, depth: int = 18, channels: int = 3) -> None:
        super().__init__()
        if depth not in BLOCKS:
            raise InputError(f"depth {depth} is not known; expected one of {', '.join(map(str, BLOCKS))}")
        if channels < 1:
            raise InputError(f"channels={channels}; expected at least 1")
        self.net = ResNet(BasicBlock, list(BLOCKS[depth]))
        first = nn.Conv2d(channels, FIRST, kernel_size=3, padding=1, bias=False)
        nn.init.kaiming_normal_(first.weight, mode="fan_out", nonlinearity="relu")
        self.dim = self.net.fc.in_features
        self.net.conv1, self.net.maxpool, self.net.fc = first, nn.Identity(), nn.Identity()

    def forward(self, inputs: Inputs) -> Embeddings:
        return self.net(inputs)
