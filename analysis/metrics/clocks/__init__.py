"""How far each rank's clock is ahead: known on one host, else estimated from the collectives themselves.

Begin at `table`. `ends` turns ends of collectives into offsets, drifts and bounds; `bends` takes out jumps and curves;
`estimate` decides what to believe, and how wrong it may be. Two more witnesses follow: `messages`, where no collective
links clocks, and the clock probe (`probes`).
"""
