"""Find the same collective on every rank: which calls belong together, on what evidence, and how certainly.

Begin at `ladder`. Each rung has a module: `ids`, `steps`, `times`, and `pairs` for messages between CPUs. What makes a
rung doubt is in `doubts`, `numbering` and `whole`; which ranks take part where no trace says so, in `groups` and
`communicators`.
"""
