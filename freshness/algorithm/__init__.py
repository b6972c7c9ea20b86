"""The algorithm, as procedures that do no I/O.

A procedure is a generator: it yields a step (`request`) and is sent the answer. ``driver`` answers with real nodes,
the simulator with its own. Begin with ``rule`` (may this be served, may this be stored), then ``read`` (one lookup),
``invalidate`` (the keys of one node), ``membership`` and ``admission`` (one node), ``apply`` (one batch), ``restore``
(stripes that are missing).
"""
