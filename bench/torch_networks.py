# SPDX-License-Identifier: Apache-2.0
"""The networks of the comparisons in PyTorch, as Layup's builders make them."""
from torch import nn


class CifarBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut, a projection where the shape changes."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = None
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x):
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(y + (x if self.shortcut is None else self.shortcut(x)))


def cifar_resnet(depth, image_channels=3):
    layers = [nn.Conv2d(image_channels, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True)]
    channels = 16
    for width in (16, 32, 64):
        for i in range((depth - 2) // 6):
            layers.append(CifarBlock(channels, width, 2 if i == 0 and width > 16 else 1))
            channels = width
    network = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
    for module in network.modules():  # as torchvision's ResNets
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return network


def lenet():
    return nn.Sequential(
        nn.Conv2d(1, 20, 5), nn.MaxPool2d(2), nn.Conv2d(20, 50, 5), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(800, 500), nn.ReLU(inplace=True), nn.Linear(500, 10),
    )


def build(name):
    """The network, the shape of an image, the number of classes."""
    if name.startswith("cifar_resnet"):
        return cifar_resnet(int(name[len("cifar_resnet"):])), (3, 32, 32), 10
    if name == "lenet":
        return lenet(), (1, 28, 28), 10
    import torchvision

    return getattr(torchvision.models, name)(), (3, 224, 224), 1000
