"""The invalidator's loop, as procedures: the simulator runs these very files, so they reach no socket and no
thread."""
