"""ResNet-50 on random pictures, with its activations in the store.

python3 examples/python/resnet50.py --budget 12GiB                   # a GPU, the node's daemon
python3 examples/python/resnet50.py --embedded --budget 512MiB --pixels 64 --batch 16 --steps 2
"""

import types

import common
import torch


class Classifier(torch.nn.Module):
    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, pictures, labels):
        loss = torch.nn.functional.cross_entropy(self.network(pictures), labels)
        return types.SimpleNamespace(loss=loss)


def main():
    options = common.parse(__doc__, {"pixels": 224, "batch": 256, "classes": 1000})
    torchvision = common.need("torchvision")

    def make_model():
        return Classifier(torchvision.models.resnet50(num_classes=options.classes))

    def make_batch(generator):
        size = (options.batch, 3, options.pixels, options.pixels)
        return {
            "pictures": torch.randn(size, generator=generator),
            "labels": torch.randint(options.classes, (options.batch,), generator=generator),
        }

    common.train(options, make_model, make_batch)


if __name__ == "__main__":
    main()
