"""How far each rank's clock is ahead: known on one host, else estimated from the collectives themselves."""
