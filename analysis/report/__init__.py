"""Results as one page that needs no network: findings, figures, and the tables behind them."""
