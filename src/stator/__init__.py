"""stator: an independent torch.compile. The public names; see docs/layout.md for the rooms behind them."""
