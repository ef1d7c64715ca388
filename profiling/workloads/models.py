"""The models of `--model`, built from torchvision's and initialised from torch's current seed."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping

from torch import nn

from .torchvision_import import torchvision

_WEIGHTED = (nn.Conv2d, nn.Linear)


def cifar_resnet18() -> nn.Module:
    """ResNet-18 for 32 x 32 images: a 3x3 stem of stride 1, no max pool, 10 classes; 11,173,962 parameters."""
    model: nn.Module = torchvision("models").resnet18(weights=None, num_classes=10)
    model.conv1 = nn.Conv2d(3, 64, kernel_size=3, stride=1, padding=1, bias=False)
    nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
    model.maxpool = nn.Identity()
    return model


def vgg16() -> nn.Module:
    """torchvision's VGG-16: 1000 classes, images of at least 32 pixels; 138,357,544 parameters."""
    model: nn.Module = torchvision("models").vgg16(weights=None)
    return model


def vgg16_swapped() -> nn.Module:
    """VGG-16 with every max pool before the ReLU that it follows in `vgg16`; same weights for the same seed.

    The largest of some numbers, cut at 0, is the largest of the numbers cut at 0: the outputs are the same, bit by bit.
    """
    model = vgg16()
    features = model.features
    assert isinstance(features, nn.Sequential)
    layers = list(features)
    for place, layer in enumerate(layers):
        if isinstance(layer, nn.MaxPool2d):
            assert isinstance(layers[place - 1], nn.ReLU)
            layers[place - 1 : place + 1] = [layer, layers[place - 1]]
    model.features = nn.Sequential(*layers)
    return model


def _resnet18_blocks(model: nn.Module) -> "OrderedDict[str, nn.Module]":
    """The stem, every residual block, and the head."""
    given: dict[str, nn.Module] = dict(model.named_children())
    blocks: OrderedDict[str, nn.Module] = OrderedDict()
    blocks["stem"] = nn.Sequential(*(given[name] for name in ("conv1", "bn1", "relu", "maxpool")))
    for layer in ("layer1", "layer2", "layer3", "layer4"):
        blocks.update((f"{layer}.{name}", block) for name, block in given[layer].named_children())
    blocks["head"] = nn.Sequential(given["avgpool"], nn.Flatten(1), given["fc"])
    return blocks


def _vgg16_blocks(model: nn.Module) -> "OrderedDict[str, nn.Module]":
    """The convolutions with the max pool after them, and each fully connected layer with the layers before the next.

    A pool takes along what follows it: in the swapped model a ReLU in place, which no block may begin with.
    """
    given: dict[str, nn.Module] = dict(model.named_children())
    blocks = OrderedDict(_runs("features", given["features"].named_children(), nn.MaxPool2d))
    layers = OrderedDict(_runs("classifier", given["classifier"].named_children(), nn.Dropout))
    first = next(iter(layers))
    layers[first] = nn.Sequential(given["avgpool"], nn.Flatten(1), *layers[first].children())
    return OrderedDict((*blocks.items(), *layers.items()))


def _runs(
    prefix: str, layers: Iterable[tuple[str, nn.Module]], ends_with: type[nn.Module]
) -> Iterable[tuple[str, nn.Module]]:
    """Runs of layers, cut at the first layer with weights after one of this type; named for their first layer."""
    run: list[nn.Module] = []
    name, ended = "", False
    for number, layer in layers:
        if ended and isinstance(layer, _WEIGHTED):
            yield name, nn.Sequential(*run)
            run, name, ended = [], "", False
        name = name or f"{prefix}.{number}"
        run.append(layer)
        ended = ended or isinstance(layer, ends_with)
    yield name, nn.Sequential(*run)


MODELS: Mapping[str, Callable[[], nn.Module]] = {
    "resnet18": cifar_resnet18,
    "vgg16": vgg16,
    "vgg16-swapped": vgg16_swapped,
}
# A model as blocks that run one after the other and together are the model; they share its modules.
BLOCKS: Mapping[str, Callable[[nn.Module], "OrderedDict[str, nn.Module]"]] = {
    "resnet18": _resnet18_blocks,
    "vgg16": _vgg16_blocks,
    "vgg16-swapped": _vgg16_blocks,
}
