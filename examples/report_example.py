"""A small model with things worth finding in a report: breaks, recompiles, a size that varies."""

import torch


class Block(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


class Model(torch.nn.Module):
    def __init__(self, width: int = 64, depth: int = 2) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block(width) for _ in range(depth))
        self.head = torch.nn.Linear(width, 10)

    def forward(self, x: torch.Tensor, temperature: float, normalise: str) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        if x.abs().max().item() > 1e4:  # reads a value: the graph ends here
            x = x.clamp(-1e4, 1e4)
        x = self.head(x) / temperature
        return x.softmax(-1) if normalise == "softmax" else x.sigmoid()


@torch.compile
def predict(model: Model, x: torch.Tensor, temperature: float, normalise: str) -> torch.Tensor:
    return model(x, temperature, normalise)


def main() -> None:
    torch.manual_seed(0)
    model = Model()
    for batch, temperature, normalise in (
        (8, 1.0, "softmax"),
        (8, 0.7, "softmax"),
        (12, 0.7, "sigmoid"),
        (3, 0.9, "sigmoid"),
    ):
        print(tuple(predict(model, torch.randn(batch, 64), temperature, normalise).shape))


if __name__ == "__main__":
    main()
