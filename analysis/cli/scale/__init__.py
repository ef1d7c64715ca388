"""Commands for runs of many ranks: pack traces, plan which ranks to trace, watch a run."""
