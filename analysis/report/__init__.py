"""Results as one page that needs no network: what is found, pictures, and the tables behind them."""
