"""Why a rank was late, followed to where the lateness began.

Begin at `table`. `late` says which rank was late, `program` what a rank did at any time, `accounts` what it did longer
than the others of its group, `origins` which other rank had held it up, and `blame` who caused each wait. `details` and
`late_work` look at what the rank that is named was doing.
"""
