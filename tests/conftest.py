import matplotlib
import pytest
import torch

matplotlib.use("Agg")


def pytest_collection_modifyitems(items):
    if not torch.cuda.is_available():
        skip = pytest.mark.skip(reason="no CUDA device")
        for item in items:
            if "gpu" in item.keywords:
                item.add_marker(skip)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture
def cloud():
    """Tokens (2, 9, 5), prototypes (4, 5) and a mask (2, 9) with real and masked tokens, in float64."""
    mask = torch.tensor([[1, 1, 0, 1, 1, 1, 0, 1, 1], [1, 1, 1, 1, 1, 0, 0, 0, 0]], dtype=torch.bool)
    return torch.randn(2, 9, 5, dtype=torch.float64), torch.randn(4, 5, dtype=torch.float64), mask
