import pytest
import torch

from commtrace.profiling.workloads.models import cifar_resnet18, vgg16


def size(model) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.slow
def test_cifar_resnet18_has_11_173_962_parameters_and_keeps_small_images_large() -> None:
    model = cifar_resnet18()
    assert size(model) == 11_173_962
    assert model(torch.ones(2, 3, 32, 32)).shape == (2, 10)
    assert model.layer1(model.maxpool(model.conv1(torch.ones(1, 3, 32, 32)))).shape[-1] == 32


def test_vgg16_is_torchvisions() -> None:
    with torch.device("meta"):
        assert size(vgg16()) == 138_357_544


def test_weights_follow_the_seed() -> None:
    first, second = (torch.manual_seed(7) and cifar_resnet18().conv1.weight for _ in range(2))
    assert torch.equal(first, second)
